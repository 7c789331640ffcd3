"""Processes are killed and paused at random moments while all of them write the same few items.

Each worker notes in a file of its own what it is about to do and what became of it. A kill can come at any
instruction, so the last line of a dead worker may be a write without an end: it may have been applied.

It notes the same in the form of Jepsen's histories. There an item is a register: each write puts a name of its own into
`by`, and has read the name of the write before.

Forks in the middle of a lock are in `locks/test_fork`; a kill or a pause at a chosen moment in `locks/test_crashes` and
`locks/test_pauses`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockableModel, LockAttribute, LockSettings, VersionAttribute, transaction
from pynamo_locking.exceptions import LockingError, OutcomeUnknown
from tests.campaign.check import check_parts
from tests.campaign.histories import Scribe
from tests.support.crew import Crew, Log, notes_in, places_of
from tests.support.workers import PATIENCE, Beside, Enforced, Locks, Plain, Versioned, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

pytestmark = [pytest.mark.alone, pytest.mark.processes]

PROCESSES: Final = 6
#: What is done to them, in an order that is drawn.
PLAN: Final = ["killed"] * 3 + ["paused"] * 2 + ["paused for more than a lease"] * 4
LEASE_S: Final = 1.5
#: For how long.
DEEDS: Final[dict[str, tuple[float, float] | None]] = {
    "killed": None,
    "paused": (0.05 * LEASE_S, 0.5 * LEASE_S),
    "paused for more than a lease": (1.5 * LEASE_S, 2.0 * LEASE_S),
}
SETTINGS: Final = LockSettings(
    lease=LEASE_S, request_timeout=0.25, poll_interval=0.02, max_clock_skew=0.5, wait=PATIENCE
)


class Made(LockableModel):
    """An item that is not there at first: its name is locked until then, in a row."""

    class Meta:
        table_name = "made"
        lock_table = Locks
        lock_settings = SETTINGS

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    by = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


MODELS: Final[dict[str, Any]] = {model.__name__: model for model in (Plain, Versioned, Locks, Beside, Enforced, Made)}
#: What is written, and how. Only `Versioned` and `Enforced` are written from outside of their locks as well, and `Made`
#: by transactions.
ITEMS: Final = [("Plain", "a"), ("Versioned", "a"), ("Beside", "a"), ("Enforced", "a"), ("Made", "a")]
#: Where the item is that is written under a lock of a range.
AT: Final = 5
#: The longest time that a holder computes between reading and writing, so that many are hit in there.
THINK_S: Final = 0.02


class Note(NamedTuple):
    """One line of a worker's log."""

    event: str
    """``begin``, and then ``applied``, ``refused`` or ``unknown``."""
    item: str
    ticket: int | None = None
    value: int | None = None


# The worker's side


@dataclass
class Attempt:
    """A write of a worker, and how it notes it.

    Attributes:
        name: its own.
        note: an event, with a ticket and an item.
        before: the name of the write that it replaces.
        is_applied: whether it is known to be applied.
    """

    name: str
    note: Callable[..., None]
    before: str | None = None
    is_applied: bool = False

    def reads(self, item: Any) -> str:
        """Note what is replaced; return this write's own name."""
        self.before = item.by
        return self.name

    def changes(self, item: Any) -> None:
        """Change an item, and take a while."""
        item.by = self.reads(item)
        item.value += 1
        time.sleep(random.uniform(0, THINK_S))

    def applied(self, ticket: int | None, item: Any) -> None:
        """Note that it is applied."""
        self.is_applied = True
        self.note("applied", ticket, item)


def locked_save(model: Any, key: str, attempt: Attempt) -> None:
    with model.locked(key, settings=SETTINGS) as lock:
        attempt.changes(lock.item)
        lock.item.save()
        attempt.applied(lock.ticket, lock.item)  # whatever the release says: this write is applied


