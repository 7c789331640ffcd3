"""Transactions beside others that want the same items: nothing is lost, and one that fails hears why."""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import GetError, TransactWriteError

from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockingError,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import runtime
from tests.support.deeds import die_at
from tests.support.parties import held_elsewhere, in_parallel, in_thread
from tests.support.transaction_helpers import add_fillers, balance
from tests.support.transaction_models import (
    Entry,
    Purse,
    Robot,
    RowLocks,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    stored,
)
from tests.support.wire import Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.core


# Others, who change an item between the read and the commit


def party_save(key: str) -> None:
    item = Purse.get(key, consistent_read=True)
    item.balance += 1
    item.save()


def party_update(key: str) -> None:
    Purse.get(key, consistent_read=True).update([Purse.balance.add(1)])


def party_blind(key: str) -> None:
    Purse(key).update([Purse.balance.add(1)], add_version_condition=False)


def party_modify(key: str) -> None:
    def change(item: Purse) -> None:
        item.balance += 1

    Purse.modify(key, change=change)


def party_transact(key: str) -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        write.update(Purse.get(key, consistent_read=True), [Purse.balance.add(1)])


def party_locked(key: str) -> None:
    with Purse.locked(key) as lock:
        lock.item.update([Purse.balance.add(1)])


def party_edit(key: str) -> None:
    with Purse.edit(key) as item:
        item.balance += 1


def party_batch(key: str) -> None:
    with Purse.guarded_batch() as batch:
        item = Purse.get(key, consistent_read=True)
        item.balance += 1
        batch.save(item)


def party_transaction(key: str) -> None:
    with transaction() as tx:
        tx.update(tx.get(Purse, key), [Purse.balance.add(1)])


def party_long_transaction(key: str) -> None:
    with transaction() as tx:
        tx.update(tx.get(Purse, key), [Purse.balance.add(1)])
        add_fillers(tx, "long", "other")


PARTIES = [
    party_save,
    party_update,
    party_blind,
    party_modify,
    party_transact,
    party_locked,
    party_edit,
    party_batch,
    party_transaction,
    party_long_transaction,
]
#: Each of them, on one of the paths.
EACH = pytest.mark.parametrize(
    ("party", "path"), [*zip(PARTIES, itertools.cycle(("long", "single", "native")))], indirect=["path"]
)


@EACH
def test_what_was_read_has_changed(cheap: Engine, party: Callable[[str], None], path: str) -> None:
    """A change of an item after it was read makes the commit fail: written, or only read; nothing is written."""
    purses(1)
    for expected, writes in ((101, True), (102, False)):
        with pytest.raises(StaleVersion) as caught, transaction() as tx:
            item = tx.get(Purse, "p0")
            in_thread(lambda: party("p0"))
            if writes:
                tx.update(item, [Purse.balance.add(1000)])
            else:
                tx.save(Purse("because"))
            add_fillers(tx, path)
        assert caught.value.current.balance == expected
        assert balance("p0") == expected
        assert stored(Purse, "because") is None
        assert stored(Purse, "filler0") is None
    assert marked_rows(Purse) == []


@EACH
def test_others_notice_what_a_transaction_has_written(cheap: Engine, party: Callable[[str], None], path: str) -> None:
    """A copy that was read before a transaction wrote is refused afterwards; a fresh write counts on top."""
    purses(1)
    old = Purse.get("p0", consistent_read=True)
    with transaction() as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1000)])
        add_fillers(tx, path)
    old.balance += 1
    for write in (old.save, old.delete):
        with pytest.raises(StaleVersion):
            write()
    in_thread(lambda: party("p0"))
    assert balance("p0") == 1101


def test_a_deleted_item_is_noticed(cheap: Engine, path: str) -> None:
    """An item that was deleted after it was read makes the commit fail, whatever the transaction does to it."""
    operations: list[Callable[[Transaction, Purse], None]] = [
        lambda tx, item: tx.save(item),
        lambda tx, item: tx.update(item, [Purse.balance.add(1)]),
        lambda tx, item: tx.delete(item),
        lambda tx, item: tx.touch(item),
        lambda tx, item: tx.check(item),
    ]
    for i, operation in enumerate(operations):
        Purse(f"a{i}").save()
        with pytest.raises(StaleVersion) as caught, transaction() as tx:
            item = tx.get(Purse, f"a{i}")
            Purse(f"a{i}").delete(add_version_condition=False)
            operation(tx, item)
            add_fillers(tx, path)
        assert caught.value.current is None
        assert stored(Purse, f"a{i}") is None


