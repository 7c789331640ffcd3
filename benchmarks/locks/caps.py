"""What a partition allows: write units of a turn while so many are in the queue, and the turns that 1,000 units pay.

While a queue keeps its length, each turn adds an entry and removes one, and both requests write the document with all
of its entries. Units do not depend on how fast or how busy the machine is.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from benchmarks.locks.tables import markdown
from benchmarks.meter import metered
from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, VersionAttribute
from pynamo_locking_simulator._engine.partitions import WRITE_UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from benchmarks.meter import Meter

#: Entries in the queue, the holder's among them. The last one is a full queue by default.
QUEUES: Final = (2, 8, 32, 101)
_SETTINGS: Final = LockSettings(wait=600, lease=600, max_callers_per_entry=1)  # none of them is renewed meanwhile


class Account(LockableModel):
    """The README's, with a lock in it."""

    class Meta:
        table_name = "accounts"
        region = "us-east-1"
        lock_settings = _SETTINGS

    owner = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Names(NamedLock):
    """Locks in rows of their own."""

    class Meta:
        table_name = "names"
        region = "us-east-1"
        lock_settings = _SETTINGS


MODELS: Final[tuple[Any, ...]] = (Account, Names)


@contextmanager
def _edit(key: str) -> Iterator[None]:
    with Account.edit(key) as account:
        yield
        account.balance += 1


@contextmanager
def _locked(key: str) -> Iterator[None]:
    with Account.locked(key) as lock:
        yield
        lock.item.balance += 1
        lock.item.save()


@contextmanager
def _named(key: str) -> Iterator[None]:
    with Names.locked(key):
        yield


#: One turn of each, which ends its waiting at the `yield`.
KINDS: Final[dict[str, Callable[[str], AbstractContextManager[None]]]] = {
    "edit(), lock in the item": _edit,
    "locked() and a save(), lock in the item": _locked,
    "NamedLock": _named,
}


@dataclass(frozen=True)
class Cap:
    """What one turn takes in a queue that keeps its length.

    Attributes:
        kind: of turn.
        queue: entries, the holder's among them.
        units: write units of the turn.
        cap_per_s: turns that a partition allows in a second.
    """

    kind: str
    queue: int
    units: float
    cap_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(tick: Callable[[], None], queues: tuple[int, ...] = QUEUES) -> list[Cap]:
    """Let queues build up behind a holder, and count what the last one takes to enter and the holder to finish."""
    done = []
    for kind, turn in KINDS.items():
        for queue in queues:
            key = f"{queue}"
            Account(key).save()
            units = _units(turn, key, queue)
            done.append(Cap(kind, queue, units, WRITE_UNITS / units))
            tick()
    return done


def _units(turn: Callable[[str], AbstractContextManager[None]], key: str, queue: int) -> float:
    with turn(key):  # the document is there
        pass
    waiters: list[threading.Thread] = []
    with _written_by(threading.current_thread().name) as finishing:
        with turn(key):
            for i in range(queue - 2):
                _enter(turn, key, waiters, f"waiter-{i}")
            with _written_by("last") as entering:
                _enter(turn, key, waiters, "last")
                while not entering.write_units:
                    time.sleep(0.001)  # its answer is on the way
            before = finishing.write_units
        units = finishing.write_units - before
    for waiter in waiters:
        waiter.join()
    return entering.write_units + units


def _enter(
    turn: Callable[[str], AbstractContextManager[None]], key: str, waiters: list[threading.Thread], name: str
) -> None:
    def work() -> None:
        with turn(key):
            pass

    model: Any = Names if turn is _named else Account
    waiters.append(threading.Thread(target=work, name=name))
    waiters[-1].start()
    while len(model.lock_state(key).waiters) < len(waiters):
        time.sleep(0.002)


@contextmanager
def _written_by(thread: str) -> Iterator[Meter]:
    """Count the requests of one thread."""
    with metered() as meter:
        note: Callable[..., None] = meter.note

        def noting(*request: Any) -> None:
            if threading.current_thread().name == thread:
                note(*request)

        counting: Any = meter
        counting.note = noting
        yield meter


def as_markdown(done: list[Cap]) -> str:
    """Return the table: for each kind of turn what it takes, and what a partition allows."""
    queues = list(dict.fromkeys(each.queue for each in done))
    head = ("write units a turn (turns a second, at most), by entries in the queue", *map(str, queues))
    rows = []
    for kind in dict.fromkeys(each.kind for each in done):
        caps = [each for each in done if each.kind == kind]
        rows.append((kind, *(f"{each.units:g} ({each.cap_per_s:.0f})" for each in caps)))
    return markdown(head, rows)
