"""`guarded_batch` by statements: 25 writes in a request, with the rows and the results of single requests."""

from __future__ import annotations

import logging
import random
import threading
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pynamodb.attributes import ListAttribute, MapAttribute, NumberAttribute, UnicodeAttribute, UnicodeSetAttribute
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, TTLAttribute, VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import BatchError, Conflict, OutcomeUnknown, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.integration.models.conftest import join_batch_workers
from tests.support import runtime
from tests.support.lengths import short_or_long
from tests.support.models import declare
from tests.support.statements import (
    BATCH,
    answering,
    denied,
    denied_each,
    failed_in_part,
    lost_after,
    lost_before,
    lost_half,
    throttled_in_part,
    unknown,
    unknown_each,
)
from tests.support.transaction_models import make_long_from
from tests.support.wire import ALL, count_requests, on


class Plain(VersionedMixin, Model):
    """A save is a Put of the whole item."""

    class Meta:
        table_name = "plain"
        max_retry_attempts = 0

    pk = UnicodeAttribute(hash_key=True)
    rk = NumberAttribute(range_key=True)
    n = NumberAttribute(default=0)
    text = UnicodeAttribute(null=True)
    note = UnicodeAttribute(null=True, attr_name="the-note")
    tags = UnicodeSetAttribute(null=True)
    parts: Any = ListAttribute(null=True)
    about: Any = MapAttribute(null=True)
    version = VersionAttribute()


class Lasting(ExpiringMixin, Plain):
    """With a time of expiry."""

    class Meta(Plain.Meta):
        table_name = "lasting"

    expires = TTLAttribute(null=True)


#: A save is an update, which leaves the lock alone.
Inside = declare(
    "Inside",
    table_name="inside-by-statements",
    hash_key="pk",
    range_key="rk",
    numbers="n",
    texts="text note",
    version=True,
    lock=True,
    max_retry_attempts=0,
)


MODELS: list[Any] = [Plain, Lasting, Inside]


def rows_of(model: Any) -> dict[tuple[str, str], Any]:
    """What is stored, without write ids."""
    connection = model._get_connection()
    kwargs = {"TableName": connection.table_name, "ConsistentRead": True}
    rows: list[Any] = connection.connection.dispatch("Scan", kwargs)["Items"]
    return {(row.pop("pk")["S"], row.pop("rk")["N"]): row for row in rows if row.pop("version_write_id", True)}


def batch_of(items: list[Any], operation: str = "save") -> list[Any]:
    """Write items in one batch, and return the errors."""
    batch = type(items[0]).guarded_batch(workers=2)
    try:
        with batch:
            for item in items:
                getattr(batch, operation)(item)
    except BatchError:
        pass
    return [result.error for result in batch.results]


# Requests


def test_a_thousand_saves_are_forty_requests(concurrent_engine):
    """New items, and known ones; and as many deletes."""
    concurrent_engine.bind(Plain)
    items = [Plain("p", number, text="new") for number in range(1000)]
    with count_requests() as counted:
        assert not any(batch_of(items))
    assert counted.by_operation == {BATCH: 40}
    for item in items[:100]:
        item.n, item.text = 1, None
    with count_requests() as counted:
        assert not any(batch_of(items[:100]))
        assert not any(batch_of(items[100:200], "delete"))
    assert counted.by_operation == {BATCH: 8}
    found = list(Plain.query("p", consistent_read=True))
    assert {item.rk: (item.n, item.text, item.version) for item in found} == {
        **dict.fromkeys(range(100), (1, None, 2)),
        **dict.fromkeys(range(200, 1000), (0, "new", 1)),
    }


@pytest.mark.parametrize("model", MODELS)
def test_items_that_were_read_are_written_together(memory, model):
    """And once more; an attribute less, or one that another program has added and no save keeps."""
    memory.bind(model)
    batch_of([model("p", number, text="x", note="y") for number in range(5)])
    read = list(model.query("p"))
    read[0].text = None
    for _ in range(2):
        with count_requests() as counted:
            assert not any(batch_of(read))
        assert counted.by_operation == {BATCH: 1}
    assert [row.get("text") for row in rows_of(model).values()] == [None, *[{"S": "x"}] * 4]


