"""What a table says forges no line of the log, whichever record quotes it."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockingError
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.deeds import dying_at
from tests.support.models import Locks
from tests.support.parties import in_thread
from tests.support.transaction_models import (
    Purse,
    Transactions,
    empty,
    make_long_from,
    purses,
    rows_of,
    survive,
)

if TYPE_CHECKING:
    from tests.engines.engine import Engine

#: An owner, or an id, of somebody who writes rows.
FORGED: Final = "x\nCRITICAL root: all is lost\r\x1b[2J"
#: The same in one line.
SHOWN: Final = r"x\x0aCRITICAL root: all is lost\x0d\x1b[2J"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that the package logs."""
    caplog.set_level(logging.DEBUG, "pynamo_locking")
    return caplog


def assert_shown(lines: pytest.LogCaptureFixture) -> None:
    messages = [record.getMessage() for record in lines.records if record.name == "pynamo_locking"]
    assert any("all is lost" in message for message in messages), messages
    assert all(message.isprintable() for message in messages), messages


def forge(model: Any, id_: str) -> None:
    """Let the rows of a table name another transaction."""
    connection, found = model._get_connection(), rows_of(model)
    empty(model)
    for row in found:
        forged = json.loads(json.dumps(row).replace(id_, json.dumps(FORGED)[1:-1]))
        connection.connection.dispatch("PutItem", {"TableName": connection.table_name, "Item": forged})


def test_the_owner_of_a_run_that_is_dated_too_late(memory: Engine, lines: pytest.LogCaptureFixture) -> None:
    """`once` names who has stored it."""
    memory.bind(Locks)
    terms: Any = {"period": timedelta(days=1), "settings": LockSettings(poll_interval=2, max_poll_interval=2)}
    with VirtualClock() as clock:
        with clock.another_process(skew_s=3600), Locks.once("job", owner=FORGED, **terms) as run:
            assert run
        with Locks.once("job", **terms) as run:
            assert not run
    assert_shown(lines)


@pytest.mark.parametrize("how", ["read", "swept"])
def test_the_id_of_a_transaction_that_was_left(
    memory: Engine, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its intents are dropped by who reads the items; a sweep finds its record broken."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    with VirtualClock() as clock:
        purses(5)
        tx = Transaction(lease=3, workers=1, owner=FORGED)
        for number in range(5):
            purse = tx.get(Purse, f"p{number}")
            purse.balance += 1
            tx.save(purse)
        with dying_at(monkeypatch, "decision"):
            in_thread(lambda: survive(tx.commit))
        forge(Purse, tx.id)
        forge(Transactions, tx.id)
        clock.jump(60)
        if how == "read":
            for number in range(5):
                Transaction().get(Purse, f"p{number}")
        else:
            forge(Transactions, "pending")
            assert Transactions.sweep().failed
    assert_shown(lines)


def test_a_failure_of_a_request_names_no_line_of_its_own(lines: pytest.LogCaptureFixture) -> None:
    """Arguments that are numbers stay numbers, and errors show what they are."""
    error = LockingError(FORGED)
    logging.getLogger("pynamo_locking").warning("%d of %s failed: %s (%r) after %.1f s", 3, FORGED, error, error, 0.25)
    [record] = lines.records
    assert record.getMessage() == f"3 of {SHOWN} failed: {SHOWN} ({error!r}) after 0.2 s"
