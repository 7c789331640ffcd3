"""Fixtures for pytest: `memory_dynamodb` and `virtual_clock`.

Outside of the package, which is imported only by a test that asks for a fixture: pytest loads every plugin that is
installed when it starts, and would wait for PynamoDB and boto3. A measurement of the package's coverage would miss what
ran before it began. Source of the idea: Hypothesis's `_hypothesis_pytestplugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking.testing import MemoryDynamoDB, VirtualClock


@pytest.fixture
def memory_dynamodb() -> Iterator[MemoryDynamoDB]:
    """An empty DynamoDB in memory, which all of PynamoDB's connections use while the test runs."""
    from pynamo_locking.testing import MemoryDynamoDB  # noqa: PLC0415 - see the docstring of this module

    with MemoryDynamoDB() as database:
        yield database


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """A virtual clock that leases, waits, heartbeats and times of expiry go by while the test runs."""
    from pynamo_locking.testing import VirtualClock  # noqa: PLC0415 - see the docstring of this module

    with VirtualClock() as clock:
        yield clock
