"""Signals of blinker, in the style of `pynamodb.signals`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pynamo_locking import events

if TYPE_CHECKING:
    from pynamo_locking.events import Event, Subscription


try:
    import blinker
except ImportError as _error:
    raise ImportError(
        "pynamo_locking.telemetry.signals needs blinker, which the extra `signals` brings: pip install 'blinker>=1.6'"
    ) from _error


_namespace: Final = blinker.Namespace()


def _signal(kind: type[Event]) -> blinker.NamedSignal:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    return _namespace.signal(name, (kind.__doc__ or "").split("\n", 1)[0])


waiting: Final = _signal(events.Waiting)
acquired: Final = _signal(events.Acquired)
timed_out: Final = _signal(events.TimedOut)
renewed: Final = _signal(events.Renewed)
renewal_failed: Final = _signal(events.RenewalFailed)
lost: Final = _signal(events.Lost)
evicted: Final = _signal(events.Evicted)
released: Final = _signal(events.Released)
write_refused: Final = _signal(events.WriteRefused)
write_in_doubt: Final = _signal(events.WriteInDoubt)
throttled: Final = _signal(events.Throttled)
transaction_committed: Final = _signal(events.TransactionCommitted)
transaction_rolled_back: Final = _signal(events.TransactionRolledBack)
transaction_recovered: Final = _signal(events.TransactionRecovered)


def install() -> Subscription:
    """Send the signals of this module from now on.

    Receivers are called as ``receiver(sender, event=event)``. The sender is the class of the model whose item carries
    the lock, or is written, so that ``acquired.connect(receiver, sender=Account)`` works as in PynamoDB; None for
    transactions. If a receiver raises, those after it are not called, and no lock is harmed.

    Returns:
        The subscription, whose `cancel` ends it.
    """
    return events.subscribe(_send)


def _send(event: Event) -> None:
    signal = _signal(type(event))
    if signal.receivers:
        signal.send(getattr(event, "model", None), event=event)
