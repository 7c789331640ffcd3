"""Callbacks at the end of a transaction."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("pynamo_locking")


def call_all(callbacks: Sequence[Callable[[], object]], error: BaseException | None) -> None:
    """Call all callbacks in order, also if one raises.

    `error` is why the transaction has ended. The caller has to hear of it, so what a callback raises is only logged
    then.

    Raises:
        Exception: without such an error, what the last callback that failed has raised.
    """
    with contextlib.ExitStack() as stack:
        for callback in reversed(callbacks):
            if error is None:
                stack.callback(callback)
            else:
                stack.callback(_logging, callback, error)


def _logging(callback: Callable[[], object], error: BaseException) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback failed at the end of a transaction, after %s", type(error).__name__)
