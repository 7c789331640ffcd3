"""The stream of events of locks, writes and transactions, for those who want to hear of them.

`pynamo_locking.telemetry` makes logs, signals, traces and metrics of it.
"""

from pynamo_locking._core.events import (
    Acquired,
    Attempt,
    Event,
    Evicted,
    LockEvent,
    Lost,
    Released,
    RenewalFailed,
    Renewed,
    TimedOut,
    TransactionCommitted,
    TransactionEnded,
    TransactionEvent,
    TransactionRecovered,
    TransactionRolledBack,
    Waiting,
    WriteEvent,
    WriteInDoubt,
    WriteRefused,
)
from pynamo_locking._io.event_stream import Subscription, subscribe

__all__ = [
    "Acquired",
    "Attempt",
    "Event",
    "Evicted",
    "LockEvent",
    "Lost",
    "Released",
    "RenewalFailed",
    "Renewed",
    "Subscription",
    "TimedOut",
    "TransactionCommitted",
    "TransactionEnded",
    "TransactionEvent",
    "TransactionRecovered",
    "TransactionRolledBack",
    "Waiting",
    "WriteEvent",
    "WriteInDoubt",
    "WriteRefused",
    "subscribe",
]
