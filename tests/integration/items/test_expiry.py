"""Expired items count as absent, whatever DynamoDB still keeps of them."""

from __future__ import annotations

import itertools
import types
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pynamodb.attributes import ListAttribute, MapAttribute, NumberAttribute, UnicodeAttribute, UnicodeSetAttribute
from pynamodb.exceptions import PutError
from pynamodb.expressions.condition import Condition, size
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex, IncludeProjection, KeysOnlyProjection
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    NamedLock,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking.exceptions import ConfigurationError, Conflict, ItemNotFound, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.models import declare, meta
from tests.support.parties import shifted_clock
from tests.support.versioned_models import connection_of, item_of
from tests.support.wire import count_requests

pytestmark = pytest.mark.core

PAST = timedelta(seconds=-30)
LATER = timedelta(hours=1)


def index(name: str, projection: Any, **keys: Any) -> Any:
    """Return an index by the group of an item."""
    units = {"read_capacity_units": 1, "write_capacity_units": 1}
    meta = type("Meta", (), {"index_name": name, "projection": projection, **units})
    parts = {"Meta": meta, "group": UnicodeAttribute(hash_key=True), **keys}
    return types.new_class("Index", (GlobalSecondaryIndex,), exec_body=lambda body: body.update(parts))()


def end(**options: Any) -> TTLAttribute:
    return TTLAttribute(attr_name="exp", **options)


class Session(ExpiringMixin, VersionedMixin, Model):
    """A versioned item that may have an end."""

    Meta = meta("sessions")

    pk = UnicodeAttribute(hash_key=True)
    sk = NumberAttribute(range_key=True)
    group = UnicodeAttribute(null=True)
    n = NumberAttribute(default=0)
    expires = end(null=True)
    version = VersionAttribute()
    everything = index("everything", AllProjection())
    with_end = index("with-end", IncludeProjection(["exp"]))
    without_end = index("without-end", IncludeProjection(["n"]))
    keys_only = index("keys-only", KeysOnlyProjection())
    by_end = index("by-end", KeysOnlyProjection(), expires=end(range_key=True))


def expiring(name: str, base: type[Any], **parts: Any) -> Any:
    """Return a model of another kind whose items may have an end."""
    return declare(name, ExpiringMixin, base, hash_key="pk", numbers="n", expires=end(null=True), **parts)


Cached = expiring("Cached", Model)
Lease = expiring("Lease", LockableModel, version=True, lock=True)
LeaseLocks = declare("LeaseLocks", NamedLock, table_name="lease-locks")
LeaseBeside = expiring("LeaseBeside", LockableModel, lock_table=LeaseLocks)


def clock_at(ms: int) -> VirtualClock:
    """Run the block at that time."""
    return VirtualClock(datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms))


@pytest.fixture(autouse=True)
def clock():
    """Ten days ahead of the engines: DynamoDB Local deletes what has expired by its own clock."""
    with shifted_clock() as clock:
        clock.shift = 864_000.0
        yield clock


def now() -> datetime:
    """As the package tells the time."""
    return Session(expires=timedelta()).expires


def stored(engine: Any, model: type[Any]) -> dict[str, Any]:
    """The item "a", as DynamoDB has it."""
    return item_of(engine, model) or {}


@pytest.fixture
def sessions(engine):
    """Sessions 0 to 9 under the key "a": the odd ones have expired, 8 has no end."""
    engine.bind(Session)
    for number in range(10):
        end = None if number == 8 else PAST if number % 2 else LATER
        Session("a", number, group="g", n=number, expires=end).save()
    return Session


def numbers(items: Any) -> list[int]:
    return sorted(int(item.sk) for item in items)


ALIVE = [0, 2, 4, 6, 8]

# Reading


