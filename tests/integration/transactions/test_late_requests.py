"""Requests of a transaction that arrive late or twice: marks that only a sweep finds, and changes that count once."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from pynamodb.exceptions import TransactWriteError

from pynamo_locking import transaction
from pynamo_locking.exceptions import Conflict, ItemLocked, OutcomeUnknown
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.deeds import deeds, die_at
from tests.support.parties import in_thread
from tests.support.transaction_helpers import committed_balances, decide, doing, renew
from tests.support.transaction_models import (
    Purse,
    Transactions,
    dying_after,
    dying_where,
    empty,
    ends_s,
    existing,
    marked_rows,
    purses,
    rows_of,
    stored,
    survive,
)
from tests.support.wire import ALL, Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("few")]


#: One in a batch, and as many alone as a mark is sent before the transaction gives up.
MOST_COPIES = 9

#: So many attempts botocore makes of a request.
ATTEMPTS = 4

#: Comes first among the items that are marked; the stale one comes last.
LATE, STALE = "a", "z"


@pytest.fixture(params=["without a lock document", "with a lock document", "absent"])
def late(request: pytest.FixtureRequest) -> str:
    """What is stored where the late mark arrives."""
    kind: str = request.param
    return kind


def doomed(late: str, workers: int = 1) -> Transaction:
    """A long transaction that marks some items and then finds one that was changed: it has to be aborted."""
    purses(3)
    tx = Transaction(workers=workers)
    for key in ("p0", "p1", "p2"):
        tx.touch(tx.get(Purse, key))
    if late == "absent":
        for key in (LATE, "b", "c", STALE):  # of the placeholders three are created at once
            tx.save(Purse(key))
    else:
        _touch_both(tx, late)
    for i in range(3):
        tx.save(Purse(f"n{i}", note="larger, so the decision writes it"))
    Purse(STALE, balance=100).save(add_version_condition=False)
    return tx


def _touch_both(tx: Transaction, late: str) -> None:
    for key in (LATE, STALE):
        Purse(key, balance=100).save()
    if late == "with a lock document":
        Purse.locked(LATE).acquire().release()
    for key in (LATE, STALE):
        tx.touch(tx.get(Purse, key))


def assert_nothing_is_late() -> None:
    """A placeholder is refused once the header is decided, so no sweep has to look for one."""
    assert marked_rows(Purse) == []
    assert stored(Purse, LATE) is None
    assert Transactions.sweep(dry_run=True).examined == 0


def assert_swept() -> None:
    """A sweep takes off what is left, placeholders as well; no reader or writer has met it before."""
    assert LATE in {row["purse_id"]["S"] for row in marked_rows(Purse)}
    planned, report = Transactions.sweep(dry_run=True), Transactions.sweep()
    assert planned == report, "a dry run does not count what a sweep then finds"
    assert (report.examined, report.aborted, report.failed) == (1, 1, {})
    assert marked_rows(Purse) == []
    assert {row["purse_id"]["S"] for row in rows_of(Purse) if "balance" not in row} == set()


# The process lives


@contextmanager
def late_marks(copies: int) -> Iterator[Callable[[], None]]:
    """Keep so many copies of the mark, with all attempts of botocore; yields what lets them arrive."""
    kept: list[Send] = []

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if len(kept) < copies and f"mark {LATE}" in deeds(operation, kwargs):
            kept.append(send)
            raise ConnectionClosedError(endpoint_url="memory")
        return send()

    def arrive() -> None:
        for send in kept:
            with suppress(ClientError):
                send()

    with intercepted(answer):
        yield arrive


@pytest.mark.parametrize("copies", [1, 2, MOST_COPIES])
def test_a_second_copy_of_a_mark_is_swept(concurrent_engine: Engine, late: str, copies: int) -> None:
    """The mark was sent again and applied, or given up; the copies that were not answered arrive after the abort."""
    tx = doomed(late)
    with VirtualClock(), late_marks(copies) as arrive, pytest.raises(Conflict):
        tx.commit()
    assert marked_rows(Purse) == []
    arrive()
    if late == "absent":
        assert_nothing_is_late()
    elif marked_rows(Purse):
        assert_swept()
    else:  # the first mark has left a document, or its token is known: the copies were refused
        assert copies < MOST_COPIES
        assert late != "with a lock document"


@pytest.mark.parametrize("answers", [(), ("ThrottlingException",)], ids=["lost", "lost, then throttled"])
def test_a_definite_answer_leaves_nothing_to_sweep(clock: VirtualClock, answers: tuple[str, ...], late: str) -> None:
    """A lost answer to a mark that was applied, once it is seen, and refusals are answers: no sweep has to look."""
    tx, lost = doomed(late), doing(f"mark {LATE}", times=ATTEMPTS)
    later = doing(f"mark {LATE}", nth=ATTEMPTS + 1)
    with later.answer(*answers), lost.lose_response() as hits, pytest.raises(Conflict):
        tx.commit()
    assert hits.hits == ATTEMPTS
    assert Transactions.sweep(dry_run=True).examined == 0


@pytest.mark.parametrize("lost", [0, ATTEMPTS], ids=["at once", "after attempts without an answer"])
def test_a_mark_that_is_forbidden(clock: VirtualClock, late: str, lost: int) -> None:
    """The refusal is told, and not that other transactions were in the way: to run it again would not help.

    If DynamoDB has refused every copy for good, none can arrive.
    """
    tx, forbidden = doomed(late), doing(f"mark {LATE}").answer("AccessDeniedException", always=True)
    with doing(f"mark {LATE}", times=lost).lose_request(), forbidden as sent, pytest.raises(TransactWriteError) as told:
        tx.commit()
    assert sent
    assert not isinstance(told.value, Conflict)
    assert told.value.cause_response_code == "AccessDeniedException"
    assert lost or Transactions.sweep(dry_run=True).examined == 0


# A second copy of a whole transaction


@pytest.mark.parametrize("others", [0, 1], ids=["at once", "after another write"])
@pytest.mark.parametrize("action", [Purse.balance.add(5), Purse.balance.set(Purse.balance + 5)], ids=["add", "set"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_second_copy_of_an_addition_is_not_applied(
    concurrent_engine: Engine, count: int, action: Any, others: int
) -> None:
    """What a proxy repeats unseen by the process counts once, also where one item is all of the transaction."""

    def write() -> None:
        for _ in range(others):
            Purse("p0").update([Purse.note.set("another")], add_version_condition=False)

    items = purses(count)
    with on("TransactWriteItems").double(between=write) as doubled, transaction() as tx:
        for item in items:
            tx.update(item, [action], add_version_condition=False)
    assert doubled.hits == 1
    assert [Purse.get(item.purse_id).balance for item in items] == [105] * count


# The process is dead


def test_a_late_mark_of_the_dead_is_swept_for_a_day(
    clock: VirtualClock, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process knows of the mark that is on its way: sweeps look for it again until it cannot arrive any more."""
    tx = doomed(late)
    with late_marks(1) as arrive, dying_next(monkeypatch):
        in_thread(lambda: survive(tx.commit))
    assert Transactions.sweep().aborted == 1
    assert Transactions.sweep().examined == 0
    arrive()
    if late == "absent":
        assert marked_rows(Purse) == []
        assert stored(Purse, LATE) is None
        return
    assert_swept()
    clock.jump(23 * 3600)
    assert Transactions.recover(tx.id) == "aborted"
    if late != "without a lock document":  # one is there now, so the copy would be refused
        arrive()
        assert_swept()
    clock.jump(2 * 3600)
    assert Transactions.sweep().examined == 0
    assert Transactions.sweep(dry_run=True).examined == 0
    [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
    assert ends_s(header) <= clock.time_ms() / 1000 + 24 * 3600


def dying_next(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The process dies at the request that follows the late mark."""
    met = list[bool]()

    def is_last(_: int, operation: str, kwargs: Any) -> bool:
        met.append(f"mark {LATE}" in deeds(operation, kwargs) or True in met[-1:])
        return met[-2:] == [True, True]

    return dying_where(monkeypatch, is_last, is_answer_lost=False)


def test_a_death_during_an_abort_leaves_nothing_that_a_sweep_misses(
    clock: VirtualClock, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after each request of a transaction that is aborted, and of a recovery that completes it."""

    def abort() -> None:
        with suppress(Conflict):
            survive(tx.commit)

    died, done = 0, set[str]()
    for k in itertools.count():
        empty(Purse, Transactions)
        tx = doomed(late)
        with dying_after(monkeypatch, k) as process:
            in_thread(abort)
        done |= {deed.partition(" ")[0] for each in process.sent for deed in deeds(*each)}
        died += _recovered_with_cuts(tx, monkeypatch)
        Transactions.sweep()
        assert marked_rows(Purse) == [], k
        assert stored(Purse, "n0") is None
        if late == "absent":
            assert stored(Purse, LATE) is None
        if not process.is_dead:
            break
    assert died > 10
    assert done >= {"header", "row", "mark", "abort", "drop", "clean"}


def _recovered_with_cuts(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> int:
    """Complete it again and again, dying one request later each time, until one gets through; return how many died."""
    for k in range(99):
        with dying_after(monkeypatch, k) as process:
            in_thread(lambda: survive(lambda: Transactions.recover(tx.id, force=True)))
        if not process.is_dead:
            return k
    raise AssertionError("it does not come to its end")


# A second event between look and abort


def _recovered(tx_id: str) -> str | None:
    return Transactions.recover(tx_id)


def _swept(_: str) -> int:
    return Transactions.sweep().pending


def _written(_: str) -> None:
    Purse("p3").update([Purse.balance.set(1)], add_version_condition=False)


@pytest.mark.parametrize(("act", "says", "aborts"), [(_swept, 1, 1), (_recovered, "aborted", 2), (_written, None, 2)])
def test_who_renews_between_look_and_abort_lives(
    clock: VirtualClock, act: Callable[[str], Any], says: Any, aborts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was silent for a lease renews just before it would be aborted: it gets another lease."""
    purses(6)
    tx, states = Transaction(workers=1), list[str | None]()
    for i in range(6):
        tx.touch(tx.get(Purse, f"p{i}"))
    die_at(monkeypatch, "decision", tx.commit)
    assert "p3" in {row["purse_id"]["S"] for row in marked_rows(Purse)}

    def is_abort(body: Any) -> bool:
        return ":by" in body.get("ExpressionAttributeValues", {})

    def look() -> None:
        if not states:
            renew(tx.id, 1, clock)
        states.append(Transactions.outcome(tx.id))

    with on("UpdateItem", where=is_abort, times=ALL).before(look):
        assert act(tx.id) == says
    assert states == ["pending"] * aborts
    assert Transactions.outcome(tx.id) == ("pending" if act is _swept else "aborted")


# The mark of another transaction


def _of_all(balance: int) -> Transaction:
    tx = Transaction(workers=1, lease=1000)
    for i in range(6):
        item = tx.get(Purse, f"p{i}")
        item.balance = balance
        tx.save(item)
    return tx


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_recovery_leaves_the_marks_of_others_alone(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """The items of a dead transaction carry the marks of a later one, which is alive, when recover() completes it."""
    purses(6)
    for i in range(3):
        # Larger, so the same three are direct.
        Purse(f"p{i}").update([Purse.note.set("x" * 99)], add_version_condition=False)
    dead = _of_all(200)
    die_at(monkeypatch, "end" if is_committed else "decision", dead.commit)
    if not is_committed:
        decide(dead.id, "aborted")
        assert committed_balances(*(f"p{i}" for i in range(6))) == [100] * 6
    assert marked_rows(Purse) == []
    assert Transactions.outcome(dead.id) == ("committed" if is_committed else "aborted")
    alive = _of_all(300)
    die_at(monkeypatch, "decision", alive.commit)
    marked = marked_rows(Purse)
    assert sorted(row["purse_id"]["S"] for row in marked) == ["p3", "p4", "p5"]
    assert Transactions.recover(dead.id) == ("finished" if is_committed else "aborted")
    assert marked_rows(Purse) == marked
    assert Transactions.outcome(alive.id) == "pending"
    assert Transactions.recover(alive.id, force=True) == "aborted"
    assert {row["balance"]["N"] for row in rows_of(Purse)} == {"200" if is_committed else "100"}


# A doubt, and then a second event


def test_a_mark_in_doubt_that_a_lock_refuses_is_swept(clock: VirtualClock) -> None:
    """No answer to a mark; then a lock refuses its second copy, which says nothing of the first one."""
    tx, held, copies = doomed("with a lock document"), Purse.locked(LATE), itertools.count()

    def acquire() -> None:
        if next(copies) == 1:
            in_thread(held.acquire)

    locking, delaying = doing(f"mark {LATE}", times=ALL).before(acquire), doing(f"mark {LATE}").delay()
    with locking, delaying as late, pytest.raises(ItemLocked):
        tx.commit()
    held.release()
    late[0]()
    assert_swept()


def test_a_transaction_in_doubt_that_is_refused_for_now_is_applied_once(clock: VirtualClock) -> None:
    """Applied without an answer, then refused for another transaction's sake: the third copy is the same one."""
    items, refused = purses(2), ("TransactionCanceledException", "TransactionConflict", "")
    commits = on("TransactWriteItems", times=ATTEMPTS).lose_response()
    later = on("TransactWriteItems", nth=ATTEMPTS + 1).answer(refused)
    with later, commits, count_requests() as counted, transaction() as tx:
        for item in items:
            tx.update(item, [Purse.balance.add(5)], add_version_condition=False)
    tokens = [body["ClientRequestToken"] for operation, body in counted.bodies if operation == "TransactWriteItems"]
    assert tokens == tokens[:1] * (ATTEMPTS + 2)
    assert [Purse.get(item.purse_id).balance for item in items] == [105, 105]


def test_a_transaction_in_doubt_that_meets_a_mark_is_unknown(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not answered, then kept out by another transaction until `wait` is over: the first copy may still arrive."""
    purses(6)
    other = _of_all(300)
    clock.jump(1)  # the older one would push the younger one aside
    tx, kept = Transaction(wait=1), list[Send]()
    for i in (3, 4):
        tx.touch(tx.get(Purse, f"p{i}"))

    def answer(send: Send, operation: str, _: Any) -> Any:
        if operation == "TransactWriteItems" and not kept:
            kept.append(send)
            die_at(monkeypatch, "decision", other.commit)
            raise ConnectionClosedError(endpoint_url="memory")
        return send()

    with intercepted(answer), pytest.raises(OutcomeUnknown):
        tx.commit()
    assert Transactions.recover(other.id, force=True) == "aborted"
    kept[0]()
    assert Purse.get("p3").version == 2


def test_a_transaction_in_doubt_that_finds_its_own_key_is_the_first(clock: VirtualClock) -> None:
    """No answer at all, and then its idempotency key is there, with its own id: it was committed now."""
    [item] = purses(1)
    tx, calls = Transaction(idempotency_key="once"), list[str]()
    tx.after_commit(lambda: calls.append("committed"))
    item.balance = 7
    tx.save(item)
    with on("TransactWriteItems", times=ALL).lose_response():
        tx.commit()
    assert not tx.is_repeated
    assert calls == ["committed"]
    item.save()
    assert Purse.get("p0").version == 3


def test_a_lock_that_may_be_deleted_is_not_lost(clock: VirtualClock) -> None:
    """No answer to a transaction that deletes a locked item; then the lock is found to be gone: that is no loss."""
    purses(2)
    with Purse.locked("p0") as lock:
        tx = Transaction()
        tx.delete(tx.get(Purse, "p0", for_update=True))
        tx.touch(tx.get(Purse, "p1"))
        with on("TransactWriteItems", times=ALL).lose_response(), pytest.raises(OutcomeUnknown):
            tx.commit()
        assert stored(Purse, "p0") is None
        assert not lock.lost.is_set()


def test_a_late_renewal_takes_no_newer_one_back(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that was not answered arrives after the next one: a watcher must not take that for silence."""
    purses(6)
    tx = Transaction(workers=1)
    for i in range(6):
        tx.touch(tx.get(Purse, f"p{i}"))
    slow = on("PutItem", "UpdateItem", "BatchExecuteStatement", times=ALL).before(lambda: clock.sleep(5))
    with slow, doing("renew").delay() as late:
        die_at(monkeypatch, "decision", tx.commit)
    newer = existing(Transactions, tx.id)
    assert int(newer["beat"]["N"]) > 1
    for arrive in late:
        arrive()
    assert existing(Transactions, tx.id) == newer
