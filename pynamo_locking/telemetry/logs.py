"""Structured logs: one record for each event."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import events
from pynamo_locking._facade import brief
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pynamo_locking.events import Event, Subscription

__all__ = ["install"]

#: What begins the name of each fact in a record, whose own attributes have names such as `name`.
_PREFIX: Final = "lock_"

#: Logged as warnings, although the program continues.
NOTABLE: Final = (
    events.Evicted,
    events.Lost,
    events.RenewalFailed,
    events.TimedOut,
    events.TransactionRecovered,
    events.WriteInDoubt,
)

#: Besides durations.
_SAID: Final = frozenset(
    {"by", "error", "holder", "holder_ticket", "index", "outcome", "owner", "reason", "recovered_by", "ticket"}
)


def install(
    logger: logging.Logger | str = "pynamo_locking.events",
    level: int = logging.INFO,
    *,
    of: type[Event] | tuple[type[Event], ...] | None = None,
) -> Subscription:
    """Log every event from now on, as one record.

    The message has the kind of the event, its lock, item or transaction, the owner, the ticket and the durations. A
    name of more than 256 characters is cut there. The facts are attributes of the record as well, whole, for formatters
    that write JSON. ``lock_event`` is the kind. Each fact of the event has its own name after ``lock_``, such as
    ``lock_waited_ms``; the model is its name.

    While installed, the logger ``pynamo_locking`` leaves out its records of the same facts (renewals that fail, a loss,
    an eviction). Its other warnings stay as they are.

    Args:
        logger: the logger, or its name.
        level: of the records, INFO unless given. Notable events (an eviction, a loss, a time-out, a renewal without a
            response, the first one after that, a recovered transaction, a write in doubt) are at least WARNINGs. In an
            outage many renewals get no response. Only the first is a WARNING, the first one after the lease has ended,
            and then one after a minute, two, four and so on; the rest is DEBUG.
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
        used = _level_of(event, level)
        if target.isEnabledFor(used):
            subject = brief(getattr(event, "name", "") or getattr(event, "transaction_id", ""))
            target.log(used, "%s %s%s", type(event).__name__, subject, _details(event), extra=_facts(event))

    subscription = events.subscribe(log, of)
    subscription.is_log = True
    return subscription


def _level_of(event: Event, level: int) -> int:
    if isinstance(event, events.RenewalFailed) and not event.should_log:
        return min(level, logging.DEBUG)
    is_notable = isinstance(event, events.Renewed) and event.failed_ms is not None
    return max(level, logging.WARNING) if is_notable or isinstance(event, NOTABLE) else level


def _details(event: Event) -> str:
    """Return the facts that people look for first, in words: `` (ticket 7, owner web-1, waited 12 ms)``."""
    said = []
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name.endswith("_ms") and field.name != "time_ms" and value is not None:
            said.append(f"{_words(field.name[:-3])} {value:.0f} ms")
        elif field.name in _SAID and value not in (None, ""):
            said.append(f"{_words(field.name)} {brief(value)}")
    return f" ({', '.join(said)})" if said else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _facts(event: Event) -> dict[str, Any]:
    """Return the facts of an event, as attributes of a record."""
    found = {f"{_PREFIX}{field.name}": getattr(event, field.name) for field in dataclasses.fields(event)}
    model = found.get(f"{_PREFIX}model")
    if model is not None:
        found[f"{_PREFIX}model"] = model.__name__
    return {f"{_PREFIX}event": type(event).__name__, **found}
