"""What is promised of gevent, as a program: ``python -m tests.support.greenlets HOST REGION ITEMS NAMES``."""

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import sys
import threading
from typing import Any, Final

import gevent
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    VersionAttribute,
    locked_all,
    transaction,
    transactional,
)
from pynamo_locking.exceptions import LockTimeout
from pynamo_locking.transactions import Transaction, current_transaction

PATIENCE: Final = 60.0


class Account(LockableModel):
    class Meta:
        table_name = ""
        lock_settings = LockSettings(poll_interval=0.02, request_timeout=0.5, lease=4, wait=PATIENCE)

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Names(NamedLock):
    class Meta:
        table_name = ""
        lock_settings = LockSettings(poll_interval=0.02, request_timeout=0.5, lease=4, wait=PATIENCE)


def all_of(work: Any, times: int) -> None:
    gevent.joinall([gevent.spawn(work, number) for number in range(times)], timeout=PATIENCE, raise_error=True)


def until(is_so: Any) -> None:
    with gevent.Timeout(PATIENCE):
        while not is_so():
            gevent.sleep(0.01)


def value(name: str = "a") -> int:
    return int(Account.get(name, consistent_read=True).value)


def entries(name: str = "a") -> list[int]:
    return [entry.ticket for entry in Account.lock_state(name).entries]


def many_greenlets_take_turns() -> None:
    """Fifty of one thread wait for one lock: one at a time, first come, first served."""
    inside, tickets, arrived = list[int](), list[int](), list[int]()

    def work(number: int) -> None:
        arrived.append(number)
        with Account.locked("a") as lock:
            inside.append(number)
            assert len(inside) == 1
            gevent.sleep(0)
            tickets.append(lock.ticket)
            lock.item.value += 1
            lock.item.save()
            inside.remove(number)

    all_of(work, 50)
    assert value() == 50
    assert tickets == sorted(tickets)


def a_greenlet_does_not_hold_what_its_parent_holds() -> None:
    """It waits as any other; the parent itself goes in again. What it was begun in is not its transaction."""

    def child() -> str:
        try:
            with Account.locked("a", wait=0):
                return "in"
        except LockTimeout:
            return "busy"

    with Account.locked("a") as lock:
        assert gevent.spawn(child).get() == "busy"
        with Account.locked("a", wait=0) as again:
            assert again.ticket == lock.ticket
    assert gevent.spawn(child).get() == "in"
    with transaction():
        assert gevent.spawn(current_transaction).get() is None


def the_heartbeat_is_a_greenlet() -> None:
    """It renews while the holder waits for other things."""
    with Account.locked("a") as lock:
        [before] = Account.lock_state("a").holders
        until(lambda: Account.lock_state("a").holders[0].until_ms > before.until_ms)
        lock.item.save()


def a_greenlet_is_killed() -> None:
    """A holder gives back what it holds, a waiter leaves the queue, and a timeout does the same."""

    def hold(_: int = 0) -> None:
        with Account.locked("a"):
            gevent.sleep(PATIENCE)

    holder = gevent.spawn(hold)
    until(entries)
    waiter = gevent.spawn(hold)
    gevent.sleep(0)
    waiter.kill()
    with gevent.Timeout(0.05, False):
        hold()
        raise AssertionError
    assert len(entries()) == 1
    holder.kill()
    assert entries() == []


def transactions_of_many_greenlets() -> None:
    """Each has its own; nothing is made or lost."""
    Account("b", value=100).save()
    total = value() + value("b")

    @transactional(wait=PATIENCE, attempts=100)
    def move(tx: Transaction, source: str, target: str) -> None:
        giver, taker = tx.get(Account, source), tx.get(Account, target)
        assert current_transaction() is tx
        giver.value -= 1
        taker.value += 1
        tx.save(giver)
        tx.save(taker)

    all_of(lambda number: move(*("ab" if number % 2 else "ba")), 12)
    assert value() + value("b") == total


def several_locks() -> None:
    """Also in other orders, and those that are no items."""

    def work(number: int) -> None:
        locks = [Account.locked("a"), Names.locked("x"), Account.locked("b")]
        with locked_all(*(locks if number % 2 else reversed(locks))):
            gevent.sleep(0)

    all_of(work, 6)
    assert not entries()
    assert not entries("b")


def nothing_is_left() -> None:
    """No greenlet of ours but those that end when they have idled: heartbeat, helpers, the listener for wake-ups."""
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("pynamo")}
    assert names <= {"pynamo-locking-heartbeat", "pynamo-locking-wakeups"}, names


STORIES: Final = (
    many_greenlets_take_turns,
    a_greenlet_does_not_hold_what_its_parent_holds,
    the_heartbeat_is_a_greenlet,
    a_greenlet_is_killed,
    transactions_of_many_greenlets,
    several_locks,
    nothing_is_left,
)


def main(host: str, region: str, *names: str) -> None:
    models: list[Any] = [Account, Names]
    for model, name in zip(models, names, strict=True):
        model.Meta.table_name, model.Meta.host, model.Meta.region = name, host, region
        model.create_table(billing_mode="PAY_PER_REQUEST")
    Account("a").save()
    for story in STORIES:
        story()
        sys.stdout.write(f"{story.__name__}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
