"""Rows of locks that nobody uses any more, in a table without TTL: what is deleted, and what stays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.expressions.operand import Path

from pynamo_locking import NamedLock
from pynamo_locking.exceptions import ConfigurationError
from tests.support import runtime
from tests.support.models import Locks, declare
from tests.support.parties import abandoned, shifted_clock
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine
    from tests.support.parties import ShiftedRuntime

LATER_S = timedelta(days=1, seconds=90).total_seconds()
Memos = declare("Memos", NamedLock, note=UnicodeAttribute(null=True))


@pytest.fixture
def world(cheap: Engine) -> Iterator[ShiftedRuntime]:
    """The tables, on the two cheap engines, and a clock that can be put forward, with that of DynamoDB."""
    cheap.bind(Locks, Memos)
    with shifted_clock() as world, intercepted(dated):
        yield world


def dated(send: Send, _: str, __: dict[str, Any]) -> Any:
    """Answer at the time that it is here."""
    answer = send()
    answer["ResponseMetadata"]["HTTPHeaders"]["date"] = formatdate(runtime.time_ms() / 1000, usegmt=True)
    return answer


def use(*names: str) -> None:
    for name in names:
        with Locks.locked(name):
            pass


def test_only_what_ttl_would_delete(world):
    """A success of `once` counts for longer; so does `older_than`, from the day on."""
    use("old")
    with Locks.once("job", period=timedelta(days=7)) as run:
        assert run
    world.shift += LATER_S
    use("new")
    assert Locks.prune(older_than=timedelta(hours=1)) == []
    assert Locks.prune(dry_run=True) == ["old"]
    assert asyncio.run(Locks.aprune()) == ["old"]
    assert sorted(row.name for row in Locks.scan()) == ["job", "new"]
    world.shift += timedelta(days=10).total_seconds()
    assert sorted(Locks.prune(older_than=3600)) == ["job", "new"]


def test_tickets_go_on_after_it(world):
    """They begin again at the time, which has passed the old ones."""
    with Locks.locked("old") as lock:
        before = lock.ticket
    world.shift += LATER_S
    assert Locks.prune() == ["old"]
    with Locks.locked("old") as lock:
        assert lock.ticket > before


def test_a_lock_that_is_in_use_or_is_taken_meanwhile_stays(world):
    """The request to delete says that it is still idle, and as old as it was."""
    use("taken", "used", "old")
    abandoned(Locks.locked("dead", heartbeat=False))
    world.shift += LATER_S
    taken = Locks.locked("taken")
    meanwhile = {"taken": taken.acquire, "used": lambda: use("used")}

    def answer(send: Send, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "DeleteItem":
            meanwhile.pop(arguments["Key"]["name"]["S"], int)()
        return send()

    with intercepted(answer):
        assert Locks.prune() == ["old"]
    assert meanwhile == {}
    assert sorted(row.name for row in Locks.scan()) == ["dead", "taken", "used"]
    taken.release()


def test_what_is_more_than_a_lock_stays(world):
    """An attribute of a subclass, or one that no model declares."""
    for name in ("noted", "old", "strange", "touched"):
        with Memos.edit(name) as memo:
            memo.note = "keep this" if name == "noted" else None
    for name in ("strange", "touched"):  # the second one is that of rows that are no locks
        Memos._get_connection().update_item(name, actions=[Path(name).set(1)])
    world.shift += LATER_S
    assert Memos.prune() == ["old"]
    assert sorted(row.name for row in Memos.scan()) == ["noted", "strange", "touched"]


def test_a_clock_that_is_ahead_of_dynamodb_deletes_nothing(dynoxide):
    """By the time of its answer; a minute is no matter."""
    dynoxide.bind(Locks)
    with shifted_clock() as world:
        use("old")
        world.shift += LATER_S
        for prune in (Locks.prune, lambda: Locks.prune(dry_run=True), lambda: asyncio.run(Locks.aprune())):
            with pytest.raises(ConfigurationError, match=r"86\d\d\d s ahead of DynamoDB's"):
                prune()
        assert [row.name for row in Locks.scan()] == ["old"]
        world.shift = 50
        assert Locks.prune() == []
        world.shift = -LATER_S
        assert Locks.prune() == []
