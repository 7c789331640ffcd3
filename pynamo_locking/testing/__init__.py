"""What tests of applications need: a DynamoDB in memory."""

from pynamo_locking.testing.memory import MemoryClient, MemoryDynamoDB

__all__ = ["MemoryClient", "MemoryDynamoDB"]
