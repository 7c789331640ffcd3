"""Bugs in jobs that are to succeed once in a period."""

from __future__ import annotations

from typing import Any

from pynamo_locking._core.lock_queue import RunRecord
from pynamo_locking._io import lock_record, lock_requests, protocol, runtime
from pynamo_locking._io.protocol import Clause
from pynamo_locking._recipes.once import Once, Period
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces
from tests.simulation.planted.queue import other_condition

PLAN = Plan("once in a period")


@plants(PLAN, "OneSuccess")
@replaces(Once, "_judge")
def success_before_the_work(judge: Any, once: Any) -> Any:
    """A success is noted when the run begins: a run that dies or fails counts."""
    is_ours = judge(once)
    if is_ours:
        held = once.lock._handle.entry
        success = RunRecord(held.entry.ticket, "", once._begin_ms, once._began_ms, once._began_ms)
        stored = {":success": lock_record.stored_success(success, once._period.kept_s(0))}
        note = protocol.OWN_ENTRY + Clause(set_="#l.#success = :success")
        lock_requests._update(held.row, note, lock_requests.mine(held.entry) | stored)
    return is_ours


@plants(PLAN.but(faults={Fault.PAUSE_BEFORE: 1}), "OneSuccess")
def success_without_guard() -> Patches:
    """A success is noted although the lock was lost."""
    return other_condition(r"^#l\.#q\.#me\[0\] = :ticket$")


@plants(PLAN, "OneSuccess")
def failed_run_counts() -> Patches:
    """A run whose block has raised is noted as a success."""
    leave = Once._leave
    return [(Once, "_leave", lambda once, error: leave(once, None))]


@plants(PLAN, "OneSuccess", limit=200)
@replaces(Once, "_judge")
def period_not_looked_at_under_the_lock(_original: Any, once: Any) -> bool:
    """A caller that has waited for a run takes it for one that has failed."""
    once._ours = once.lock._handle.held_entry()
    once._began_ms = runtime.current.time_ms()
    return bool(once._run)


@plants(PLAN.but(parties=3, processes=3, rounds=2, skew="some"), "OneSuccess", limit=400)
@replaces(Period, "status")
def period_compared_for_equality(
    _original: Any, period: Period, begin_ms: int, now_ms: int, last: RunRecord | None
) -> str:
    """A run is due if its period is another one than the last: a clock that is behind runs an old period again."""
    return "done" if last is not None and last.period_ms == begin_ms else "due"


@plants(Plan("once in a period, at least apart", 3, 3, rounds=2, skew="some"), "OneSuccess", limit=400)
@replaces(Period, "status")
def at_least_ignored(answer: Any, period: Period, begin_ms: int, now_ms: int, last: RunRecord | None) -> Any:
    """A run begins at the border of two periods, right after another one."""
    return answer(Period(period.length_s, period.zone, 0), begin_ms, now_ms, last)


@plants(PLAN.but(parties=3, processes=3), "OneSuccess")
@replaces(lock_requests, "_call")
def expiry_without_the_success(send: Any, row: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """A lock of the same name lets the row expire after a day, whatever is noted in it."""
    kept = "if_not_exists(#l.#success.#kept, :kept)"
    if kept in arguments.get("UpdateExpression", ""):
        names = {name: value for name, value in arguments["ExpressionAttributeNames"].items() if name != "#kept"}
        names.pop("#success")
        arguments = {
            **arguments,
            "UpdateExpression": arguments["UpdateExpression"].replace(kept, ":kept"),
            "ExpressionAttributeNames": names,
        }
    return send(row, operation, arguments)
