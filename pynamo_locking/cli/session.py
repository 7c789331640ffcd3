"""The session of a command: its settings, its models, its tables."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import typer
from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from typing_extensions import Self

from pynamo_locking import LockableMixin, LockableModel, LockAttribute, NamedLock, TransactionTable
from pynamo_locking._facade import has_lock_place, inspection, set_connection, tables
from pynamo_locking.cli import terminal
from pynamo_locking.cli.terminal import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console


# Where the tables are: options, environment variables, then ``[tool.pynamo-locking]`` of ``pyproject.toml``.


PREFIX: Final = "PYNAMO_LOCKING_"
SECTION: Final = "pynamo-locking"

#: The name of the section, in any of the forms that TOML allows, but not as a dependency, for example. Without it the
#: file is not parsed: Python 3.10 has no parser.
_HEADING: Final = re.compile(
    rb"""^\s*\[?\[?\s*(["']?)tool\1\s*\.\s*(["']?)pynamo-locking\2\s*[\].=]|^\s*(["']?)pynamo-locking\3\s*[.=]""",
    re.MULTILINE,
)

#: A profile replaces these: botocore would prefer them to a profile named by the environment.
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Settings:
    """Where the tables are, and how to reach them."""

    region: str | None = None  # None for that of the profile or of AWS_DEFAULT_REGION
    profile: str | None = None  # None for botocore's usual search
    endpoint: str | None = None  # of another DynamoDB, such as an emulator
    table: str | None = None  # of locks, or of the model whose items carry them
    transaction_table: str | None = None
    log_file: str | None = None  # to which warnings, and every lock that is broken, are appended


NAMES: Final = tuple(field.name for field in fields(Settings))


def load_settings(options: Mapping[str, str | None], folder: Path | None = None) -> Settings:
    """Return the settings: each from an option, else from its variable, else from ``pyproject.toml`` in the folder.

    Raises:
        Problem: the file cannot be read, or has an unknown setting.
    """
    written = _from_file((Path() if folder is None else folder) / "pyproject.toml")
    chosen = {
        name: options.get(name) or os.environ.get(PREFIX + name.upper()) or written.get(name.replace("_", "-"))
        for name in NAMES
    }
    settings = Settings(**chosen)
    if settings.endpoint is not None and not _is_url(settings.endpoint):
        raise usage(f"the endpoint {settings.endpoint!r} is no URL: it is like http://localhost:8000.")
    return settings


def _is_url(text: str) -> bool:
    """Tell whether botocore takes that as an endpoint; it would say no with a ValueError."""
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False
    return is_complete and bool(is_valid_endpoint_url(text) or is_valid_ipv6_endpoint_url(text))


def _from_file(path: Path) -> dict[str, str]:
    try:
        path = path.absolute()  # the working directory may have been deleted
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}.") from error
    if not _HEADING.search(content):
        return {}
    found = _section(_parsed(path, content))
    if not isinstance(found, dict):
        raise usage(f"{path}: tool.{SECTION} must be a table of settings, as in [tool.{SECTION}].")
    known = {name.replace("_", "-") for name in NAMES}
    unknown = sorted(found.keys() - known)
    if unknown:
        raise usage(
            f"{path} has {unknown[0]!r} in [tool.{SECTION}], which is not known. Known are: {', '.join(sorted(known))}."
        )
    wrong = sorted(name for name, value in found.items() if not isinstance(value, str))
    if wrong:
        raise usage(f"{path}: {wrong[0]} in [tool.{SECTION}] must be a string.")
    return dict(found)


def _section(document: Mapping[str, Any]) -> Any:
    tool = document.get("tool", {})
    return tool.get(SECTION, {}) if isinstance(tool, dict) else {}


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    parser = _toml_parser(path)
    try:
        document: dict[str, Any] = parser.loads(content.decode())
    except ValueError as error:  # both of TOML and of UTF-8
        raise usage(f"{path} cannot be read: {error}.") from error
    return document


def _toml_parser(path: Path) -> Any:
    for name in ("tomllib", "tomli"):  # the first one is part of Python since 3.11
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise Problem(
        "no_toml",
        f"{path} has a section [tool.{SECTION}], and this Python cannot read TOML: pip install tomli, use Python 3.11 "
        f"or newer, or set the {PREFIX}... variables and delete the section.",
        Exit.USAGE,
    )


@contextlib.contextmanager
def profile_in_use(profile: str | None) -> Iterator[None]:
    """Let botocore use a profile in all threads of this process, rather than keys from the environment."""
    if profile is None:
        yield
        return
    before = {name: os.environ.pop(name, None) for name in ("AWS_PROFILE", *_KEYS)}
    os.environ["AWS_PROFILE"] = profile
    try:
        yield
    finally:
        del os.environ["AWS_PROFILE"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


# Models: those that are named as ``module:Class``, and those that are made here for the name of a table.


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


def load_model(spec: str) -> type[Model]:
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
    set_connection(model, None)


def as_lockable(spec: str, model: type[Model]) -> type[LockableMixin]:
    """Return the model, whose items can be locked; else raise a `Problem`."""
    if not issubclass(model, LockableMixin) or not has_lock_place(model):
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


# What every command begins with: settings, the way to print, and the models it is about.


class Session:
    """One run of one command: its settings, from options, environment and file, and whether it prints JSON."""

    def __init__(self, options: Mapping[str, str | None], *, as_json: bool) -> None:
        self.as_json = as_json
        #: Of the process as it was started, for programs that it starts.
        self.environment: dict[str, str] = dict(os.environ)
        self.settings: Settings = load_settings(options)
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ends:  # should one of them fail
            ends.enter_context(profile_in_use(self.settings.profile))
            ends.enter_context(terminal.logging_to(self.settings.log_file, as_json=self.as_json))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.close()

    # Printing

    def show(self, document: Mapping[str, Any], people: Callable[[Console], object]) -> None:
        """Print the answer: as JSON, or as it is printed for people."""
        with terminal.written():
            if self.as_json:
                print(terminal.dump(document))  # noqa: T201 - the answer
            else:
                people(terminal.console())

    def confirm(self, question: str) -> None:
        """Ask the person, and go on only after a yes. Ctrl-C is a KeyboardInterrupt, all else a `Problem`."""
        if self.as_json:
            raise usage("with --json no question is asked: say --yes as well.")
        try:
            is_sure = typer.confirm(question, err=True)
        except typer.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise usage("there was no answer, so nothing was changed; without a terminal say --yes.") from None
        if not is_sure:
            raise Problem("not_confirmed", "nothing was changed.", Exit.NO)

    # Tables and models

    def model(self, spec: str) -> type[Model]:
        """Return an application's model, in the Region and at the endpoint of the settings if they name any."""
        self._ends.enter_context(modules_from_here())
        found = load_model(spec)
        self._ends.enter_context(reached_by(self.settings, found))
        return found

    def lockable(self, spec: str | None, lock_attribute: str) -> type[LockableMixin]:
        """Return the model whose locks a command is about: one that is named, or the one of the table's items."""
        if spec is not None:
            return as_lockable(spec, self.model(spec))
        table = self._table()
        if is_spec(table):
            return as_lockable(table, self.model(table))
        description = tables.describe(lock_table(self.settings, table))
        return lockable(self.settings, table, description, lock_attribute)

    def locks(self) -> type[NamedLock]:
        """Return the class of locks on names, in the table of the settings."""
        table = self._table()
        return as_locks(table, self.model(table)) if is_spec(table) else lock_table(self.settings, table)

    def transactions(self, spec: str | None) -> type[TransactionTable]:
        """Return the table of transactions that a command is about."""
        table = self.settings.transaction_table
        spec = table if spec is None and table is not None and is_spec(table) else spec
        if spec is not None:
            return as_transactions(spec, self.model(spec))
        if self.settings.transaction_table is None:
            raise usage(
                "which table of transactions? Name it with --table, PYNAMO_LOCKING_TRANSACTION_TABLE, or "
                "transaction-table in [tool.pynamo-locking] of pyproject.toml; or a model with --model module:Class."
            )
        return transaction_table(self.settings, self.settings.transaction_table)

    def _table(self) -> str:
        if self.settings.table is None:
            raise usage(
                "which table? Name it with --table, PYNAMO_LOCKING_TABLE, or table in [tool.pynamo-locking] of "
                "pyproject.toml."
            )
        return self.settings.table
