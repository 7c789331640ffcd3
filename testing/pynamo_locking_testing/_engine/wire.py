"""What goes over the network: requests, and what they change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.values import Refusal
from pynamo_locking._io import lock_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pynamo_locking_testing._engine.scheduler import Actor
    from pynamo_locking_testing._tables import Store

Image = dict[str, Any]

_REQUESTS: Final = vars(lock_requests)

#: What all of the lock's own requests are sent with.
_SENDERS: Final = frozenset({"ask"})


class Place(NamedTuple):
    """An item: its table, and its key."""

    table: str
    key: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.table}/{'/'.join(map(str, self.key))}"


class Change(NamedTuple):
    """One accepted write of one item."""

    place: Place
    before: Image | None
    after: Image | None


class Request(NamedTuple):
    """A request, and on whose behalf it was made.

    Attributes:
        operation: what DynamoDB is asked for; "TTL" if it deletes an expired item by itself.
        kwargs: its arguments.
        actor: who asks; None before the run, and for "TTL".
        purpose: the operation of the workload, if it is part of one.
        places: the items that it is about.
        step: the function of the lock's own requests that makes it, as ``enter`` or ``renew``; "" for any other.
    """

    operation: str
    kwargs: dict[str, Any]
    actor: Actor | None
    purpose: Any
    places: tuple[Place, ...]
    step: str

    def __str__(self) -> str:
        return f"{self.operation} {', '.join(map(str, self.places))}"


def places_of(store: Store, kwargs: dict[str, Any]) -> tuple[Place, ...]:
    """Return which items a request is about; none if it is not well formed, which DynamoDB itself will say."""
    try:
        return tuple(_places_of(store, kwargs))
    except Refusal:
        return ()


def _places_of(store: Store, kwargs: dict[str, Any]) -> Iterator[Place]:
    for action in _actions_of(kwargs):
        table = store.table(action["TableName"])
        if "Item" in action:
            yield Place(table.name, table.key_of_item(action["Item"]))
        elif "Key" in action:
            yield Place(table.name, table.read_key(action["Key"])[0])


def _actions_of(kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "TransactItems" in kwargs:
        yield from (next(iter(action.values())) for action in kwargs["TransactItems"])
    elif "RequestItems" in kwargs:
        for table, asked in kwargs["RequestItems"].items():
            if isinstance(asked, dict):
                of_table = [{"Key": key} for key in asked["Keys"]]
            else:
                of_table = [next(iter(action.values())) for action in asked]
            yield from ({"TableName": table, **action} for action in of_table)
    else:
        yield kwargs


def step_of_lock() -> str:
    """Return which of the lock's own requests is being made, by the caller of the caller of this."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_globals is _REQUESTS and name not in _SENDERS and not name.startswith(("_", "<")):
            return name
        frame = frame.f_back
    return ""
