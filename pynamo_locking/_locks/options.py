"""The options of a lock, checked before any request."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from pynamo_locking._core.claims import EXCLUSIVE, SHARED, WHOLE, Bound, Claim, disagreement, order
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Duration, LockSettings, believed, check_lease, seconds
from pynamo_locking._core.limits import MOST_WAITERS
from pynamo_locking._core.naming import checked_owner, plain
from pynamo_locking._io import runtime
from pynamo_locking._items.keys import check_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamo_locking._core.queue import QueueEntry


class RangeKeywords(TypedDict, total=False):
    """The options of `LockableMixin.locked_range`."""

    wait: Duration | None
    lease: Duration | None
    heartbeat: bool | None
    shared: bool
    owner: str | None
    on_lost: Callable[[str], object] | None
    settings: LockSettings | None


class LockKeywords(RangeKeywords, total=False):
    """The options of `LockableMixin.locked`."""

    permits: int


_DEFAULTS: Final = LockSettings()


@dataclass(frozen=True)
class LockOptions:
    """How a lock is to be taken; durations in seconds."""

    wait: float
    lease: float
    heartbeat: bool
    owner: str
    settings: LockSettings
    not_found: type[Exception]
    claim: Claim = WHOLE

    @property
    def capacity(self) -> int:
        """How many entries the queue may have for us to enter it."""
        if self.wait == 0 and self.claim.is_alone:
            return 1  # any other entry blocks us
        return min(self.settings.max_waiters + self.claim.permits, MOST_WAITERS + 1)

    @property
    def may_share_an_entry(self) -> bool:
        """Whether other callers of this process may wait behind our entry, and we behind theirs."""
        return self.claim == WHOLE and self.wait > 0 and self.settings.block > 1

    def must_fit(self, first: QueueEntry, label: str) -> None:
        """Refuse to wait in a queue of another kind, by its first entry, if that is alive.

        Raises:
            ConfigurationError: the lock is used with another number of permits, or values of another type.
        """
        why = disagreement(self.claim, first.claim)
        lease, until_ms = believed(first.lease_ms, first.until_ms, self.settings.max_lease)
        # An end more than two leases away says nothing: no clock is so wrong.
        if why is not None and 0 < until_ms - runtime.current.time_ms() <= 2000 * lease:
            raise ConfigurationError(
                f"cannot lock {label}: {why} by {plain(first.owner)} (ticket {first.ticket}). All parties that use one "
                f"lock at the same time must agree on that."
            )


def check_on_lost(on_lost: object) -> None:
    if on_lost is not None and (inspect.iscoroutinefunction(on_lost) or not callable(on_lost)):
        raise ConfigurationError(
            f"on_lost is called in a thread, with the reason, so it must be a plain function, not {on_lost!r}; a "
            f"coroutine function would never run. It may hand over to an event loop, as "
            f"`lambda reason: loop.call_soon_threadsafe(task.cancel)` does."
        )


def make_options(
    model: type[Model],
    *,
    wait: Duration | None,
    lease: Duration | None,
    heartbeat: bool | None,
    owner: str | None,
    settings: LockSettings | None,
    claim: Claim = WHOLE,
) -> LockOptions:
    """Return the arguments of `locked()`, checked, with the model's settings as defaults."""
    check_place(model)
    settings = checked_settings(settings, getattr(model.Meta, "lock_settings", None))
    length = settings.lease  # checked with the settings
    if lease is not None:
        length = seconds(lease, "lease")
        check_lease(length, settings)
    return LockOptions(
        wait=settings.wait if wait is None else seconds(wait, "wait"),
        lease=length,
        heartbeat=settings.heartbeat if heartbeat is None else heartbeat,
        owner=runtime.current.owner() if owner is None else checked_owner(owner),
        settings=settings,
        not_found=model.DoesNotExist,
        claim=claim,
    )


def make_claim(*, shared: Any, permits: Any = 1, lower: Bound | None = None, upper: Bound | None = None) -> Claim:
    """Return what a lock is to claim, or raise a `ConfigurationError`."""
    if isinstance(permits, bool) or not isinstance(permits, int) or permits < 1:
        raise ConfigurationError(f"permits must be a whole number above 0, got {permits!r}.")
    if permits > MOST_WAITERS:
        raise ConfigurationError(
            f"permits must be at most {MOST_WAITERS}, got {permits}: all holders are kept in one item. Use several "
            f"locks, with a part of the permits each."
        )
    if not isinstance(shared, bool):
        raise ConfigurationError(f"shared must be True or False, got {shared!r}.")
    if shared and permits > 1:
        raise ConfigurationError(
            f"shared=True and permits={permits} exclude each other: readers share a lock without number; "
            f"permits limit how many may hold it."
        )
    if lower is not None and upper is not None:
        if lower[0] != upper[0]:
            raise ConfigurationError(f"lower ({lower[1]!r}) and upper ({upper[1]!r}) must be of one type.")
        if not order(lower) < order(upper):
            raise ConfigurationError(
                f"lower ({lower[1]!r}) must be before upper ({upper[1]!r}): the range would be empty."
            )
    return Claim(SHARED if shared else EXCLUSIVE, permits, lower, upper)


def checked_settings(*candidates: object) -> LockSettings:
    """Return the first settings that are given, or the defaults."""
    settings = next((given for given in candidates if given is not None), _DEFAULTS)
    if not isinstance(settings, LockSettings):
        raise ConfigurationError(f"lock settings must be a LockSettings, not {settings!r}.")
    return settings
