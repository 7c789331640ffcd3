"""Bugs in what `OutcomeUnknown.resolve` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.write_outcome import Outcome
from pynamo_locking._io import transaction_record
from pynamo_locking._writes import write
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

if TYPE_CHECKING:
    from pynamo_locking._core.transactions import TransactionRecord

_LATE = {Fault.LATE: 2}


@plants(Plan("resolved writes", parties=4, rounds=2, faults=_LATE), "Truth", limit=400, first_seed=188)
@replaces(write, "resolve_by_id")
def what_is_not_there_yet_told_as_never(resolve_by_id: Any, *arguments: Any, **options: Any) -> Outcome:
    """A write that an item does not show is called not applied, and nothing keeps its late copy out."""
    return resolve_by_id(*arguments, **options) or Outcome.REJECTED


@plants(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)
@replaces(transaction_record, "give_up")
def record_that_is_only_looked_for(_original: Any, table: Any, record: TransactionRecord) -> TransactionRecord:
    """A transaction without a record is called not applied, and nothing takes the place of the record."""
    return transaction_record.read(table, record.id) or record


@plants(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)
def key_that_is_only_looked_for() -> Patches:
    """A transaction without a key is called not applied, and its late copy finds the key free."""
    return [(transaction_record, "abandon", lambda table, row, _: transaction_record.key_holder(table, row))]
