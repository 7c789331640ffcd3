"""What the commands of Flask and Django show and break, for all kinds of keys and places of locks."""

from __future__ import annotations

import base64
import contextlib
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, NamedLock, VersionAttribute
from pynamo_locking.contrib import _frameworks
from pynamo_locking.exceptions import ConfigurationError, LockLost
from tests.support import wire
from tests.support.models import declare, meta

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
WHEN = "2026-01-01T12:00:00.000000+0000"

Plain = declare("Plain", Model, hash_key="name")


class Slot(LockableModel):
    """Has a number and a time as its key, and its lock inside."""

    Meta = meta("slots")

    room = NumberAttribute(hash_key=True)
    begin = UTCDateTimeAttribute(range_key=True)
    note = UnicodeAttribute(default="not shown")
    version = VersionAttribute()
    lock = LockAttribute(attr_name="l")


Blob = declare("Blob", lock=True, data=BinaryAttribute(hash_key=True, legacy_encoding=False))
Locks = declare("Locks", NamedLock)
Beside = declare("Beside", hash_key="name", range_key="number", lock_table=Locks)


MODELS: Any = [Plain, Slot, Blob, Beside]


@pytest.fixture
def held(cheap):
    """A lock of each kind is held, and other items were locked before."""
    cheap.bind(*MODELS, Locks)
    Slot(7, NOON).save()
    Slot(8, NOON).save()
    Blob(b"\x00\xff").save()
    with Slot.locked(8, NOON):
        pass
    with (
        contextlib.suppress(LockLost),  # a test may break them
        Slot.locked(7, NOON, owner="s") as slot,
        Blob.locked(b"\x00\xff", owner="b") as blob,
        Beside.locked("x", 1, owner="y") as beside,
        Locks.locked("nightly", owner="n", shared=True) as nightly,
    ):
        yield SimpleNamespace(slot=slot, blob=blob, beside=beside, nightly=nightly)


def seen(rows):
    return {(row["model"], row["key"], row["ticket"], row["state"], row["owner"]) for row in rows}


def test_all_locks_that_are_held(held):
    """Those in items and those beside them, one scan for each table that has any; none that is free."""
    with wire.count_requests() as requests:
        rows = list(_frameworks.listed(MODELS))
    assert requests.by_operation == {"Scan": 3}
    assert seen(rows) == {
        ("Slot", f"7/{WHEN}", held.slot.ticket, "holds", "s"),
        ("Blob", base64.b64encode(b"\x00\xff").decode(), held.blob.ticket, "holds", "b"),
        ("Locks", held.beside.name, held.beside.ticket, "holds", "y"),
        ("Locks", "nightly", held.nightly.ticket, "holds", "n"),
    }
    assert {row["claim"] for row in rows} == {"exclusive", "shared"}
    assert all(row["lease"] == 60 for row in rows)


def test_each_key_can_be_typed_as_it_is_listed(held):
    """What `list` shows of a lock, `show` and `break` take."""
    for model, name, key, lock in (
        (Slot, "Slot", ["7", WHEN], held.slot),
        (Blob, Blob.Meta.table_name, ["AP8="], held.blob),
        (Beside, "Beside", ["x", "1"], held.beside),
        (Locks, "Locks", ["nightly"], held.nightly),
    ):
        [row] = _frameworks.shown(MODELS, name, key)
        assert (row["model"], row["ticket"]) == (model.__name__, lock.ticket)
        assert _frameworks.broken(MODELS, name, key, lock.ticket + 1) is False
        assert _frameworks.broken(MODELS, name, key, lock.ticket) is True
        assert _frameworks.shown(MODELS, name, key) == []
        with pytest.raises(Exception, match="no longer in the queue"):
            lock.renew()
    assert list(_frameworks.listed(MODELS)) == []


def test_who_waits(memory):
    """Is shown behind who holds; a range of a hash key is found by the hash key alone."""
    memory.bind(Beside, Locks)
    first, second = (Beside.locked_range("x", low, high) for low, high in ((1, 5), (7, 9)))
    with first, second:
        rows = _frameworks.shown(MODELS, "Beside", ["x"])
        assert [(row["state"], row["claim"]) for row in rows] == [
            ("holds", str(lock._handle.options.lock_mode)) for lock in (first, second)
        ]
    lock = {"key": {"hash": "x", "range": None}, "unreadable": None, "holders": [entry(1)], "waiters": [entry(2)]}
    assert [row["state"] for row in _frameworks._rows(Beside, lock)] == ["holds", "waits"]
    dead = lock | {"holders": [entry(1, -1.0)], "waiters": [entry(2, -1.0)]}
    assert [row["state"] for row in _frameworks._rows(Beside, dead)] == ["dead holder", "dead waiter"]


def entry(ticket, left_s=5.0):
    claim = {"mode": "exclusive", "permits": 1, "range_lower": None, "range_upper": None}
    return {
        "ticket": ticket,
        "owner": "o",
        **claim,
        "queued_s": 3.5,
        "held_s": None,
        "since_renewal_s": 1.25,
        "lease_s": 60.0,
        "lease_left_s": left_s,
        "lease_ends_at": "2026-01-01T00:00:00Z",
    }


def test_the_table_of_people():
    """A heading, aligned columns, seconds with their unit; only the heading if there is nothing."""
    waiters = [entry(1), entry(12345)]
    rows = list(
        _frameworks._rows(
            Slot, {"key": {"hash": "7", "range": None}, "unreadable": None, "holders": [], "waiters": waiters}
        )
    )
    heading, first, second = _frameworks.table(rows).splitlines()
    assert heading.split() == " ".join(_frameworks.COLUMNS).split()
    ends = "2026-01-01T00:00:00Z"
    assert first.split() == ["Slot", "7", "1", "waits", "o", "exclusive", "3.5", "s", "1.2", "s", "60.0", "s", ends]
    assert first.index("waits") == second.index("waits") == heading.index("state")
    assert _frameworks.table([]).splitlines() == ["  ".join(_frameworks.COLUMNS)]


def test_what_a_terminal_obeys_is_made_visible(memory):
    """An owner's label, or a name, comes from any program that can write to the table."""
    memory.bind(Locks)
    with Locks.locked("a\nb", owner="\x1b[2J") as lock:
        text = _frameworks.table(_frameworks.listed([Locks]))
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text
    assert ["Locks", "a\\x0ab", str(lock.ticket), "holds", "\\x1b[2J"] == text.splitlines()[1].split()[:5]


Old = declare("Old", lock=True, data=BinaryAttribute(hash_key=True, legacy_encoding=True))


def test_bytes_that_are_stored_in_base_64(memory):
    """Are shown and typed in base 64 once, as on the command line."""
    memory.bind(Old)
    Old(b"\xff").save()
    with Old.locked(b"\xff") as lock:
        [row] = _frameworks.listed([Old])
        [shown] = _frameworks.shown([Old], "Old", ["/w=="])
    assert (row["key"], row["ticket"], shown["ticket"]) == ("/w==", lock.ticket, lock.ticket)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Plain", ["x"]),
        ("Nobody", ["x"]),
        ("Slot", []),
        ("Slot", ["7", WHEN, "x"]),
        ("Slot", ["seven", WHEN]),
        ("Slot", ["7", "noon"]),
        ("Blob", ["not base 64"]),
    ],
)
def test_names_and_keys_that_cannot_be(name, key):
    """Are refused, with what there is, before any request."""
    with wire.count_requests() as requests, pytest.raises(ConfigurationError):
        _frameworks.shown(MODELS, name, key)
    assert requests.total == 0
