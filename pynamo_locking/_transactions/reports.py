"""Events of transactions."""

from __future__ import annotations

from pynamo_locking._core import events
from pynamo_locking._io.event_stream import clocks, emit
from pynamo_locking._io.reports import harmless
from pynamo_locking._locks.reports import ms_since
from pynamo_locking._writes.reports import name_of_error


@harmless
def transaction_ended(
    transaction_id: str,
    owner: str,
    *,
    began_s: float,
    items: int,
    path: str,
    is_committed: bool,
    is_repeated: bool,
    error: BaseException | None,
) -> None:
    """Report the end of a transaction."""
    about = {
        **clocks(),
        "transaction_id": transaction_id,
        "owner": owner,
        "lasted_ms": ms_since(began_s),
        "items": items,
        "path": path,
    }
    if is_committed:
        emit(events.TransactionCommitted(**about, is_repeated=is_repeated))
    else:
        emit(events.TransactionRolledBack(**about, error="" if error is None else name_of_error(error)))
