"""Each request is atomic, whoever else writes at the same moment.

moto is not asked: under threads it loses updates and entries, lets two creators in, lets readers see half a
transaction, and now and then raises a RuntimeError ("dictionary changed size during iteration"). None of
that happens every time, so no test can assert it.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError

from tests.contract.helpers import CANCELED, REFUSED, Table
from tests.contract.lock_requests import enter, lock_map

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS, TIMES = 8, 25
T = TypeVar("T")


def in_threads(work: Callable[[int], T]) -> list[T]:
    """``work(0)`` to ``work(THREADS - 1)``, all at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def attempt(request: Callable[[], object], *refusals: str) -> bool:
    """Whether the request went through; other errors than the given ones are raised."""
    try:
        request()
    except ClientError as error:
        if error.response["Error"]["Code"] not in refusals:
            raise
        return False
    return True


def test_enter_gives_every_entry_a_ticket_of_its_own(concurrent_table: Table) -> None:
    """200 entries by 8 threads: 200 tickets without a gap, and no entry lost."""
    concurrent_table.put(lock=lock_map(1))

    def work(thread: int) -> list[int]:
        return [
            int(enter(concurrent_table, me, max_waiters=1000)["queue"][me][0])
            for me in (f"{thread}-{time}" for time in range(TIMES))
        ]

    tickets = in_threads(work)
    assert sorted(ticket for mine in tickets for ticket in mine) == list(range(1, THREADS * TIMES + 1))
    assert all(mine == sorted(mine) for mine in tickets)
    lock = (concurrent_table.get() or {})["lock"]
    assert lock["next"] == [THREADS * TIMES + 1]
    assert len({ticket for ticket, _ in lock["queue"].values()}) == len(lock["queue"]) == THREADS * TIMES


def test_the_bound_of_the_queue_holds(concurrent_table: Table) -> None:
    """200 attempts by 8 threads at 10 places: exactly 10 get in."""
    concurrent_table.put(lock=lock_map(1))

    def work(thread: int) -> int:
        return sum(
            attempt(partial(enter, concurrent_table, f"{thread}-{time}", max_waiters=10), REFUSED)
            for time in range(TIMES)
        )

    assert sum(in_threads(work)) == 10
    assert len((concurrent_table.get() or {})["lock"]["queue"]) == 10


def test_compare_and_set_loses_no_update(concurrent_table: Table) -> None:
    """Read, then write under the version read: the stored number is the number of successes."""
    concurrent_table.put(n=0)

    def increment() -> bool:
        n = (concurrent_table.get() or {})["n"]
        return attempt(
            lambda: concurrent_table.update("SET n = :new", "n = :old", values={":old": n, ":new": n + 1}), REFUSED
        )

    successes = in_threads(lambda thread: sum(increment() for _ in range(TIMES)))
    assert sum(successes) >= TIMES
    assert concurrent_table.get() == {"pk": "a", "n": sum(successes)}


def test_one_creator(concurrent_table: Table) -> None:
    """Of 8 who create the map at once, one does, again and again."""
    for number in range(TIMES):
        pk = f"k{number}"

        def create(thread: int, pk: str = pk) -> bool:
            update = partial(
                concurrent_table.update, "SET creator = :me", "attribute_not_exists(pk)", pk, values={":me": thread}
            )
            return attempt(update, REFUSED)

        created = in_threads(create)
        assert (concurrent_table.get(pk) or {})["creator"] == created.index(True)
        assert Counter(created)[True] == 1


def test_transactions_are_isolated(concurrent_table: Table) -> None:
    """Transfers between two items, and readers by TransactGetItems: the sum never changes."""
    concurrent_table.put("a", n=100)
    concurrent_table.put("b", n=100)

    def move() -> None:
        concurrent_table.client.transact_write_items(
            TransactItems=[
                {"Update": concurrent_table.request(pk, update="ADD n :n", values={":n": n})}
                for pk, n in (("a", -1), ("b", 1))
            ]
        )

    def total() -> int:
        gets = [{"Get": {"TableName": concurrent_table.name, "Key": {"pk": {"S": pk}}}} for pk in "ab"]
        return sum(
            int(answer["Item"]["n"]["N"])
            for answer in concurrent_table.client.transact_get_items(TransactItems=gets)["Responses"]
        )

    totals: set[int] = set()

    def work(thread: int) -> int:
        if thread % 2:
            for _ in range(TIMES):
                attempt(lambda: totals.add(total()), CANCELED, "TransactionInProgressException")
            return 0
        return sum(attempt(move, CANCELED, "TransactionInProgressException") for _ in range(TIMES))

    moved = sum(in_threads(work))
    assert totals == {200}
    assert [(concurrent_table.get(pk) or {})["n"] for pk in "ab"] == [100 - moved, 100 + moved]
