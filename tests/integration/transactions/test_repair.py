"""`repair` and ``tx repair``: broken headers and rows of participants become sound, and no decision is made up."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ReadTimeoutError

from pynamo_locking._io import transaction_record
from pynamo_locking._io.client import Refused
from pynamo_locking.exceptions import ConfigurationError, CorruptRow, LockingError, OutcomeUnknown
from pynamo_locking.transactions import Transaction
from tests.integration.whole.test_broken_rows import broken
from tests.support.lengths import short_or_long
from tests.support.poisoned import header, mark, name_of, participant, participants, place, put
from tests.support.shell import Shell, prepared
from tests.support.transaction_helpers import committed_balances
from tests.support.transaction_models import Purse, Transactions, marked_rows, rows_of, stored
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from pynamo_locking.testing import VirtualClock
    from tests.engines.engine import Engine

CASES: Final = short_or_long(60, 400)
PART: Final[dict[str, Any]] = {"N": "1.5"}  # of a number that has to be whole
STATES: Final = ["pending", "committed", "finished", "aborted"]


def store(state: str, /, **changes: Any) -> None:
    """A transaction of one purse of balance 1, which shall be 6."""
    put(Transactions, participants("T", participant()))
    put(Transactions, header("T", state, **changes))
    place({"M": {"tx": mark("T", name_of(Transactions))}})


def balance() -> int:
    return committed_balances("p0")[0]


def is_readable() -> bool:
    try:
        return Transactions.outcome("T") is not None
    except CorruptRow:
        return False


@pytest.mark.parametrize("is_delivered", [False, True])
def test_a_commit_without_an_answer(clock: VirtualClock, few: None, *, is_delivered: bool) -> None:
    """A header that breaks just then tells its process as little as silence does."""
    tx = Transaction(workers=1)
    for i in range(6):
        tx.save(Purse(f"new{i}"))

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation != "TransactWriteItems" or "committed" not in str(kwargs):
            return send()
        if is_delivered:
            send()
        [row] = [row for row in rows_of(Transactions) if "priority" in row]
        put(Transactions, {**row, "beat": PART})
        raise ReadTimeoutError(endpoint_url="")

    with intercepted(answer), pytest.raises(OutcomeUnknown) as caught:
        tx.commit()
    assert caught.value.write_id == tx.id
    assert Transactions.repair(tx.id)
    assert Transactions.recover(tx.id) == ("finished" if is_delivered else "aborted")
    assert len(rows_of(Purse)) == (6 if is_delivered else 0)


@pytest.mark.parametrize("name", ["beat", "lease_ms", "until_ms", "items", "rows"])
@pytest.mark.parametrize(("state", "becomes", "at_last", "value"), [
    ("pending", "aborted", "aborted", 1),
    ("committed", "committed", "finished", 6),
    ("finished", "finished", "finished", 1),
    ("aborted", "aborted", "aborted", 1),
])  # fmt: skip
def test_a_number(clock: VirtualClock, name: str, state: str, becomes: str, at_last: str, value: int) -> None:
    """The state stays, but a pending transaction is aborted. The marks are then resolved as ever."""
    store(state, **{name: PART})
    with pytest.raises(CorruptRow, match="tx repair"):
        balance()
    before = rows_of(Transactions)
    flaws = [f"{name} is {PART}"]
    assert Transactions.repair("T", dry_run=True) == flaws
    assert rows_of(Transactions) == before
    assert Transactions.repair("T") == flaws
    assert Transactions.outcome("T") == becomes
    assert Transactions.repair("T") == []
    assert Transactions.recover("T") == at_last
    assert (balance(), marked_rows(Purse)) == (value, [] if state != "finished" else marked_rows(Purse))


def test_all_numbers_of_an_aborted_one(clock: VirtualClock) -> None:
    """Its rows are counted, so all marks are found."""
    store("aborted", **dict.fromkeys(["beat", "lease_ms", "until_ms", "items", "rows"], PART))
    assert Transactions.repair("T") == ["beat is {'N': '1.5'}"]
    assert Transactions.recover("T") == "aborted"
    assert marked_rows(Purse) == []


@pytest.mark.parametrize("changes", [{"items": PART, "rows": PART}, {"items": PART, "rows": {"N": "2"}}], ids=str)
def test_committed_items_that_cannot_be_counted(clock: VirtualClock, changes: dict[str, Any]) -> None:
    """A row may have expired. Were the transaction finished without its items, their marks would be dropped."""
    store("committed", **changes)
    before = rows_of(Transactions)
    with pytest.raises(CorruptRow, match=r"1 rows name 1 items.*Restore the number"):
        Transactions.repair("T")
    assert rows_of(Transactions) == before


LOST: Final = [None, {"S": "x"}, {"N": "5"}, {"M": {}}]


@pytest.mark.parametrize("lost", LOST, ids=str)
@pytest.mark.parametrize(("told", "value"), [("committed", 6), ("aborted", 1)])
def test_a_state_that_is_lost(clock: VirtualClock, lost: Any, told: str, value: int) -> None:
    """Nothing is made up: the operator has to know it. Until then no reader of a mark takes it for aborted."""
    store("pending", state=lost)
    with pytest.raises(CorruptRow):
        balance()
    assert "state is" in Transactions.sweep().failed["T"]
    before = rows_of(Transactions)
    with pytest.raises(CorruptRow, match="name its state"):
        Transactions.repair("T")
    assert rows_of(Transactions) == before
    assert Transactions.repair("T", state=told)
    assert balance() == value
    assert Transactions.sweep().failed == {}
    assert marked_rows(Purse) == []


@pytest.mark.parametrize(("changes", "state"), [
    ({"by": {"S": "expired"}, "expires_s": {"N": "5"}}, "aborted"),
    ({"clean": {"BOOL": True}, "expires_s": {"N": "5"}}, "aborted"),
    ({"expires_s": {"N": "5"}}, "finished"),
])  # fmt: skip
def test_a_state_that_can_be_told(clock: VirtualClock, changes: dict[str, Any], state: str) -> None:
    """By what only the last write of a header stores. An operator who says otherwise is refused."""
    store("pending", state={"S": "x"}, **changes)
    with pytest.raises(ConfigurationError, match=f"is {state}"):
        Transactions.repair("T", state="committed")
    assert Transactions.repair("T")
    assert Transactions.outcome("T") == state


def test_a_sound_one(clock: VirtualClock) -> None:
    """Nothing is changed, whatever the operator says; what is no transaction is not known."""
    for state in STATES:
        store(state)
        before = rows_of(Transactions)
        assert Transactions.repair("T", state="aborted") == []
        assert rows_of(Transactions) == before
    assert Transactions.repair("nothing") is None
    assert Transactions.repair("T#0000") is None
    with pytest.raises(ConfigurationError, match="committed or aborted"):
        Transactions.repair("T", state="pending")


def test_a_decision_meanwhile(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that was decided after the look stays decided."""
    store("pending", beat=PART)
    original = transaction_record.replace_row

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(transaction_record, "replace_row", original)
        put(Transactions, header("T", "committed", beat=PART))
        original(*arguments)

    monkeypatch.setattr(transaction_record, "replace_row", late)
    assert Transactions.repair("T")
    assert (Transactions.outcome("T"), balance()) == ("committed", 6)


