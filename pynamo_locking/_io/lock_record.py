"""The lock record: the item that carries the queue, and its stored form."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.dynamodb import MOST_WAITERS
from pynamo_locking._core.lease import IDLE_TTL_S, lease_end_s
from pynamo_locking._core.lock_modes import EXCLUSIVE, SHARED, WHOLE, Bound, LockMode, front
from pynamo_locking._core.lock_queue import FREE, ITEM_WITHOUT_LOCK, LockState, QueueEntry, RunRecord, WriteIntent
from pynamo_locking._core.row_keys import LONGEST_OWNER, brief, cut, row_name, text_of_ms
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import account_of, endpoint_to, own_keys_of
from pynamo_locking._io.stored_rows import (
    FORMAT,
    FORMAT_NAME,
    INTEGER,
    MAP,
    TEXT,
    TEXTS,
    UNREADABLE,
    Codec,
    Field,
    Image,
    Kind,
    StoredRow,
    flaw,
    format_of,
    number,
    one_of,
    whole_within,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamodb.connection import Connection
    from pynamodb.models import Model


#: What to do about a broken lock document.
_ADVICE: Final = (
    "The lock cannot be used, nor what it guards be written. Set that attribute of the item to an empty map by hand, "
    "when no process uses the lock: the next one that acquires it stores a new one."
)


def trusted(row: LockRow, state: LockState) -> LockState:
    """Return the lock document of a row, to act upon it.

    Raises:
        UnknownFormat: a newer release has stored it, or the intent in it.
        CorruptRow: it cannot be read.
    """
    if not state.unreadable:
        return state
    what = f"the lock in the attribute {row.attribute!r} of {row.label}"
    stored, found = StoredRow(what, row.table, row.key, _ADVICE), shown_format(state.raw)
    if found is not None and found > FORMAT:
        raise stored.unknown_format(found)
    raise stored.corrupt(state.unreadable)


def shown_format(raw: Mapping[str, Any] | None) -> int | None:
    """Return the newest format in a lock document: of it, or of the intent. None: there is none, or it is no number."""
    with suppress(*UNREADABLE):
        return max(format_of(raw), format_of(raw[TX]["M"]) if TX in raw else 1) if raw else None
    return None


NEXT = "next"
SINCE = "since"
QUEUE = "queue"
EVICTED = "evicted"
TX = "tx"

# An entry is a list: its ticket, and a map of these. Short, since each is stored once for each waiter.
TICKET = 0
FACTS = 1
OWNER = "o"
MODE = "m"
LEASE = "l"
BEAT = "b"
ENTERED = "e"
RENEWED = "r"  # in ms after it entered, as is the next
GRANTED = "g"
WRITES = "w"
CALLERS = "n"
PERMITS = "p"
DETACHED = "d"
LOWER = "lo"
UPPER = "hi"

# The last successful run of a job.
SUCCESS = "success"
KEPT = "kept_s"  # for how long after a lease the row is kept, for the sake of this

# The intent of a transaction.
TX_ID = "id"
INTENT = "intent"
PLACEHOLDER = "ghost"

#: The largest ticket: tickets begin at the time in µs, and DynamoDB has 38 digits.
_MOST_TICKETS: Final = 10**30

#: By so many bytes an entry grows at most: by renewals, the grant, 10^10 writes and renewals, a downgrade, and what
#: stands in its place if it is handed over, or detached and attached. The label of its owner comes on top.
GROWTH: Final = 80

#: The attribute of a lock row in which people read when the lease ends that was taken or renewed last.
LEASE_ENDS: Final = "lease_ends"

#: The attribute of a lock that was never taken, in a row that is there for locks alone.
EMPTY: Final[dict[str, Any]] = {"M": {}}

#: The same, stored by a program that writes attributes without a value.
NULL: Final[dict[str, Any]] = {"NULL": True}


def _bound_in(stored: Mapping[str, Any]) -> Bound:
    bound: Bound = next(iter(stored.items()))
    if bound[0] not in ("N", "S", "B"):
        raise ValueError(bound)
    return bound


_LABEL: Final = Kind(TEXT.stored, lambda stored: cut(stored["S"]))
_TICKET: Final = whole_within(1, _MOST_TICKETS)
_BOUND: Final = Kind(lambda bound: dict([bound]), _bound_in)

LOCK_MODE: Final = Codec(
    LockMode,
    mode=Field(MODE, one_of(EXCLUSIVE, SHARED), EXCLUSIVE),
    permits=Field(PERMITS, whole_within(1), 1),
    lower=Field(LOWER, _BOUND, None),
    upper=Field(UPPER, _BOUND, None),
)
_LOCK_MODE_NAMES: Final = {MODE, PERMITS, LOWER, UPPER}
#: Fields of an entry apart from its mode. A field that a condition compares is always stored.
_FACTS: Final[Codec[dict[str, Any]]] = Codec(
    dict,
    entered_ms=Field(ENTERED, INTEGER),
    lease_ms=Field(LEASE, INTEGER, 60_000),
    renewed_ms=Field(RENEWED, INTEGER, 0),
    granted_ms=Field(GRANTED, INTEGER, None),
    owner=Field(OWNER, _LABEL),
    heartbeats=Field(BEAT, INTEGER),
    writes=Field(WRITES, INTEGER),
    callers=Field(CALLERS, whole_within(1, MOST_WAITERS), 1),
    token_id=Field(DETACHED, TEXT, ""),
)
_SUCCESS: Final = Codec(
    RunRecord,
    ticket=Field("ticket", _TICKET),
    owner=Field("owner", _LABEL),
    period_ms=Field("period_ms", INTEGER),
    began_ms=Field("began_ms", INTEGER),
    ended_ms=Field("ended_ms", INTEGER),
)
_INTENT: Final[Codec[dict[str, Any]]] = Codec(dict, id=Field(TX_ID, TEXT), table=Field("table", TEXT))
_CHANGES: Final[Codec[dict[str, Any]]] = Codec(dict, set=Field("set", MAP, {}), remove=Field("remove", TEXTS, ()))
_INTENT_CHANGE: Final[Codec[dict[str, Any]]] = Codec(
    dict,
    op=Field("op", one_of("save", "delete", "keep")),
    is_placeholder=Field(PLACEHOLDER, Kind(lambda _: {"BOOL": True}, lambda _: True), unless=False),
    changes_row=Field("spill", TEXT, ""),
)


def growth(entry: QueueEntry) -> int:
    """Return by how many bytes an entry grows at most. It can be handed over, or detached, unless it is of a range."""
    return GROWTH + (0 if entry.lock_mode.is_ranged else LONGEST_OWNER - len(entry.owner.encode()))


def new_entry(
    owner: str,
    lock_mode: LockMode,
    lease: float,
    now_ms: int,
    callers: int = 1,
    ticket: int | None = None,
    *,
    token_id: str = "",
) -> dict[str, Any]:
    """Return a new entry as it is stored; without its ticket for `list_append`, which puts the next one before it."""
    facts = SimpleNamespace(
        owner=owner,
        lease_ms=int(lease * 1000),
        heartbeats=0,
        entered_ms=now_ms,
        renewed_ms=0,
        granted_ms=None,
        writes=0,
        callers=callers,
        token_id=token_id,
    )
    stored = {"M": _FACTS.encode(facts) | ({} if lock_mode == WHOLE else LOCK_MODE.encode(lock_mode))}
    return {"L": [stored] if ticket is None else [number(ticket), stored]}


def new_document(entry_id: str, entry: dict[str, Any], ticket: int, callers: int = 1) -> dict[str, Any]:
    """Return a document with one entry, which has that ticket."""
    return {
        "M": {
            FORMAT_NAME: number(FORMAT),
            SINCE: number(ticket),
            NEXT: _next(ticket + callers),
            QUEUE: {"M": {entry_id: entry}},
            EVICTED: {"M": {}},
        }
    }


def _next(ticket: int) -> dict[str, Any]:
    return {"L": [number(ticket)]}


def state_in(image: Mapping[str, Any] | None, attribute: str) -> LockState:
    """Return the lock document in an item image; `FREE` if there is no item, `ITEM_WITHOUT_LOCK` if it has none."""
    raw = ((image or {}).get(attribute) or {}).get("M")
    return ITEM_WITHOUT_LOCK if image and raw is None else state_of(raw)


#: The last map that was read, and its document: one image is looked at several times in a row.
_last_read: tuple[Mapping[str, Any] | None, LockState] = None, FREE


def state_of(raw: Mapping[str, Any] | None) -> LockState:
    """Return the lock document stored as that map: `LockState.unreadable` if it is broken, or of a newer format."""
    global _last_read  # noqa: PLW0603 - replaced as a whole
    known, state = _last_read
    if known is not raw:
        state = _read(raw)
        _last_read = raw, state
    return state


def _read(raw: Mapping[str, Any] | None) -> LockState:
    if not raw:
        return FREE if raw is None else LockState(raw=raw)
    part = FORMAT_NAME  # of the document, which is read next
    try:
        newest = format_of(raw)
        part = TX
        newest = max(newest, format_of(raw[TX]["M"])) if TX in raw else newest
        if newest > FORMAT:
            return _broken(raw, f"format {newest} is newer than format {FORMAT}, the newest that this release knows")
        intent = _intent_in(raw)
        if NEXT not in raw and QUEUE not in raw:
            return LockState(raw=raw, intent=intent)
        part = QUEUE
        now_ms = runtime.current.time_ms()
        entries = [_entry(name, stored, now_ms) for name, stored in raw[QUEUE]["M"].items()]
        if len(entries) > 1:
            entries.sort(key=lambda entry: entry.ticket)
            if not _is_in_order(entries):
                raise ValueError(raw[QUEUE])
        part = NEXT
        [upcoming] = raw[NEXT]["L"]
        next_ticket = _TICKET.read(upcoming)
        if entries and entries[-1].last_ticket >= next_ticket:  # a newcomer would overtake an entry
            raise ValueError(next_ticket)
        part = SINCE
        since = int(raw[SINCE]["N"])
        part = EVICTED
        evicted = {int(slot): int(ticket["N"]) for slot, ticket in raw[EVICTED]["M"].items()}
        part = SUCCESS
        success = _success_in(raw[SUCCESS]["M"]) if SUCCESS in raw else None
    except UNREADABLE:
        return _broken(raw, flaw(part, raw))
    return LockState(
        entries=tuple(entries),
        next_ticket=next_ticket,
        since=since,
        evicted=evicted,
        raw=raw,
        intent=intent,
        success=success,
    )


def holders_in(image: Mapping[str, Any], attribute: str) -> Iterator[str]:
    """Yield the ids of the entries that hold the lock, of a sound document. Reads no more entries than that takes."""
    with suppress(*UNREADABLE):
        queue = image[attribute]["M"][QUEUE]["M"]
        ids = sorted(queue, key=lambda entry_id: int(queue[entry_id]["L"][0]["N"]))
        for i in front(_lock_mode_in(queue[entry_id]["L"][1]["M"]) for entry_id in ids):
            yield ids[i]


def _broken(raw: Mapping[str, Any], why: str) -> LockState:
    state = LockState(raw=raw)
    object.__setattr__(state, "unreadable", why)  # as an argument it would slow down sound documents
    return state


def _success_in(stored: Mapping[str, Any]) -> RunRecord:
    int(stored[KEPT]["N"])  # which requests add to a time
    return _SUCCESS.decode(stored)


def stored_success(success: RunRecord, kept_s: int) -> dict[str, Any]:
    """Return a success as it is stored, in a row that is to be kept for so long after a lease."""
    return {"M": {**_SUCCESS.encode(success), KEPT: number(kept_s)}}


def _intent_in(raw: Mapping[str, Any]) -> WriteIntent | None:
    if TX not in raw:
        return None
    stored = raw[TX]["M"]
    change = stored[INTENT]["M"]
    return WriteIntent(**_INTENT.decode(stored), **_INTENT_CHANGE.decode(change), **_CHANGES.decode(change))


def stored_intent(intent: WriteIntent) -> dict[str, Any]:
    change = _INTENT_CHANGE.encode(intent) | ({} if intent.changes_row else stored_changes(intent))
    return {"M": {FORMAT_NAME: number(FORMAT), **_INTENT.encode(intent), INTENT: {"M": change}}}


def stored_changes(intent: WriteIntent) -> dict[str, Any]:
    """Return the stored form of what an intent says: in it, or in a separate row."""
    return _CHANGES.encode(intent)


def with_changes(intent: WriteIntent, stored: Mapping[str, Any]) -> WriteIntent:
    """Return an intent with the changes that were stored in a separate row."""
    return replace(intent, **_CHANGES.decode(stored))


def _entry(name: str, stored: Mapping[str, Any], now_ms: int) -> QueueEntry:
    ticket, content = stored["L"]
    facts = _FACTS.decode(content["M"])
    entered_ms, renewed_ms, granted_ms = facts["entered_ms"], facts.pop("renewed_ms"), facts.pop("granted_ms")
    return QueueEntry(
        id=name,
        ticket=_TICKET.read(ticket),
        lock_mode=_lock_mode_in(content["M"]),
        until_ms=entered_ms + renewed_ms + facts["lease_ms"],
        read_ms=now_ms,
        granted_ms=None if granted_ms is None else entered_ms + granted_ms,
        **facts,
    )


def _lock_mode_in(facts: Mapping[str, Any]) -> LockMode:
    return WHOLE if _LOCK_MODE_NAMES.isdisjoint(facts) else LOCK_MODE.decode(facts)


def _is_in_order(entries: list[QueueEntry]) -> bool:
    """Tell whether each ticket is of one caller only; of two callers with one ticket both would hold the lock."""
    return all(entry.last_ticket < after.ticket for entry, after in pairwise(entries))


@dataclass(frozen=True)
class LockRow:
    """An item that carries a lock document, and how to reach it.

    Attributes:
        reach: returns the connection for lock requests: a write outside of the lock needs none.
        key: the item's key, in DynamoDB's form.
        hash_name: stored name of the hash key.
        attribute: stored name of the lock attribute.
        ttl_attribute: stored name of the expiry attribute to keep ahead of the lease, if any.
        may_create: whether entering may create the item.
        given_name: the lock's name, if it is not made of the key.
        kept_s: for how long DynamoDB's TTL leaves the row after the last lease in it, unless a success says longer.
    """

    reach: Callable[[], Connection] = field(compare=False, repr=False)
    table: str
    key: dict[str, Any]
    hash_name: str
    attribute: str
    ttl_attribute: str | None
    may_create: bool
    given_name: str
    model: type[Model] | None = field(default=None, compare=False, repr=False)
    kept_s: int = IDLE_TTL_S

    @cached_property
    def connection(self) -> Connection:
        """The connection for lock requests."""
        return self.reach()

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two rows that are the same lock in this process."""
        key = tuple(sorted([(name, *next(iter(value.items()))) for name, value in self.key.items()]))
        place = endpoint_to(self.connection, account_of(self.model))
        return (place.host, place.region, self.table, key, self.attribute, place.account)

    @property
    def names(self) -> dict[str, Any]:
        """The names that the requests of `protocol` take from the row."""
        return {"#l": self.attribute, "#h": self.hash_name, "#expires": self.ttl_attribute}

    def ends(self, lease: float) -> tuple[dict[str, str], dict[str, str]]:
        """Return when a lease ends that is taken or renewed now: for DynamoDB's TTL to count from, and for people.

        For a row that is there for locks alone. It expires `kept_s` after that, or as long after it as its `KEPT` says.
        """
        now_ms = runtime.current.time_ms()
        shown = text_of_ms(now_ms + int(lease * 1000)) or "after the year 9999"
        return number(lease_end_s(now_ms, lease)), {"S": shown}

    @property
    def transactions(self) -> str | None:
        """The place (see `OwnKeys.place`) of the table of transactions that the item's model declares, if any."""
        declared: Any = getattr(getattr(self.model, "Meta", None), "transaction_table", None)
        return None if declared is None else own_keys_of(declared).place(declared.Meta.table_name)

    @cached_property
    def name(self) -> str:
        return self.given_name or row_name(self.table, tuple(next(iter(each.items())) for each in self.key.values()))

    @cached_property
    def label(self) -> str:
        return brief(self.name)

    def state(self, image: Image | None) -> LockState:
        """Return the lock document in an image of this item, to act upon it; see `trusted`."""
        state = state_in(image, self.attribute)
        return trusted(self, state) if state.unreadable else state
