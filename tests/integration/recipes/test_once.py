"""`NamedLock.once`: one successful run in a period, whatever becomes of those that try."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pynamo_locking import LockSettings, NamedLock, atransaction, transaction
from pynamo_locking.exceptions import ConfigurationError, CorruptRow, LockLost, LockTimeout, OutcomeUnknown
from pynamo_locking_testing import VirtualClock
from tests.support.models import Locks, declare
from tests.support.parties import abandoned, held_elsewhere, in_thread
from tests.support.wire import ALL, count_requests, on
from tests.support.workers import until_in_line, until_queued

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking.recipes import OnceRun, RunRecord
    from tests.engines.engine import Engine

T = TypeVar("T")
DAY = timedelta(days=1)
#: Few looks, since each one takes a step of the virtual clock.
RARE = LockSettings(poll_interval=2, max_poll_interval=2)
NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    """It is noon of a Monday, and nothing was ever done."""
    memory.bind(Locks)
    with VirtualClock(NOON) as clock:
        yield clock


def once(name: str = "job", **terms: Any) -> Any:
    return Locks.once(name, **{"period": DAY, "settings": RARE, **terms})


def run_once(**terms: Any) -> OnceRun[Locks]:
    """Ask for a run, and do nothing in it."""
    with once(**terms) as run:
        return run or run


def asked(**terms: Any) -> str:
    """What the answer is, without a run that counts."""
    with once(**terms) as run:
        run.discard()
        return run.status


def last() -> RunRecord | None:
    return Locks.lock_state("job").success


def row() -> Any:
    """The stored row of the job."""
    return Locks.get("job", consistent_read=True).serialize()


def expiry_s() -> int:
    return int(row()["expires_s"]["N"])


def test_the_first_run_is_ours_and_the_second_is_not(engine):
    """On each engine; what is stored says under which ticket, when, and for which period."""
    engine.bind(Locks)
    with once(zone="UTC", owner="web-1") as run:
        assert run
        assert (run.status, run.last, run.lock.is_held) == ("due", None, True)
        assert last() is None
        assert (run.period_begins.hour, run.period_begins.tzinfo) == (0, timezone.utc)
        assert "job: due" in repr(run)
    noted = last()
    with once() as second:
        assert not second
        assert (second.status, second.last) == ("done", noted)
        with pytest.raises(ConfigurationError, match="does not run here"):
            _ = second.ticket

    assert noted is not None
    assert (noted.ticket, noted.owner) == (run.ticket, "web-1")
    assert noted.period_ms == run.period_begins.timestamp() * 1000
    assert noted.period_ms <= noted.began_ms <= noted.ended_ms
    assert Locks.lock_state("job").entries == ()


def test_what_it_costs(clock):
    """Done: 1 read. Ours: 1 read, 2 writes, and no request to note the success."""
    with Locks.locked("job"):
        pass  # the first lock of a name creates its row
    with count_requests() as first:
        run_once()
    with count_requests() as second:
        run_once()

    assert dict(first.by_operation) == {"GetItem": 1, "UpdateItem": 2}
    assert dict(second.by_operation) == {"GetItem": 1}
    assert second.bodies[0][1]["ConsistentRead"] is False


def test_each_period_has_one(clock):
    """The next one is due at midnight in the zone, and not a day after the last run."""
    assert asked(zone="Europe/Zurich") == "due"
    run_once(zone="Europe/Zurich")
    clock.jump(11 * 3600 - 1)
    assert asked(zone="Europe/Zurich") == "done"
    clock.jump(1)
    assert asked(zone="Europe/Zurich") == "due"


def test_clocks_that_differ(clock):
    """Whose clock is ahead runs the next period early; whose clock is behind skips what is done. No period has two."""
    with clock.another_process(skew_s=12 * 3600 + 5):
        assert run_once().period_begins.day == 24
    assert asked() == "done"
    clock.jump(12 * 3600)
    assert asked() == "done"
    with clock.another_process(skew_s=-10):
        assert asked() == "done"
    clock.jump(DAY.total_seconds())
    assert asked() == "due"


def test_a_clock_that_is_wrong_is_reported(clock, caplog):
    """A success of the next century would keep the job from running for ever without a word."""
    with clock.another_process(skew_s=3600):
        run_once()
    run_once()
    assert "dated 3600 s later than this clock" in caplog.text
    caplog.clear()
    clock.jump(3595)
    run_once()

    assert caplog.text == ""


def test_at_least(clock):
    """A late run shortly before midnight, and one on time shortly after it: too soon, by when the first one began."""
    clock.jump(12 * 3600 - 60)
    with once() as ours:
        assert ours
        clock.jump(60)
    assert asked() == "due"
    assert asked(at_least=timedelta(minutes=10)) == "too_soon"
    clock.jump(9 * 60 - 1)
    assert asked(at_least=timedelta(minutes=10)) == "too_soon"
    clock.jump(1)
    assert asked(at_least=timedelta(minutes=10)) == "due"


def test_since_the_last_success(clock):
    """So long since the end of the last run, whatever the calendar says."""
    with once(period=5 * 3600, since_success=True) as ours:
        assert ours
        clock.jump(3600)
    clock.jump(5 * 3600 - 1)
    assert asked(period=5 * 3600, since_success=True) == "done"
    clock.jump(1)
    run = run_once(period=5 * 3600, since_success=True)
    assert (run.status, run.period_begins.hour) == ("due", 18)
    assert asked() == "done"  # by a grid: that run was today


def test_a_grid_that_changes(clock):
    """Periods are compared by when they begin, so a success of another grid counts for what it is."""
    run_once(period=3600)
    assert asked(period=DAY) == "done"
    assert asked(period=3600) == "done"
    clock.jump(3600)
    assert asked(period=DAY) == "done"
    assert asked(period=3600) == "due"


@pytest.mark.parametrize("asks", [bool, lambda run: run.status, lambda run: run.discard()])
def test_a_block_that_does_not_ask_is_told(clock, asks):
    """It would do its work in each run: a warning, whether it is due or not, and no other harm."""
    for answer in ("due", "done"):
        with pytest.warns(match=f"has not asked whether the job runs here .it is {answer}."), once():
            pass
    assert last() is not None
    assert Locks.lock_state("job").entries == ()
    with once() as run:
        asks(run)


def test_a_function_that_is_the_job(clock):
    """Each call is a run of its own, in any thread: one has the result, none overlap, and the next period is due."""

    @once()
    def report(number, *, of="the day"):
        if number == 0:
            raise ZeroDivisionError
        return f"{number} of {of}"

    with pytest.raises(ZeroDivisionError):
        report(0)
    made = [in_thread(lambda number=number: report(number)) for number in (1, 2, 3)]
    assert made == ["1 of the day", None, None]
    clock.jump(DAY.total_seconds())
    assert report(4, of="the next") == "4 of the next"
    with pytest.raises(ConfigurationError, match="async with"):

        @once()
        async def lazy():
            """Its call would only make a coroutine, and note a success."""


def test_a_run_that_fails_does_not_count(clock):
    """The error is the caller's, nothing is noted, the next one has it; the same for a run that says so itself."""
    with pytest.raises(ZeroDivisionError), once():
        _ = 1 / 0
    assert last() is None
    with once() as run:
        run.discard()
    assert last() is None
    assert Locks.lock_state("job").entries == ()
    assert run_once()


