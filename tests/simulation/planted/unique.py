"""Bugs in what keeps values unique."""

from __future__ import annotations

from typing import Any

from pynamo_locking._io.stored_rows import Place
from pynamo_locking._transactions import items
from pynamo_locking._transactions.items import TransactionItems
from pynamo_locking._writes import native_transaction, unique_rows, writer
from pynamo_locking._writes.unique_rows import UniqueRow, UniqueRows
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

_VALUES = Plan("unique values", parties=3, processes=3)
_EXPIRING = _VALUES.but(workload="unique values, expiring")
_condition, _expect, _merged = UniqueRow.condition, UniqueRows.expect, unique_rows.merged


def _anything() -> Any:
    return Place("name").exists() | Place("name").does_not_exist()


@plants(_VALUES, "OneRowEach")
def row_not_conditional() -> Patches:
    """A row is written whatever item it belongs to."""
    return [(UniqueRow, "condition", lambda self: _condition(self) if self.to is None else _anything())]


@plants(_VALUES, "OneRowEach")
@replaces(unique_rows, "merged")
def old_row_not_deleted(_original: Any, several: Any) -> Any:
    """A change leaves the row of the old value."""
    rows = _merged(several)
    return [row for row in rows if row.to is not None or all(each.to is None for each in rows)]


@plants(_VALUES, "OneRowEach")
def delete_leaves_the_row() -> Patches:
    """A delete gives up nothing."""
    return [(writer, "claims_of_delete", lambda item, kind: None)]


@plants(_VALUES, "OneRowEach")
def update_leaves_the_rows() -> Patches:
    """An update of a value takes no row."""
    return [(writer, "claims_of_update", lambda item, actions, kind: None)]


@plants(_VALUES, "OneRowEach")
def old_values_not_checked() -> Patches:
    """A write gives up what its instance remembers, and not what the item has."""
    return [(UniqueRows, "condition", lambda self: None)]


@plants(_EXPIRING, "OneRowEach")
@replaces(UniqueRows, "expect")
def time_of_the_row_not_moved(_original: Any, self: Any, old: Any) -> None:
    """An item gets more time, and its row does not."""
    expires, self._expires = self._expires, None
    _expect(self, old)
    self.holder = self.holder._replace(expires=self._change(old).get(expires))
    self._expires = expires


@plants(_EXPIRING, "OneRowEach")
def row_taken_before_its_time() -> Patches:
    """A row with a time of expiry is free at once."""
    return [(UniqueRow, "condition", lambda self: _condition(self) | Place("expires_s").exists())]


@plants(_EXPIRING, "OneRowEach")
def row_of_another_item_deleted() -> Patches:
    """A delete removes the row, whatever item has it by now."""
    return [(UniqueRow, "condition", lambda self: _anything() if self.to is None else _condition(self))]


@plants(_VALUES.but(workload="unique values, transactions"), "OneRowEach")
def rows_not_in_the_transaction() -> Patches:
    """A transaction writes its items alone."""
    return [(TransactionItems, "take_values", lambda self: None)]


@plants(_VALUES.but(workload="unique values, transactions"), "OneRowEach")
def swapped_rows_not_joined() -> Patches:
    """Of two items that want to change one row, the second one is forgotten."""

    def merged(several: Any) -> Any:
        rows: dict[str, UniqueRow] = {}
        for each in several:
            for row in _merged([each]):
                rows.setdefault(row.name, row)
        return list(rows.values())

    return [(items, "merged", merged), (native_transaction, "merged", merged)]
