"""PynamoDB alone: the yardsticks, and its optimistic locking in the loop that its documentation describes.

* **unprotected**: PynamoDB as its tutorial shows it, GetItem (consistent) and PutItem (unconditional). Whoever writes
  last wins, and what the others have added is lost.
* **plain updates**: UpdateItem, which adds 1 whatever the total is. One client that makes them one after the other is
  as fast as changes of one item that depend on each other can be.
* **retry loop**: GetItem (consistent), PutItem on condition that the version is the one that was read. When refused:
  sleep with full jitter between 0 and 50 ms doubled at each attempt, at most 2 s, and do it all again. The
  documentation says to try again and not how long to wait; these are the pauses of AWS's article (AWS Architecture
  Blog, Exponential Backoff and Jitter).
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import PutError
from pynamodb.models import Model
from typing_extensions import override

from benchmarks.contenders.counters import CounterFields, ModelCounter, PlainCounter, connected, meta

if TYPE_CHECKING:
    from benchmarks.contenders.base import Place

#: Of the jitter, in seconds; the same as `modify()` uses, so that the two differ in requests alone.
_BASE_S: Final = 0.05
_CAP_S: Final = 2.0


class Unprotected(PlainCounter):
    """Get and save."""

    name: ClassVar[str] = "unprotected"
    is_safe: ClassVar[bool] = False

    @override
    def add(self, key: str) -> None:
        self.raise_total(key)


class PlainUpdates(PlainCounter):
    """Update."""

    name: ClassVar[str] = "plain updates, one client"

    @override
    def add(self, key: str) -> None:
        self.counters(key).update(actions=[self.counters.total.add(1)])


class RetryLoop(ModelCounter):
    """Get, save if the version is still the same, and again."""

    name: ClassVar[str] = "PynamoDB, retry loop"

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)

        class Counter(CounterFields, Model):
            Meta: Any = meta(place, "counters")
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def add(self, key: str) -> None:
        for attempt in itertools.count(1):
            counter = self.counters.get(key, consistent_read=True)
            counter.total += 1
            try:
                counter.save()
            except PutError as error:
                if error.cause_response_code != "ConditionalCheckFailedException":
                    raise
            else:
                return
            longest = min(_CAP_S, _BASE_S * 2 ** min(attempt, 10))
            time.sleep(random.uniform(0, longest))  # noqa: S311 - spreads load