def test_changes_all_the_time(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    store("pending", beat=PART)

    def refused(*_: Any) -> None:
        raise Refused(None)

    monkeypatch.setattr(transaction_record, "replace_row", refused)
    with pytest.raises(OutcomeUnknown, match="faster"):
        Transactions.repair("T")


def is_to_be_repaired() -> bool:
    """Recover it; tell whether its rows prevent that, and not an answer of DynamoDB: there is no such table."""
    try:
        Transactions.recover("T")
    except LockingError as error:
        return isinstance(error, CorruptRow) or "is said to" in str(error)
    return False


@pytest.mark.long
def test_participants(clock: VirtualClock) -> None:
    """Of an aborted transaction those that can be read stay, and their marks are dropped. Of a committed one all."""
    item = participant("p1", spill={"S": "T!00000"})
    rows = [participants("T", row, participant()) for name in item for row in broken(item, name)]
    rows += list(broken(participants("T", participant()), "content"))
    for row in random.sample(rows, min(CASES, len(rows))):
        store("committed")
        put(Transactions, row)
        before = rows_of(Transactions)
        assert Transactions.repair("T") == []
        assert rows_of(Transactions) == before, row
        store("aborted")
        put(Transactions, row)
        was_broken = is_to_be_repaired()
        assert bool(Transactions.repair("T")) is was_broken, row
        assert not is_to_be_repaired(), row
        [left] = [each for each in rows_of(Transactions) if each["id"]["S"] == "T#0000"]
        if was_broken and {"M": participant()} in left["content"]["M"]["items"]["L"]:
            assert marked_rows(Purse) == [], row


def test_conditions_of_each_engine(concurrent_engine: Engine) -> None:
    """What was read is compared as each engine compares."""
    store("pending", state={"NULL": True}, beat={"NS": ["1", "2"]}, lease_ms=PART, by={"M": {}})
    assert "state is" in Transactions.sweep().failed["T"]
    assert Transactions.repair("T")
    assert Transactions.recover("T") == "aborted"
    assert stored(Purse, "p0") is not None
    assert marked_rows(Purse) == []


@pytest.fixture
def shell(memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, on the database in memory."""
    return prepared(memory, capsys, monkeypatch)


def test_the_command(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """It asks, leaves a trace, and says what became of the transaction."""
    table = ("--table", name_of(Transactions))
    store("pending", beat=PART)
    code, out, _ = shell.run("tx", "list", *table, "--json")
    assert (code, list(json.loads(out)["unreadable"])) == (1, ["T"])
    assert shell.error("tx", "repair", "T", *table)["kind"] == "usage"
    assert not is_readable()
    answer = shell.answer("tx", "repair", "T", "--yes", *table)
    assert (answer["was"], answer["repaired"], answer["state"]) == (["beat is {'N': '1.5'}"], True, "aborted")
    assert "the transaction T in" in caplog.text
    answer = shell.answer("tx", "repair", "T", *table)
    assert (answer["was"], answer["repaired"]) == ([], False)
    assert shell.run("tx", "recover", "T", *table)[0] == 0
    store("pending", state=None)
    assert shell.run("tx", "list", *table)[0] == 1
    assert "name its state" in shell.error("tx", "repair", "T", "--yes", *table)["message"]
    assert shell.answer("tx", "repair", "T", "--yes", "--state", "committed", *table)["state"] == "committed"
    assert shell.run("tx", "repair", "nothing", *table)[0] == 1
