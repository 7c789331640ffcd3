"""A model that changes only its base class and imports behaves as before in everything PynamoDB documents.

Each scenario runs on a stock model and on its twin; what it sees, what is stored and which signals are sent
must be equal, and the requests may differ by the guards alone: see `normal`.
"""

from __future__ import annotations

import copy
import json
import re
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from pynamodb.attributes import (
    BinaryAttribute,
    BinarySetAttribute,
    BooleanAttribute,
    DiscriminatorAttribute,
    JSONAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    NumberSetAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
    UTCDateTimeAttribute,
)
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError
from pynamodb.expressions.condition import size
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex, KeysOnlyProjection, LocalSecondaryIndex
from pynamodb.models import Model
from pynamodb.signals import post_dynamodb_send, pre_dynamodb_send
from pynamodb.transactions import TransactGet
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import LockableModel, LockAttribute, TransactWrite, VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import ConfigurationError, InvalidInput
from tests.support.models import Device, Locks, meta
from tests.support.wire import count_requests

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
WRITE_ID = "v_write_id"
A_WRITE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{20}")

STOCK = SimpleNamespace(bases=(Model,), version=StockVersionAttribute, transact=StockTransactWrite, lock=False)
VERSIONED = SimpleNamespace(bases=(VersionedMixin, Model), version=VersionAttribute, transact=TransactWrite, lock=False)
LOCKABLE = SimpleNamespace(bases=(LockableModel,), version=VersionAttribute, transact=TransactWrite, lock=False)
#: Only the base class has been changed.
BASE_ONLY = SimpleNamespace(
    bases=(VersionedMixin, Model), version=StockVersionAttribute, transact=StockTransactWrite, lock=False
)
EMBEDDED = SimpleNamespace(bases=(LockableModel,), version=VersionAttribute, transact=TransactWrite, lock=True)
TWINS = {"versioned": VERSIONED, "lockable": LOCKABLE, "base only": BASE_ONLY, "embedded": EMBEDDED}


# The models


class Address(MapAttribute):
    """A map with a renamed attribute."""

    street = UnicodeAttribute(attr_name="s")
    number = NumberAttribute(null=True)


def models_of(kind, *, versioned=True):
    """Return the same models on some base classes."""
    bases = kind.bases

    class ByTitle(GlobalSecondaryIndex):
        class Meta:
            index_name = "by-title"
            projection = AllProjection()
            read_capacity_units = 1
            write_capacity_units = 1

        title = UnicodeAttribute(hash_key=True, attr_name="t")
        number = NumberAttribute(range_key=True, attr_name="sk")

    class ByTotal(LocalSecondaryIndex):
        class Meta:
            index_name = "by-total"
            projection = KeysOnlyProjection()

        folder = UnicodeAttribute(hash_key=True, attr_name="pk")
        total = NumberAttribute(range_key=True)

    class Thing(*bases):
        Meta = meta("things")

        folder = UnicodeAttribute(hash_key=True, attr_name="pk")
        number = NumberAttribute(range_key=True, attr_name="sk")
        title = UnicodeAttribute(null=True, attr_name="t")
        address = Address(null=True)
        raw = MapAttribute(null=True)
        stops = ListAttribute(of=Address, null=True)
        mixed = ListAttribute(null=True)
        tags = UnicodeSetAttribute(null=True)
        numbers = NumberSetAttribute(null=True)
        blobs = BinarySetAttribute(legacy_encoding=False, null=True)
        total = NumberAttribute(default=0)
        made = UTCDateTimeAttribute(default_for_new=MOMENT)
        blob = BinaryAttribute(legacy_encoding=False, null=True)
        old_blob = BinaryAttribute(legacy_encoding=True, null=True)
        document = JSONAttribute(null=True)
        flag = BooleanAttribute(default=False)
        by_title = ByTitle()
        by_total = ByTotal()
        if versioned:
            version = kind.version(attr_name="v")
        if kind.lock:
            lock = LockAttribute()

    class Animal(*bases):
        Meta = meta("animals")

        name = UnicodeAttribute(hash_key=True)
        kind_ = DiscriminatorAttribute(attr_name="kind")
        legs = NumberAttribute(default=4)
        if versioned:
            version = kind.version(attr_name="v")
        if kind.lock:
            lock = LockAttribute()

    class Cat(Animal, discriminator="cat"):
        lives = NumberAttribute(default=9)

    class Kitten(Cat, discriminator="kitten"):
        pass

    class Dog(Animal, discriminator="dog"):
        bone = UnicodeAttribute(null=True)

    return SimpleNamespace(
        Thing=Thing, Animal=Animal, Cat=Cat, Kitten=Kitten, Dog=Dog, kind=kind, tables=(Thing, Animal)
    )