def edit(model: Any, key: str, attempt: Attempt) -> None:
    edit = model.edit(key, settings=SETTINGS)
    with edit as item:
        attempt.changes(item)
    attempt.applied(edit.lock.ticket, item)


def versioned_update(model: Any, key: str, attempt: Attempt) -> None:
    item = model.get(key, consistent_read=True)
    item.update([model.value.add(1), model.by.set(attempt.reads(item))])
    attempt.applied(None, item)


def locked_by_a_transaction(model: Any, key: str, attempt: Attempt) -> None:
    with transaction(wait=PATIENCE) as tx:
        if random.random() < 0.3:
            tx.get(Versioned, "a", for_share=True)
        item = tx.get_or_none(model, key, for_update=True) or model(key)
        attempt.changes(item)
        tx.save(item)
    attempt.applied(None, item)


def save_in_range(model: Any, key: str, attempt: Attempt) -> None:
    with _lock_of(model, key) as lock:
        item = model.get(key, AT)
        attempt.changes(item)
        item.save()
        attempt.applied(lock.ticket, item)


def save_outside(model: Any, key: str, attempt: Attempt) -> None:
    item = model.get(key, AT, consistent_read=True)
    item.by = attempt.reads(item)
    item.value += 1
    item.save()
    attempt.applied(None, item)


def _lock_of(model: Any, key: str) -> Any:
    if model is Enforced:
        return model.locked_range(key, AT - 1, AT + 1, settings=SETTINGS)
    return model.locked(key, settings=SETTINGS)


def ways_of(name: str) -> list[Callable[..., None]]:
    """Return how an item may be written; those from outside are refused while the lock is held."""
    if name == "Made":
        return [locked_by_a_transaction]
    if name == "Enforced":
        return [save_in_range, save_outside]
    return [locked_save, edit] + ([versioned_update] * 2 if name == "Versioned" else [])


def work(number: int, folder: Path, seed: int) -> None:
    """Write items at random for as long as a file is there."""
    for model in MODELS.values():
        model.Meta.lock_settings = SETTINGS
    log = Log(folder / f"{number}.log")
    scribe = Scribe(folder / f"{number}.part", number)
    chooser, go_on = random.Random(f"{seed}/{number}"), folder / "go-on"
    for count in itertools.count():
        if not go_on.exists():
            return
        name, key = chooser.choice(ITEMS)
        _write_once(log, scribe, MODELS[name], key, chooser.choice(ways_of(name)), f"{number}.{count}")


def _write_once(log: Log, scribe: Scribe, model: Any, key: str, way: Callable[..., None], name: str) -> None:
    register = f"{model.__name__}/{key}"

    def note(event: str, ticket: int | None = None, item: Any = None) -> None:
        value = None if item is None else int(item.value)
        log.note(Note(event, register, ticket, value))

    attempt, asked = Attempt(name, note), [["r", register, None], ["w", register, name]]
    note("begin")
    scribe.invoke(asked)
    try:
        way(model, key, attempt)
    except OutcomeUnknown as error:
        note("unknown")
        if not attempt.is_applied:
            scribe.info(asked, error)
    except (LockingError, PynamoDBException) as error:
        if not attempt.is_applied:
            note("refused")
            scribe.fail(asked, error)
    if attempt.is_applied:
        scribe.ok([["r", register, attempt.before], ["w", register, name]])


# What must be true at the end


@dataclass
class Ledger:
    """What the logs of all workers say of one item."""

    applied: list[Note] = field(default_factory=list)
    refused: int = 0
    unknown: int = 0
    in_flight: int = 0

    def check(self, value: int) -> None:
        """No update lost, none made up, and all in the order of their tickets."""
        assert len(self.applied) <= value <= len(self.applied) + self.unknown + self.in_flight, (value, self)
        served = sorted(self.applied, key=lambda note: note.value or 0)
        values = [note.value for note in served]
        assert len(set(values)) == len(values)
        tickets = [note.ticket for note in served if note.ticket is not None]
        assert all(earlier < later for earlier, later in itertools.pairwise(tickets))