def test_a_recreated_item_is_noticed(cheap: Engine, path: str) -> None:
    """An item that was deleted and created again with the same values and version is another one."""
    purses(1)
    for writes in (True, False):
        with pytest.raises(Conflict), transaction() as tx:
            item = tx.get(Purse, "p0")
            Purse.get("p0", consistent_read=True).delete()
            purses(1)
            if writes:
                tx.save(item)
            else:
                tx.save(Purse("because"))
            add_fillers(tx, path)
        assert Purse.get("p0", consistent_read=True).version == 1
        assert stored(Purse, "because") is None


def test_an_absent_item_that_appears(cheap: Engine, path: str) -> None:
    """That an item does not exist is relied upon; one that came and went is absent again."""
    with pytest.raises(Conflict), transaction() as tx:
        assert tx.get_or_none(Purse, "a") is None
        in_thread(Purse("a").save)
        tx.save(Purse("because"))
        add_fillers(tx, path)
    assert stored(Purse, "because") is None
    with pytest.raises(Conflict), transaction() as tx:
        assert tx.get_or_none(Purse, "b") is None
        in_thread(Purse("b", balance=7).save)
        tx.save(Purse("b"))
        add_fillers(tx, path)
    assert Purse.get("b").balance == 7
    with transaction() as tx:
        assert tx.get_or_none(Purse, "c") is None
        Purse("c").save()
        Purse.get("c", consistent_read=True).delete()
        tx.save(Purse("because"))
        add_fillers(tx, path)
    assert stored(Purse, "because") is not None


# Two transactions


def overlapping(isolation: str, first_path: str, second_path: str) -> list[type[BaseException] | None]:
    """Each of two reads both items, and writes another one of them; the second commits inside the first."""
    results: list[type[BaseException] | None] = []

    def run(mine: str, path: str, name: str, between: Callable[[], None]) -> None:
        try:
            with transaction(isolation=isolation) as tx:
                total = sum(tx.get(Purse, key).balance for key in ("p0", "p1"))
                between()
                assert total == 200
                tx.update(tx.get(Purse, mine), [Purse.balance.add(-150)])
                add_fillers(tx, path, name)
            results.append(None)
        except Conflict as error:
            results.append(StaleVersion if isinstance(error, StaleVersion) else type(error))

    run("p0", first_path, "one", lambda: in_thread(lambda: run("p1", second_path, "two", lambda: None)))
    return results


def test_write_skew(cheap: Engine, path: str) -> None:
    """Two who read both items and write different ones: one fails when serializable, none with read_committed."""
    for second in ("single", "native", "long"):
        for isolation, results, left in (
            ("serializable", [None, StaleVersion], [100, -50]),
            ("read_committed", [None, None], [-50, -50]),
        ):
            for key in ("p0", "p1"):
                Purse(key, balance=100).save(add_version_condition=False)
            assert overlapping(isolation, path, second) == results, second
            assert [balance("p0"), balance("p1")] == left


def test_lost_update(cheap: Engine, path: str) -> None:
    """Two who write the same item: the second to commit fails, whatever the isolation."""
    purses(1)
    for isolation, second in itertools.product(("serializable", "read_committed"), ("single", "native", "long")):
        before = balance("p0")
        with pytest.raises(StaleVersion), transaction(isolation=isolation) as tx:
            item = tx.get(Purse, "p0")

            def other(isolation: str = isolation, second: str = second) -> None:
                with transaction(isolation=isolation) as tx:
                    tx.update(tx.get(Purse, "p0"), [Purse.balance.add(10)])
                    add_fillers(tx, second, "two")

            in_thread(other)
            item.balance += 1
            tx.save(item)
            add_fillers(tx, path, "one")
        assert balance("p0") == before + 10


