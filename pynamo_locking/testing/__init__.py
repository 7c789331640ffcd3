"""What tests of applications need: a DynamoDB in memory, and a clock that does not make them wait.

The fixtures `memory_dynamodb` and `virtual_clock` for pytest come with the package.
"""

from pynamo_locking.testing.clock import VirtualClock, VirtualProcess
from pynamo_locking.testing.clock_view import ClockView, TimeSource
from pynamo_locking.testing.memory import MemoryClient, MemoryDynamoDB

__all__ = ["ClockView", "MemoryClient", "MemoryDynamoDB", "TimeSource", "VirtualClock", "VirtualProcess"]
