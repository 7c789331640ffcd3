"""Queries, scans, batches and counts outside transactions show committed items, or intended ones."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import DoesNotExist

from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError
from tests.support.deeds import dying_at
from tests.support.transaction_helpers import units
from tests.support.transaction_models import (
    Animal,
    Dog,
    Entry,
    Plain,
    Session,
    Sheet,
    marked_rows,
    survive,
)
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

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


def found(read: Callable[..., Any], *arguments: Any, **options: Any) -> dict[int, Any]:
    return {int(sheet.number): sheet.body for sheet in read(*arguments, **options)}


class Cat(Animal, discriminator="cat"):
    """No dog."""


def one(number: int, isolation: str) -> Sheet | None:
    try:
        return Sheet.get("f", number, isolation=isolation)
    except DoesNotExist:
        return None


KEYS: Final = [("f", i) for i in range(7)]


@pytest.mark.parametrize("step", ["decision", "finish f"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_each_read_shows_what_its_isolation_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, step: str, isolation: str
) -> None:
    """Of a transaction that is not decided nothing is committed; of one that is decided all, in place or not."""
    leave(engine, monkeypatch, step)
    expected = AFTER
    if step == "decision":  # which has some of the changes, and so no reader can see them yet
        expected = found(lambda: [each for i in range(7) if (each := one(i, isolation)) is not None])
        assert (expected == BEFORE) is (isolation == "read_committed")
    old = {number: body for number, body in expected.items() if body == "old"}
    first = dict(list(old.items())[:2])

    def how(**options: Any) -> dict[str, Any]:
        return {"isolation": isolation, **options}

    assert found(Sheet.query, "f", filter_condition=Sheet.body == "old", **how()) == old
    assert found(Sheet.query, "f", filter_condition=Sheet.body == "old", **how(limit=2)) == first
    assert found(Sheet.query, "f", Sheet.number > 2, **how()) == {n: body for n, body in expected.items() if n > 2}
    assert found(Sheet.scan, Sheet.body == "old", **how()) == old
    assert found(Sheet.batch_get, KEYS, **how()) == expected
    assert Sheet.count("f", filter_condition=Sheet.body == "old", **how()) == len(old)
    backwards = [int(sheet.number) for sheet in Sheet.query("f", **how(scan_index_forward=False, page_size=1))]
    assert backwards == sorted(expected, reverse=True)
    parts = [found(Sheet.scan, segment=i, total_segments=2, **how()) for i in range(2)]
    assert parts[0] | parts[1] == expected


def test_a_query_goes_on_where_it_has_ended(cheap: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that it tells is that of the last item it has returned."""
    leave(cheap, monkeypatch, "finish f")
    pages: Any = Sheet.query("f", isolation="read_committed", limit=2)
    numbers = [int(sheet.number) for sheet in pages]
    while len(numbers) < len(AFTER):
        pages = Sheet.query("f", isolation="read_committed", limit=2, last_evaluated_key=pages.last_evaluated_key)
        numbers += [int(sheet.number) for sheet in pages]
    assert numbers == sorted(AFTER)


def test_a_key_that_is_given_twice_is_read_once(memory: Engine) -> None:
    """However it is written: DynamoDB refuses a batch in which it is twice. Keys may be lists, as in PynamoDB."""
    memory.bind(Sheet)
    Sheet("f", 1).save()
    keys = [("f", 1), ["f", 1], ("f", 1.0), ("f", 2)]
    assert found(Sheet.batch_get, keys, isolation="read_committed") == {1: None}
    assert len(list(Sheet.batch_get(iter(keys), isolation="read_committed"))) == 1


async def test_tasks_query_with_an_isolation_too(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an option of the query like any other."""
    leave(memory, monkeypatch, "finish f")
    found_by_task = Sheet.aquery("f", isolation="read_committed")
    assert [int(sheet.number) async for sheet in found_by_task] == sorted(AFTER)


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
    assert [dog.name for dog in Dog.scan(isolation="read_uncommitted", filter_condition=Dog.tricks == 0)] in (
        ["aa", "bb"],
        ["bb", "aa"],
    )
    for isolation in ("read_uncommitted", "read_committed"):
        assert sorted(dog.name for dog in Dog.scan(isolation=isolation)) == ["aa", "bb"]
        assert len(list(Animal.scan(isolation=isolation))) == 4
        assert sorted(each.session_id for each in Session.scan(isolation=isolation)) == ["aa", "bb"]
        assert Session.count("a", isolation=isolation) == 0
        assert Session.count("a", isolation=isolation, include_expired=True) == 1
        assert sorted(each.session_id for each in Session.batch_get(["a", "bb"], isolation=isolation)) == ["bb"]


def test_what_cannot_be_shown_is_refused(memory: Engine) -> None:
    """An index lags behind, a part of an item has no mark, an estimate counts no items, and there are two levels."""
    memory.bind(Sheet)
    level: Any = {"isolation": "read_committed"}
    with count_requests() as counted:
        for refused in (
            lambda: Sheet.query("f", index_name="by-body", **level),
            lambda: Sheet.query("f", attributes_to_get=["body"], **level),
            lambda: Sheet.scan(attributes_to_get=["body"], **level),
            lambda: Sheet.batch_get([("f", 1)], attributes_to_get=["body"], **level),
            lambda: Sheet.get("f", 1, attributes_to_get=["body"], **level),
            lambda: Sheet.scan(isolation="serializable"),
            lambda: Sheet.query("f", settings=object(), **level),
            lambda: Sheet.scan(settings=object(), **level),
            lambda: Sheet.count("f", settings=object(), **level),
        ):
            with pytest.raises(ConfigurationError, match="read_committed and read_uncommitted"):
                refused()
        with pytest.raises(ConfigurationError, match="estimate"):
            Sheet.count(**level)
    assert counted.total == 0


def test_costs(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without marks those of consistent reads; for marks what `get` takes, those of a transaction together."""
    memory.bind(Entry, Plain)
    with Entry.batch_write(unguarded=True) as batch:
        for i in range(150):
            batch.save(Entry("b", i))

    def cost(read: Callable[..., Any], *arguments: Any, **how: Any) -> tuple[int, float, float]:
        return units(monkeypatch, lambda: list(read(*arguments, **how)))

    level = {"isolation": "read_committed"}
    assert cost(Entry.query, "b", **level) == cost(Entry.query, "b", consistent_read=True)
    assert cost(Entry.scan, **level) == cost(Entry.scan, consistent_read=True)
    keys = [("b", i) for i in range(150)]
    assert cost(Entry.batch_get, keys, **level) == cost(Entry.batch_get, keys, consistent_read=True)
    assert cost(Plain.scan, **level)[0] == 1
    leave(memory, monkeypatch, "finish f")
    marked = len(marked_rows(Sheet, "lck"))
    requests, written, _ = cost(Sheet.query, "f", **level)
    assert written == marked
    assert requests <= 1 + 1 + marked + 1  # the query, the header, each mark, and what was marked once more
