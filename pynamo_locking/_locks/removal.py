"""The removal of entries that an interrupt does not stop: a thread completes it, or the end of the process."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from pynamo_locking._core.errors import LockingError
from pynamo_locking._io import lock_requests, retries, runtime
from pynamo_locking._io.retries import Refused, Unavailable
from pynamo_locking._locks import mailboxes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image

logger = logging.getLogger("pynamo_locking")

#: Entries that a thread has been given to remove, by their ids.
_unfinished: dict[str, LockRow] = {}


def leave(row: LockRow, entry_id: str) -> None:
    """Remove an entry, if it is there or may still arrive. Raises only interrupts, after which a thread goes on."""
    try:
        _remove(row, entry_id)
    except Exception:
        logger.exception("removal from %s failed; a thread goes on with it", row.label)
        leave_behind(row, entry_id)
    except BaseException:
        leave_behind(row, entry_id)
        raise


def leave_behind(row: LockRow, entry_id: str) -> None:
    """Let a thread remove an entry. Without a thread it stays until the process or its lease ends."""
    _unfinished[entry_id] = row
    with contextlib.suppress(RuntimeError):
        runtime.current.spawn(partial(_finish, row, entry_id), name="pynamo-locking-leaving")


def _finish(row: LockRow, entry_id: str) -> None:
    try:
        _remove(row, entry_id)
    except BaseException:
        logger.exception("removal from %s failed; waiters wait until the lease ends", row.label)
    finally:
        _unfinished.pop(entry_id, None)


def _remove(row: LockRow, entry_id: str) -> None:
    with contextlib.suppress(Refused, Unavailable, LockingError):  # DynamoDB may refuse such requests for good
        mailboxes.tell_waiters(row, release(row, entry_id) or None)


def release(row: LockRow, entry_id: str) -> Image | None:
    """Remove an entry, with more requests if the first is not answered; return the new image if waiters want it.

    Raises:
        Refused: it is not there; `repeated` covers earlier requests as well.
        Unavailable: no answer to the last request.
    """
    try:
        return retries.patiently(lambda: lock_requests.release(row, entry_id, want_image=mailboxes.has_waiters(row)))
    except Unavailable as error:
        logger.warning("gave up releasing the lock %s; waiters wait until its lease ends: %s", row.label, error)
        raise


def leave_at_exit(held: Mapping[str, LockRow]) -> None:
    """Remove these, and what threads have not removed yet: one request each, until one is not answered."""
    for entry_id, row in {**_unfinished, **held}.items():
        try:
            lock_requests.release(row, entry_id, want_image=False)
        except (Refused, LockingError):
            continue
        except Unavailable as error:
            logger.warning("the end of the process leaves an entry in %s: %s", row.label, error)
            return


runtime.after_fork(_unfinished.clear)
