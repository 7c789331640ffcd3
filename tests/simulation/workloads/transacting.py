"""Transactions of any size. A native one holds two or three actions here, so that few items make a long one."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import DoesNotExist, PynamoDBException

from pynamo_locking import transactional
from pynamo_locking.exceptions import ItemLocked, LockingError, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.simulation.checkers.base import Violation, queue_of
from tests.simulation.models import Coin, Headers
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime
from tests.support.transaction_helpers import committed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.history import History, Operation, Told

#: Leases of transactions are as long as those of locks here.
LEASE_S = 6.0

#: And their time to wait is longer than any party stands still.
WAIT_S = 100.0


class Transacting(Workload):
    """What all workloads of transactions have."""

    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Coin, "a"), (Coin, "b"), (Coin, "c"))
    is_contended = True

    def clean_up(self) -> None:
        """Sweep once, after all late requests have arrived: no mark is left, before any request meets it."""
        report = Headers.sweep()
        assert not report.failed, report
        connection = Coin._get_connection()
        kwargs = {"TableName": connection.table_name, "ConsistentRead": True}
        left = [image for image in connection.connection.dispatch("Scan", kwargs)["Items"] if queue_of(image).intent]
        if left:
            raise Violation(f"NothingLeft: a sweep has missed marks: {left}")

    def begin(self, **options: Any) -> Transaction:
        return Transaction(lease=LEASE_S, workers=1, wait=WAIT_S, **options)

    def transact(self, reads: str, writes: str, *, kind: str = "transaction", **options: Any) -> Told:
        """Read some coins, and append to others; note what was seen of all."""
        with self.history.operation(kind, *(place(Coin, key) for key in writes)) as done:
            done.seen = seen = {}  # also of a commit that is known later to be applied
            with self.begin(**options) as tx:
                keys = list(dict.fromkeys(reads + writes))
                for key, coin in zip(keys, self.found(tx, keys), strict=True):
                    seen[place(Coin, key)] = list(coin.log)
                    if key in writes:
                        self.append(coin, done.number)
                        tx.save(coin)
        return done.told

    def found(self, tx: Transaction, keys: list[str]) -> Iterable[Coin]:
        return (tx.get(Coin, key) for key in keys)

    def look_at_all(self) -> None:
        """Read all coins at one moment, without waiting for who is not decided."""
        self.transact("abc", "", kind="snapshot", isolation="snapshot")

    def repeatedly(self, reads: str, writes: str, **options: Any) -> None:
        """Transact until it is not refused, three times at most."""
        self.until_not_refused(lambda: self.transact(reads, writes, **options), attempts=3)


class LongTransactions(Transacting):
    """All coins at once: marked, decided, finished."""

    name = "long transactions"
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        self.repeatedly("", "abc" if index % 2 else "cba")
        self.look_at_all()


class RetriedTransactions(Transacting):
    """The same from `transactional`, which locks the coins that have refused an attempt before it makes the next."""

    name = "long, retried"
    halves_seeds = True
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        self.retry("abc" if index % 2 else "cba")
        self.look_at_all()

    def retry(self, writes: str, attempts: int = 3) -> Operation:
        with self.history.operation("transaction", *(place(Coin, key) for key in writes)) as done:
            done.seen = seen = {}

            @transactional(attempts=attempts, lease=LEASE_S, workers=1, wait=WAIT_S)
            def append_to_all(tx: Transaction) -> None:
                done.tickets = {self.row(lock): lock.ticket for lock in tx._items.locks.held}
                for key in writes:
                    coin = tx.get(Coin, key)
                    seen[place(Coin, key)] = list(coin.log)
                    self.append(coin, done.number)
                    tx.save(coin)

            append_to_all()
        return done


class CallersThatQueue(RetriedTransactions):
    """Native ones, `modify` and `edit` of the same coins: after a refusal they queue, and are served in time."""

    name = "callers that queue"
    most_actions = 4

    def party(self, index: int, turn: int) -> None:
        retries = [partial(self.retry, writes, 2) for writes in ("ab", "ba", "b")]
        ways = (retries[0], partial(self.modify, Coin, "a", attempts=2, wait=WAIT_S), retries[1], self.edit, retries[2])
        began = runtime.monotonic()
        done = ways[(index + turn) % 5]()
        self.check_served(done, runtime.monotonic() - began)
        self.look_at_all()

    def check_served(self, done: Operation, took: float) -> None:
        """All of them lock: no lock ends a call before its time, and an item that is read under one stays as it is."""
        in_vain = (ItemLocked, StaleVersion) if len(done.places) == 1 else ItemLocked
        if isinstance(done.error, in_vain) and took < WAIT_S:
            raise Violation(f"Served: {done} has ended after {took:.1f} s: {done.error}")

    def edit(self) -> Operation:
        """Append by `edit`."""
        editing = Coin.edit("b", lease=LEASE_S, wait=WAIT_S)
        with self.history.operation("edit", place(Coin, "b")) as done, editing as coin:
            done.tickets = {self.row(editing.lock): editing.lock.ticket}
            done.seen = {place(Coin, "b"): list(coin.log)}
            self.append(coin, done.number)
        return done


class MixedTransactions(Transacting):
    """Long and native ones, such that read what others write."""

    name = "mixed transactions"
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        reads, writes = (("", "abc"), ("a", "b"), ("ab", "c"), ("c", "a"), ("b", "ac"), ("bc", ""))[
            (index * 2 + turn) % 6
        ]
        self.repeatedly(reads, writes, read_only=not writes)
        reads, writes = (("b", "a"), ("abc", ""), ("", "bc"))[(index + turn) % 3]
        self.repeatedly(reads, writes, read_only=not writes)


class LongByStatements(LongTransactions):
    """The same, marked and finished by batches of statements."""

    name = "long, by statements"
    halves_seeds = True
    most_statements = 25


class MixedByStatements(MixedTransactions):
    """The same, marked and finished by batches of statements."""

    name = "mixed, by statements"
    halves_seeds = True
    most_statements = 25


class ReadTogether(MixedTransactions):
    """The same, with all that a transaction needs in one request."""

    name = "read together"
    halves_seeds = True

    def found(self, tx: Transaction, keys: list[str]) -> Iterable[Coin]:
        return [coin for coin in tx.get_all(Coin, keys) if coin is not None]


class ForgottenHeaders(MixedTransactions):
    """The headers of transactions that are over are deleted while late requests of theirs are on their way."""

    name = "forgotten headers"
    halves_seeds = True
    #: Longer than any party pauses or asks again: one that is slower is told that the transaction is unknown.
    final_ttl_s = 15

    def party(self, index: int, turn: int) -> None:
        super().party(index, turn)
        runtime.sleep(self.final_ttl_s + 1)
        super().party(index, turn + 1)


class NativeTransactions(Transacting):
    """One native transaction each, whose reads are checked by it."""

    name = "native transactions"
    most_actions = 4

    def party(self, index: int, turn: int) -> None:
        """Write what depends on another coin: write skew if the read were not checked."""
        self.repeatedly(*(("a", "b"), ("b", "a"), ("ab", "c"))[(index + turn) % 3])
        self.look_at_all()


class Crowd(Transacting):
    """A long transaction among single writes, locks and native transactions of the same coins."""

    name = "crowd"
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        way = (index + turn) % 4
        if way == 0:
            self.repeatedly("", "abc")
        elif way == 1:
            self.plain_save(Coin, "a")
        elif way == 2:
            self.saves(Coin.locked("b"), 0)
        else:
            with self.history.operation("update", place(Coin, "c")) as done:
                coin = Coin.get("c", consistent_read=True)
                coin.update([self.appended(Coin, done.number)], add_version_condition=False)
        self.look_at_all()


class Creations(Transacting):
    """Three coins that exist together or not at all: created, appended to, deleted together."""

    name = "creations"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Coin, "a"),)
    most_actions = 2
    keys = "xyz"

    def party(self, index: int, turn: int) -> None:
        self.until_not_refused(lambda: self.write(delete=bool((index + turn) % 2)), attempts=2)
        self.look()

    def write(self, *, delete: bool) -> Told:
        """Create all three if they are absent; else append to them, or delete them."""
        places = [place(Coin, key) for key in self.keys]
        with self.history.operation("removal" if delete else "transaction", *places) as done, self.begin() as tx:
            coins = [tx.get_or_none(Coin, key) for key in self.keys]
            if delete and not any(coins):
                tx.rollback()
                done.value = "nothing"
            for key, coin in zip(self.keys, coins, strict=True):
                if delete and coin is not None:
                    tx.delete(coin)
                elif not delete:
                    new = coin or Coin(key)
                    self.append(new, done.number)
                    tx.save(new)
        return done.told

    def look(self) -> None:
        """Look at two of them at one moment: they are the same."""
        with self.history.operation("together") as done:
            with self.begin(isolation="snapshot") as tx:
                found = [tx.get_or_none(Coin, key) for key in self.keys[:2]]
            done.value = [None if coin is None else list(coin.log) for coin in found]

    def exists(self, model: Any, key: str) -> bool:  # type: ignore[override]
        try:
            return super().exists(model, key)
        except DoesNotExist:
            return False


class Either(Transacting):
    """One coin is there whenever the log of another has an odd length: who reads both, sees that."""

    name = "either"
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        if index % 2 == 0:
            self.look()
            return
        for _ in range(2):
            self.flip()

    def flip(self) -> None:
        """Create the coin, or delete it, and note that in the other."""
        with self.history.operation("flip", place(Coin, "a")) as done, self.begin() as tx:
            counted, coin = tx.get(Coin, "a"), tx.get_or_none(Coin, "x")
            self.append(counted, done.number)
            tx.save(counted)
            if coin is None:
                tx.save(Coin("x"))
            else:
                tx.delete(coin)

    def look(self) -> None:
        """Look at both at one moment, and at a third, so that one read cannot check all of them."""
        with self.history.operation("together") as done:
            with self.begin(isolation="snapshot") as tx:
                is_there = tx.get_or_none(Coin, "x") is not None
                count = len(tx.get(Coin, "a").log)
                tx.get(Coin, "b")
            done.value = [is_there, count % 2 == 1]


class Sweepers(Transacting):
    """Long transactions that are all given up, since each has read an item that was changed since; and sweeps."""

    name = "sweepers"
    most_actions = 2

    def prepare(self) -> None:
        """Let a coin have a lock document, without which the first mark leaves one: a late copy is refused then."""
        super().prepare()
        Coin.locked("a").acquire().release()

    def party(self, index: int, turn: int) -> None:
        """Leave some marks and take them off again; or sweep."""
        if index % 2:
            with contextlib.suppress(LockingError):
                Headers.sweep()
            return
        with self.history.operation("given up"), self.begin() as tx:
            tx.touch(tx.get(Coin, "a"))
            tx.touch(tx.get(Coin, "b"))
            tx.save(Coin("x"))
            Coin.get("b", consistent_read=True).touch()


class SweepersByStatements(Sweepers):
    """The same, marked by batches of statements."""

    name = "sweepers, by statements"
    halves_seeds = True
    most_statements = 25


class PlainReaders(Transacting):
    """Long transactions, some of them given up half way; and readers who know nothing of transactions."""

    name = "plain readers"
    most_actions = 2

    def party(self, index: int, turn: int) -> None:
        if index % 2:
            for key in "cab":
                self.look(key)
            return
        for _ in range(2):
            self.repeatedly("", "abc")

    def look(self, key: str) -> None:
        """Read a coin as any program does."""
        with self.history.operation("plain read", place(Coin, key)) as done:
            done.value = list(Coin.get(key, consistent_read=True).log)


class Resurrection(Transacting):
    """One creates three coins, the other deletes them: what was deleted last never comes back."""

    name = "resurrection"
    most_actions = 2
    created, deleted = "xyz", "xy"

    def party(self, index: int, turn: int) -> None:
        if index % 2 == 0:
            with self.history.operation("creation"), self.begin() as tx:
                for key in self.created:
                    tx.save(Coin(key))
            return
        for key in self.deleted:
            self.remove(key)

    def remove(self, key: str) -> None:
        """Delete a coin as soon as it is there."""
        for _ in range(3):
            coin = None
            with contextlib.suppress(PynamoDBException):  # none is there yet, or no answer comes
                coin = committed(Coin, key)
            if coin is not None:
                with self.history.operation("last delete", place(Coin, key)):
                    coin.delete()
                return
            runtime.sleep(LEASE_S)


class ResurrectionOfSeveral(Resurrection):
    """The same of six coins: of the four placeholders two are created at once, and one item may be there already."""

    name = "resurrection of several"
    most_actions = 3
    created, deleted = "uvwxyz", "wx"

    def party(self, index: int, turn: int) -> None:
        """As above; or be in the way with a coin that is not deleted."""
        if index == 2:
            with self.history.operation("in the way"):
                Coin("z").save()
            return
        super().party(index, turn)


class Suspended(Transacting):
    """Each is suspended between its reads and its writes, and before its commit, and taken up again."""

    name = "suspended"
    halves_seeds = True
    most_actions = 4

    def party(self, index: int, turn: int) -> None:
        """Write what depends on another coin: skew if a read is forgotten, a lost update if nothing is compared."""
        self.in_three_parts(*(("a", "b"), ("b", "a"), ("ab", "c"))[(index + turn) % 3])

    def in_three_parts(self, reads: str, writes: str) -> None:
        """Read; go on with it and write; go on with it and commit."""
        with self.history.operation("transaction", *(place(Coin, key) for key in writes)) as done:
            with self.begin(table=Headers) as tx:
                seen = {place(Coin, key): list(tx.get(Coin, key).log) for key in reads + writes}
                id_ = tx.suspend()
            with self.begin(table=Headers) as tx:
                tx.resume(id_, [Coin])
                for key in writes:
                    coin = tx.get(Coin, key)
                    self.append(coin, done.number)
                    tx.save(coin)
                tx.suspend()
            with self.begin(table=Headers) as tx:
                tx.resume(id_, [Coin])
            done.seen = seen


class Combined(Transacting):
    """Pairs of callers in each process, whose transactions commit together."""

    name = "combined"
    most_actions = 6

    def party(self, index: int, turn: int) -> None:
        """Let another thread of the same process do so as well."""
        runtime.spawn(lambda: self.once(index + turn + 1), f"caller{index}.{turn}")
        self.once(index + turn)

    def once(self, number: int) -> None:
        for reads, writes in ((("", "ab"), ("a", "b"), ("b", "ac"), ("c", "a"))[number % 4], ("b", "a")):
            self.combine(reads, writes)

    def combine(self, reads: str, writes: str) -> None:
        """Read some coins, and append to others, together with other callers."""
        with self.history.operation("transaction", *(place(Coin, key) for key in writes)) as done:
            done.seen = seen = {}

            @transactional(combine=True, attempts=3, lease=LEASE_S, workers=1, wait=100)
            def append(tx: Transaction) -> None:
                done.tickets = {self.row(lock): lock.ticket for lock in tx._items.locks.held}
                for key in reads + writes:
                    coin = tx.get(Coin, key)
                    seen[place(Coin, key)] = list(coin.log)
                    if key in writes:
                        self.append(coin, done.number)
                        tx.save(coin)

            append()


class ResolvedGroups(Combined):
    """The same, and each caller in doubt asks what became of its own transaction."""

    name = "combined, resolved"
    halves_seeds = True

    def __init__(self, history: History) -> None:
        super().__init__(history)
        history.resolves = True


class RaisedOfGroups(Combined):
    """The same, and some only raise what they see, perhaps before it is committed."""

    name = "combined, raised"
    halves_seeds = True

    def once(self, number: int) -> None:
        self.combine(*(("", "ab"), ("b", "ac"))[number % 2])
        self.raise_what_is_seen("ab"[number % 2])

    def raise_what_is_seen(self, key: str) -> None:
        """Read a coin, and tell by an error what it shows: whoever gets the error has read it as any program does."""
        with self.history.operation("plain read", place(Coin, key)) as done:

            @transactional(combine=True, attempts=3, lease=LEASE_S, workers=1, wait=100)
            def look(tx: Transaction) -> None:
                raise Seen(list(tx.get(Coin, key).log))

            try:
                look()
            except Seen as seen:
                done.value = seen.args[0]


class Seen(Exception):  # noqa: N818 - what a function tells by raising
    """The log of a coin."""
