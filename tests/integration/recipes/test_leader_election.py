"""A leader of many processes: elected, followed, stopped. Time is virtual where nothing else is said."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import TransactWriteError

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking_testing import VirtualClock
from tests.support.models import APART, Account, Locks
from tests.support.parties import SLOW_CLOCK
from tests.support.wire import count_requests, on
from tests.support.workers import until_queued

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking.recipes import LeaderElection, LeaderTerm
    from tests.engines.engine import Engine

LEASE = 12.0
#: A candidate stands for a process.
OPTIONS: dict[str, Any] = {"lease": LEASE, "settings": replace(APART, poll_interval=0.25, max_poll_interval=0.25)}
#: Two looks of a waiter, and the heartbeat's own pause.
LOOK = 1.0


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    memory.bind(Locks)
    memory.bind(Account)
    with VirtualClock() as clock:
        yield clock


def elected(campaign: LeaderElection, **options: Any) -> LeaderTerm:
    """Wait until a campaign is elected, and return its term."""
    term = campaign.elected(**options)
    assert term is not None
    return term


def work_until_lost(term: LeaderTerm, clock: VirtualClock) -> str:
    """Work as a leader does, and return why its term has ended."""
    while term.is_leader:
        clock.sleep(LEASE / 4)
    with pytest.raises(LockLost) as lost:
        term.held_condition()
    return lost.value.reason


# Elected


def test_leaders_follow_each_other(clock: VirtualClock) -> None:
    """One leads, and when it resigns the next one does, at once, for a later term."""
    with Locks.lead("scheduler", **OPTIONS) as first:
        term = elected(first)
        assert first.is_leader
        assert first.term is term
        with Locks.lead("scheduler", **OPTIONS) as second:
            assert second.elected(timeout=1) is None
            assert not second.is_leader
            began = clock.elapsed
            first.stop()
            later = elected(second)
            assert clock.elapsed - began < LOOK
            assert later.ticket > term.ticket
            assert (term.ended.is_set(), term.reason) == (True, "resigned")
            assert not later.ended.is_set()
            with pytest.raises(LockLost, match="has ended") as lost:
                term.held_condition()
            assert (lost.value.reason, lost.value.ticket) == ("resigned", term.ticket)
        assert first.elected() is None
    assert not Locks.lock_state("scheduler").entries


def test_who_resigns_goes_behind_the_others(clock: VirtualClock) -> None:
    """The campaign goes on for ever: each of two leads again and again."""
    heard: list[tuple[str, int]] = []
    with contextlib.ExitStack() as stack:
        campaigns = {name: stack.enter_context(Locks.lead("scheduler", **OPTIONS)) for name in "ab"}
        until_queued(Locks, "scheduler", 2)  # or the first would resign before the other one has come
        for _ in range(6):
            [(name, campaign)] = leading(campaigns, clock)
            term = campaign.term
            assert term is not None
            heard.append((name, term.ticket))
            term.resign()
            assert not campaign.is_leader
    assert [name for name, _ in heard] in (list("ababab"), list("bababa"))
    assert [ticket for _, ticket in heard] == sorted({ticket for _, ticket in heard})


def leading(campaigns: dict[str, LeaderElection], clock: VirtualClock) -> list[tuple[str, LeaderElection]]:
    """Wait until there is a leader; return all that believe to be it."""
    for _ in range(1000):
        if found := [(name, campaign) for name, campaign in campaigns.items() if campaign.is_leader]:
            return found
        clock.sleep(0.1)
    raise AssertionError("no leader")


def test_the_work_is_called_with_the_term(clock: VirtualClock) -> None:
    """It leads while it works; `on_lost` is called once, before the lock is released."""
    heard: list[Any] = []

    def on_elected(term: LeaderTerm) -> None:
        heard.append(term.ticket)
        heard.append(work_until_lost(term, clock))

    def on_lost(reason: str) -> None:
        assert Locks.lock_state("scheduler").holders
        heard.append((reason, campaign.is_leader))

    campaign = Locks.lead("scheduler", on_elected=on_elected, on_lost=on_lost, **OPTIONS)
    with campaign:
        term = elected(campaign)
        clock.sleep(5 * LEASE)
        assert campaign.term is term
    assert sorted(map(str, heard)) == sorted(map(str, [term.ticket, ("resigned", False), "resigned"]))
    assert not Locks.lock_state("scheduler").entries


def test_work_that_returns_goes_on_to_lead(clock: VirtualClock) -> None:
    """`on_elected` may only start what the leader does."""
    with Locks.lead("scheduler", on_elected=lambda _: None, **OPTIONS) as campaign:
        term = campaign.elected()
        clock.sleep(5 * LEASE)
        assert campaign.term is term is not None


def test_work_that_fails_lets_another_process_lead(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """The term ends, the log has the error, and the campaign goes on a third of a lease later."""
    began, reasons = list[float](), list[str]()

    def fail(term: LeaderTerm) -> None:
        began.append(clock.elapsed)
        raise ValueError(term.ticket)

    with Locks.lead("scheduler", on_elected=fail, on_lost=reasons.append, **OPTIONS):
        clock.sleep(LEASE)
        with Locks.lead("scheduler", **OPTIONS) as other:
            assert other.elected(timeout=LEASE) is not None
        assert set(reasons) == {"failed"}
    assert [later - earlier for earlier, later in itertools.pairwise(began)] == [pytest.approx(LEASE / 3, abs=0.2)] * (
        len(began) - 1
    )
    assert len(began) >= 3
    assert "on_elected failed" in caplog.text


def test_work_that_has_failed_and_is_told_to_resign_has_failed(clock: VirtualClock) -> None:
    """Another process may lead before it. That holds when `on_lost` resigns as well."""
    began, terms = list[float](), list[Any]()

    def fail_twice(term: LeaderTerm) -> None:
        began.append(clock.elapsed)
        terms.append(term)
        if len(terms) <= 2:
            raise ValueError(term.ticket)

    with Locks.lead("scheduler", on_elected=fail_twice, on_lost=lambda _: terms[-1].resign(), **OPTIONS):
        clock.sleep(LEASE)
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert pauses == [pytest.approx(LEASE / 3, abs=0.2)] * 2, "the campaign did not let another process lead"
    assert [term.reason for term in terms] == ["failed", "failed", "resigned"]


def test_work_that_has_lost_another_lock_has_failed(clock: VirtualClock) -> None:
    """Only the loss of its own term is no failure."""
    reasons: list[str] = []

    def lose(term: LeaderTerm) -> None:
        raise LockLost("that of another job", reason="evicted", ticket=term.ticket + 1)

    with Locks.lead("scheduler", on_elected=lose, on_lost=reasons.append, **OPTIONS):
        clock.sleep(LEASE)
        assert set(reasons) == {"failed"}


def test_a_failing_on_lost_ends_no_campaign(clock: VirtualClock) -> None:
    def on_lost(reason: str) -> None:
        raise ValueError(reason)

    with Locks.lead("scheduler", on_lost=on_lost, **OPTIONS) as campaign:
        terms = []
        for _ in range(2):
            term = elected(campaign)
            terms.append(term.ticket)
            term.resign()
    assert terms == sorted(set(terms))


# Succeeded


def test_a_leader_whose_work_hangs_is_succeeded(clock: VirtualClock) -> None:
    """With `max_hold`: it is told while most of its lease is left, and campaigns again when the work has returned."""
    hangs, reasons = threading.Event(), list[tuple[str, float]]()
    tickets: list[int] = []

    def hang(term: LeaderTerm) -> None:
        tickets.append(term.ticket)
        while not hangs.is_set():
            clock.sleep(LEASE)

    on_lost = lambda reason: reasons.append((reason, clock.elapsed))  # noqa: E731
    with Locks.lead("scheduler", on_elected=hang, on_lost=on_lost, max_hold=30, **OPTIONS) as campaign:
        term = elected(campaign)
        with Locks.lead("scheduler", **OPTIONS) as other:
            began = clock.elapsed
            later = elected(other, timeout=10 * LEASE)
            assert later.ticket > term.ticket
            # The lease was renewed when the term ended, at most.
            assert clock.elapsed - began <= 30 + LEASE * SLOW_CLOCK + LOOK
            assert reasons == [("max_hold", pytest.approx(began + 30, abs=LOOK))]
            assert not campaign.is_leader
            assert len(Locks.lock_state("scheduler").entries) == 1
            hangs.set()
        assert campaign.elected() is not None
    assert len(tickets) == 2


def test_a_leader_without_answers_steps_down_first(clock: VirtualClock) -> None:
    """Before its lease ends, and so before another process can be elected; then it campaigns again."""
    reasons: list[tuple[str, float]] = []
    on_lost = lambda reason: reasons.append((reason, clock.elapsed))  # noqa: E731
    with Locks.lead("scheduler", on_lost=on_lost, **OPTIONS) as campaign:
        term = elected(campaign)
        with on("UpdateItem", times=10_000).lose_request():
            began = clock.elapsed
            clock.sleep(3 * LEASE)
            assert reasons == [("unanswered", pytest.approx(began + LEASE * 3 / 4, abs=LOOK))]
            assert not campaign.is_leader
        later = elected(campaign, timeout=2 * LEASE)
        assert later.ticket > term.ticket


def test_a_process_that_stood_still_knows_at_once(clock: VirtualClock) -> None:
    """Nothing of ours has run yet when it asks."""
    clock.auto_jump = False
    with Locks.lead("scheduler", **OPTIONS) as campaign:
        campaign.elected()
        term = campaign.term
        assert term is not None
        monotonic = clock.monotonic
        clock.monotonic = lambda: monotonic() + LEASE  # type: ignore[method-assign]
        assert not campaign.is_leader
        assert not term.is_leader
        clock.monotonic = monotonic  # type: ignore[method-assign]
        clock.auto_jump = True


def test_work_that_stood_still_leads_no_more(clock: VirtualClock) -> None:
    """It is told although nothing of ours has run yet, and what it was told stays true."""
    clock.auto_jump = False
    with Locks.lead("scheduler", **OPTIONS) as campaign:
        term = campaign.elected()
        assert term is not None
        monotonic = clock.monotonic
        clock.monotonic = lambda: monotonic() + 1.5 * LEASE  # type: ignore[method-assign]
        with pytest.raises(LockLost, match="has ended") as lost:
            term.held_condition()
        assert (lost.value.reason, lost.value.ticket) == ("unanswered", term.ticket)
        clock.monotonic = monotonic  # type: ignore[method-assign]
        clock.auto_jump = True
        assert term.ended.wait(LEASE)
        assert term.reason == "unanswered"


def test_the_longest_term(clock: VirtualClock) -> None:
    """With `max_hold` leaders take turns."""
    with Locks.lead("scheduler", max_hold=30, **OPTIONS) as campaign:
        term = elected(campaign)
        clock.sleep(31)
        assert term.reason == "max_hold"
        later = elected(campaign)
        assert later.ticket > term.ticket


def test_a_broken_lock_ends_the_term(clock: VirtualClock) -> None:
    with Locks.lead("scheduler", **OPTIONS) as campaign:
        term = elected(campaign)
        Locks.break_lock("scheduler", ticket=term.ticket)
        assert term.ended.wait(LEASE)
        assert term.reason == "evicted"
        assert campaign.elected() is not None


# Guards


def test_writes_of_an_earlier_term_are_refused(clock: VirtualClock) -> None:
    """Whatever the old leader believes: DynamoDB refuses the transaction that checks its term."""
    Account("a", balance=0).save()
    connection = Account._get_connection().connection

    def write(term: LeaderTerm, amount: int) -> None:
        with TransactWrite(connection=connection) as transaction:
            term.add_check_to(transaction)
            transaction.update(Account("a"), [Account.balance.set(amount)], add_version_condition=False)

    with Locks.lead("scheduler", **OPTIONS) as first:
        term = elected(first)
        write(term, 1)
        condition = term.held_condition()
        Locks.break_lock("scheduler", ticket=term.ticket)
        with Locks.lead("scheduler", **OPTIONS) as second:
            later = elected(second)
            write(later, 2)
            with pytest.raises((LockLost, TransactWriteError)):
                write(term, 3)
            with pytest.raises(TransactWriteError), TransactWrite(connection=connection) as transaction:
                transaction.condition_check(Locks, "scheduler", condition=condition)
    assert Account.get("a").balance == 2
    with pytest.raises(LockLost):
        term.add_check_to(TransactWrite(connection=connection))


# Begun and stopped


def test_a_campaign_that_waits_is_stopped_at_once(clock: VirtualClock) -> None:
    """It leaves the queue."""
    with Locks.locked("scheduler", settings=APART):
        campaign = Locks.lead("scheduler", **OPTIONS)
        campaign.start()
        clock.sleep(1)
        with pytest.raises(ConfigurationError, match="has begun already"):
            campaign.start()
        assert len(Locks.lock_state("scheduler").waiters) == 1
        began = clock.elapsed
        campaign.stop()
        assert clock.elapsed - began < LOOK
        assert not Locks.lock_state("scheduler").waiters
        assert campaign.elected() is None
    campaign.start()
    assert campaign.elected() is not None
    campaign.stop()
    campaign.stop()


@pytest.mark.parametrize("moment", range(6))
def test_a_campaign_is_stopped_at_any_moment(clock: VirtualClock, moment: int) -> None:
    """Also before its thread has done anything."""
    for _ in range(5):
        campaign = Locks.lead("scheduler", **OPTIONS)
        campaign.start()
        if moment:
            clock.sleep(moment * 0.001)
        campaign.stop()
        assert not Locks.lock_state("scheduler").entries


def test_a_stop_waits_for_work_that_hangs_until_its_lock_is_lost(clock: VirtualClock) -> None:
    """And no longer: another process leads by then."""
    hangs = threading.Event()

    def hang(_: LeaderTerm) -> None:
        while not hangs.is_set() and clock.elapsed < 10 * LEASE:
            clock.sleep(LEASE)

    campaign = Locks.lead("scheduler", on_elected=hang, max_hold=30, **OPTIONS)
    campaign.start()
    elected(campaign)
    began = clock.elapsed
    campaign.stop()
    assert clock.elapsed - began <= 30 + LEASE + LOOK
    hangs.set()


def test_campaigns_that_share_an_entry(clock: VirtualClock) -> None:
    """Those of one process are in one line, and the one that waits there is stopped as well."""
    options = {**OPTIONS, "settings": replace(OPTIONS["settings"], max_callers_per_entry=32)}
    with Locks.lead("scheduler", **options) as first:
        assert first.elected() is not None
        second, third = (Locks.lead("scheduler", **options) for _ in range(2))
        second.start()
        clock.sleep(0.1)
        third.start()
        second.stop()
        first.stop()
        assert third.elected() is not None
        third.stop()
    assert not Locks.lock_state("scheduler").entries


def test_stopped_by_its_own_work(clock: VirtualClock) -> None:
    """Inside of the callbacks it does not wait for itself."""
    campaign = Locks.lead("scheduler", on_elected=lambda _: campaign.stop(wait=False), **OPTIONS)
    campaign.start()
    campaign.stop()
    assert not Locks.lock_state("scheduler").entries


@pytest.mark.parametrize("where", ["on_elected", "on_lost"])
def test_callbacks_do_not_wait_for_themselves(clock: VirtualClock, where: str) -> None:
    """Refused at once, also in the event loop of a callback, and the campaign goes on."""
    heard: list[BaseException] = []

    def stop(_: object) -> None:
        async def from_a_task() -> None:
            campaign.stop()

        for wait in (campaign.stop, lambda: asyncio.run(from_a_task())):
            with pytest.raises(ConfigurationError, match=r"would wait for themselves: call stop\(wait") as refused:
                wait()
            heard.append(refused.value)

    with Locks.lead("scheduler", **{where: stop}, **OPTIONS) as campaign:
        term = elected(campaign)
        began = clock.elapsed
        if where == "on_lost":
            term.resign()
            assert campaign.elected() is not None
        while len(heard) < 2:
            clock.sleep(0.1)
        assert campaign.elected() is not None
        assert clock.elapsed - began < LEASE / 3


def test_an_error_ends_no_campaign(memory: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A table that is missing for a while; the log says so, and each pause is a third of a lease."""
    memory.bind(Locks)
    Locks.delete_table()
    errors = 0

    def note(record: Any) -> bool:
        nonlocal errors
        errors += "goes on after an error" in record.getMessage()
        if errors > 20:  # no time passes, so nothing else would end it
            campaign.stop(wait=False)
        return True

    with VirtualClock() as clock, caplog.filtering(note), Locks.lead("scheduler", **OPTIONS) as campaign:
        assert campaign.elected(timeout=LEASE) is None
        assert 3 <= errors <= 4, f"each has a pause of a third of a lease: {errors} in {clock.elapsed / LEASE:g} leases"
        Locks.create_table()
        assert campaign.elected(timeout=LEASE) is not None
        assert clock.elapsed < 2 * LEASE


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_lead(memory: Engine) -> None:
    memory.bind(Locks)
    with Locks.lead("scheduler") as campaign:
        assert campaign.elected() is not None
        child = os.fork()
        if not child:
            os._exit(campaign.is_leader or campaign.elected() is not None)
        assert os.waitpid(child, 0)[1] == 0
        assert campaign.is_leader


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 1}, "lease .* is too short"),
        ({"on_elected": 7}, "on_elected is called in a thread"),
        ({"on_lost": asyncio.sleep}, "on_lost is called in a thread"),
    ],
)
def test_options_that_cannot_work(memory: Engine, options: dict[str, Any], message: str) -> None:
    memory.bind(Locks)
    with pytest.raises(ConfigurationError, match=message):
        Locks.lead("scheduler", **options)


