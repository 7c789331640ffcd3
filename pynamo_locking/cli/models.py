"""Models: those that are named as ``module:Class``, and those that are made here for the name of a table."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableMixin, LockableModel, LockAttribute, NamedLock, TransactionTable
from pynamo_locking._edge import inspection
from pynamo_locking.cli.problems import usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking.cli.settings import Settings

#: Shorter than PynamoDB's own 15 and 30 s: a person waits at the terminal.
_TIMEOUTS: Final = {"connect_timeout_seconds": 5, "read_timeout_seconds": 10}

_KINDS: Final[Mapping[str, type[Any]]] = {"S": UnicodeAttribute, "N": NumberAttribute, "B": BinaryAttribute}

_MISSING: Final = object()


def _meta(settings: Settings, table: str) -> type[Any]:
    values = {"table_name": table, "region": settings.region, "host": settings.endpoint, **_TIMEOUTS}
    return type("Meta", (), {name: value for name, value in values.items() if value is not None})


def lock_table(settings: Settings, table: str) -> type[NamedLock]:
    """Return a class of locks on names, kept in that table."""
    meta = _meta(settings, table)
    if settings.transaction_table is not None and not is_spec(
        settings.transaction_table
    ):  # an application may write such rows in long transactions
        meta.transaction_table = transaction_table(settings, settings.transaction_table)
    return cast("type[NamedLock]", type("Locks", (NamedLock,), {"Meta": meta, "__module__": __name__}))


def transaction_table(settings: Settings, table: str) -> type[TransactionTable]:
    """Return the class of a table of transactions."""
    made = type("Transactions", (TransactionTable,), {"Meta": _meta(settings, table), "__module__": __name__})
    return cast("type[TransactionTable]", made)


def lockable(
    settings: Settings, table: str, description: Mapping[str, Any], lock_attribute: str
) -> type[LockableModel]:
    """Return a class for the items of a table that DynamoDB has described: a `NamedLock` if the keys are its own."""
    keys = {each["KeyType"]: each["AttributeName"] for each in description["KeySchema"]}
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    hash_name, range_name = keys["HASH"], keys.get("RANGE")
    if (hash_name, types[hash_name], range_name, lock_attribute) == ("name", "S", None, "lock"):
        return lock_table(settings, table)
    body: dict[str, Any] = {
        "Meta": _meta(settings, table),
        "__module__": __name__,
        "hash_key_": _key_attribute(hash_name, types[hash_name], hash_key=True),
        "lock_": LockAttribute(attr_name=lock_attribute),
    }
    if range_name is not None:
        body["range_key_"] = _key_attribute(range_name, types[range_name], range_key=True)
    return cast("type[LockableModel]", type("Items", (LockableModel,), body))


def _key_attribute(name: str, kind: str, **role: bool) -> Any:
    options: dict[str, Any] = {"legacy_encoding": False} if kind == "B" else {}
    return _KINDS[kind](attr_name=name, **role, **options)


# Models of an application


def is_spec(table: str) -> bool:
    """Tell whether a setting for a table names a class, as ``module:Class``: an ARN has a colon as well."""
    return ":" in table and not table.startswith("arn:")


def as_locks(spec: str, model: type[Model]) -> type[NamedLock]:
    """Return the class of locks on names that a model is, or names; else raise a `Problem`."""
    found = model if issubclass(model, NamedLock) else getattr(model.Meta, "lock_table", None)
    if isinstance(found, type) and issubclass(found, NamedLock):
        return found
    raise usage(f"{spec} is no NamedLock, and names none in Meta.lock_table.")


def load(spec: str) -> type[Model]:
    """Import a model named as ``module:Class``; raise a `Problem` if that is not possible."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise usage(f"{spec!r} names no model: write module:Class, such as shop.models:Order.")
    found: Any = _imported(module_name, spec)
    for part in name.split("."):
        found = getattr(found, part, _MISSING)
    if found is _MISSING:
        raise usage(f"the module {module_name} has no {name!r}, so {spec!r} names no model.")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise usage(f"{spec} is not a model: it is {found!r}, and no subclass of pynamodb's Model.")
    if getattr(getattr(found, "Meta", None), "table_name", None) is None:
        raise usage(f"{spec} has no Meta.table_name, so there is no table of it.")
    return found


def _imported(module_name: str, spec: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise usage(
                f"there is no module {missing!r} for {spec!r}, seen from this directory and this Python: "
                f"run it where `python -c 'import {module_name}'` works."
            ) from error
        raise usage(f"{spec} cannot be imported: {type(error).__name__}: {error}.") from error


@contextmanager
def modules_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported, as ``python -m`` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


@contextmanager
def reached_by(settings: Settings, model: type[Model]) -> Iterator[None]:
    """Use the Region and the endpoint of the settings, if given, for a model and the tables that its Meta names."""
    changed = {
        name: value for name, value in (("region", settings.region), ("host", settings.endpoint)) if value is not None
    }
    models = [each for each in inspection.with_tables([model]) if changed]
    before = [(each, {name: vars(each.Meta).get(name, _MISSING) for name in changed}) for each in models]
    for each in models:
        _set(each, changed)
    try:
        yield
    finally:
        for each, values in before:
            _set(each, values)


def _set(model: type[Model], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not _MISSING:
            setattr(model.Meta, name, value)
        elif name in vars(model.Meta):
            delattr(model.Meta, name)
    model._connection = None


def as_lockable(spec: str, model: type[Model]) -> type[LockableMixin]:
    """Return the model, whose items can be locked; else raise a `Problem`."""
    if not issubclass(model, LockableMixin) or not model._has_lock_place():
        raise usage(
            f"the items of {spec} cannot be locked: it is no LockableModel with a LockAttribute or a Meta.lock_table."
        )
    return model


def as_transactions(spec: str, model: type[Model]) -> type[TransactionTable]:
    """Return the table of transactions that a model is, or names; else raise a `Problem`."""
    found = model if issubclass(model, TransactionTable) else getattr(model.Meta, "transaction_table", None)
    if isinstance(found, type) and issubclass(found, TransactionTable):
        return found
    raise usage(f"{spec} is no TransactionTable, and names none in Meta.transaction_table.")
