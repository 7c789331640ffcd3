"""Locks seen from outside: read a queue, list the locks of a table, break a lock."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from pynamodb.expressions.operand import Path

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.row_keys import text_of_ms
from pynamo_locking._io import client, event_stream, lock_record, lock_requests, runtime
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.model_doors import creates_item, lock_attribute_of, lock_table_of, own_keys_of
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place, Stored, known_format
from pynamo_locking._items import keys as item_keys
from pynamo_locking._items.keys import is_base_64, key_attributes
from pynamo_locking._locks import context, held_lock, local_queue
from pynamo_locking._pynamodb import connection_of, serialize_key
from pynamo_locking.exceptions import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.lock_queue import LockState, QueueEntry, RunRecord
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._locks.held_lock import Acquirer, HeldEntry


def with_tables(models: Iterable[type[Model]]) -> list[type[Model]]:
    """Return models, each once, and the tables of locks, transactions and unique values that their ``Meta`` names."""
    found: dict[type[Model], None] = {}
    for model in models:
        found[model] = None
        for name in ("lock_table", "transaction_table", "unique_table"):
            table = getattr(model.Meta, name, None)
            if isinstance(table, type):
                found[table] = None
    return list(found)


def keys_from_text(model: type[Model], texts: Sequence[str]) -> list[Any]:
    """Return the hash key, and the range key if there is a text for it; `ConfigurationError` if they are no key."""
    keys = key_attributes(model)
    if not 1 <= len(texts) <= len(keys):
        names = " and ".join([*(key.attr_name for key in keys), "no range key"][:2])
        raise ConfigurationError(f"the key of {model.__name__} is {names}: {len(texts)} values were given.")
    return [_from_text(key, text) for key, text in zip(keys, texts, strict=False)]


def _from_text(attribute: Attribute[Any], text: str) -> Any:
    try:
        if hasattr(attribute, "begin"):  # of ours: text names it as it is
            return text
        if attribute.attr_type != "B":
            return attribute.deserialize(text)
        decoded = base64.b64decode(text, validate=True)
        return attribute.deserialize(text.encode() if is_base_64(attribute) else decoded)
    except Exception as error:  # whatever an application's own attribute raises
        raise ConfigurationError(
            f"{text!r} is no {attribute.attr_name} ({type(attribute).__name__}): {error}"
        ) from error


_ATTEMPTS: Final = 4

#: What is shown of a lock, or of an entry.
Shown = dict[str, Any]


def listed(
    model: Any,
    prefix: str | None = None,
    *,
    only: Condition | None = None,
    with_free: bool = False,
    is_consistent: bool = True,
) -> Iterator[Shown]:
    """Yield the locks of a model's items, or of its table of locks, broken ones included.

    Args:
        model: whose locks.
        prefix: with which the names begin: hash keys that are strings, or the names of locks.
        only: what their rows must fulfil.
        with_free: also locks without a holder and a waiter.
        is_consistent: whether to see all that was written before; costs twice as much.

    Cost: a scan of the table that carries the locks.
    """
    is_inside = lock_attribute_of(model) is not None
    carrier = model if is_inside else lock_table_of(model)
    lock, names = lock_attribute_of(carrier).attr_name, [key.attr_name for key in item_keys.stored_keys(carrier)]
    condition, queue = Place(lock, lock_record.NEXT).exists(), Place(lock, lock_record.QUEUE)
    if not with_free:  # with a holder or a waiter, or without a queue, which is broken
        condition = (condition | queue.exists()) & ~(queue == Stored(lock_record.EMPTY))
    condition |= Place(lock, lock_record.TX).exists() | ~known_format(lock)
    if only is not None:
        condition &= only
    keys = own_keys_of(carrier) if creates_item(carrier) else None
    begin = prefix if is_inside else f"{quote(model.Meta.table_name, safe='')}/{quote(prefix or '', safe='')}"
    if begin:
        condition &= Path(names[:1]).startswith(begin if keys is None else keys.prefix + begin)
    for image in client.scan(carrier, condition, [*names, lock], is_consistent=is_consistent):
        key, own = {name: image[name] for name in names}, "" if keys is None else keys.name_in(image)
        if own is None:
            continue
        stored = [own] if keys is not None else [next(iter(value.values())) for value in key.values()]
        texts = _key_texts(model, stored, is_inside=is_inside)
        name = own or item_keys.name_of(model, key)
        yield shown(name, texts, lock_record.state_in(image, lock))


def _key_texts(model: Any, stored: Sequence[Any], *, is_inside: bool) -> list[str]:
    """Return the key of what is locked; nothing if it was too long for the name of its lock row."""
    attributes = item_keys.key_attributes(model)
    if not is_inside:
        parts = stored[0].split("/")[1:]
        attributes = [] if parts[0].startswith("#") else attributes
        stored = [
            unquote_to_bytes(part) if each.attr_type == "B" else unquote(part)
            for part, each in zip(parts, attributes, strict=False)
        ]
    return [item_keys.key_to_text(each, value) for each, value in zip(attributes, stored, strict=False)]


def shown(name: str, key: Sequence[str], state: LockState) -> Shown:
    """Return what is shown of a lock; `key` has the hash key and range key of the item in the form of commands."""
    intent, (hash_key, range_key) = state.intent, (*key, None, None)[:2]
    return {
        "name": name,
        "key": {"hash": hash_key, "range": range_key},
        "is_free": not state.entries and intent is None and not state.unreadable,
        "holders": [_shown_entry(entry, entry.held_for) for entry in state.holders],
        "waiters": [_shown_entry(entry) for entry in state.waiters],
        "next_ticket": state.next_ticket or None,
        "broken_tickets": sorted(state.evicted.values()),
        "last_success": None if state.success is None else shown_success(state.success),
        "transaction": None if intent is None else {"id": intent.id, "table": intent.table, "operation": intent.op},
        "unreadable": state.unreadable or None,
        "format": lock_record.shown_format(state.raw),
    }


def shown_success(success: RunRecord) -> Shown:
    """Return what is shown of a successful run."""
    return {
        "ticket": success.ticket,
        "owner": success.owner,
        "period_began_at": text_of_ms(success.period_ms),
        "began_at": text_of_ms(success.began_ms),
        "ended_at": text_of_ms(success.ended_ms),
    }


def _shown_entry(entry: QueueEntry, held_s: float | None = None) -> Shown:
    lock_mode = entry.lock_mode
    return {
        "ticket": entry.ticket,
        "callers": entry.callers,
        "is_detached": entry.is_detached,
        "owner": entry.owner,
        "mode": entry.mode,
        "permits": lock_mode.permits,
        "range_lower": None if lock_mode.lower is None else item_keys.text_of(lock_mode.lower[1]),
        "range_upper": None if lock_mode.upper is None else item_keys.text_of(lock_mode.upper[1]),
        "entered_at": text_of_ms(entry.entered_ms),
        "queued_s": entry.queued_for,
        "held_s": held_s,
        "lease_s": entry.lease,
        "renewals": entry.heartbeats,
        "guarded_writes": entry.writes,
        "since_renewal_s": entry.age,
        "lease_left_s": (entry.until_ms - entry.read_ms) / 1000,
        "lease_ends_at": text_of_ms(entry.until_ms),
    }


def entries(lock: Shown) -> list[tuple[str, Shown]]:
    """Return the holders of a shown lock, then its waiters, each after ``"holds"`` or ``"waits"``."""
    return [("holds", each) for each in lock["holders"]] + [("waits", each) for each in lock["waiters"]]


def shown_role(role: str, entry: Mapping[str, Any]) -> str:
    """Return what an entry does, as people read it: one whose lease has ended holds or waits no more, it is dead."""
    return {"holds": "dead holder", "waits": "dead waiter"}[role] if entry["lease_left_s"] < 0 else role


def lasted(entry: Mapping[str, Any]) -> float:
    """Return for how many seconds a shown entry has held the lock, or has waited."""
    seconds: float = entry["queued_s"] if entry["held_s"] is None else entry["held_s"]
    return seconds


def shown_lock_mode(entry: Mapping[str, Any]) -> str:
    """Return what a shown entry asks for: the mode or the permits, and the range."""
    what, lower, upper = entry["mode"], entry["range_lower"], entry["range_upper"]
    what = what if entry["permits"] == 1 else f"permits={entry['permits']}"
    return what if lower is None and upper is None else f"{what} [{lower or '...'}, {upper or '...'})"


def has_item(model: Any, hash_key: Any, range_key: Any) -> bool:
    """Tell whether there is an item to lock; a lock on a name needs none. Cost: 1 consistent read, but for names."""
    if creates_item(model):
        return True
    key = serialize_key(model, hash_key, range_key)
    names = [item_keys.stored_keys(model)[0].attr_name]
    found = connection_of(model).get_item(*key, consistent_read=True, attributes_to_get=names)
    return "Item" in found


def state(row: LockRow) -> LockState:
    """Read the lock document, which may be broken."""
    try:
        return client.patiently(lambda: lock_requests.read_document(row))
    except Unavailable as error:
        raise LockingError(f"no answer to a look at {row.label}: {error}. Try again.", cause=error.cause) from error


def break_entry(row: LockRow, ticket: int) -> bool:
    """Remove the entry with that ticket; return whether it was there."""
    since = 0
    for _ in range(_ATTEMPTS):
        now = lock_record.trusted(row, state(row))
        found = tuple(entry for entry in now.entries if entry.ticket == ticket)
        if not found:  # perhaps our first copy removed it, and its answer was lost
            return now.was_evicted(ticket, since) is True
        since = now.since
        try:
            client.patiently(lambda found=found, now=now: lock_requests.evict(row, found, now.evicted))  # type: ignore[misc]
        except Refused:
            continue  # it was renewed, or left, between the read and the removal
        except Unavailable as error:
            raise OutcomeUnknown(
                f"no answer to the removal of ticket {ticket} from {row.label}; look at its state.",
                cause=error.cause,
            ) from error
        event_stream.evicted(row, found, is_forced=True)
        _let_callers_go_on(found)
        return True
    raise OutcomeUnknown(f"ticket {ticket} of {row.label} was renewed faster than it could be removed; try again.")


def _let_callers_go_on(broken: tuple[QueueEntry, ...]) -> None:
    """Let the callers of this process behind a broken lock enter the queue again, before its heartbeat learns of it."""
    ids = {entry.id for entry in broken}
    for each in runtime.living(held_lock.all_held):
        if each.entry.id in ids:
            local_queue.let_next_lead(each.caller)


def held_by_this_thread() -> list[HeldEntry]:
    """Return the entries that this thread, or its tasks, have acquired in whichever context."""
    me = runtime.current.thread_or_task()[:2]
    every = runtime.living(held_lock.all_held)
    return [each for each in every if each.ownership.is_held and each.thread_or_task[:2] == me]


class Acquisitions(NamedTuple):
    """How many times an entry was acquired, in all and by each Lock object that is still there."""

    times: int
    by_handle: dict[Acquirer, int]


#: The entries that a context holds.
Held = dict["HeldEntry", Acquisitions]


def held() -> Held:
    parts = context.held_by_context.get().values()
    return {each: _acquisitions(each) for part in parts for each in part if not each.ownership.is_over}


def _acquisitions(held: HeldEntry) -> Acquisitions:
    by_handle = {each: each.depth for each in runtime.living(held.handles) if each.entry is held}
    return Acquisitions(held.depth, by_handle)


def release_all_since(before: Held, work: str) -> None:
    """Release what this context has acquired since and not released, and log `work`. Never raises."""
    for entry, now in held().items():
        outer = before.get(entry, Acquisitions(0, {}))
        if now.times > outer.times:
            logger.warning("%s was still held at the end of %s; it is released now", entry, work)
            _give_back(entry, outer)


def _give_back(held: HeldEntry, outer: Acquisitions) -> None:
    """Take back all acquisitions but those of outer blocks."""
    with held.counting:
        for handle, depth in _acquisitions(held).by_handle.items():
            handle.depth = min(depth, outer.by_handle.get(handle, 0))
        held.depth = min(held.depth, outer.times)
        is_last = held.depth == 0
    if is_last:  # else an outer block holds it as well
        context.remove(held)
        try:
            held.release()
        except LockingError as error:
            logger.warning("the release of %s failed: %s", held, error)
