"""Until when a held entry lasts, by this process's own monotonic clock."""

from __future__ import annotations

import math

from pynamo_locking._core.lease import next_renewal
from pynamo_locking._io import runtime


class LeaseClock:
    """The lease of a held entry, and the renewals of it.

    A lease counts from before the write that begins it, never from its answer: DynamoDB may have applied it at any
    moment between.

    Args:
        lease_s: how long it is.
        started: when the write began that created or last renewed the entry.
        heartbeats: number of the last renewal that was sent; the image may show an older one.

    Attributes:
        deadline: the end of the lease.
        ends_at: the end of `max_hold`.
        has_heartbeat: whether the heartbeat renews it.
        renewing: held by the renewal that is under way, one at a time.
    """

    def __init__(self, lease_s: float, started: float, heartbeats: int) -> None:
        self.lease_s = lease_s
        self.deadline = started + lease_s
        self.heartbeats = heartbeats
        self.ends_at = math.inf
        self.has_heartbeat = False
        self.renewing = runtime.current.mutex()

    @property
    def renewed_at(self) -> float:
        """When the write began that created or last renewed the entry."""
        return self.deadline - self.lease_s

    @property
    def next_renewal(self) -> float:
        """When the heartbeat renews it."""
        return next_renewal(self.renewed_at, self.lease_s)

    @property
    def is_held_too_long(self) -> bool:
        """Whether `max_hold` has ended."""
        return runtime.current.monotonic() >= self.ends_at

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; 0 if it has ended, or `max_hold` has."""
        now = runtime.current.monotonic()
        return max(0.0, self.deadline - now) if now < self.ends_at else 0.0

    def renewed(self, started: float) -> None:
        """Note that a renewal was applied, which began then."""
        self.deadline = started + self.lease_s
