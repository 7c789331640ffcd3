"""Long commits under lost answers, silence and pauses; what outcome(), recover() and sweep() say afterwards."""

from __future__ import annotations

import itertools
import os
import signal
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from pynamo_locking import transaction
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    LockingError,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
)
from pynamo_locking.transactions import Transaction
from tests.support.deeds import deeds, die_at, from_deed
from tests.support.parties import in_thread
from tests.support.poisoned import header, put
from tests.support.transaction_helpers import committed_balances, doing
from tests.support.transaction_models import (
    STATEMENTS,
    Purse,
    Transactions,
    dying_after,
    empty,
    ends_s,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    stored,
    survive,
)
from tests.support.wire import Chosen, Send, count_requests, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine

#: Two updates, two deletes, five inserts, of which three are written by the decision, and the last two are marked.
OLD, GONE, NEW = ["old0", "old1"], ["gone0", "gone1"], [f"new{i}" for i in range(5)]
MARKED = [*OLD, *GONE, *NEW[3:]]
#: What each request of the commit does first, in their order.
BEFORE_DECISION = ["header", "row", *[f"mark {key}" for key in MARKED[::STATEMENTS]]]
AFTER_DECISION = [*[f"finish {key}" for key in MARKED[::STATEMENTS]], "end"]
DEEDS = [*BEFORE_DECISION, "decision", *AFTER_DECISION]
#: Where statements are refused: of each kind one, and once or twice.
ALONE = [(1, 2, "mark old0"), (1, 1, "mark gone1"), (1, 2, "mark new4"), (1, 1, "finish old0"), (1, 2, "finish gone1")]


pytestmark = [pytest.mark.core, pytest.mark.usefixtures("few")]


def begin(**options: Any) -> Transaction:
    """Store what is needed, and fill a long transaction."""
    empty(Purse, Transactions)
    for key in (*OLD, *GONE):
        Purse(key, balance=100).save()
    tx = Transaction(workers=1, **options)
    for key in OLD:
        tx.update(tx.get(Purse, key), [Purse.balance.add(100)])
    for key in GONE:
        tx.delete(tx.get(Purse, key))
    for key in NEW:
        tx.save(Purse(key, balance=200))
    return tx


def found() -> dict[str, tuple[int, int]]:
    """Balance and version of each item."""
    return {
        row["purse_id"]["S"]: (int(row["balance"]["N"]), int(row["version"]["N"]))
        for row in rows_of(Purse)
        if "balance" in row
    }


BEFORE = dict.fromkeys((*OLD, *GONE), (100, 1))
AFTER = {**dict.fromkeys(OLD, (200, 2)), **dict.fromkeys(NEW, (200, 1))}


# One request is hit


@contextmanager
def hit(which: Callable[[int, str, Any], bool], *, is_delivered: bool) -> Iterator[list[tuple[str, Any]]]:
    """Lose requests, or their answers, with all attempts of botocore; yield those that are hit."""
    count, lost = itertools.count(), list[tuple[str, Any]]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if not which(next(count), operation, kwargs):
            return send()
        lost.append((operation, kwargs))
        if is_delivered:
            with suppress(ClientError):  # a refusal is an answer as well
                send()
        raise ConnectionClosedError(endpoint_url="memory")

    with intercepted(answer):
        yield lost


@pytest.mark.parametrize("is_delivered", [True, False], ids=["answer lost", "not sent"])
@pytest.mark.parametrize(
    ("statements", "times", "deed"), [*((STATEMENTS, times, deed) for times in (1, 2) for deed in DEEDS), *ALONE]
)
def test_one_request_is_lost(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, statements: int, deed: str, times: int, *, is_delivered: bool
) -> None:
    """Whichever request is lost, or its answer, the commit succeeds, is applied once, and nothing is left."""
    make_long_from(monkeypatch, statements=statements)
    tx = begin()
    with hit(from_deed(deed, times), is_delivered=is_delivered) as lost:
        try:
            tx.commit()
        except Conflict:
            assert "decision" in [deed for each in lost for deed in deeds(*each)]  # only the decision may be given up
            assert found() == BEFORE
            assert Transactions.outcome(tx.id) == "aborted"
            return
    assert len(lost) == times or deed == "end"
    Transactions.recover(tx.id)
    assert Transactions.outcome(tx.id) == "finished"
    assert found() == AFTER
    assert marked_rows(Purse) == []


