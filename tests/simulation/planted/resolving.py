"""Bugs in what `OutcomeUnknown.resolve` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.write_outcome import Outcome, resolve_by_id
from pynamo_locking._io import transaction_record
from pynamo_locking._writes import write
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants

if TYPE_CHECKING:
    from pynamo_locking._core.transactions import TransactionRecord

_LATE = {Fault.LATE: 2}


@plants(Plan("resolved writes", parties=4, rounds=2, faults=_LATE), "Truth", limit=400, first_seed=188)
def what_is_not_there_yet_told_as_never() -> Patches:
    """A write that an item does not show is called not applied, and nothing keeps its late copy out."""

    def told(*arguments: Any, **options: Any) -> Outcome:
        return resolve_by_id(*arguments, **options) or Outcome.REJECTED

    return [(write, "resolve_by_id", told)]


@plants(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)
def record_that_is_only_looked_for() -> Patches:
    """A transaction without a record is called not applied, and nothing takes the place of the record."""

    def look(table: Any, header: TransactionRecord) -> TransactionRecord:
        return transaction_record.read(table, header.id) or header

    return [(transaction_record, "give_up", look)]


@plants(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)
def key_that_is_only_looked_for() -> Patches:
    """A transaction without a key is called not applied, and its late copy finds the key free."""
    return [(transaction_record, "abandon", lambda table, row, _: transaction_record.key_holder(table, row))]
