"""Structured logs: one record for each event."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import events
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pynamo_locking.events import Event, Subscription

#: What begins the name of each fact in a record, whose own attributes have names such as `name`.
PREFIX: Final = "lock_"

#: What somebody may want to know in the morning, although the program went on.
NOTABLE: Final = (
    events.Evicted,
    events.Lost,
    events.RenewalFailed,
    events.TimedOut,
    events.TransactionRecovered,
    events.WriteInDoubt,
)


def install(
    logger: logging.Logger | str = "pynamo_locking.events",
    level: int = logging.INFO,
    *,
    of: type[Event] | tuple[type[Event], ...] | None = None,
) -> Subscription:
    """Log every event from now on, as one record.

    The message is the kind of the event and what it is about. The facts are attributes of the record, for formatters
    that write JSON: ``lock_event`` is the kind, and each fact of the event is there under its own name after
    ``lock_``, such as ``lock_waited_ms``; the model as its name. The warnings of the logger ``pynamo_locking`` stay
    as they are.

    Args:
        logger: where to, or its name.
        level: of the records, INFO unless given. What is notable (an eviction, a loss, a time-out, a renewal without
            an answer, a recovered transaction, a write in doubt) is logged as a WARNING, if that is more.
        of: which events; all unless given.

    Returns:
        The subscription, whose `cancel` ends it.

    Raises:
        ConfigurationError: `level` is no number.
    """
    if isinstance(level, bool) or not isinstance(level, int):
        raise ConfigurationError(f"the level of a log is a number such as logging.INFO, not {level!r}.")
    target = logging.getLogger(logger) if isinstance(logger, str) else logger

    def log(event: Event) -> None:
        used = max(level, logging.WARNING) if isinstance(event, NOTABLE) else level
        if target.isEnabledFor(used):
            target.log(used, "%s %s", type(event).__name__, subject(event), extra=facts(event))

    return events.subscribe(log, of)


def subject(event: Event) -> str:
    """Return what an event is about, for people: the name of a lock or item, or the id of a transaction."""
    return str(getattr(event, "name", "") or getattr(event, "transaction_id", ""))


def facts(event: Event) -> dict[str, Any]:
    """Return what is known of an event, as attributes of a record."""
    found = {f"{PREFIX}{field.name}": getattr(event, field.name) for field in dataclasses.fields(event)}
    model = found.get(f"{PREFIX}model")
    if model is not None:
        found[f"{PREFIX}model"] = model.__name__
    return {f"{PREFIX}event": type(event).__name__, **found}
