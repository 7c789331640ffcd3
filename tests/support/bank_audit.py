"""Who watches the bank of `tests.support.bank` while its clerks are killed, and what must be true at the end."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import transactional
from pynamo_locking.transactions import SweepReport
from tests.campaign.check import check_parts
from tests.campaign.histories import Scribe
from tests.support import workers
from tests.support.bank import (
    ACCOUNTS,
    BANK,
    BREAK,
    FIRST_BALANCE,
    MODELS,
    POISON,
    RECEIPTS,
    Account,
    Clerk,
    PlainAccount,
    Receipt,
    Transactions,
    Visit,
    accounts_of,
    checksum_of,
    is_long,
    key_of,
    kind_of,
    open_bank,
    seen_in,
    visits_of,
)
from tests.support.crew import Crew, places_of
from tests.support.interval_models import overlaps_in
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pynamo_locking.transactions import Transaction
    from tests.engines.engine import Engine

#: Of a watch that waits for the clerks to end what they have begun: the larger it is, the longer.
PATIENCE: Final = workers.PATIENCE * max(1, ACCOUNTS // 300)
CLERKS: Final = int(os.environ.get("BANK_CLERKS", "8"))
#: Of the process that takes snapshots, in the history: none of the clerks.
_NUMBER: Final = 1_000
#: How much the clerks write into their logs between two kills, in bytes: 1 to 20 transfers. What is killed keeps
#: others waiting for a lease, so on a slow machine it has to be rarer.
KILL_AFTER: Final = (30, 600)


def labels_of(account: Any) -> list[str]:
    """The transfers that an account has seen, oldest first."""
    labels: list[str] = account.history.split()[1:]
    return labels


def check_moment(accounts: Sequence[Any]) -> None:
    """All accounts as they were at one moment: no money lost, and each transfer whole, once, or not at all."""
    assert len(accounts) == ACCOUNTS, f"{len(accounts)} accounts"
    total = sum(account.balance for account in accounts)
    assert total == ACCOUNTS * FIRST_BALANCE, f"{total} is in the bank"
    for account in accounts:
        check_account(account)
    for label, times in Counter(label for account in accounts for label in labels_of(account)).items():
        assert times == accounts_of(label), f"{label} is in {times} accounts"


def check_account(account: Any) -> None:
    """One account: nothing of a transaction that failed, and all of one write."""
    assert account.balance != POISON, f"account {account.number} shows what was never committed"
    assert account.checksum == checksum_of(account), f"account {account.number} is of two writes"


# The clerks, and what they say at the end


def live(number: int, seed: str, folder: Path) -> None:
    """Be a clerk."""
    Clerk(number, seed, folder).work()


@dataclass
class Ledger:
    """What the clerks say of their transfers, by label."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """``begin`` for one whose clerk was killed, ``committed``, ``refused`` or ``unknown``."""

    @classmethod
    def of(cls, crew: Crew) -> Ledger:
        """Read all logs."""
        ledger = cls()
        for event, label in crew.notes():
            if event != "begin" or label not in ledger.outcomes:  # another clerk may have ended what one began
                ledger.outcomes[label] = event
        return ledger

    def resumed(self) -> int:
        """How many transfers were committed by a clerk that went on with them."""
        return sum(told == "committed" and kind_of(label) == "s" for label, told in self.outcomes.items())

    def count(self) -> Counter[str]:
        """How often each outcome came, by the size of the transaction."""
        return Counter(f"{outcome} {'long' if is_long(label) else 'short'}" for label, outcome in self.outcomes.items())


# While the clerks work


class Watch(threading.Thread):
    """Looks again and again until it is stopped, in a thread of its own."""

    def __init__(self, look: Callable[[], object], pause_s: float) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._look = look
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Look until it is stopped, or finds something wrong."""
        try:
            while not self._stopped.wait(self._pause_s):
                self._look()
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self._error = error

    @property
    def has_failed(self) -> bool:
        """Whether it has found something wrong."""
        return self._error is not None

    def stop(self) -> None:
        """End it, and raise what it has found."""
        self._stopped.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error