@pytest.mark.parametrize("model", MODELS)
def test_what_no_statement_says_is_sent_alone(memory, model):
    """A write without the version, one that removes several attributes, and one that was not read."""
    memory.bind(model)
    items = [model("p", number, text="x", note="y") for number in range(6)]
    batch_of(items)
    items[0].text = items[0].note = None
    items[1] = model("p", 1, n=7, text="x", note="y", version=1)
    with count_requests() as counted, model.guarded_batch() as batch:
        batch.save(items[0])
        batch.save(items[1])
        batch.save(items[2], add_version_condition=False)
        batch.delete(items[3], add_version_condition=False)
        batch.save(items[4])
        batch.save(items[5])
    assert counted.by_operation[BATCH] == 1
    assert counted.total == 5
    texts = {key: row.get("text", {}).get("S") for (_, key), row in rows_of(model).items()}
    assert texts == {"0": None, **dict.fromkeys("1245", "x")}


# The same as single requests


class Story:
    """Random items, and a random write of each, on keys of its own."""

    def __init__(self, model: Any, name: str, seed: int) -> None:
        self.model, self.name, self.random = model, name, random.Random(seed)
        self.writes = [self.write_of(number) for number in range(24)]

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def values(self) -> dict[str, Any]:
        """Random attributes, each of which may be missing."""
        some = {
            "text": "x",
            "note": "",
            "tags": {"a", "b"},
            "parts": [1, "b", {"c": None}],
            "about": {"deep": {"er": [1]}},
            "expires": datetime.fromtimestamp(self.random.choice([1_700_000_000, 4_000_000_000]), timezone.utc),
        }
        declared = {name: value for name, value in some.items() if hasattr(self.model, name) and self.maybe(0.6)}
        return {"n": self.random.choice([0, 1, 2.5, 10**30]), **declared}

    def stored(self, number: int, operation: str, **more: Any) -> Any:
        """Read or write an item behind the model's back."""
        connection, key = self.model._get_connection(), {"pk": {"S": self.name}, "rk": {"N": str(number)}}
        kwargs = {"TableName": connection.table_name, **({} if operation == "PutItem" else {"Key": key}), **more}
        return connection.connection.dispatch(operation, kwargs)

    def put(self, number: int, change: dict[str, Any]) -> None:
        row = self.stored(number, "GetItem").get("Item")
        if row is not None:
            new = {name: value for name, value in {**row, **change}.items() if value is not None}
            self.stored(number, "PutItem", Item=new)

    def write_of(self, number: int) -> tuple[Any, str, dict[str, Any]]:
        """Store an item, or none, read it, change what is stored, and change the instance."""
        if self.maybe(0.8):
            self.model(self.name, number, **self.values()).save()
        if self.maybe(0.1):
            self.put(number, {"version_write_id": None})
        item = self.instance(number)
        self.change(number)
        if self.maybe(0.7):
            for name, value in {**dict.fromkeys(item.get_attributes()), **self.values()}.items():
                if name not in ("pk", "rk", "version", "lock"):
                    setattr(item, name, value)
        options: dict[str, Any] = {"add_version_condition": self.maybe(0.9)}
        if self.maybe(0.3):
            n = self.model.n
            options["condition"] = self.random.choice([n < 5, n != 1, n.does_not_exist(), n.exists()])
        return item, "save" if self.maybe(0.75) else "delete", options

    def instance(self, number: int) -> Any:
        """What was read, or a new instance."""
        key, how = (self.name, number), self.random.random()
        if how < 0.25:
            return self.model(*key, **({} if how < 0.15 else {"version": 1}))
        if how < 0.5:  # what no save keeps, but an update does
            self.put(number, {"undeclared": {"S": "of another program"}})
        names = ["pk", "rk", "n", "version", "version_write_id"] if how > 0.9 else None
        try:
            return self.model.get(*key, attributes_to_get=names)
        except self.model.DoesNotExist:
            return self.model(*key)

    def change(self, number: int) -> None:
        """Let another program write the item, perhaps."""
        what = self.random.random()
        if what < 0.1:
            self.put(number, {"version": {"N": "7"}})
        elif what < 0.2:
            self.put(number, {"version_write_id": {"S": "ffffffff-other"}})
        elif what < 0.3:
            self.stored(number, "DeleteItem")
        elif what < 0.4 and hasattr(self.model, "lock"):
            self.put(number, {"lock": {"M": {"queue": {"S": "broken"}}}})

    def happen(self) -> list[Any]:
        """Write all in a batch, twice; return what is told of each, and what is known afterwards."""
        told = list[Any]()
        for _ in range(2):
            batch = self.model.guarded_batch()
            try:
                with batch:
                    for item, operation, options in self.writes:
                        getattr(batch, operation)(item, **options)
            except BatchError:
                pass
            told += [
                (type(each.error), getattr(each.error, "actual", None), each.item.version) for each in batch.results
            ]
        return told