@pytest.mark.parametrize("consistent_read", [False, True])
@pytest.mark.parametrize("attributes_to_get", [None, ["n"], ["pk", "exp"], "n"])
def test_get_finds_no_expired_item(sessions, consistent_read, attributes_to_get):
    """Also where the caller does not ask for the time of expiry; `include_expired` finds it."""
    options = {"consistent_read": consistent_read, "attributes_to_get": attributes_to_get}
    with pytest.raises(Session.DoesNotExist):
        sessions.get("a", 1, **options)
    assert sessions.get("a", 1, include_expired=True, **options)
    assert sessions.get("a", 0, **options)
    assert sessions.get("a", 8, **options)


def test_query_leaves_expired_items_out(sessions):
    """With conditions on the range key, filters, limits, pages and directions of the caller's own."""
    query = sessions.query
    assert numbers(query("a")) == ALIVE
    assert numbers(query("a", include_expired=True)) == list(range(10))
    assert numbers(query("a", sessions.sk >= 5)) == [6, 8]
    assert numbers(query("a", filter_condition=sessions.n < 5)) == [0, 2, 4]
    assert numbers(query("a", sessions.sk.between(1, 7), (sessions.n < 3) | (sessions.n > 5))) == [2, 6]
    assert [int(item.sk) for item in query("a", limit=3)] == [0, 2, 4]
    assert [int(item.sk) for item in query("a", limit=2, scan_index_forward=False)] == [8, 6]
    assert numbers(query("a", page_size=2)) == ALIVE
    assert numbers(query("a", None, None, True, None, False, 2)) == [6, 8]
    assert [item.n for item in query("a", attributes_to_get=["n"])] == ALIVE


@pytest.mark.parametrize("count", [100, 1000])
def test_a_limit_over_expired_rows(cheap, count):
    """Pages grow until a row is alive, and no page is larger than all before it together, and one."""
    cheap.bind(Session)
    with Session.batch_write(unguarded=True) as batch:
        for number in range(count + 1):
            batch.save(Session("a", number, n=number, expires=LATER if number == count else PAST))
    for read in (Session.query("a", limit=1), Session.scan(limit=1)):
        with count_requests() as requests:
            assert numbers(read) == [count]
        assert requests.total == (count + 1).bit_length()
    found = Session.query("a", limit=1, scan_index_forward=False)
    assert numbers(found) == [count]
    assert (found.page_iter.total_scanned_count, int(found.last_evaluated_key["sk"]["N"])) == (1, count)


def test_scan_leaves_expired_items_out(sessions):
    """Also with filters, limits, pages, projections and segments."""
    scan = sessions.scan
    assert numbers(scan()) == ALIVE
    assert numbers(scan(include_expired=True)) == list(range(10))
    assert numbers(scan(sessions.n > 3)) == [4, 6, 8]
    assert numbers(scan(page_size=3)) == ALIVE
    assert len(numbers(scan(limit=2))) == 2
    assert sorted(item.n for item in scan(attributes_to_get=["n"])) == ALIVE
    segments = [numbers(scan(segment=segment, total_segments=3)) for segment in range(3)]
    assert sorted(number for segment in segments for number in segment) == ALIVE


def test_count_leaves_expired_items_out_where_there_is_a_key(sessions):
    """Without a hash key the number is DynamoDB's own, of everything that is stored."""
    assert sessions.count("a") == 5
    assert sessions.count("a", include_expired=True) == 10
    assert sessions.count("a", sessions.sk < 4) == 2
    assert sessions.count("a", filter_condition=sessions.n == 3) == 0
    assert sessions.count() == sessions.count(include_expired=True) == 10
    assert sessions.everything.count("g") == 5


@pytest.mark.parametrize("attributes_to_get", [None, ["sk"]])
def test_batch_get_leaves_expired_items_out(sessions, attributes_to_get):
    """Also where the caller does not ask for the time of expiry."""
    keys = [("a", number) for number in range(12)]
    found = sessions.batch_get(keys, attributes_to_get=attributes_to_get)
    assert numbers(found) == ALIVE
    found = sessions.batch_get(keys, True, attributes_to_get, include_expired=True)
    assert numbers(found) == list(range(10))
    assert list(sessions.batch_get([])) == []


