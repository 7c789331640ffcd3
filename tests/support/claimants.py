"""Processes that want the same unique values: what each did, and what is stored afterwards."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import DoesNotExist

from pynamo_locking import transaction
from pynamo_locking.exceptions import Conflict, NotUnique, OutcomeUnknown
from tests.support.crew import at_once, places_of
from tests.support.transaction_models import Transactions
from tests.support.unique_models import Member, Uniques, User

if TYPE_CHECKING:
    from tests.engines.engine import Engine

MODELS: tuple[Any, ...] = (Uniques, User, Member, Transactions)

#: More items than values.
ITEMS, VALUES = 70, 50


class Job(NamedTuple):
    """What one process does: so many writes of items of a model."""

    model: Any
    seed: int
    writes: int


class Story(NamedTuple):
    """How often each write ended how; the value of each item, and the holder of each value's row, as stored."""

    ends: Counter[str]
    values: dict[str, str]
    rows: dict[str, str]

    def problems(self) -> list[str]:
        """Return what is wrong with the items and rows."""
        found = [f"{key} has {value}, whose row is that of {self.rows.get(value)}" for key, value in self.values.items()
                 if self.rows.get(value) != key]  # fmt: skip
        return found + [
            f"a row of {value} for {key}" for value, key in self.rows.items() if self.values.get(key) != value
        ]


def claim(engine: Engine, model: Any, *, processes: int, writes: int) -> Story:
    """Let all processes work at once."""
    engine.bind(*MODELS)
    jobs = [Job(model, seed, writes // processes) for seed in range(processes)]
    ends = sum(at_once(places_of(engine, MODELS), _warm, work, jobs), Counter[str]())
    return Story(ends, *stored(engine, model))


def _warm() -> None:
    """Make clients and connections."""
    next(iter(User.scan(limit=1)), None)


def work(job: Job) -> Counter[str]:
    """Write items that all processes write: new ones, changed ones, swapped ones; delete some."""
    chance, ends = random.Random(job.seed), Counter[str]()
    acts = (_save, _save, _save, _update, _swap, _delete)
    for _ in range(job.writes):
        act, one, two = chance.choice(acts), *(f"i{chance.randrange(ITEMS)}" for _ in range(2))
        try:
            act(job.model, one, two, f"v{chance.randrange(VALUES)}")
            ends["done"] += 1
        except DoesNotExist:
            ends["absent"] += 1
        except NotUnique:
            ends["taken"] += 1
        except Conflict:
            ends["beaten"] += 1
        except OutcomeUnknown:
            ends["unknown"] += 1
    return ends


def _save(model: Any, key: str, _: str, value: str) -> None:
    try:
        item = model.get(key)
    except DoesNotExist:
        item = model(key)
    item.email = value
    item.save()


def _update(model: Any, key: str, _: str, value: str) -> None:
    model.get(key).update([model.email.set(value)])


def _swap(model: Any, one: str, two: str, _: str) -> None:
    with transaction() as tx:
        first, second = tx.get(model, one), tx.get(model, two)
        first.email, second.email = second.email, first.email
        tx.save(first)
        tx.save(second)


def _delete(model: Any, key: str, _: str, __: str) -> None:
    model.get(key).delete()


def stored(engine: Engine, model: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Read the values of all items, and the holders of all rows, past the library."""
    scan = engine.client().get_paginator("scan")
    items, rows = (
        [item for page in scan.paginate(TableName=each.Meta.table_name, ConsistentRead=True) for item in page["Items"]]
        for each in (model, Uniques)
    )
    values = {item["id"]["S"]: item["email"]["S"] for item in items if "email" in item}
    return values, {row["name"]["S"].rpartition("/")[2]: row["holder"]["M"]["key"]["M"]["id"]["S"] for row in rows}
