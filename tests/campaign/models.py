"""What the processes of a campaign write: lists and registers, protected in every way that the package knows.

A key names its model: it is ``generation * SLOTS + slot``, and each slot belongs to a model. When a list has become
long, the generation of its slot goes up, so that reads stay short. A file that all processes map into memory has the
numbers.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, TransactionTable, VersionAttribute
from tests.support.models import declare, meta

if TYPE_CHECKING:
    from pathlib import Path

#: Short, so that the others go on soon when a process was killed. In seconds.
SETTINGS: Final = LockSettings(
    lease=2.0, request_timeout=0.3, poll_interval=0.01, max_poll_interval=0.1, max_clock_skew=0.5, wait=2.0
)
#: Of a transaction.
LEASE_S: Final = 3.0
WAIT_S: Final = 2.0
#: More than a native transaction holds.
WIDE: Final = 104
#: A longer list goes on under another key.
LONGEST: Final = 40

Transactions = declare("Transactions", TransactionTable)
Locks = declare("Locks", NamedLock, lock_settings=SETTINGS)


class Mixed(LockableModel):
    """A list that is written by transactions, under its lock, and by its version."""

    Meta = meta("campaign-mixed", lock_settings=SETTINGS, transaction_table=Transactions)

    key = NumberAttribute(hash_key=True)
    elements = UnicodeAttribute(default="")
    version = VersionAttribute()
    lock = LockAttribute()


#: A list that nothing but the lock in it protects.
Held = declare(
    "Held", lock=True, lock_settings=SETTINGS, key=NumberAttribute(hash_key=True), elements=UnicodeAttribute(default="")
)


class Beside(LockableModel):
    """A list that nothing but a lock in a row of its own protects."""

    Meta = meta("campaign-beside", lock_settings=SETTINGS, lock_table=Locks)

    key = NumberAttribute(hash_key=True)
    elements = UnicodeAttribute(default="")
    version = VersionAttribute()


class Cell(LockableModel):
    """A register that is written by transactions, under its lock, and by its version."""

    Meta = meta("campaign-cells", lock_settings=SETTINGS, transaction_table=Transactions)

    key = NumberAttribute(hash_key=True)
    value = NumberAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


MODELS: Final[dict[str, Any]] = {model.__name__: model for model in (Transactions, Locks, Mixed, Held, Beside, Cell)}
SLOTS: Final = 256
#: The slots of each model; those from 40 on are for transactions of more than a hundred items.
MIXED: Final = range(24)
HELD: Final = range(24, 28)
BESIDE: Final = range(28, 32)
WIDE_SLOTS: Final = range(40, 40 + WIDE + 8)
CELLS: Final = range(16)
_NUMBER: Final = struct.Struct("I")


def model_of(key: int) -> Any:
    """Return the model of a list."""
    slot = key % SLOTS
    return Held if slot in HELD else Beside if slot in BESIDE else Mixed


class Generations:
    """The generation of each slot, shared by all processes of a campaign.

    Args:
        path: of a file.
        new: make it. Nothing else may use it before.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        if new:
            path.write_bytes(bytes(SLOTS * _NUMBER.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def key(self, slot: int) -> int:
        """Return the key that is written now."""
        return self._of(slot) * SLOTS + slot

    def is_full(self, key: int) -> None:
        """Go on under another key; a second process that says so at the same time changes nothing."""
        generation, slot = divmod(key, SLOTS)
        if self._of(slot) == generation:
            _NUMBER.pack_into(self._memory, slot * _NUMBER.size, generation + 1)

    def keys(self) -> list[int]:
        """Return all keys that there were."""
        return [
            generation * SLOTS + slot
            for slot in (*MIXED, *HELD, *BESIDE, *WIDE_SLOTS)
            for generation in range(self._of(slot) + 1)
        ]

    def _of(self, slot: int) -> int:
        generation: int = _NUMBER.unpack_from(self._memory, slot * _NUMBER.size)[0]
        return generation