def test_a_read_only_transaction_sees_one_moment(cheap: Engine, path: str) -> None:
    """A transfer between its reads makes a read-only transaction fail; without one it sees the right total."""
    purses(2)

    def transfer() -> None:
        with transaction() as tx:
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(-10)])
            tx.update(tx.get(Purse, "p1"), [Purse.balance.add(10)])
            add_fillers(tx, path)

    with pytest.raises(StaleVersion), transaction(read_only=True) as tx:
        first = tx.get(Purse, "p0").balance
        in_thread(transfer)
        assert first + tx.get(Purse, "p1").balance == 210  # no caller may act on this, and the commit says so
    with transaction(read_only=True) as tx:
        assert sum(tx.get(Purse, f"p{i}").balance for i in range(2)) == 200


def test_guarded_queries_exclude_phantoms(cheap: Engine) -> None:
    """Two who count a partition and add to it cannot both commit."""
    cheap.bind(Entry)

    def add(number: int, between: Callable[[], None] = lambda: None) -> None:
        with transaction() as tx:
            count = len(tx.query(Entry, "b"))
            between()
            tx.save(Entry("b", number, amount=count))

    add(1)
    with pytest.raises(StaleVersion):
        add(2, lambda: in_thread(lambda: add(3)))
    assert [(int(item.number), int(item.amount)) for item in Entry.query("b")] == [(1, 0), (3, 1)]


# Locks of others


@pytest.mark.parametrize("model", [Purse, Robot])
def test_items_that_others_have_locked(cheap: Engine, model: type[Any], path: str) -> None:
    """A lock in the item keeps transactions out (ItemLocked), and nothing is written; one in another row does not."""
    cheap.bind(Robot, RowLocks)
    model("a").save()
    with held_elsewhere(model.locked("a")):
        expectation = pytest.raises(ItemLocked) if model is Purse else nullcontext()
        with expectation, transaction(wait=0.2) as tx:
            tx.touch(tx.get(model, "a"))
            add_fillers(tx, path)
        assert model is Robot or stored(Purse, "filler0") is None
    assert model.get("a", consistent_read=True).version == (1 if model is Purse else 2)
    assert marked_rows(Purse) == []


def test_a_lock_that_is_only_read(cheap: Engine, path: str) -> None:
    """An item that others have locked may be read and checked."""
    purses(1)
    with held_elsewhere(Purse.locked("p0")), transaction() as tx:
        tx.get(Purse, "p0")
        tx.save(Purse("because"))
        add_fillers(tx, path)
    assert stored(Purse, "because") is not None


def test_the_holder_of_a_lock_writes_in_a_transaction(cheap: Engine, path: str) -> None:
    """Inside its own lock a transaction writes the item, in the item or in another row; and not once it is lost."""
    cheap.bind(Robot, RowLocks)
    for model in (Purse, Robot):
        model("a").save()
        with model.locked("a") as lock:
            with transaction() as tx:
                tx.touch(lock.item)
                add_fillers(tx, path)
            with transaction() as tx:
                tx.touch(tx.get(model, "a"))
                add_fillers(tx, path)
        assert model.get("a", consistent_read=True).version == 3
        with pytest.raises(LockingError), model.locked("a") as lock:
            ticket = model.lock_state("a").entries[0].ticket
            with transaction() as tx:
                tx.touch(tx.get(model, "a"))
                model.break_lock("a", ticket=ticket)
                add_fillers(tx, path)
        assert model.get("a", consistent_read=True).version == 3
        assert model.lock_state("a").entries == ()


def test_a_long_commit_waits_for_a_lock(few: None) -> None:
    """A long transaction waits for the holder of an item's lock before its intent, and goes on when it is free."""
    purses(6)
    with VirtualClock() as clock:
        another = clock.another_process()

        def release() -> None:
            with another:
                lock.release()

        with on(where=lambda _: clock.elapsed > 0).before(release) as waited, transaction() as tx:
            for i in range(6):
                tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1)])
            with another:
                lock = Purse.locked("p3").acquire()
    assert waited.hits
    assert {item.balance for item in Purse.scan(consistent_read=True)} == {101}


# In the middle of a commit


