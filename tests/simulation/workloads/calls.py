"""Calls that may be made twice: under a lock, as a part of a transaction, and both."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamo_locking import transaction
from tests.simulation.models import Called, Coin
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.transacting import LEASE_S
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import Lock
    from pynamo_locking.recipes import IdempotentCall
    from pynamo_locking.transactions import Transaction
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Operation, Told

KEY: Final = "k"

#: How the callers of a key go about it. All but the first append to a coin in the commit that stores the result.
BY_LOCK, BY_COMMIT, BY_BOTH = "lock", "commit", "both"


class Calls(Workload):
    """All call the same function with the same key."""

    name = "calls"
    halves_seeds = True
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Coin, "a"),)
    tables: ClassVar[tuple[Any, ...]] = (Called,)
    is_contended = True
    keep_s: ClassVar[float] = 1000
    ways: ClassVar[tuple[str, ...]] = (BY_LOCK, BY_COMMIT, BY_BOTH)

    def party(self, index: int, turn: int) -> None:
        for n in range(2):
            way = self.ways[(index + turn + n) % len(self.ways)]
            act = partial(self.call, way, self.payload(index, n))
            self.until_not_refused(act, attempts=2 if way == BY_COMMIT else 1)

    def payload(self, index: int, n: int) -> str:
        """Return what the call is about."""
        return "one"

    def call(self, way: str, payload: str) -> Told:
        """Call in that way; note what came back, and the time by the caller's own clock before."""
        with self.history.operation("call") as done:
            asked_ms = runtime.time_ms()
            done.value = asked_ms, payload, None, None
            call = Called.call(KEY, payload=payload, expires_after=self.keep_s)
            result = {"by": done.number, "way": way, "payload": payload}
            if way == BY_COMMIT:
                with transaction(lease=LEASE_S, workers=1, wait=100) as tx, call:
                    if not call.is_repeated:
                        self.do(tx, done)
                        call.result = result
            else:
                with call:
                    if not call.is_repeated:
                        self.work(call, way, done, result)
            done.value = asked_ms, payload, call.is_repeated, call.result
        return done.told

    def work(self, call: IdempotentCall, way: str, done: Operation, result: dict[str, Any]) -> None:
        """Do the work of a call that holds its lock."""
        row = place(Called, KEY)
        done.tickets = {row: call.lock.ticket}
        self.history.granted(call.lock, row)
        with self.history.held(call.lock, row):
            runtime.sleep(1)
            if way == BY_BOTH:
                with transaction(lease=LEASE_S, workers=1, wait=100) as tx:
                    self.do(tx, done)
                    call.complete(result)
        if way == BY_LOCK:
            call.result = result

    def do(self, tx: Transaction, done: Operation) -> None:
        coin = tx.get(Coin, "a")
        self.append(coin, done.number)
        tx.save(coin)

    def rows(self) -> list[Place]:
        """Return the rows that carry locks: that of the key as well, which no party makes beforehand."""
        return [*super().rows(), place(Called, KEY)]

    def locks(self) -> Iterator[Lock[Any]]:
        yield from super().locks()
        yield Called.locked(KEY)


class CallsOfTwoPayloads(Calls):
    """Some of them mean something else by the same key."""

    name = "calls of two payloads"

    def payload(self, index: int, n: int) -> str:
        """Return what the call is about."""
        return "two" if (index + n) % 3 == 1 else "one"


class ShortCalls(Calls):
    """Results that are kept for less than it takes until the next call."""

    name = "short calls"
    keep_s = 8

    def party(self, index: int, turn: int) -> None:
        super().party(index, turn)
        runtime.sleep(self.keep_s + 1 + 5 * index)
        super().party(index, turn)
