"""`guarded_batch`: any number of writes that keep their conditions, each with a result."""

from __future__ import annotations

import itertools
import pickle
import signal
import threading
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute
from pynamodb.exceptions import PutError

from pynamo_locking import TransactWrite, VersionedMixin, locked_all
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    ItemLocked,
    LockingError,
    LockLost,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
)
from tests.integration.models.conftest import join_batch_workers
from tests.support import runtime
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere
from tests.support.transaction_models import make_long_from
from tests.support.versioned_models import connection_of, saved, stale
from tests.support.wire import Chosen, count_requests, on

#: A version and nothing else; few retries, since some tests lose all of them.
Row = declare(
    "Row",
    VersionedMixin,
    hash_key="pk",
    numbers="n",
    texts="text",
    data=BinaryAttribute(null=True, legacy_encoding=False),
    version=True,
    max_retry_attempts=1,
)


Other = declare("Other", VersionedMixin, hash_key="pk", version=True)
Numbered = declare("Numbered", VersionedMixin, range_key="part", version=True, number=NumberAttribute(hash_key=True))
Inside = declare("Inside", hash_key="pk", lock=True, version=True, numbers="n")
Beside = declare("Beside", hash_key="pk", version=True, numbers="n", lock_table=Locks)


MODES = pytest.mark.parametrize("transactions", [False, True], ids=["each", "transactions"])


@pytest.fixture
def alone(monkeypatch):
    """No statements: each write is a request. See test_batches_by_statements.py for those."""
    make_long_from(monkeypatch, 100, statements=1)


def names(count: int) -> list[str]:
    return [f"i{number:03}" for number in range(count)]


def versions(model: type[Any]) -> dict[str, int]:
    return {item.pk: item.version for item in model.scan(consistent_read=True)}


def results_of(model: Any, *items: Any, **options: Any) -> Any:
    """Save items in a batch of which not all writes are applied; return the results."""
    with pytest.raises(BatchError) as caught, model.guarded_batch(**options) as batch:
        for item in items:
            batch.save(item)
    assert caught.value.results == batch.results
    return batch.results


def kinds(results: Any) -> list[str | None]:
    """Return the class of each error, without what it is besides."""
    classes = (StaleVersion, ItemLocked, TransactionConflict, LockLost, OutcomeUnknown, Conflict)
    return [
        None if result.error is None else next(kind.__name__ for kind in classes if isinstance(result.error, kind))
        for result in results
    ]


# All goes well


@MODES
def test_250_items(engine, transactions):
    """3 transactions, or 10 batches; every instance is what is stored, and can be written again."""
    engine.bind(Row)
    items = [Row(name, n=7) for name in names(250)]
    told: list[tuple[int, int]] = []
    threads = set()

    def on_progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    with count_requests() as counted, Row.guarded_batch(transactions=transactions, on_progress=on_progress) as batch:
        for item in items:
            batch.save(item)
        assert counted.total == 0
    if transactions:
        assert counted.by_operation == {"TransactWriteItems": 3}
    elif engine.name == "moto":  # knows no such statements
        assert counted.by_operation["PutItem"] == 250
    else:
        assert counted.by_operation == {"BatchExecuteStatement": 10}
    assert versions(Row) == dict.fromkeys(names(250), 1)
    assert [result.item for result in batch.results] == items
    assert all(result.is_applied and result.operation == "save" for result in batch.results)
    assert told == sorted(told)
    assert (told[-1], {total for _, total in told}) == ((250, 250), {250})
    assert len(told) == counted.total or engine.name == "moto"
    assert threads == {threading.get_ident()}
    with Row.guarded_batch(transactions=transactions) as batch:
        for number, item in enumerate(items):
            batch.delete(item) if number % 2 else batch.save(item)
    assert versions(Row) == dict.fromkeys(names(250)[::2], 2)


@MODES
def test_items_are_written_as_they_are_when_the_block_ends(engine, transactions):
    """Nothing is sent before."""
    engine.bind(Row)
    item = Row("a")
    with Row.guarded_batch(transactions=transactions) as batch:
        batch.save(item)
        item.n = 5
        assert batch.results == ()
    assert Row.get("a").n == 5


@MODES
def test_an_empty_batch_sends_nothing(engine, transactions):
    """And tells nothing."""
    engine.bind(Row)
    told: list[Any] = []
    with (
        count_requests() as counted,
        Row.guarded_batch(transactions=transactions, on_progress=lambda *numbers: told.append(numbers)) as batch,
    ):
        pass
    assert (counted.total, batch.results, told) == (0, (), [])


