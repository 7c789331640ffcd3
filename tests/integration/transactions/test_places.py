"""What becomes of an item does not depend on where a long commit puts it: it is the same as on the native path.

A long commit stages items, has others written by its decision, which it may mark before, and checks what was only
read in the decision or before it. Each way to know an item meets each of these places here.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ConnectionClosedError
from pynamodb.connection import Connection

from pynamo_locking._core import transactions
from pynamo_locking.exceptions import ConfigurationError, LockLost, TransactionConflict
from pynamo_locking.transactions import Transaction
from tests.support.lengths import short_or_long
from tests.support.poisoned import put
from tests.support.transaction_models import (
    Plain,
    Purse,
    Session,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    stored,
)
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

#: Before the keys of all other items, so that it is the first in the order of a commit.
KEY = "a"


# What is stored before


def _absent(model: Any) -> None:
    pass


def _versioned(model: Any) -> None:
    model(KEY).save()


def _locked_before(model: Any) -> None:
    """With a lock document in the item, of a lock that was given back."""
    model(KEY).save()
    if model is Purse:
        with Purse.locked(KEY):
            pass


def _unversioned(model: Any) -> None:
    """Stored by PynamoDB, or before the model had a version."""
    put(model, {str(model._hash_keyname): {"S": KEY}, "legacy": {"S": "kept"}})


BEFORE: list[Callable[[Any], None]] = [_absent, _versioned, _locked_before, _unversioned]


# How the transaction gets hold of it


def _read(tx: Transaction, model: Any) -> Any:
    return tx.get_or_none(model, KEY) or model(KEY)


def _for_update(tx: Transaction, model: Any) -> Any:
    try:
        return tx.get(model, KEY, for_update=model is Purse)
    except model.DoesNotExist:
        return model(KEY)


def _outside(tx: Transaction, model: Any) -> Any:
    try:
        return model.get(KEY, consistent_read=True)
    except model.DoesNotExist:
        return model(KEY)


def _new(tx: Transaction, model: Any) -> Any:
    return model(KEY)


def _changed_since(tx: Transaction, model: Any) -> Any:
    item = _outside(tx, model)
    model(KEY).update([_value(model).set(3)], add_version_condition=False)
    return item


def _deleted_since(tx: Transaction, model: Any) -> Any:
    item = _outside(tx, model)
    model(KEY).delete(add_version_condition=False)
    return item


KNOWN = [_read, _for_update, _outside, _new, _changed_since, _deleted_since]


# What it does to it


def _value(model: Any) -> Any:
    return model.balance if model is Purse else model.value


def _save(tx: Transaction, item: Any, **options: Any) -> None:
    setattr(item, _value(type(item)).attr_name, 7)
    tx.save(item, **options)


def _update(tx: Transaction, item: Any, **options: Any) -> None:
    tx.update(item, [_value(type(item)).set(8)], **options)


def _on_condition(tx: Transaction, item: Any, **options: Any) -> None:
    tx.update(item, [_value(type(item)).set(8)], _value(type(item)).exists(), **options)


def _delete(tx: Transaction, item: Any, **options: Any) -> None:
    tx.delete(item, **options)


def _touch(tx: Transaction, item: Any, **options: Any) -> None:
    tx.touch(item, **options)


def _delete_and_save(tx: Transaction, item: Any, **options: Any) -> None:
    tx.delete(item, **options)
    tx.save(type(item)(KEY), **options)


def _check(tx: Transaction, item: Any, **_: Any) -> None:
    tx.check(item)


DOES = [_save, _update, _on_condition, _delete, _touch, _delete_and_save, _check]


# Where it is put


class _Place:
    """Where a long commit puts the item.

    Args:
        name: of the place.
        is_direct: whether the decision writes it.
        reads: how many other items are only read: one is checked by the decision, three before it.
    """

    def __init__(self, name: str, *, is_direct: bool, reads: int) -> None:
        self.name = name
        self.is_direct = is_direct
        self.reads = reads

    def force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_long_from(monkeypatch)
        chosen = transactions._direct

        def direct(members: Any, writes: list[int], room: int, most_bytes: int) -> list[int]:
            others = [i for i in writes if i != 0]
            if 0 not in writes or not self.is_direct:
                return chosen(members, others, room, most_bytes)
            return [0, *chosen(members, others, room - 1, most_bytes)]

        monkeypatch.setattr(transactions, "_direct", direct)


PLACES = [
    _Place("staged", is_direct=False, reads=0),
    _Place("staged-validated", is_direct=False, reads=3),
    _Place("direct", is_direct=True, reads=0),
    _Place("direct-validated", is_direct=True, reads=3),
]


def _outcome(model: Any, before: Any, known: Any, does: Any, *, is_blind: bool, reads: int) -> tuple[Any, str]:
    """Run it; return what is stored afterwards, but for ids and the lock, or the error; and the path."""
    with Purse.batch_write(unguarded=True) as rows:
        for key in [KEY, *(f"n{i}" for i in range(5))]:
            rows.delete(Purse(key))
    with model.batch_write(unguarded=True) as rows:
        rows.delete(model(KEY))
    before(model)
    tx = Transaction(workers=1)
    try:
        does(tx, known(tx, model), **({"add_version_condition": False} if is_blind else {}))
        for i in range(reads):
            tx.get(Purse, f"r{i}")
        for i in range(5):
            tx.save(Purse(f"n{i}"))
        path = tx.plan().path.value
        tx.commit()
    except Exception as error:  # noqa: BLE001 - the outcome
        return type(error).__mro__[1].__name__, "failed"
    finally:
        tx.rollback()
    assert marked_rows(Purse) == []
    image = stored(model, KEY)
    found = image and {name: value for name, value in image.items() if name not in ("lock", "version_write_id")}
    return found, path


@pytest.mark.long
@pytest.mark.parametrize("does", DOES)
@pytest.mark.parametrize("reads", [0, 3], ids=["nothing read", "validated"])
def test_each_place_gives_what_the_native_path_gives(
    memory: Engine, reads: int, does: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the item is known and whatever is stored, the long path does to it what the native path does."""
    memory.bind(Plain)
    purses(3, prefix="r")
    different = []
    cases = [*itertools.product((Purse, Plain), BEFORE, KNOWN, (False, True))]
    for model, before, known, is_blind in cases[:: short_or_long(11, 1)]:
        if model is Plain and reads:
            continue
        expected, _ = _outcome(model, before, known, does, is_blind=is_blind, reads=reads)
        for place in PLACES:
            if place.reads != reads or (model is Plain and not place.is_direct):  # it cannot be marked
                continue
            with monkeypatch.context() as patch:
                place.force(patch)
                found, path = _outcome(model, before, known, does, is_blind=is_blind, reads=reads)
            assert path in ("long", "failed")
            if found != expected:
                named = (model.__name__, before.__name__, known.__name__, "blind" if is_blind else "checked")
                different.append((place.name, *named, expected, found))
    assert not different, "\n" + "\n".join(map(str, different))


