"""For tests of models: no batch has been refused before, and what others use: no pauses, TTL, ends of threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking._io import batch_requests
from tests.support.parties import without_pauses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _nothing_is_refused_yet() -> Iterator[None]:
    """Not by `monkeypatch`, which would begin before the engine here, and undo what a test does to a model last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_requests, "_off_until_s", {})
        yield


@pytest.fixture
def no_pauses() -> Iterator[None]:
    with without_pauses():
        yield


def join_batch_workers() -> None:
    """Wait for what the workers of an interrupted batch still write."""
    for thread in threading.enumerate():
        if thread.name == "pynamo-locking-batch":
            thread.join()


def ttl(engine: Engine, model: Any) -> str | None:
    """By which attribute DynamoDB deletes items of the model's table."""
    found = engine.client().describe_time_to_live(TableName=model.Meta.table_name)["TimeToLiveDescription"]
    return found.get("AttributeName") if found["TimeToLiveStatus"] in ("ENABLED", "ENABLING") else None


def enable_ttl(engine: Engine, model: Any, attribute: str) -> None:
    """Let DynamoDB delete items by that attribute."""
    specification = {"Enabled": True, "AttributeName": attribute}
    engine.client().update_time_to_live(TableName=model.Meta.table_name, TimeToLiveSpecification=specification)
