"""What tests of applications need: a DynamoDB in memory, a clock that does not make them wait, and faults at will.

The fixtures `memory_dynamodb` and `virtual_clock` for pytest come with the package.
"""

from pynamo_locking.testing.clock import ClockView, TimeSource, VirtualClock, VirtualProcess
from pynamo_locking.testing.faults import (
    FaultCount,
    concurrent_write,
    held_by_other,
    lose_lock,
    lost_responses,
    strong_global_table,
    throttled,
)
from pynamo_locking.testing.memory import MemoryClient, MemoryDynamoDB

__all__ = [
    "ClockView",
    "FaultCount",
    "MemoryClient",
    "MemoryDynamoDB",
    "TimeSource",
    "VirtualClock",
    "VirtualProcess",
    "concurrent_write",
    "held_by_other",
    "lose_lock",
    "lost_responses",
    "strong_global_table",
    "throttled",
]