def test_refresh_of_an_expired_item_leaves_the_instance_as_it_was(sessions):
    """What it knows of the stored item too: saving it is still refused."""
    item = sessions.get("a", 0)
    other = sessions.get("a", 0)
    other.update([sessions.expires.set(now() + PAST), sessions.n.set(77)])
    before = item.to_simple_dict()
    with pytest.raises(Session.DoesNotExist):
        item.refresh()
    assert item.to_simple_dict() == before
    assert (item.n, item.version) == (0, 1)
    with pytest.raises(StaleVersion) as caught:
        item.save()
    assert (caught.value.actual, caught.value.current) == (2, None)
    item.refresh(consistent_read=True, include_expired=True)
    assert (item.n, item.version) == (77, 2)
    other.delete()
    with pytest.raises(Session.DoesNotExist):
        item.refresh()
    assert item.n == 77


@pytest.mark.parametrize("name", ["everything", "with_end"])
def test_an_index_with_the_time_of_expiry_leaves_expired_items_out(sessions, name):
    """Query, scan and count, over the index or by its name."""
    index = getattr(sessions, name)
    index_name = index.Meta.index_name
    assert numbers(index.query("g")) == ALIVE
    assert numbers(index.query("g", limit=3, page_size=2)).__len__() == 3
    assert numbers(index.scan()) == ALIVE
    assert index.count("g") == 5
    assert numbers(sessions.query("g", index_name=index_name)) == ALIVE
    assert numbers(sessions.query("g", None, None, False, index_name)) == ALIVE
    assert numbers(sessions.query("g", index_name=index_name, include_expired=True)) == list(range(10))
    assert numbers(sessions.scan(None, None, None, None, None, None, None, index_name)) == ALIVE


@pytest.mark.parametrize("name", ["without_end", "keys_only"])
def test_an_index_without_the_time_of_expiry_is_refused(sessions, name):
    """It could not tell which items have expired; who wants all of them says so."""
    index = getattr(sessions, name)
    index_name = index.Meta.index_name
    asked = [
        lambda: index.query("g"),
        lambda: index.count("g"),
        index.scan,
        lambda: sessions.scan(None, None, None, None, None, None, None, index_name),
        lambda: sessions.query("g", None, None, False, index_name),
    ]
    with count_requests() as counted:
        for ask in asked:
            with pytest.raises(ConfigurationError, match="include_expired=True"):
                ask()
    assert counted.total == 0
    assert numbers(sessions.query("g", index_name=index_name, include_expired=True)) == list(range(10))
    assert numbers(sessions.scan(index_name=index_name, include_expired=True)) == list(range(10))
    assert sessions.count("g", index_name=index_name, include_expired=True) == 10


def test_an_index_that_is_sorted_by_the_time_of_expiry_needs_a_range(sessions):
    """DynamoDB cannot filter by a key, so the caller says which times it wants; a scan can be filtered."""
    present = now()
    for ask in (sessions.by_end.query, sessions.by_end.count):
        with pytest.raises(ConfigurationError, match="range_key_condition"):
            ask("g")
    assert numbers(sessions.by_end.query("g", sessions.expires > present)) == [0, 2, 4, 6]
    assert numbers(sessions.by_end.query("g", sessions.expires < present)) == [1, 3, 5, 7, 9]
    assert sessions.by_end.count("g", sessions.expires > present) == 4
    assert numbers(sessions.by_end.scan()) == [0, 2, 4, 6]
    assert len(numbers(sessions.query("g", index_name="by-end", include_expired=True))) == 9


def test_the_second_of_expiry_itself_is_over(engine):
    """To the millisecond before it the item is there; from then on it is not, in every way to read it."""
    engine.bind(Session)
    second = 2_000_000_000
    with clock_at(second * 1000 - 1) as clock:
        Session("a", 1, expires=datetime.fromtimestamp(second, tz=timezone.utc)).save()
        item = Session.get("a", 1)
        ways = [
            lambda: list(Session.query("a")),
            lambda: list(Session.scan()),
            lambda: list(Session.batch_get([("a", 1)])),
            lambda: Session.count("a"),
        ]
        assert all(way() for way in ways)
        clock.jump(0.001)
        assert not any(way() for way in ways)
        with pytest.raises(Session.DoesNotExist):
            Session.get("a", 1)
        Session("a", 1).save()
        with pytest.raises(StaleVersion):
            item.save()


