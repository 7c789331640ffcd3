"""What becomes of a write is decided here, and not by the engine: one is enough.

The exceptions ask for `concurrent_engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engines.engine import Engine


@pytest.fixture
def engine(memory: Engine) -> Engine:
    """The one in memory."""
    return memory


@pytest.fixture
def cheap(memory: Engine) -> Engine:
    """The same."""
    return memory
