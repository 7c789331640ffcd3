"""The protocol: every condition and change that locks and transactions ask of DynamoDB, once, in DynamoDB's words.

A `Clause` is a condition and changes. Clauses are added (``OWN_ENTRY + REMOVE_ENTRY``). The sum is a request of its own
(`alone`), or is added to a request that PynamoDB has made for an item (`merge`).

`NAMES` has the stored names of the placeholders; a name that is not there is stored as it is called. A row gives its
own names (``#l`` the attribute of the lock, ``#h`` or ``#id`` the hash key, ``#expires`` for TTL). Each request gives
the rest, such as ``#me`` and ``:ticket``.

Two other notations were tried. Paths of our own, such as ``lock.queue.#me.heartbeat``, need a parser, and nobody finds
in the code what stands in a log of requests. PynamoDB's `Condition` numbers its placeholders, so the parts of a request
would have to be numbered again. What users give (versions, expiry, unique values, conditions) stays a `Condition`.

The pages ``explanation/protocol.md`` and ``explanation/transactions.md`` show all of this, and a test compares them.
R1 to R13 are the rules of the latter.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pynamo_locking._io import lock_record
from pynamo_locking._io.stored_rows import FORMAT, FORMAT_NAME, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.lock_record import LockRow


#: An entry of the queue is a list of its ticket ``[0]`` and its facts ``[1]``.
NAMES: Final = {
    "#n": lock_record.NEXT,
    "#q": lock_record.QUEUE,
    "#since": lock_record.SINCE,
    "#evicted": lock_record.EVICTED,
    "#tx": lock_record.TX,
    "#id": lock_record.TX_ID,
    "#intent": lock_record.INTENT,
    "#placeholder": lock_record.PLACEHOLDER,
    "#success": lock_record.SUCCESS,
    "#kept": lock_record.KEPT,
    "#f": FORMAT_NAME,
    "#b": lock_record.BEAT,
    "#r": lock_record.RENEWED,
    "#g": lock_record.GRANTED,
    "#w": lock_record.WRITES,
    "#token": lock_record.DETACHED,
    "#mode": lock_record.MODE,
    "#ends": lock_record.LEASE_ENDS,
}
VALUES: Final = {
    ":format": number(FORMAT),
    ":empty": lock_record.EMPTY,
    ":is_null": {"S": "NULL"},
    ":is_map": {"S": "M"},
    ":is_number": {"S": "N"},
}

_NAME: Final = re.compile(r"(#\w+)")
_VALUE: Final = re.compile(r":\w+")
_VERB: Final = re.compile(r"\b(SET|REMOVE|ADD|DELETE) ")


class Clause(NamedTuple):
    """A condition and changes; ``a + b`` has those of both."""

    if_: str = ""
    set_: str = ""
    remove: str = ""
    add: str = ""

    def __add__(self, other: Clause) -> Clause:  # type: ignore[override]
        return _sum(self, other)


#: A clause with what is given for its placeholders.
Filled: TypeAlias = "tuple[Clause, dict[str, Any]]"


@cache
def _sum(one: Clause, other: Clause) -> Clause:
    return Clause(
        " AND ".join(filter(None, (one.if_, other.if_))),
        ", ".join(filter(None, (one.set_, other.set_))),
        ", ".join(filter(None, (one.remove, other.remove))),
        one.add or other.add,
    )


def alone(clause: Clause, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expressions of an UpdateItem, or of a DeleteItem if nothing is changed."""
    changes, names, values = _placeholders(clause)
    arguments = {
        "ConditionExpression": clause.if_,
        "ExpressionAttributeNames": {name: given.get(name) or stored for name, stored in names},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if changes:
        arguments["UpdateExpression"] = changes
    if values:
        arguments["ExpressionAttributeValues"] = {name: given.get(name) or VALUES[name] for name in values}
    return arguments


@cache
def _placeholders(clause: Clause) -> tuple[str, list[tuple[str, str]], list[str]]:
    verbs = {"SET": clause.set_, "REMOVE": clause.remove, "ADD": clause.add}
    changes = " ".join(f"{verb} {change}" for verb, change in verbs.items() if change)
    whole = f"{clause.if_} {changes}"
    names = [(name, NAMES.get(name) or name[1:]) for name in dict.fromkeys(_NAME.findall(whole))]
    return changes, names, [*dict.fromkeys(_VALUE.findall(whole))]


def merge(request: dict[str, Any], clause: Clause, given: Mapping[str, Any], *, is_update: bool = False) -> None:
    """Add a clause to a request that PynamoDB has made, whose placeholders are numbers; changes only to an update.

    PynamoDB puts parentheses around all that AND could tear apart, and DynamoDB refuses needless ones.
    """
    if not is_update:
        clause = Clause(clause.if_)
    added, before = alone(clause, given), request.get("ConditionExpression")
    asked = " AND ".join(filter(None, (before, clause.if_)))
    if clause.set_ or clause.remove:
        request["UpdateExpression"] = _joined(request.get("UpdateExpression") or "", clause)
    if asked:
        request["ConditionExpression"] = asked
    for part in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
        if added.get(part):
            request[part] = request.get(part, {}) | added[part]


@lru_cache(maxsize=256)
def _joined(update: str, clause: Clause) -> str:
    _, *parts = _VERB.split(update)
    changes = dict(zip(parts[::2], parts[1::2], strict=True))
    for verb, text in (("SET", clause.set_), ("REMOVE", clause.remove)):
        if text:
            changes[verb] = f"{changes[verb].strip()}, {text}" if verb in changes else text
    return " ".join(f"{verb} {text.strip()}" for verb, text in changes.items())


# Rules of all requests

#: The document is of no newer format.
KNOWN_FORMAT: Final = Clause(if_="(attribute_not_exists(#l.#f) OR #l.#f <= :format)")
#: What is stored is of this format.
SET_FORMAT: Final = Clause(set_="#l.#f = if_not_exists(#l.#f, :format)")
FORMAT_KEPT: Final = KNOWN_FORMAT + SET_FORMAT
#: R2: no transaction has a write intent on the item, whose decision the write could undo; nor has a newer release.
NO_INTENT: Final = Clause(if_="attribute_not_exists(#l.#tx)") + KNOWN_FORMAT
#: When a lease ends that is acquired now, stored next to the lock, in a row that is there for locks alone.
SET_LEASE_END: Final = Clause(set_="#expires = if_not_exists(#l.#success.#kept, :kept) + :ends, #ends = :shown")
#: Our entry is in the queue, under the ticket that it was granted: a late copy of `ENQUEUE` could bring the id back.
OWN_ENTRY: Final = Clause(if_="#l.#q.#me[0] = :ticket")
REMOVE_ENTRY: Final = Clause(remove="#l.#q.#me")

# Enqueue

ENQUEUE: Final = FORMAT_KEPT + Clause(
    if_="attribute_exists(#l.#n) AND attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max"
    " AND (attribute_not_exists(#l.#tx.#f) OR #l.#tx.#f <= :format)",  # or we could not resolve that intent
    set_="#l.#q.#me = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :callers",
)
_NO_LOCK: Final = "#l = :empty OR attribute_type(#l, :is_null)"  # so that there is no newer document
ENQUEUE_FIRST: Final = Clause(f"attribute_exists(#h) AND attribute_not_exists(#l) OR {_NO_LOCK}", "#l = :map")
ENQUEUE_FIRST_IN_ITS_ROW: Final = Clause(f"attribute_not_exists(#h) OR {_NO_LOCK}", "#l = :map")

# Renew. Beats only grow: a late copy undoes no newer renewal.

RENEW: Final = (
    OWN_ENTRY + Clause("#l.#q.#me[1].#b < :beat", "#l.#q.#me[1].#b = :beat, #l.#q.#me[1].#r = :renewed") + FORMAT_KEPT
)
NOTE_GRANT: Final = Clause(set_="#l.#q.#me[1].#g = :granted")

# Release. It does not name the ticket, so that it also removes an entry whose ticket was lost with a response.

RELEASE: Final = Clause(if_="attribute_exists(#l.#q.#me)") + REMOVE_ENTRY + KNOWN_FORMAT
RELEASE_WITH_SUCCESS: Final = OWN_ENTRY + Clause(set_="#l.#success = :success") + REMOVE_ENTRY + FORMAT_KEPT
SET_EXPIRY: Final = Clause(set_="#expires = :expires")

# Hand over: the next caller of this process has that ticket, or draws again

ADD_NEXT_ENTRY: Final = Clause(set_="#l.#q.#you = :entry")
ADD_NEXT_ENTRY_AT_THE_END: Final = Clause(
    set_="#l.#q.#you = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :callers"
)
HAND_OVER: Final = OWN_ENTRY + REMOVE_ENTRY + FORMAT_KEPT

# Detach and attach: an entry with another id has the ticket from now on

OF_TOKEN: Final = Clause(if_="#l.#q.#me[1].#token = :token")

# Downgrade. It counts as a write, so that no late copy of an earlier write is applied.

_LATEST: Final = "#l.#q.#me[1].#w < :write"
COUNT_WRITE: Final = Clause(set_="#l.#q.#me[1].#w = :write")
DOWNGRADE: Final = OWN_ENTRY + Clause(_LATEST, "#l.#q.#me[1].#mode = :shared") + COUNT_WRITE + FORMAT_KEPT

# Evict


@cache
def evict(entries: int, slots: int) -> Clause:
    """Remove so many entries, if none was renewed since, and remember so many tickets, if no later one is there."""
    same = [f"#l.#q.#e{i}[1].#b = :b{i} AND #l.#q.#e{i}[0] = :t{i}" for i in range(entries)]
    free = [f"(attribute_not_exists(#l.#evicted.#s{i}) OR #l.#evicted.#s{i} < :s{i})" for i in range(slots)]
    remembered = [f"#l.#evicted.#s{i} = :s{i}" for i in range(slots)]
    removed = [f"#l.#q.#e{i}" for i in range(entries)]
    clause = Clause(" AND ".join([*same, *free]), ", ".join(remembered), ", ".join(removed))
    return clause + (FORMAT_KEPT if slots else KNOWN_FORMAT)


# A write under a held entry: none of ours that is later was applied

FENCE: Final = OWN_ENTRY + Clause(_LATEST) + NO_INTENT

# A write without the lock

_FREE: Final = "(attribute_not_exists(#l.#q) OR #l.#q = :empty)"
NOT_LOCKED: Final = Clause(_FREE) + NO_INTENT
NOT_LOCKED_IN_ITS_ROW: Final = NOT_LOCKED + Clause(
    "(attribute_not_exists(#h) OR attribute_type(#l, :is_map))", "#l = if_not_exists(#l, :empty)"
)
NO_ENTRY: Final = Clause(_FREE) + KNOWN_FORMAT
NO_NEW_ENTRY: Final = Clause(f"({_FREE} OR (#l.#since = :since AND #l.#n[0] = :next))") + KNOWN_FORMAT


def not_locked(row: LockRow) -> Filled:
    """Return what a write asks of an embedded lock that is not held here; it creates the lock of a row for locks."""
    return NOT_LOCKED_IN_ITS_ROW if row.may_create else NOT_LOCKED, row.names


def not_entered_since(row: LockRow, seen: LockState) -> Filled:
    """The queue is empty or there is none, or no entry has come since this document was seen."""
    if not seen.exists:
        return NO_ENTRY, row.names
    return NO_NEW_ENTRY, {**row.names, ":since": number(seen.since), ":next": number(seen.next_ticket)}


def has_no_intent(lock_name: str) -> Filled:
    """No transaction of many items has the item, whose decision the write could overwrite; nor has a newer release."""
    return NO_INTENT, {"#l": lock_name}


# Records of transactions, and the other rows of their table

KNOWN_ROW_FORMAT: Final = Clause(if_="(attribute_not_exists(#f) OR #f <= :format)")
NEW_ROW: Final = Clause(if_="attribute_not_exists(#id)")
DELETE_ROW: Final = Clause(if_="attribute_exists(#content)") + KNOWN_ROW_FORMAT
#: The record is in that state. So a late copy changes no later one.
_FROM: Final = Clause("#state = :from", "#f = if_not_exists(#f, :format)") + KNOWN_ROW_FORMAT
RENEW_RECORD: Final = _FROM + Clause("#beat < :beat", "#beat = :beat, #until_ms = :until_ms")
DECIDE: Final = _FROM + Clause(set_="#state = :state")
SET_RECORD_EXPIRY: Final = Clause(set_="#expires = :expires")
ABORT: Final = DECIDE + SET_RECORD_EXPIRY + Clause(set_="#by = :by")
#: A heartbeat that is no number cannot be renewed, and counts as seen.
NOT_RENEWED: Final = Clause(if_="(#beat = :seen OR NOT attribute_type(#beat, :is_number))")
CLEAN: Final = _FROM + SET_RECORD_EXPIRY + Clause(set_="#clean = :clean")
ROW_EXPIRED: Final = Clause(if_="#expires <= :old")
#: The row of a key is free: there is none, it has expired, or it only names transactions that were given up.
_NO_KEY: Final = KNOWN_ROW_FORMAT + Clause(
    "(attribute_not_exists(#id) OR (#expires <= :now AND attribute_exists(#content)) "
    "OR (attribute_exists(#abandoned) AND attribute_not_exists(#content)))"
)
CLAIM_KEY: Final = _NO_KEY + Clause(if_="NOT contains(#abandoned, :me)")
ABANDON_KEY: Final = _NO_KEY + Clause(set_="#expires = :ends, #f = :format", remove="#content", add="#abandoned :me")


# Write intents: each request names the transaction, so a second copy, or one of another process, changes nothing

SET_INTENT: Final = Clause(set_="#l.#tx = :intent")
SET_INTENT_AND_LOCK: Final = Clause(set_="#l = :map")
ITEM_EXISTS: Final = Clause(if_="attribute_exists(#h)")
ITEM_IS_NEW: Final = Clause(if_="attribute_not_exists(#h)")
HAS_LOCK: Final = Clause(if_="attribute_exists(#l)")
HAS_NO_LOCK: Final = Clause(if_="attribute_not_exists(#l)")
HAS_INTENT: Final = Clause(if_="#l.#tx.#id = :id") + KNOWN_FORMAT
REMOVE_INTENT: Final = Clause(remove="#l.#tx")
#: R12: the intent itself says whether its item is a placeholder, in the condition of the delete.
INTENT_OF_PLACEHOLDER: Final = Clause(if_="attribute_exists(#l.#tx.#intent.#placeholder)")
INTENT_OF_ITEM: Final = Clause(if_="attribute_not_exists(#l.#tx.#intent.#placeholder)")


@cache
def apply_intent(sets: int, removals: int) -> Clause:
    set_, removed = [f"#s{i} = :s{i}" for i in range(sets)], ["#l.#tx", *(f"#r{i}" for i in range(removals))]
    return HAS_INTENT + Clause(set_=", ".join(set_), remove=", ".join(removed))
