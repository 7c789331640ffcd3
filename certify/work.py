"""The work of the processes, the meter of their units.

Numbers are in memory that all processes share, so what a killed process has written stays. Each attempt of a request
reserves more units than it can use before it is sent. What DynamoDB reports replaces the reservation. So the sum never
passes the cap, whichever processes send at once.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.client import BaseClient

from certify.contract import MODULES, Rows, checks_of
from certify.models import models_of
from certify.plan import ACCOUNTS, LONG, LONG_EVERY
from certify.tables import client_of
from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking.exceptions import LockingError, LockLost, OutcomeUnknown
from pynamo_locking.testing import lost_responses

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import BaseContext

    from certify.models import Models, Row
    from certify.plan import Place, Plan
    from pynamo_locking.transactions import Transaction


# The units that all processes of a run have used, and the cap on them.


#: What is counted, for each process.
FIELDS: Final = ("reads", "writes", "unreported", "pending", "requests", "begun", "done", "holds", "wrong", "looks")

#: So many processes can be counted in one run.
SLOTS: Final = 4096

#: Exit code of a child that would pass the cap.
EXIT_AT_CAP: Final = 3

_READS: Final = {"GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan"}
_UNMETERED: Final = {"CreateTable", "DeleteTable", "DescribeTable", "ListTables", "ListTagsOfResource"}

#: A scan or query reads 1 MB at most: 256 units, consistently.
_SCAN: Final = 256


class Ledger:
    """Numbers of each process.

    Args:
        context: of the processes.
        cap: units, reads and writes together.
    """

    def __init__(self, context: BaseContext, cap: float) -> None:
        self._numbers: Any = context.RawArray("d", len(FIELDS) * SLOTS)
        self._used: Any = context.RawValue("l", 0)
        self.cap = cap

    def new_slot(self) -> int:
        """Return the slot of a new process. Only the parent asks for it."""
        self._used.value += 1
        if self._used.value > SLOTS:
            raise RuntimeError(f"more than {SLOTS} processes in one run")
        return int(self._used.value) - 1

    def add(self, slot: int, field: str, number: float) -> None:
        """Add to a number. Each slot has one writer at a time."""
        self._numbers[slot * len(FIELDS) + FIELDS.index(field)] += number

    def of(self, slot: int, field: str) -> float:
        """Return a number of one process."""
        return float(self._numbers[slot * len(FIELDS) + FIELDS.index(field)])

    def total(self, *fields: str, since: int = 0) -> float:
        """Return the sum over all processes, or those since a slot."""
        used, width = self._used.value, len(FIELDS)
        starts = (since * width + FIELDS.index(field) for field in fields)
        return float(sum(sum(self._numbers[start : used * width : width]) for start in starts))

    def used(self) -> float:
        """Return what counts for the cap."""
        return self.total("reads", "writes", "unreported", "pending")


class Meter:
    """Counts what this process sends. It ends the process where a request might pass the cap."""

    def __init__(self, ledger: Ledger, slot: int) -> None:
        self._ledger = ledger
        self._slot = slot
        self._mutex = threading.Lock()
        self._current = threading.local()
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Count the requests of all clients of this process from now on."""
        client: Any = BaseClient
        original = client._make_api_call

        def call(made: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if made.meta.service_model.service_name != "dynamodb" or operation in _UNMETERED:
                return original(made, operation, arguments)
            self._watch(made)
            return original(made, operation, {**arguments, "ReturnConsumedCapacity": "TOTAL"})

        client._make_api_call = call

    def _watch(self, client: Any) -> None:
        with self._mutex:
            if client in self._watched:
                return
            self._watched.add(client)
        client.meta.events.register("before-send.dynamodb", self._reserve)
        client.meta.events.register("response-received.dynamodb", self._settle)

    def _reserve(self, request: Any, event_name: str, **_: Any) -> None:
        body, operation = request.body, event_name.rpartition(".")[2]
        actions = _actions(json.loads(body))
        bound = _SCAN if operation in {"Query", "Scan"} else 16 + 4 * actions + len(body) // 256
        with self._mutex:
            self._ledger.add(self._slot, "pending", bound)
            self._ledger.add(self._slot, "requests", 1)
            if self._ledger.used() > self._ledger.cap:
                self._ledger.add(self._slot, "pending", -bound)
                os._exit(EXIT_AT_CAP)  # no thread of this process may send another one
        self._current.sent = (operation, bound, actions)

    def _settle(self, parsed_response: Any = None, **_: Any) -> None:
        operation, bound, actions = self._current.sent
        answer = parsed_response or {}
        reported = answer.get("ConsumedCapacity")
        field = "reads" if operation in _READS else "writes"
        if reported is not None:
            units = _units(reported)
        else:  # DynamoDB does not say what a refused request has used
            field, units = "unreported", _unreported(answer, operation, actions)
        with self._mutex:
            self._ledger.add(self._slot, field, units)
            self._ledger.add(self._slot, "pending", -bound)


def _actions(body: dict[str, Any]) -> int:
    """Return how many items a request is about."""
    several = [*body.get("TransactItems", ()), *body.get("Statements", ())]
    for each in body.get("RequestItems", {}).values():
        several += each if isinstance(each, list) else each["Keys"]
    return max(1, len(several))


def _units(reported: Any) -> float:
    """Return the sum of what DynamoDB reports, of one table or of several."""
    each = reported if isinstance(reported, list) else [reported]
    return float(sum(table["CapacityUnits"] for table in each))


def _unreported(answer: dict[str, Any], operation: str, actions: int) -> float:
    """Return what a request without a report has used: a unit for each item, two in a transaction.

    A refusal by a condition uses what the write would have used. An invalid request uses nothing.
    """
    code = answer.get("Error", {}).get("Code", "")
    if code and code not in {"ConditionalCheckFailedException", "TransactionCanceledException"}:
        return 0.0
    return actions * (2.0 if operation.startswith("Transact") else 1.0)


# What the child processes of a run do. Each function gets its `Job`, and returns what is sent to the parent.


#: Locks that the processes take which are killed.
COUNTERS: Final = 3

#: A transaction is completed when its lease has ended; in so many leases all are.
_SWEEPS: Final = 10

#: How long a counter is held before it is saved: long enough for a kill.
_HOLD_S: Final = 0.002

#: Transfers are at most so many snapshots ahead of their reader.
_AHEAD: Final = 3

#: How often a process looks how far the others have come.
_POLL_S: Final = 0.005

#: What each account has at first.
BALANCE: Final = 100


class Job(NamedTuple):
    """One child process, and what it needs to know."""

    place: Place
    plan: Plan
    ledger: Ledger
    slot: int
    first: int  # the first slot of this stage

    @property
    def models(self) -> Models:
        """The models, with connections of their own."""
        return models_of(self.place, self.plan.lease)

    @property
    def chooser(self) -> random.Random:
        """Random numbers of this process."""
        return random.Random(f"{self.plan.seed}/{self.slot}")  # noqa: S311 - which lock to take

    def add(self, field: str, number: float = 1) -> None:
        """Add to a number of this process."""
        self.ledger.add(self.slot, field, number)

    def of(self, field: str) -> float:
        """Return a number of this process."""
        return self.ledger.of(self.slot, field)

    def has_come_to(self, turns: int) -> bool:
        """Tell whether all processes of this stage together have done so much."""
        return self.ledger.total("done", since=self.first) >= turns

    def keep_pace(self) -> None:
        """Wait for the reader of snapshots, so that each of its snapshots is taken while transfers are made."""
        ledger, plan = self.ledger, self.plan
        while True:
            done = ledger.total("done", since=self.first)
            if ledger.total("looks", since=self.first) >= min(1, done / plan.turns) * plan.snapshots - _AHEAD:
                return
            time.sleep(_POLL_S)


def contract(job: Job) -> dict[str, Any]:
    """Ask for everything in `certify.contract`."""
    client, failures, count = client_of(job.place, retries={"total_max_attempts": 3}), {}, 0
    for module in MODULES:
        for name, check in checks_of(module).items():
            count += 1
            try:
                check(Rows(client, job.place.table("contract"), f"{name}-"))
            except Exception as error:  # noqa: BLE001 - any error is an answer
                failures[name] = f"{type(error).__name__}: {error}"
    return {"checks": count, "failures": failures}


# Locks under kills


def open_counters(job: Job) -> dict[str, Any]:
    """Store the counters."""
    row = job.models.row
    with row.guarded_batch() as batch:
        for number in range(COUNTERS):
            batch.save(row(_counter(number)))
    return {}


def open_accounts(job: Job) -> dict[str, Any]:
    """Store the accounts."""
    row = job.models.row
    with row.guarded_batch() as batch:
        for number in range(ACCOUNTS):
            batch.save(row(_account(number), n=BALANCE))
    return {}


def _counter(number: int) -> str:
    return f"counter-{number}"


def _account(number: int) -> str:
    return f"account-{number}"


def _change(job: Job, row: Row, amount: int) -> None:
    """Change a row, and note in it who did."""
    row.n += amount
    row.changes = {**row.changes, str(job.slot): row.changes.get(str(job.slot), 0) + 1}


def count(job: Job) -> dict[str, Any]:
    """Increment counters under their locks, until all processes together have done enough."""
    row, chooser = job.models.row, job.chooser
    while not job.has_come_to(job.plan.turns):
        key = _counter(chooser.randrange(COUNTERS))
        try:
            with row.locked(key) as lock:
                job.add("holds")
                counter = lock.item
                if lock.ticket <= counter.ticket:
                    job.add("wrong")
                counter.ticket = lock.ticket
                _change(job, counter, 1)
                time.sleep(_HOLD_S)
                job.add("begun")
                counter.save()
                job.add("done")
        except LockLost:  # a pause of this machine; DynamoDB has refused the save
            job.add("begun", job.of("done") - job.of("begun"))
        job.add("holds", -job.of("holds"))
    return {}


def counted(job: Job) -> dict[str, Any]:
    """Read the counters."""
    return _read(job, [_counter(number) for number in range(COUNTERS)])


def _read(job: Job, keys: list[str]) -> dict[str, Any]:
    model = job.models.row
    rows = [model.get(key, consistent_read=True) for key in keys]
    changes = dict[str, int]()
    for row in rows:
        for slot, number in row.changes.items():
            changes[slot] = changes.get(slot, 0) + number
    return {"sum": sum(int(row.n) for row in rows), "changes": changes}


# Lost answers


def _saved(models: Models, key: str) -> None:
    row = models.row.get(key, consistent_read=True)
    row.n += 1
    row.save()


def _updated(models: Models, key: str) -> None:
    row = models.row.get(key, consistent_read=True)
    row.update([models.row.n.add(1)])


def _edited(models: Models, key: str) -> None:
    with models.row.edit(key) as row:
        row.n += 1


def _saved_in_a_lock(models: Models, key: str) -> None:
    with models.row.locked(key) as lock:
        lock.item.n += 1
        lock.item.save()


def _written_together(models: Models, key: str) -> None:
    row, other = models.row.get(key, consistent_read=True), models.row.get(f"{key}-beside", consistent_read=True)
    row.n += 1
    with TransactWrite(connection=models.row._get_connection().connection) as tx:
        tx.save(row)
        tx.check(other)


def _committed(models: Models, key: str) -> None:
    with transaction() as tx:
        row, other = tx.get(models.row, key), tx.get(models.row, f"{key}-beside")
        row.n += 1
        tx.save(row)
        tx.check(other)


#: Forms of a change by one.
CHANGES: Final[dict[str, Callable[[Models, str], None]]] = {
    "save": _saved,
    "update": _updated,
    "edit": _edited,
    "save in a lock": _saved_in_a_lock,
    "TransactWrite": _written_together,
    "transaction": _committed,
}


def answers(job: Job) -> dict[str, Any]:
    """Lose the first answer, or request, of each form of a change, or the first two; look what became of it."""
    models, told, wrong = job.models, {"applied": 0, "unknown": 0}, list[str]()
    for form, change in CHANGES.items():
        key, expected = f"answers {form}", 0
        models.row(key).save()
        models.row(f"{key}-beside").save()
        for number in range(job.plan.rounds):
            lost: dict[str, Any] = {"times": 1 + number % 2, "is_applied": number % 4 < 2}  # noqa: PLR2004 - half
            said = "applied"
            try:
                with lost_responses(models.row, key, **lost):
                    change(models, key)
            except OutcomeUnknown:
                said = "unknown"
            except LockingError as error:
                wrong.append(f"{form}, {lost}: {type(error).__name__}: {error}")
            stored = int(models.row.get(key, consistent_read=True).n)
            may_be = {expected + 1} if said == "applied" else {expected, expected + 1}
            if stored not in may_be:
                wrong.append(f"{form}, {lost}: {said}, and {stored - expected} changes were stored")
            told[said] += 1
            expected = stored
    return {**told, "wrong": wrong}


# Transactions under kills


def transfer(job: Job) -> dict[str, Any]:
    """Move money between accounts, until all processes together have done enough; one in some is a long transaction."""
    row, chooser = job.models.row, job.chooser

    @transactional(attempts=1_000, lease=job.plan.lease)
    def move(tx: Transaction, source: str, target: str, fillers: int) -> None:
        for key, amount in ((source, -1), (target, 1)):
            account = tx.get(row, key)
            _change(job, account, amount)
            tx.save(account)
        for number in range(fillers):
            tx.save(row(f"filler-{job.slot}-{job.of('begun'):.0f}-{number}"))

    while not job.has_come_to(job.plan.turns):
        job.keep_pace()
        source, target = chooser.sample(range(ACCOUNTS), 2)
        job.add("begun")
        is_long = chooser.randrange(LONG_EVERY) == 0
        job.add("holds")
        move(_account(source), _account(target), LONG - 2 if is_long else 0)
        job.add("holds", -1)
        job.add("done")
    return {}


def snapshots(job: Job) -> dict[str, Any]:
    """Read all accounts in snapshots, while the transfers are made."""
    row, plan = job.models.row, job.plan
    keys = [_account(number) for number in range(ACCOUNTS)]

    @transactional(attempts=1_000, read_only=True)
    def look(tx: Transaction) -> int:
        return sum(int(account.n) for account in tx.get_all(row, keys) if account is not None)

    sums = list[int]()
    for number in range(plan.snapshots):
        while not job.has_come_to(plan.turns * number // plan.snapshots):
            time.sleep(_POLL_S)
        sums.append(look())
        job.add("looks")
    return {"sums": sums}


def transferred(job: Job) -> dict[str, Any]:
    """Complete what killed processes have left, and read all accounts."""
    failed, table = {"some": "still pending, although no process is left"}, job.models.transactions
    finished = aborted = 0
    for _ in range(_SWEEPS):
        time.sleep(job.plan.lease)  # until the last transaction of a killed process may be completed
        report = table.sweep()
        finished, aborted = finished + report.finished, aborted + report.aborted
        if not report.pending:
            failed = report.failed
            break
    found = _read(job, [_account(number) for number in range(ACCOUNTS)])
    return {**found, "finished": finished, "aborted": aborted, "failed": failed}


# Speed


def contend(job: Job) -> dict[str, Any]:
    """Take turns at one lock until all processes together have had enough."""
    locks, turns = job.models.locks, list[tuple[int, float, float, float]]()
    while not job.has_come_to(job.plan.contended):
        asked = time.monotonic()
        with locks.locked("wanted by all", lease=60) as lock:
            granted = time.monotonic()
            turns.append((lock.ticket, asked, granted, time.monotonic()))
            job.add("done")
    return {"turns": turns}


def latencies(job: Job) -> dict[str, Any]:
    """Do each operation again and again, alone; return how long each took, in seconds."""
    models, took = job.models, dict[str, list[float]]()
    models.row("timed").save()
    models.row("timed-beside").save()
    operations: dict[str, Callable[[], object]] = {
        "get": lambda: models.row.get("timed"),
        "get, consistent": lambda: models.row.get("timed", consistent_read=True),
        "save, PynamoDB's own": models.stock("timed-stock").save,
        "save, versioned": models.row.get("timed", consistent_read=True).save,
        "lock and unlock (edit)": lambda: _edited(models, "timed"),
        "TransactWrite of 2 items": lambda: _written(models),
        "transaction of 2 items": lambda: _committed(models, "timed"),
    }
    for name, operation in operations.items():
        took[name] = [_timed(operation) for _ in range(job.plan.rounds)]
    took[f"transaction of {LONG} items"] = [_timed(lambda: _long(models)) for _ in range(job.plan.longs)]
    return {"took": took}


def _written(models: Models) -> None:
    with TransactWrite(connection=models.row._get_connection().connection) as tx:
        tx.save(models.row("timed-1"), add_version_condition=False)
        tx.save(models.row("timed-2"), add_version_condition=False)


def _long(models: Models) -> None:
    with transaction() as tx:
        rows = tx.get_all(models.row, [f"long-{number}" for number in range(LONG)])
        for number, row in enumerate(rows):
            tx.save(row or models.row(f"long-{number}"))


def _timed(operation: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with suppress(OutcomeUnknown):  # it took so long nevertheless
        operation()
    return time.perf_counter() - begun