# What a run of a scenario shows


class Run:
    """One run of a scenario on one family of models, and what it has seen.

    Args:
        models: from `models_of`, bound to tables.
        engine: where they are.
    """

    def __init__(self, models, engine):
        self.models = models
        self.engine = engine
        self.seen = []
        self.signals = []

    def see(self, *values):
        """Note values; they must be the same in every run."""
        self.seen.append([plain(value) for value in values])

    def fails(self, call):
        """Note with what a call fails; that it does not is noted as well."""
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - they are compared
            self.seen.append(described(error))
        else:
            self.seen.append(("no error", plain(result)))

    def transact(self, *models):
        """Return a transaction of the kind that goes with the models."""
        return self.models.kind.transact(connection=self.models.Thing._get_connection().connection)

    def transact_get(self):
        """Return a transaction of reads."""
        return TransactGet(connection=self.models.Thing._get_connection().connection)

    def batch_write(self, model):
        """Return a batch, which our guarded models want to be asked for by name."""
        has_guard = model._version_attribute_name is not None or self.models.kind.lock
        return model.batch_write(unguarded=True) if has_guard and self.models.kind is not STOCK else model.batch_write()

    def put(self, model, item):
        """Store an item behind PynamoDB's back."""
        self.engine.client().put_item(TableName=model.Meta.table_name, Item=item)

    def stored(self):
        """Return what is stored in all tables, without write ids and locks."""
        return [self._stored(model) for model in self.models.tables]

    def _stored(self, model):
        with suppress(self.engine.client().exceptions.ResourceNotFoundException):
            items = self.engine.client().scan(TableName=model.Meta.table_name, ConsistentRead=True)["Items"]
            return unordered(items)
        return None

    def neutral(self, text):
        """Return a text with the names of the tables as the models have them."""
        for model in self.models.tables:
            text = text.replace(model.Meta.table_name, model.__name__.lower())
        return text

    @contextmanager
    def listening(self):
        """Note the signals."""

        def note(when):
            def receive(sender, operation_name, table_name, req_uuid):
                self.signals.append((when, operation_name, self.neutral(str(table_name))))

            return receive

        before, after = note("pre"), note("post")
        with pre_dynamodb_send.connected_to(before), post_dynamodb_send.connected_to(after):
            yield


def plain(value):
    """Return a value that can be compared between runs: sets and dictionaries lose their order."""
    if isinstance(value, Model):
        return type(value).__name__, plain(value.to_dynamodb_dict())
    if isinstance(value, dict):
        if "ResponseMetadata" in value:  # a response of DynamoDB
            return sorted(value), plain(value.get("Attributes", {}))
        return {name: in_order(name, plain(value[name])) for name in sorted(value) if name not in (WRITE_ID, "lock")}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return value


def in_order(name, value):
    """Return a value of DynamoDB's in which a set has an order."""
    return sorted(value) if name in ("SS", "NS", "BS") and isinstance(value, list) else value


def unordered(items):
    """Return items in an order that does not depend on the engine."""
    return sorted(plain([*items]), key=repr)


def described(error):
    """Return what a handler written for PynamoDB sees of an error."""
    # `except LockingError` is not what it was written for; the first class of PynamoDB's is
    known = [
        cls for module in ("pynamodb.exceptions", "builtins") for cls in type(error).__mro__ if cls.__module__ == module
    ]
    kind = known[0]
    if not isinstance(error, PynamoDBException):
        return kind.__name__, str(error)
    code = error.cause_response_code
    if isinstance(error, TransactWriteError):
        codes = sorted(str(reason and reason.code) for reason in error.cancellation_reasons)
        request, tables = re.search(r"on request \((.*)\) on table \((.*)\) when", error.cause.MSG_TEMPLATE).groups()
        return kind.__name__, code, codes, request != "None", len(tables.split(","))
    return kind.__name__, code, bool(error.cause_response_message), type(error.cause).__name__, str(code) in str(error)


# Which differences between requests are allowed

CONDITIONS = ("ConditionExpression", "FilterExpression", "KeyConditionExpression")
#: What a condition of ours adds to the caller's and PynamoDB's, and an update.
GUARD = re.compile(
    r'v_write_id = {"S": "[0-9a-f]{8}-[0-9a-f]{20}"}'
    r'|\(?attribute_not_exists \(kind\) OR kind = {"S": "\w+"}\)?'
)
COUNTED_FROM_NOTHING, COUNTED = 'v = {"N": "1"}', 'v {"N": "1"}'
A_NEW_WRITE_ID = re.compile(r'v_write_id = {"S": "[0-9a-f]{8}-[0-9a-f]{20}"}')


