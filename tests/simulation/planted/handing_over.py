"""Bugs of callers of one process that share an entry: who is next, under which ticket, and what is stored for it.

Some that one would expect are not here. That the next caller's entry has the id of the one before cannot be written:
DynamoDB refuses a request that sets a path and removes it. Numbers of writes that start anew are harmless, since each
caller has an entry of its own. A guard that names the entry and not its ticket is wrong, but it takes a late copy of
the request to enter and then one of a write, both while another caller holds the lock: 2,500 runs did not have that.
"""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

#: Two processes, each with callers that share an entry.
_SHARED = Plan("edit", parties=4, processes=2, rounds=2, block=32)

#: Callers that release, so that the write that hands over is one of the lock's own requests.
_RELEASED = _SHARED.but(workload="embedded")

_SOUND_QUEUE = Search(_SHARED, "SoundQueue")
_DOWNGRADE = Plan("downgrade", parties=6, processes=2, rounds=2, block=32)
_CANCELLED = Plan("cancelled tasks", parties=3, processes=1, rounds=2, block=32)

_NEXT_TICKET: Final = "standing_for(entry.callers - 1), entry.ticket + 1)"
_LEAVES: Final = "caller.has_left = True"
_DRAWN: Final = "return min(len(queue.waiting) + 1, caller.most)"

#: Let the next caller lead, with the item as it will be if the write that hands over is applied.
_BELIEVED: Final = (
    "ticket = after.ticket or entry.ticket + 1\n"
    "        stored = after.new.stored(runtime.current.time_ms(), ticket)\n"
    "        document = lock_requests.lock_record.new_document(after.new.id, stored, ticket)\n"
    "        local_queue.let_next_lead(caller, {row.attribute: document})"
)

BUGS: Final = (
    # Requests
    bug(
        "handed over twice: A late copy of the write that hands an entry over stores the next entry again.",
        Search(_RELEASED.but(parties=6, faults={Fault.LATE: 6}), "SoundQueue", "Fifo", "Fence", "OneHolder"),
        Change(
            "_io/protocol.py", "HAND_OVER: Final = OWN_ENTRY", 'HAND_OVER: Final = Clause("attribute_exists(#l.#q)")'
        ),
    ),
    bug(
        "a refusal to hand over is a copy: A refused write that should hand over counts as applied.",
        Search(_RELEASED.but(faults={Fault.PAUSE_BEFORE: 1}), "Truth", "OneHolder", "Fence", "ToldLoss"),
        Change("_locks/release.py", "row.state(refused.image).find(after.new.id) is None:", "False:"),
    ),
    bug(
        "a late write of an earlier caller: A write asks for an entry, and not for that of its caller.",
        Search(_RELEASED.but(processes=1, faults={Fault.LATE: 3}), "Growing", "Fence"),
        Change("_io/protocol.py", "OWN_ENTRY + Clause(_LATEST) + NO_INTENT", 'Clause("attribute_exists(#l.#q)")'),
    ),
    # Tickets
    bug(
        "one ticket for all: All callers that share an entry have its ticket.",
        _SOUND_QUEUE,
        Change("_locks/local_queue.py", _NEXT_TICKET, "standing_for(entry.callers - 1), entry.ticket)"),
    ),
    bug(
        "tickets are not counted: Entering draws a ticket for each caller, and counts one.",
        _SOUND_QUEUE,
        Change("_io/lock_requests.py", "number(entry.callers)", "number(1)"),
    ),
    bug(
        "the last ticket stays: After the last ticket of a draw, the next caller has the same one.",
        _SOUND_QUEUE,
        Change("_locks/local_queue.py", "standing_for(drawn), None)", "standing_for(drawn), entry.ticket)"),
    ),
    bug(
        "a block without end: An entry always stands for one caller more, so that its process keeps the lock.",
        _SOUND_QUEUE,
        Change("_locks/local_queue.py", _NEXT_TICKET, "standing_for(entry.callers + 1), entry.ticket + 1)"),
    ),
    bug(
        "a block of any size: A process draws as many tickets as it has callers, however many may share an entry.",
        Search(_SHARED.but(parties=8, block=2), "Turns"),
        Change("_locks/local_queue.py", _DRAWN, "return len(queue.waiting) + 1"),
    ),
    bug(
        "one ticket at a time: A process draws one ticket, and lets all others pass before it draws another.",
        Search(_SHARED.but(parties=6), "Turns"),
        Change("_locks/local_queue.py", _DRAWN, "return 1"),
    ),
    # Turns
    bug(
        "the last comer is next: A caller lines up before those that wait already.",
        Search(_RELEASED.but(processes=1), "Turns"),
        Change("_locks/local_queue.py", "self.called or next(iter(", "self.called or next(reversed("),
    ),
    bug(
        "handed over by a reader: A holder that shares its lock hands it over, ahead of other readers.",
        Search(_DOWNGRADE, "OneHolder", "Fifo", first_seed=10_000),
        Change("_locks/local_queue.py", "entry is None or entry.lock_mode != WHOLE:", "entry is None:"),
    ),
    bug(
        "the next caller is not called: A release does not wake the next caller of its process.",
        Search(_SHARED, "Quiet", "Calm", "Progress"),
        Change("_locks/local_queue.py", f"{_LEAVES}\n        due = queue.settle(caller, image)", "due = []"),
    ),
    bug(
        "who gives up stays in line: A caller whose time is over stays, and everybody behind waits for it.",
        Search(_SHARED.but(workload="callers", parties=2), "Quiet", "Calm", "Progress"),
        Change("_locks/local_queue.py", '"""Leave the local queue, wherever the caller is in it."""', "return"),
    ),
    bug(
        "what is not collected stays: The entry that was stored for a caller that had left stays in the queue.",
        Search(_CANCELLED, "KeptPlace", "Quiet"),
        Change("_locks/local_queue.py", "[partial(caller.remove, caller.row, caller.new.id)]", "[]"),
        Change("_locks/local_queue.py", "caller.sign is not None and accept_handover", "False and accept_handover"),
    ),
    bug(
        "handed over without an answer: A caller is let in, whatever became of the write.",
        Search(_RELEASED.but(faults={Fault.HOT: 3}), "OneHolder", "Fence", "TrueLoss", "Fifo", first_seed=30_000),
        Change(
            "_locks/release.py",
            "    except Refused as refused:\n        if",
            f"    except Unavailable:\n        {_BELIEVED}\n        raise\n    except Refused as refused:\n        if",
        ),
    ),
    bug(
        "the next one begins early: A caller begins when the write that hands over is sent.",
        Search(_RELEASED, "OneHolder", "Fifo", "Fence"),
        Change(
            "_locks/release.py",
            "        image = client.patiently(lambda: lock_requests.hand_over(",
            f"        {_BELIEVED}\n        image = client.patiently(lambda: lock_requests.hand_over(",
        ),
    ),
    bug(
        "lease from when it comes: The lease of an entry counts from when its caller comes for it.",
        Search(_RELEASED.but(faults={Fault.PAUSE_AFTER: 1}), "OneHolder", "Fifo", first_seed=10_000),
        Change("_locks/local_queue.py", "else (started, image)", "else (runtime.current.monotonic(), image)"),
    ),
)
