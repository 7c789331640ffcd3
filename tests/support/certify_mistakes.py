"""Work of `certify` as it would be done with a mistake: each stage has to see it. Child processes do it.

The mistakes are those that this package is there to prevent: no image, no lock, a repeated increment, two writes in
the place of a transaction.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from botocore.client import BaseClient
from pynamodb.exceptions import PynamoDBException
from typing_extensions import Self

from certify import work as real_work
from certify.plan import ACCOUNTS, Plan

if TYPE_CHECKING:
    from certify.work import Job


work: Any = real_work


class Quick(Plan):
    """A run of seconds, in which no process is killed."""

    kills = 0
    turns = 60
    contended = 30
    snapshots = 30
    rounds = 2


def contract_without_images(job: Job) -> Any:
    """An engine whose refusals do not bring the item along."""
    client: Any = BaseClient
    original = client._make_api_call

    def call(made: Any, operation: str, arguments: dict[str, Any]) -> Any:
        wanted = {name: each for name, each in arguments.items() if name != "ReturnValuesOnConditionCheckFailure"}
        return original(made, operation, wanted)

    client._make_api_call = call
    work.MODULES = work.MODULES[:1]
    return work.contract(job)


class NoLock:
    """Keeps no other process out."""

    tickets = itertools.count(1)

    def __init__(self, row: Any, key: str) -> None:
        self._row, self._key = row, key
        self.ticket = next(self.tickets)

    def __enter__(self) -> Self:
        if self._row is not None:
            self.item = self._row.get(self._key, consistent_read=True)
            self.item.save = lambda: type(self.item).save(self.item, add_version_condition=False)
        time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        pass


def count_without_lock(job: Job) -> Any:
    """Counters are read, changed and saved, by all processes at once."""
    work.models_of = without_locks(work.models_of)
    return work.count(job)


def contend_without_lock(job: Job) -> Any:
    """All processes are in the critical section at once."""
    work.models_of = without_locks(work.models_of)
    return work.contend(job)


def without_locks(models_of: Any) -> Any:
    def make(*arguments: Any) -> Any:
        models = models_of(*arguments)
        models.row.locked = lambda key: NoLock(models.row, key)
        models.locks.locked = lambda _, **__: NoLock(None, "")
        return models

    return make


def answers_by_retrying(job: Job) -> Any:
    """An increment whose answer was lost is sent again."""

    def change(models: Any, key: str) -> None:
        for _ in range(3):
            with suppress(PynamoDBException):
                models.stock(key).update([models.stock.n.add(1)])
                return

    work.CHANGES.clear()
    work.CHANGES["increment"] = change
    return work.answers(job)


def transfer_in_two_writes(job: Job) -> Any:
    """A transfer takes the money from one account, and then gives it to the other."""
    row, chooser = job.models.row, job.chooser
    while not job.has_come_to(job.plan.turns):
        job.keep_pace()
        job.add("begun")
        source, target = (f"account-{number}" for number in chooser.sample(range(ACCOUNTS), 2))
        begun = time.monotonic()
        row.modify(source, lambda account: work._change(job, account, -1))
        time.sleep(3 * (time.monotonic() - begun))
        row.modify(target, lambda account: work._change(job, account, 1))
        job.add("done")
    return {}
