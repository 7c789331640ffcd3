"""What this package asks of the world in other words than `threading` has."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from pynamo_locking._io.runtime import Runtime, brief_mutex


def _is_free(mutex: Any) -> bool:
    """Tell whether another thread may take it."""
    answers = list[bool]()
    other = threading.Thread(target=lambda: answers.append(mutex.acquire(blocking=False)))
    other.start()
    other.join()
    return answers[0]


@pytest.mark.parametrize(
    "make", [Runtime().exclusive, Runtime().mutex, Runtime().condition, brief_mutex], ids=lambda make: make.__name__
)
def test_an_interrupt_leaves_no_mutex_locked(make: Any) -> None:
    """It comes where a function of Python begins, and after the call of one of C: before, inside or after the block."""
    place, is_interrupted = 0, True
    while is_interrupted:
        place, left, mutex = place + 1, [place], make()

        def interrupt(_: Any, event: str, __: object, left: list[int] = left) -> None:
            if event in {"call", "c_return"}:
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        try:
            sys.setprofile(interrupt)
            with mutex:
                len("a step of the block")
            sys.setprofile(None)
            is_interrupted = False
        except KeyboardInterrupt:
            pass
        assert _is_free(mutex), f"at place {place}"
    assert place > 1