# Writing


def test_a_versioned_create_replaces_an_expired_item_in_one_request(engine):
    """The version begins again; of the old item nothing is left."""
    engine.bind(Session)
    Session("a", 1, group="g", n=5, expires=PAST).save()
    with count_requests() as counted:
        new = Session("a", 1, n=7)
        new.save()
    assert counted.by_operation == {"PutItem": 1}
    found = Session.get("a", 1)
    assert (found.n, found.group, found.expires, found.version, new.version) == (7, None, None, 1, 1)
    with pytest.raises(StaleVersion):
        Session("a", 1).save()


def test_an_unversioned_create_with_a_condition_replaces_an_expired_item(cheap):
    """`does_not_exist` counts it as absent; a condition that an absent item does not meet is of what is stored."""
    cheap.bind(Cached)
    Cached("a", n=5, expires=PAST).save()
    with pytest.raises(Conflict) as caught:
        Cached("a", n=6).save(Cached.n == 7)
    assert isinstance(caught.value, PutError)
    assert caught.value.current is None
    assert stored(cheap, Cached)["n"] == {"N": "5"}
    Cached("a", n=7, expires=LATER).save(Cached.pk.does_not_exist())
    assert Cached.get("a").n == 7
    with pytest.raises(Conflict) as caught:
        Cached("a", n=8).save(Cached.pk.does_not_exist())
    assert caught.value.current.n == 7
    Cached("a", n=9).save(Cached.n == 7)
    assert Cached.get("a").n == 9


@pytest.mark.parametrize("model", [Lease])
def test_a_create_over_an_expired_item_with_a_lock_in_it(cheap, clock, model):
    """It is an UpdateItem, and begins afresh all the same; the lock can be taken afterwards."""
    cheap.bind(model)
    model("a", n=5, expires=LATER).save()
    with model.locked("a"):
        pass
    clock.shift += 7200
    with count_requests() as counted:
        model("a", n=7).save(model.pk.does_not_exist())
    assert counted.by_operation == {"UpdateItem": 1}
    found = model.get("a")
    assert (found.n, found.expires) == (7, None)
    assert getattr(found, "version", 1) == 1
    with model.edit("a") as item:
        item.n += 1
    assert model.get("a").n == 8


def test_writes_of_what_was_read_ignore_the_time(cheap, clock):
    """A copy from before, with the check of its version or without, in the same requests as ever."""
    cheap.bind(Session, Lease)
    for model, key in ((Session, ("a", 1)), (Lease, ("a",))):
        model(*key, n=5, expires=LATER).save()
        item = model.get(*key)
        clock.shift += 7200
        for write in (
            item.save,
            item.touch,
            lambda item=item: item.update([type(item).n.add(1)]),
            lambda item=item: item.save(type(item).n == 6),
            lambda item=item: type(item)(*key).update([type(item).n.add(1)], add_version_condition=False),  # noqa: B023
        ):
            with count_requests() as counted:
                write()
            assert counted.total == 1
        item.refresh(include_expired=True)
        with TransactWrite(connection=connection_of(model)) as transaction:
            transaction.update(item, [model.n.add(1)])
        found = model.get(*key, include_expired=True)
        assert (found.n, found.version) == (8, 7)
        with pytest.raises(model.DoesNotExist):
            model.get(*key)
        found.expires = LATER
        found.save()
        assert model.get(*key).n == 8


