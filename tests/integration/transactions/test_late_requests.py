"""Requests of a transaction that arrive late or twice: marks that only a sweep finds, and changes that count once."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from pynamodb.exceptions import TransactWriteError

from pynamo_locking import LockSettings, transaction
from pynamo_locking._core.transactions import TransactionRecord, TransactionStatus
from pynamo_locking._io import transaction_record
from pynamo_locking._io.transaction_record import record_table_of
from pynamo_locking.exceptions import Conflict, ItemLocked, OutcomeUnknown
from pynamo_locking.testing import VirtualClock
from pynamo_locking.transactions import Transaction
from tests.support.deeds import deeds, die_at
from tests.support.parties import in_thread
from tests.support.proxy import Fault, Proxy, nth
from tests.support.transaction_models import (
    Purse,
    Transactions,
    dying_after,
    dying_where,
    empty,
    ends_s,
    marked_rows,
    purses,
    rows_of,
    stored,
    survive,
)
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking.testing import VirtualClock
    from tests.engines.engine import Engine
    from tests.support.proxy import Request

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("few")]


#: One in a batch, and as many alone as a mark is sent before the transaction gives up.
MOST_COPIES = 9

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


def _is_mark(operation: str, kwargs: Any) -> bool:
    return f"mark {LATE}" in deeds(operation, kwargs)


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
def through_proxy(engine: Engine) -> Iterator[Proxy]:
    """Send all requests from here on to a proxy before the engine; the engine's fixture puts all of it back."""
    if engine.host is None:
        pytest.skip("AWS is not reached through the proxy")
    with Proxy(engine.host) as proxy:
        for model in (Purse, Transactions):
            model.Meta.host = proxy.url
            model._connection = None
            model._get_connection().connection._local.session = engine._session
        yield proxy
        for model in (Purse, Transactions):
            model._connection.connection.client.close()
    assert proxy.errors == []


class _Slow:
    """The first copy of the mark arrives when it is asked for, and no other one until the transaction is aborted."""

    def __init__(self) -> None:
        self.has_come = self.is_aborted = False

    def __call__(self, request: Request) -> Fault | None:
        self.is_aborted = self.is_aborted or b'"aborted"' in request.body
        if self.is_aborted or not _is_mark(request.operation, json.loads(request.body)):
            return None
        is_first, self.has_come = not self.has_come, True
        return Fault.LATE if is_first else Fault.LOST_REQUEST


