"""The stream of events of locks, writes and transactions.

`pynamo_locking.telemetry` turns it into logs, signals, traces and metrics.
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
    Throttled,
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
    "Throttled",
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
