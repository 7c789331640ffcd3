"""The removal of entries that an interrupt does not stop: a thread ends it, or the end of the process."""

from __future__ import annotations

import contextlib
import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING

from pynamo_locking._io import local, requests, runtime
from pynamo_locking._io.requests import Refused, Unavailable
from pynamo_locking.exceptions import LockingError

if TYPE_CHECKING:
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row

logger = logging.getLogger("pynamo_locking")

#: Our entries in all queues.
held: weakref.WeakSet[OwnEntry] = weakref.WeakSet()

#: Entries that a thread has been given to remove, by their ids.
_unfinished: dict[str, Row] = {}


def leave(row: Row, entry_id: str) -> None:
    """Remove an entry, if it is there or may still arrive. Raises nothing but interrupts, after which a thread goes on.

    Args:
        row: the item that carries the lock.
        entry_id: of an entry that this process wrote, and does not need any more.
    """
    try:
        _remove(row, entry_id)
    except Exception:
        logger.exception("removal from %s failed; a thread goes on with it", row.label)
        leave_behind(row, entry_id)
    except BaseException:
        leave_behind(row, entry_id)
        raise


def leave_behind(row: Row, entry_id: str) -> None:
    """Let a thread remove an entry. Without a thread the end of the process does, or that of the lease."""
    _unfinished[entry_id] = row
    with contextlib.suppress(RuntimeError):
        runtime.current.spawn(partial(_finish, row, entry_id), name="pynamo-locking-leaving")


def _finish(row: Row, entry_id: str) -> None:
    try:
        _remove(row, entry_id)
    except BaseException:
        logger.exception("removal from %s failed; others wait until the lease is over", row.label)
    finally:
        _unfinished.pop(entry_id, None)


def _remove(row: Row, entry_id: str) -> None:
    try:
        image = requests.patiently(lambda: requests.release(row, entry_id, want_image=local.has_waiters(row)))
    except Unavailable as error:
        logger.warning("removal from %s not answered; its lease has to end by itself: %s", row.label, error)
    except (Refused, LockingError):  # it is not there, or DynamoDB takes no such requests of ours
        return
    else:
        local.tell_waiters(row, image or None)


def _leave_at_exit() -> None:
    """Remove what threads have not removed yet, and what the main thread holds. Other threads may still be at work.

    One request each, until one is not answered.
    """
    thread = runtime.current.party()[:2]
    mine = [own for own in tuple(held) if own.party[:2] == thread and not (own.ended or own.lost.is_set())]
    for own in mine:
        own.end(is_confirmed=False)  # or a renewal that comes too late would take it for lost
    for entry_id, row in {**_unfinished, **{own.entry.id: own.row for own in mine}}.items():
        try:
            requests.release(row, entry_id, want_image=False)
        except (Refused, LockingError):
            continue
        except Unavailable as error:
            logger.warning("the end of the process leaves an entry in %s: %s", row.label, error)
            return


runtime.after_fork(_unfinished.clear)
runtime.at_exit(_leave_at_exit)
