"""A worker process: it gets orders through a pipe, and tells through the same pipe what it does.

A pipe of its own for each worker, and no queue shared by all: a process killed while it writes to a shared
queue would take the queue's mutex with it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import PynamoDBException
from pynamodb.signals import pre_dynamodb_send

from demo import bank
from demo.bank import Account, PlainAccount, Transfer, book
from pynamo_locking.exceptions import LockingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

READS: Final = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"})


# Orders


@dataclass(frozen=True)
class Work:
    """Do these transfers, with or without locks."""

    transfers: tuple[Transfer, ...]
    locked: bool


@dataclass(frozen=True)
class HoldForEver:
    """Take the lock of this account, change the account in memory, and never come back."""

    account: str


# Messages. All times are CLOCK_MONOTONIC, which all processes of a machine share.


@dataclass(frozen=True)
class Ready:
    """The worker has started."""


@dataclass(frozen=True)
class Doing:
    """What the worker does now."""

    text: str


@dataclass(frozen=True)
class Turn:
    """One time that a worker held a lock."""

    worker: str
    account: str
    ticket: int
    asked: float
    granted: float
    released: float


@dataclass(frozen=True)
class Done:
    """A transfer was made."""

    transfer: Transfer
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Holding:
    """The lock is taken and will not be given back."""

    turn: Turn


@dataclass(frozen=True)
class Failed:
    """A transfer was not made."""

    reason: str


@dataclass(frozen=True)
class Finished:
    """All transfers were made."""

    reads: int
    writes: int


Order = Work | HoldForEver | None
Message = Ready | Doing | Done | Holding | Failed | Finished


def main(pipe: Connection[Message, Order], name: str, host: str) -> None:
    """Run a worker process until it is told to stop, or its parent is gone."""
    logging.getLogger("pynamo_locking").setLevel(logging.ERROR)  # a warning would break into the live view
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        Teller(name, pipe, host).serve()


class Teller:
    """One worker."""

    def __init__(self, name: str, pipe: Connection[Message, Order], host: str) -> None:
        self._name = name
        self._pipe = pipe
        self._requests: list[str] = []
        self._turns: list[Turn] = []
        bank.use(host)
        pre_dynamodb_send.connect(self._count)
        PlainAccount.get(bank.NAMES[0])  # makes the connections, which is no part of what is measured
        Account.lock_state(bank.NAMES[0])

    def _count(self, _sender: object, operation_name: str, **_: Any) -> None:
        self._requests.append(operation_name)

    def serve(self) -> None:
        self._pipe.send(Ready())
        while (order := self._pipe.recv()) is not None:
            if isinstance(order, Work):
                self._work(order)
            else:
                self._hold_for_ever(order.account)

    def _work(self, work: Work) -> None:
        self._requests.clear()
        self._say("works")
        transfer_money = self._with_locks if work.locked else self._without_protection
        for transfer in work.transfers:
            self._try(transfer_money, transfer)
        reads = sum(name in READS for name in self._requests)
        self._pipe.send(Finished(reads, len(self._requests) - reads))

    def _try(self, transfer_money: Callable[[Transfer], None], transfer: Transfer) -> None:
        self._turns.clear()
        try:
            transfer_money(transfer)
        except (LockingError, PynamoDBException) as error:
            self._pipe.send(Failed(f"{self._name}: {type(error).__name__}: {error}"))
        else:
            self._pipe.send(Done(transfer, tuple(self._turns)))

    def _say(self, text: str) -> None:
        self._pipe.send(Doing(text))

    # The three ways to move money

    def _without_protection(self, transfer: Transfer) -> None:
        source, target = (PlainAccount.get(name) for name in (transfer.source, transfer.target))
        time.sleep(transfer.think_s)
        book(source, -transfer.amount)
        book(target, transfer.amount)
        source.save()
        target.save()

    def _with_locks(self, transfer: Transfer) -> None:
        first, second = sorted((transfer.source, transfer.target))  # all in one order: no deadlock
        self._say(f"wants {first}")
        with self._turn(first) as a, self._turn(second, first) as b:
            self._say(f"has {first} and {second}")
            time.sleep(transfer.think_s)
            book(a, -transfer.amount if a.name == transfer.source else transfer.amount)
            book(b, -transfer.amount if b.name == transfer.source else transfer.amount)

    @contextlib.contextmanager
    def _turn(self, name: str, held: str = "") -> Iterator[Account]:
        """``Account.edit(name)`` with a stopwatch."""
        if held:
            self._say(f"has {held}, wants {name}")
        edit = Account.edit(name, owner=self._name)
        asked = time.monotonic()
        with edit as account:
            granted = time.monotonic()
            yield account
            released = time.monotonic()
        self._turns.append(Turn(self._name, name, edit.lock.ticket, asked, granted, released))

    def _hold_for_ever(self, name: str) -> None:
        self._say(f"wants {name}")
        edit = Account.edit(name, owner=self._name)
        asked = time.monotonic()
        with edit as account:
            granted = time.monotonic()
            book(account, -int(account.balance))  # in memory; the kill comes before it is saved
            self._pipe.send(Holding(Turn(self._name, name, edit.lock.ticket, asked, granted, float("inf"))))
            self._say(f"has {name}, hangs")
            self._pipe.recv()  # nothing will come: only SIGKILL, or the end of the parent
            raise EOFError
