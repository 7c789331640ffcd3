"""What the pages state in figures and lists, compared with what the package does."""

from __future__ import annotations

import inspect
import re
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import TransactionTable
from pynamo_locking.cli import main
from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking_testing import MemoryDynamoDB
from tests.support.interval_models import Slot, SlotLocks, slots
from tests.support.models import Account, Locks, declare

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


class Database(MemoryDynamoDB):
    """Counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def handle(self, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        self.requests[operation] += 1
        return super().handle(operation, kwargs)


@pytest.fixture(autouse=True)
def database() -> Iterator[Database]:
    with Database() as database:
        yield database


def test_each_reason_of_a_loss_stands_in_the_table() -> None:
    """As in the docstring of the error; those of a term also on the page of leaders."""
    rows = re.findall(r'^\| ("[^|]*|`"[^|]*)\|', page("docs/reference/errors.md"), re.MULTILINE)
    listed = {reason for row in rows for reason in re.findall(r'`"(\w+)"`', row)} - {"applied", "unknown"}
    assert {*re.findall(r'``"(\w+)"``', str(inspect.getdoc(LockLost)))} == listed
    assert {*re.findall(r'^\| `"(\w+)"`', page("docs/how-to/elect-a-leader.md"), re.MULTILINE)} < listed
    Locks.create_table()
    heard: list[str] = []
    done = threading.Event()

    def resign(term: Any) -> None:
        term.resign()
        with pytest.raises(LockLost) as lost:
            term.held_condition()
        heard.append(lost.value.reason)
        done.set()

    with Locks.lead("name", on_elected=resign):
        assert done.wait(10)
    assert heard[:1] == ["resigned"]
    assert heard[0] in listed


def test_a_token_of_a_released_lock_is_lost_as_the_table_says() -> None:
    Account.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    Account("a").save()
    token = Account.locked("a").acquire().detach()
    Account.attach(token).acquire().release()
    with pytest.raises(LockLost) as lost:
        Account.attach(token).acquire()
    [row] = re.findall(rf'^\| `"{lost.value.reason}"` \| (.*) \|$', page("docs/reference/errors.md"), re.MULTILINE)
    assert "of `attach`: the lock of the token was released" in row


def test_the_largest_result_is_as_long_as_the_page_says() -> None:
    [figure] = re.findall(r"A result above ([\d,]+) bytes", page("docs/how-to/idempotency.md"))
    largest = int(figure.replace(",", ""))
    calls = declare("Calls", IdempotencyTable)
    calls.create_table()
    with calls.call("fits") as call:
        call.result = "x" * (largest - len('""'))
    with pytest.raises(ConfigurationError), calls.call("does not fit") as call:
        call.result = "x" * (largest - len('"'))


def test_transactions_are_kept_for_at_least_as_long_as_the_page_says() -> None:
    rows = re.findall(
        r"^\| `(keep_\w+)` \| seconds, ([\d,]+) \|.* at least the default", page("docs/reference/meta.md"), re.MULTILINE
    )
    assert len(rows) == 3
    for name, default in rows:
        with pytest.raises(ConfigurationError, match=name):
            declare("Short", TransactionTable, **{name: int(default.replace(",", "")) - 1})


def test_overlapping_sends_as_many_queries_as_the_page_says(database: Database) -> None:
    text = page("docs/reference/costs.md")
    [figures] = re.findall(r"consistent queries: (\d) for up to 15 rows, (\d) for a hundred, (\d) for a thousand", text)
    for model in (SlotLocks, Slot):
        model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    with Slot.batch_write(unguarded=True) as batch:
        for row in slots(*((i, i + 1) for i in range(1000))):
            batch.save(row)
    counted = []
    for count in (15, 100, 1000):
        database.requests.clear()
        assert len(Slot.intervals.overlapping("d", 0, count)) == count
        counted.append(database.requests["Query"])
    assert counted == [int(figure) for figure in figures]


def test_the_picture_of_locks_watch_shows_what_the_command_prints(capsys: Any, monkeypatch: Any) -> None:
    """Its columns, and tickets with as many digits."""
    monkeypatch.setenv("COLUMNS", "200")
    Locks.create_table()
    with Locks.locked("nightly", owner="me"):
        assert main(["locks", "list", "--table", Locks.Meta.table_name]) == 0
    printed = capsys.readouterr().out
    drawn = re.sub(r"<[^>]+>", " ", page("docs/pictures/watch.svg")).replace("&#160;", " ")
    columns = [
        cell.strip() for cell in re.findall(r"[^┃\n]+", next(line for line in printed.splitlines() if "┃" in line))
    ]
    assert [column for column in columns if f" {column} " not in drawn] == []
    [ticket] = re.findall(r"\d{10,}", printed)
    assert {len(each) for each in re.findall(r"\d{10,}", drawn)} == {len(ticket)}
