"""What the refusal of some rows says of all rows that were sent with them, after an attempt without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import NamedLock, TransactionTable, TransactWrite, transaction
from pynamo_locking.exceptions import LockLost, NotUnique, OutcomeUnknown, StaleVersion
from pynamo_locking.unique import UniqueTable
from pynamo_locking_testing import VirtualClock, lose_lock
from tests.support.models import declare
from tests.support.parties import abandoned, in_thread
from tests.support.transaction_models import make_long_from
from tests.support.wire import unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

pytestmark = pytest.mark.core

Rows = declare("Rows", NamedLock, table_name="together-locks")
Records = declare("Records", TransactionTable, table_name="together-records")
Values = declare("Values", UniqueTable, table_name="together-values")


def lockable(name: str, /, *, lock: bool = False, **options: Any) -> Any:
    """Return a model without retries of botocore: the attempts that a test counts are ours."""
    return declare(name, numbers="n", version=True, lock=lock, max_retry_attempts=0, **options)


Versioned = lockable("TogetherVersioned")
Inside = lockable("TogetherInside", lock=True)
Beside = lockable("TogetherBeside", lock_table=Rows)
Staged = lockable("TogetherStaged", lock=True, transaction_table=Records)


#: With a unique value.
Named = lockable("TogetherNamed", lock=True, name=UnicodeAttribute(), unique=["name"], unique_table=Values)


@pytest.fixture
def models(memory: Engine) -> None:
    memory.bind(Rows, Records, Values, Versioned, Inside, Beside, Staged, Named)


@pytest.fixture
def clock(models: None) -> Iterator[VirtualClock]:
    with VirtualClock() as clock:
        yield clock


def forget_tokens(clock: VirtualClock) -> None:
    """DynamoDB forgets the token of a request after ten minutes."""
    clock.jump(601)


def lost(then: Callable[[], object], *, is_applied: bool = False) -> Any:
    """One native transaction has no answer; then another party acts, and the second copy comes."""
    return unanswered("TransactWriteItems", then=lambda: in_thread(then), attempts=1, is_applied=is_applied)


def add(model: Any, key: str, times: int = 1) -> None:
    for _ in range(times):
        item = model.get(key)
        item.n += 1
        item.save()


def check_and_save(read: Any, saved: Any) -> None:
    """Check one item and save another, in one native transaction."""
    with TransactWrite(connection=Versioned._get_connection().connection) as tx:
        tx.check(read)
        tx.save(saved)


@pytest.mark.parametrize("model", [Versioned, Inside])
def test_an_item_that_another_writer_has_deleted_does_not_tell_that_the_transaction_was_applied(
    models: None, model: Any
) -> None:
    """Of a delete and a save the first copy is lost: the save was not stored, and nobody is told that it was."""
    model("gone").save()
    model("saved").save()
    gone, saved = model.get("gone"), model.get("saved")
    saved.n = 7

    def write() -> None:
        with TransactWrite(connection=model._get_connection().connection) as tx:
            tx.delete(gone)
            tx.save(saved)

    with lost(model.get("gone").delete), pytest.raises(StaleVersion):
        write()
    assert model.get("saved").n == 0


def test_the_decision_of_a_long_transaction_is_not_told_by_an_absent_item(
    models: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is stored: neither the marked items nor those that the decision writes itself."""
    make_long_from(monkeypatch, 4)
    for i in range(6):
        Staged(f"s{i}").save()
    Versioned("gone").save()
    Versioned("saved").save()

    def write() -> None:
        with transaction() as tx:
            for i in range(6):
                item = tx.get(Staged, f"s{i}")
                item.n = 1
                tx.save(item)
            tx.delete(tx.get(Versioned, "gone"))
            saved = tx.get(Versioned, "saved")
            saved.n = 1
            tx.save(saved)

    faults = unanswered(
        "TransactWriteItems",
        then=lambda: in_thread(Versioned.get("gone").delete),
        where=lambda body: "'gone'" in str(body),  # the decision
        attempts=1,
        is_applied=False,
    )
    with faults as sent, pytest.raises(StaleVersion):
        write()
    assert len(sent) >= 2, "the decision was not sent again"
    assert [Staged.get(f"s{i}").n for i in range(6)] + [Versioned.get("saved").n] == [0] * 7


