"""The throughput of a partition: what DynamoDB serves of one hash key in a second, and how it says that it is too much.

A request is served as long as anything is left, and pays afterwards what it took, since its size is known only then.
The last request may overdraw the units of a partition, and those that follow wait for them: over time exactly the rate
is served. What is not used is kept for so many seconds (DynamoDB: up to 300, without a promise).

Everything here is told what time it is. Sources: DynamoDB's developer guide, "Best practices for designing and using
partition keys" and "Burst and adaptive capacity"; its API reference, `TransactionCanceledException` and
`ThrottlingReason`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

#: Of one partition, a second.
WRITE_UNITS: Final = 1000.0
READ_UNITS: Final = 3000.0

READS: Final = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"})
TRANSACTIONS: Final = frozenset({"TransactWriteItems", "TransactGetItems"})

REFUSED: Final = "ProvisionedThroughputExceededException"
CANCELLED: Final = "TransactionCanceledException"
_HOT: Final = (
    "Throughput exceeds the current capacity of your table or index. If exceptions persist, check for a hot key."
)


@dataclass
class Bucket:
    """Units of one kind, as they come and are taken.

    Attributes:
        rate: units that come in a second.
        most: units that are kept.
        level: units that are left; negative if the last request took more than there were.
        at: when that was, in seconds of any clock.
    """

    rate: float
    most: float
    level: float
    at: float

    def left(self, now: float) -> float:
        """Return what is left at this time."""
        self.level = min(self.most, self.level + self.rate * max(0.0, now - self.at))
        self.at = max(self.at, now)
        return self.level

    def take(self, units: float, now: float) -> None:
        self.level = self.left(now) - units


class Partitions:
    """All hash keys of an engine, each with a partition of its own: the best that DynamoDB can do for a hot key.

    Args:
        write_units: that one key has in a second.
        read_units: the same for reads.
        burst_s: for how many seconds what is not used is kept, at least one. A new partition has all of it.
    """

    def __init__(self, write_units: float = WRITE_UNITS, read_units: float = READ_UNITS, burst_s: float = 1.0) -> None:
        if write_units <= 0 or read_units <= 0 or burst_s < 1:
            raise ValueError(f"{write_units} write units, {read_units} read units, {burst_s} s of burst")
        self._rates = {False: write_units, True: read_units}
        self._burst_s = burst_s
        self._buckets: dict[tuple[Hashable, bool], Bucket] = {}

    def is_spent(self, key: Hashable, *, reading: bool, now: float) -> bool:
        """Tell whether a request about a hash key is refused."""
        return self._bucket(key, reading, now).left(now) <= 0

    def take(self, key: Hashable, units: float, *, reading: bool, now: float) -> None:
        self._bucket(key, reading, now).take(units, now)

    def exhaust(self, key: Hashable, seconds: float, *, reading: bool, now: float) -> None:
        """Let others take all units of a hash key, and those of so many seconds to come."""
        bucket = self._bucket(key, reading, now)
        bucket.take(bucket.left(now) + bucket.rate * seconds, now)

    def _bucket(self, key: Hashable, reading: bool, now: float) -> Bucket:
        if (key, reading) not in self._buckets:
            rate = self._rates[reading]
            self._buckets[key, reading] = Bucket(rate, rate * self._burst_s, rate * self._burst_s, now)
        return self._buckets[key, reading]


def write_units(size: int) -> float:
    """Return what it takes to write an item of so many bytes, outside of a transaction."""
    return float(max(1, -(-size // 1024)))


def refusal(operation: str, are_spent: Sequence[bool], table: str) -> dict[str, Any]:
    """Return the error of a request that DynamoDB refuses since a partition has no units left.

    Args:
        operation: that was asked for.
        are_spent: for each action of a transaction, whether its partition is the reason. Of any other request, one.
        table: of the first of them.

    Returns:
        Its code and message, and what else is in the answer.
    """
    if operation in TRANSACTIONS:
        reasons = [{"Code": "ThrottlingError", "Message": _HOT} if spent else {"Code": "None"} for spent in are_spent]
        codes = ", ".join(reason["Code"] for reason in reasons)
        message = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
        return {"Code": CANCELLED, "Message": message, "CancellationReasons": reasons}
    why = throttling_reason(operation, "KeyRangeThroughputExceeded", table)
    return {"Code": REFUSED, "Message": _HOT, "ThrottlingReasons": [why]}


def throttling_reason(operation: str, limit: str, table: str, index: str | None = None) -> dict[str, str]:
    """Return why a request is throttled: which limit is reached, and of which table or index."""
    kind = "Read" if operation in READS else "Write"
    part, place = ("Table", "") if index is None else ("Index", f"/index/{index}")
    resource = f"arn:aws:dynamodb:us-east-1:123456789012:table/{table}{place}"
    return {"reason": f"{part}{kind}{limit}", "resource": resource}


def actions_of(operation: str, request: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return what a request asks for, item by item: arguments with a `TableName` each; none for batches and scans."""
    if operation in TRANSACTIONS:
        return [next(iter(action.values())) for action in request["TransactItems"]]
    return [request] if operation in {"GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query"} else []
