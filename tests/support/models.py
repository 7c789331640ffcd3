"""A factory of models, and models that the tests share. `engine.bind` gives each a table of its own for one test."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any, TypeVar, overload

from pynamodb.attributes import Attribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.indexes import Index
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, VersionAttribute

M = TypeVar("M", bound=Model)

#: Quick looks, and a lease that the tests can outlive on a clock of their own.
QUICK = LockSettings(poll_interval=0.01, max_poll_interval=0.05, request_timeout=1.0)
#: The same with an entry for each caller, so that a thread stands for another process.
APART = replace(QUICK, max_callers_per_entry=1)


def meta(table_name: str, **options: Any) -> Any:
    """Return the `Meta` of a class statement: these options, and quick locks unless it has other `lock_settings`."""
    return type("Meta", (), {"table_name": table_name, "lock_settings": QUICK, **options})


@overload
def declare(name: str, /, **members: Any) -> type[LockableModel]: ...
@overload
def declare(name: str, base: type[M], /, **members: Any) -> type[M]: ...
@overload
def declare(name: str, /, *bases: type[Any], **members: Any) -> Any: ...
def declare(
    name: str,
    /,
    *bases: type[Any],
    table_name: str | None = None,
    hash_key: str = "key",
    range_key: str | None = None,
    lock: bool | LockAttribute = False,
    version: bool | Attribute[int] | None = None,
    numbers: str = "",
    texts: str = "",
    **members: Any,
) -> Any:
    """Return the model that a class statement in the caller's module would make.

    Args:
        name: of the class.
        bases: `LockableModel` unless given; `Model` is added to mixins.
        table_name: `name` unless given.
        hash_key: the name of a text; not used if a base or another attribute is the hash key.
        range_key: the name of a number.
        lock: True for a `LockAttribute`.
        version: True for a `VersionAttribute` of the package; unless given, a model with a lock has one.
        numbers: the names of numbers that are 0 unless set.
        texts: the names of texts that an item need not have.
        members: other attributes, indexes, and the options of `Meta`.
    """
    bases = bases or (LockableModel,)
    if not any(issubclass(base, Model) for base in bases):
        bases = (*bases, Model)
    body: dict[str, Any] = {each: NumberAttribute(default=0) for each in numbers.split()}
    body |= {each: UnicodeAttribute(null=True) for each in texts.split()}
    body |= {each: value for each, value in members.items() if isinstance(value, (Attribute, Index))}
    options = {each: value for each, value in members.items() if each not in body}
    is_keyed = any(getattr(base, "_hash_keyname", None) for base in bases)
    if not is_keyed and not any(getattr(each, "is_hash_key", False) for each in body.values()):
        body[hash_key] = UnicodeAttribute(hash_key=True)
    if range_key:
        body[range_key] = NumberAttribute(range_key=True)
    if lock:
        body["lock"] = LockAttribute() if lock is True else lock
    if version is None:
        version = bool(lock) or "lock_table" in members
    if version:
        body["version"] = VersionAttribute() if version is True else version
    body["Meta"] = meta(table_name or name, **options)
    body["__module__"] = sys._getframe(1).f_globals["__name__"]
    return types.new_class(name, bases, exec_body=lambda namespace: namespace.update(body))


class Account(LockableModel):
    """The lock and a version in the item."""

    Meta = meta("accounts")

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Document(LockableModel):
    """The lock in the item, with a version, a range key and renamed attributes."""

    Meta = meta("documents")

    folder = UnicodeAttribute(hash_key=True, attr_name="pk")
    number = NumberAttribute(range_key=True, attr_name="sk")
    body = UnicodeAttribute(null=True, attr_name="b")
    version = StockVersionAttribute(attr_name="v")
    mutex = LockAttribute(attr_name="lck")


#: Locks without items.
Locks = declare("Locks", NamedLock, table_name="locks")


class Device(LockableModel):
    """The lock in a row of its own, a version."""

    Meta = meta("devices", lock_table=Locks)

    device_id = UnicodeAttribute(hash_key=True)
    state = UnicodeAttribute(null=True)
    total = NumberAttribute(default=0)
    version = StockVersionAttribute()


def key_of(item: Model) -> tuple[Any, Any]:
    """Return the hash key and the range key of an item; None for no range key."""
    return getattr(item, str(item._hash_keyname)), item._range_keyname and getattr(item, item._range_keyname)
