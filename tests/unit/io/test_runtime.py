"""What this package asks of the world in other words than `threading` has."""

from __future__ import annotations

import sys
from typing import Any

from pynamo_locking._io.runtime import Runtime


def test_no_function_of_python_runs_where_a_condition_is_locked() -> None:
    """An interrupt comes where such a function begins or ends: after the lock was taken, and before the block."""
    condition, called = Runtime().condition(), list[str]()

    def note(frame: Any, event: str, _: object) -> None:
        if event in {"call", "return"}:
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    with condition:
        pass
    sys.setprofile(None)
    assert called == []
    assert condition.acquire(blocking=False), "the block has not left it"
