"""For tests of intervals: their tables in memory, what is sent, and other parties in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.connection import Connection

from pynamo_locking._io import runtime
from tests.support.interval_models import Booking, Lease, Slot, SlotLocks, SlotTransactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


@pytest.fixture
def in_memory(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables, and no call sleeps: what happens in between, happens in requests."""
    monkeypatch.setattr(runtime.current, "sleep", lambda _: None)
    memory.bind(Slot, Booking, Lease, SlotLocks, SlotTransactions)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that are sent from here on."""
    operations = list[str]()

    def note(send: Callable[[], Any], name: str, _: dict[str, Any]) -> Any:
        operations.append(name)
        return send()

    tap(monkeypatch, note)
    return operations


def tap(monkeypatch: pytest.MonkeyPatch, see: Callable[[Callable[[], Any], str, Any], Any]) -> None:
    """Let a function answer each request from here on: it is given what sends it, its name, and its arguments."""
    original = Connection.dispatch

    def dispatch(connection: Connection, name: str, kwargs: dict[str, Any], *arguments: Any) -> Any:
        return see(lambda: original(connection, name, kwargs, *arguments), name, kwargs)

    monkeypatch.setattr(Connection, "dispatch", dispatch)


def show_until_it_is_settled(monkeypatch: pytest.MonkeyPatch, model: Any, old: dict[str, Any], *keys: str) -> None:
    """Put a row back that was deleted; the delete arrives right before the row is read in a transaction."""
    connection, place = model._get_connection().connection, {"TableName": model.Meta.table_name}
    key = {name: old[name] for name in keys}
    connection.dispatch("PutItem", {**place, "Item": old})
    send_now = Connection.dispatch

    def delete(send: Callable[[], Any], name: str, kwargs: dict[str, Any]) -> Any:
        if name == "TransactGetItems" and key in [each["Get"]["Key"] for each in kwargs["TransactItems"]]:
            send_now(connection, "DeleteItem", {**place, "Key": key})
        return send()

    tap(monkeypatch, delete)
