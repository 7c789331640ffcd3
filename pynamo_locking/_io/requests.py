"""Every request of the lock, one named function each. All of its condition text stands here.

Each is written so that a second copy of itself changes nothing: a repeated request either does
nothing or is refused with an image in which its first effect can be seen.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.claims import SHARED, WHOLE, Claim
from pynamo_locking._core.error_codes import INVALID, Answer
from pynamo_locking._core.lease import row_expiry_s
from pynamo_locking._core.naming import plain, row_name
from pynamo_locking._core.queue import Entry, LockState, traces
from pynamo_locking._core.sending import Policy, Sending
from pynamo_locking._io import attempts, denials, events, flaws, records, runtime, transport
from pynamo_locking._io.records import number
from pynamo_locking._io.sender import is_sent_again
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.connection import Connection

logger = logging.getLogger("pynamo_locking")

Image = dict[str, Any]

_T = TypeVar("_T")

#: How often a request is sent that nobody answers, where there is somebody to tell in the end.
_ATTEMPTS: Final = 4


@dataclass(frozen=True)
class Row:
    """One item that carries a lock document, and how to reach it.

    Attributes:
        connection: the connection for lock requests.
        table: name of the table.
        key: the item's key, in DynamoDB's form.
        hash_name: stored name of the hash key.
        attribute: stored name of the lock attribute.
        ttl_attribute: stored name of the expiry attribute to keep ahead of the lease, if any.
        may_create: whether entering may create the item.
        given_name: the lock's name, if it is not made of the key.
        model: the model of the item, if it is known.
    """

    connection: Connection
    table: str
    key: dict[str, Any]
    hash_name: str
    attribute: str
    ttl_attribute: str | None
    may_create: bool
    given_name: str
    model: type[Any] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        """What makes two rows the same lock in this process."""
        key = tuple(sorted((name, *next(iter(value.items()))) for name, value in self.key.items()))
        return (self.connection.host, self.connection.region, self.table, key, self.attribute, _account(self.model))

    @property
    def transactions(self) -> str | None:
        """Name of the table of transactions that the item's model declares; None if it declares none."""
        declared = getattr(getattr(self.model, "Meta", None), "transaction_table", None)
        return None if declared is None else str(declared.Meta.table_name)

    @cached_property
    def name(self) -> str:
        """The lock's name, as it is; made when it is asked for."""
        return self.given_name or row_name(self.table, tuple(next(iter(each.items())) for each in self.key.values()))

    @cached_property
    def label(self) -> str:
        """The lock's name for logs and messages."""
        return plain(self.name)

    def state(self, image: Image | None) -> LockState:
        """Return the lock document in an image of this item, for those who act upon it; see `flaws.trusted`."""
        state = records.state_in(image, self.attribute)
        return flaws.trusted(self, state) if state.unreadable else state


#: Access keys of models that have their own, as they were first seen: later sessions of a role have others.
_accounts: weakref.WeakKeyDictionary[type[Any], str] = weakref.WeakKeyDictionary()


def _account(model: type[Any] | None) -> str | None:
    """Return what tells whose tables a model's are: two accounts may have some of one name in one Region.

    None: those of the environment's account.
    """
    meta: Any = getattr(model, "Meta", object)
    said_by: Any = next(
        (base for base in getattr(meta, "__mro__", ()) if vars(base).get("aws_access_key_id") is not None), None
    )
    return None if said_by is None else _accounts.setdefault(said_by, said_by.aws_access_key_id)


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The condition failed. Carries the item as it was, or None if there is no such item.

    Attributes:
        repeated: whether an earlier request of the same call was not answered, and may have been applied.
    """

    repeated = False

    def __init__(self, image: Image | None) -> None:
        super().__init__("the condition failed")
        self.image = image


class Unavailable(Exception):  # noqa: N818 - an answer, not an error
    """No usable answer; the same request may succeed later. Carries botocore's exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class NewEntry:
    """What a newcomer writes into the queue."""

    id: str
    owner: str
    lease: float
    claim: Claim = WHOLE

    def stored(self, now_ms: int) -> dict[str, Any]:
        """Return the stored form."""
        return records.new_entry(self.owner, self.claim, self.lease, now_ms)


