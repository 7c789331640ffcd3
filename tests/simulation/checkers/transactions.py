"""What must be true of transactions of many items."""

from __future__ import annotations

import itertools
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking._io import transaction_record
from tests.campaign import lists
from tests.campaign.histories import Op
from tests.simulation.checkers.base import Checker, log_of, queue_of
from tests.simulation.history import Told
from tests.simulation.models import Coin, Headers

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from pynamo_locking_testing._engine.network import Place, Request
    from tests.campaign.graphs import Anomaly
    from tests.campaign.histories import MicroOp
    from tests.simulation.history import Operation
    from tests.simulation.run import Run

    #: By register, values.
    Lists = Mapping[Any, Sequence[Any]]

#: Kinds of operations that say all that they have read.
_WHOLE = {"transaction", "snapshot", "modify", "edit"}

#: What callers were told, in the words of histories.
_OUTCOMES = {Told.APPLIED: "ok", Told.REFUSED: "fail", Told.UNKNOWN: "info", Told.NOTHING: "info"}


def transaction(number: int, outcome: str, begin: float, end: float | None, reads: Lists, appends: Lists) -> Op:
    """Return a transaction as the reader of campaigns takes it.

    Args:
        number: by which anomalies name it.
        outcome: ok, fail or info, which is as a whole or not at all.
        begin: when it was begun.
        end: when its caller heard that it was done. Another one that began at that moment may come before it.
        reads: by register, the list that it saw; what it had appended itself may be at the end of it.
        appends: by register, the values that it appended, in order. No value is appended twice.
    """
    value: list[MicroOp] = []
    for register, seen in reads.items():
        others = itertools.dropwhile(lambda each: each in appends.get(register, ()), reversed(seen))  # noqa: B023
        value.append(["r", register, [*others][::-1]])
    value += [["append", register, each] for register, values in appends.items() for each in values]
    ended = None if end is None or outcome != "ok" else 2 * end + 1
    return Op(number, None, outcome, 2 * begin, ended, value)  # type: ignore[arg-type]


def anomalies(transactions: Iterable[Op], final: Lists) -> list[Anomaly]:
    """Return everything that is wrong with a history; nothing if it is strictly serializable.

    Args:
        transactions: all that were begun.
        final: by register, the list in the end, as if it were read then; a register that is not there is empty.
    """
    ops = list(transactions)
    registers = dict.fromkeys([*final, *(register for op in ops for _, register, _ in op.value)])
    ops.append(transaction(0, "ok", math.inf, math.inf, {each: final.get(each, ()) for each in registers}, {}))
    history = lists.Lists()
    for number, op in enumerate(ops):
        op.number = number
        history.add(op)
    return history.report(strict=True).anomalies


class Serializable(Checker):
    """Transactions that read lists and append to them have none of the anomalies that have a name."""

    def at_end(self) -> None:
        seen = [done for done in self.run.history.operations if isinstance(done.seen, dict)]
        if not seen or any(done.kind not in _WHOLE for done in self.run.history.operations):
            return  # who writes without a transaction says nothing of what he read
        told = [_of(done) for done in self.run.history.operations]
        places = {place for done in seen for place in done.seen}
        found = anomalies(told, {place: log_of(self.run.network.image(place)) for place in places})
        self.require(not found, "; ".join(map(str, found[:3])))


def _of(done: Operation) -> Op:
    outcome = _OUTCOMES[done.told]
    reads = done.seen if outcome == "ok" and isinstance(done.seen, dict) else {}
    appends = dict.fromkeys(done.places, (done.number,))
    return transaction(done.number, outcome, done.called, done.returned, reads, appends)