@pytest.mark.parametrize("lose", [Chosen.lose_response, Chosen.lose_request])
@pytest.mark.parametrize("deed", DEEDS)
def test_one_attempt_is_lost(clock: VirtualClock, deed: str, lose: Any) -> None:
    """The same where botocore repeats the request by itself: a second copy changes nothing."""
    tx = begin()
    with lose(doing(deed)) as lost:
        tx.commit()
    assert lost.hits == 1
    assert Transactions.outcome(tx.id) == "finished"
    assert found() == AFTER
    assert marked_rows(Purse) == []


def test_one_request_is_lost_on_real_engines(real_engine: Engine) -> None:
    """The same on the engines that know tokens: the placeholder, the decision and a finish lose their answer."""
    for deed in ("header", "mark old1", "mark new4", "decision", "finish gone0", "end"):
        tx = begin()
        with hit(from_deed(deed, 1), is_delivered=True):
            tx.commit()
        assert found() == AFTER
        assert Transactions.outcome(tx.id) == "finished"


# Silence from some request on


@pytest.mark.parametrize("is_delivered", [True, False], ids=["answers lost", "not sent"])
@pytest.mark.parametrize("deed", DEEDS)
def test_silence(clock: VirtualClock, deed: str, *, is_delivered: bool) -> None:
    """No answer at all from some request on: what the commit says is true, whatever it says."""
    tx = begin()
    said = "committed"
    with hit(from_deed(deed), is_delivered=is_delivered):
        try:
            tx.commit()
        except OutcomeUnknown:
            said = "unknown"
        except LockingError:
            said = "failed"
    Transactions.recover(tx.id)
    assert marked_rows(Purse) == []
    state = found()
    assert state in (BEFORE, AFTER)
    if said != "unknown":
        assert state == (AFTER if said == "committed" else BEFORE)
    assert said == ("failed" if deed in BEFORE_DECISION else "committed" if deed in AFTER_DECISION else "unknown")


@pytest.mark.parametrize("is_delivered", [True, False], ids=["answers lost", "not sent"])
def test_the_header_cannot_be_reached(clock: VirtualClock, *, is_delivered: bool) -> None:
    """OutcomeUnknown names the transaction; outcome() tells later; rollback callbacks have run; all or nothing."""
    tx = begin()
    calls: list[str] = []
    tx.after_commit(lambda: calls.append("commit"))
    tx.after_rollback(lambda: calls.append("rollback"))
    with hit(from_deed("decision"), is_delivered=is_delivered), pytest.raises(OutcomeUnknown) as caught:
        tx.commit()
    assert caught.value.write_id == tx.id
    assert calls == ["rollback"]
    assert Transactions.outcome(tx.id) == ("committed" if is_delivered else "pending")
    assert Transactions.recover(tx.id) == ("finished" if is_delivered else "aborted")
    assert found() == (AFTER if is_delivered else BEFORE)


@pytest.mark.parametrize("is_delivered", [True, False], ids=["answers lost", "not sent"])
def test_the_decision_is_never_answered(clock: VirtualClock, *, is_delivered: bool) -> None:
    """The header can be reached: the commit succeeds, or is aborted, and said to be safe to repeat."""
    tx = begin()
    ends = nullcontext() if is_delivered else pytest.raises(Conflict)
    with hit(lambda _, *request: "decision" in deeds(*request), is_delivered=is_delivered), ends:
        tx.commit()
    assert Transactions.outcome(tx.id) == ("finished" if is_delivered else "aborted")
    assert found() == (AFTER if is_delivered else BEFORE)
    assert marked_rows(Purse) == []


# Leases


