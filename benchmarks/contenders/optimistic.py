"""PynamoDB's own optimistic locking, in the loop that its documentation describes.

Requests of an attempt: GetItem (consistent), PutItem on condition that the version is the one that was read. When
refused: sleep with full jitter between 0 and 50 ms doubled at each attempt, at most 2 s, and do it all again. The
documentation says to try again and not how long to wait; these are the pauses of AWS's article.
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

from benchmarks.contenders.base import Contender, Place
from benchmarks.contenders.counters import CounterFields, connected, create_counters, meta

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of the jitter, in seconds; the same as `modify()` uses, so that the two differ in requests alone.
_BASE_S: Final = 0.05
_CAP_S: Final = 2.0


class RetryLoop(Contender):
    """Get, save if the version is still the same, and again."""

    name: ClassVar[str] = "PynamoDB, retry loop"
    source: ClassVar[str] = (
        "PynamoDB's docs, Optimistic Locking (seed 002); pauses: AWS Architecture Blog, Exponential Backoff and Jitter"
    )
    has_lock: ClassVar[bool] = False
    is_safe: ClassVar[bool] = True

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        del poll_s, lease_s  # it has neither

        class Counter(CounterFields, Model):
            Meta: Any = meta(place, "counters")
            version = VersionAttribute()

        self.counters = connected(Counter)

    @override
    def create(self, keys: Sequence[str]) -> None:
        create_counters(self.counters, keys)

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

    @override
    def total(self, key: str) -> int:
        return int(self.counters.get(key, consistent_read=True).total)

    @override
    def close(self) -> None:
        self.counters._get_connection().connection.client.close()
