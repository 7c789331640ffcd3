"""The arguments of `locked()`, each checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pynamo_locking._core.lease import Duration, LockSettings, check_lease, seconds
from pynamo_locking._io import runtime
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pynamodb.models import Model


@dataclass(frozen=True)
class Wish:
    """How a lock is to be taken; durations in seconds."""

    wait: float
    lease: float
    heartbeat: bool
    owner: str
    settings: LockSettings
    not_found: type[Exception]


def make_wish(
    model: type[Model],
    *,
    wait: Duration | None,
    lease: Duration | None,
    heartbeat: bool | None,
    owner: str | None,
    settings: LockSettings | None,
) -> Wish:
    """Return the arguments of `locked()`, checked, with the model's settings where none is given."""
    settings = checked_settings(settings, getattr(model.Meta, "lock_settings", None))
    length = settings.lease if lease is None else seconds(lease, "lease")
    check_lease(length, settings)
    return Wish(
        wait=settings.wait if wait is None else seconds(wait, "wait"),
        lease=length,
        heartbeat=settings.heartbeat if heartbeat is None else heartbeat,
        owner=runtime.current.owner() if owner is None else str(owner),
        settings=settings,
        not_found=model.DoesNotExist,
    )


def checked_settings(*candidates: object) -> LockSettings:
    """Return the first settings that are given, or the defaults."""
    settings = next((given for given in candidates if given is not None), LockSettings())
    if not isinstance(settings, LockSettings):
        raise ConfigurationError(f"lock settings must be a LockSettings, not {settings!r}.")
    return settings
