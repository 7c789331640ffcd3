"""A bank whose clerks are killed: processes that move money in transactions of any size, and all that must stay true.

Each transfer adds its label to the history of every account that it touches, and the label says how many those
are. So a reader of all accounts of one moment can tell whether each transfer is there whole, once, or not at all;
and a reader of one account can tell later whether what it saw was ever committed: it must be the beginning of what
is there at the end. Some transfers are built to fail at the last moment, with a balance that no reader may ever see.

Clerks also note what they do in the form of Jepsen's histories: an account is a list, to which a transfer appends its
label.
"""

from __future__ import annotations

import os
import random
import re
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactionTable,
    VersionAttribute,
    transaction,
    transactional,
)
from pynamo_locking.exceptions import LockingError, OutcomeUnknown
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.transactions import Transaction
from tests.campaign.histories import MicroOp, Scribe
from tests.support.crew import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.engines.engine import Engine

BANK: Final = "b"
ACCOUNTS: Final = int(os.environ.get("BANK_ACCOUNTS", "300"))
#: How many accounts a transfer moves money of at most; all of many.
LARGEST: Final = 250 if ACCOUNTS == 300 else ACCOUNTS
FIRST_BALANCE: Final = 1_000
#: What a transaction that cannot succeed writes.
POISON: Final = -777_777
#: The longest pause of a clerk between two transfers, in seconds.
THINK_S: Final = 0.3
#: While there is a file of this name in the folder of the logs, clerks begin no other transfer.
BREAK: Final = "break"
#: Of transfers that a clerk has suspended, of which each clerk that sees the file of one goes on with it.
SUSPENDED: Final = "suspended-"
#: Larger transfers read their accounts together, by a query or by `get_all`; smaller ones one by one.
_TOGETHER_FROM: Final = 10
#: How many receipts are filed together: some of them are more than the deciding transaction holds.
RECEIPTS: Final = 110
#: The latest time of a visit: so early that some overlap.
LAST_VISIT: Final = 4_000
#: So many that two clerks are seldom at one of them at once.
DESKS: Final = 8
#: Short, so that those who wait for a killed process go on soon. In seconds.
LEASE_S: Final = 3.0


class Transactions(TransactionTable):
    """The headers."""

    class Meta:
        table_name = "bank-transactions"


class Account(LockableModel):
    """An account; all of the bank can be queried at once."""

    class Meta:
        table_name = "bank-accounts"
        transaction_table = Transactions
        guard_queries = True

    bank = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    balance = NumberAttribute(default=FIRST_BALANCE)
    history = UnicodeAttribute(default=":")
    checksum = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Receipt(LockableModel):
    """One of many that are filed and torn up together."""

    class Meta:
        table_name = "bank-receipts"
        transaction_table = Transactions

    label = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    amount = NumberAttribute()
    version = VersionAttribute()
    lock = LockAttribute()


class Desks(NamedLock):
    """The guards of the desks."""

    class Meta:
        table_name = "bank-desks"


class Visit(IntervalMixin, LockableModel):
    """A time at a desk that no other visit has."""

    class Meta:
        table_name = "bank-visits"
        transaction_table = Transactions
        lock_table = Desks
        interval = ("begin", "end")

    desk = NumberAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    label = UnicodeAttribute()
    version = VersionAttribute()
    lock = LockAttribute()


class PlainAccount(Model):
    """An account as PynamoDB's own model sees it, which knows nothing of versions, locks and marks."""

    class Meta:
        table_name = "unbound"

    bank = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    balance = NumberAttribute()
    history = UnicodeAttribute()
    checksum = NumberAttribute()


MODELS: Final[dict[str, Any]] = {model.__name__: model for model in (Transactions, Account, Receipt, Desks, Visit)}


def checksum_of(account: Any) -> int:
    """What belongs to an account's balance and history."""
    return zlib.crc32(f"{account.number}/{account.balance}/{account.history}".encode())


def open_bank(engine: Engine) -> None:
    """Make the tables and the accounts."""
    engine.bind(*MODELS.values())
    names = ("table_name", "host", "region", *engine.credentials)
    for name in names:
        setattr(PlainAccount.Meta, name, getattr(Account.Meta, name))
    PlainAccount._connection = None
    for start in range(0, ACCOUNTS, 90):
        with transaction() as tx:
            for number in range(start, min(start + 90, ACCOUNTS)):
                account = Account(BANK, number)
                account.checksum = checksum_of(account)
                tx.save(account)


# Labels


_LABEL: Final = re.compile(r"(\d+\.\d+)([mftpsvw])(\d+)")