def test_a_late_mark_is_swept_on_real_engines(real_engine: Engine, late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is not answered in time, a transaction that is aborted meanwhile, and then the mark arrives."""
    monkeypatch.setattr(Purse.Meta, "lock_settings", LockSettings(lease=6, request_timeout=1, max_clock_skew=0.5))
    tx = doomed(late, workers=2)
    with through_proxy(real_engine) as proxy:
        proxy.plan = _Slow()
        with pytest.raises(Conflict):
            tx.commit()
        assert proxy.injected[Fault.LATE] == 1
        assert marked_rows(Purse) == []
        assert proxy.release() == [400 if late == "absent" else 200]
        if late == "absent":
            assert_nothing_is_late()
        else:
            assert_swept()


@contextmanager
def late_marks(copies: int) -> Iterator[Callable[[], None]]:
    """Keep so many copies of the mark, and let the next ones through; yields what lets them arrive."""
    kept: list[Send] = []

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if len(kept) < copies and _is_mark(operation, kwargs):
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
def test_a_second_copy_of_a_mark_is_swept(clock: VirtualClock, late: str, copies: int) -> None:
    """The mark was sent again and applied, or given up; the copies that were not answered arrive after the abort."""
    tx = doomed(late)
    with late_marks(copies) as arrive, pytest.raises(Conflict):
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


@pytest.mark.parametrize("times", [1, 2])
def test_a_definite_answer_leaves_nothing_to_sweep(clock: VirtualClock, times: int, late: str) -> None:
    """A lost answer to a mark that was applied, once it is seen, and refusals are answers: no sweep has to look."""
    tx, lost = doomed(late), list[str]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if _is_mark(operation, kwargs) and len(lost) < times:
            lost.append(operation)
            if len(lost) == 1:
                send()
                raise ConnectionClosedError(endpoint_url="memory")
            raise _refusal(operation)
        return send()

    with intercepted(answer), pytest.raises(Conflict):
        tx.commit()
    assert len(lost) == times
    assert Transactions.sweep(dry_run=True).examined == 0


@pytest.mark.parametrize("lost", [0, 1], ids=["at once", "after an attempt without an answer"])
def test_a_mark_that_is_forbidden(clock: VirtualClock, late: str, lost: int) -> None:
    """The refusal is told, and not that other transactions were in the way: to run it again would not help.

    If DynamoDB has refused every copy for good, none can arrive.
    """
    tx, sent = doomed(late), list[str]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if not _is_mark(operation, kwargs):
            return send()
        sent.append(operation)
        if len(sent) <= lost:
            raise ConnectionClosedError(endpoint_url="memory")
        raise _refusal(operation, "AccessDeniedException")

    with intercepted(answer), pytest.raises(TransactWriteError) as caught:
        tx.commit()
    assert len(sent) > lost
    assert not isinstance(caught.value, Conflict)
    assert caught.value.cause_response_code == "AccessDeniedException"
    assert lost or Transactions.sweep(dry_run=True).examined == 0


def _refusal(operation: str, code: str = "ThrottlingException") -> ClientError:
    error: Any = {"Error": {"Code": code, "Message": "for now"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return ClientError(error, operation)


# A second copy of a whole transaction


@pytest.mark.parametrize("others", [0, 1], ids=["at once", "after another write"])
@pytest.mark.parametrize("action", [Purse.balance.add(5), Purse.balance.set(Purse.balance + 5)], ids=["add", "set"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_second_copy_of_an_addition_is_not_applied(real_engine: Engine, count: int, action: Any, others: int) -> None:
    """What a proxy repeats unseen by the process counts once, also where one item is all of the transaction."""
    items = purses(count)
    with through_proxy(real_engine) as proxy:
        with transaction() as tx:
            for item in items:
                tx.update(item, [action], add_version_condition=False)
            proxy.plan = nth(0, Fault.DUPLICATED)
        for _ in range(others):
            Purse("p0").update([Purse.note.set("another")], add_version_condition=False)
        proxy.release()
        assert proxy.injected[Fault.DUPLICATED] == 1
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
        met.append(_is_mark(operation, kwargs) or True in met[-1:])
        return met[-2:] == [True, True]

    return dying_where(monkeypatch, is_last, is_answer_lost=False)


def _abort(tx: Transaction) -> None:
    with suppress(Conflict):
        survive(tx.commit)


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["not sent", "answer lost"])
def test_a_death_during_an_abort_leaves_nothing_that_a_sweep_misses(
    clock: VirtualClock, late: str, monkeypatch: pytest.MonkeyPatch, *, is_answer_lost: bool
) -> None:
    """Cut after each request of a transaction that is aborted, and of a recovery that completes it."""
    tx = doomed(late)
    with dying_after(monkeypatch, None) as process:
        _abort(tx)
    count, died = len(process.sent), 0
    done = {deed.partition(" ")[0] for each in process.sent for deed in deeds(*each)}
    assert done >= {"header", "row", "mark", "abort", "drop", "clean"}
    for k in range(count):
        empty(Purse, Transactions)
        tx = doomed(late)
        with dying_after(monkeypatch, k, is_answer_lost=is_answer_lost):
            in_thread(lambda tx=tx: _abort(tx))
        died += _recovered_with_cuts(tx, monkeypatch, is_answer_lost=is_answer_lost)
        Transactions.sweep()
        assert marked_rows(Purse) == [], k
        assert stored(Purse, "n0") is None
        if late == "absent":
            assert stored(Purse, LATE) is None
    assert died > 20


def _recovered_with_cuts(tx: Transaction, monkeypatch: pytest.MonkeyPatch, *, is_answer_lost: bool) -> int:
    """Complete it again and again, dying one request later each time, until one gets through; return how many died."""
    for k in range(99):
        with dying_after(monkeypatch, k, is_answer_lost=is_answer_lost) as process:
            in_thread(lambda: survive(lambda: Transactions.recover(tx.id, force=True)))
        if not process.is_dead:
            return k
    raise AssertionError("it does not come to its end")


# A second event between look and abort


def _swept(_: str) -> None:
    assert Transactions.sweep().pending == 1


def _recovered(tx_id: str) -> None:
    assert Transactions.recover(tx_id) == "aborted"


def _written(_: str) -> None:
    Purse("p3").update([Purse.balance.set(1)], add_version_condition=False)


@pytest.mark.parametrize(("act", "aborts"), [(_swept, 1), (_recovered, 2), (_written, 2)])
def test_who_renews_between_look_and_abort_lives(
    clock: VirtualClock, act: Callable[[str], None], aborts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was silent for a lease renews just before it would be aborted: it gets another lease."""
    purses(6)
    tx = Transaction(workers=1)
    for i in range(6):
        tx.touch(tx.get(Purse, f"p{i}"))
    die_at(monkeypatch, "decision", tx.commit)
    assert "p3" in {row["purse_id"]["S"] for row in marked_rows(Purse)}
    record_table, states = record_table_of(Transactions), list[str | None]()
    header = transaction_record.read(record_table, tx.id)
    assert header is not None

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation == "UpdateItem" and ":by" in kwargs.get("ExpressionAttributeValues", {}):
            if not states:
                transaction_record.renew(record_table, header, 1)
            states.append(Transactions.outcome(tx.id))
        return send()

    with intercepted(answer):
        act(tx.id)
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
        transaction_record.abort(record_table_of(Transactions), dead.id, "asked")
        assert {Purse.get(f"p{i}", isolation="read_committed").balance for i in range(6)} == {100}
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
    tx, held, kept = doomed("with a lock document"), Purse.locked(LATE), list[Send]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if not kept and _is_mark(operation, kwargs):
            kept.append(send)
            in_thread(held.acquire)
            raise ConnectionClosedError(endpoint_url="memory")
        return send()

    with intercepted(answer), pytest.raises(ItemLocked):
        tx.commit()
    held.release()
    kept[0]()
    assert_swept()


def _conflict(operation: str) -> ClientError:
    error: Any = {"Code": "TransactionCanceledException", "Message": "for now"}
    reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}]
    return ClientError({"Error": error, "CancellationReasons": reasons}, operation)  # type: ignore[typeddict-unknown-key]