def test_a_run_that_dies_is_taken_over(clock):
    """By one that waits, when the lease of the dead one is over, under a higher ticket."""
    dead = abandoned(Locks.locked("job", lease=20, heartbeat=False))
    run = run_once()

    assert run
    assert run.ticket > dead.ticket
    assert 20 <= clock.elapsed <= 31
    assert last() is not None


def in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Do the work in a thread, beside the test; return what waits for its result."""
    results = list[T]()
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> T:
        thread.join()
        return results[0]

    return result


def waiting(**terms: Any) -> Callable[[], OnceRun[Locks]]:
    """Let another caller wait for the run that is under way; return what waits for its answer."""
    answer = in_background(lambda: run_once(**terms))
    until_queued(Locks, "job", 2)
    return answer


@pytest.mark.parametrize(("fails", "expected"), [(False, ("done", "first")), (True, ("due", "second"))])
def test_one_that_waits_for_a_run(clock, fails, expected):
    """Finds it done, and leaves the queue; or takes over."""
    with suppress(ZeroDivisionError), once(owner="first") as ours:
        assert ours
        answer = waiting(owner="second")
        if fails:
            raise ZeroDivisionError
    run = answer()

    assert (run.status, last().owner) == expected
    assert run.last == (None if fails else last())
    assert Locks.lock_state("job").entries == ()


def test_one_that_has_waited_until_the_next_period(clock):
    """Asked for the period that is over: that one is done. The run of the next one is left to its time."""
    clock.jump(12 * 3600 - 30)
    with once() as ours:
        assert ours
        answer = waiting()
        clock.sleep(60)
    run = answer()

    assert run.status == "done"
    with pytest.raises(ConfigurationError, match=r"does not run here \(done\), so there is no ticket"):
        _ = run.ticket
    assert asked() == "due"


def test_a_run_without_a_grid_begins_when_its_turn_comes(clock):
    """Not when it was asked for: what it has waited for has taken minutes."""
    with pytest.raises(ZeroDivisionError), once(owner="first"):
        answer = waiting(since_success=True)
        clock.sleep(120)
        _ = 1 / 0

    assert answer().period_begins == NOON + timedelta(seconds=last().began_ms / 1000 - NOON.timestamp())
    assert last().period_ms == last().began_ms >= NOON.timestamp() * 1000 + 120_000


def test_busy(clock):
    """Without waiting: another party runs the job. It may fail yet, so this is not "done"."""
    with held_elsewhere(Locks.locked("job")):
        run = run_once(wait=0)

    assert (bool(run), run.status, run.last) == (False, "busy", None)
    assert Locks.lock_state("job").entries == ()


def test_no_answer_is_an_error(clock):
    """And not "busy": whether the job runs is unknown."""
    with on("GetItem", times=ALL).lose_request():
        assert asked() == "due"  # the lock's own answer is enough
        with on("UpdateItem", times=ALL).lose_request(), pytest.raises(LockTimeout):
            run_once(wait=0)


@pytest.mark.parametrize("silent_from", [10, 15])
def test_no_answer_at_the_end_of_a_wait_is_an_error(clock, silent_from):
    """Also if another party had the lock when DynamoDB was last heard: it may have succeeded, or failed, since."""
    silence = on("GetItem", where=lambda _: clock.elapsed >= silent_from, times=ALL).lose_request()
    with held_elsewhere(Locks.locked("job")), silence, pytest.raises(LockTimeout, match="no answer"):
        run_once(wait=15)


def test_a_blip_that_is_over_is_not_told(clock):
    """The error of a wait that was answered at its end names the holder, and no outage of an hour ago."""
    silence = on("GetItem", where=lambda _: clock.elapsed < 10, times=ALL).lose_request()
    with held_elsewhere(Locks.locked("job")), silence:
        run = run_once(wait=20)
    assert run.timeout is not None
    assert "no answer" not in str(run.timeout)
    assert run.timeout.cause is None


def test_a_lost_lock_notes_nothing(clock):
    """The caller learns that its work may have been done twice."""
    with pytest.raises(LockLost, match="Stop writing"), once() as run:
        assert Locks.break_lock("job", ticket=run.ticket)
        second = in_thread(run_once)
    assert second
    assert last().ticket == second.ticket > run.ticket


def test_a_row_that_is_deleted_in_the_block_notes_nothing(clock):
    """It took the lock with it."""
    with pytest.raises(LockLost), once() as run:
        run.lock.item.delete()
    assert asked() == "due"


def finishes(body: dict[str, Any]) -> bool:
    """Whether a request notes a success."""
    return ":success" in body.get("ExpressionAttributeValues", {})


def test_a_lost_answer_to_the_note(clock):
    """The second copy recognises the first, by the ticket that is noted."""
    with on("UpdateItem", where=finishes).lose_response() as lost:
        run = run_once()

    assert lost.hits == 1
    assert last().ticket == run.ticket


def test_a_lost_answer_to_the_note_and_a_later_success(clock):
    """The document proves that the first copy was applied, although a later run has noted its own since."""

    def later() -> None:
        in_thread(lambda: run_once(period=1, zone=timezone(timedelta(hours=1)), owner="later"))

    clock.jump(1.5)
    with on("UpdateItem", where=finishes).lose_response(later):
        run = run_once(owner="first")

    assert last().owner == "later"
    assert last().ticket > run.ticket


def test_no_answer_to_the_note(clock):
    """The caller hears that it is not known, and the entry is removed."""
    with on("UpdateItem", times=99, where=finishes).lose_request(), pytest.raises(OutcomeUnknown, match="runs again"):
        run_once()

    assert last() is None
    assert Locks.lock_state("job").entries == ()
    assert run_once()


def test_a_note_that_arrives_late_is_refused(clock):
    """Its entry is gone: the run that was taken over stays the one that counts."""
    with on("UpdateItem", times=ALL, where=finishes).delay() as late, pytest.raises(OutcomeUnknown):
        run_once(owner="first")
    run_once(owner="second")
    for arrive in late:
        arrive()

    assert last().owner == "second"


Own = declare("Own", NamedLock, texts="content")


def test_the_row_survives_until_the_next_period(clock, memory):
    """TTL would delete it a day after its last lease: the writer of the row after the success keeps that in mind."""
    memory.bind(Own)
    week = {"name": "job", "period": 7 * DAY}
    with Own.once(**week) as run:
        assert run
        run.lock.item.content = "in the block"
        run.lock.item.save()

    def left_s() -> float:
        found: Any = Own.get("job").serialize()
        return int(found["expires_s"]["N"]) - clock.now.timestamp()

    assert left_s() >= 9 * 86400 - 1
    old = Own.get("job")
    with Own.locked("job"):
        assert left_s() >= 9 * 86400 + 60 - 1
    clock.jump(6 * 86400)
    with Own.edit("job") as item:
        item.content = "edited"
    assert left_s() >= 9 * 86400 - 1
    old.save()  # a copy of last week
    assert left_s() >= 9 * 86400 - 1
    with Own.locked("job", lease=6) as lock:
        lock.renew()
    assert left_s() >= 9 * 86400 - 1
    with Own.once(**week) as run:
        assert run.status == "done"
    assert Own.get("job").content == "in the block"


def test_a_row_without_a_success_goes_after_a_day(clock):
    """As it always did."""
    with Locks.locked("job"):
        pass

    assert 0 <= expiry_s() - clock.now.timestamp() - 86400 - 60 <= 2


def test_the_row_outlives_a_lease_that_is_longer_than_a_day(clock):
    """Also that of a party that came before the success, and renews no more."""
    long = replace(RARE, max_lease=5 * DAY, max_callers_per_entry=1)
    with once(settings=long, lease=5 * DAY, period=timedelta(hours=1)) as ours:
        assert ours
        waiter = in_background(Locks.locked("job", settings=long, lease=5 * DAY, heartbeat=False).acquire)
        until_queued(Locks, "job", 2)
    waiter()
    [entry] = Locks.lock_state("job").entries
    assert expiry_s() >= entry.until_ms / 1000


@pytest.mark.parametrize("way", ["locked", "edit"])
def test_callers_of_one_process_hand_over_and_keep_the_row(clock, way):
    """The request by which one caller hands its entry to the next one writes the expiry as well."""
    run_once(period=7 * DAY)
    clock.jump(86400)
    with getattr(Locks, way)("job"):
        waiter = in_background(Locks.locked("job", heartbeat=False).acquire)
        until_in_line(Locks, "job", 1)
    waiter()

    assert expiry_s() >= clock.now.timestamp() + 9 * 86400


@pytest.mark.parametrize(
    "broken",
    [
        {"M": {}},
        {"S": "yesterday"},
        {
            "M": {
                "ticket": {"N": "1"},
                "owner": {"S": "o"},
                **{name: {"N": "1"} for name in ("period_ms", "began_ms", "ended_ms")},
            }
        },
    ],
)
def test_a_broken_note(clock, memory, broken):
    """Is no leave to run the job again: the lock says that it is broken."""
    run_once()
    memory.client().update_item(
        TableName=Locks.Meta.table_name,
        Key={"name": {"S": "job"}},
        UpdateExpression="SET #l.success = :s",
        ExpressionAttributeNames={"#l": "lock"},
        ExpressionAttributeValues={":s": broken},
    )
    with pytest.raises(CorruptRow, match="success"):
        run_once()


@pytest.mark.parametrize(
    ("terms", "what"),
    [
        ({"period": 5 * 3600}, "divide a day"),
        ({"shared": True}, "one run at a time"),
        ({"permits": 2}, "one run at a time"),
        ({"lease": 0.1}, "too short"),
        ({"settings": "quick"}, "LockSettings"),
    ],
)
def test_what_makes_no_sense(clock, terms, what):
    """Is refused when it is made."""
    with pytest.raises(ConfigurationError, match=what):
        once(**terms)


def test_inside_its_own_lock(clock):
    """The end of the block would have to release the lock, and cannot; the outer run stays what it was."""
    with Locks.locked("job"), pytest.raises(ConfigurationError, match="held here already"), once():
        raise AssertionError
    with pytest.raises(ConfigurationError, match="acquired or detached in the block"), once() as run:
        run.lock.acquire()
    run.lock.release()
    same = once()
    with same as run:
        run.discard()
        with pytest.raises(ConfigurationError, match="held here already"), same:
            raise AssertionError
    assert last() is None


def test_a_lock_that_was_released_in_the_block(clock):
    """Another process may have run the job meanwhile, so the run does not count."""
    with pytest.raises(ConfigurationError, match="acquired or detached in the block"), once() as run:
        run.lock.release()
        second = in_thread(run_once)
        run.lock.acquire()
    assert last().ticket == second.ticket
    assert Locks.lock_state("job").entries == ()


def test_in_an_open_transaction(clock):
    """Its effect may yet be rolled back, and the success would stand."""
    with transaction(), pytest.raises(ConfigurationError, match="open the transaction inside"), once():
        raise AssertionError

    async def work() -> None:
        async with atransaction(), once():
            raise AssertionError

    with pytest.raises(ConfigurationError, match="open the transaction inside"):
        asyncio.run(work())
    due = list[bool]()
    with transaction() as tx:  # is over when it calls back
        tx.after_commit(lambda: due.append(bool(run_once(name="after"))))
    assert due == [True]
    with once() as run, transaction():
        assert run
    assert last() is not None


# asyncio


def test_in_a_task(clock):
    """The same, awaited; a failed run does not count there either."""

    async def work() -> list[str]:
        found = []
        with pytest.raises(ZeroDivisionError):
            async with once() as run:
                _ = 1 / 0
        for _ in range(2):
            async with once() as run:
                found.append(run.status)
                if run:
                    await run.lock.arenew()
        async with once("held") as outer, once("held", wait=0) as inner:
            found += [outer.status, inner.status]
        return found

    with pytest.raises(ConfigurationError, match="held here already"):
        asyncio.run(work())
    assert last() is not None
    assert Locks.lock_state("held").entries == ()


def test_tasks_that_wait(clock):
    """Five tasks of one process, one run; the others find it done, or busy without a wait."""

    async def attempt(wait: float | None, until: asyncio.Event | None = None) -> str:
        async with once(wait=wait) as run:
            answer: str = run.status
            if until is not None:
                runs.set()
                await until.wait()
            return answer

    async def work() -> list[str]:
        may_end = asyncio.Event()
        first = asyncio.create_task(attempt(None, may_end))
        await runs.wait()
        answers = [await attempt(0)]
        others = [asyncio.create_task(attempt(None)) for _ in range(3)]
        await asyncio.sleep(0)
        may_end.set()
        return [*answers, *await asyncio.gather(first, *others)]

    runs = asyncio.Event()
    assert asyncio.run(work()) == ["busy", "due", "done", "done", "done"]


def test_a_task_that_is_cancelled_notes_nothing(clock):
    """The work was not done."""

    async def work(begun: asyncio.Event) -> None:
        async with once():
            begun.set()
            await asyncio.sleep(1000)

    async def cancel() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(work(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert last() is None
    assert Locks.lock_state("job").entries == ()


def test_nothing_is_logged(clock, caplog):
    """For an ordinary course: a lock that was not ours to use is no warning."""
    with caplog.at_level(logging.INFO):
        run_once()
        run_once()
    assert caplog.text == ""