@contextmanager
def slow(memory: Engine, clock: VirtualClock, seconds: float) -> Iterator[list[float]]:
    """Every request takes so long; yields what was left of the header's lease after each."""
    left: list[float] = []

    def answer(send: Send, _: str, __: Any) -> Any:
        answered = send()
        clock.sleep(seconds)
        left.extend(
            (int(header["until_ms"]["N"]) - clock.time_ms()) / 1000
            for header in memory.client().scan(TableName=Transactions.Meta.table_name)["Items"]
            if header.get("state") == {"S": "pending"}
        )
        return answered

    with intercepted(answer):
        yield left


def test_a_slow_commit_renews_its_lease(memory: Engine, clock: VirtualClock) -> None:
    """A commit whose marks take much longer than its lease stays alive, and succeeds."""
    tx = begin(lease=3)
    with slow(memory, clock, 0.7) as left:
        tx.commit()
    assert 0.7 * len(left) > 2 * 3
    assert min(left) > 0
    assert found() == AFTER
    [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
    assert int(header["beat"]["N"]) >= 2


def begin_large() -> Transaction:
    """Begin a transaction whose changes do not fit into marks."""
    purses(10, note="x" * 200_000)
    tx = Transaction(lease=3, workers=1)
    for i in range(10):
        item = tx.get(Purse, f"p{i}")
        item.note = "y" * 200_000
        tx.save(item)
    return tx


def test_large_changes_are_removed_after_an_abort(clock: VirtualClock) -> None:
    """Their rows have no time of expiry, and would stay for ever."""
    tx = begin_large()
    Purse.get("p9").touch()
    with pytest.raises(StaleVersion):
        tx.commit()
    assert [row["id"]["S"] for row in rows_of(Transactions) if "expires_s" not in row] == []


def test_many_spilled_rows_renew_the_lease(memory: Engine, clock: VirtualClock) -> None:
    """Large items are written into rows of their own before the first mark: the lease is renewed meanwhile."""
    tx = begin_large()
    with slow(memory, clock, 0.7) as left:
        tx.commit()
    assert min(left) > 0
    assert {item.note for item in Purse.scan(consistent_read=True)} == {"y" * 200_000}


def test_waiting_for_others_renews_the_lease(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that waits for a dead transaction renews its own lease while it waits."""
    tx = begin()
    die_at(monkeypatch, "decision", tx.commit)
    marked = [row["purse_id"]["S"] for row in marked_rows(Purse)]
    other = Transaction(lease=3, workers=1)
    for key in [*marked, "x1", "x2", "x3"]:
        other.save(Purse(key, balance=5), add_version_condition=False)
    other.commit()
    [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == other.id]
    assert int(header["beat"]["N"]) >= 1 or "beat" in header
    assert Transactions.outcome(tx.id) == "aborted"
    assert {found()[key][0] for key in marked} == {5}


@pytest.mark.parametrize("deed", [*BEFORE_DECISION[1:], "decision"])
def test_a_pause_longer_than_the_lease(clock: VirtualClock, deed: str) -> None:
    """A process that was asleep before its decision finds itself aborted by those who came meanwhile."""
    tx, is_hit = begin(), from_deed(deed, 1)

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if is_hit(0, operation, kwargs):
            clock.jump(60)
            in_thread(Transactions.sweep)
        return send()

    with intercepted(answer), pytest.raises(TransactionAborted) as caught:
        tx.commit()
    assert caught.value.reason == "lease_expired"
    assert found() == BEFORE
    assert marked_rows(Purse) == []


# Headers and their rows


def test_only_final_headers_expire(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header gets its time to live with its final state, and not before; rows of participants always have one."""
    seen = set()
    for k in itertools.count():
        tx = begin()
        with dying_after(monkeypatch, k) as process:
            in_thread(lambda tx=tx: survive(tx.commit))
        for row in rows_of(Transactions):
            if row["id"]["S"] == tx.id:
                state = row["state"]["S"]
                seen.add(state)
                is_final = state in ("finished", "aborted")
                assert ("expires_s" in row) is is_final, f"after request {k} the header is {state}, and expires or not"
            else:
                assert ends_s(row) >= clock.time_ms() / 1000 + 29 * 86400
        if Transactions.recover(tx.id) == "aborted":
            [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
            assert ends_s(header) >= clock.time_ms() / 1000 + 29 * 86400  # a mark may come late
            clock.jump(86400)
        if Transactions.recover(tx.id) is not None:
            [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
            ttl = ends_s(header) - clock.time_ms() / 1000
            assert 86_000 < ttl < 90_000
        if not process.is_dead:
            break
    assert seen == {"pending", "committed", "finished"}


def test_outcome(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """pending, committed, finished, aborted; None for what has no header; LockingError where no answer comes."""
    assert Transactions.outcome("never was") is Transactions.recover("never was") is None
    with pytest.raises(ConfigurationError, match="at least one segment"):
        Transactions.sweep(segments=0)
    with transaction() as tx:
        tx.save(Purse("a"))
        tx.save(Purse("b"))
    assert Transactions.outcome(tx.id) is None
    for deed, state in (
        ("header", None),
        ("row", "pending"),
        ("decision", "pending"),
        ("finish old0", "committed"),
        ("end", "committed"),
        ("", "finished"),
    ):
        tx = begin()
        die_at(monkeypatch, deed, tx.commit) if deed else tx.commit()
        assert Transactions.outcome(tx.id) == state
    with hit(lambda *_: True, is_delivered=False):
        for call in (lambda: Transactions.outcome(tx.id), lambda: Transactions.recover(tx.id)):
            with pytest.raises(LockingError, match="no response"):
                call()
        with pytest.raises(LockingError, match="sweep"):
            Transactions.sweep()


def test_recover_waits_for_the_living(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without force a pending transaction is given its whole lease; by force none of it."""
    for force in (False, True):
        tx = begin(lease=20)
        die_at(monkeypatch, "decision", tx.commit)
        before = clock.elapsed
        assert Transactions.recover(tx.id, force=force) == "aborted"
        assert (clock.elapsed - before >= 19) is not force
        [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
        assert header["by"]["S"] == ("asked" if force else "expired")


# Sweeps


def leave_several(monkeypatch: pytest.MonkeyPatch) -> dict[str, Transaction]:
    """Transactions of different items that died pending, committed, and not at all."""
    left = {}
    for name, deed in (
        ("pending", "decision"),
        ("committed", "finish committed7"),
        ("finished", ""),
        ("unborn", "header"),
    ):
        purses(8, prefix=name)
        tx = left[name] = Transaction(workers=1)
        for i in range(8):
            tx.update(tx.get(Purse, f"{name}{i}"), [Purse.balance.add(1)])
        die_at(monkeypatch, deed, tx.commit) if deed else tx.commit()
    return left


def test_sweep_report(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report counts what was found; progress is told after each; the items are right afterwards."""
    left = leave_several(monkeypatch)
    assert {name: Transactions.outcome(tx.id) for name, tx in left.items()} == {
        "pending": "pending",
        "committed": "committed",
        "finished": "finished",
        "unborn": None,
    }
    examined: list[int] = []
    with count_requests() as counted:
        report = Transactions.sweep(segments=2, on_progress=lambda report: examined.append(report.examined))
    scans = [body.get("ConsistentRead") for operation, body in counted.bodies if operation == "Scan"]
    assert scans == [True, True], "a replica may not show a header that is there"
    assert (report.examined, report.aborted, report.finished, report.pending, report.failed) == (2, 1, 1, 0, {})
    assert examined == [1, 2]
    assert marked_rows(Purse) == []
    sums = {name: sum(Purse.get(f"{name}{i}").balance for i in range(8)) for name in left}
    assert sums == {"pending": 800, "committed": 808, "finished": 808, "unborn": 800}


def test_a_sweep_that_cannot_complete_one(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is named in the report, the others are completed, and a later sweep completes it too."""
    left = leave_several(monkeypatch)

    def is_finish(_: int, operation: str, kwargs: Any) -> bool:
        return any(deed.startswith("finish committed") for deed in deeds(operation, kwargs))

    with hit(is_finish, is_delivered=False):
        report = Transactions.sweep()
    assert report.failed is not None
    assert set(report.failed) == {left["committed"].id}
    assert (report.examined, report.aborted, report.finished) == (2, 1, 0)
    assert Transactions.sweep().finished == 1
    assert marked_rows(Purse) == []


def test_stale_marks_without_a_header_are_dropped(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark whose header is gone, as of a late copy after the TTL, is dropped by the first request that meets it."""
    tx = begin()
    die_at(monkeypatch, "decision", tx.commit)
    Transactions._get_connection().delete_item(tx.id)
    marked = [row["purse_id"]["S"] for row in marked_rows(Purse)]
    assert marked
    before = clock.elapsed
    for key in marked:
        with transaction() as reading:
            reading.get_or_none(Purse, key)
    assert clock.elapsed == before
    assert marked_rows(Purse) == []
    assert found() == BEFORE


def test_a_late_copy_of_a_request_changes_nothing(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of a finished commit is sent again, at any time later: refused, or without effect."""
    tx = begin()
    with dying_after(monkeypatch, None) as process:
        tx.commit()
    for key in GONE:
        assert stored(Purse, key) is None
    connection = Purse._get_connection().connection
    for operation, kwargs in process.sent:
        if operation.startswith("Get") or operation == "TransactGetItems":
            continue
        with suppress(ClientError):  # refused
            connection.dispatch(operation, kwargs)
        assert found() == AFTER
        assert [row for row in marked_rows(Purse) if row["purse_id"]["S"] not in NEW] == []


@pytest.mark.parametrize("others", [1, 9])
def test_a_commit_that_is_known_by_its_key_alone_teaches_the_instances(clock: VirtualClock, others: int) -> None:
    """No answer said that it was committed, the idempotency key did: what was saved can be saved again."""
    [purse] = purses(1)
    tx, sent = Transaction(Transactions, idempotency_key="once"), list[str]()
    purse.balance = 1
    tx.save(purse)
    for i in range(others):
        tx.save(Purse(f"other{i}"))
    assert tx.plan().path == ("native" if others == 1 else "long")

    def is_unanswered(_: int, operation: str, kwargs: Any) -> bool:
        """Whether it carries the key, or comes after it and before the next read."""
        if "key#once" in str(kwargs) or sent:
            sent.append(operation)
        return "GetItem" not in sent and bool(sent)

    with hit(is_unanswered, is_delivered=True):
        tx.commit()
    assert not tx.is_repeated
    purse.balance = 2
    purse.save()
    assert Purse.get("p0", consistent_read=True).balance == 2


def test_an_interrupt_after_the_decision_is_told() -> None:
    """And what has to follow a commit follows it."""
    done: list[str] = []

    def stop(finished: int, _: int) -> None:
        if finished > 6:
            raise KeyboardInterrupt

    tx = Transaction(on_progress=stop)
    tx.after_commit(lambda: done.append("committed"))
    tx.after_rollback(lambda: done.append("rolled back"))
    saved = [Purse(f"n{i}", balance=7) for i in range(9)]
    for purse in saved:
        tx.save(purse)
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert done == ["committed"]
    assert [purse.version for purse in saved] == [1] * 9
    assert committed_balances(*(f"n{i}" for i in range(9))) == [7] * 9


@pytest.mark.processes
def test_an_interrupt_ends_a_sweep() -> None:
    """Although it watches a transaction that is alive, and has others before it."""
    for i in range(5):
        put(Transactions, header(f"T{i}", "pending", until_ms={"N": "9999999999999"}, lease_ms={"N": "30000"}))
    looks = list[str]()

    def answer(send: Send, operation: str, _: Any) -> Any:
        if operation == "GetItem":
            looks.append(operation)
            if len(looks) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        return send()

    with intercepted(answer), pytest.raises(KeyboardInterrupt):
        Transactions.sweep()
    assert len(looks) == 1