@pytest.mark.long
@pytest.mark.parametrize("seed", range(short_or_long(1, 10)))
@pytest.mark.parametrize("model", MODELS)
def test_rows_and_results_are_those_of_single_requests(cheap, monkeypatch, model, seed):
    """Whatever is stored, and whatever the instances know of it; and they can be written again."""
    cheap.bind(model)
    together = Story(model, "together", seed)
    alone = Story(model, "alone", seed)
    with count_requests() as counted:
        told = together.happen()
    assert counted.by_operation[BATCH] == 2
    make_long_from(monkeypatch, 100, statements=1)
    assert told == alone.happen()
    rows = rows_of(model)
    found = [{number: row for (name, number), row in rows.items() if name == each} for each in ("together", "alone")]
    assert found[0] == found[1]
    assert len(rows) > 20


# What goes wrong

KINDS = ["insert", "update", "delete"]


def prepared(kind: str, model: Any = Plain) -> list[Any]:
    """Nine items to be written, and what is stored before."""
    items = [model("p", number, text="x") for number in range(9)]
    if kind != "insert":
        for item in items:
            item.save()
            item.n = 5
    return items


def assert_written(kind: str, model: Any = Plain) -> None:
    found = {item.rk: (item.version, item.n) for item in model.query("p", consistent_read=True)}
    assert found == ({} if kind == "delete" else dict.fromkeys(range(9), (1, 0) if kind == "insert" else (2, 5)))


def written(kind: str, items: list[Any]) -> list[Any]:
    return batch_of(items, "delete" if kind == "delete" else "save")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", [lost_before, lost_after, lost_half, throttled_in_part, failed_in_part])
@pytest.mark.parametrize("model", [Plain, Inside])
def test_what_a_batch_has_not_applied_is_written_nevertheless(memory, monkeypatch, model, answer, kind, no_pauses):
    """Once; a lost answer is cleared up for each write, and what was throttled goes again in a batch."""
    memory.bind(model)
    items = prepared(kind, model)
    with answering(monkeypatch, answer) as batches:
        assert not any(written(kind, items))
    assert len(batches) == (8 if answer is throttled_in_part else 1)
    assert_written(kind, model)
    if kind != "delete":
        assert not any(batch_of(items))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_batch_that_another_writer_follows_is_in_doubt(memory, monkeypatch, kind):
    """It is called neither applied nor refused: a later writer has replaced what would show it."""

    def lost_and_followed(send: Any, kwargs: Any) -> Any:
        send(kwargs)
        for number in range(9):
            Plain("p", number).update([Plain.n.set(9)], add_version_condition=False)
            Plain("p", number).update([Plain.n.set(9)], add_version_condition=False)
        return lost_before(send, kwargs)

    memory.bind(Plain)
    items = prepared(kind)
    with answering(monkeypatch, lost_and_followed):
        errors = written(kind, items)
    assert {type(error) for error in errors} == {type(errors[0])}
    assert isinstance(errors[0], OutcomeUnknown)


@pytest.mark.parametrize(("kind", "is_gone"), [*((kind, False) for kind in KINDS), ("delete", True)])
def test_one_refusal_is_about_one_write(concurrent_engine, kind, is_gone):
    """With the error and item of the single request; a DELETE of an absent item changes nothing and looks applied."""
    concurrent_engine.bind(Plain)
    items = prepared(kind)
    if is_gone:
        Plain("p", 3).delete(add_version_condition=False)
    else:
        Plain("p", 3).update([Plain.n.set(9)], add_version_condition=False)
    errors = written(kind, items)
    assert [number for number, error in enumerate(errors) if error is not None] == [3]
    assert isinstance(errors[3], StaleVersion)
    assert is_gone or errors[3].current.n == 9


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(denied, "PartiQLInsert"), (denied_each, "PartiQLInsert"), (unknown, "knows no"), (unknown_each, "knows no")],
)
def test_where_statements_are_refused_each_write_is_a_request(memory, monkeypatch, caplog, answer, reason):
    """It is noticed once, and logged once, with the reason; after a while a batch is tried again."""
    memory.bind(Plain)
    caplog.set_level(logging.WARNING, "pynamo_locking")
    items = prepared("insert")
    with answering(monkeypatch, answer) as batches:
        assert not any(written("insert", items))
        assert_written("insert")
        with count_requests() as counted:
            assert not any(written("insert", items))
    assert (len(batches), counted.by_operation) == (1, {"PutItem": 9})
    [told] = [record.getMessage() for record in caplog.records]
    assert reason in told
    with VirtualClock() as clock:
        clock.jump(runtime.monotonic() + 301)
        with count_requests() as counted:
            assert not any(batch_of([Plain("q", number) for number in range(9)]))
    assert counted.by_operation == {BATCH: 1}