@MODES
def test_one_worker_writes_in_the_given_order(memory, transactions):
    """One request after the other."""
    memory.bind(Row)
    order = [name for pair in zip(names(60), reversed(names(120)), strict=False) for name in pair]
    with count_requests() as counted, Row.guarded_batch(transactions=transactions, workers=1) as batch:
        for name in order:
            batch.save(Row(name))
    if transactions:
        sent = [action["Put"]["Item"]["pk"]["S"] for _, body in counted.bodies for action in body["TransactItems"]]
    else:
        sent = [each["Parameters"][0]["S"] for _, body in counted.bodies for each in body["Statements"]]
    assert sent == order


# Refusals


@MODES
def test_mixed_refusals(engine, transactions):
    """Each has its own result, in the order of the calls; those of one transaction stand and fall together."""
    engine.bind(Row)
    for name in ("stale", "condition", "fine", "delete", "stale delete", "unchecked"):
        Row(name, n=1).save()
    stale, stale_delete, unchecked = Row.get("stale"), Row.get("stale delete"), Row.get("unchecked")
    for name in ("stale", "stale delete", "unchecked"):
        Row.get(name).touch()
    before = versions(Row)
    with pytest.raises(BatchError) as caught, Row.guarded_batch(transactions=transactions) as batch:
        batch.save(Row.get("fine"), Row.n == 1)
        batch.save(stale)
        batch.save(Row("fresh"))
        batch.delete(stale_delete)
        batch.save(Row.get("condition"), Row.n > 1)
        batch.delete(Row.get("delete"))
        batch.save(unchecked, add_version_condition=False)
    error = caught.value
    assert isinstance(error, PutError)
    assert error.results == batch.results
    assert [(result.item.pk, result.operation) for result in batch.results] == [
        ("fine", "save"),
        ("stale", "save"),
        ("fresh", "save"),
        ("stale delete", "delete"),
        ("condition", "save"),
        ("delete", "delete"),
        ("unchecked", "save"),
    ]
    refused = [None, "StaleVersion", None, "StaleVersion", "Conflict", None, None]
    others = "Conflict" if transactions else None
    assert kinds(batch.results) == [kind or others for kind in refused]
    assert batch.results[1].error.current.version == batch.results[1].error.actual == 2
    if transactions:
        assert versions(Row) == before
        for result, kind in zip(batch.results, refused, strict=True):
            assert ("another write of the same transaction" in str(result.error)) == (kind is None)
    else:
        del before["delete"]
        assert versions(Row) == before | {"fine": 2, "fresh": 1, "unchecked": 3}
    again = pickle.loads(pickle.dumps(error))
    assert kinds(again.results) == kinds(batch.results)


def test_a_refusal_in_one_transaction_leaves_the_others_alone(cheap):
    """Of 250 items only the hundred around the stale one are not written."""
    cheap.bind(Row)
    Row("i150").save()
    results = results_of(Row, *map(Row, names(250)), transactions=True)
    assert [result.item.pk for result in results if not result.is_applied] == names(200)[100:]
    assert set(versions(Row)) == {*names(100), "i150", *names(250)[200:]}


@MODES
def test_a_write_that_cannot_be_sent_is_a_result_like_any_other(cheap, transactions):
    """Such as an item that lacks a required attribute; the others of its transaction are not written."""
    cheap.bind(Row)
    broken = Row("broken")
    broken.n = None
    first, second = results_of(Row, Row("a"), broken, transactions=transactions)
    assert isinstance(second.error, ValueError)
    assert first.is_applied == (not transactions)
    assert set(versions(Row)) == (set() if transactions else {"a"})


@MODES
def test_an_item_that_dynamodb_refuses_as_too_large(memory, transactions):
    """It is no condition that failed, and the result is an error all the same; nothing is called applied."""
    memory.bind(Row)
    results = results_of(Row, Row("small"), Row("large", text="x" * 500_000), transactions=transactions)
    applied = {result.item.pk for result in results if result.is_applied}
    assert applied == set(versions(Row)) == (set() if transactions else {"small"})


def test_a_transaction_that_others_keep_busy_is_not_applied(memory, no_pauses):
    """After nine attempts each of its writes has the TransactionConflict."""
    memory.bind(Row)
    busy = "TransactionCanceledException", "TransactionConflict", None
    with on("TransactWriteItems").answer(busy, always=True) as attempts:
        results = results_of(Row, Row("a"), Row("b"), transactions=True)
    assert len(attempts) == 9
    assert not any(result.is_applied for result in results)
    assert kinds(results) == ["TransactionConflict", "TransactionConflict"]


# Unknown outcomes


