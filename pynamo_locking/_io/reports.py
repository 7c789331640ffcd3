"""Events of evictions and of recovered transactions. An event never replaces the error of what it is about."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from typing_extensions import ParamSpec

from pynamo_locking._core import events
from pynamo_locking._io import runtime
from pynamo_locking._io.event_stream import clocks, emit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking._core.queue import QueueEntry
    from pynamo_locking._core.transaction import Header
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow

_P = ParamSpec("_P")
logger = logging.getLogger("pynamo_locking")


def harmless(tell: Callable[_P, None]) -> Callable[_P, None]:
    @functools.wraps(tell)
    def telling(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            logger.exception("an event could not be told")

    return telling


def about_lock(row: LockRow, owner: str, entry_id: str, ticket: int | None) -> dict[str, Any]:
    return {
        **clocks(),
        "name": row.name,
        "table": row.table,
        "model": row.model,
        "owner": owner,
        "entry_id": entry_id,
        "ticket": ticket,
    }


@harmless
def evicted(row: LockRow, entries: Sequence[QueueEntry], *, is_forced: bool = False) -> None:
    for entry in entries:
        emit(
            events.Evicted(
                **about_lock(row, entry.owner, entry.id, entry.ticket),
                by=runtime.current.owner(),
                lease_ms=entry.lease_ms,
                is_forced=is_forced,
                queued_ms=entry.queued_for * 1000,
            )
        )


@harmless
def recovered(
    header_table: HeaderTable, header: Header | None, transaction_id: str, *, outcome: str, by: str, reason: str = ""
) -> None:
    """Report what we did about another party's transaction."""
    emit(
        events.TransactionRecovered(
            **clocks(),
            transaction_id=transaction_id,
            owner="" if header is None else header.owner,
            table=header_table.table,
            outcome=outcome,
            by=by,
            reason=reason,
        )
    )