class Snapshots:
    """Takes snapshots of all accounts. An attempt that met a writer is counted as a conflict, and made again.

    A snapshot has to begin again whenever one of the accounts is written. So after the first conflict the clerks
    take a break: they end what they have begun, and what was begun by the dead stays.

    Args:
        break_: the file that lets the clerks take a break.
        scribe: notes them.
    """

    def __init__(self, break_: Path, scribe: Scribe) -> None:
        self.taken = 0
        self.conflicts = 0
        self._break = break_
        self._scribe = scribe
        self._is_again = False

    def __call__(self) -> None:
        """Take one, which makes younger transactions make way as it grows older."""
        self._is_again = False
        self._scribe.invoke([["r", number, None] for number in range(ACCOUNTS)])
        try:
            accounts = transactional(attempts=100, isolation="snapshot", wait=PATIENCE)(self._take)()
        finally:
            self._break.unlink(missing_ok=True)
        self.conflicts -= 1
        self.taken += 1
        self._scribe.ok(seen_in(accounts))
        check_moment(accounts)

    def _take(self, tx: Transaction) -> list[Account]:
        self.conflicts += 1  # unless it turns out to be the last attempt
        if self._is_again:
            self._break.touch()
        self._is_again = True
        return tx.query(Account, BANK)


class PlainLooks:
    """Reads all accounts with PynamoDB's own model, one after the other, and remembers what it has seen."""

    def __init__(self) -> None:
        self.seen: dict[float, str] = {}

    def __call__(self) -> None:
        """Look once: what was seen of an account before is still there."""
        for account in PlainAccount.query(BANK, consistent_read=True):
            check_account(account)
            before = self.seen.get(account.number, "")
            assert account.history.startswith(before), f"account {account.number} showed what was not committed"
            self.seen[account.number] = account.history


class Marks:
    """Counts the marks that a low-level reader can see on items, to show that there was something to hide."""

    def __init__(self) -> None:
        self.seen = 0
        self.hidden = 0

    def __call__(self) -> None:
        """Look once."""
        for image in marked(Account):
            self.seen += 1
            self.hidden += str(POISON) in repr(image["lock"])


def marked(model: Any) -> Iterable[dict[str, Any]]:
    """Return the stored items that carry a mark."""
    return _scan(model, FilterExpression="attribute_exists(#lock.tx)", ExpressionAttributeNames={"#lock": "lock"})


def _scan(model: Any, **options: Any) -> Iterable[dict[str, Any]]:
    connection = model._get_connection()
    pages = connection.connection.client.get_paginator("scan")
    for page in pages.paginate(TableName=connection.table_name, ConsistentRead=True, **options):
        yield from page["Items"]


# The whole run


@dataclass
class Run:
    """What became of a run.

    Attributes:
        seconds: how long the clerks worked.
        kills: how many of them were killed.
        outcomes: transfers by outcome, short and long ones.
        resumed: how many were committed that a clerk had suspended before.
        snapshots: how many snapshots were taken, and found right.
        conflicts: how many more met a writer.
        plain_looks: how often a plain reader has read all accounts.
        marks: marks that were to be seen meanwhile.
        poison: how many of those were of transactions that must fail.
        aborted_by: why transactions were aborted, from their headers.
        swept: what the sweep at the end has found.
    """

    seconds: float = 0.0
    kills: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    snapshots: int = 0
    conflicts: int = 0
    plain_looks: int = 0
    marks: int = 0
    poison: int = 0
    aborted_by: Counter[str] = field(default_factory=Counter)
    swept: SweepReport = field(default_factory=SweepReport)


