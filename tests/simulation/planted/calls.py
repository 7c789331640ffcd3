"""Bugs in calls that may be made twice."""

from __future__ import annotations

from typing import Any

from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import lock_requests, runtime
from pynamo_locking._locks import acquire
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._recipes import idempotency
from pynamo_locking._writes import send
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.guards import clause_of, unconditional
from tests.simulation.planted.machinery import Patches, plants, replaces


@plants(Plan("calls", faults={Fault.PAUSE_BEFORE: 1}), "OneResult", "Growing", limit=250, first_seed=110_000)
def result_without_guard() -> Patches:
    """A call stores its result without any condition, as if it still had the key."""
    send_item = send.send_item

    def unchecked(write: Any, *arguments: Any) -> Any:
        if write.kind is EntryEffect.FINISH:
            write = write.but(condition=None)
        return send_item(write, *arguments)

    return [(send, "send_item", unchecked), *clause_of(EntryEffect.FINISH, unconditional)]


@plants(Plan("calls of two payloads"), "OneResult")
def payload_not_compared() -> Patches:
    """A call gets the result of another payload."""
    return [(idempotency, "_hash_of", lambda _: None)]


@plants(Plan("calls"), "OneResult")
def stored_result_not_looked_at() -> Patches:
    """A call whose turn comes does the work again."""
    return [(idempotency.IdempotencyTable, "_peek", classmethod(lambda cls, image: None))]


@plants(Plan("calls"), "OneResult", "UserWarning")  # the commit warns of it
@replaces(idempotency.IdempotentCall, "_leave_in")
def key_not_in_the_commit(_original: Any, self: Any, tx: Any, error: Any) -> None:
    """A transaction stores its effect, and its result afterwards."""

    def store() -> None:
        self._row.update(self._actions(), add_version_condition=False)

    if error is None:
        tx.after_commit(store)


@plants(Plan("short calls"), "OneResult")
def expired_result_returned() -> Patches:
    """A result counts for as long as its row is there."""
    return [(idempotency, "_is_kept", lambda until_ms: until_ms is not None)]


class _Adopted(Exception):  # noqa: N818 - ends a wait
    def __init__(self, entry: Any) -> None:
        super().__init__(entry)
        self.entry = entry


@plants(Plan("calls", faults={Fault.PAUSE_BEFORE: 1}), "OneResult", "Growing", limit=250, first_seed=110_000)
def takeover_without_a_new_ticket() -> Patches:
    """A call that takes over goes on under the entry of the dead one, as if it were its own."""
    waiting = acquire.Acquisition._wait_for_turn

    def adopt(row: Any, dead: Any, state: Any) -> Any:
        raise _Adopted(dead[0])

    def wait_for_turn(self: Any, image: Any) -> Any:
        try:
            return (yield from waiting(self, image))
        except _Adopted as adopted:
            self._leave()
            self._may_be_in = False
            entry, image = adopted.entry, lock_requests.read(self._row, consistent=True)
            now = runtime.current.monotonic()
            return HeldEntry(self._row, entry, now, entry.heartbeats, self._state.since, image or {})

    return [(acquire, "evict_dead", adopt), (acquire.Acquisition, "_wait_for_turn", wait_for_turn)]
