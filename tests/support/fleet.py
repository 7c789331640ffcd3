"""A process of a fleet of two releases: it locks, moves money and books, with the release whose folder it is told.

Each release imports this file, which imports of the tests only what needs no release. It uses what both releases have;
two things have another name in the earlier one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any, Final

import botocore.session
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import base
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

import pynamo_locking
from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactionTable,
    VersionAttribute,
    transaction,
)
from pynamo_locking.exceptions import LockingError, OutcomeUnknown
from tests.support import nursery

try:
    from pynamo_locking.intervals import IntervalMixin

    POLL: Final = "poll_interval"
except ImportError:  # the earlier release
    from pynamo_locking import IntervalMixin  # type: ignore[no-redef]

    POLL = "poll"  # type: ignore[misc]

#: A killed holder keeps the others waiting for so long.
KEYWORDS: Final[dict[str, Any]] = {"lease": 1.2, "request_timeout": 0.2, POLL: 0.02, "max_clock_skew": 0.5}
SETTINGS: Final = LockSettings(wait=30.0, **KEYWORDS)
PURSES: Final = [f"p{i}" for i in range(12)]
BALANCE: Final = 100
#: More actions are a long transaction, as are those with six purses.
FEW: Final = 4


class Names(NamedLock):
    class Meta:
        table_name = "fleet-names"
        lock_settings = SETTINGS


class Transactions(TransactionTable):
    class Meta:
        table_name = "fleet-transactions"


class Counter(LockableModel):
    """Nothing but its lock protects it."""

    class Meta:
        table_name = "fleet-counters"
        lock_settings = SETTINGS

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    lock = LockAttribute()


class Purse(LockableModel):
    class Meta:
        table_name = "fleet-purses"
        lock_settings = SETTINGS
        transaction_table = Transactions

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=BALANCE)
    version = VersionAttribute()
    lock = LockAttribute()


class Slot(IntervalMixin, Model):
    class Meta:
        table_name = "fleet-slots"
        lock_table = Names
        interval = ("begin", "end")

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


#: In the earlier release the methods are the model's.
SLOTS: Final[Any] = getattr(Slot, "intervals", Slot)

MODELS: Final[tuple[Any, ...]] = (Names, Transactions, Counter, Purse, Slot)


def count(note: Any) -> None:
    """Add one to a counter, under its lock."""
    with Counter.locked("a") as lock:
        note("holds", lock="counter", ticket=lock.ticket)
        item = lock.item
        item.value += 1
        time.sleep(random.uniform(0, 0.03))
        item.save()
        note("applied", value=int(item.value))
        note("left", lock="counter", lost=lock.lost.is_set())


def hold(note: Any) -> None:
    """Hold a name."""
    with Names.locked("n") as lock:
        note("holds", lock="name", ticket=lock.ticket)
        time.sleep(random.uniform(0, 0.03))
        note("left", lock="name", lost=lock.lost.is_set())


def move(note: Any) -> None:
    """Move money between two purses, or among six of them, in a long transaction."""
    names = random.sample(PURSES, random.choice([2, 6]))
    with transaction(wait=0.5, lease=3) as tx:
        purses = [purse for purse in tx.get_all(Purse, names) if purse is not None]
        for giver, taker in itertools.pairwise(purses):
            amount = random.randrange(5)
            giver.balance -= amount
            taker.balance += amount
        for purse in purses:
            tx.save(purse)
    note("applied")


def book(note: Any) -> None:
    """Take a slot, or give one back."""
    begin = random.randrange(200)
    if random.random() < 0.5:
        SLOTS.insert_disjoint([Slot("r", begin, end=begin + random.randrange(1, 8))], wait=5)
    else:
        for slot in SLOTS.overlapping("r", begin, begin + 20)[:1]:
            SLOTS.move(slot, begin, begin + random.randrange(1, 8), wait=5)
    note("applied")


WORK: Final = {"count": count, "hold": hold, "move": move, "book": book}


def work(_pipe: object, number: int, folder: Path) -> None:
    """Do what there is to do for as long as a file is there."""
    for name in ("dynamodb", "limits"):  # the module of either release
        with contextlib.suppress(ImportError):
            importlib.import_module(f"pynamo_locking._core.{name}").MOST_ACTIONS = FEW  # type: ignore[attr-defined]
    log = os.open(folder / f"{number}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    go_on = folder / "go-on"

    def note(event: str, **facts: Any) -> None:
        line = {"at": time.monotonic(), "pid": os.getpid(), "event": event, **facts}
        os.write(log, json.dumps(line).encode() + b"\n")

    while go_on.exists():
        kind = random.choice(list(WORK))
        note("begin", kind=kind)
        try:
            WORK[kind](lambda event, kind=kind, **facts: note(event, kind=kind, **facts))
        except OutcomeUnknown as error:
            note("unknown", kind=kind, why=repr(error))
        except (LockingError, PynamoDBException) as error:
            note("refused", kind=kind, why=repr(error))


def warm_up() -> None:
    """Make what a process needs for its first request, and make none: else most of its short life would go by."""
    session = botocore.session.get_session()
    base.get_session = lambda *_: session  # type: ignore[attr-defined]  # its descriptions of the service are read once
    for lock in (Counter.locked("a"), Names.locked("n"), Purse.locked("p0")):
        lock.name  # noqa: B018 - never acquired
    for model in MODELS:
        model._get_connection()
    for each in gc.get_objects():
        if isinstance(each, base.Connection):
            each.client  # noqa: B018 - made when it is first asked for


def prepare(release: Path, places: nursery.Places) -> None:
    """Be a process of the release in a folder, that others are forked from."""
    if not Path(pynamo_locking.__file__).is_relative_to(release):
        raise SystemExit(f"this is not the release in {release}: {pynamo_locking.__file__}")
    nursery.use(places)
    warm_up()
