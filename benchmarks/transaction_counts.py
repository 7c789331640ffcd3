"""Requests and units of transactions of any size, counted on dynoxide."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from benchmarks.meter import metered
from pynamo_locking import LockableModel, LockAttribute, LockSettings, TransactionTable, VersionAttribute, transaction
from pynamo_locking.transactions import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES: Final = (1, 2, 10, 99, 100, 101, 250, 1_000, 5_000)
#: Bytes of an item, about.
ITEM_BYTES: Final = 512


class Transactions(TransactionTable):
    """The headers."""

    class Meta:
        table_name = "transactions"
        region = "us-east-1"


class Record(LockableModel):
    """An item of half a kilobyte."""

    class Meta:
        lock_settings = LockSettings(lease=120, request_timeout=15)  # a busy machine sends nothing twice
        table_name = "records"
        region = "us-east-1"
        transaction_table = Transactions

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default="x" * (ITEM_BYTES - 100))
    total = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


# The work


def update(tx: Transaction, key: str) -> None:
    """Read an item, change it and save it."""
    record = tx.get(Record, key)
    record.total += 1
    tx.save(record)


def insert(tx: Transaction, key: str) -> None:
    """Store a new item."""
    tx.save(Record(key))


def delete(tx: Transaction, key: str) -> None:
    """Read an item and delete it."""
    tx.delete(tx.get(Record, key))


def mixture(tx: Transaction, key: str) -> None:
    """One third each, told by the key."""
    _part_of(key)(tx, key)


def _part_of(key: str) -> Callable[[Transaction, str], None]:
    return (update, insert, delete)[int(key.rsplit("-", 1)[1]) % 3]


KINDS: Final[dict[str, Callable[[Transaction, str], None]]] = {
    "updates": update,
    "inserts": insert,
    "deletes": delete,
    "mixture": mixture,
}


@dataclass(frozen=True)
class Count:
    """What one transaction took.

    Attributes:
        kind: what it did to each item.
        n: how many items it wrote.
        path: how it was committed.
        requests: of the commit, counted.
        write_units: of the commit, counted.
        refused: how many of the requests were refused.
        reads: requests that the transaction made before the commit, to read.
        read_units: of those.
        reference_requests: what the protocol needs at least: 1, or 4 and 2 for each 25 items beyond 99 (inserts:
            1 for each 25 and 1 for each 99).
        old_requests: 7n + 4, what Amazon's library of 2013 makes by its own account.
    """

    kind: str
    n: int
    path: str
    requests: int
    write_units: float
    refused: int
    reads: int
    read_units: float

    @property
    def reference_requests(self) -> int:
        """The formula of the protocol, with one row of participants for each 350 KB of keys."""
        if self.n <= _NATIVE:
            return 1
        marked = self.n - _NATIVE + 1
        finishes = -(-marked // _BATCH)
        return 3 + -(-marked // _ROW) + finishes + (-(-marked // (_NATIVE - 1)) if self.kind == "inserts" else finishes)

    @property
    def old_requests(self) -> int:
        """The formula of Amazon's library of 2013."""
        return 7 * self.n + 4

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        formulas = {"reference_requests": self.reference_requests, "old_requests": self.old_requests}
        return asdict(self) | formulas


_NATIVE: Final = 100

#: The most statements of a batch.
_BATCH: Final = 25

#: How many of these items one row of participants names.
_ROW: Final = 3_977
#: A commit renews its lease after a third of it: not on a machine however slow, so that the counts are the same.
_LEASE_S: Final = 3_600.0


def count(kind: str, n: int) -> Count:
    """Make a transaction of so many items and count what it takes. The models are bound to an engine."""
    act = KINDS[kind]
    keys = [f"{kind}-{n}-{i:04}" for i in range(n)]
    _prepare([key for key in keys if _is_there_before(kind, key)])
    with metered() as reading:
        tx = Transaction(Transactions, wait=_LEASE_S, lease=_LEASE_S)
        for key in keys:
            act(tx, key)
        plan = tx.plan()
    with metered() as committing:
        tx.commit()
    return Count(
        kind,
        n,
        plan.path.value,
        committing.requests,
        committing.write_units,
        committing.refused,
        reading.requests,
        reading.read_units,
    )


def _is_there_before(kind: str, key: str) -> bool:
    act = _part_of(key) if kind == "mixture" else KINDS[kind]
    return act is not insert


def _prepare(keys: list[str]) -> None:
    for start in range(0, len(keys), _NATIVE):
        with transaction(Transactions) as tx:
            for key in keys[start : start + _NATIVE]:
                tx.save(Record(key))


def as_markdown(counts: list[Count]) -> str:
    """Return the table."""
    head = (
        "kind",
        "n",
        "path",
        "requests",
        "reference",
        "of 2013, 7n+4",
        "write units",
        "reads before",
    )
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" + "---|" + "---:|" * 5]
    for each in counts:
        cells = (
            each.kind,
            f"{each.n:,}",
            each.path,
            f"{each.requests:,}",
            f"{each.reference_requests:,}",
            f"{each.old_requests:,}",
            f"{each.write_units:,.0f}",
            f"{each.reads:,}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
