"""Bugs of locks that are detached and attached: which entry a token stands for, and what attaching it ends."""

from __future__ import annotations

from typing import Any

from pynamo_locking._io import lock_requests, protocol, runtime
from pynamo_locking._io.client import Refused
from pynamo_locking._io.protocol import Clause
from pynamo_locking._locks.detach import Attachment
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

_PASSING = Plan("passing", parties=3, processes=3, rounds=2)


@plants(_PASSING, "Passing")
def an_old_token_is_attached() -> Patches:
    """The entry with the ticket counts, whatever token it was stored for."""

    def move(row: Any, entry_id: str, ticket: int, new: Any, token_id: str = "") -> Any:
        try:
            return real(row, entry_id, ticket, new, token_id)
        except Refused as refused:
            entries = row.state(refused.image).entries
            entry = next((entry for entry in entries if entry.ticket == ticket), None)
            if entry is None or not token_id or entry.id == new.id:
                raise
            return real(row, entry.id, ticket, new, token_id)

    real = lock_requests.move
    return [(lock_requests, "move", move), (protocol, "OF_TOKEN", Clause())]


@plants(_PASSING, "Growing", "Fence", "NothingLost", "Truth")
@replaces(Attachment, "_enter")
def two_processes_attach_one_entry(enter: Any, attempt: Any) -> Any:
    """Who attaches a token goes on with the entry as it is, so nothing fences who has attached it before."""
    image = lock_requests.read(attempt._row, consistent=True)
    entries = attempt._row.state(image).entries
    entry = next((entry for entry in entries if entry.token_id == attempt._token.id), None)
    if image is None or entry is None:
        return (yield from enter(attempt))
    attempt._new, attempt._started = attempt._new._replace(id=entry.id), runtime.current.monotonic()
    return image