def ledgers(crew: Crew) -> dict[str, Ledger]:
    """Read all logs. Only a worker that was killed may have begun something without an end."""
    by_item: defaultdict[str, Ledger] = defaultdict(Ledger)
    for path in crew.folder.glob("*.log"):
        notes = [Note(*each) for each in notes_in(path)]
        for note, following in itertools.zip_longest(notes, notes[1:]):
            ledger = by_item[note.item]
            if note.event == "applied":
                ledger.applied.append(note)
            elif note.event != "begin":
                setattr(ledger, note.event, getattr(ledger, note.event) + 1)
            elif following is None:
                assert int(path.stem) in crew.killed
                ledger.in_flight += 1
    return by_item


@pytest.fixture
def engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """An engine that is a server."""
    from tests.conftest import ON_AWS  # here, since the workers import this file and need not wait for moto
    from tests.engines.engine import running

    if ON_AWS:
        pytest.skip("a worker's credentials are those of an engine on this machine")
    with running(request.param, servers) as engine:
        yield engine


@pytest.mark.parametrize(
    ("engine", "seed"),
    [("dynoxide", 0), pytest.param("dynamodb-local", 1, marks=pytest.mark.slow)],
    indirect=["engine"],
)
def test_kills_and_pauses_at_random(
    engine: Engine, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """acknowledged <= applied <= acknowledged + unknown + begun by the dead, in ticket order, and then calm."""
    engine.bind(*MODELS.values())
    for name, key in ITEMS:
        if name != "Made":
            MODELS[name](*_key(name, key)).save()
    chooser = random.Random(seed)
    with Crew(places_of(engine, MODELS.values()), tmp_path, PROCESSES, work, tmp_path, seed) as crew:
        until(lambda: len([path for path in tmp_path.glob("*.log") if path.stat().st_size]) == PROCESSES, "first lines")
        did = crew.disturb(chooser, [(deed, DEEDS[deed]) for deed in chooser.sample(PLAN, len(PLAN))], (100, 1500))
        found = ledgers(crew)
    counts = {item: (len(one.applied), one.refused, one.unknown, one.in_flight) for item, one in found.items()}
    record_property("did", dict(did))
    record_property("applied_refused_unknown_in_flight", counts)
    print(f"\nseed {seed}: {dict(did)}; applied, refused, unknown, in flight: {counts}")  # noqa: T201 - with -s
    for name, key in ITEMS:
        model, ledger = MODELS[name], found[f"{name}/{key}"]
        item = model.get(*_key(name, key), consistent_read=True)
        ledger.check(int(item.value))
        assert ledger.applied
        assert name not in ("Versioned", "Enforced") or item.version == item.value + 1
        assert name != "Made" or item.version == item.value
        _assert_calm(model, key)
    _check_history(tmp_path, seed)
    assert did == Counter(PLAN)


def _check_history(folder: Path, seed: int) -> None:
    """What the workers have noted is strictly serializable, with a last look at each item."""
    scribe = Scribe(folder / "end.part", 1_000)
    for name, key in ITEMS:
        item, register = MODELS[name].get(*_key(name, key), consistent_read=True), f"{name}/{key}"
        scribe.invoke([["r", register, None]])
        scribe.ok([["r", register, item.by]])
    scribe.close()
    check_parts(folder, f"kills-{seed}")


def _key(name: str, key: str) -> tuple[Any, ...]:
    return (key, AT) if name == "Enforced" else (key,)


def _assert_calm(model: Any, key: str) -> None:
    """What the dead have left in the queue ends with their leases, and the queue is empty then."""
    left = model.lock_state(key).entries
    assert all(entry.until_ms <= (time.time() + SETTINGS.lease) * 1000 for entry in left)
    with _lock_of(model, key) as lock:
        assert [entry.ticket for entry in model.lock_state(key).entries] == [lock.ticket]
    assert model.lock_state(key).entries == ()