class Together(Checker):
    """Items that are always written together are the same for each reader that reads them together."""

    def at_end(self) -> None:
        for done in self.run.history.operations:
            if done.kind == "together" and done.told is Told.APPLIED:
                self.require(all(each == done.value[0] for each in done.value), f"{done} saw {done.value}")
            if done.kind == "last delete" and done.told is Told.APPLIED and done.returned is not None:
                [place] = done.places
                back = [event for event in self.run.lives.events[place] if event.creates and event.step > done.returned]
                self.require(not back, f"{place} came back after {done}")
            if done.kind == "removal" and done.told is Told.APPLIED and done.value is None:
                for place in done.places:
                    # What is decided may be done only later, by another party.
                    was_absent = self.run.lives.was_absent(place, done.called, sys.maxsize)
                    self.require(was_absent, f"{done} did not remove {place}")


class NothingLeft(Checker):
    """After a sweep no item has the mark of a transaction, also if it came late, and none is open."""

    def at_end(self) -> None:
        if not any(model is Coin for model, _ in self.run.workload.items):
            return
        for image in self.run.network.images(Coin.Meta.table_name):
            self.require(queue_of(image).intent is None, f"an item has a mark still: {image}")
        for image in self.run.network.images(Headers.Meta.table_name):
            header = transaction_record.record_in(image)
            is_open = (
                header is not None and not header.state.is_final
            )  # an aborted one is kept open to sweeps for a day
            self.require(not is_open, f"a transaction is open still: {header}")


class Version(NamedTuple):
    """A state that was installed in a register.

    Attributes:
        value: the state; None for no item, if readers tell of that so.
        decided: the moment since which it could no longer be aborted.
    """

    value: Any
    decided: float = -math.inf


class PlainRead(NamedTuple):
    """What a reader without a transaction saw.

    Attributes:
        reader: who, for people.
        register: of what.
        value: the state that it saw.
        ended: the moment at which it had the answer.
    """

    reader: str
    register: Hashable
    value: Any
    ended: float = math.inf


def uncommitted_reads(reads: Iterable[PlainRead], versions: Mapping[Any, Sequence[Version]]) -> Iterator[str]:
    """Yield what is wrong with reads, one sentence for each.

    Args:
        reads: all that were seen.
        versions: by register, all states that were ever installed, with the one at the beginning.
    """
    for read in reads:
        fitting = [version for version in versions.get(read.register, ()) if version.value == read.value]
        if not fitting:
            yield f"{read.reader} saw {read.register} as {read.value}, which was never committed"
        elif all(version.decided > read.ended for version in fitting):
            yield f"{read.reader} saw {read.register} as {read.value} before that was decided"


class PlainReads(Checker):
    """One that reads an item without a transaction sees a state that was decided when the answer came.

    It may see an old one, or of several registers states that were never there together. What it may not see is what
    was never committed, or not yet: a transaction that is seen before it is decided can still be aborted.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._decided: dict[int, float] = {}
        run.network.on_decided.append(self._note)

    def _note(self, request: Request) -> None:
        """Note when a native transaction was decided, which decides the operation that it is part of."""
        if request.purpose is not None:
            self._decided.setdefault(request.purpose.number, self.run.scheduler.moment())

    def at_end(self) -> None:
        """Compare what was seen with all states that there ever were."""
        reads = [
            PlainRead(str(done), done.places[0], tuple(done.value), done.returned)
            for done in self.run.history.operations
            if done.kind == "plain read" and done.told is Told.APPLIED and done.returned is not None
        ]
        places = {done.places[0] for done in self.run.history.operations if done.kind == "plain read"}
        versions = {place: self._versions(place) for place in places}
        wrong = list(uncommitted_reads(reads, versions))
        self.require(not wrong, "; ".join(wrong))

    def _versions(self, place: Place) -> list[Version]:
        first, *later = self.run.lives.states(place)
        events = self.run.lives.events[place]
        versions = [Version(first if first is not None else ())]
        for event, state in zip(events, later, strict=True):
            decided = max((self._decided.get(number, event.step) for number in event.numbers), default=event.step)
            versions.append(Version(state if state is not None else (), decided))
        return versions