def test_an_eviction_that_left_a_trace_tells_that_the_last_save_was_not_stored(models: None) -> None:
    """`LockLost`, although the item has changed so often that it tells nothing."""
    Beside("a").save()

    def next_holder() -> None:
        lose_lock(Beside, "a")
        for _ in range(2):
            with Beside.edit("a") as item:
                item.n += 1

    with lost(next_holder), pytest.raises(LockLost), Beside.edit("a", heartbeat=False) as item:
        item.n = 50
    assert Beside.get("a").n == 2


def test_a_write_that_is_stored_under_its_own_id_was_applied_whatever_became_of_the_lock(clock: VirtualClock) -> None:
    """The entry is gone by then, and the id in the item tells."""

    def next_holder() -> None:
        lose_lock(Inside, "a")
        forget_tokens(clock)

    Inside("a").save()
    with pytest.raises(LockLost), Inside.locked("a", heartbeat=False) as lock:
        lock.item.n = 5
        with (
            lost(next_holder, is_applied=True),
            TransactWrite(connection=Inside._get_connection().connection) as tx,
        ):
            tx.save(lock.item)
    assert Inside.get("a").n == 5


def test_a_row_that_was_not_refused_tells_that_nothing_was_written(models: None) -> None:
    """The lock is still held, so the number of the write would have refused a second copy."""
    Beside("a").save()
    with Beside.locked("a"):
        item = Beside.get("a")
        item.n = 50
        with lost(lambda: add(Beside, "a", times=2)), pytest.raises(StaleVersion):
            item.save()


def test_a_lock_that_was_lost_is_told_beside_a_row_that_was_not_refused(models: None) -> None:
    """`LockLost`: the version of the other item would have refused a second copy."""
    Inside("a").save()
    Versioned("b").save()
    with pytest.raises(LockLost), Inside.locked("a", heartbeat=False) as lock:
        other = Versioned.get("b")
        lock.item.n = other.n = 5
        with (
            lost(lambda: lose_lock(Inside, "a")),
            pytest.raises(LockLost),
            TransactWrite(connection=Inside._get_connection().connection) as tx,
        ):
            tx.save(lock.item)
            tx.save(other)
    assert (Inside.get("a").n, Versioned.get("b").n) == (0, 0)


@pytest.mark.parametrize("times", [1, 2])
def test_a_check_that_is_refused_says_the_same_however_often_the_item_was_written(models: None, times: int) -> None:
    """A check writes nothing, so no image of its item tells that it was applied."""
    Versioned("a").save()
    Versioned("b").save()
    read, saved = Versioned.get("a"), Versioned.get("b")
    saved.n = 3

    with lost(lambda: add(Versioned, "a", times)), pytest.raises(StaleVersion):
        check_and_save(read, saved)
    assert Versioned.get("b").n == 0


def test_a_taken_value_is_told_once_the_dead_holder_is_evicted(clock: VirtualClock) -> None:
    """The eviction clears the item's own row; the row of the value says what is left in the way."""
    Named("a", name="x").save()
    Named("b", name="y").save()
    abandoned(Named.locked("a"))
    clock.jump(100_000)
    item = Named.get("a")
    item.name = "y"
    with pytest.raises(NotUnique):
        item.save()


def test_a_token_that_the_caller_has_used_before_does_not_tell_of_another_call(clock: VirtualClock) -> None:
    """Both calls have the same write ids; the second, of an old copy, is refused, and not taken for the first."""
    Versioned("a").save()
    first, second = Versioned.get("a"), Versioned.get("a")
    first.n, second.n = 1, 5

    def write(item: Any) -> None:
        with TransactWrite("chosen by the caller", connection=Versioned._get_connection().connection) as tx:
            tx.save(item)

    write(first)
    forget_tokens(clock)
    with pytest.raises(StaleVersion):
        write(second)
    assert Versioned.get("a").n == 1


def test_a_check_that_is_met_again_does_not_tell_that_nothing_was_written(clock: VirtualClock) -> None:
    """The first copy was applied, and the item has changed so often that only the check is as it was."""

    def others() -> None:
        add(Versioned, "b", times=2)
        forget_tokens(clock)

    Versioned("a").save()
    Versioned("b").save()
    read, saved = Versioned.get("a"), Versioned.get("b")
    saved.n = 3

    with lost(others, is_applied=True), pytest.raises(OutcomeUnknown):
        check_and_save(read, saved)
    assert Versioned.get("b").n == 5
