"""For tests of intervals: their tables in memory, what is sent, and other parties in between."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking_testing import VirtualClock
from tests.support.interval_models import Booking, Lease, Slot, SlotLocks, SlotTransactions
from tests.support.parties import in_thread
from tests.support.wire import Forward, on, tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine


@pytest.fixture
def in_memory(memory: Engine) -> Iterator[VirtualClock]:
    """The tables, in virtual time: what happens in between, happens in requests."""
    memory.bind(Slot, Booking, Lease, SlotLocks, SlotTransactions)
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """The operations that are sent from here on."""
    operations = list[str]()

    def note(_endpoint: object, _request: object, operation: str, forward: Forward) -> Any:
        operations.append(operation)
        return forward()

    with tapped(note, outermost=True):
        yield operations


@contextmanager
def others_before(operation: str, act: Callable[[], object], *, nth: int = 1, times: int = 1) -> Iterator[Any]:
    """Let another party act right before some requests of that kind, and not before its own; yield those."""
    is_acting = []

    def other() -> None:
        is_acting.append(True)
        in_thread(act)
        is_acting.clear()

    with on(operation, where=lambda _: not is_acting, nth=nth, times=times).before(other) as hits:
        yield hits


@contextmanager
def shown_until_it_is_settled(model: Any, old: dict[str, Any], *keys: str) -> Iterator[None]:
    """Put a row back that was deleted; the delete arrives right before the row is read in a transaction."""
    send, place = model._get_connection().connection.dispatch, {"TableName": model.Meta.table_name}
    key = {name: old[name] for name in keys}
    send("PutItem", {**place, "Item": old})

    def is_asked_for(body: dict[str, Any]) -> bool:
        return key in [each["Get"]["Key"] for each in body["TransactItems"]]

    with on("TransactGetItems", where=is_asked_for).before(lambda: send("DeleteItem", {**place, "Key": key})):
        yield
