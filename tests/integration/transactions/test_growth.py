"""What transactions take grows with what they write or return, and with nothing else.

``python -m benchmarks growth`` prints the same up to 10,000 items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from benchmarks import growth

if TYPE_CHECKING:
    from tests.engines.engine import Engine

#: By what is done: requests, write units and read units for each item, at most; and as many of each besides.
BOUNDS: Final = {
    "commit of n updates": (0.1, 2.1, 0.0, 8),
    "abort, refused by the last item": (0.1, 2.1, 0.1, 12),
    "sweep of n decided items": (0.1, 1.1, 1.1, 12),
    "get_all of n decided items": (0.1, 1.1, 2.1, 12),
    "tx.query(limit=1) of n rows": (0.0, 0.0, 0.0, 6),
    "overlapping(): 10 of n rows": (0.0, 0.0, 0.0, 2),
    "insert_disjoint() beside n rows": (0.0, 0.0, 0.0, 6),
}


@pytest.mark.parametrize("kind", growth.KINDS)
def test_growth(memory: Engine, kind: str) -> None:
    """A few items, and some more than a native transaction holds."""
    requests, written, read, constant = BOUNDS[kind]
    for n in (10, 120):
        counted = growth.count(memory, kind, n)
        assert counted["requests"] <= requests * n + constant, counted
        assert counted["write units"] <= written * n + constant, counted
        assert counted["read units"] <= read * n + constant, counted