@MODES
def test_a_lost_answer_is_cleared_up(cheap, alone, transactions):
    """A write that was applied is one, whether its answer came or not."""
    cheap.bind(Row)
    operation = "TransactWriteItems" if transactions else "PutItem"
    losing = on(operation, where=lambda body: "second" in str(body)).lose_response()
    with losing as faults, Row.guarded_batch(transactions=transactions) as batch:
        for name in ("first", "second", "third"):
            batch.save(Row(name))
    assert faults.hits == 1
    assert kinds(batch.results) == [None, None, None]
    assert versions(Row) == {"first": 1, "second": 1, "third": 1}


@pytest.mark.parametrize("lose", [Chosen.lose_response, Chosen.lose_request])
@MODES
def test_a_write_without_any_answer_is_unknown(cheap, alone, transactions, lose):
    """It may have been applied or not; the others have their own results."""
    cheap.bind(Row)
    operation = "TransactWriteItems" if transactions else "PutItem"
    with lose(on(operation, times=99, where=lambda body: "second" in str(body))):
        results = results_of(Row, *map(Row, ("first", "second", "third")), transactions=transactions)
    unknown = "OutcomeUnknown"
    assert kinds(results) == ([unknown] * 3 if transactions else [None, unknown, None])
    assert not results[1].is_applied
    for result in results:
        if result.is_applied:
            assert Row.get(result.item.pk)


def test_a_transaction_that_is_refused_after_a_lost_copy_is_unknown(cheap):
    """The copy may be on its way still, and be accepted once the item that was in the way is deleted."""
    cheap.bind(Row)
    with on("TransactWriteItems").lose_request(Row("a", n=1).save) as lost:
        results = results_of(Row, Row("a", n=2), Row("b"), transactions=True)
    assert lost.hits == 1
    assert kinds(results) == ["OutcomeUnknown", "OutcomeUnknown"]
    assert versions(Row) == {"a": 1}


# What is refused at once


@MODES
def test_two_writes_of_one_item_are_refused(memory, transactions):
    """Of the same instance or another, whatever the operations; items of other tables are others."""
    memory.bind(Row, Other)
    item = Row("a")
    with Row.guarded_batch(transactions=transactions) as batch:
        batch.save(item)
        for twice in (lambda: batch.save(item), lambda: batch.delete(item), lambda: batch.save(Row("a"))):
            with pytest.raises(ConfigurationError, match="one write for each item"):
                twice()
        batch.save(Row("b"))
    assert versions(Row) == {"a": 1, "b": 1}


@MODES
def test_numbers_that_are_equal_are_one_key(cheap, transactions):
    """DynamoDB takes 2 and 2.0 for the same; other numbers are others."""
    cheap.bind(Numbered)
    with Numbered.guarded_batch(transactions=transactions) as batch:
        batch.save(Numbered(2, 10))
        for key in ((2, 10), (2.0, 10), (2, 1e1), (20e-1, 10.0)):
            with pytest.raises(ConfigurationError, match="one write for each item"):
                batch.save(Numbered(*key), add_version_condition=False)
        batch.save(Numbered(2, 11))
        batch.save(Numbered(2.5, 10))
    assert Numbered.count() == 3


def test_an_instance_is_written_once(cheap):
    """Also if it gets another key: both writes would be of the second one."""
    cheap.bind(Row)
    item = Row("a", n=1)
    with pytest.raises(ConfigurationError, match="make one for each item"), Row.guarded_batch() as batch:
        batch.save(item, add_version_condition=False)
        item.pk = "b"
        batch.save(item, add_version_condition=False)
    assert versions(Row) == {}


@MODES
def test_an_instance_that_gets_another_key_is_not_written(cheap, transactions):
    """It would be written over an item that no caller has asked for."""
    cheap.bind(Row)
    item = Row("a", n=1)
    with pytest.raises(BatchError) as caught, Row.guarded_batch(transactions=transactions) as batch:
        batch.save(item, add_version_condition=False)
        batch.save(Row("b", n=2))
        item.pk = "b"
    first, second = caught.value.results
    assert isinstance(first.error, ConfigurationError)
    assert "key" in str(first.error)
    assert second.is_applied == (not transactions)
    assert [row.n for row in Row.scan(consistent_read=True)] == ([] if transactions else [2])


@MODES
def test_a_key_that_cannot_be_is_a_result(memory, transactions):
    """Two of them are two writes, each with its error."""
    memory.bind(Row)
    with pytest.raises(BatchError), Row.guarded_batch(transactions=transactions) as batch:
        batch.save(Row(""))
        batch.save(Row("a"))
        batch.delete(Row(""))
    assert [result.is_applied for result in batch.results] == [False, not transactions, False]