def run_bank(engine: Engine, seconds: float, seed: str) -> Run:
    """Let clerks work and be killed for so long, watched; check everything, and return what there was."""
    open_bank(engine)
    chooser, plain, marks = random.Random(seed), PlainLooks(), Marks()
    run, start = Run(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scribe = Scribe(Path(folder) / "snapshots.part", _NUMBER)
        with Crew(places_of(engine, MODELS.values()), Path(folder), CLERKS, live, seed, Path(folder)) as crew:
            snapshots = Snapshots(crew.folder / BREAK, scribe)
            watches = [Watch(snapshots, 1.0), Watch(plain, 0.1), Watch(marks, 0.2)]
            while not (
                any(watch.has_failed for watch in watches) or _is_enough(run, start, seconds, crew, snapshots, marks)
            ):
                crew.until_written(chooser.randint(*KILL_AFTER))
                time.sleep(chooser.uniform(0.0, 0.1))
                told = Ledger.of(crew).count()
                assert time.monotonic() - start < seconds + PATIENCE, (run, told, vars(snapshots))
                crew.kill(chooser)
                run.kills += 1
            for watch in watches:
                watch.stop()
            _kill_all(crew)
            run.kills, ledger = len(crew.killed), Ledger.of(crew)
        run.seconds, run.outcomes, run.resumed = time.monotonic() - start, ledger.count(), ledger.resumed()
        run.marks, run.poison = marks.seen, marks.hidden
        run.swept = Transactions.sweep(segments=2)
        run.aborted_by = check_end(ledger, plain)
        check_history(Path(folder), seed, scribe)
    run.snapshots, run.conflicts, run.plain_looks = snapshots.taken, snapshots.conflicts, watches[1].count
    return run


def check_history(folder: Path, seed: str, scribe: Scribe) -> None:
    """What the clerks have noted is strictly serializable, with a last look at all accounts."""
    scribe.invoke([["r", number, None] for number in range(ACCOUNTS)])
    scribe.ok(seen_in(PlainAccount.query(BANK, consistent_read=True)))  # nothing writes any more
    scribe.close()
    check_parts(folder, f"bank-{seed}")


def _kill_all(crew: Crew) -> None:
    """Kill all clerks in the middle of something, which only the sweep completes then."""
    while True:
        until(lambda: any(True for _ in marked(Account)), "a transaction that is not ended")
        for number in list(crew.members):
            crew.kill_number(number)
        if any(True for _ in marked(Account)):
            return
        crew.start(CLERKS)  # they had just ended it


def _is_enough(run: Run, start: float, seconds: float, crew: Crew, snapshots: Snapshots, marks: Marks) -> bool:
    """Whether the time is over, and what is to be shown has happened at least once."""
    if time.monotonic() - start < seconds or not (run.kills and snapshots.taken and marks.hidden):
        return False
    ledger = Ledger.of(crew)
    outcomes = ledger.count()
    return outcomes["committed short"] > 0 and outcomes["committed long"] > 0 and ledger.resumed() > 0


def check_end(ledger: Ledger, plain: PlainLooks) -> Counter[str]:
    """All is right after a sweep; return why transactions were aborted."""
    accounts = list(PlainAccount.query(BANK, consistent_read=True))
    check_moment(accounts)
    for account in accounts:
        assert account.history.startswith(plain.seen.get(account.number, "")), f"{account.number}: never committed"
    present = {label for account in accounts for label in labels_of(account)}
    for label, told in ledger.outcomes.items():
        assert label in present or told != "committed", f"{label} is lost"
        assert label not in present or told != "refused", f"{label} was said to be refused"
        assert label not in present or kind_of(label) != "p", f"{label} has a condition that is never true"
        is_known = outcome_of_key(label)
        assert is_known in (None, label in present), f"{label}: its key says {is_known}"
    _check_receipts(present)
    _check_visits(present)
    for model in (Account, Receipt, Visit):
        left = list(marked(model))
        assert not left, f"marks are left: {left[:3]}"
    return _check_headers()


def outcome_of_key(label: str) -> bool | None:
    """Whether the key of a transfer says that it was committed; None if it has no key."""
    key = key_of(label)
    return None if key is None else Transactions.outcome(idempotency_key=key) == "committed"


def _check_receipts(present: set[str]) -> None:
    """Receipts are there together, if they were filed and not torn up; no placeholder is left."""
    stored = Counter[str]()
    for image in _scan(Receipt):
        assert "amount" in image, f"a placeholder is left: {image}"
        stored[image["label"]["S"]] += 1
    filed = {label for label in present if kind_of(label) == "f" and label.replace("f", "t") not in present}
    assert stored == dict.fromkeys(filed, RECEIPTS), f"{stored} is stored, and {filed} are filed"


def _check_visits(present: set[str]) -> None:
    """Visits are there with the money that was moved with them, and no two overlap."""
    stored = Counter(image["label"]["S"] for image in _scan(Visit))
    booked = {label: visits_of(label) for label in present if visits_of(label)}
    assert stored == booked, f"{stored} is stored, and {booked} is booked"
    assert overlaps_in(Visit, "desk", "begin", "end") == []


def _check_headers() -> Counter[str]:
    """No transaction is undecided or unfinished; a second sweep finds nothing."""
    states, reasons = Counter[str](), Counter[str]()
    for image in _scan(Transactions):
        if "state" in image:
            states[image["state"]["S"]] += 1
            if image["state"]["S"] == "aborted":
                reasons[image.get("by", {"S": "?"})["S"]] += 1
    assert not states.keys() - {"finished", "aborted"}, states
    examined = Transactions.sweep().examined
    assert examined == 0, f"a second sweep has found {examined}"
    return reasons