def value_of_no_type(send: Any, _: Any) -> Any:
    """As DynamoDB answers a batch of which one value cannot be a number."""
    raise ClientError({"Error": {"Code": "ValidationException", "Message": "cannot be converted to a number"}}, BATCH)


def values_of_no_type(_: Any, kwargs: Any) -> Any:
    error = {"Code": "ValidationError", "Message": "Item size has exceeded the maximum allowed size"}
    return {"Responses": [{"Error": error} for _ in kwargs["Statements"]]}


def expired(_: Any, __: Any) -> Any:
    raise ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "the token is expired"}}, BATCH)


def odd(_: Any, __: Any) -> Any:
    raise TypeError("no JSON")


@pytest.mark.parametrize("answer", [value_of_no_type, values_of_no_type, expired, odd])
def test_one_bad_value_or_token_leaves_batches_on(memory, monkeypatch, caplog, answer):
    """The writes of that batch are sent alone; the next batch is one request again. Nothing is logged."""
    memory.bind(Plain)
    caplog.set_level(logging.WARNING, "pynamo_locking")
    items = prepared("insert")
    with answering(monkeypatch, answer) as batches:
        assert not any(written("insert", items))
    assert len(batches) == 1
    assert_written("insert")
    with count_requests() as counted:
        assert not any(batch_of(items))
    assert counted.by_operation == {BATCH: 1}
    assert caplog.records == []


@pytest.mark.parametrize("bad", [{"n": float("nan")}, {"n": int("1" * 39)}])
def test_a_batch_with_one_bad_value_leaves_batches_on(concurrent_engine, bad):
    """It has an error; the others are written, by statements the next time as well."""
    concurrent_engine.bind(Plain)
    items = [Plain("p", number, **(bad if number == 3 else {})) for number in range(9)]
    errors = batch_of(items)
    assert [number for number, error in enumerate(errors) if error is not None] == [3]
    with count_requests() as counted:
        assert not any(batch_of([Plain("q", number) for number in range(9)]))
    assert counted.by_operation == {BATCH: 1}


def test_a_write_that_was_left_under_way_is_in_doubt(memory, monkeypatch):
    """Two interrupts leave it: that its statement was refused before says nothing of the request that followed."""
    memory.bind(Plain)
    is_applied, may_end = threading.Event(), threading.Event()

    def linger() -> None:
        is_applied.set()
        may_end.wait(20)

    class Interrupted(runtime.Runtime):
        """Interrupts the thread that waits for the writes, each time, from the first one on that is applied."""

        def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
            if threading.current_thread() is not threading.main_thread():
                return super().wait(condition, timeout)
            if is_applied.is_set():
                raise KeyboardInterrupt
            return super().wait(condition, 0.001)

    try:
        with (
            runtime.installed(Interrupted()),
            answering(monkeypatch, denied),
            on("PutItem").lose_response(linger),
            pytest.raises(KeyboardInterrupt),
            Plain.guarded_batch(workers=1) as batch,
        ):
            batch.save(Plain("p", 0))
            batch.save(Plain("p", 1))
        assert [item.rk for item in Plain.query("p", consistent_read=True)] == [0]
        told = [result.error for result in batch.results]
        assert isinstance(told[0], OutcomeUnknown), f"the write is applied, and its result says: {told[0]}"
        assert isinstance(told[1], Conflict), f"the write was not begun, and its result says: {told[1]}"
    finally:
        may_end.set()
        join_batch_workers()


def test_a_batch_is_not_repeated_behind_our_back(memory, monkeypatch):
    """A second copy of an INSERT could create again what was deleted since."""
    monkeypatch.setattr(Plain.Meta, "max_retry_attempts", 3)
    memory.bind(Plain)
    with on(BATCH, times=ALL).lose_request() as batches:
        assert not any(batch_of(prepared("insert")))
    assert batches.hits == 1