def split(text, separator):
    """Split a text where it is outside of parentheses."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and text.startswith(separator, place):
            parts.append(text[begin:place])
            begin = place + len(separator)
    return [*parts, text[begin:]]


def conjuncts(text):
    """Return the conditions that are joined by AND, in their order."""
    if "BETWEEN" in text:
        text = re.sub(r"BETWEEN (\S+) AND ", r"BETWEEN \1 and ", text)
    if text.startswith("(") and split(text, ")")[0] == text[:-1]:
        text = text[1:-1]
    parts = split(text, " AND ")
    return [text] if len(parts) == 1 else [one for part in parts for one in conjuncts(part)]


def clauses(text):
    """Return the actions of an update by their clause."""
    words = re.split(r"\b(SET|REMOVE|ADD|DELETE) ", text)
    return {
        name: [part.strip() for part in split(parts, ", ")]
        for name, parts in zip(words[1::2], words[2::2], strict=True)
    }


class Normal:
    """Turns requests into what has to be the same, and notes which guards it has taken away.

    Args:
        run: whose requests they are.
    """

    def __init__(self, run):
        self.run = run
        self.guards = set()

    def requests(self, recorded):
        """Return all requests of a run."""
        return [(operation, self.request(self.readable(body))) for operation, body in recorded]

    def readable(self, body):
        """Return a body with the names of its tables as the models have them, and sets in order."""
        return json.loads(self.run.neutral(json.dumps(body)), object_hook=with_sorted_sets)

    def request(self, body):
        """Return one request, or one action of a transaction."""
        if "TransactItems" in body:
            body["TransactItems"] = [
                {kind: self.request(request) for kind, request in action.items()} for action in body["TransactItems"]
            ]
        if "ClientRequestToken" in body:
            assert body["ClientRequestToken"]
            body["ClientRequestToken"] = "token"
        self.expressions(body, body.pop("ExpressionAttributeNames", {}), body.pop("ExpressionAttributeValues", {}))
        if WRITE_ID in body.get("Item", {}):
            assert A_WRITE_ID.fullmatch(body["Item"].pop(WRITE_ID)["S"])
            self.guards.add("write id")
        if body.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD":
            self.guards.add("image")
            del body["ReturnValuesOnConditionCheckFailure"]
        return body

    def expressions(self, body, names, values):
        """Put names and values in the place of their placeholders, and take the guards out."""

        def expanded(text):
            return re.sub(r"[#:]\w+", lambda one: names.get(one[0]) or json.dumps(values[one[0]]), text)

        for name in CONDITIONS:
            if name in body:
                body[name] = self.without(map(expanded, conjuncts(body[name])), GUARD, "condition")
                if not body[name]:
                    del body[name]
        if "ProjectionExpression" in body:
            body["ProjectionExpression"] = expanded(body["ProjectionExpression"])
        if "UpdateExpression" in body:
            update = {clause: [*map(expanded, parts)] for clause, parts in clauses(body["UpdateExpression"]).items()}
            body["UpdateExpression"] = self.update(update, body.get("ConditionExpression", []))

    def update(self, actions, conditions):
        """Return an update without the write id."""
        actions["SET"] = self.without(actions.get("SET", []), A_NEW_WRITE_ID, "write id")
        if COUNTED_FROM_NOTHING in actions["SET"] and "attribute_not_exists (v)" not in conditions:
            # PynamoDB sets a version back that it does not know and does not check; here it is counted.
            actions["SET"].remove(COUNTED_FROM_NOTHING)
            actions.setdefault("ADD", []).append(COUNTED)
        return {clause: parts for clause, parts in actions.items() if parts}

    def without(self, parts, guard, name):
        """Return the parts that are no guards."""
        parts = [*parts]
        left = [part for part in parts if not guard.fullmatch(part)]
        if len(left) < len(parts):
            self.guards.add(name)
        return left


def with_sorted_sets(value):
    """Return a JSON object in which sets have an order."""
    return {name: in_order(name, of) for name, of in value.items()}


# The scenarios


def full(models, number=1, **values):
    """Return a thing with a value in each attribute."""
    given = {
        "title": "a title",
        "address": Address(street="High Street", number=7),
        "raw": {"a": 1, "b": {"c": [1, "x", None, True]}, "n": None},
        "stops": [Address(street="one"), Address(street="two", number=2)],
        "mixed": [1, "two", {"three": 3}, [4], None, False],
        "tags": {"x", "y"},
        "numbers": {1, 2.5},
        "blobs": {b"\x00", b"\xff"},
        "total": 5,
        "made": MOMENT.replace(year=2020),
        "blob": b"\x00\x01",
        "old_blob": b"\x02",
        "document": {"json": [1, None, {"x": "ü"}]},
        "flag": True,
    }
    return models.Thing("folder", number, **(given | values))


def values(run):
    """Every kind of attribute, with a value, without, and empty."""
    thing = run.models.Thing
    items = [
        full(run.models),
        thing("folder", 2),
        full(run.models, 3, tags=set(), numbers=set(), blobs=set(), stops=[], mixed=[], raw={}, document=""),
        full(run.models, 4, tags=None, address=None, raw=None, stops=None, blob=None, document=None, title="z"),
    ]
    for item in items:
        run.see(item)
        run.fails(item.save)
        run.see(item)
        run.fails(lambda item=item: thing.get(item.folder, item.number))
        run.fails(item.refresh)
        run.see(item, item.made, item.tags, item.total)
        item.total += 1
        item.title = "changed"
        run.fails(item.save)
        run.fails(lambda item=item: thing.get(item.folder, item.number, consistent_read=True))
    run.see(thing.get_attributes().keys() - {"lock"})


def dictionaries(run):
    """To and from dictionaries, copies, and raw data."""
    thing = run.models.Thing
    item = full(run.models, blobs=None, blob=None, old_blob=None, numbers=None, tags=None)  # no simple form
    item.save()
    loaded = thing.get("folder", 1)
    run.see(loaded.to_dynamodb_dict(), loaded.to_simple_dict(), loaded.serialize())
    again = thing()
    again.from_dynamodb_dict(loaded.to_dynamodb_dict())
    run.see(again)
    run.fails(again.save)
    simple = thing()
    simple.from_simple_dict(json.loads(json.dumps(again.to_simple_dict())))
    run.see(simple)
    run.fails(simple.save)
    raw = thing.from_raw_data(simple.to_dynamodb_dict())
    run.see(raw, raw == simple, raw.attribute_values == simple.attribute_values)
    twin = copy.deepcopy(simple)
    twin.title = "deep"
    run.fails(twin.save)
    run.see(twin)
    run.fails(simple.save)
    run.see(repr(thing("folder", 2, title="x", version=3) if hasattr(thing, "version") else thing("folder", 2)))


def updates(run):
    """Each kind of action, and what an update returns and leaves in the instance."""
    thing = run.models.Thing
    item = full(run.models)
    item.save()
    kinds = {
        "set": lambda: [thing.title.set("new")],
        "set several": lambda: [thing.title.set("x"), thing.flag.set(False), thing.made.set(MOMENT)],
        "set in map": lambda: [thing.address.street.set("Low Street")],
        "set in raw map": lambda: [thing.raw["a"].set(2), thing.raw["b"]["c"][0].set("deep")],
        "set in list": lambda: [thing.stops[0].street.set("zero"), thing.mixed[1].set("2")],
        "plus": lambda: [thing.total.set(thing.total + 3)],
        "minus": lambda: [thing.total.set(thing.total - 1)],
        "if not exists": lambda: [thing.total.set(thing.total | 100), thing.blob.set(thing.blob | b"q")],
        "append": lambda: [thing.mixed.set(thing.mixed.append(["end"]))],
        "prepend": lambda: [thing.mixed.set(thing.mixed.prepend(["begin"]))],
        "add": lambda: [thing.total.add(5)],
        "add to set": lambda: [thing.tags.add({"z"}), thing.numbers.add({9})],
        "delete from set": lambda: [thing.tags.delete({"x"})],
        "remove": lambda: [thing.title.remove(), thing.document.remove()],
        "remove in list": lambda: [thing.stops[0].remove(), thing.raw["a"].remove()],
        "set to None": lambda: [thing.title.set(None)],
        "maps and lists": lambda: [
            thing.address.set(Address(street="whole")),
            thing.stops.set([Address(street="only")]),
            thing.raw.set({"k": "v"}),
            thing.document.set({"j": 1}),
            thing.numbers.set({3}),
        ],
    }
    for make in kinds.values():
        run.fails(lambda make=make: item.update(make()))
        run.see(item)
        run.fails(lambda make=make: item.update(make(), condition=thing.folder == "folder"))
        run.fails(lambda make=make: item.update(make(), add_version_condition=False))
        run.fails(lambda make=make: item.update(actions=make(), condition=thing.folder == "other"))
        item.refresh()
        run.see(item)
    run.fails(lambda: item.update([]))
    run.fails(lambda: item.update(actions=[thing.number.set(2)]))
    run.fails(lambda: thing("folder", 9).update([thing.title.set("made by update")]))
    run.fails(lambda: thing.get("folder", 9))


def conditions(run):
    """Each kind of condition, true and false, on each write."""
    thing = run.models.Thing
    full(run.models).save()
    kinds = [
        thing.total == 5,
        thing.total != 5,
        thing.total.between(1, 9),
        thing.total.is_in(6, 7),
        thing.title.does_not_exist(),
        thing.tags.contains("x"),
        size("title") > 3,
        thing.stops[0].street == "nope",
        (thing.total == 5) & (thing.title == "a title") & thing.flag.exists(),
        (thing.total == 6) | (thing.title == "nope"),
        ~((thing.total == 6) & thing.title.exists()) | thing.blob.exists(),
    ]
    for condition in kinds:
        run.fails(lambda condition=condition: thing.get("folder", 1).save(condition))
        run.fails(lambda condition=condition: thing.get("folder", 1).update([thing.flag.set(True)], condition))
        run.fails(lambda condition=condition: thing.get("folder", 1).delete(condition))
        with suppress(thing.DoesNotExist):
            thing.get("folder", 1).delete()
        full(run.models).save()


def versions(run):
    """Stale copies, absent items, and writes that do not check the version."""
    thing = run.models.Thing
    item = full(run.models)
    run.see(getattr(item, "version", None))
    run.fails(item.save)
    first, second = thing.get("folder", 1), thing.get("folder", 1)
    run.fails(first.save)
    run.fails(first.save)
    run.fails(second.save)
    run.fails(lambda: second.update([thing.total.add(1)]))
    run.fails(second.delete)
    run.see(first, second)
    run.fails(lambda: second.update([thing.total.add(1)], add_version_condition=False))
    run.see(second)
    run.fails(second.save)
    run.fails(lambda: full(run.models).save())
    run.fails(lambda: first.delete(add_version_condition=False))
    run.fails(lambda: thing.get("folder", 1))
    run.fails(second.refresh)
    run.fails(second.delete)
    run.fails(lambda: thing("folder", 8).delete())
    run.fails(lambda: thing("folder", 8).update([thing.total.add(1)], add_version_condition=False))
    run.fails(lambda: thing.get("folder", 8))


def reads(run):
    """get, batch_get, query, scan, count and their options."""
    thing = run.models.Thing
    for number in range(7):
        full(run.models, number, title=f"title {number % 2}", total=number % 3).save()
    thing("other", 1, title="title 0").save()
    run.fails(lambda: thing.get("folder", 1, attributes_to_get=["t", "total"]))
    run.fails(lambda: thing.get("folder", 99))
    run.fails(lambda: thing.get("folder"))
    run.see(thing.exists())
    keys = [("folder", n) for n in (1, 3, 99, 5)]
    run.see(unordered(thing.batch_get(keys)))
    run.see(unordered(thing.batch_get(keys, consistent_read=True, attributes_to_get=["pk", "t"])))
    run.see(len(list(thing.batch_get([("folder", n) for n in range(150)]))))
    queries = [
        {},
        {"range_key_condition": thing.number > 2},
        {"range_key_condition": thing.number.between(1, 3), "scan_index_forward": False},
        {"filter_condition": thing.title == "title 1"},
        {"filter_condition": (thing.title == "title 1") & (thing.total != 1) & thing.flag.exists(), "limit": 2},
        {"consistent_read": True, "limit": 3},
        {"page_size": 2},
        {"page_size": 3, "limit": 5},
        {"attributes_to_get": ["t", "total"]},
    ]
    for options in queries:
        found = thing.query("folder", **options)
        run.see(list(found), found.total_count, found.last_evaluated_key)
        if not {"page_size", "scan_index_forward", "attributes_to_get"} & {*options}:
            run.see(thing.count("folder", **options))
    run.see(list(thing.by_title.query("title 1", scan_index_forward=False)))
    run.see(list(thing.query("title 1", index_name="by-title", limit=2)))
    run.see(list(thing.by_total.query("folder", thing.total == 1)), thing.by_total.count("folder", thing.total == 1))
    run.see(thing.count("title 0", index_name="by-title"), thing.by_title.count("title 1", limit=2))
    run.see(unordered(thing.by_title.scan(thing.total > 0)))
    page, last = [], None
    while True:  # page by page, as a web server does
        found = thing.query("folder", limit=3, last_evaluated_key=last)
        page.append(list(found))
        last = found.last_evaluated_key
        run.see(page[-1], last)
        if last is None:
            break
    pages = thing.query("folder", page_size=4)
    run.see(next(pages), pages.last_evaluated_key, next(pages), pages.total_count)
    for options in (
        {},
        {"filter_condition": thing.total == 1},
        {"consistent_read": True, "attributes_to_get": ["pk", "sk"]},
        {"segment": 0, "total_segments": 1},
        {"page_size": 2},
        {"index_name": "by-title"},
    ):
        found = thing.scan(**options)
        run.see(unordered(found), found.total_count, found.last_evaluated_key)
    run.see(len(list(thing.scan(limit=3))))
    run.fails(lambda: thing.count(filter_condition=thing.total == 1))
    run.fails(lambda: list(thing.query("folder", thing.title == "x")))


def transactions(run):
    """Reads and writes in transactions, applied and refused, and the instances afterwards."""
    thing = run.models.Thing
    items = [full(run.models, number) for number in range(4)]
    for item in items[1:]:
        item.save()
    with run.transact() as transaction:
        transaction.save(items[0])
        transaction.update(items[1], [thing.total.add(1), thing.title.set("t")])
        transaction.delete(items[2])
        transaction.condition_check(thing, "folder", 3, condition=thing.title.exists())
    run.see([getattr(item, "version", None) for item in items])
    run.see(unordered(thing.query("folder")))
    with run.transact_get() as transaction:
        futures = [transaction.get(thing, "folder", number) for number in (0, 1, 3)]
    run.see([future.get() for future in futures])

    def refused():
        with run.transact() as transaction:
            transaction.save(full(run.models, 7), condition=thing.title.exists())
            transaction.update(items[3], [thing.total.add(1)], condition=thing.total == 99)
            transaction.delete(items[0])

    run.fails(refused)
    run.see([getattr(item, "version", None) for item in items])

    def stale():
        first, second = thing.get("folder", 3), thing.get("folder", 3)
        items[3].save()
        with run.transact() as transaction:
            transaction.update(first, [thing.total.add(1)], add_version_condition=False)
            transaction.delete(thing.get("folder", 1), add_version_condition=False)
        with run.transact() as transaction:
            transaction.save(second)

    run.fails(stale)

    def unfinished():
        with run.transact() as transaction:
            transaction.delete(items[0])
            1 / 0  # noqa: B018

    run.fails(unfinished)
    run.fails(lambda: run.transact().condition_check(thing, "folder", 1, None))
    run.see(unordered(thing.query("folder")))


def batches(run):
    """batch_write, with all that it does: pages of 25, deletes, and a block that raises."""
    thing = run.models.Thing
    with run.batch_write(thing) as batch:
        for number in range(30):
            batch.save(full(run.models, number))
    with run.batch_write(thing) as batch:
        for number in range(20):
            batch.delete(thing("folder", number))

    def unfinished():
        with run.batch_write(thing) as batch:
            batch.save(thing("folder", 50))
            1 / 0  # noqa: B018

    run.fails(unfinished)
    run.see(list(thing.query("folder")))


def discriminators(run):
    """Classes that share a table."""
    models = run.models
    for item in (models.Cat("tom", lives=7), models.Kitten("kit"), models.Dog("rex", bone="big"), models.Animal("it")):
        run.fails(item.save)
        run.see(item)
    for name in ("tom", "kit", "rex"):
        run.fails(lambda name=name: models.Animal.get(name))
        run.fails(lambda name=name: list(models.Cat.query(name)))
        run.fails(lambda name=name: models.Cat.count(name))
    run.see(unordered(models.Cat.scan()))
    run.see(unordered(models.Animal.scan(models.Animal.legs == 4)))
    tom = models.Animal.get("tom")
    run.fails(lambda: tom.update([models.Cat.lives.add(-1)]))
    run.see(tom)
    run.fails(lambda: tom.update([models.Animal.legs.set(3)], condition=models.Cat.lives == 1))
    run.fails(tom.save)
    run.fails(lambda: models.Dog("tom").refresh())
    run.fails(lambda: models.Cat("new").update([models.Cat.lives.add(1)]))
    with run.transact() as transaction:
        transaction.update(tom, [models.Cat.lives.add(1)])
        transaction.save(models.Dog("wau"))
    run.fails(lambda: models.Animal.get("tom"))
    run.fails(lambda: models.Animal.get("tom").delete())


def failures(run):
    """What is refused before it is sent, and by DynamoDB for other reasons than a condition."""
    thing = run.models.Thing
    run.fails(lambda: thing("folder", 1, made=None).save())
    run.fails(lambda: thing("folder", 1, total=None).save())
    run.fails(lambda: thing("folder", 1, nonsense=1))
    run.fails(lambda: thing("folder", 1, title="x" * 450_000).save())
    run.fails(lambda: thing("folder", 1, address=Address()).save())
    run.put(thing, {"pk": {"S": "folder"}, "sk": {"N": "5"}, "flag": {"S": "no bool"}, "made": {"S": "x"}})
    run.fails(lambda: thing.get("folder", 5))
    thing("folder", 1, title="a").save()
    item = thing.get("folder", 1)
    run.fails(lambda: item.update([thing.tags.add({"x"}), thing.tags.add({"y"})]))
    run.fails(lambda: item.update([thing.address.street.set("no map there")]))
    run.fails(lambda: item.update([thing.title.set(thing.title + 1)]))
    run.fails(item.save)


def bad_keys(run):
    """Keys that are missing, empty or of the wrong kind."""
    thing = run.models.Thing
    for item in (thing("", 1), thing("folder"), thing(None, 1), thing(), thing("x" * 2049, 1), thing("folder", "one")):
        run.fails(item.save)
        run.fails(lambda item=item: item.update([thing.total.add(1)]))
        run.fails(item.delete)
        run.fails(item.refresh)
        run.fails(lambda item=item: thing.get(item.folder, item.number))


def unknown_attributes(run):
    """A save replaces the item, so that attributes the model does not declare are gone."""
    thing = run.models.Thing
    run.put(
        thing,
        {"pk": {"S": "folder"}, "sk": {"N": "1"}, "made": {"S": "2026-01-02T03:04:05.000000+0000"}, "more": {"S": "x"}},
    )
    item = thing.get("folder", 1)
    run.see(item)
    run.fails(lambda: item.update([thing.total.set(1)]))
    run.see(run.stored())
    run.fails(item.save)


def tables(run):
    """Making, describing and deleting tables, and using those that do not exist."""
    thing = run.models.Thing
    run.see(thing.exists(), run.neutral(thing.describe_table()["TableName"]))
    run.see(json.loads(run.neutral(json.dumps(thing._get_schema(), default=repr))))
    item = full(run.models)
    item.save()
    thing.delete_table()
    run.see(thing.exists())
    run.fails(lambda: thing.get("folder", 1))
    run.fails(item.save)
    run.fails(lambda: item.update([thing.total.add(1)]))
    run.fails(item.delete)
    run.fails(lambda: list(thing.query("folder")))
    thing.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    run.see(thing.exists(), list(thing.scan()))
    run.fails(lambda: full(run.models).save())


def unchecked_saves(run):
    """save(add_version_condition=False) of a copy that is up to date, or of a new item."""
    thing = run.models.Thing
    item = full(run.models)
    item.save(add_version_condition=False)
    run.see(item)
    item.title = None
    item.save(add_version_condition=False)
    run.fails(lambda: item.save(thing.total == 99, add_version_condition=False))
    run.see(item, thing.get("folder", 1))


SCENARIOS = [
    values,
    dictionaries,
    updates,
    conditions,
    versions,
    reads,
    transactions,
    batches,
    discriminators,
    failures,
    bad_keys,
    unknown_attributes,
    tables,
]
#: Where a model with its lock in the item behaves as PynamoDB's; the others are documented differences.
LOCKABLE_SCENARIOS = [scenario for scenario in SCENARIOS if scenario not in (bad_keys, unknown_attributes)]


# The comparison


def run_of(kind, engine, scenario, *, versioned=True):
    """Run a scenario; return what it saw, what it left, which signals there were, and the normal requests."""
    models = models_of(kind, versioned=versioned)
    engine.bind(*models.tables)
    run, normal = Run(models, engine), Normal(None)
    normal.run = run
    with count_requests() as recorded, run.listening():
        scenario(run)
    requests = normal.requests(recorded.bodies)
    return SimpleNamespace(
        seen=run.seen, stored=run.stored(), signals=run.signals, requests=requests, guards=normal.guards
    )


def stock_run(engine, scenario, *, versioned=True):
    """Return what PynamoDB does, which is the same each time."""
    key = (engine.name, scenario, versioned)
    if key not in STOCK_RUNS:
        STOCK_RUNS[key] = run_of(STOCK, engine, scenario, versioned=versioned)
        assert STOCK_RUNS[key].guards == set()
        assert STOCK_RUNS[key].signals
    return STOCK_RUNS[key]


STOCK_RUNS = {}


def same(name, left, right):
    """Check that two lists are equal, and show the first difference."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        assert other == one, f"{name} {number}"
    assert len(right) == len(left), name


