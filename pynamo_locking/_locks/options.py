"""What a lock protects, where it is kept, and its options, checked before any request."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict

from pynamodb.models import Model
from typing_extensions import TypeVar

from pynamo_locking._core.dynamodb import MOST_WAITERS
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import (
    DEFAULT_SETTINGS,
    Duration,
    LockSettings,
    believed,
    check_heartbeat,
    check_lease,
    check_max_hold,
    seconds,
)
from pynamo_locking._core.lock_modes import EXCLUSIVE, SHARED, WHOLE, Bound, LockMode, disagreement, order
from pynamo_locking._core.row_keys import checked_owner, plain
from pynamo_locking._io import runtime
from pynamo_locking._items.keys import check_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.tokens import Token


M = TypeVar("M", bound=Model, default=Any)


@dataclass(frozen=True)
class LockTarget(Generic[M]):
    """What a lock protects: the item of a model, and the row that carries the lock.

    Attributes:
        carrier: the model of that row, and its key as given by the caller.
        key: of the item, or of the name, in DynamoDB's form; None if a range or a table is locked.
        read: reads the item as it is now.
    """

    model: type[M]
    row: LockRow
    carrier: tuple[type[Model], Any, Any]
    read: Callable[[], M]
    key: dict[str, Any] | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether the lock is in another row than the item."""
        return self.carrier[0] is not self.model


class AttachKeywords(TypedDict, total=False):
    """The options of `LockableMixin.attach`."""

    wait: Duration | None
    lease: Duration | None
    heartbeat: bool | None
    max_hold: Duration | None
    owner: str | None
    on_lost: Callable[[str], object] | None
    settings: LockSettings | None


class RangeKeywords(AttachKeywords, total=False):
    """The options of `LockableMixin.locked_range`."""

    shared: bool


class LockKeywords(RangeKeywords, total=False):
    """The options of `LockableMixin.locked`."""

    permits: int


class LockOptions(NamedTuple):
    """How a lock is to be taken; durations in seconds.

    `peek` is called with the images of the row that the attempt sees, and returns "stop" to end it without the lock. An
    attempt that has it begins with the request that creates the row, which is expected to be absent. With a `token` the
    lock is attached. `on_dead_holder` is called with a holder whose lease has ended before that is evicted,
    and raises to leave it there.
    """

    wait: float
    lease: float
    heartbeat: bool
    max_hold: float
    owner: str
    settings: LockSettings
    not_found: type[Exception]
    lock_mode: LockMode = WHOLE
    peek: Callable[[Image], Literal["stop"] | None] | None = None
    token: Token | None = None
    on_dead_holder: Callable[[QueueEntry], object] | None = None

    @property
    def capacity(self) -> int:
        """How many entries the queue may have for us to enter it."""
        if self.wait == 0 and self.lock_mode.is_alone:
            return 1  # any other entry blocks us
        return min(self.settings.max_waiters + self.lock_mode.permits, MOST_WAITERS + 1)

    def is_stopped_by(self, image: Image | None) -> bool:
        """Whether an image of the row ends the attempt: see `peek`."""
        return image is not None and self.peek is not None and self.peek(image) == "stop"

    @property
    def may_share_an_entry(self) -> bool:
        """Whether other callers of this process may wait behind our entry, and we behind theirs."""
        is_alone = self.token is not None or self.settings.max_callers_per_entry == 1
        return self.lock_mode == WHOLE and self.wait > 0 and not is_alone

    def must_fit(self, first: QueueEntry, label: str) -> None:
        """Refuse to wait in a queue of another kind, by its first entry, if that is alive.

        Raises:
            ConfigurationError: the lock is used with another number of permits, or values of another type.
        """
        why = disagreement(self.lock_mode, first.lock_mode)
        lease, until_ms = believed(first.lease_ms, first.until_ms, self.settings.max_lease)
        # An end more than two leases away says nothing: no clock is so wrong.
        if why is not None and 0 < until_ms - runtime.current.time_ms() <= 2000 * lease:
            raise ConfigurationError(
                f"cannot lock {label}: {why} by {plain(first.owner)} (ticket {first.ticket}). All callers that use one "
                f"lock at the same time must agree on that."
            )


def check_plain(name: str, callback: object) -> None:
    """Refuse a callback such as `on_lost` that a thread cannot call."""
    if callback is not None and (inspect.iscoroutinefunction(callback) or not callable(callback)):
        raise ConfigurationError(
            f"{name} is called in a thread, with an argument, so it must be a plain function, not {callback!r}; a "
            f"coroutine function would never run. It may hand over to an event loop, as "
            f"`lambda reason: loop.call_soon_threadsafe(task.cancel)` does."
        )


def make_options(
    model: type[Model],
    *,
    wait: Duration | None = None,
    lease: Duration | None = None,
    heartbeat: bool | None = None,
    max_hold: Duration | None = None,
    owner: str | None = None,
    settings: LockSettings | None = None,
    lock_mode: LockMode = WHOLE,
) -> LockOptions:
    """Return the arguments of `locked()`, checked, with the model's settings as defaults."""
    check_place(model)
    settings = checked_settings(settings, getattr(model.Meta, "lock_settings", None))
    length = settings.lease  # checked with the settings
    if lease is not None:
        length = seconds(lease, "lease")
        check_lease(length, settings)
    longest = settings.max_hold if max_hold is None else seconds(max_hold, "max_hold")
    check_max_hold(longest, length)
    if heartbeat is None:
        heartbeat = settings.heartbeat
    check_heartbeat(heartbeat)
    return LockOptions(
        wait=settings.wait if wait is None else seconds(wait, "wait"),
        lease=length,
        heartbeat=heartbeat,
        max_hold=longest,
        owner=runtime.current.owner() if owner is None else checked_owner(owner),
        settings=settings,
        not_found=model.DoesNotExist,
        lock_mode=lock_mode,
    )


def make_lock_mode(
    *, shared: Any, permits: Any = 1, lower: Bound | None = None, upper: Bound | None = None
) -> LockMode:
    """Return the mode of a lock, or raise a `ConfigurationError`, or `InvalidInput` of its bounds."""
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
            raise InvalidInput(f"lower ({lower[1]!r:.80}) and upper ({upper[1]!r:.80}) must be of one type.")
        if not order(lower) < order(upper):
            raise InvalidInput(
                f"lower ({lower[1]!r:.80}) must be before upper ({upper[1]!r:.80}): the range would be empty."
            )
    return LockMode(SHARED if shared else EXCLUSIVE, permits, lower, upper)


def checked_settings(*candidates: object) -> LockSettings:
    """Return the first settings that are given, or the defaults."""
    settings = next((given for given in candidates if given is not None), DEFAULT_SETTINGS)
    if not isinstance(settings, LockSettings):
        raise ConfigurationError(f"lock settings must be a LockSettings, not {settings!r}.")
    return settings
