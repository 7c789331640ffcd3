"""Replaces broken rows of a transaction by sound ones, without making up what became of it.

The state of a header is the only record of the decision. A header that can be taken for pending becomes an aborted
one, in the write that also proves that it was not decided meanwhile. If the state is lost, the operator has to name it.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.transaction import State, row_of_participants
from pynamo_locking._io import flaws, header_requests, trust
from pynamo_locking._io.header_requests import (
    BEAT,
    BY,
    CLEAN,
    CONTENT,
    EXPIRES,
    ID,
    ITEMS,
    LEASE,
    ROWS,
    STATE,
    UNTIL,
)
from pynamo_locking._io.retries import Refused
from pynamo_locking._io.stored import number
from pynamo_locking._transactions.recovery import answered, row_in
from pynamo_locking.exceptions import CorruptRow, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking._io.header_requests import HeaderTable

_ATTEMPTS: Final = 4

_NO_STATE: Final = (
    "Nothing else that is stored tells what became of it. If you know that, from the log of its process for example, "
    "name its state: committed puts in place what its marks intend, aborted drops them."
)
_NOT_ALL: Final = "that may not be all of them. Restore the number that is broken, from a backup."

#: The attributes of a header that must not have changed between the look and the repair.
_SEEN: Final = (STATE, BEAT, LEASE, UNTIL, ITEMS, ROWS, BY, CLEAN, EXPIRES)


def repair(header_table: HeaderTable, header_id: str, state: str | None, *, dry_run: bool) -> list[str] | None:
    """Repair the header and the rows of participants of a transaction; see `TransactionTable.repair`."""
    if state not in (None, State.COMMITTED.value, State.ABORTED.value):
        raise ConfigurationError(f"the state of a transaction to repair is committed or aborted, not {state!r}.")
    told = None if state is None else State(state)
    found = list[str]()
    for _ in range(_ATTEMPTS):
        try:
            image = answered(lambda: _repair_header(header_table, header_id, told, found, dry_run=dry_run))
            if image is None:
                return None
            if State(image[STATE]["S"]).is_final:
                answered(lambda: _repair_participants(header_table, header_id, found, dry_run=dry_run))
        except Refused:
            continue  # the row has changed since the look, or this was a second copy
        return list(dict.fromkeys(found))
    raise OutcomeUnknown(f"the rows of the transaction {header_id} were changed faster than they could be repaired.")


def _repair_header(
    header_table: HeaderTable, header_id: str, told: State | None, found: list[str], *, dry_run: bool
) -> Mapping[str, Any] | None:
    """Make a header sound, and note what was broken; return it, None if there is none."""
    image = header_requests.image_of(header_table, header_id)
    try:
        if header_requests.header_in(image, header_table) is None:
            return None
    except CorruptRow as error:
        assert image is not None  # noqa: S101 - it is broken
        changes = _sound(header_table, image, told, error)
        found.append(_flaw(error))
        if not dry_run:
            header_requests.replace(header_table, image, changes, _SEEN)
        return {**image, **changes}
    return image


def _sound(
    header_table: HeaderTable, image: Mapping[str, Any], told: State | None, error: CorruptRow
) -> dict[str, Any]:
    """Return the changes that make a broken header sound."""
    known = _known_state(image)
    if known is not None and told not in (None, known):
        raise ConfigurationError(f"the transaction {image[ID]['S']!r} is {known.value}, as its header shows.")
    state = known or told
    if state is None:
        raise _refusal(error, _NO_STATE)
    counts = _counts(header_table, image, error, is_committed=state is State.COMMITTED)
    sound = {**dict.fromkeys((BEAT, LEASE, UNTIL), number(0)), **counts}
    changes = {STATE: {"S": state.value}, **{name: sound[name] for name in _broken_numbers(image)}}
    if state is State.PENDING or (state is State.ABORTED and known is None):
        ends = header_table.ends(header_table.keep.keep_rows_s)
        changes |= {STATE: {"S": State.ABORTED.value}, BY: {"S": "asked"}, EXPIRES: ends}
    return changes


def _known_state(image: Mapping[str, Any]) -> State | None:
    """Return the state of a broken header: as stored, or as only one kind of write can have left it."""
    with suppress(*flaws.UNREADABLE):
        return State(image[STATE]["S"])
    if BY in image or CLEAN in image:
        return State.ABORTED
    return State.FINISHED if EXPIRES in image else None  # what is pending or committed does not expire


def _broken_numbers(image: Mapping[str, Any]) -> list[str]:
    broken = list[str]()
    for name in (BEAT, LEASE, UNTIL, ITEMS, ROWS):
        try:
            header_requests.whole(image, name)
        except flaws.UNREADABLE:
            broken.append(name)
    return broken


def _counts(
    header_table: HeaderTable, image: Mapping[str, Any], error: CorruptRow, *, is_committed: bool
) -> dict[str, Any]:
    """Return the counts of items and of rows of participants, if one of them is broken.

    Of a committed transaction the other number must agree: items that are not counted would lose what was promised.
    """
    if not {ITEMS, ROWS} & {*_broken_numbers(image)}:
        return {}
    rows = list(_rows(header_table, image[ID]["S"]))
    if not is_committed:
        return {ITEMS: number(0), ROWS: number(len(rows))}
    names = [header_requests.read_row(header_table, row, lambda content: len(content["items"]["L"])) for row in rows]
    counted = {ITEMS: number(sum(names)), ROWS: number(len(rows))}
    if not any(image.get(name) == value for name, value in counted.items()):
        raise _refusal(error, f"It is committed, and {len(rows)} rows name {sum(names)} items: {_NOT_ALL}")
    return counted


def _flaw(error: CorruptRow) -> str:
    return f"{error.field} is {error.found}"


def _refusal(error: CorruptRow, advice: str) -> CorruptRow:
    key = error.key or {}
    what = f"the row of the transaction {next(iter(key.values()))['S']!r}"
    return flaws.corrupt(what, _flaw(error), table=error.table or "", key=key, advice=advice)


def _rows(header_table: HeaderTable, header_id: str) -> Iterator[dict[str, Any]]:
    for i in itertools.count():
        row = header_requests.image_of(header_table, row_of_participants(header_id, i))
        if row is None:
            return
        yield row


def _repair_participants(header_table: HeaderTable, header_id: str, found: list[str], *, dry_run: bool) -> None:
    """Leave in the rows of a transaction that is over the items that can be read."""
    for row in _rows(header_table, header_id):
        stored = _readable(header_table, header_id, row)
        if row.get(CONTENT, {}).get("M", {}).get("items") != {"L": stored}:
            found.append(f"{row[ID]['S']} names items that cannot be read")
            if not dry_run:
                header_requests.replace(header_table, row, {CONTENT: {"M": {"items": {"L": stored}}}}, [CONTENT])


def _readable(header_table: HeaderTable, header_id: str, row: Mapping[str, Any]) -> list[Any]:
    kept = list[Any]()
    with suppress(*flaws.UNREADABLE):
        for each in row[CONTENT]["M"]["items"]["L"]:
            with suppress(LockingError, *flaws.UNREADABLE):
                item, spill = row_in(header_table, each["M"])
                trust.check_place(header_table, header_id, item.table)
                if spill:
                    trust.check_row_of_changes(header_id, spill)
                kept.append(each)
    return kept
