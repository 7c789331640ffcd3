"""Processes that book random times of a few devices, and what has to be true of all that they say.

    story = fill(engine, Job(processes=8, inserts=500, devices=5))
    assert story.problems() == []

Every insert is written down with its beginning and end on the monotonic clock, which all processes share.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockSettings, NamedLock, VersionAttribute
from pynamo_locking.exceptions import LockTimeout, OverlapError, TransactionConflict
from pynamo_locking.intervals import IntervalMixin
from tests.support.crew import at_once, places_of
from tests.support.models import declare, meta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

SETTINGS: Final = LockSettings(poll_interval=0.01, max_poll_interval=0.1, request_timeout=5)

#: How many seconds an insert may take.
WAIT_S: Final = 60.0

#: How long a booking is at most.
LONGEST: Final = 10

#: Guard rows and range locks.
Locks = declare("Locks", NamedLock, table_name="locks", lock_settings=SETTINGS)


class Booking(IntervalMixin, LockableModel):
    """A time that a device is booked for."""

    Meta = meta("bookings", lock_table=Locks, lock_settings=SETTINGS, interval=("begin", "end"))

    device = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    by = UnicodeAttribute()
    version = VersionAttribute()


MODELS: Final[tuple[type[Any], ...]] = (Locks, Booking)


@dataclass(frozen=True)
class Job:
    """What each process does.

    Attributes:
        processes: how many there are.
        inserts: how many bookings each of them tries.
        devices: how many devices there are.
        horizon: the latest begin of a booking; the smaller, the more are refused.
        pessimistic: whether the range is locked first.
        number: of the process.
    """

    processes: int
    inserts: int
    devices: int
    horizon: int = 8_000
    pessimistic: bool = False
    number: int = 0


@dataclass(frozen=True)
class Insert:
    """What one insert was told.

    Attributes:
        device: the device.
        begin: of the booking.
        end: of the booking.
        by: its name, never used twice.
        said: ``"stored"``, ``"refused"`` or ``"gave up"``.
        in_the_way: the names of the bookings that it was refused for.
        started: when, on the monotonic clock, in seconds.
        ended: likewise.
    """

    device: str
    begin: int
    end: int
    by: str
    said: str
    in_the_way: tuple[str, ...]
    started: float
    ended: float

    def overlaps(self, other: Insert) -> bool:
        """Tell whether both want the same moment of one device."""
        return self.device == other.device and self.begin < other.end and other.begin < self.end


def work(job: Job) -> list[Insert]:
    """Try all bookings of one process."""
    chooser = random.Random(job.number)
    return [_insert(job, f"{job.number}-{place}", chooser) for place in range(job.inserts)]


def _insert(job: Job, by: str, chooser: random.Random) -> Insert:
    device, begin = f"d{chooser.randrange(job.devices)}", chooser.randrange(job.horizon)
    row = Booking(device, begin, end=begin + chooser.randint(1, LONGEST), by=by)
    said, in_the_way, started = "stored", list[str](), time.monotonic()
    try:
        Booking.intervals.insert_disjoint([row], pessimistic=job.pessimistic, wait=WAIT_S)
    except OverlapError as error:
        said, in_the_way = "refused", [other.by for other in error.rows]
    except (TransactionConflict, LockTimeout):
        said = "gave up"
    return Insert(device, begin, int(row.end), by, said, tuple(in_the_way), started, time.monotonic())


@dataclass(frozen=True)
class Story:
    """All that was said, and what is stored at the end.

    Attributes:
        inserts: by all processes.
        stored: name, device, begin and end of each stored row, read past the library.
    """

    inserts: list[Insert]
    stored: list[tuple[str, str, int, int]]

    def problems(self) -> list[str]:
        """Return all that is wrong: overlaps, lost or unknown rows, refusals for no reason."""
        return [*self._overlaps(), *self._lies(), *self._refusals()]

    def _overlaps(self) -> Iterator[str]:
        """Sweep over each device from its first moment to its last one."""
        by_device = defaultdict(list)
        for name, device, begin, end in self.stored:
            by_device[device].append((begin, end, name))
        for device, rows in by_device.items():
            for one, other in itertools.pairwise(sorted(rows)):
                if other[0] < one[1]:
                    yield f"{one} and {other} of {device} overlap"

    def _lies(self) -> Iterator[str]:
        said = {(one.by, one.device, one.begin, one.end) for one in self.inserts if one.said == "stored"}
        for row in said ^ set(self.stored):
            yield f"{row} is {'said to be' if row in said else 'not said to be'} stored"

    def _refusals(self) -> Iterator[str]:
        """A booking that is named was there: it overlaps, and its insert had begun when the refusal was told."""
        by_name = {one.by: one for one in self.inserts if one.said == "stored"}
        for one in self.inserts:
            if one.said == "refused":
                others = [by_name.get(name) for name in one.in_the_way]
                if not others or not all(
                    other and one.overlaps(other) and other.started < one.ended for other in others
                ):
                    yield f"{one} was refused for {others}"


def fill(engine: Engine, job: Job) -> Story:
    """Let all processes work at once on tables of their own."""
    engine.bind(*MODELS)
    jobs = [replace(job, number=number) for number in range(job.processes)]
    inserts = [one for done in at_once(places_of(engine, MODELS), _warm, work, jobs) for one in done]
    return Story(inserts, stored(engine))


def _warm() -> None:
    """Make clients and connections before all of them begin."""
    Booking.intervals.overlapping("nobody", 0, 1)


def stored(engine: Engine) -> list[tuple[str, str, int, int]]:
    """Read all bookings past the library."""
    pages = engine.client().get_paginator("scan").paginate(TableName=Booking.Meta.table_name, ConsistentRead=True)
    rows = [row for page in pages for row in page["Items"]]
    return [(row["by"]["S"], row["device"]["S"], int(row["begin"]["N"]), int(row["end"]["N"])) for row in rows]
