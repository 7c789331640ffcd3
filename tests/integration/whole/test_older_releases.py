"""Rows that older releases have stored, and their processes on the same tables: in memory, from what they once sent.

A file in ``stored/`` has the rows and requests of each release; `tests.support.recorder` makes it, and stores the same
again with today's code. The names of its scenes are those of the tests here.
"""

from __future__ import annotations

import collections
import copy
import itertools
import random
import re
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import DoesNotExist

from pynamo_locking import transaction, transactional
from pynamo_locking.exceptions import (
    ItemLocked,
    LockTimeout,
    NotUnique,
    OverlapError,
    StaleVersion,
)
from tests.support import recorder
from tests.support.frozen_writer import RELEASES, FrozenWriter, Holding, Recording
from tests.support.recorder import (
    BEGIN,
    FEW,
    LEASE_S,
    Calls,
    Counter,
    Entry,
    Member,
    Names,
    Purse,
    Robot,
    Session,
    Slot,
    Transactions,
    dying,
    party,
    world,
)
from tests.support.transaction_models import make_long_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing import VirtualClock
    from tests.support.recorder import Database

AT_MS: Final = int(BEGIN.timestamp() * 1000)
#: Releases before the numbers of the format stored the same without them.
WITHOUT_NUMBERS: Final = "without numbers"


@pytest.fixture(params=RELEASES)
def recording(request: pytest.FixtureRequest) -> Recording:
    """What each of the older releases has stored and sent."""
    return Recording.of(request.param)


@pytest.fixture(params=["numbered", WITHOUT_NUMBERS])
def clock(request: pytest.FixtureRequest, recording: Recording) -> Iterator[VirtualClock]:
    """A second after the rows of the scene that a test is named after were stored."""
    rows = copy.deepcopy(recording.rows[request.function.__name__.removeprefix("test_")])
    if request.param == WITHOUT_NUMBERS:
        without_numbers(rows)
    with world(BEGIN + timedelta(seconds=1)) as (database, clock):
        database.put(rows)  # type: ignore[arg-type]
        yield clock


def without_numbers(stored: Any) -> None:
    """Take the numbers of the format away, wherever they are."""
    if isinstance(stored, dict):
        stored.pop("f", None)
    for each in stored.values() if isinstance(stored, dict) else stored if isinstance(stored, list) else ():
        without_numbers(each)


def is_locked(lock: Any) -> bool:
    """Whether a lock cannot be had at once."""
    try:
        with lock:
            return False
    except LockTimeout:
        return True


def balances() -> dict[str, int]:
    return {purse.name: int(purse.balance) for purse in Purse.scan(consistent_read=True)}


def have_no_intents() -> bool:
    """Whether no transaction has anything to finish."""
    report = Transactions.sweep()
    return report.failed == {} and Transactions.sweep().examined == 0


# Locks


def test_free_locks(clock: VirtualClock) -> None:
    """They are taken, and their tickets go on."""
    with Counter.edit("a", wait=0) as item:
        item.value += 1
    for lock in (Counter.locked("a"), Names.locked("n"), Robot.locked("r")):
        with lock:
            assert lock.ticket > BEGIN.timestamp() * 1_000_000
            assert lock.ticket < BEGIN.timestamp() * 1_000_000 + 3
    assert Counter.get("a").value == 2


def test_never_locked(clock: VirtualClock) -> None:
    """An item that has no lock gets one."""
    with Counter.edit("a", wait=0) as item:
        item.value += 1
    assert Counter.get("a").value == 2


def test_held_and_queued(clock: VirtualClock) -> None:
    """Holder and waiter keep others out until their leases have ended; what is written outside is refused."""
    assert is_locked(Counter.locked("a", wait=LEASE_S - 5))
    with pytest.raises(ItemLocked):
        Counter("a", value=7).save()
    assert is_locked(Names.locked("n", wait=0))
    before = Counter.lock_state("a").entries
    assert len(before) == 2
    with Counter.locked("a", wait=9 * LEASE_S) as lock, Names.locked("n", wait=9 * LEASE_S):
        assert lock.ticket > max(entry.ticket for entry in before)
        lock.item.value += 1
        lock.item.save()
    assert Counter.lock_state("a").entries == ()
    assert Counter.get("a").value == 2


