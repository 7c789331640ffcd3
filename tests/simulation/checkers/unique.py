"""What must be true of unique values and of their rows, at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.values import canonical_item
from pynamo_locking_testing._engine.scheduler import START_S
from pynamo_locking_testing._expressions import Expressions
from tests.simulation.checkers.base import queue_of
from tests.simulation.checkers.intervals import _Committed
from tests.simulation.models import Badge, Pass, Person, Uniques
from tests.simulation.plans import SKEWS_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking_testing._engine.network import Image, Place, Request


class OneRowEach(_Committed):
    """Each item that has a value has its row, and each row belongs to an item that has the value.

    Expired items and rows do not count; by the clocks of those who write, which may differ from the true time.
    """

    tables = frozenset(model.Meta.table_name for model in (Person, Pass, Badge, Uniques))

    def on_decided(self, request: Request) -> None:
        """Note what a native transaction is going to do, updates as well."""
        for place, action in zip(request.places, request.kwargs["TransactItems"], strict=True):
            [(kind, kwargs)] = action.items()
            if kind == "Update" and place.table in self.tables:
                update = Expressions(kwargs, "UpdateExpression", "ConditionExpression").update()
                assert update is not None
                self._items[place] = update.apply(canonical_item(self._items.get(place) or kwargs["Key"]))
        super().on_decided(request)
        self._look()

    def _look(self) -> None:
        if self._wrong is None:
            self._wrong = next(self.wrong_in(self._items), None)

    def wrong_in(self, items: Mapping[Place, Image]) -> Iterator[str]:
        """Compare them, unless a transaction of many items is under way or to be finished."""
        if any(queue_of(image).intent for image in items.values()):
            return
        rows = {
            place.key[0].rpartition("/")[2]: row
            for place, row in items.items()
            if place.table == Uniques.Meta.table_name
        }
        for place, item in items.items():
            value = item.get("email", {}).get("S")
            if place.table != Uniques.Meta.table_name and value is not None and not self._may_be_over(item, "expires"):
                holder = _holder(rows.get(value))
                if holder != place.key[0]:
                    yield f"{place} has {value!r}, whose row is that of {holder}"
        having = {(place.key[0], item.get("email", {}).get("S")) for place, item in items.items()}
        for value, row in rows.items():
            if (_holder(row), value) not in having and not self._may_be_over(row, "expires_s"):
                yield f"the row of {value!r} is that of {_holder(row)}, which does not have it"

    def _may_be_over(self, image: Image, name: str) -> bool:
        """Tell whether it has expired by the clock of any process."""
        if name not in image:
            return False
        now_s = START_S + self.run.scheduler.now + max(SKEWS_S[self.run.plan.skew]) + 1
        return bool(int(image[name]["N"]) <= now_s)


def _holder(row: Image | None) -> Any:
    return None if row is None else row["holder"]["M"]["key"]["M"]["key"]["S"]