@pytest.mark.parametrize(
    ("party", "key", "statements"),
    [
        (party_blind, "p5", 25),
        (party_locked, "p5", 1),
        (party_locked, "p0", 25),
        (party_transaction, "p5", 25),
        (party_long_transaction, "p0", 1),
        (party_long_transaction, "p5", 25),
    ],
)
def test_another_party_comes_between_any_two_requests(
    memory: Engine,
    monkeypatch: pytest.MonkeyPatch,
    party: Callable[[str], None],
    key: str,
    statements: int,
) -> None:
    """Whenever another party writes during a long commit, both are applied, or the commit is not at all."""
    make_long_from(monkeypatch, statements=statements)
    results = set()
    for at in itertools.count():
        for i in range(6):
            Purse(f"p{i}", balance=100).save(add_version_condition=False)
        met: list[None] = []
        results.add(commit_with(at, lambda met=met: (met.append(None), again_if_stale(party, key))))  # type: ignore[misc]
        if not met:  # all requests were sent before
            break
        is_committed = Purse.get("p1", consistent_read=True).balance == 1100
        expected = {f"p{i}": 1100 if is_committed else 100 for i in range(6)}
        expected[key] += 1
        assert {f"p{i}": Purse.get(f"p{i}", consistent_read=True).balance for i in range(6)} == expected, at
        assert marked_rows(Purse) == []
    assert at >= 6  # header, participants, marks, the decision, finishes, the header
    assert "committed" in results
    assert results & {"StaleVersion", "TransactionAborted"}


def again_if_stale(party: Callable[[str], None], key: str) -> None:
    for _ in range(3):
        try:
            return party(key)
        except StaleVersion:
            continue
    raise AssertionError("three times stale")


def in_other_thread(call: Callable[[], None]) -> None:
    """As `in_thread`, and wait by the clock of the package: time passes while the other one waits."""
    done, errors = runtime.event(), list[BaseException]()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()
    thread.join()
    if errors:
        raise errors[0]


def commit_with(at: int, meanwhile: Callable[[], None]) -> str:
    """Commit a long transaction; before its request of that number another party does something."""
    tx = Transaction(workers=1)
    for i in range(6):
        tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1000)])
    count, busy = [0], [False]

    def answer(send: Send, _: str, __: Any) -> Any:
        if not busy[0]:
            count[0] += 1
            if count[0] == at + 1:
                busy[0] = True
                in_other_thread(meanwhile)
                busy[0] = False
        return send()

    with VirtualClock(), intercepted(answer):
        try:
            tx.commit()
        except (StaleVersion, TransactionAborted) as error:
            return "StaleVersion" if isinstance(error, StaleVersion) else "TransactionAborted"
    return "committed"


# Many at once


@pytest.mark.parametrize("count", [2, 6], ids=["native", "long"])
def test_transfers_at_once_lose_nothing(concurrent_engine: Engine, count: int, few: None) -> None:
    """Threads that add to the same items by transactions and by plain updates: every addition counts, once."""
    purses(count)
    rounds = 4

    @transactional(attempts=50)
    def add(tx: Transaction, order: int) -> None:
        for i in range(count)[::order]:
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1)])

    def transact(order: int) -> None:
        for _ in range(rounds):
            add(order)

    def update() -> None:
        for i in range(rounds):
            while True:
                with suppress(ItemLocked):  # by a retry
                    Purse(f"p{i % count}").update([Purse.balance.add(10)], add_version_condition=False)
                    break

    in_parallel(lambda: transact(1), lambda: transact(-1), update)
    total = sum(item.balance for item in Purse.scan(consistent_read=True))
    assert total == count * 100 + 2 * rounds * count + rounds * 10
    assert marked_rows(Purse) == []


def test_totals_are_right_while_transfers_go_on(few: None) -> None:
    """Read-only transactions beside transfers always see the same total."""
    purses(6)
    totals: list[int] = []

    @transactional(attempts=100)
    def move(tx: Transaction, by: int) -> None:
        for i in range(6):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(by if i % 2 else -by)])

    @transactional(attempts=100, read_only=True)
    def total(tx: Transaction) -> int:
        return int(sum(tx.get(Purse, f"p{i}").balance for i in range(6)))

    in_parallel(lambda: (move(5), move(7)), lambda: totals.extend(total() for _ in range(4)))
    assert set(totals) == {600}


# Reads that a commit makes


