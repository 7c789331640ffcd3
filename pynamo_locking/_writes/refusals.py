"""Turns the refusal of a write into the error for its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException, UpdateError

from pynamo_locking._core.naming import plain
from pynamo_locking._io.denials import foreign, has_foreign
from pynamo_locking._items import expiry, versions
from pynamo_locking._writes.claims import not_unique
from pynamo_locking._writes.write import CHECK, UPDATE, Write
from pynamo_locking.exceptions import Conflict, ItemLocked, StaleVersion, TransactionConflict, also

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamo_locking._core.queue import LockState, QueueEntry
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image


def locked_out(
    row: LockRow,
    state: LockState,
    error: type[PynamoDBException],
    cause: Exception | None = None,
    stored: tuple[type[Any], Image] | None = None,
) -> ItemLocked:
    """Return the error for a write from outside the lock while another owner holds it."""
    advice = "Acquire the lock (locked() or edit()), or try again when it is free."
    return locked_by(row, state.entries[0], error, advice, cause, stored)


def locked_by(
    row: LockRow,
    holder: QueueEntry,
    error: type[PynamoDBException],
    advice: str,
    cause: Exception | None = None,
    stored: tuple[type[Any], Image] | None = None,
) -> ItemLocked:
    """Return the error for a write that an entry is in the way of."""
    return also(ItemLocked, error)(
        f"{row.label} is locked by {plain(holder.owner)} (ticket {holder.ticket}); nothing was written. {advice}",
        holder=holder.owner,
        ticket=holder.ticket,
        stored=stored,
        cause=cause,
    )


def busy_with_locks(row: LockRow, error: type[PynamoDBException], cause: Exception) -> TransactionConflict:
    """Return the error for a write that found another queue at each attempt."""
    return also(TransactionConflict, error)(
        f"other parties lock ranges of {row.label} so often that a write beside them was refused again and again; "
        f"nothing was written, and a retry is safe: {cause}",
        cause=cause,
    )


def refusal(write: Write, kind: type[PynamoDBException], image: Image | None, cause: Exception) -> Exception:
    """Return the error for a failed condition: another version, another class, or the caller's own condition.

    It is also a `kind` of PynamoDB; callers find the code of the failed condition in its `cause`.

    Raises:
        UnknownFormat: the item is a row of ours that a newer release has stored.
    """
    model, before = type(write.item), write.part.before
    versions.refuse_newer(model, image)
    if getattr(model, "_holds_unique_values", False):
        return not_unique(write, image, kind, cause)
    if write.operation is not CHECK and has_foreign(model, image):
        return foreign(f"{write.called} was refused", model.Meta.table_name, "no lock")
    image = expiry.unexpired(model, image) or None
    stored_class = None if image is None or write.operation is not UPDATE else _class_of(model, image)
    if stored_class not in (None, model) and kind is UpdateError:
        return ValueError(f"Cannot update this item from the returned class: {stored_class.__name__}")
    stored = None if image is None else (model, image)
    seen = versions.known_of(model, image or {})
    is_other = not before.may_be(seen) or (write.is_strict and before.write_id != seen.write_id)
    refused = f"{write.called} was refused and nothing changed"
    if write.part.is_checked and is_other and getattr(model, "_is_guard", False):
        return also(TransactionConflict, kind)(
            f"{refused}, since other writers have changed rows of the same hash key; a retry is safe. ({cause})",
            cause=cause,
        )
    if write.part.is_checked and is_other:
        return also(StaleVersion, kind)(
            f"{refused}: {_why_stale(before.version, seen.version, image)} ({cause})",
            expected=before.version,
            actual=seen.version,
            stored=stored,
            cause=cause,
        )
    return also(Conflict, kind)(f"{refused}: its condition was not met. ({cause})", stored=stored, cause=cause)


def _class_of(model: type[Model], image: Image) -> Any:
    """Return the class of a stored item, None if this process does not know it."""
    try:
        return model._get_discriminator_class(image)
    except ValueError:
        return None


def _why_stale(expected: int | None, actual: int | None, image: Image | None) -> str:
    """Return what is known, and what to do."""
    if image is None:
        return f"it was read in version {expected}, and the item does not exist any more. Read before you save again."
    again = "Start again from the error's `current`, or refresh() the item."
    found = "without a version" if actual is None else f"in version {actual}"
    if expected is None:
        return f"the item exists already, {found}, and this instance was not read from it. {again}"
    if actual == expected:
        found += " by another write (the item was deleted and created again, or written without its version)"
    return f"it was read in version {expected}, and is stored {found}. {again}"
