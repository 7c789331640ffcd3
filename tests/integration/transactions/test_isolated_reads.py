"""Every read of a transaction shows committed items, whatever has become of the transaction that changes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import transaction
from tests.support.deeds import dying_at
from tests.support.transaction_models import (
    Animal,
    Dog,
    Session,
    Sheet,
    marked_rows,
    survive,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynamo_locking.transactions import Transaction
    from tests.engines.engine import Engine

pytestmark = pytest.mark.usefixtures("few")

#: Sheets 0 to 3 before: their bodies.
BEFORE: Final = {0: "old", 1: "old", 2: "old", 3: "other"}
#: What the transaction makes of them: changes, deletes, creates.
AFTER: Final = {0: "new", 1: "old", 3: "old", 4: "old", 5: "new"}


def change() -> None:
    """Change, delete and create sheets, in more actions than a native transaction of these tests has."""
    with transaction(lease=3600) as tx:
        found = {sheet.number: sheet for sheet in tx.get_all(Sheet, [("f", i) for i in range(6)]) if sheet is not None}
        tx.delete(found[2])
        for number, body in AFTER.items():
            sheet = found.get(number) or Sheet("f", number)
            sheet.body = body
            tx.save(sheet)


def leave(engine: Engine, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Store sheets, and let a process that changes them die before its decision or after it."""
    engine.bind(Sheet)
    for number, body in BEFORE.items():
        Sheet("f", number, body=body).save()
    with dying_at(monkeypatch, step):
        assert not survive(change)
    assert len(marked_rows(Sheet, "lck")) >= 2


def found(read: Callable[[Transaction], Iterable[Any]]) -> dict[int, Any]:
    """The bodies of the sheets that a transaction of its own reads, in their order."""
    with transaction(isolation="read_committed") as tx:
        return {int(sheet.number): sheet.body for sheet in read(tx) if sheet is not None}


KEYS: Final = [("f", i) for i in range(7)]


@pytest.mark.parametrize("step", ["decision", "finish f"])
@pytest.mark.parametrize("first", ["query", "scan", "get_all"])
def test_each_read_shows_what_is_committed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, step: str, first: str
) -> None:
    """Of a transaction that is not decided nothing is committed; of one that is decided all, in place or not."""
    leave(engine, monkeypatch, step)
    expected = BEFORE if step == "decision" else AFTER
    old = {number: body for number, body in expected.items() if body == "old"}
    reads: dict[str, Callable[[Transaction], Iterable[Any]]] = {
        "query": lambda tx: tx.query(Sheet, "f", filter_condition=Sheet.body == "old"),
        "scan": lambda tx: tx.scan(Sheet, Sheet.body == "old", at_most=20),
        "get_all": lambda tx: [item for item in tx.get_all(Sheet, KEYS) if item is None or item.body == "old"],
    }
    for read in (reads[first], *reads.values()):
        assert found(read) == old
    limited = found(lambda tx: tx.query(Sheet, "f", filter_condition=Sheet.body == "old", limit=2))
    assert limited == dict(list(old.items())[:2])
    after = found(lambda tx: tx.query(Sheet, "f", Sheet.number > 2))
    assert after == {number: body for number, body in expected.items() if number > 2}
    backwards = found(lambda tx: tx.query(Sheet, "f", scan_index_forward=False, page_size=1))
    assert [*backwards] == sorted(expected, reverse=True)


class Cat(Animal, discriminator="cat"):
    """No dog."""


def test_classes_and_times_are_judged_by_what_is_shown(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder has neither a class nor a time of expiry: both are in its mark."""
    memory.bind(Animal, Session)
    past = datetime.now(timezone.utc) - timedelta(minutes=1)

    def create() -> None:
        with transaction() as tx:
            for name in "ab":
                tx.save(Cat(name))
                tx.save(Dog(name * 2))
                tx.save(Session(name, expires_at=past))
                tx.save(Session(name * 2))

    with dying_at(monkeypatch, "finish aa"):
        assert not survive(create)
    with transaction(isolation="read_committed") as tx:
        animals = {animal.name: type(animal) for animal in tx.scan(Animal, at_most=20)}
        assert animals == {"a": Cat, "b": Cat, "aa": Dog, "bb": Dog}
        assert sorted(each.session_id for each in tx.scan(Session, at_most=20)) == ["aa", "bb"]
        assert tx.query(Session, "a") == []
        assert [each and each.session_id for each in tx.get_all(Session, ["a", "bb"])] == [None, "bb"]