@pytest.mark.parametrize("operation", ["BatchGetItem", "TransactGetItems"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [("ProvisionedThroughputExceededException", TransactionConflict), ("AccessDeniedException", TransactWriteError)],
)
def test_a_read_of_a_commit_fails_as_the_commit_does(
    operation: str, code: str, kind: type[Exception], few: None
) -> None:
    """Throttled reads make it a TransactionConflict, which can be tried again; a forbidden one a TransactWriteError."""
    purses(3)
    tx = Transaction(workers=1)
    for i in range(3):
        tx.get(Purse, f"p{i}")  # validated before the decision
    for i in range(5):
        tx.save(Purse(f"n{i}"), add_version_condition=False)  # read, to be marked

    with on(operation).answer(code, always=True), VirtualClock(), pytest.raises(kind) as caught:
        tx.commit()
    assert isinstance(caught.value, TransactWriteError)
    assert not isinstance(caught.value, GetError)
    assert caught.value.cause_response_code == code
    assert sorted(row["purse_id"]["S"] for row in rows_of(Purse)) == ["p0", "p1", "p2"]


def test_a_header_that_is_refused_is_no_abort(few: None) -> None:
    """What DynamoDB forbids is told, once: to run the transaction again would not help."""
    runs = list[None]()

    @transactional(wait=1)
    def create(tx: Transaction) -> None:
        runs.append(None)
        for i in range(5):
            tx.save(Purse(f"n{i}"))

    denied = "AccessDeniedException"
    with on("PutItem").answer(denied, always=True), pytest.raises(LockingError, match=denied) as caught:
        create()
    assert not isinstance(caught.value, Conflict)
    assert (len(runs), rows_of(Purse)) == (1, [])


def test_an_item_that_a_commit_has_to_read_is_kept_by_another(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for; then the commit is a TransactionConflict, as everywhere."""
    purses(6)
    with VirtualClock() as clock:
        holder = Transaction(workers=1, lease=100)
        clock.sleep(1)  # the holder is older, so that it is not wounded
        for i in range(6):
            holder.touch(holder.get(Purse, f"p{i}"))
        die_at(monkeypatch, "decision", holder.commit)
        [key] = [row["purse_id"]["S"] for row in marked_rows(Purse)][:1]
        tx = Transaction(wait=1, workers=1)
        tx.touch(Purse(key), add_version_condition=False)
        for i in range(5):
            tx.save(Purse(f"n{i}", note="larger"))
        with pytest.raises(TransactionConflict, match="safe") as caught:
            tx.commit()
    assert isinstance(caught.value, TransactWriteError)


# The second attempt begins with what the refusal has shown


def test_the_second_attempt_reads_nothing_again(concurrent_engine: Engine) -> None:
    """The refusal brings the item that has changed, and shows that the other has not. With wait=0 no lock is taken."""
    purses(2)
    others = [partial(party_save, "p0")]

    @transactional(wait=0)
    def move(tx: Transaction) -> list[int]:
        source, target = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        if others:
            in_thread(others.pop())
        source.balance -= 10
        target.balance += 10
        tx.save(source)
        tx.save(target)
        return [source.balance, target.balance]

    before = balance("p0") + balance("p1")
    with count_requests() as requests:
        moved = move()
    assert [operation for operation, _ in requests.bodies] == [
        *["GetItem"] * 2,
        "GetItem",  # of the other party
        "UpdateItem",
        *["TransactWriteItems"] * 2,
    ]
    assert moved == [balance("p0"), balance("p1")]
    assert sum(moved) == before + 1


def test_later_attempts_read_again(memory: Engine) -> None:
    """What a refusal has shown is not new any more, after a pause."""
    purses(2)
    begun: list[int] = []

    @transactional(wait=0)
    def move(tx: Transaction) -> None:
        source, target = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        begun.append(source.balance)
        if len(begun) < 4:
            in_thread(partial(party_save, "p0"))
        for item in (source, target):
            item.balance += 1
            tx.save(item)

    with VirtualClock(), count_requests() as requests:
        move()
    assert begun == [begun[0] + i for i in range(4)]
    reads = [body["Key"]["purse_id"]["S"] for operation, body in requests.bodies if operation == "GetItem"]
    others = ["p0"]  # of the other party
    assert reads == ["p0", "p1", *others, *others, "p0", "p1", *others, "p0", "p1"]


def test_an_item_whose_version_was_not_checked_is_read_again(memory: Engine) -> None:
    """That its condition held does not show what it was."""
    purses(2)
    begun: list[int] = []

    @transactional(isolation="read_committed")
    def move(tx: Transaction) -> None:
        source, target = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        begun.append(source.balance)
        if len(begun) == 1:
            in_thread(partial(party_save, "p0"))
            in_thread(partial(party_save, "p1"))
        tx.update(source, [Purse.balance.add(10)], add_version_condition=False)
        target.balance += 1
        tx.save(target)

    with count_requests() as requests:
        move()
    assert begun == [begun[0], begun[0] + 1]
    assert requests.by_operation["TransactWriteItems"] == 2
    assert requests.by_operation["GetItem"] == 5  # 2, 2 of the other party, and "p0" again


def test_an_item_is_read_after_the_grant_of_a_lock_of_the_function(memory: Engine) -> None:
    """And is not taken from the refusal before: its last holder may have changed it."""
    purses(2)
    begun: list[int] = []

    @transactional(wait=0)
    def move(tx: Transaction) -> None:
        if begun:
            in_thread(partial(party_save, "p0"))  # since the refusal
        with Purse.locked("p1"):
            source = tx.get(Purse, "p0")
            begun.append(source.balance)
            if len(begun) == 1:
                in_thread(partial(party_save, "p0"))
            tx.check(Purse.get("p1", consistent_read=True))
            source.balance += 1
            tx.save(source)

    move()
    assert begun == [begun[0], begun[0] + 2]


@pytest.mark.parametrize("isolation", ["serializable", "read_committed"])
def test_what_a_refusal_has_shown_is_checked_by_the_next_commit(memory: Engine, isolation: str) -> None:
    """Under every isolation, since it may be older than the attempt: the second attempt only reads that item."""
    purses(2)
    begun: list[int] = []

    @transactional(isolation=isolation, wait=0)
    def copy(tx: Transaction) -> None:
        source, target = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        begun.append(source.balance)
        if len(begun) < 3:
            in_thread(partial(party_save, "p0"))
        target.balance = source.balance
        tx.save(target)
        if len(begun) == 1:
            source.balance += 0
            tx.save(source)

    with VirtualClock():
        copy()
    assert begun == [begun[0], begun[0] + 1, begun[0] + 2]
    assert balance("p1") == balance("p0") == begun[-1]


def test_an_item_with_its_lock_in_a_row_is_read_after_the_grant(memory: Engine) -> None:
    """Not taken from the refusal: it may have changed since."""
    memory.bind(RowLocks, Robot)
    Robot("r").save()
    Purse("p0").save()
    begun: list[int] = []

    def write() -> None:
        Robot.get("r").update([Robot.total.add(1)])

    @transactional()
    def move(tx: Transaction) -> None:
        is_first = not begun
        if not is_first:
            in_thread(write)  # since the refusal
        robot = tx.get(Robot, "r", for_update=not is_first)
        begun.append(robot.total)
        if is_first:
            in_thread(write)
        robot.total += 1
        tx.save(robot)
        tx.save(Purse("p1"))

    move()
    assert begun == [0, 2]


@pytest.mark.parametrize("is_together", [False, True])
def test_the_grant_of_a_lock_brings_the_item(concurrent_engine: Engine, is_together: bool) -> None:
    for purse in purses(2):
        with Purse.edit(purse.purse_id):  # so that it has a lock document
            pass
    with count_requests() as requests, transaction() as tx:
        if is_together:
            items = [item for item in tx.get_all(Purse, ["p0", "p1"], for_update=True) if item is not None]
        else:
            items = [tx.get(Purse, key, for_update=True) for key in ("p0", "p1")]
        for item in items:
            item.balance += 1
            tx.save(item)
    assert dict(requests.by_operation) == {"UpdateItem": 2, "TransactWriteItems": 1}


def test_a_lock_that_was_held_before_brings_nothing(memory: Engine) -> None:
    """The item may have been written under it."""
    purses(1)
    with Purse.locked("p0") as lock:
        lock.item.update([Purse.balance.add(5)])
        with transaction() as tx:
            item = tx.get(Purse, "p0", for_update=True)
            assert item.balance == balance("p0")
            item.balance += 1
            tx.save(item)
    assert balance("p0") == item.balance