@pytest.mark.parametrize("model", [Session, Lease])
def test_only_a_save_of_a_new_item_takes_the_place_of_an_expired_one(cheap, model):
    """An update, a touch and a delete of an instance that was not read are refused, and the error says why."""
    cheap.bind(model)
    key = ("a", 1) if model is Session else ("a",)
    model(*key, n=5, expires=PAST).save()
    for write in (model(*key).touch, lambda: model(*key).update([model.n.add(1)]), model(*key).delete):
        with pytest.raises(StaleVersion, match="has expired, and is still stored: only a save of a new item") as caught:
            write()
        assert (caught.value.expected, caught.value.actual, caught.value.current) == (None, 1, None)
    model(*key).save()
    assert model.get(*key).n == 0


def test_a_write_without_a_version_check_prolongs_an_expired_item(cheap):
    """A save of an unversioned model, or without the check, replaces it; as it does an absent one."""
    cheap.bind(Cached, Session)
    Cached("a", n=5, expires=PAST).save()
    item = Cached.get("a", include_expired=True)
    item.expires = LATER
    item.save()
    assert Cached.get("a").n == 5
    Session("a", 1, n=5, expires=PAST).save()
    Session("a", 1, n=6).save(add_version_condition=False)
    assert Session.get("a", 1).n == 6


def test_an_expired_item_can_be_deleted(cheap):
    """By a caller that has read it, and by key alone: it counts as absent, and PynamoDB deletes what never was."""
    cheap.bind(Session, Cached)
    Session("a", 1, expires=PAST).save()
    Session.get("a", 1, include_expired=True).delete()
    assert list(Session.scan(include_expired=True)) == []
    Cached("a", expires=PAST).save()
    Cached("a").delete()
    assert list(Cached.scan(include_expired=True)) == []
    Session("b", 1).delete()


@pytest.mark.parametrize("model", [Lease])
def test_an_expired_item_cannot_be_locked(cheap, model):
    """`ItemNotFound`, which is the model's DoesNotExist as well; nothing is left in the item."""
    cheap.bind(model)
    model("a", n=5, expires=PAST).save()
    before = stored(cheap, model)
    for take in (lambda: model.locked("a").acquire(), lambda: model.edit("a").__enter__()):
        with pytest.raises(ItemNotFound) as caught:
            take()
        assert isinstance(caught.value, model.DoesNotExist)
        assert model.lock_state("a").entries == ()
    assert {name: value for name, value in stored(cheap, model).items() if name != "lock"} == before


def test_an_item_that_expires_while_it_is_locked(cheap, clock):
    """Its holder goes on: what was granted and read before is written, and may last for longer."""
    cheap.bind(Lease)
    Lease("a", n=5, expires=timedelta(seconds=5)).save()
    with Lease.locked("a", heartbeat=False, lease=600) as lock:
        item = lock.item
        clock.shift += 10
        item.save()
        with pytest.raises(Lease.DoesNotExist):
            Lease.get("a")
        item.update([Lease.n.add(1)])
        item.expires = LATER
        item.save()
    assert Lease.get("a").n == 6


def test_a_transaction_saves_over_an_expired_item(engine):
    """Ours knows that it counts as absent: for creates with and without a version."""
    engine.bind(Session, Cached, Lease)
    Session("a", 1, n=5, expires=PAST).save()
    Cached("a", n=5, expires=PAST).save()
    Lease("a", n=5, expires=PAST).save()
    new = Session("a", 1, n=6), Cached("a", n=6), Lease("a", n=6)
    with TransactWrite(connection=connection_of(Session)) as transaction:
        transaction.save(new[0])
        transaction.save(new[1], Cached.pk.does_not_exist())
        transaction.save(new[2])
    assert [Session.get("a", 1).n, Cached.get("a").n, Lease.get("a").n] == [6, 6, 6]
    assert (new[0].version, new[2].version, Session.get("a", 1).version) == (1, 1, 1)
    with pytest.raises(StaleVersion), TransactWrite(connection=connection_of(Session)) as transaction:
        transaction.save(Session("a", 1, n=7))


def test_a_guarded_batch_saves_over_an_expired_item(cheap):
    """In both modes."""
    cheap.bind(Session)
    for number, transactions in enumerate((False, True)):
        Session("a", number, n=5, expires=PAST).save()
        with Session.guarded_batch(transactions=transactions) as batch:
            batch.save(Session("a", number, n=6))
        assert (Session.get("a", number).n, Session.get("a", number).version) == (6, 1)


