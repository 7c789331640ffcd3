"""Fixtures for pytest: `memory_dynamodb` and `virtual_clock`.

pytest loads every plugin that is installed when it starts. So PynamoDB and botocore are imported only when a test asks
for a fixture; what would be imported now, no measurement of coverage would see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing.clock import VirtualClock
    from pynamo_locking_testing.memory import MemoryDynamoDB


@pytest.fixture
def memory_dynamodb() -> Iterator[MemoryDynamoDB]:
    """An empty DynamoDB in memory, which all of PynamoDB's connections use while the test runs."""
    from pynamo_locking_testing.memory import MemoryDynamoDB  # noqa: PLC0415 - see the docstring of this module

    with MemoryDynamoDB() as database:
        yield database


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """A virtual clock that leases, waits, heartbeats and times of expiry go by while the test runs."""
    from pynamo_locking_testing.clock import VirtualClock  # noqa: PLC0415 - see the docstring of this module

    with VirtualClock() as clock:
        yield clock