def test_renewed(clock: VirtualClock) -> None:
    """Its lease is counted from the last renewal, and people see since when it is held."""
    [entry] = Counter.lock_state("a").entries
    assert (entry.heartbeats, entry.granted_ms, entry.until_ms) == (1, AT_MS, AT_MS + 10_000 + LEASE_S * 1000)
    assert is_locked(Counter.locked("a", wait=LEASE_S - 2))
    assert not is_locked(Counter.locked("a", wait=9 * LEASE_S))


def test_evicted(clock: VirtualClock) -> None:
    """Nobody is in the queue any more."""
    assert not is_locked(Counter.locked("a", wait=0))


def test_shared(clock: VirtualClock) -> None:
    """Another reader comes in beside them, a writer does not."""
    assert not is_locked(Counter.locked("a", shared=True, wait=0))
    assert is_locked(Counter.locked("a", wait=0))


def test_permits(clock: VirtualClock) -> None:
    """Both permits are taken until the leases have ended."""
    assert is_locked(Names.locked("pool", permits=2, wait=0))
    assert not is_locked(Names.locked("pool", permits=2, wait=9 * LEASE_S))


def test_ranges(clock: VirtualClock) -> None:
    """What overlaps waits, what touches does not."""
    assert is_locked(Slot.locked_range("r", 19, 25, wait=0))
    assert not is_locked(Slot.locked_range("r", 20, 25, wait=0))
    assert not is_locked(Slot.locked_range("r", 5, 10, wait=0))


def test_in_lock_table(clock: VirtualClock) -> None:
    """The lock of an item in a row of its own."""
    assert is_locked(Robot.locked("r", wait=0))
    with pytest.raises(LockTimeout):
        Robot.edit("r", wait=0).__enter__()
    with Robot.edit("r", wait=9 * LEASE_S) as robot:
        robot.total += 1
    assert Robot.get("r").total == 2


def test_once(clock: VirtualClock) -> None:
    """It has run in this period, and not in the next one."""
    with Names.once("nightly", period=3600) as run:
        assert (bool(run), run.status) == (False, "done")
    clock.jump(3600)
    with Names.once("nightly", period=3600) as run:
        assert run


# Versions, and rows beside items


def test_versions(clock: VirtualClock) -> None:
    """A copy is as good as the last write, and refused after another one."""
    first, second = Purse.get("p"), Purse.get("p")
    first.save()
    assert (first.version, first.balance, first.note) == (4, 3, "n")
    with pytest.raises(StaleVersion):
        second.save()


def test_unique(clock: VirtualClock) -> None:
    """The value is taken until its holder gives it up."""
    with pytest.raises(NotUnique):
        Member("n", email="a@example.com").save()
    holder = Member.get("m")
    holder.email = "b@example.com"
    holder.save()
    Member("n", email="a@example.com").save()
    assert Member.check_unique().is_sound


def test_intervals(clock: VirtualClock) -> None:
    """They are in the way of what overlaps them, and are moved."""
    with pytest.raises(OverlapError):
        Slot.intervals.insert_disjoint([Slot("r", 3, end=5)])
    Slot.intervals.insert_disjoint([Slot("r", 4, end=5)])
    Slot.intervals.move(Slot.get("r", 2), 1, 3)
    assert [(slot.begin, slot.end) for slot in Slot.query("r")] == [(1, 3), (4, 5), (5, 8)]


def test_expiring(clock: VirtualClock) -> None:
    """An item counts as absent from its time on."""
    assert Session.get("short").version == 1
    clock.jump(60)
    with pytest.raises(DoesNotExist):
        Session.get("short")
    Session("short").save()
    session = Session.get("long")
    session.save()
    assert session.version == 2


