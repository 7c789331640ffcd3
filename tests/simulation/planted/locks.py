"""Bugs of locks: what guards a write, how an entry comes into the queue, waits there, and leaves it."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_LIVES = Plan("lives", faults={Fault.PAUSE_BEFORE: 1})
_LAST_WRITE = Plan("edit", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1}, preemptions=0)
_LATE_WRITE = Plan("no heartbeat", parties=1, processes=1, faults={Fault.LATE: 1}, preemptions=0)
_BREAKING = Plan("break lock", faults={Fault.LOST_RESPONSE: 2}, preemptions=0)
_EVICTED = Plan("edit", faults={Fault.LOST_REQUEST: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0)
_LATE_RELEASE = Plan("embedded", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1})
_PAUSED = Plan("embedded", faults={Fault.PAUSE_BEFORE: 1})
_LONG = Plan("long work", parties=3, processes=3, faults={Fault.PAUSE_BEFORE: 1})
_WOKEN = Plan("embedded", parties=3, processes=3, has_wakeups=True)
_CRASHED = Plan("separate row", parties=4, processes=4, faults={Fault.CRASH_AFTER: 1})
_PASSING = Plan("passing", parties=3, processes=3, rounds=2)

GUARDS: Final = (
    bug(
        "embedded save without guard: A save under an embedded lock does not name our entry.",
        Search(_PAUSED, "Fence", "Growing"),
        Change(
            "_writes/send.py",
            "= self._filled or",
            "= (self.check is None or self.check.kind is not EntryEffect.KEEP) and self._filled or",
        ),
    ),
    bug(
        "row transaction without guard: A save beside the lock's row does not check that row.",
        Search(Plan("separate row", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing"),
        Change("_writes/send.py", "protocol.alone(*self._filled)", "protocol.alone(protocol.FORMAT_KEPT, row.names)"),
    ),
    bug(
        "last write of edit without guard: The write that ends an edit does not ask for our entry.",
        Search(_LAST_WRITE, "Fence", limit=250, exhaustive=True),
        Change("_io/lock_requests.py", "protocol.FENCE + protocol.REMOVE_ENTRY, given", "protocol.REMOVE_ENTRY, given"),
    ),
    bug(
        "delete without guard: A delete under an embedded lock does not name our entry.",
        Search(_LIVES, "Fence", "Growing", limit=150),
        Change("_writes/send.py", "= self._filled or", "= (self.write.operation is not DELETE and self._filled) or"),
    ),
    bug(
        "outsider without guard: A write from outside does not ask whether any entry is in the queue.",
        Search(Plan("outsiders"), "Fence"),
        Change("_io/protocol.py", "else NOT_LOCKED, row.names", "else NO_INTENT, row.names"),
    ),
    bug(
        "transaction without guard: A transaction that saves a locked item does not name our entry.",
        Search(Plan("locked_all", faults={Fault.PAUSE_BEFORE: 1}), "Fence"),
        Change(
            "_writes/writer.py",
            "RowWrite(None, self.row, write, Check(self.held, number))",
            "RowWrite(write=write)",
        ),
    ),
    bug(
        "writes not counted: A guarded write names our entry, but a late copy of it is accepted after a later one.",
        Search(_LATE_WRITE, "NothingLost", exhaustive=True),
        Change("_io/protocol.py", "OWN_ENTRY + Clause(_LATEST) + NO_INTENT", "OWN_ENTRY + NO_INTENT"),
    ),
    bug(
        "put instead of update: A guarded save is a PutItem, which writes an old lock document over newcomers.",
        Search(Plan("long work", processes=2, parties=3), "SoundQueue"),
        Change("_writes/writer.py", "item, kept = self.item, self.surviving", "item, kept = self.item, ()"),
    ),
)

QUEUE: Final = (
    bug(
        "eviction without beat: An entry is evicted although it was renewed since we looked.",
        Search(Plan("polling", faults={Fault.PAUSE_AFTER: 1}), "NoEarlyEviction"),
        Change("_io/protocol.py", "#l.#q.#e{i}[1].#b = :b{i} AND ", ""),
    ),
    bug(
        "eviction without ticket: An entry is evicted although it came back under another ticket.",
        Search(_BREAKING, "NoEarlyEviction", exhaustive=True),
        Change("_io/protocol.py", " AND #l.#q.#e{i}[0] = :t{i}", ""),
        Change("_io/protocol.py", "[*same, *free]", "same"),  # or the trace of the first eviction would refuse it
    ),
    bug(
        "eviction without trace: An eviction leaves no trace, so that its victim takes it for its own release.",
        Search(_EVICTED, "Truth", exhaustive=True),
        Change("_core/lock_queue.py", "return None if trace > ticket else trace == ticket", "return False"),
    ),
    bug(
        "release without condition: A release is accepted although our entry is gone.",
        Search(_PAUSED, "ToldLoss"),
        Change("_io/protocol.py", 'RELEASE: Final = Clause(if_="attribute_exists(#l.#q.#me)") + ', "RELEASE: Final = "),
    ),
    bug(
        "release of a stranger: A release removes the first entry.",
        Search(_LONG, "NoEarlyEviction", "OneHolder"),
        Change(
            "_io/lock_requests.py",
            'return _update(row, "release the lock of", ',
            "entry_id = row.state(read(row, consistent=True)).entries[0].id\n"
            '    return _update(row, "release the lock of", ',
        ),
    ),
    bug(
        "release forgotten: A release sends nothing, and leaves the entry to be evicted.",
        Search(Plan("embedded"), "Quiet"),
        Change("_locks/release.py", "return client.patiently(partial(_release, row, entry_id))", "return None"),
    ),
    bug(
        "nothing broken: `break_lock` says that it has broken a lock, and has not.",
        Search(Plan("break lock"), "Breaking"),
        Change("_locks/inspection.py", "since = 0", "return True"),
    ),
    bug(
        "ticket read then written: The next ticket is read first, and taken by another request: two can have it.",
        Search(Plan("embedded", parties=3), "SoundQueue", "NoEarlyEviction"),
        Change(
            "_io/protocol.py",
            "#me = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :callers",
            "#me = :entry, #l.#n[0] = :next",
        ),
        Change(
            "_io/lock_requests.py",
            '    given = {\n        "#me": entry.id,\n',
            "    seen = row.state(read(row, consistent=True)).next_ticket\n"
            "    if not seen:\n        return enter_first(row, entry)\n"
            '    given = {\n        "#me": entry.id,\n',
        ),
        Change(
            "_io/lock_requests.py",
            'entry.stored(runtime.current.time_ms()),\n        ":callers": number(entry.callers)',
            'entry.stored(runtime.current.time_ms(), seen),\n        ":next": number(seen + 1)',
        ),
    ),
    bug(
        "ticket taken before entering: One request counts, another enters: a later ticket can be in before.",
        Search(Plan("embedded", parties=3), "SoundQueue", limit=170),
        Change("_io/protocol.py", "#me = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :callers", "#me = :entry"),
        Change(
            "_io/lock_requests.py",
            '    given = {\n        "#me": entry.id,\n        ":entry": entry.stored(runtime.current.time_ms()),',
            '    count = protocol.Clause("attribute_exists(#l.#n)", "#l.#n[0] = #l.#n[0] + :one")\n'
            '    ticket = row.state(_update(row, "lock", count, {":one": number(1)})).next_ticket - 1\n'
            '    given = {\n        "#me": entry.id,\n'
            '        ":entry": entry.stored(runtime.current.time_ms(), ticket),',
        ),
    ),
    bug(
        "id used twice: A party has the same id each time it enters, so a late release of the last time removes it.",
        Search(_LATE_RELEASE, "NoEarlyEviction", exhaustive=True),
        Change("_locks/acquire.py", "runtime.current.entry_id()", "options.owner"),
    ),
    bug(
        "id of the process: All attempts of a process enter under one id, so one party takes the entry of another.",
        Search(Plan("embedded", processes=1), "Progress", "Fence", "TrueLoss"),
        Change("_locks/acquire.py", "runtime.current.entry_id()", 'options.owner.partition(".")[0]'),
    ),
)

WAITING: Final = (
    bug(
        "nobody is ahead: A party that enters holds the lock.",
        Search(Plan("embedded"), "OneHolder", "Fence"),
        Change("_core/lock_queue.py", "if not before:", "if True:"),
    ),
    bug(
        "order of insertion: The first one in the stored map holds the lock, and maps have no order.",
        Search(Plan("embedded", parties=3), "Fence", "OneHolder"),
        Change("_core/lock_queue.py", "if other.ticket < entry.ticket]", "if other.id < entry.id]"),
    ),
    bug(
        "waiter not renewed: A waiter lets its own lease end, and loses its place.",
        Search(Plan("long work", parties=3), "KeptPlace"),
        Change(
            "_locks/acquire.py",
            "renewal = next_renewal(self._entry.started",
            "renewal = math.inf or (self._entry.started",
        ),
    ),
    bug(
        "absence in old image: An eventually consistent read that lacks our entry proves that it is gone.",
        Search(Plan("polling", faults={Fault.STALE: 1}), "KeptPlace"),
        Change("_locks/acquire.py", "in (False, True):", "in (False, True)[: 1 if self._entry.stored else 2]:"),
    ),
    bug(
        "old image without us: An image from before we entered decides who is ahead of us.",
        Search(Plan("polling", faults={Fault.STALE: 1}), "OneHolder"),
        Change("_locks/acquire.py", "found = self._state", "found = (image and self._entry.stored) or self._state"),
    ),
    bug(
        "bell proves the turn: A waiter that is woken holds the lock, whatever it sees.",
        Search(_WOKEN, "Fifo", "OneHolder"),
        Change("_locks/acquire.py", "  if now >= renewal", "  self._is_woken = now < until\n        if now >= renewal"),
        Change(
            "_locks/acquire.py",
            "     if not ahead and self",
            "     if (not ahead or vars(self).get('_is_woken')) and self",
        ),
    ),
    bug(
        "locks in any order: Locks are taken in the order in which they are named: parties wait in a circle.",
        Search(Plan("locked_all"), "Calm"),
        Change("_locks/locked_all.py", "for _, together in sorted(rows.items()):", "for together in rows.values():"),
    ),
    bug(
        "the dead stay: No entry is ever evicted.",
        Search(Plan("embedded", faults={Fault.CRASH_BEFORE: 1}), "Stuck", "Calm", "LockTimeout"),
        Change("_core/lock_queue.py", "return tuple(entry for entry in entries if is_dead(entry))", "return ()"),
    ),
    bug(
        "the living go with the dead: A waiter that finds one entry dead evicts all that are ahead.",
        Search(_CRASHED, "Silence"),
        Change("_core/lock_queue.py", "entries if is_dead(entry))", "entries if any(map(is_dead, entries)))"),
    ),
    bug(
        "lease from after the write: The lease counts from the answer, not from before the request.",
        Search(Plan("embedded", faults={Fault.PAUSE_AFTER: 1}), "Fifo", "OneHolder"),
        Change("_locks/held_lock.py", "self.clock.renewed(started)", "self.clock.renewed(runtime.current.monotonic())"),
        Change(
            "_locks/acquire.py",
            "            return request(new)\n        except Refused",
            "            image, started = request(new), runtime.current.monotonic()\n"
            "            self._entry = self._entry._replace(started=started)\n"
            "            return image\n        except Refused",
        ),
    ),
    bug(
        "no heartbeat: No heartbeat renews the lock of a holder that works for longer than its lease.",
        Search(Plan("long work"), "Progress"),
        Change(
            "_locks/heartbeat.py",
            "self._push(held, next_renewal(held.clock.started, held.entry.lease))",
            "pass",
        ),
    ),
    bug(
        "hint trusts any clock: The stored end of a lease is compared with another wall clock, without any allowance.",
        Search(Plan("long work", skew="some"), "NoEarlyEviction", limit=120),
        Change("_core/lease.py", "now_ms - until_ms > max_clock_skew * 1000", "now_ms > until_ms"),
    ),
    bug(
        "no margin for drift: A waiter whose clock is fast evicts a holder whose clock is slow.",
        Search(Plan("no heartbeat", has_drift=True), "NoEarlyEviction"),
        Change("_core/lease.py", "now - since >= lease * (1 + RATE_MARGIN)", "now - since >= lease"),
    ),
    bug(
        "inner release: The first of several releases removes our entry.",
        Search(Plan("re-entry"), "Progress", "Fence"),
        Change("_locks/lock.py", "held.depth - 1, held.depth == 1", "held.depth - 1, True"),
    ),
)

PASSING: Final = (
    bug(
        "an old token is attached: The entry with the ticket counts, whatever token it was stored for.",
        Search(_PASSING, "Passing"),
        Change("_io/protocol.py", 'if_="#l.#q.#me[1].#token = :token"', ""),
        Change("_locks/detach.py", " or found.token_id != token.id:", ":"),
    ),
    bug(
        "two processes attach one entry: Who attaches a token goes on with the entry as it is: nothing fences.",
        Search(_PASSING, "TrueLoss", "Growing", "Fence", "NothingLost", "Truth"),
        Change(
            "_locks/detach.py",
            "before = found.id  # of",
            "new, started = self._entry.new._replace(id=found.id), runtime.current.monotonic()\n"
            "            self._entry = self._entry._replace(new=new, started=started)\n"
            "            return image  # of",
        ),
    ),
)

TASKS: Final = (
    bug(
        "abandoned attempts stay: A task that is cancelled on its way to a lock leaves its entry, or the lock, behind.",
        Search(Plan("cancelled tasks"), "KeptPlace", "Quiet"),
        Change("_locks/acquire.py", "            self._steps.close()", "            return"),
    ),
    bug(
        "tasks are one party: A task that asks for what another one in its loop holds is let in.",
        Search(Plan("tasks", parties=1, processes=1), "OneHolder"),
        Change("_locks/context.py", "if held.thread_or_task == here]", "if held.thread_or_task[0] == here[0]]"),
        Change("_locks/lock.py", "if not held.depth or held.thread_or_task != here:", "if not held.depth:"),
    ),
)

BUGS: Final = (*GUARDS, *QUEUE, *WAITING, *PASSING, *TASKS)