def test_the_cost_of_a_term(clock: VirtualClock) -> None:
    """1 write to begin, 1 to end, and none to ask."""
    with Locks.locked("scheduler", settings=APART):  # creates the row
        pass
    clock.auto_jump = False  # however long this thread takes: no lease is renewed
    with count_requests() as counted, Locks.lead("scheduler", settings=APART) as campaign:
        term = elected(campaign)
        for _ in range(100):
            assert term.is_leader
    assert counted.by_operation == {"UpdateItem": 2}


# Tasks


def test_tasks(clock: VirtualClock) -> None:
    """A task waits to be elected while others go on, and is succeeded when it leaves the block."""

    async def lead() -> None:
        async with Locks.lead("scheduler", settings=APART) as first:
            term = await first.aelected()
            assert term is not None
            assert term.is_leader
            async with Locks.lead("scheduler", settings=APART) as second:
                assert await second.aelected(timeout=0.05) is None
                waiting = asyncio.ensure_future(second.aelected())
                await asyncio.sleep(0)
                term.resign()
                later = await waiting
                assert later is not None
                assert later.ticket > term.ticket
            assert not second.is_leader

    asyncio.run(lead())
    assert not Locks.lock_state("scheduler").entries


def test_a_task_that_is_cancelled_leaves_nothing(clock: VirtualClock) -> None:

    async def lead(is_elected: asyncio.Event) -> None:
        async with Locks.lead("scheduler", settings=APART) as campaign:
            await campaign.aelected()
            is_elected.set()
            await asyncio.sleep(1000)

    async def cancel() -> None:
        is_elected = asyncio.Event()
        task = asyncio.ensure_future(lead(is_elected))
        await is_elected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not Locks.lock_state("scheduler").entries
