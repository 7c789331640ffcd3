"""Rows that must not overlap, inserted and moved by several parties at once. Native transactions go step by step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.models import Model

from pynamo_locking import (
    IntervalMixin,
    LockTimeout,
    NamedLock,
    OutcomeUnknown,
    OverlapError,
    StaleVersion,
    TransactionConflict,
    VersionAttribute,
)
from tests.simulation.checkers import Violation
from tests.simulation.models import SETTINGS, Coin, Headers, _Meta
from tests.simulation.workloads.base import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.engine.network import Change, Network, Request


class SlotGuards(NamedLock):
    """Guards."""

    class Meta(_Meta):
        table_name = "slot-guards"


class Slot(IntervalMixin, Model):
    """A row with an interval."""

    class Meta(_Meta):
        table_name = "slots"
        lock_table = SlotGuards
        interval = ("begin", "end")

    device = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


#: How long to try again, in seconds.
WAIT_S = 10 * SETTINGS.lease


class Intervals(Workload):
    """Inserts, moves and deletes on one hash key, some of which overlap."""

    name = "intervals"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ()
    is_contended = True
    most_actions = 100

    #: What the parties insert, in turns; the second and the third overlap the first.
    spans = ((10, 20), (15, 25), (5, 11), (20, 22), (30, 40))

    def prepare(self) -> None:
        """Make the tables; those of coins, which the checkers of transactions look at, stay empty."""
        for model in (SlotGuards, Slot, Coin, Headers):
            model.create_table()

    def party(self, index: int, turn: int) -> None:
        """Insert; then move, delete, or insert two at once."""
        own = self._insert(self.spans[(index + turn) % len(self.spans)])
        if own is not None and (index + turn) % 3 == 0:
            with contextlib.suppress(OverlapError, TransactionConflict, StaleVersion, OutcomeUnknown):
                Slot.move(own, 17, 29, wait=WAIT_S)
        elif own is not None and (index + turn) % 3 == 1:
            with contextlib.suppress(StaleVersion, OutcomeUnknown, DoesNotExist):
                own.delete()
        self._insert((12, 14), (22, 24))

    def _insert(self, *spans: tuple[int, int]) -> Slot | None:
        rows = [Slot("d", begin, end=end) for begin, end in spans]
        for _ in range(2):
            try:
                Slot.insert_disjoint(rows, wait=WAIT_S)
            except OutcomeUnknown:
                continue  # the same instances again: their own rows are in nobody's way
            except (OverlapError, TransactionConflict, LockTimeout):
                return None
            return rows[0]
        return None


class Sweep:
    """Looks at what is committed, after each decision: no two rows of a hash key overlap.

    A native transaction counts as a whole from its decision on, whatever is in its place by then.

    Args:
        network: to listen to.

    Attributes:
        violation: two rows that overlap; None if there were none.
    """

    def __init__(self, network: Network) -> None:
        self._rows: dict[int, int] = {}
        self.violation: Violation | None = None
        network.on_decided.append(self._on_decided)
        network.on_changes.append(self._on_changes)

    def _on_decided(self, request: Request) -> None:
        self._take(request.kwargs["TransactItems"])

    def _on_changes(self, request: Request, changes: list[Change]) -> None:
        """A plain delete makes room when it is applied."""
        if request.operation == "DeleteItem" and changes:
            self._take([{"Delete": request.kwargs}])

    def _take(self, actions: Iterable[dict[str, Any]]) -> None:
        for action in sorted(actions, key=lambda action: "Put" in action):  # a row leaves before it comes
            [(kind, kwargs)] = action.items()
            if kwargs["TableName"] != Slot.Meta.table_name:
                continue
            row = kwargs.get("Item") or kwargs["Key"]
            if kind == "Put":
                self._rows[int(row["begin"]["N"])] = int(row["end"]["N"])
            elif kind == "Delete":
                self._rows.pop(int(row["begin"]["N"]), None)
        self._check(self._rows.items())

    def check_stored(self, images: Iterable[dict[str, Any]]) -> None:
        """Check what is in the table in the end."""
        self._check((int(image["begin"]["N"]), int(image["end"]["N"])) for image in images)

    def _check(self, rows: Iterable[tuple[int, int]]) -> None:
        before = None
        for begin, end in sorted(rows):
            if before is not None and begin < before[1]:
                # Not raised: within a request, the library or its client would take it for an answer.
                self.violation = Violation(f"Disjoint: {begin} to {end} overlaps {before[0]} to {before[1]}")
            before = (begin, end)
