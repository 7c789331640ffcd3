"""Keys of every kind, in items and in rows of their own."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute

from pynamo_locking import LockAttribute
from pynamo_locking.exceptions import LockTimeout
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere, in_thread

MOMENT = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)

KINDS = {
    "string": (UnicodeAttribute, ["a", "a/b", "ä%", "#"]),
    "number": (NumberAttribute, [0, 1, -2.5, 10**20]),
    "bytes": (lambda **options: BinaryAttribute(legacy_encoding=False, **options), [b"\x00\xff", b"/", b"a"]),
    "legacy-bytes": (lambda **options: BinaryAttribute(legacy_encoding=True, **options), [b"\x00\xff", b"a"]),
    "datetime": (UTCDateTimeAttribute, [MOMENT]),
}


def models(kind, *, embedded):
    """Make a model with a hash key of that kind, and one with a range key of that kind as well."""
    make = KINDS[kind][0]
    lock = {"guard": LockAttribute(attr_name="l")} if embedded else {}
    alone = {"pk": make(hash_key=True, attr_name="h"), "text": UnicodeAttribute(null=True), **lock}
    both = {**alone, "sk": make(range_key=True, attr_name="r")}
    return [declare(name, lock_table=Locks, **attributes) for name, attributes in (("One", alone), ("Two", both))]


@pytest.mark.parametrize("embedded", [True, False], ids=["in-the-item", "in-a-row"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_key(engine, kind, embedded):
    """Each key has its own lock, its item is read and written, and its state can be seen."""
    one, two = models(kind, embedded=embedded)
    engine.bind(Locks, one, two)
    values = KINDS[kind][1]
    for model, keys in ((one, [(v,) for v in values]), (two, [(v, w) for v in values for w in values])):
        names = set()
        for key in keys:
            model(*key).save()
            with model.edit(*key) as item:
                item.text = repr(key)
            with model.locked(*key) as lock:
                names.add(lock.name)
                assert model.lock_state(*key).holders[0].ticket == lock.ticket
                with pytest.raises(LockTimeout):
                    in_thread(model.locked(*key, wait=0).acquire)
            assert model.get(*key).text == repr(key)
        assert len(names) == len(keys)


def test_spellings_of_one_number_are_one_lock(engine):
    """DynamoDB takes 1, 1.0 and 1e0 for one key, and so does the lock."""
    one, _ = models("number", embedded=False)
    engine.bind(Locks, one)
    with held_elsewhere(one.locked(1)):
        for same in (1, 1.0, 1e0):
            with pytest.raises(LockTimeout):
                one.locked(same, wait=0).acquire()