def enter(row: Row, entry: NewEntry, capacity: int) -> Image:
    """Join the queue and take the next ticket, in one atomic write.

    Refused if there is no document yet, if we are in it already, or if `capacity` entries are.
    """
    now_ms = runtime.current.time_ms()
    return _update(
        row,
        set_="#l.#q.#me = :entry, #l.#t.#me = #l.#n, #l.#n = #l.#n + :one",
        condition="attribute_exists(#l.#n) AND attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max",
        names={"#n": records.NEXT, "#me": entry.id},
        values={":entry": entry.stored(now_ms), ":one": number(1), ":max": number(capacity)},
        expiry=_expiry(row, entry.lease),
    )


def enter_first(row: Row, entry: NewEntry) -> Image:
    """Create the document with us in it. Its tickets start at the time in µs: what that promises says protocol.md.

    Refused if somebody else made it first, if the item has to exist and does not, if a transaction has the item,
    whose mark would be lost, or if another program has: see `denials.refuse_foreign`.
    """
    now_us = runtime.current.time_us()
    place = "attribute_not_exists(#h)" if row.may_create else "attribute_exists(#h) AND attribute_not_exists(#l)"
    return _update(
        row,
        set_="#l = :map",
        condition=f"{place} OR #l = :empty OR attribute_type(#l, :null)",
        names={"#h": row.hash_name},
        values={
            ":map": records.new_document(entry.id, entry.stored(now_us // 1000), now_us),
            ":empty": records.EMPTY,
            ":null": {"S": "NULL"},
        },
        expiry=_expiry(row, entry.lease),
        used=("#l",),
    )


def look(row: Row, *, consistent: bool) -> Image | None:
    """Read the item, or None if it is gone."""
    answer = _call(row, "GetItem", {"ConsistentRead": consistent})
    image: Image | None = answer.get("Item")
    return image


def look_at_document(row: Row) -> LockState:
    """Read the lock document alone, consistently; it may be broken, see `flaws.trusted`."""
    names = {"#l": row.attribute}
    arguments = {"ConsistentRead": True, "ProjectionExpression": "#l", "ExpressionAttributeNames": names}
    return records.state_in(_call(row, "GetItem", arguments).get("Item"), row.attribute)


def renew(row: Row, entry: Entry, beat: int, *, want_image: bool) -> Image:
    """Prolong our lease. Beats only grow, so a late copy cannot take a newer renewal back."""
    until_ms = runtime.current.time_ms() + entry.lease_ms
    return _update(
        row,
        set_="#l.#q.#me.#b = :beat, #l.#q.#me.#u = :until",
        condition="#l.#t.#me = :ticket AND #l.#q.#me.#b < :beat",
        names={"#me": entry.id, "#b": records.BEAT, "#u": records.UNTIL},
        values={":beat": number(beat), ":until": number(until_ms), ":ticket": number(entry.ticket)},
        expiry=_expiry(row, entry.lease),
        want_image=want_image,
    )


def release(row: Row, entry_id: str, *, want_image: bool) -> Image:
    """Leave the queue. Names the entry alone, so that it also removes one whose ticket never arrived."""
    return _update(
        row,
        remove="#l.#q.#me, #l.#t.#me",
        condition="attribute_exists(#l.#t.#me)",
        names={"#me": entry_id},
        want_image=want_image,
    )


def downgrade(row: Row, entry: Entry, write: int) -> Image:
    """Share from now on what was ours alone. Counts as a write, so that no late copy of an earlier one lands."""
    return _update(
        row,
        set_="#l.#q.#me.#mode = :shared, #l.#q.#me.#w = :write",
        condition="#l.#t.#me = :ticket AND #l.#q.#me.#w < :write",
        names={"#me": entry.id, "#mode": records.MODE, "#w": records.WRITES},
        values={":shared": {"S": SHARED}, ":write": number(write), ":ticket": number(entry.ticket)},
    )


def evict(row: Row, entries: tuple[Entry, ...], known: Mapping[int, int]) -> Image:
    """Remove dead entries, in ticket order, if none of them was renewed since we looked.

    The document remembers those that may have held the lock.

    Args:
        row: the lock's row.
        entries: the dead.
        known: which evictions the document remembers; refused if it has come to remember a later one in their place.
    """
    names, values = {"#b": records.BEAT}, dict[str, Any]()
    removed, conditions, remembered = list[str](), list[str](), list[str]()
    for i, entry in enumerate(entries):
        names[f"#e{i}"] = entry.id
        values |= {f":b{i}": number(entry.beat), f":t{i}": number(entry.ticket)}
        removed.append(f"#l.#q.#e{i}, #l.#t.#e{i}")
        conditions.append(f"#l.#q.#e{i}.#b = :b{i} AND #l.#t.#e{i} = :t{i}")
    for slot, ticket in traces(entries, known).items():
        names[f"#s{slot}"] = str(slot)
        values[f":s{slot}"] = number(ticket)
        path = f"#l.#evicted.#s{slot}"
        remembered.append(f"{path} = :s{slot}")
        conditions.append(f"(attribute_not_exists({path}) OR {path} < :s{slot})")
    if remembered:
        names["#evicted"] = records.EVICTED
    return _update(
        row,
        set_=", ".join(remembered),
        remove=", ".join(removed),
        condition=" AND ".join(conditions),
        names=names,
        values=values,
    )


def replace(row: Row, old: Mapping[str, Any], new: dict[str, Any]) -> Image:
    """Put another lock document in the place of one, if that is still there."""
    values = {":old": {"M": dict(old)}, ":new": new}
    return _update(row, set_="#l = :new", condition="#l = :old", names={}, values=values, used=("#l",))


def patiently(call: Callable[[], _T], most: int = _ATTEMPTS) -> _T:
    """Make a request that may be made twice, again while no answer comes, with pauses of full jitter.

    Raises:
        Unavailable: none came at all.
        Refused: the condition of the last one failed; it knows whether an earlier one was not answered.
    """
    sending = Sending(Policy(repeats=most - 1, first_pause=0))
    while True:
        try:
            return call()
        except Refused as refused:
            refused.repeated = refused.repeated or sending.in_doubt
            raise
        except Unavailable as error:
            logger.debug("not answered: %s", error)
            if not is_sent_again(sending, Answer.UNANSWERED):
                raise


def _expiry(row: Row, lease: float) -> int | None:
    return None if row.ttl_attribute is None else row_expiry_s(runtime.current.time_ms(), lease)


def _update(  # noqa: PLR0913 - the parts of one expression
    row: Row,
    *,
    condition: str,
    names: Mapping[str, str],
    set_: str = "",
    remove: str = "",
    values: Mapping[str, Any] | None = None,
    expiry: int | None = None,
    want_image: bool = True,
    used: tuple[str, ...] = ("#l", "#q", "#t"),
) -> Image:
    known = {"#l": row.attribute, "#q": records.QUEUE, "#t": records.TICKETS}
    all_names = {name: known[name] for name in used} | dict(names)
    all_values = dict(values or {})
    if expiry is not None and row.ttl_attribute is not None:
        set_ += ", #ttl = :ttl"
        all_names["#ttl"] = row.ttl_attribute
        all_values[":ttl"] = number(expiry)
    arguments = {
        "UpdateExpression": " ".join(part for part in (set_ and f"SET {set_}", remove and f"REMOVE {remove}") if part),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": all_names,
        "ReturnValues": "ALL_NEW" if want_image else "NONE",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if all_values:
        arguments["ExpressionAttributeValues"] = all_values
    try:
        image: Image = _call(row, "UpdateItem", arguments).get("Attributes", {})
    except ConfigurationError as error:
        if error.cause_response_code == INVALID:  # as where a part of the document is of another type
            with suppress(Unavailable):
                flaws.trusted(row, look_at_document(row))
        raise
    return image


def _call(row: Row, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if events.listeners:
        events.requesting(operation)
    try:
        answer = ask(row.connection, operation, {"TableName": row.table, "Key": row.key, **arguments})
    except transport.BOTOCORE_EXCEPTIONS as error:
        raise denials.final(row, error) from error
    if events.listeners:
        events.answered(answer)
    return answer


def ask(connection: Connection, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a request.

    Raises:
        Refused: its condition failed.
        Unavailable: no usable answer came.
        BotoCoreError, ClientError: DynamoDB refused it for good.
    """
    try:
        return attempts.dispatch(connection, operation, kwargs)
    except transport.BOTOCORE_EXCEPTIONS as error:
        if transport.answer_of(error) is Answer.REFUSED:
            raise Refused(transport.image_of(error)) from error
        if transport.is_transient(error):
            raise Unavailable(error) from error
        raise
