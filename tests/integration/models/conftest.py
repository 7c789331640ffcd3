"""For tests of models: no batch has been refused before, and no pause is made between attempts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from pynamo_locking._io import batch_requests
from tests.support.parties import without_pauses

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_is_refused_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_requests, "_refused", set())


@pytest.fixture
def no_pauses() -> Iterator[None]:
    with without_pauses():
        yield


def join_batch_workers() -> None:
    """Wait for what the workers of an interrupted batch still write."""
    for thread in threading.enumerate():
        if thread.name == "pynamo-locking-batch":
            thread.join()