def test_modify_takes_an_expired_item_for_absent(cheap):
    """It is an error, or with `create` a new item."""
    cheap.bind(Cached, Session)
    Session("a", 1, n=5, expires=PAST).save()
    with pytest.raises(Session.DoesNotExist):
        Session.modify("a", 1, lambda item: None)
    made = Session.modify("a", 1, lambda item: setattr(item, "n", item.n + 1), create=True)
    assert (made.n, made.version) == (1, 1)


# The attribute


def test_a_timedelta_counts_from_the_clock_of_the_library():
    """Also in the constructor, as a default, and in an update's action."""
    with clock_at(1_000_000_000_000):
        item = Cached("a", expires=timedelta(seconds=60))
        assert item.expires == datetime.fromtimestamp(1_000_000_060, tz=timezone.utc)
        item.expires = timedelta(days=-1)
        assert item.expires.timestamp() == 1_000_000_000 - 86400
        action = Cached.expires.set(timedelta(seconds=5))
        assert "1000000005" in repr(action)


def test_times_that_are_none_or_naive_or_no_times():
    """None is an item without an end; PynamoDB's own refusals stay."""
    item = Cached("a", expires=LATER)
    item.expires = None
    assert item.expires is None
    assert "exp" not in item.serialize()
    for wrong in (datetime(2030, 1, 1), "tomorrow", 12):  # noqa: DTZ001 - the point of it
        with pytest.raises(ValueError):
            item.expires = wrong


def test_a_time_of_expiry_that_is_stored_with_a_fraction_counts(cheap):
    """Another program may have written one; DynamoDB takes any number."""
    cheap.bind(Cached)
    with clock_at(2_000_000_000_500):
        for pk, end in (("past", "1999999999.9"), ("now", "2000000000.0"), ("later", "2000000002")):
            item = {"pk": {"S": pk}, "n": {"N": "1"}, "exp": {"N": end}}
            cheap.client().put_item(TableName=Cached.Meta.table_name, Item=item)
        assert [item.pk for item in Cached.scan(attributes_to_get=["pk"])] == ["later"]
        for pk in ("past", "now"):
            Cached(pk, n=2).save(Cached.pk.does_not_exist())


def test_a_model_without_a_time_of_expiry_says_so(memory):
    """Before anything is sent, at the first use."""
    endless = memory.bind(declare("Endless", ExpiringMixin, hash_key="pk"))
    memory.client().put_item(TableName=endless.Meta.table_name, Item={"pk": {"S": "a"}})
    uses = [
        lambda: list(endless.scan()),
        lambda: list(endless.query("a")),
        lambda: endless.count("a"),
        lambda: endless("a").save(endless.pk.does_not_exist()),
        lambda: endless.get("a"),
        lambda: list(endless.batch_get(["a"])),
    ]
    with count_requests() as counted:
        for use in uses:
            with pytest.raises(ConfigurationError, match="has no TTLAttribute"):
                use()
    assert counted.by_operation.keys() <= {"GetItem", "BatchGetItem"}


def test_a_time_of_expiry_that_is_a_key_is_refused():
    """Where the class is made, whether it is declared there or inherited."""
    parts = {"pk": UnicodeAttribute(hash_key=True), "expires": TTLAttribute(range_key=True)}
    with pytest.warns(match=r"Base\.expires hides no expired item"):
        base = type(Model)("Base", (Model,), dict(parts))
    for bases, members in (((ExpiringMixin, Model), parts), ((ExpiringMixin, base), {})):
        with pytest.raises(ConfigurationError, match="is a key of the table"):
            type(Model)("Wrong", bases, members)


def test_the_order_of_the_mixins_does_not_matter(cheap):
    """The parts of a model are what it is, not how it is written down."""
    parts = {"hash_key": "pk", "version": True, "expires": TTLAttribute(null=True)}
    other = cheap.bind(declare("Other", VersionedMixin, ExpiringMixin, Model, **parts))
    other("a", expires=PAST).save()
    with pytest.raises(other.DoesNotExist):
        other.get("a")
    other("a").save()
    assert other.get("a").version == 1


