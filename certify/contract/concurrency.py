"""Concurrent requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore.exceptions import ClientError

from certify.contract.rows import CANCELED, REFUSED, code_of, enter, holds, lock_map, same

if TYPE_CHECKING:
    from collections.abc import Callable

    from certify.contract.rows import Rows


_THREADS: Final = 8
_TIMES: Final = 25
_CONFLICTS: Final = (CANCELED, "TransactionInProgressException", "TransactionConflictException")
_T = TypeVar("_T")


def _in_threads(work: Callable[[int], _T]) -> list[_T]:
    """Call ``work(0)`` to ``work(_THREADS - 1)``, all at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, range(_THREADS)))


def _attempt(request: Callable[[], object], *refusals: str) -> bool:
    """Tell whether the request went through; other errors than the given ones are raised."""
    try:
        request()
    except ClientError as error:
        if code_of(error) not in refusals:
            raise
        return False
    return True


def enter_gives_every_entry_a_ticket_of_its_own(rows: Rows) -> None:
    """200 entries by 8 threads: 200 tickets without a gap, and no entry lost."""
    rows.put(lock=lock_map(1))

    def work(thread: int) -> list[int]:
        return [
            int(enter(rows, me, max_waiters=1000)["queue"][me][0])
            for me in (f"{thread}-{time}" for time in range(_TIMES))
        ]

    tickets = _in_threads(work)
    same(sorted(ticket for mine in tickets for ticket in mine), list(range(1, _THREADS * _TIMES + 1)), "tickets")
    holds(all(mine == sorted(mine) for mine in tickets), "the tickets of a thread are not in its order")
    lock = (rows.get() or {})["lock"]
    same(lock["next"], [_THREADS * _TIMES + 1], "the next ticket")
    same(len({ticket for ticket, _ in lock["queue"].values()}), _THREADS * _TIMES, "entries")


def the_bound_of_the_queue_holds(rows: Rows) -> None:
    """200 attempts by 8 threads at 10 places: exactly 10 get in."""
    rows.put(lock=lock_map(1))

    def work(thread: int) -> int:
        return sum(
            _attempt(partial(enter, rows, f"{thread}-{time}", max_waiters=10), REFUSED) for time in range(_TIMES)
        )

    same(sum(_in_threads(work)), 10, "successes")
    same(len((rows.get() or {})["lock"]["queue"]), 10, "entries")


def compare_and_set_loses_no_update(rows: Rows) -> None:
    """Read, then write under the version read: the stored number is the number of successes."""
    rows.put(n=0)

    def increment() -> bool:
        n = (rows.get() or {})["n"]
        return _attempt(lambda: rows.update("SET n = :new", "n = :old", values={":old": n, ":new": n + 1}), REFUSED)

    successes = sum(_in_threads(lambda _: sum(increment() for _ in range(_TIMES))))
    holds(successes >= _TIMES, f"only {successes} successes")
    same(rows.get(), {"pk": "a", "n": successes})


def one_creator(rows: Rows) -> None:
    """Of 8 who create the map at once, one does, again and again."""
    for number in range(_TIMES):
        pk = f"k{number}"

        def create(thread: int, pk: str = pk) -> bool:
            update = partial(rows.update, "SET creator = :me", "attribute_not_exists(pk)", pk, values={":me": thread})
            return _attempt(update, REFUSED)

        created = _in_threads(create)
        same(created.count(True), 1, "creators")
        same((rows.get(pk) or {})["creator"], created.index(True), "the creator")


def transactions_are_isolated(rows: Rows) -> None:
    """Transfers between two items, and readers by TransactGetItems: the sum never changes."""
    rows.put("a", n=100)
    rows.put("b", n=100)

    def move() -> None:
        actions = [{"Update": rows.request(pk, update="ADD n :n", values={":n": n})} for pk, n in (("a", -1), ("b", 1))]
        rows.client.transact_write_items(TransactItems=actions)

    def total() -> int:
        gets: list[Any] = [{"Get": {"TableName": rows.name, "Key": rows.key(pk)}} for pk in "ab"]
        answers = rows.client.transact_get_items(TransactItems=gets)["Responses"]
        return sum(int(answer["Item"]["n"]["N"]) for answer in answers)

    totals: set[int] = set()

    def work(thread: int) -> int:
        if thread % 2:
            for _ in range(_TIMES):
                _attempt(lambda: totals.add(total()), *_CONFLICTS)
            return 0
        return sum(_attempt(move, *_CONFLICTS) for _ in range(_TIMES))

    moved = sum(_in_threads(work))
    same(totals, {200}, "sums that were read")
    same([(rows.get(pk) or {})["n"] for pk in "ab"], [100 - moved, 100 + moved], "balances")