@pytest.mark.parametrize("workers", [0, -1])
def test_a_batch_needs_a_worker(workers):
    """Said when it is made."""
    with pytest.raises(ConfigurationError, match="at least one worker"):
        Row.guarded_batch(workers=workers)


@MODES
def test_a_batch_that_has_ended_writes_nothing_again(memory, transactions):
    """Neither its old writes nor, without a word, those that are added to it too late: they would never be sent."""
    memory.bind(Row)
    with Row.guarded_batch(transactions=transactions) as batch:
        batch.save(Row("a"))
    with pytest.raises(ConfigurationError):
        batch.save(Row("b"))
    with count_requests() as counted, suppress(ConfigurationError), batch:
        pass
    assert counted.total == 0
    assert versions(Row) == {"a": 1}


# Sizes


@pytest.mark.parametrize("letter", ["\u6f22", b"\x01"], ids=["text", "binary"])
def test_a_transaction_has_at_most_4_mb(memory, letter):
    """30 items of 390 KB do not fit into one; each request stays below DynamoDB's limit, and is not of one item."""
    memory.bind(Row)
    size = 390_000
    content = letter * (size // len(letter.encode() if isinstance(letter, str) else letter))
    name = "text" if isinstance(letter, str) else "data"
    with count_requests() as counted, Row.guarded_batch(transactions=True, workers=1) as batch:
        for pk in names(30):
            batch.save(Row(pk, **{name: content}))
    numbers = [len(body["TransactItems"]) for _, body in counted.bodies]
    assert sum(numbers) == 30
    assert max(numbers) * size < 4 * 1024 * 1024
    assert min(numbers) > 1, f"the items were not put together as far as they fit: {numbers}"
    assert len(versions(Row)) == 30


# Interruptions


@pytest.mark.parametrize("stop", [LookupError, KeyboardInterrupt])
@MODES
def test_a_callback_that_raises_ends_the_batch_and_hides_nothing(cheap, transactions, stop):
    """What had begun is reported as it ended, the rest as not begun; its exception comes out."""
    cheap.bind(Row)
    count = 450

    def on_progress(done: int, total: int) -> None:
        if done >= 3:
            raise stop

    with pytest.raises(stop), Row.guarded_batch(transactions=transactions, on_progress=on_progress, workers=2) as batch:
        for name in names(count):
            batch.save(Row(name))
    assert [result.item.pk for result in batch.results] == names(count)
    applied = {result.item.pk for result in batch.results if result.is_applied}
    assert applied == set(versions(Row))
    assert 3 <= len(applied) < count
    for result in batch.results:
        assert result.item.version == (1 if result.is_applied else None)
        if not result.is_applied:
            assert isinstance(result.error, Conflict)
            assert "interrupted" in str(result.error)


@pytest.mark.processes
@MODES
def test_an_interrupt_while_writes_are_under_way(concurrent_engine, alone, transactions):
    """Ctrl-C in the thread that waits: the requests on their way are waited for, and reported as they end."""
    concurrent_engine.bind(Row)
    count, numbers = 450, itertools.count(1)

    def interrupt(_body: dict[str, Any]) -> bool:
        if next(numbers) == 2:  # one of the two threads sees it
            signal.raise_signal(signal.SIGINT)
        return False

    try:
        with (
            pytest.raises(KeyboardInterrupt),
            on("TransactWriteItems" if transactions else "PutItem", where=interrupt).lose_request(),
            Row.guarded_batch(transactions=transactions, workers=2) as batch,
        ):
            for name in names(count):
                batch.save(Row(name))
    finally:
        join_batch_workers()  # what a worker still writes now is not in the results
    assert len(batch.results) == count
    applied = {result.item.pk for result in batch.results if result.is_applied}
    assert applied == set(versions(Row))
    assert len(applied) < count


@MODES
def test_an_interrupt_while_the_workers_are_being_started(memory, transactions):
    """The first may have begun by then: what it writes is reported, and it does not go on in the background."""
    memory.bind(Row)

    class Interrupted(runtime.Runtime):
        def spawn(self, target: Any, name: str) -> None:
            super().spawn(target, name)
            if name == "pynamo-locking-batch":  # not the heartbeat, which may still watch locks of other tests
                raise KeyboardInterrupt

    stack = ExitStack()
    try:
        with pytest.raises(KeyboardInterrupt), Row.guarded_batch(transactions=transactions, workers=2) as batch:
            for name in names(250):
                batch.save(Row(name))
            stack.enter_context(runtime.installed(Interrupted()))
    finally:
        stack.close()
        join_batch_workers()
    assert {result.item.pk for result in batch.results if result.is_applied} == set(versions(Row))


# Locks


@MODES
@pytest.mark.parametrize("model", [Inside, Beside])
def test_locks_of_the_caller_guard_the_writes_of_all_workers(cheap, model, transactions):
    """The workers write inside them, in whatever thread they are."""
    cheap.bind(Locks, Inside, Beside)
    keys = names(5)
    for key in keys:
        model(key).save()
    with locked_all(*(model.locked(key) for key in keys)) as locks:
        items = [lock.item for lock in locks]
        with count_requests() as counted, model.guarded_batch(transactions=transactions, workers=3) as batch:
            for item in items:
                item.n = 5
                batch.save(item)
        rows = str(counted.bodies).count("queue")
    assert [item.n for item in model.scan()] == [5] * 5
    assert rows > 0
    assert counted.total == (1 if transactions else 5)


@MODES
def test_an_item_that_another_party_has_locked(cheap, transactions):
    """Is refused; the others are written."""
    cheap.bind(Inside)
    for key in names(3):
        Inside(key).save()
    items = [Inside.get(key) for key in names(3)]
    with held_elsewhere(Inside.locked("i001", owner="other")):
        results = results_of(Inside, *items, transactions=transactions)
    others = "Conflict" if transactions else None
    assert kinds(results) == [others, "ItemLocked", others]
    assert results[1].error.holder == "other"


@MODES
@pytest.mark.parametrize("operation", ["save", "delete"])
@pytest.mark.parametrize("model", [Inside, Beside])
def test_a_lock_that_was_lost_refuses_the_writes_of_the_batch(cheap, model, operation, transactions):
    """A batch never says that such a write was applied."""
    cheap.bind(Locks, Inside, Beside)
    for key in names(2):
        model(key).save()
    with suppress(LockLost), model.locked("i000", heartbeat=False) as lock:
        item, other = lock.item, model.get("i001")
        model.break_lock("i000", ticket=lock.ticket)
        with pytest.raises(LockingError) as caught, model.guarded_batch(transactions=transactions) as batch:
            getattr(batch, operation)(item)
            getattr(batch, operation)(other)
        assert isinstance(caught.value, BatchError)
    assert kinds(batch.results)[0] == "LockLost"
    assert not batch.results[0].is_applied
    stored = versions(model)
    assert stored["i000"] == 1
    assert batch.results[1].is_applied == (stored.get("i001") != 1)


def test_locks_in_rows_of_their_own_count_double(memory):
    """51 items with 51 locks are more than one transaction takes."""
    memory.bind(Locks, Beside)
    keys = names(51)
    for key in keys:
        Beside(key).save()
    with locked_all(*(Beside.locked(key, heartbeat=False) for key in keys)) as locks:
        items = [lock.item for lock in locks]
        with count_requests() as counted, Beside.guarded_batch(transactions=True) as batch:
            for item in items:
                batch.save(item)
        sizes = sorted(len(body["TransactItems"]) for _, body in counted.bodies)
    assert sizes == [2, 100]
    assert versions(Beside) == dict.fromkeys(keys, 2)


# Beside PynamoDB's batch_write


def test_ours_batch_has_to_be_asked_for(ours):
    """batch_write() refuses to start; with unguarded=True it is PynamoDB's; guarded_batch() keeps the conditions."""
    copy, fresh = stale(ours), saved(ours, "b")
    with pytest.raises(ConfigurationError, match="unguarded=True"):
        ours.batch_write()
    with pytest.raises(BatchError) as failed, ours.guarded_batch() as batch:
        batch.save(copy)
        batch.save(fresh)
    assert [result.is_applied for result in failed.value.results] == [False, True]
    assert isinstance(failed.value.results[0].error, StaleVersion)
    assert (ours.get("a").body, ours.get("b").version) == ("newer", 2)
    with ours.batch_write(unguarded=True) as batch:
        batch.save(copy)
    assert (ours.get("a").version, ours.get("a").body) == (1, None)


def test_ours_nothing_is_written_if_the_block_raised(ours):
    """Neither guarded_batch() nor a transaction sends anything."""
    opened = [
        ours.guarded_batch,
        lambda: ours.guarded_batch(transactions=True),
        lambda: TransactWrite(connection=connection_of(ours)),
    ]
    for begin in opened:
        with count_requests() as requests, pytest.raises(ZeroDivisionError), begin() as batch:
            batch.save(ours("a"))
            1 / 0  # noqa: B018
        assert (requests.total, getattr(batch, "results", ())) == (0, ())
    assert list(ours.scan(consistent_read=True)) == []