def same_but_for_requests(before, after, signals=list):
    """Check what was seen, what is stored, and the signals."""
    same("seen", before.seen, after.seen)
    same("stored", before.stored, after.stored)
    same("signals", signals(before.signals), signals(after.signals))


def as_writes(signals):
    """Return signals in which a PutItem is an UpdateItem: the save of a model with its lock in the item."""
    return [(when, operation.replace("PutItem", "UpdateItem"), table) for when, operation, table in signals]


#: All scenarios for one twin; for the others those in which their base class or their attribute matters.
VERSIONED_TWINS = [
    *(("versioned", scenario) for scenario in SCENARIOS),
    *(("lockable", scenario) for scenario in (transactions, batches, discriminators)),
    *(("base only", scenario) for scenario in (versions, transactions)),
]


@pytest.mark.parametrize(("twin", "scenario"), VERSIONED_TWINS, ids=lambda each: getattr(each, "__name__", each))
def test_versioned_models(engine, twin, scenario):
    """What is seen, stored and signalled is equal; requests differ by the guards of the version alone."""
    before, after = stock_run(engine, scenario), run_of(TWINS[twin], engine, scenario)
    same_but_for_requests(before, after)
    same("requests", before.requests, after.requests)
    assert scenario is batches or after.guards >= {"write id", "image"}  # they were there, and taken away