def is_long(label: str) -> bool:
    """Whether a transfer is too large for one native transaction."""
    return kind_of(label) in "ftw" or accounts_of(label) > 100


def kind_of(label: str) -> str:
    """``m`` moves, ``f`` files, ``t`` tears up, ``p`` poison, ``s`` suspends, ``v`` visits, ``w`` with many others."""
    match = _LABEL.fullmatch(label)
    assert match is not None, label
    return match[2]


def visits_of(label: str) -> int:
    """How many visits a transfer books."""
    return {"v": 1, "w": RECEIPTS}.get(kind_of(label), 0)


def accounts_of(label: str) -> int:
    """How many accounts a transfer touches."""
    match = _LABEL.fullmatch(label)
    assert match is not None, label
    return int(match[3])


def key_of(label: str) -> str | None:
    """The idempotency key of a transfer: each second one has its label for it."""
    match = _LABEL.fullmatch(label)
    assert match is not None, label
    return label if int(match[1].partition(".")[2]) % 2 else None


# The clerk's side


class Clerk:
    """One process that moves money until it is killed.

    Args:
        number: of the clerk.
        seed: of the run.
        folder: for the clerk's log.
    """

    def __init__(self, number: int, seed: str, folder: Path) -> None:
        self._number = number
        self._chooser = random.Random(f"{seed}/{number}")
        self._break = folder / BREAK
        self._folder = folder
        self._log = Log(folder / f"{number}.log")
        self._scribe = Scribe(folder / f"{number}.part", number)
        self._filed: list[str] = []
        self._visited: tuple[int, int] | None = None
        self._count = 0
        self.kinds: list[tuple[int, Callable[[], None]]] = [
            (20, lambda: self._move(2, 10)),
            (2, lambda: self._move(11, 100)),
            (2, lambda: self._move(101, LARGEST)),
            (1, self._file),
            (1, self._tear_up),
            (2, lambda: self._visit("v")),
            (1, lambda: self._visit("w")),
            (4, self._suspend),
            (1, lambda: self._fail(2, 10)),
            (1, lambda: self._fail(101, LARGEST - 1)),
        ]

    def work(self) -> NoReturn:
        """For ever."""
        weights, kinds = zip(*self.kinds, strict=True)
        while True:
            self._count += 1
            self._go_on()
            self._chooser.choices(kinds, weights)[0]()
            time.sleep(self._chooser.uniform(0, THINK_S))
            while self._break.exists():
                time.sleep(0.05)

    def note(self, event: str, label: str) -> None:
        """Write a line of the log."""
        self._log.note([event, label])

    def _commit(self, label: str, numbers: Iterable[int], act: Callable[[Transaction], list[MicroOp]]) -> bool:
        """Make one transaction on these accounts, again and again until it is committed; tell whether it is."""
        micro = [each for number in numbers for each in (["r", number, None], ["append", number, label])]
        self.note("begin", label)
        self._scribe.invoke(micro)
        try:
            done = transactional(attempts=1_000, lease=LEASE_S, idempotency_key=key_of(label))(act)()
        except OutcomeUnknown as error:
            self.note("unknown", label)
            self._scribe.info(micro, error)
        except (LockingError, PynamoDBException) as error:
            self.note("refused", label)
            self._scribe.fail(micro, error)
        else:
            self.note("committed", label)
            self._scribe.ok(done)
            return True
        return False

    def _move(self, least: int, most: int) -> None:
        count = self._chooser.randint(least, most)
        amounts = self._amounts(count)
        label = f"{self._number}.{self._count}m{count}"
        if count > _TOGETHER_FROM:
            first = self._chooser.randint(0, ACCOUNTS - count)
            read = _query if self._count % 2 else _get_all
            act = lambda tx: _book(read(tx, first, count), tx, label, amounts)  # noqa: E731
            self._commit(label, range(first, first + count), act)
        else:
            chosen = self._chooser.sample(range(ACCOUNTS), count)
            self._commit(label, chosen, lambda tx: _book(_get(tx, chosen), tx, label, amounts))

    def _suspend(self) -> None:
        """Plan a transfer, and leave it to the clerks that see its file first: several may."""
        label = f"{self._number}.{self._count}s2"
        chosen, book = self._two(label)
        micro = [["append", number, label] for number in chosen]
        self.note("begin", label)
        self._scribe.invoke(micro)
        with suppress(LockingError, PynamoDBException):  # the next clerk finds nothing, or the outcome is unknown
            tx = Transaction(lease=LEASE_S, idempotency_key=key_of(label))
            book(tx)
            (self._folder / f"{SUSPENDED}{label}").write_text(tx.suspend())
        self._scribe.info(micro, None)  # whether it is committed, another clerk will know

    def _go_on(self) -> None:
        """Go on with what clerks have suspended; a clerk that is refused does not know whether another one was not."""
        for path in self._folder.glob(f"{SUSPENDED}*"):
            label = path.name.removeprefix(SUSPENDED)
            with suppress(LockingError, PynamoDBException, FileNotFoundError):
                with transaction(lease=LEASE_S) as tx:
                    tx.resume(path.read_text(), [Account])
                self.note("committed", label)
            path.unlink(missing_ok=True)

    def _amounts(self, count: int) -> list[int]:
        """Amounts that are nothing together."""
        amounts = [self._chooser.randint(-9, 9) for _ in range(count - 1)]
        return [*amounts, -sum(amounts)]

    def _two(self, label: str) -> tuple[list[int], Callable[[Transaction], list[MicroOp]]]:
        chosen = self._chooser.sample(range(ACCOUNTS), 2)
        return chosen, lambda tx: _book(_get(tx, chosen), tx, label, [5, -5])

    def _file(self) -> None:
        label = f"{self._number}.{self._count}f2"
        chosen, move = self._two(label)

        def act(tx: Transaction) -> list[MicroOp]:
            done = move(tx)
            for number in range(RECEIPTS):
                tx.save(Receipt(label, number, amount=5))
            return done

        if self._commit(label, chosen, act):
            self._filed.append(label)

    def _tear_up(self) -> None:
        if not self._filed:
            return
        filed = self._filed.pop()
        label = filed.replace("f", "t")
        chosen, move = self._two(label)

        def act(tx: Transaction) -> list[MicroOp]:
            done = move(tx)
            for receipt in tx.get_all(Receipt, [(filed, number) for number in range(RECEIPTS)]):
                assert receipt is not None, f"a receipt of {filed} is lost"
                tx.delete(receipt)
            return done

        self._commit(label, chosen, act)

    def _visit(self, kind: str) -> None:
        """Book one visit or many at a desk, if no other visit is there by then; move one that was booked before."""
        label, begin = f"{self._number}.{self._count}{kind}2", self._chooser.randrange(LAST_VISIT)
        (chosen, move), desk, before = self._two(label), self._chooser.randrange(DESKS), self._visited
        visits = [Visit(desk, begin + 2 * i, end=begin + 2 * i + 2, label=label) for i in range(visits_of(label))]

        def act(tx: Transaction) -> list[MicroOp]:
            done = move(tx)
            if before is not None:
                tx.move(tx.get(Visit, *before), before[1] + 1, before[1] + 2)
            tx.insert_disjoint(Visit, [Visit.from_raw_data(visit.serialize()) for visit in visits])
            return done

        self._visited = (desk, begin) if self._commit(label, chosen, act) else None

    def _fail(self, least: int, most: int) -> None:
        """Write what no reader may see, together with a condition that is never true."""
        count = self._chooser.randint(least, most)
        first = self._chooser.randint(0, ACCOUNTS - count - 1)
        label = f"{self._number}.{self._count}p{count}"

        def act(tx: Transaction) -> list[MicroOp]:
            checked, *accounts = _query(tx, first, count + 1)
            for account in accounts:
                account.balance, account.history = POISON, f"{account.history} {label}"
                tx.save(account)
            tx.check(checked, Account.history == "never")
            return []

        is_committed = self._commit(label, range(first + 1, first + count + 1), act)
        assert not is_committed, f"{label} was committed against its condition"


def _get(tx: Transaction, numbers: list[int]) -> list[Account]:
    return [tx.get(Account, BANK, number) for number in numbers]


def _get_all(tx: Transaction, first: int, count: int) -> list[Account]:
    found = tx.get_all(Account, [(BANK, number) for number in range(first, first + count)])
    return [account for account in found if account is not None]


def _query(tx: Transaction, first: int, count: int) -> list[Account]:
    return tx.query(Account, BANK, Account.number.between(first, first + count - 1))


def seen_in(accounts: Iterable[Any]) -> list[MicroOp]:
    """Accounts as a history has them: each is a list of labels."""
    return [["r", int(account.number), account.history.split()[1:]] for account in accounts]


def _book(accounts: list[Account], tx: Transaction, label: str, amounts: list[int]) -> list[MicroOp]:
    done = []
    for read, account, amount in zip(seen_in(accounts), accounts, amounts, strict=True):
        account.balance += amount
        account.history += f" {label}"
        account.checksum = checksum_of(account)
        tx.save(account)
        done += [read, ["append", read[1], label]]
    return done
