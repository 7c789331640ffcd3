"""Errors that a retry cannot mend: requests that DynamoDB refuses for good, and items of other programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.error_codes import INVALID, NO_TABLE
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._io import answers, lock_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.models import Model

    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image


def final(row: LockRow, error: Exception) -> LockingError:
    """Return the error for a lock request that DynamoDB refuses for good."""
    code, message = answers.code_of(error), answers.message_of(error)
    if code == NO_TABLE:
        return ConfigurationError(
            f"cannot lock {row.label}: there is no table {row.table!r}. "
            f"Create it (the model's create_table()) or correct Meta.table_name or Meta.host.",
            cause=error,
        )
    if is_about_size(error):
        return ConfigurationError(
            f"cannot lock {row.label}: the item is so close to DynamoDB's limit of 400 KB that an entry "
            f"of the queue does not fit. Make the item smaller, or keep its lock in a row of its own "
            f"(Meta.lock_table instead of a LockAttribute). DynamoDB said: {message}",
            cause=error,
        )
    if _is_about_keys(error):
        return _other_keys(f"cannot lock {row.label}", row.table, row.key, error)
    kind = ConfigurationError if code == INVALID else LockingError
    return kind(f"cannot lock {row.label}: DynamoDB refused the request: {code}: {message}", cause=error)


def of_transactions(table: str, key: Mapping[str, Any], error: Exception) -> LockingError:
    """Return the error for a request to a table of transactions that DynamoDB refuses for good."""
    code, message = answers.code_of(error), answers.message_of(error)
    if code == NO_TABLE:
        return ConfigurationError(
            f"there is no table of transactions {table!r}: create it (its create_table()), or correct "
            f"Meta.table_name, Meta.region or Meta.host of the TransactionTable.",
            cause=error,
        )
    if _is_about_keys(error):
        return _other_keys("no transaction can be kept", table, key, error)
    return LockingError(
        f"DynamoDB refused a request to the table of transactions {table!r}: {code}: {message}", cause=error
    )


def is_about_size(error: BaseException | None) -> bool:
    """Tell whether a write was refused because the item would be too large."""
    message = "" if error is None else answers.message_of(error).lower()
    return answers.code_of(error) == INVALID and "size" in message and "item" in message


def _is_about_keys(error: Exception) -> bool:
    """Tell whether a request was refused because its table has other keys. Each engine has its own words for that."""
    says = re.search(r"\bkeys?\b", answers.message_of(error), re.IGNORECASE)
    return answers.code_of(error) == INVALID and says is not None


def _other_keys(failure: str, table: str, key: Mapping[str, Any], error: Exception) -> ConfigurationError:
    keys = ", ".join(f"{name} ({next(iter(value))})" for name, value in key.items())
    return ConfigurationError(
        f"{failure}: the table {table!r} does not have the keys that its model says, {keys}. Nothing was written. Name "
        f"another table in Meta.table_name, or correct the model (for a NamedLock: "
        f"`name = UnicodeAttribute(hash_key=True, attr_name=...)`): the keys of a table cannot be changed. "
        f"DynamoDB said: {answers.message_of(error)}",
        cause=error,
    )


# Items of other programs
def foreign(failure: str, table: str, found: str) -> ConfigurationError:
    """Return the error for an item of another program in the place of one of our rows; `found` shows that it is."""
    return ConfigurationError(
        f"{failure}: the item of that key in the table {table!r} has {found}, so it is none that pynamo_locking has "
        f"stored. It was left as it is. Use a table that nothing else is stored in, or another key; if the item is a "
        f"leftover, delete it."
    )


def refuse_foreign(row: LockRow, image: Image) -> None:
    """Refuse to put a lock document into the item of another program. The item has no document yet.

    Raises:
        ConfigurationError: the attribute of the lock has another value, or it is missing in a table whose rows all have
            it.
    """
    stored = image.get(row.attribute)
    if (stored is None and row.may_create) or stored not in (None, lock_document.EMPTY, lock_document.NULL):
        what = "no attribute" if stored is None else "something that is no lock in its attribute"
        raise foreign(f"cannot lock {row.label}", row.table, f"{what} {row.attribute!r}")


def has_foreign(model: type[Model], image: Image | None) -> bool:
    """Tell whether an item lacks its lock, in a table whose rows are all there for locks alone."""
    if image is None or not getattr(model, "_lock_creates_item", False):
        return False
    lock: Any = model._lock_attribute()  # type: ignore[attr-defined]
    return "M" not in image.get(lock.attr_name, {})
