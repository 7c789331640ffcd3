"""For pytest: the fixtures `memory_dynamodb` and `virtual_clock`, and a check that no test leaves a lock held.

pytest loads every plugin that is installed when it starts. So PynamoDB and botocore are imported only when a test asks
for a fixture; what would be imported now, no measurement of coverage would see.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pynamo_locking_testing.clock import VirtualClock
    from pynamo_locking_testing.memory import MemoryDynamoDB

#: The locks that a test does not have to release: those from before it, and those of fixtures that outlive it.
_not_of_a_test: set[Any] = set()


def _held() -> Iterable[Any]:
    inspection = sys.modules.get("pynamo_locking._locks.inspection")  # else nothing is held
    return [] if inspection is None else inspection.held_by_this_thread()


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Let a fixture of a module, class or session hold locks between tests."""
    before = {*_held()}
    yield
    if fixturedef.scope != "function":
        _not_of_a_test.update(each for each in _held() if each not in before)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Note which locks are held before a test."""
    _not_of_a_test.update(_held())
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that leaves a lock held: its heartbeat would go on, and the next test would write under it."""
    outcome: Any = yield
    left = [each for each in _held() if each not in _not_of_a_test]
    _not_of_a_test.intersection_update(_held())
    for each in left:
        each.orphaned()
    if left and outcome.excinfo is None:
        names = ", ".join(sorted(each.row.label for each in left))
        outcome.force_exception(
            pytest.fail.Exception(
                f"this test leaves locks held: {names}. Release them, or use `with`. Their heartbeat is ended now.",
                pytrace=False,
            )
        )


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