def test_a_transaction_in_doubt_that_is_refused_for_now_is_applied_once(clock: VirtualClock) -> None:
    """Applied without an answer, then refused for another transaction's sake: the third copy is the same one."""
    items, tokens = purses(2), list[str]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation != "TransactWriteItems":
            return send()
        tokens.append(kwargs["ClientRequestToken"])
        if len(tokens) == 2:
            raise _conflict(operation)
        answered = send()
        if len(tokens) == 1:
            raise ConnectionClosedError(endpoint_url="memory")
        return answered

    with intercepted(answer), transaction() as tx:
        for item in items:
            tx.update(item, [Purse.balance.add(5)], add_version_condition=False)
    assert tokens == tokens[:1] * 3
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


def _unanswered(send: Send, operation: str, _: Any) -> Any:
    """All native transactions are applied, and none is answered."""
    answered = send()
    if operation == "TransactWriteItems":
        raise ConnectionClosedError(endpoint_url="memory")
    return answered


def test_a_transaction_in_doubt_that_finds_its_own_key_is_the_first(clock: VirtualClock) -> None:
    """No answer at all, and then its idempotency key is there, with its own id: it was committed now."""
    [item] = purses(1)
    tx, calls = Transaction(idempotency_key="once"), list[str]()
    tx.after_commit(lambda: calls.append("committed"))
    item.balance = 7
    tx.save(item)
    with intercepted(_unanswered):
        tx.commit()
    assert not tx.is_repeated
    assert calls == ["committed"]
    item.save()
    assert Purse.get("p0").version == 3


def test_a_lock_that_may_be_deleted_is_not_lost(clock: VirtualClock) -> None:
    """No answer to a transaction that deletes a locked item; then the lock is found to be gone: that is no loss."""
    purses(2)
    tx = Transaction()
    tx.delete(tx.get(Purse, "p0", for_update=True))
    tx.touch(tx.get(Purse, "p1"))
    own = tx._members.locks[0]._handle.entry
    assert own is not None
    with intercepted(_unanswered), pytest.raises(OutcomeUnknown):
        tx.commit()
    assert stored(Purse, "p0") is None
    assert not own.lost.is_set()


def test_a_late_renewal_takes_no_newer_one_back(clock: VirtualClock) -> None:
    """A renewal that was not answered arrives after the next one: a watcher must not take that for silence."""
    record_table = record_table_of(Transactions)
    short, long = (TransactionRecord("t", TransactionStatus.PENDING, lease_ms=lease_ms) for lease_ms in (1000, 5000))
    transaction_record.begin(record_table, short)
    newer = transaction_record.renew(record_table, long, 2)
    assert transaction_record.renew(record_table, short, 1) == newer
    assert transaction_record.read(record_table, "t") == newer
