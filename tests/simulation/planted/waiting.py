"""Bugs of those who wait for a lock, and of those who hold it: turns, leases, renewals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from pynamo_locking._core import lock_queue
from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._io import runtime, wakeups
from pynamo_locking._locks import acquire, locked_all, release
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.heartbeat import HeartbeatThread
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

# Waiting


@plants(Plan("embedded"), "OneHolder", "Fence")
def nobody_is_ahead() -> Patches:
    """A party that enters holds the lock."""
    return [(LockState, "ahead_of", lambda self, entry: ())]


@plants(Plan("embedded", parties=3), "Fence", "OneHolder")
def order_of_insertion() -> Patches:
    """The one that is first in the stored map holds the lock, and maps have no order but that of their names."""
    return [(LockState, "ahead_of", lambda self, entry: tuple(e for e in self.entries if e.id < entry.id))]


@plants(Plan("long work", parties=3), "KeptPlace")
def waiter_not_renewed() -> Patches:
    """A waiter lets its own lease end, and loses its place."""
    return [(acquire, "next_renewal", lambda started, lease: float("inf"))]


@plants(Plan("polling", faults={Fault.STALE: 1}), "KeptPlace")
@replaces(Acquisition, "_with_us")
def absence_in_old_image(with_us: Any, self: Any, image: Any) -> Any:
    """An eventually consistent read that lacks our entry is taken for the proof that it is gone."""
    is_in = self._row.state(image).find(self._new.id) is not None
    return (yield from with_us(self, image)) if is_in or self._entry is None else None


@plants(Plan("polling", faults={Fault.STALE: 1}), "OneHolder")
@replaces(Acquisition, "_with_us")
def old_image_without_us(with_us: Any, self: Any, image: Any) -> Any:
    """An image from before we entered decides who is ahead of us."""
    if self._entry is None or image is None:
        return (yield from with_us(self, image))
    self._state = self._row.state(image)
    return image


@plants(Plan("embedded", parties=3, processes=3, has_wakeups=True), "Fifo", "OneHolder")
def bell_proves_the_turn() -> Patches:
    """A waiter that is woken holds the lock, whatever it sees."""
    with_us, wake = Acquisition._with_us, wakeups.wake

    def _with_us(self: Any, image: Any) -> Any:
        image = yield from with_us(self, image)
        if image is not None and self._mailbox.entry_id == "woken":
            self._state = replace(self._state, entries=(self._entry,))
        return image

    def note(message: bytes) -> None:
        wake(message)
        entry_id = message.decode().partition("\n")[0]
        for box in itertools.chain(*wakeups._mailboxes.values()):
            box.entry_id = "woken" if box.entry_id == entry_id else box.entry_id

    return [(Acquisition, "_with_us", _with_us), (wakeups, "wake", note)]


@plants(Plan("locked_all"), "Calm")
def locks_in_any_order() -> Patches:
    """Several locks are taken in the order in which they are named, so that two parties wait in a circle."""
    return [(locked_all, "in_order", iter)]


@plants(Plan("embedded", faults={Fault.CRASH_BEFORE: 1}), "Stuck", "Calm", "LockTimeout")
def the_dead_stay() -> Patches:
    """No entry is ever evicted."""
    nobody = lambda *_: ()  # noqa: E731
    return [(acquire, "dead_among", nobody), (release, "dead_among", nobody)]


@plants(Plan("separate row", parties=4, processes=4, faults={Fault.CRASH_AFTER: 1}), "Silence")
def the_living_go_with_the_dead() -> Patches:
    """A waiter that finds one entry dead evicts all that are ahead."""
    dead_among = lock_queue.dead_among

    def all_if_any(entries: Any, *known: Any) -> Any:
        return entries if dead_among(entries, *known) else ()

    return [(acquire, "dead_among", all_if_any)]


# Leases


@plants(Plan("embedded", faults={Fault.PAUSE_AFTER: 1}), "Fifo", "OneHolder")
def lease_from_after_the_write() -> Patches:
    """The lease counts from the answer, not from before the request."""
    renew, attempt = HeldEntry.renew, Acquisition._attempt

    def renew_late(self: Any) -> None:
        renew(self)
        self.deadline = runtime.current.monotonic() + self.entry.lease

    def attempt_late(self: Any, request: Any) -> Any:
        image = attempt(self, request)
        self._started = runtime.current.monotonic()
        return image

    return [(HeldEntry, "renew", renew_late), (Acquisition, "_attempt", attempt_late)]


@plants(Plan("long work"), "Progress")
def no_heartbeat() -> Patches:
    """No heartbeat renews the lock of a holder that works for longer than its lease."""
    return [(HeartbeatThread, "add", lambda self, own: None)]


@plants(Plan("long work", skew="some"), "NoEarlyEviction", limit=120)
def hint_trusts_any_clock() -> Patches:
    """The stored end of a lease is compared with another wall clock, without any allowance."""
    return [(lock_queue, "is_over_by_hint", lambda until_ms, now_ms, max_clock_skew: now_ms > until_ms)]


@plants(Plan("no heartbeat", has_drift=True), "NoEarlyEviction")
def no_margin_for_drift() -> Patches:
    """A waiter whose clock is fast evicts a holder whose clock is slow before its lease is over."""
    return [(lock_queue, "is_silent_for_too_long", lambda since, now, lease: now - since >= lease)]


@plants(Plan("re-entry"), "Progress", "Fence")
def inner_release() -> Patches:
    """The first of several releases removes our entry."""
    give_back = HeldEntry.give_back
    return [(HeldEntry, "give_back", lambda self: give_back(self) or True)]