# What holds where there is no item


#: Attributes of all kinds for conditions.
Anything = expiring(
    "Anything",
    Model,
    texts="text",
    number=NumberAttribute(null=True),
    other=NumberAttribute(null=True),
    names=UnicodeSetAttribute(null=True),
    parts=ListAttribute(null=True),
    inner=MapAttribute(null=True),
)


SIMPLE: dict[str, Condition] = {
    "exists": Anything.pk.exists(),
    "does_not_exist": Anything.pk.does_not_exist(),
    "other exists": Anything.text.exists(),
    "other does_not_exist": Anything.text.does_not_exist(),
    "nested does_not_exist": Anything.inner["x"].does_not_exist(),
    "==": Anything.number == 1,
    "!=": Anything.number != 1,
    "!= None": Anything.text != "",
    "<": Anything.number < 1,
    "<=": Anything.number <= 1,
    ">": Anything.number > 1,
    ">=": Anything.number >= 1,
    "between": Anything.number.between(0, 10),
    "is_in": Anything.number.is_in(0, 1),
    "is_type": Anything.text.is_type(),
    "startswith": Anything.text.startswith("a"),
    "contains": Anything.text.contains("a"),
    "set contains": Anything.names.contains("a"),
    "size ==": size(Anything.parts) == 0,
    "size <": size(Anything.parts) < 5,
    "size !=": size(Anything.parts) != 5,
    "paths ==": Anything.number == Anything.other,
    "paths !=": Anything.number != Anything.other,
    "paths <": Anything.number < Anything.other,
    "nested ==": Anything.parts[0] == 1,
    "nested !=": Anything.parts[0] != 1,
}
COMPOSED: dict[str, Condition] = {
    "not exists and !=": ~Anything.pk.exists() & (Anything.number != 1),
    "== or does_not_exist": (Anything.number == 1) | Anything.pk.does_not_exist(),
    "not (== or exists)": ~((Anything.number == 1) | Anything.pk.exists()),
    "not not exists": ~~Anything.pk.exists(),
    "does_not_exist and ==": Anything.pk.does_not_exist() & (Anything.number == 1),
    "not (!= and between)": ~((Anything.number != 1) & Anything.number.between(1, 2)),
}
CONDITIONS = SIMPLE | {f"not {name}": ~condition for name, condition in SIMPLE.items()} | COMPOSED


def test_what_holds_where_there_is_no_item_holds_where_it_has_expired(engine):
    """Every kind of condition, as that of a put on an absent key, of an expired item, and of one that lives."""
    engine.bind(Anything)
    conditions = CONDITIONS
    if engine.is_moto:  # it fails on the size of nothing, and says that nothing equals nothing
        conditions = {
            name: condition for name, condition in CONDITIONS.items() if "size" not in name and "paths" not in name
        }
    found = {name: _is_put_done(f"k{number}", conditions[name]) for number, name in enumerate(conditions)}
    results = list[dict[str, bool]]()
    for end in (LATER, PAST):
        for number in range(len(conditions)):
            Anything(f"k{number}", expires=end, **WHOLE).save()
        results.append({name: _is_put_done(f"k{number}", conditions[name]) for number, name in enumerate(conditions)})
    living, expired = results
    assert expired == {name: found[name] or living[name] for name in conditions}
    assert {(found[name], living[name]) for name in conditions} == {*itertools.product((True, False), repeat=2)}


#: What an expired item may have, so that the conditions judge it otherwise than they judge none.
WHOLE = {"text": "a", "number": 1, "other": 1, "names": {"a"}, "parts": [1], "inner": {"x": "y"}}


def _is_put_done(key: str, condition: Condition) -> bool:
    try:
        Anything(key).save(condition)
    except PutError as error:
        if error.cause_response_code != "ConditionalCheckFailedException":
            raise
        return False
    return True
