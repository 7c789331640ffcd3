"""One process of a campaign: it writes lists and registers in every way there is, and notes what it is told.

What an error says is believed: after a refusal the operation is noted as failed, after `OutcomeUnknown`, or a refusal
for now, as one that may have happened. Whether that was true is for the reader of the history to find out.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import DoesNotExist, PynamoDBException

from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking._core import dynamodb
from pynamo_locking.exceptions import Conflict, ItemLocked, LockingError, OutcomeUnknown, TransactionConflict
from tests.campaign.histories import MicroOp, Scribe
from tests.campaign.models import (
    BESIDE,
    CELLS,
    HELD,
    LEASE_S,
    LONGEST,
    MIXED,
    WAIT_S,
    WIDE,
    WIDE_SLOTS,
    Cell,
    Generations,
    Mixed,
    model_of,
)
from tests.campaign.served import RemoteMemory

if TYPE_CHECKING:
    from pathlib import Path

    from pynamo_locking.transactions import Transaction

#: Of all operations, those on registers.
_REGISTERS = 0.3
#: Actions of a native transaction, for each second process: with three items a transaction is a long one.
_FEW = 2
_VALUES = 10_000_000

#: The longest time that a holder of a lock computes, one time in four, so that many are hit in there.
_THINK_S = 0.02

Items = dict[int, Any]
Act = Callable[[list[MicroOp]], list[MicroOp]]


def live(number: int, folder: Path, memory: Path | None, bug: str, how: dict[str, Any]) -> None:
    """Be a process of a campaign.

    Args:
        number: of the process.
        folder: where its files are.
        memory: the socket of the server in memory, if that is the engine.
        bug: the name of a planted bug that it has in the package.
        how: the other options of a campaign: seed, only, slots.
    """
    logging.disable(logging.WARNING)  # each fault is told
    with contextlib.ExitStack() as stack:
        if bug:
            from tests.simulation.planted import BUGS

            stack.enter_context(next(each for each in BUGS if each.name == bug).planted())
        if memory:
            stack.enter_context(RemoteMemory(str(memory)))
        Party(folder, number, **how).work()


class Party:
    """A process at work.

    Args:
        folder: where its files are, and what it shares with others.
        number: of the process.
        seed: of the campaign.
        only: the names of the only ways in which it writes; all if empty.
        slots: how many keys of each kind it writes at once, at most.
    """

    def __init__(self, folder: Path, number: int, seed: str, only: list[str], slots: int) -> None:
        self._chooser = random.Random(f"{seed}/{number}")
        self._generations = Generations(folder / "generations")
        self._lists = Scribe(folder / f"lists-{number}.part", number)
        self._registers = Scribe(folder / f"registers-{number}.part", number)
        self._values = itertools.count(number * _VALUES + 1)
        self._slots = slots
        self._go_on = folder / "go-on"
        ways: list[tuple[float, Callable[[bool], None]]] = [
            (30, self._transaction),
            (8, self._snapshot),
            (12, self._transact_write),
            (14, self._edit),
            (10, self._locked_save),
            (12, self._modify),
            (12, self._save),
            (4, self._for_update),
            (0.2, self._wide),
        ]
        self._weights, self._ways = zip(*[way for way in ways if not only or way[1].__name__[1:] in only], strict=True)
        if number % 2:
            dynamodb.MOST_ACTIONS = _FEW

    def work(self) -> None:
        """Write for as long as a file is there."""
        while self._go_on.exists():
            way = self._chooser.choices(self._ways, self._weights)[0]
            way(self._chooser.random() < _REGISTERS)

    # What is asked for

    def _micro(self, keys: list[int], *, registers: bool, most_writes: int = 9, least_writes: int = 0) -> list[MicroOp]:
        """Return reads and writes of some keys, each of which is written, read, or read and then written."""
        write, micro, writes = "w" if registers else "append", list[Any](), 0
        for key in keys:
            kind = self._chooser.choice(["read", "write", "both", "both"])
            if writes >= most_writes:
                kind = "read"
            elif kind == "read" and least_writes > writes:
                kind = "both"
            if kind != "write":
                micro.append(["r", key, None])
            if kind != "read":
                writes += 1
                micro.append([write, key, next(self._values)])
        return micro

    def _some(self, registers: bool, most: int) -> list[int]:
        of = (CELLS if registers else MIXED)[: self._slots]
        slots = self._chooser.sample(of, self._chooser.randint(1, min(most, len(of))))
        return slots if registers else [self._generations.key(slot) for slot in slots]

    def _one(self, registers: bool) -> int:
        """Return a key for what takes one: for lists, also of those that are protected by a lock alone."""
        if registers:
            return self._chooser.choice(CELLS[: self._slots])
        slots = self._chooser.choice([MIXED, MIXED, HELD, BESIDE])[: self._slots]
        return self._generations.key(self._chooser.choice(slots))

    def _do(self, registers: bool, micro: list[MicroOp], act: Act) -> None:
        scribe = self._registers if registers else self._lists
        scribe.invoke(micro)
        try:
            done = act(micro)
        except (OutcomeUnknown, ItemLocked, TransactionConflict) as error:
            # The last two were refused for now: a copy that the network sends after the answer may be applied.
            scribe.info(micro, error)
        except (LockingError, PynamoDBException) as error:
            scribe.fail(micro, error)
        else:
            scribe.ok(done)

    def _apply(self, items: Items, micro: list[MicroOp]) -> list[MicroOp]:
        """Change the items, and return what was read of them on the way."""
        done = list[Any]()
        for f, key, value in micro:
            item = items[key]
            if f == "w":
                item.value = value
            elif f == "append":
                item.elements += f" {value}"
            elif isinstance(item, Cell):
                value = None if item.value is None else int(item.value)  # noqa: PLW2901
            else:
                value = [*map(int, item.elements.split())]  # noqa: PLW2901
                if len(value) >= LONGEST:
                    self._generations.is_full(key)
            done.append([f, key, value])
        return done

    # The ways

    def _transaction(self, registers: bool) -> None:
        micro = self._micro(self._some(registers, 4), registers=registers)
        together = self._chooser.random() < 0.3
        self._do(registers, micro, self._committing(registers, _get_all if together else _get))

    def _wide(self, registers: bool) -> None:
        slots = self._chooser.sample(WIDE_SLOTS, WIDE)
        micro = [["append", self._generations.key(slot), next(self._values)] for slot in sorted(slots)]
        micro += [["r", micro[0][1], None]]
        self._do(False, micro, self._committing(False, _get_all))

    def _for_update(self, registers: bool) -> None:
        micro = self._micro(self._some(registers, 2), registers=registers, least_writes=1)
        self._do(registers, micro, self._committing(registers, _get_for_update))

    def _committing(self, registers: bool, get: Callable[[Transaction, Any, list[int]], Items]) -> Act:
        @transactional(attempts=4, lease=LEASE_S, wait=WAIT_S)
        def act(tx: Transaction, micro: list[MicroOp]) -> list[MicroOp]:
            items = get(tx, _mixed(registers), _keys_of(micro))
            done = self._apply(items, micro)
            for key in _keys_of(micro, writes=True):
                tx.save(items[key])
            return done

        return act

    def _snapshot(self, registers: bool) -> None:
        def act(micro: list[MicroOp]) -> list[MicroOp]:
            with transaction(read_only=True, lease=LEASE_S, wait=WAIT_S) as tx:
                return self._apply(_get_all(tx, _mixed(registers), _keys_of(micro)), micro)

        self._do(registers, [["r", key, None] for key in self._some(registers, 5)], act)

    def _transact_write(self, registers: bool) -> None:
        model = _mixed(registers)

        def act(micro: list[MicroOp]) -> list[MicroOp]:
            items = {key: _stored(model, key) for key in _keys_of(micro)}
            done, written = self._apply(items, micro), _keys_of(micro, writes=True)
            with TransactWrite(connection=model._get_connection().connection) as writes:
                for key, item in items.items():
                    if key in written:
                        writes.save(item)
                    else:
                        writes.check(item)
            return done

        self._do(registers, self._micro(self._some(registers, 4), registers=registers, least_writes=1), act)

    def _edit(self, registers: bool) -> None:
        key = self._one(registers)
        model = Cell if registers else model_of(key)

        def act(micro: list[MicroOp]) -> list[MicroOp]:
            _create(model, key)
            with model.edit(key) as item:
                done = self._apply({key: item}, micro)
                self._think()
            return done

        self._do(registers, self._micro([key], registers=registers, least_writes=1), act)

    def _locked_save(self, registers: bool) -> None:
        key = self._one(registers)
        model = Cell if registers else model_of(key)

        def act(micro: list[MicroOp]) -> list[MicroOp]:
            _create(model, key)
            done = list[Any]()
            try:
                with model.locked(key) as lock:
                    applied = self._apply({key: lock.item}, micro)
                    self._think()
                    lock.item.save(add_version_condition=False)  # the lock alone protects it
                    done += applied
            except (LockingError, PynamoDBException):
                if not done:  # whatever the release says: the save was applied
                    raise
            return done

        self._do(registers, self._micro([key], registers=registers, least_writes=1), act)

    def _think(self) -> None:
        if self._chooser.random() < 0.25:
            time.sleep(self._chooser.uniform(0, _THINK_S))

    def _modify(self, registers: bool) -> None:
        [key] = self._some(registers, 1)

        def act(micro: list[MicroOp]) -> list[MicroOp]:
            done = list[Any]()

            def change(item: Any) -> None:
                done[:] = self._apply({key: item}, micro)

            _mixed(registers).modify(key, change=change, attempts=3, create=True)
            return done

        self._do(registers, self._micro([key], registers=registers, least_writes=1), act)

    def _save(self, registers: bool) -> None:
        [key] = self._some(registers, 1)

        def act(micro: list[MicroOp]) -> list[MicroOp]:
            item = _stored(_mixed(registers), key)
            done = self._apply({key: item}, micro)
            item.save()
            return done

        self._do(registers, self._micro([key], registers=registers, least_writes=1), act)


def _mixed(registers: bool) -> Any:
    return Cell if registers else Mixed


def _keys_of(micro: list[MicroOp], *, writes: bool = False) -> list[int]:
    """Return the keys of an operation, or those that it writes."""
    return [*dict.fromkeys(key for f, key, _ in micro if not writes or f != "r")]


def _get(tx: Transaction, model: Any, keys: list[int]) -> Items:
    return {key: tx.get_or_none(model, key) or model(key) for key in keys}


def _get_for_update(tx: Transaction, model: Any, keys: list[int]) -> Items:
    for key in keys:
        _create(model, key)
    return {key: tx.get(model, key, for_update=True) for key in sorted(keys)}


def _get_all(tx: Transaction, model: Any, keys: list[int]) -> Items:
    return {key: item or model(key) for key, item in zip(keys, tx.get_all(model, keys), strict=True)}


def _stored(model: Any, key: int) -> Any:
    try:
        return model.get(key, consistent_read=True)
    except DoesNotExist:
        return model(key)


def _create(model: Any, key: int) -> None:
    """Store an empty list or register where there is none: as read, that is the same as none."""
    if (model, key) in _created:
        return
    try:
        model(key).save(model.key.does_not_exist())
    except Conflict:
        pass
    except (LockingError, PynamoDBException):
        return  # the operation will tell
    _created.add((model, key))


_created: set[tuple[Any, int]] = set()