def test_calls(clock: VirtualClock) -> None:
    """A result and an error are told again; a call whose process has died is made, when its lease has ended."""
    with Calls.call("result", payload=[1]) as call:
        assert call.result == {"n": 1}
    with pytest.raises(KeyError, match="never"), Calls.call("error", store_errors=(KeyError,)):
        raise AssertionError
    with Calls.call("dead", wait=9 * LEASE_S) as call:
        assert not call.is_repeated
        call.result = 2
    clock.jump(86_400)
    with Calls.call("result", payload=[1]) as call:
        assert not call.is_repeated


# Transactions


def test_pending(clock: VirtualClock) -> None:
    """Its process has died: who meets it waits for the end of its lease, and aborts it."""
    assert set(balances().values()) == {1}
    for name in ("p0", "p1", "p2"):
        with transaction(wait=60) as tx:
            purse = tx.get(Purse, name)
            purse.balance += 1
            tx.save(purse)
    assert have_no_intents()
    assert balances() == {"p0": 2, "p1": 2, "p2": 2}


def test_committed(clock: VirtualClock) -> None:
    """Who meets it, completes it: by a read in a transaction, a lock, or a write."""
    with transaction() as tx:
        assert [tx.get(Purse, name).balance for name in ("p0", "p1", "p3")] == [11, 11, 13]
        assert tx.get_or_none(Purse, "p2") is None
    with Purse.edit("p1", wait=0) as purse:
        purse.balance += 1
    assert have_no_intents()
    assert balances() == {"p0": 11, "p1": 12, "p3": 13}


def test_changes_beside(clock: VirtualClock) -> None:
    """The sweep finds them in their rows."""
    assert have_no_intents()
    assert balances() == {"p0": 11, "p1": 11, "p3": 13}
    assert Purse.get("p3").note == "n" * 40


def test_aborted(clock: VirtualClock) -> None:
    """Its intents count for nothing."""
    with Purse.edit("p2", wait=0) as purse:
        assert purse.balance == 1
        purse.balance += 1
    assert have_no_intents()
    assert balances() == {"p0": 1, "p1": 1, "p2": 2, "p3": 2}


def test_finished(clock: VirtualClock) -> None:
    """There is nothing left to do, and its key is used."""
    assert have_no_intents()
    check_key()


def test_keyed(clock: VirtualClock) -> None:
    """A key without a record is used as well."""
    check_key()


def check_key() -> None:
    before = balances()
    assert Transactions.outcome(idempotency_key="k") == "committed"
    with transaction(Transactions, idempotency_key="k") as tx:
        tx.save(Purse("new"))
    assert balances() == before


def test_suspended(clock: VirtualClock) -> None:
    """Another process goes on with it, under its key."""
    [row] = [row for row in Transactions.scan() if row.id.startswith("suspended#")]
    with transaction(Transactions) as tx:
        tx.resume(row.id.removeprefix("suspended#"), [Purse])
    assert balances() == {"p0": 11, "p1": 1}
    check_key()


def test_unique_in_a_transaction(clock: VirtualClock) -> None:
    """Values that a dead process has only meant to take are free when its lease has ended."""
    Member("x", email="m@example.com").save()
    assert have_no_intents()
    assert Member.check_unique().is_sound
    assert [member.name for member in Member.scan()] == ["x"]


def test_queried(clock: VirtualClock) -> None:
    """The guard of a hash key goes on: a query is refused that does not see a new item."""
    with pytest.raises(StaleVersion), transaction() as tx:
        assert len(tx.query(Entry, "b")) == 1
        party(clock, lambda: save_in_a_transaction(Entry("b", 2)))
        tx.save(Entry("c", 1))


def save_in_a_transaction(item: Any) -> None:
    with transaction() as tx:
        tx.save(item)


# The form of what is stored

#: Optional fields of an entry that came later, without another format: see `FORMAT`. The older releases overlook them.
ADDED: Final = frozenset[str]()


