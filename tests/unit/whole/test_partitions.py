"""The throughput of a partition, at given times: what is served in the long run, what a burst may take, who waits."""

from __future__ import annotations

import pytest

from pynamo_locking_testing._engine.partitions import Partitions, actions_of, refusal, write_units

HOT, COLD = ("table", "hot"), ("table", "cold")


def served(partitions: Partitions, units: float, every_s: float, seconds: float, *, reading: bool = False) -> float:
    """Return the units that were served of requests that come so often."""
    total = 0.0
    for i in range(round(seconds / every_s)):
        now = i * every_s
        if not partitions.is_spent(HOT, reading=reading, now=now):
            partitions.take(HOT, units, reading=reading, now=now)
            total += units
    return total


@pytest.mark.parametrize("units", [1.0, 5.0, 14.0, 250.0])
def test_in_the_long_run_the_rate_is_served(units: float):
    """Whatever the size of a request: the rate, the burst, and at most one request that is overdrawn."""
    total = served(Partitions(100, 300, burst_s=2), units, 0.001, 60)

    assert total + units >= 100 * 60
    assert total <= 100 * 60 + 100 * 2 + units


def test_reads_have_a_bucket_of_their_own():
    """Both kinds are limited, each by its own rate."""
    partitions = Partitions(10, 30)

    assert served(partitions, 1, 0.001, 10) == pytest.approx(10 * 11, abs=2)
    assert served(partitions, 1, 0.001, 10, reading=True) == pytest.approx(30 * 11, abs=2)


def test_a_burst_ends_and_comes_again():
    """What is not used is kept for so many seconds and no longer, however long nothing is asked for."""
    partitions = Partitions(10, burst_s=3)
    for now in (0.0, 1000.0):
        assert not partitions.is_spent(HOT, reading=False, now=now)
        partitions.take(HOT, 29, reading=False, now=now)
        assert not partitions.is_spent(HOT, reading=False, now=now)
        partitions.take(HOT, 1, reading=False, now=now)
        assert partitions.is_spent(HOT, reading=False, now=now)


def test_what_was_overdrawn_is_paid_by_those_who_follow():
    """A large request is served if anything is left; the next ones wait until all of it has come."""
    partitions = Partitions(10)
    partitions.take(HOT, 30, reading=False, now=0.0)

    assert partitions.is_spent(HOT, reading=False, now=1.999)
    assert not partitions.is_spent(HOT, reading=False, now=2.001)


def test_only_the_hot_key_is_throttled():
    """Each hash key has a partition of its own, and so have reads and writes of it."""
    partitions = Partitions()
    partitions.exhaust(HOT, 0.5, reading=False, now=7.0)

    assert partitions.is_spent(HOT, reading=False, now=7.49)
    assert not partitions.is_spent(HOT, reading=True, now=7.49)
    assert not partitions.is_spent(COLD, reading=False, now=7.49)
    assert not partitions.is_spent(HOT, reading=False, now=7.51)


def test_a_clock_that_is_late_gives_nothing():
    """Threads tell times in any order; no second comes twice."""
    partitions = Partitions(10)
    partitions.take(HOT, 10, reading=False, now=5.0)

    assert partitions.is_spent(HOT, reading=False, now=4.0)
    assert partitions.is_spent(HOT, reading=False, now=5.0)
    assert not partitions.is_spent(HOT, reading=False, now=5.1)


@pytest.mark.parametrize("given", [(0, 1, 1), (1, 0, 1), (1, 1, 0.5)])
def test_a_partition_serves_something(given: tuple[float, float, float]):
    """A rate of nothing, and less than a second of it, are mistakes."""
    with pytest.raises(ValueError, match="units"):
        Partitions(*given)


def test_units_of_a_write():
    """One for each KB that was begun, one at least."""
    assert [write_units(size) for size in (0, 1, 1024, 1025, 13_262)] == [1, 1, 1, 2, 13]


def test_what_a_refusal_says():
    """A request for one item hears which kind of units is missing; a transaction hears it action by action."""
    for operation, reason in (("UpdateItem", "TableWriteKeyRange"), ("Query", "TableReadKeyRange")):
        [told] = refusal(operation, [True], "t")["ThrottlingReasons"]
        assert told["reason"] == f"{reason}ThroughputExceeded"
        assert told["resource"].endswith(":table/t")
    cancelled = refusal("TransactWriteItems", [False, True], "t")
    assert cancelled["Code"] == "TransactionCanceledException"
    assert [reason["Code"] for reason in cancelled["CancellationReasons"]] == ["None", "ThrottlingError"]


def test_whom_a_request_is_about():
    """Each action of a transaction; nothing is known of batches and scans."""
    check, put = {"TableName": "a"}, {"TableName": "b"}

    assert actions_of("TransactWriteItems", {"TransactItems": [{"ConditionCheck": check}, {"Put": put}]}) == [
        check,
        put,
    ]
    assert actions_of("UpdateItem", check) == [check]
    assert actions_of("Scan", check) == []