@pytest.mark.parametrize("scenario", LOCKABLE_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_models_with_their_lock_inside(engine, scenario):
    """The same, but that a save is an UpdateItem, which leaves attributes alone that the model does not declare."""
    before, after = stock_run(engine, scenario), run_of(EMBEDDED, engine, scenario)
    same_but_for_requests(before, after, as_writes)


@pytest.mark.parametrize("scenario", [updates, transactions, discriminators], ids=lambda scenario: scenario.__name__)
def test_models_without_a_version(memory, scenario):
    """A model that has nothing to guard sends what PynamoDB sends."""
    before = stock_run(memory, scenario, versioned=False)
    after = run_of(VERSIONED, memory, scenario, versioned=False)
    same_but_for_requests(before, after)
    same("requests", before.requests, after.requests)
    assert after.guards == set()


@pytest.mark.parametrize("twin", TWINS)
def test_unchecked_saves(engine, twin):
    """save(add_version_condition=False) is an UpdateItem, and what it leaves is the same."""
    before, after = stock_run(engine, unchecked_saves), run_of(TWINS[twin], engine, unchecked_saves)
    same_but_for_requests(before, after, as_writes)


# The differences that are there on purpose, as far as no other test has them


def test_lockable_items_need_a_key_that_can_be(engine):
    """A save of a model with its lock in the item is refused before it is sent, and not as a PutError."""
    thing = engine.bind(models_of(EMBEDDED).Thing)
    for item in (thing("", 1), thing("folder")):
        with count_requests() as requests, pytest.raises(InvalidInput):
            item.save()
        assert requests.total == 0


def test_reasons_of_a_refused_transaction_bring_the_stored_items(engine):
    """PynamoDB's have them only where `return_values` asks for them."""
    thing = engine.bind(models_of(VERSIONED).Thing)
    thing("folder", 1, title="stored").save()
    with pytest.raises(TransactWriteError) as refused:  # noqa: SIM117 - the outer one sees the commit
        with TransactWrite(connection=thing._get_connection().connection) as transaction:
            transaction.save(thing("folder", 1))
    (reason,) = refused.value.cancellation_reasons
    assert thing.from_raw_data(reason.raw_item).title == "stored"


@pytest.mark.parametrize("kind", [STOCK, VERSIONED, EMBEDDED], ids=["stock", "versioned", "embedded"])
def test_what_a_transaction_cannot_be(engine, kind):
    """A handler of a TransactWriteError sees the same, though ours is refused before it is sent."""
    thing = engine.bind(models_of(kind).Thing)

    def commit(actions):
        with kind.transact(connection=thing._get_connection().connection) as transaction:
            for number in actions:
                transaction.condition_check(thing, "folder", number, thing.title.does_not_exist())

    for wrong in ([1, 1], range(101)):
        with count_requests() as requests, pytest.raises(TransactWriteError) as refused:
            commit(wrong)
        assert refused.value.cause_response_code == "ValidationException"
        assert isinstance(refused.value.cause, ClientError)
        assert thing.Meta.table_name in str(refused.value.cause)
        assert isinstance(refused.value, ConfigurationError) == (requests.total == 0) == (kind is not STOCK)


def test_the_cause_of_a_refusal_under_a_lock_beside_the_item(engine):
    """A save is a transaction there; its cause names the request and the table as that of a save elsewhere does."""
    engine.bind(Device, Locks)
    with Device.locked("d"):
        Device("d").save()
        with pytest.raises(PutError) as refused:
            Device("d").save()
    request, table = re.search(r"request \((.*)\) on table \((.*)\) when", str(refused.value.cause)).groups()
    assert request != "None"
    assert table == Device.Meta.table_name


def test_response_of_an_unchecked_save_has_attributes(engine):
    """It is that of an UpdateItem: PynamoDB's response to a Put and the new version."""
    thing = engine.bind(models_of(VERSIONED).Thing)
    response = thing("folder", 1).save(add_version_condition=False)
    assert response["Attributes"]["v"] == {"N": "1"}
