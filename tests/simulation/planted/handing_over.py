"""Bugs of callers of one process that share an entry: who is next, under which ticket, and what is stored for it.

Some that one would expect are not here. That the next caller's entry has the id of the one before cannot be written:
DynamoDB refuses a request that sets a path and removes it. Numbers of writes that start anew are harmless, since each
caller has an entry of its own. A guard that names the entry and not its ticket is wrong, but it takes a late copy of
the request to enter and then one of a write, both while another caller holds the lock: 2,500 runs did not have that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import QueueEntry
from pynamo_locking._io import lock_requests, protocol, runtime
from pynamo_locking._io.client import Refused
from pynamo_locking._io.protocol import Clause
from pynamo_locking._locks import local_queue
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces
from tests.simulation.planted.queue import other_condition

#: Two processes, each with callers that share an entry.
_SHARED = Plan("edit", parties=4, processes=2, rounds=2, block=32)

#: Callers that release, so that the write that hands over is one of the lock's own requests.
_RELEASED = _SHARED.but(workload="embedded")


def _other_succession(change: Any) -> Patches:
    """Change what is stored for the next caller."""
    succession = local_queue.handover_to_next

    def changed(caller: Any, entry: Any) -> Any:
        after = succession(caller, entry)
        return None if after is None else change(after, caller, entry)

    return [(local_queue, "handover_to_next", changed)]


# Requests


@plants(_SHARED.but(workload="embedded", parties=6, faults={Fault.LATE: 6}), "SoundQueue", "Fifo", "Fence", "OneHolder")
def handed_over_twice() -> Patches:
    """A late copy of the write that hands an entry over stores the next entry again."""
    return other_condition(r"#l\.#q\.#me\[0\] = :ticket$", "attribute_exists(#l.#q)")


@plants(_RELEASED.but(faults={Fault.PAUSE_BEFORE: 1}), "Truth", "OneHolder", "Fence", "ToldLoss")
@replaces(lock_requests, "hand_over")
def a_refusal_to_hand_over_is_a_copy(hand_over: Any, row: Any, *arguments: Any) -> Any:
    """A write that should hand over and is refused counts as applied, also after an eviction."""
    try:
        return hand_over(row, *arguments)
    except Refused as refused:
        return refused.image


@plants(_RELEASED.but(processes=1, faults={Fault.LATE: 3}), "Growing", "Fence")
def a_late_write_of_an_earlier_caller() -> Patches:
    """A write under the lock asks whether its process has an entry, and not whether its caller has."""
    return [(protocol, "FENCE", Clause("attribute_exists(#l.#q)"))]


# Tickets


@plants(_SHARED, "SoundQueue")
def one_ticket_for_all() -> Patches:
    """All callers that share an entry have its ticket."""
    return _other_succession(lambda after, _, entry: after._replace(ticket=after.ticket and entry.ticket))


@plants(_SHARED, "SoundQueue")
@replaces(lock_requests, "_update")
def tickets_are_not_counted(update: Any, row: Any, clause: Any, given: Any, **options: Any) -> Any:
    """Entering draws a ticket for each caller, and counts one."""
    return update(row, clause, {**given, ":members": {"N": "1"}}, **options)


@plants(_SHARED, "SoundQueue")
def the_last_ticket_stays() -> Patches:
    """After the last ticket of a draw, the next caller goes on under the same one, ahead of all other processes."""
    return _other_succession(lambda after, _, entry: after._replace(ticket=after.ticket or entry.ticket))


@plants(_SHARED, "SoundQueue")
def a_block_without_end() -> Patches:
    """An entry always stands for one caller more, so that its process keeps the lock."""

    def change(after: Any, _: Any, entry: Any) -> Any:
        return after._replace(ticket=entry.ticket + 1, new=after.new._replace(members=2))

    return _other_succession(change)


@plants(_SHARED.but(parties=8, block=2), "Turns")
def a_block_of_any_size() -> Patches:
    """A process draws as many tickets as it has callers, however many may share an entry."""
    return [(local_queue, "_drawing", lambda _, cohort: len(cohort.waiting) + 1)]


@plants(_SHARED.but(parties=6), "Turns")
def one_ticket_at_a_time() -> Patches:
    """A process draws one ticket for its next caller, and lets all others pass before it draws another."""
    return [(local_queue, "_drawing", lambda *_: 1)]


# Turns


@plants(_RELEASED.but(processes=1), "Turns")
@replaces(local_queue, "enqueue_locally")
def the_last_comer_is_next(join: Any, caller: Any) -> Any:
    """A caller lines up before those that wait already."""
    leads = join(caller)
    cohort = local_queue.local_queues.get(caller.row.identity)
    if cohort is not None and caller in cohort.waiting:
        cohort.waiting.move_to_end(caller, last=False)
    return leads


@plants(Plan("downgrade", parties=6, processes=2, rounds=2, block=32), "OneHolder", "Fifo", first_seed=10_000)
@replaces(local_queue, "handover_to_next")
def handed_over_by_a_reader(succession: Any, caller: Any, entry: Any) -> Any:
    """A holder that shares its lock hands it over to a caller that comes ahead of other readers."""
    return succession(caller, entry and replace(entry, lock_mode=WHOLE))


@plants(_SHARED, "Quiet", "Calm", "Progress")
def the_next_caller_is_not_called() -> Patches:
    """A release does not wake the next caller of its process."""
    return [(local_queue, "let_next_lead", lambda *_: None)]


@plants(_SHARED.but(workload="callers", parties=2), "Quiet", "Calm", "Progress")
def who_gives_up_stays_in_line() -> Patches:
    """A caller whose time is over does not leave the line, and everybody behind it waits for it."""
    return [(local_queue, "abandon", lambda _: None)]


@plants(Plan("cancelled tasks", parties=3, processes=1, rounds=2, block=32), "KeptPlace", "Quiet")
def what_is_not_collected_stays() -> Patches:
    """The entry that was stored for a caller that had left stays in the queue."""
    return [(local_queue, "_remove_handed_over", lambda _: None), (local_queue, "was_handed_over", lambda _: False)]


def _remember(after: Any, caller: Any, _: Any) -> Any:
    following: Any = local_queue.local_queues[caller.row.identity].called
    following.after = after
    return after


def _believed(self: Acquisition, after: Any) -> Any:
    """Return a grant for what was to be stored, without a look at what is."""
    new, ticket, caller = after.new, after.ticket, self._caller
    entry = QueueEntry(new.id, ticket, new.owner, WHOLE, int(new.lease * 1000), 0, 0, 0, new.members)
    held = HeldEntry(self._row, entry, self._started, 0, self._state.since, {})
    held.image, held.caller = None, caller
    return held


@plants(_SHARED.but(faults={Fault.HOT: 3}), "OneHolder", "Fence", "TrueLoss", "Fifo", first_seed=30_000)
def handed_over_without_an_answer() -> Patches:
    """A caller believes that the lock was handed over to it, whatever became of the write."""
    wait_for_turn = Acquisition._wait_for_turn
    patches = _other_succession(_remember)

    def believe(self: Any, image: Any) -> Any:
        after = getattr(self._caller, "after", None)
        if image is None and self._may_be_in and after is not None and after.ticket is not None:
            return _believed(self, after)
        return (yield from wait_for_turn(self, image))

    return [*patches, (Acquisition, "_wait_for_turn", believe)]


@plants(_SHARED, "OneHolder", "Fifo", "Fence")
def the_next_one_begins_early() -> Patches:
    """A caller begins when the write that hands over to it is sent, and not when it is answered."""
    patches = handed_over_without_an_answer()
    [(_, _, changed), *others] = patches

    def early(caller: Any, entry: Any) -> Any:
        after = changed(caller, entry)
        if after is not None and after.ticket is not None:
            local_queue.let_next_lead(caller)
        return after

    return [(local_queue, "handover_to_next", early), *others]


@plants(_RELEASED.but(faults={Fault.PAUSE_AFTER: 1}), "OneHolder", "Fifo", first_seed=10_000)
@replaces(local_queue, "accept_handover")
def lease_from_when_it_comes(come: Any, caller: Any) -> Any:
    """The lease of an entry that was handed over counts from when its caller comes for it."""
    handed_over = come(caller)
    return handed_over and (runtime.current.monotonic(), handed_over[1])