@pytest.mark.parametrize("does", [_save, _update, _delete])
def test_what_is_not_read_is_written_whatever_is_stored(engine: Engine, does: Any) -> None:
    """More than 100 actions, 60 of them reads, and an item that exists and is written without a version check."""
    Purse(KEY, balance=1).save()
    with Purse.batch_write(unguarded=True) as batch:
        for i in range(60):
            batch.save(Purse(f"r{i}"))
    tx = Transaction()
    does(tx, Purse(KEY), add_version_condition=False)
    for i in range(60):
        tx.get(Purse, f"r{i}")
    for i in range(40):
        tx.save(Purse(f"n{i}"))
    assert len(tx.plan().validated) == 60
    tx.commit()
    found = stored(Purse, KEY)
    assert (found and found["balance"]) == {_save: {"N": "7"}, _update: {"N": "8"}, _delete: None}[does]


@pytest.mark.parametrize("place", [PLACES[0], PLACES[3]], ids=lambda place: place.name)
@pytest.mark.parametrize("does", [_save, _update, _delete, _touch])
def test_a_placeholder_is_made_only_where_readers_know_of_it(
    place: _Place, does: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written without a check, and deleted meanwhile: without `Meta.transaction_table` its readers would see one."""
    purses(3, prefix="r")
    place.force(monkeypatch)
    Purse(KEY).save()
    item = Purse.get(KEY)
    Purse.get(KEY).delete()
    tx = Transaction(Transactions)
    does(tx, item, add_version_condition=False)
    for i in range(place.reads):
        tx.get(Purse, f"r{i}")
    for i in range(5):
        tx.update(Purse(f"r{i % 3}x{i}", version=1), [Purse.balance.set(1)], add_version_condition=False)
    monkeypatch.delattr(Purse.Meta, "transaction_table")
    with pytest.raises(ConfigurationError, match=r"\d+ of \d+ items have no place for an intent"):
        tx.commit()
    assert sorted(row["purse_id"]["S"] for row in rows_of(Purse)) == ["r0", "r1", "r2"]


def test_an_item_that_expires_soon_gets_no_mark(memory: Engine, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written without being read: DynamoDB could delete it together with what the transaction has decided."""
    memory.bind(Session)
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    Session(KEY, user="u", expires_at=soon).save()
    monkeypatch.setattr(
        transactions, "_direct", lambda members, writes, *_: [i for i in writes if i > len(members) - 3]
    )
    tx = Transaction()
    tx.save(Session(KEY, user="v", expires_at=soon), add_version_condition=False)
    for i in range(5):
        tx.save(Session(f"n{i}"))
    with pytest.raises(ConfigurationError, match="read items that expire"):
        tx.commit()
    assert stored(Session, KEY)["user"] == {"S": "u"}  # type: ignore[index]


def test_an_item_that_turns_out_to_expire_soon_gets_no_mark(
    memory: Engine, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a new one, and found by its mark: it is stored without a version, by a program that knows of none."""
    memory.bind(Session)
    soon = str(int((datetime.now(timezone.utc) + timedelta(hours=1)).timestamp()))
    image = {"session_id": {"S": KEY}, "user": {"S": "u"}, "expires_at": {"N": soon}}
    put(Session, image)
    monkeypatch.setattr(
        transactions, "_direct", lambda members, writes, *_: [i for i in writes if i > len(members) - 3]
    )
    tx = Transaction()
    for key in (KEY, *(f"n{i}" for i in range(5))):
        tx.save(Session(key, user="v"))
    with pytest.raises(ConfigurationError, match="read items that expire"):
        tx.commit()
    assert rows_of(Session) == [image]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_heartbeat_at_any_request_takes_no_deleted_lock_for_a_lost_one(
    place: _Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked item is deleted, and its lock with it: a renewal after the decision finds none, and that is no loss."""
    purses(3, prefix="r")
    Purse(KEY).save()
    place.force(monkeypatch)
    tx = Transaction(workers=1)
    tx.delete(tx.get(Purse, KEY, for_update=True))
    for i in range(place.reads):
        tx.get(Purse, f"r{i}")
    for i in range(5):
        tx.save(Purse(f"n{i}"))
    own, original, missing = tx._items.locks.held[0]._handle.entry, Connection.dispatch, list[int]()
    assert own is not None

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        answered = send()
        with monkeypatch.context() as undo:
            undo.setattr(Connection, "dispatch", original)
            if operation == "TransactWriteItems" and "committed" in str(kwargs):
                Transactions.recover(tx.id)  # another process is faster
            if stored(Purse, KEY) is None and not own.ownership.is_over:
                missing.append(len(missing))
            with suppress(LockLost):
                own.renew()
        return answered

    with intercepted(answer):
        tx.commit()
    assert missing
    assert not own.report.lost.is_set()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_lock_is_lost_again_after_its_delete_was_given_up(
    memory: Engine, place: _Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is never answered, and the transaction aborted: a lock that is gone then, others have removed."""
    purses(3, prefix="r")
    Purse(KEY).save()
    place.force(monkeypatch)

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation == "TransactWriteItems" and tx.id == kwargs["ClientRequestToken"]:
            raise ConnectionClosedError(endpoint_url="memory")
        return send()

    with suppress(LockLost), Purse.locked(KEY) as lock:
        tx = Transaction(workers=1)
        tx.delete(tx.get(Purse, KEY))
        for i in range(place.reads):
            tx.get(Purse, f"r{i}")
        for i in range(5):
            tx.save(Purse(f"n{i}"))
        with intercepted(answer), pytest.raises(TransactionConflict, match="was given up"):
            tx.commit()
        Purse._get_connection().delete_item(KEY)
        with pytest.raises(LockLost):
            lock.renew()
        assert lock._handle.entry is not None
        assert lock._handle.entry.report.lost.is_set()
