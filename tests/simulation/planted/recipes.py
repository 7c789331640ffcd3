"""Bugs in jobs that are to succeed once in a period, of leaders, and in calls that may be made twice."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_ONCE = Plan("once in a period")
_SKEWED = _ONCE.but(parties=3, processes=3, rounds=2, skew="some")
_LEADERS = Plan("leaders", parties=3, processes=3)
_PAUSED_LEADERS = _LEADERS.but(faults={Fault.PAUSE_AFTER: 2})
_PAUSED_CALLS = Search(
    Plan("calls", faults={Fault.PAUSE_BEFORE: 1}), "OneResult", "Growing", limit=250, first_seed=110_000
)

_JOB: Final = "_recipes/once.py"
_LEADER: Final = "_recipes/leader_election.py"
_CALL: Final = "_recipes/idempotency.py"
_UNDER_THE_LOCK: Final = "return self._note(held.row.state(held.item.image))"
_AT_LEAST: Final = (
    'return "too_soon" if self.at_least_s > 0 and now_ms - last.began_ms < self.at_least_s * 1000 else "due"'
)

JOBS: Final = (
    bug(
        "success before the work: A success is noted when the run begins: a run that dies or fails counts.",
        Search(_ONCE, "OneSuccess"),
        Change(
            _JOB,
            f"        {_UNDER_THE_LOCK}",
            f"        is_ours = {_UNDER_THE_LOCK.removeprefix('return ')}\n"
            '        success = RunRecord(held.entry.ticket, "", self._begin_ms, self._began_ms, self._began_ms)\n'
            '        given = {":success": lock_record.stored_success(success, 0)} | lock_requests.naming(held.entry)\n'
            '        note = lock_requests.protocol.Clause(set_="#l.#success = :success")\n'
            "        clause = lock_requests.protocol.OWN_ENTRY + note\n"
            "        is_ours and lock_requests._update(held.row, 'note', clause, given)\n"
            "        return is_ours",
        ),
    ),
    bug(
        "success without guard: A success is noted although the lock was lost.",
        Search(_ONCE.but(faults={Fault.PAUSE_BEFORE: 1}), "OneSuccess"),
        Change("_io/protocol.py", "WITH_SUCCESS: Final = OWN_ENTRY", "WITH_SUCCESS: Final = KNOWN_FORMAT"),
    ),
    bug(
        "failed run counts: A run whose block has raised is noted as a success.",
        Search(_ONCE, "OneSuccess"),
        Change(_JOB, "if error is None and self._verdict.counts:", "if self._verdict.counts:"),
    ),
    bug(
        "period not looked at under the lock: A caller that has waited for a run takes it for one that has failed.",
        Search(_ONCE, "OneSuccess", limit=200),
        Change(_JOB, _UNDER_THE_LOCK, "return bool(self._run)"),
    ),
    bug(
        "period compared for equality: A clock that is behind runs the job of an old period.",
        Search(_SKEWED, "OneSuccess", limit=400),
        Change(_JOB, "begin_ms <= last.period_ms", "begin_ms == last.period_ms"),
    ),
    bug(
        "at least ignored: A run begins at the border of two periods, right after another one.",
        Search(_SKEWED.but(workload="once in a period, at least apart"), "OneSuccess", limit=400),
        Change(_JOB, _AT_LEAST, 'return "due"'),
    ),
    bug(
        "expiry without the success: A lock of the same name lets the row expire after a day, whatever is noted in it.",
        Search(_ONCE.but(parties=3, processes=3), "OneSuccess"),
        Change("_io/protocol.py", "if_not_exists(#l.#success.#kept, :kept) + :ends", ":kept + :ends"),
    ),
)

LEADERS: Final = (
    bug(
        "the longest term is forgotten: A leader leads for as long as its work goes on, whatever `max_hold` says.",
        Search(Plan("leaders"), "Terms"),
        Change("_locks/acquire.py", "runtime.current.monotonic() + self._options.max_hold", "math.inf"),
    ),
    bug(
        "a leader beyond its lease: Who was not told of a loss believes to lead, also after its lease.",
        Search(_PAUSED_LEADERS, "OneHolder", "NoEarlyEviction"),
        Change(_LEADER, "and not self.reason and self._lock.is_held", "and not self.reason"),
    ),
    bug(
        "one term for all: Each leader names its term after the first ticket there was.",
        Search(_LEADERS, "Terms"),
        Change(_LEADER, "self.ticket: int = lock.ticket", "self.ticket: int = lock._handle.entry.ownership.since"),
    ),
    bug(
        "writes that name no term: A leader's transaction does not check that its term lasts.",
        Search(_LEADERS, "Terms"),
        Change(_LEADER, "self._lasting().add_check_to(transaction)", "pass"),
    ),
)

CALLS: Final = (
    bug(
        "result without guard: A call stores its result without any condition, as if it still had the key.",
        _PAUSED_CALLS,
        Change("_io/lock_requests.py", "protocol.FENCE + protocol.REMOVE_ENTRY, given", "protocol.REMOVE_ENTRY, given"),
        Change("_writes/send.py", "ItemWork(write, lock, check,", "ItemWork(write.but(condition=None), lock, check,"),
    ),
    bug(
        "payload not compared: A call gets the result of another payload.",
        Search(Plan("calls of two payloads"), "OneResult"),
        Change(_CALL, "if mine and stored and mine != stored:", "if False:"),
    ),
    bug(
        "stored result not looked at: A call whose turn comes does the work again.",
        Search(Plan("calls"), "OneResult"),
        Change(_CALL, "if self._table.kept_until_ms.attr_name in image:", "if False:"),
    ),
    bug(
        "key not in the commit: A transaction stores its effect, and its result afterwards.",
        Search(Plan("calls"), "OneResult", "UserWarning"),  # the commit warns of it
        Change(
            _CALL,
            "tx.update(self._row, self._actions_and_expiry())",
            "tx.after_commit(lambda: self._row.update(self._actions(), add_version_condition=False))",
        ),
    ),
    bug(
        "expired result returned: A result counts for as long as its row is there.",
        Search(Plan("short calls"), "OneResult"),
        Change(_CALL, "until_ms is not None and until_ms > runtime.current.time_ms()", "until_ms is not None"),
    ),
    bug(
        "takeover without a new ticket: A call that takes over goes on under the entry of the dead one.",
        _PAUSED_CALLS,
        Change(
            "_locks/acquire.py",
            "                ahead = self._state.ahead_of(entry)\n",
            "                ahead = self._state.ahead_of(entry)\n"
            "                if dead := self._watch(ahead):\n"
            "                    self._leave()\n"
            "                    self._entry, entry, ahead = self._entry._replace(may_be_stored=False), dead[0], ()\n"
            "                    image = lock_requests.read(self._row, consistent=True)\n",
        ),
    ),
)

BUGS: Final = (*JOBS, *LEADERS, *CALLS)
