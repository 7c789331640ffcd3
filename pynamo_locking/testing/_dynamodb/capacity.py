"""What a request costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking.testing._dynamodb.views import Record

_READ_UNIT: Final = 4096
_WRITE_UNIT: Final = 1024
#: What a unit costs within a transaction.
TRANSACTIONAL: Final = 2.0
CONSISTENT: Final = 1.0
EVENTUAL: Final = 0.5


def read_factor(request: Mapping[str, Any]) -> float:
    """Return what a unit of this read costs outside of a transaction."""
    return CONSISTENT if request.get("ConsistentRead") else EVENTUAL


def write_units(old: Record | None, new: Record | None, indexes: int = 0, factor: float = 1.0) -> float:
    """Return the cost of a write: that of the larger image, once for the table and each index it changes."""
    size = max(old.size if old else 0, new.size if new else 0)
    return factor * max(1, -(-size // _WRITE_UNIT)) * (1 + indexes)


class Bill:
    """What a request consumed, by table, as far as the request asks for it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._wanted = request.get("ReturnConsumedCapacity", "NONE")
        self._units: dict[str, float] = {}

    def add(self, table: str, units: float) -> None:
        """Note a cost."""
        self._units[table] = self._units.get(table, 0.0) + units

    def add_read(self, table: str, size: int, factor: float) -> None:
        """Note the cost of reading so many bytes; an item that does not exist costs as much as one byte."""
        self.add(table, factor * max(1, -(-size // _READ_UNIT)))

    def of_one(self) -> dict[str, Any]:
        """Return the part of a response to a request about one table."""
        capacity = self._each()
        return {"ConsumedCapacity": capacity[0]} if capacity else {}

    def of_all(self) -> dict[str, Any]:
        """Return the part of a response to a request about several tables."""
        capacity = self._each()
        return {"ConsumedCapacity": capacity} if capacity else {}

    def _each(self) -> list[dict[str, Any]]:
        if self._wanted not in {"TOTAL", "INDEXES"}:
            return []
        shown = list[dict[str, Any]]()
        for table, units in self._units.items():
            detail = {"Table": {"CapacityUnits": units}} if self._wanted == "INDEXES" else {}
            shown.append({"TableName": table, "CapacityUnits": units, **detail})
        return shown