@pytest.mark.parametrize("scene", recorder.SCENES)
def test_what_is_stored_has_the_same_form(recording: Recording, scene: str) -> None:
    """As long as the number is the same: else a release that knows this number would read what it does not know.

    A new field is refused here, until somebody says in `ADDED` that an older release may overlook it.
    """
    now = recorder.rows_of(recorder.SCENES[scene])
    for row in now.get(Counter.__name__, ()):  # which had no version when it was recorded
        for name in ("version", "version_write_id"):
            row.pop(name, None)
    assert {name: forms(rows) for name, rows in now.items()} == {
        name: forms(rows) for name, rows in recording.rows[scene].items()
    }


def forms(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(form(row)) for row in rows)


def form(stored: Any) -> Any:
    """Names and types, without values and drawn names."""
    if isinstance(stored, list):
        return [form(each) for each in stored]
    if not isinstance(stored, dict):
        return None
    drawn = re.compile(r"[0-9a-f]{20}|^[\w-]{14}$")
    return sorted((drawn.sub("*", name), form(value)) for name, value in stored.items() if name not in ADDED)


# Processes of both releases

Both = tuple[recorder.Database, recorder.VirtualClock, FrozenWriter]


@pytest.fixture
def both(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """Some items, and a process of an older release."""
    make_long_from(monkeypatch, FEW, statements=1)
    with world() as (database, clock):
        Counter("a").save()
        for number in range(4):
            Purse(f"p{number}", balance=100).save()
        yield database, clock, FrozenWriter(database, clock, recording)


def interleave(database: Database, act: Callable[[], object], old: Iterator[None], seed: int) -> None:
    """Do something; before each request that it makes, the older release takes some steps, and the rest afterwards."""
    chooser, mutex = random.Random(seed), threading.Lock()

    def before(_operation: str, _kwargs: object) -> None:
        with mutex:
            for _ in range(chooser.choice((0, 0, 1, 1, 2, 4))):
                next(old, None)

    for _ in range(chooser.randrange(4)):
        next(old, None)
    database.before = before
    act()
    database.before = lambda *_: None
    for _ in range(1_000):
        if next(old, "over") == "over":
            return
    raise AssertionError("the older release does not come to an end")


SEEDS: Final = range(15)


def test_locks_of_both_releases(both: Both) -> None:
    """No update is lost, one process holds a lock at a time, and the tickets grow."""
    database, _, old = both
    held = list[Holding]()

    def edit() -> None:
        with Counter.edit("a") as item:
            item.value += 1

    def hold() -> None:
        with Names.locked("n") as lock:
            begin = len(database.sent)
            lock.renew()
            held.append(Holding(lock.ticket or 0, begin, len(database.sent)))

    for seed in SEEDS:
        interleave(database, edit, old.add_one("a"), seed)
        interleave(database, hold, old.hold("n"), seed)
        assert Counter.get("a").value == 2 * (seed + 1), seed
    assert Counter.lock_state("a").entries == Names.lock_state("n").entries == ()
    assert len(held) == len(SEEDS)
    of_names = sorted([*held, *(each for each in old.held if each.table == "names")])
    assert all(one.end <= after.begin for one, after in itertools.pairwise(of_names)), of_names


def change(name: str, amount: int) -> None:
    """Change a purse by its version."""
    Purse.modify(name, lambda purse: setattr(purse, "balance", purse.balance + amount), attempts=50)


def edit(name: str, amount: int) -> None:
    """Change a purse under its lock."""
    with Purse.edit(name) as purse:
        purse.balance += amount


def move(*names: str) -> None:
    """Move money around, in a transaction; with four purses it is a long one."""

    @transactional(attempts=50, wait=30)
    def act(tx: Any) -> None:
        for purse, amount in zip(tx.get_all(Purse, names), itertools.cycle((-3, 3)), strict=False):
            purse.balance += amount
            tx.save(purse)

    act()


#: What today's release does to purses, by how much money is there more afterwards.
ACTS: Final[dict[str, tuple[Callable[[], object], int]]] = {
    "modify": (lambda: change("p3", 1), 1),
    "edit": (lambda: edit("p0", 1), 1),
    "native": (lambda: move("p0", "p3"), 0),
    "long": (lambda: move("p3", "p2", "p1", "p0"), 0),
}


@pytest.mark.parametrize("act", ACTS)
def test_transactions_of_both_releases(both: Both, act: str) -> None:
    """Each write counts once, and no money is lost, whichever of them meets what of the other one."""
    database, _, old = both
    do, more = ACTS[act]
    for seed in SEEDS:
        for theirs, added in ((old.add_to("p3", 1), 1), (old.move(), 0), (old.move_among_four(), 0)):
            before, done = sum(balances().values()), old.done
            interleave(database, do, theirs, seed)
            assert sum(balances().values()) == before + more + added, (seed, theirs)
            assert old.done == done + 1, (seed, theirs)
    assert have_no_intents()


def test_reads_beside_the_other_release(both: Both) -> None:
    """A transaction that reads sees each long one of an older release whole, or not at all."""
    database, _, old = both

    @transactional(attempts=50, wait=30, read_only=True)
    def read(tx: Any) -> int:
        return sum(int(purse.balance) for purse in tx.get_all(Purse, [f"p{i}" for i in range(4)]))

    for seed in SEEDS:
        sums = list[int]()
        interleave(database, lambda: sums.extend(read() for _ in range(4)), old.move_among_four(), seed)  # noqa: B023
        assert sums == [400] * 4, seed
    assert old.done == len(SEEDS)


@pytest.mark.parametrize("act", ACTS)
def test_deaths_of_the_other_release(both: Both, act: str) -> None:
    """Wherever an older release has died, today's completes or undoes what it finds, and goes on."""
    _, clock, old = both
    do, more = ACTS[act]
    for number in range(14):
        steps, before = old.move_among_four(), sum(balances().values())
        for _ in range(number):
            next(steps, None)
        steps.close()
        do()
        clock.jump(60)
        assert have_no_intents(), number
        assert sum(balances().values()) == before + more, number
    assert old.done, "the last one has come to its end"


def test_deaths_of_a_holder_of_the_other_release(both: Both) -> None:
    """Its lock is had after its lease, and what it has written counts."""
    _, _, old = both
    for number in range(6):
        steps, before = old.add_one("a"), Counter.get("a").value
        for _ in range(number):
            next(steps, None)
        steps.close()
        with Counter.edit("a", wait=9 * LEASE_S) as item:
            item.value += 1
        assert Counter.get("a").value - before == 1 + (number >= 4), number
        assert Counter.lock_state("a").entries == ()


def test_deaths_of_todays_release(both: Both) -> None:
    """An older release resolves what it finds, by its own requests; then nothing is left, and no money is lost."""
    database, _, old = both
    left = collections.Counter[int]()
    for number in range(4, 14):
        sent = itertools.count()
        with dying(database, lambda *_: next(sent) == number):  # noqa: B023
            party(both[1], lambda: move("p0", "p1", "p2", "p3"))
        rows = database.rows()["Purse"]
        left[sum("tx" in row.get("lock", {}).get("M", {}) for row in rows)] += 1
        old.resolve(rows)
        assert sum(balances().values()) == 400, number
        move("p3", "p2", "p1", "p0")  # meets no intent
    assert left.keys() == {0, 1, 2}


def test_intervals_of_both_releases(both: Both) -> None:
    """No booking overlaps another one, and each is stored that was told so."""
    database, _, old = both
    stored = 0
    for seed in SEEDS:
        begin = 10 * seed
        told = list[int]()

        def book(begin: int = begin, told: list[int] = told) -> None:
            for number in (0, 4):
                with suppress(OverlapError):
                    Slot.intervals.insert_disjoint([Slot("r", begin + number, end=begin + number + 3)], wait=30)
                    told.append(number)

        interleave(database, book, old.book(begin + 2, begin + 6), seed)
        stored += len(told)
    ends = sorted((int(slot.begin), int(slot.end)) for slot in Slot.query("r"))
    assert all(one[1] <= after[0] for one, after in itertools.pairwise(ends)), ends
    assert len(ends) == stored + old.done
    assert 0 < old.done < len(SEEDS)
