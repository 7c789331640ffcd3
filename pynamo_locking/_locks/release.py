"""How entries leave the queue: released, handed over, or evicted. An interrupt does not stop it."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.lock_queue import EVICT_AT_ONCE, dead_among
from pynamo_locking._core.row_keys import plain
from pynamo_locking._io import client, event_stream, lock_requests, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable, persistently
from pynamo_locking._io.runtime import logger
from pynamo_locking._locks import local_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._core.lock_queue import LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.local_queue import Handover, LocalWaiter


def evict_all(row: LockRow, state: LockState, model: type[Any]) -> bool:
    """Empty a queue in which all entries are dead; False if one may be alive."""
    settings = model.lock_settings()
    while state.entries:
        now_ms, image = runtime.current.time_ms(), None
        dead = dead_among(state.entries, {}, 0.0, now_ms, settings.max_clock_skew, settings.max_lease)
        if len(dead) == len(state.entries):
            with contextlib.suppress(client.Unavailable):
                image = evict_dead(row, dead, state)
        if image is None:
            return False
        state = row.state(image)
    return True


def evict_dead(row: LockRow, dead: tuple[QueueEntry, ...], state: LockState) -> Image | None:
    """Remove dead entries of a document, up to `EVICT_AT_ONCE`; return the new image.

    None: nothing was removed, because the document has changed; perhaps an entry was renewed.
    """
    dead = dead[:EVICT_AT_ONCE]
    if not event_stream.is_logged("Evicted"):
        named = ", ".join(f"ticket {entry.ticket} of {plain(entry.owner)} (lease {entry.lease:g} s)" for entry in dead)
        logger.warning("evicting from the lock %s, as not renewed for a whole lease: %s", row.label, named)
    try:
        image = lock_requests.evict(row, dead, state.evicted)
    except Refused:
        return None
    event_stream.evicted(row, dead)
    return image


#: Entries that a thread has been given to remove, by their ids.
_unfinished: dict[str, LockRow] = {}


def remove_entry(
    row: LockRow, entry_id: str, caller: LocalWaiter | None = None, entry: QueueEntry | None = None
) -> None:
    """Remove an entry, if it is there or may still arrive. Raises only interrupts, after which a thread continues.

    An entry that is known is handed over to the next caller behind that leader of this process.
    """
    try:
        wakeups.tell_waiters(row, release(row, entry_id, caller, entry) or None)
    except (Refused, Unavailable, LockingError):  # not there; a thread goes on; or refused for good
        pass
    except Exception:
        logger.exception("removal from %s failed; a thread goes on with it", row.label)
        remove_entry_later(row, entry_id)
    except BaseException:
        remove_entry_later(row, entry_id)
        raise


def remove_entry_later(row: LockRow, *entry_ids: str) -> None:
    """Let a thread remove an entry, or several one by one. Without a thread they stay until the process ends."""
    _unfinished.update(dict.fromkeys(entry_ids, row))
    with contextlib.suppress(RuntimeError):
        runtime.current.spawn(partial(_remove_persistently, row, entry_ids), name="pynamo-locking-leaving")


def _remove_persistently(row: LockRow, entry_ids: tuple[str, ...]) -> None:
    for entry_id in entry_ids:
        request = partial(_release, row, entry_id)
        try:
            wakeups.tell_waiters(row, persistently(request) or None)
        except (Refused, LockingError):  # it is not there, or DynamoDB refuses such requests for good
            pass
        except Unavailable as error:
            logger.warning("gave up releasing the lock %s; waiters wait until its lease ends: %s", row.label, error)
        except BaseException:
            logger.exception("removal from %s failed; waiters wait until the lease ends", row.label)
        finally:
            _unfinished.pop(entry_id, None)


def _release(row: LockRow, entry_id: str) -> Image | None:
    """Send one request that removes an entry; its response has the new image if waiters want that."""
    return lock_requests.release(row, entry_id, want_image=wakeups.has_waiters(row))


def release(
    row: LockRow, entry_id: str, caller: LocalWaiter | None = None, entry: QueueEntry | None = None
) -> Image | None:
    """Remove an entry, with more requests if the first is not answered; return the new image if waiters want it.

    An entry that is known is handed over to the next caller behind that leader of this process.

    Raises:
        Refused: it is not there; `repeated` covers earlier requests as well.
        Unavailable: no response to the last request. A thread continues: a busy partition refuses several requests in a
            row, and waiters would wait for the whole lease.
    """
    after = local_queue.handover_to_next(caller, entry)
    try:
        if after is not None and entry is not None:
            return _hand_over(row, entry, after, caller)
        return client.patiently(partial(_release, row, entry_id))
    except Unavailable as error:
        logger.warning("the release of the lock %s has no answer; a thread goes on with it: %s", row.label, error)
        remove_entry_later(row, entry_id)
        raise


def _hand_over(row: LockRow, entry: QueueEntry, after: Handover, caller: LocalWaiter | None) -> Image:
    try:
        image = client.patiently(lambda: lock_requests.hand_over(row, entry, after.new, after.ticket))
    except Refused as refused:
        if refused.image is None or row.state(refused.image).find(after.new.id) is None:
            raise
        image = refused.image  # an earlier copy was applied
    local_queue.let_next_lead(caller, image)
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
