"""The removal of entries that an interrupt does not stop: a thread completes it, or the end of the process."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from pynamo_locking._core.errors import LockingError
from pynamo_locking._io import lock_requests, retries, runtime
from pynamo_locking._io.retries import Refused, Unavailable, persistently
from pynamo_locking._locks import cohorts, mailboxes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._core.queue import QueueEntry
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.cohorts import Caller, Succession

logger = logging.getLogger("pynamo_locking")

#: Entries that a thread has been given to remove, by their ids.
_unfinished: dict[str, LockRow] = {}


def leave(row: LockRow, entry_id: str, caller: Caller | None = None, entry: QueueEntry | None = None) -> None:
    """Remove an entry, if it is there or may still arrive. Raises only interrupts, after which a thread goes on.

    An entry that is known is handed over to the next caller behind that leader of this process.
    """
    try:
        _remove(row, entry_id, caller, entry)
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
        image = persistently(lambda: lock_requests.release(row, entry_id, want_image=mailboxes.has_waiters(row)))
        mailboxes.tell_waiters(row, image or None)
    except (Refused, LockingError):  # it is not there, or DynamoDB refuses such requests for good
        pass
    except Unavailable as error:
        logger.warning("gave up releasing the lock %s; waiters wait until its lease ends: %s", row.label, error)
    except BaseException:
        logger.exception("removal from %s failed; waiters wait until the lease ends", row.label)
    finally:
        _unfinished.pop(entry_id, None)


def _remove(row: LockRow, entry_id: str, caller: Caller | None = None, entry: QueueEntry | None = None) -> None:
    with contextlib.suppress(Refused, Unavailable, LockingError):  # DynamoDB may refuse such requests for good
        mailboxes.tell_waiters(row, release(row, entry_id, caller, entry) or None)


def release(row: LockRow, entry_id: str, caller: Caller | None = None, entry: QueueEntry | None = None) -> Image | None:
    """Remove an entry, with more requests if the first is not answered; return the new image if waiters want it.

    An entry that is known is handed over to the next caller behind that leader of this process.

    Raises:
        Refused: it is not there; `repeated` covers earlier requests as well.
        Unavailable: no answer to the last request. A thread goes on: a busy partition refuses several requests in a
            row, and waiters would wait for the whole lease.
    """
    after = cohorts.succession(caller, entry)
    try:
        if after is not None and entry is not None:
            return _hand_over(row, entry, after, caller)
        return retries.patiently(lambda: lock_requests.release(row, entry_id, want_image=mailboxes.has_waiters(row)))
    except Unavailable as error:
        logger.warning("the release of the lock %s has no answer; a thread goes on with it: %s", row.label, error)
        leave_behind(row, entry_id)
        raise


def _hand_over(row: LockRow, entry: QueueEntry, after: Succession, caller: Caller | None) -> Image:
    try:
        image = retries.patiently(lambda: lock_requests.hand_over(row, entry, after.new, after.ticket))
    except Refused as refused:
        if refused.image is None or row.state(refused.image).find(after.new.id) is None:
            raise
        image = refused.image  # an earlier copy was applied
    cohorts.pass_on(caller, image)
    return image


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
