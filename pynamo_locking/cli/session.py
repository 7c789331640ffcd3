"""The session of a command: its settings, its models, its tables."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import typer
from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from typing_extensions import Self

from pynamo_locking import LockableMixin, LockableModel, LockAttribute, NamedLock, TransactionTable, VersionAttribute
from pynamo_locking._facade import has_lock_place, inspection, set_connection, tables
from pynamo_locking.cli import terminal
from pynamo_locking.cli.terminal import Exit, Problem, usage
from pynamo_locking.recipes import IdempotencyTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

_T = TypeVar("_T", bound=Model)


# Where the tables are: options, environment variables, then the file that the user names, and no other: a file in
# the working directory may belong to another person, and would say which code is run, and where signed requests go.


PREFIX: Final = "PYNAMO_LOCKING_"
SECTION: Final = "pynamo-locking"
_TOML: Final[Any] = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

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
    call_table: str | None = None  # of idempotent calls
    log_file: str | None = None  # to which warnings, and every lock that is broken, are appended
    config: str | None = None  # the file that others of these were read from


CONFIG: Final = "config"
#: What the file may say.
NAMES: Final = tuple(field.name for field in fields(Settings) if field.name != CONFIG)


def load_settings(options: Mapping[str, str | None]) -> Settings:
    """Return the settings: each from an option, else from its variable, else from the file of ``config``, if named.

    Raises:
        Problem: the file cannot be read, has no settings of ours, or an unknown one.
    """
    config = options.get(CONFIG) or os.environ.get(PREFIX + CONFIG.upper())
    written = {} if config is None else _from_file(Path(config))
    chosen = {
        name: options.get(name) or os.environ.get(PREFIX + name.upper()) or written.get(name.replace("_", "-"))
        for name in NAMES
    }
    settings = Settings(**chosen, config=config)
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
        tool = _TOML.loads(path.read_bytes().decode()).get("tool")
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # both of TOML and of UTF-8
        raise usage(f"{path} cannot be read: {error}.") from error
    found = tool.get(SECTION) if isinstance(tool, dict) else None
    if found is None:
        raise usage(f"{path} has no [tool.{SECTION}].")
    if not isinstance(found, dict):
        raise usage(f"{path}: tool.{SECTION} must be a table of settings, as in [tool.{SECTION}].")
    known = sorted(name.replace("_", "-") for name in NAMES)
    for name, value in sorted(found.items()):
        if name not in known:
            raise usage(f"{path} has {name!r} in [tool.{SECTION}], which is not known. Known are: {', '.join(known)}.")
        if not isinstance(value, str):
            raise usage(f"{path}: {name} in [tool.{SECTION}] must be a string.")
    return found


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


def _meta(settings: Settings, table: str) -> Any:
    values = {"table_name": table, "region": settings.region, "host": settings.endpoint, **_TIMEOUTS}
    return type("Meta", (), {name: value for name, value in values.items() if value is not None})


def lock_table(settings: Settings, table: str) -> type[NamedLock]:
    """Return a class of locks on names, kept in that table."""
    meta, named = _meta(settings, table), settings.transaction_table
    if named is not None and not is_spec(named):  # an application may write such rows in long transactions
        meta.transaction_table = transaction_table(settings, named)

    class Locks(NamedLock):
        Meta = meta

    return Locks


def transaction_table(settings: Settings, table: str) -> type[TransactionTable]:
    """Return the class of a table of transactions."""

    class Transactions(TransactionTable):
        Meta = _meta(settings, table)

    return Transactions


def call_table(settings: Settings, table: str) -> type[IdempotencyTable]:
    """Return the class of a table of idempotent calls."""

    class Calls(IdempotencyTable):
        Meta = _meta(settings, table)

    return Calls


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
        # What can be locked has a version. No command saves an item, so where it is stored does not matter.
        "version_": VersionAttribute(attr_name="pynamo_locking_version"),
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
                f"there is no module {missing!r} for {spec!r}, seen from this directory, or from that of "
                f"the --config file, and by this Python: run it where `python -c 'import {module_name}'` works."
            ) from error
        raise usage(f"{spec} cannot be imported: {type(error).__name__}: {error}.") from error


@contextmanager
def reached_by(settings: Settings, model: type[Model]) -> Iterator[None]:
    """Use the Region and the endpoint of the settings, if given, for a model and the tables that its Meta names."""
    given = {"region": settings.region, "host": settings.endpoint}
    changed = {name: value for name, value in given.items() if value is not None}
    with ExitStack() as ends:
        each: Any
        for each in inspection.with_tables([model]) if changed else ():
            ends.callback(set_connection, each, None)
            ends.callback(setattr, each, "Meta", each.Meta)
            each.Meta = type("Meta", (each.Meta,), changed)
            set_connection(each, None)
        yield


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
        if self.settings.config is not None and not self.as_json:
            terminal.say(f"settings from {Path(self.settings.config).absolute()}")
        with ExitStack() as ends:  # should one of them fail
            ends.enter_context(profile_in_use(self.settings.profile))
            ends.enter_context(terminal.logging_to(self.settings.log_file, as_json=self.as_json))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.close()

    # Printing

    def show(self, document: Mapping[str, Any], *people: RenderableType, is_well: bool = True) -> int:
        """Print the answer, as JSON or for people; return the exit code, 1 if all is not well."""
        with terminal.written():
            if self.as_json:
                print(terminal.dump(document))  # noqa: T201 - the answer
            else:
                console = terminal.console()
                for each in people:
                    console.print(each)
        return Exit.OK if is_well else Exit.NO

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
        # The working directory, as for `python -m`; or that of the file, where the modules are that it names.
        place = "" if self.settings.config is None else str(Path(self.settings.config).absolute().parent)
        sys.path.insert(0, place)
        self._ends.callback(sys.path.remove, place)
        found = load_model(spec)
        self._ends.enter_context(reached_by(self.settings, found))
        return found

    def lockable(self, spec: str | None, lock_attribute: str) -> type[LockableMixin]:
        """Return the model whose locks a command is about: one that is named, or the one of the table's items."""
        if spec is None:
            spec = self._table()
            if not is_spec(spec):
                description = tables.describe(lock_table(self.settings, spec))
                return lockable(self.settings, spec, description, lock_attribute)
        found = self.model(spec)
        if not issubclass(found, LockableMixin) or not has_lock_place(found):
            raise usage(
                f"the items of {spec} cannot be locked: it is no LockableModel with a LockAttribute or a "
                f"Meta.lock_table."
            )
        return found

    def locks(self) -> type[NamedLock]:
        """Return the class of locks on names, in the table of the settings."""
        table = self._table()
        return self._named(table, NamedLock, "lock_table") if is_spec(table) else lock_table(self.settings, table)

    def transactions(self, spec: str | None) -> type[TransactionTable]:
        """Return the table of transactions that a command is about."""
        if spec is None:
            spec = self._table("transaction_table")
            if not is_spec(spec):
                return transaction_table(self.settings, spec)
        return self._named(spec, TransactionTable, "transaction_table")

    def calls(self) -> type[IdempotencyTable]:
        """Return the table of idempotent calls that a command is about."""
        table = self._table("call_table")
        if not is_spec(table):
            return call_table(self.settings, table)
        found = self.model(table)
        if issubclass(found, IdempotencyTable):
            return found
        raise usage(f"{table} is no IdempotencyTable.")

    def _named(self, spec: str, kind: type[_T], option: str) -> type[_T]:
        """Return the class of a kind of table that a model is, or names in an option of its Meta."""
        model = self.model(spec)
        found = model if issubclass(model, kind) else getattr(model.Meta, option, None)
        if isinstance(found, type) and issubclass(found, kind):
            return found
        raise usage(f"{spec} is no {kind.__name__}, and names none in Meta.{option}.")

    def _table(self, setting: str = "table") -> str:
        found: str | None = getattr(self.settings, setting)
        if found is None:
            raise usage(
                f"which table? Name it with --table, {PREFIX}{setting.upper()}, or {setting.replace('_', '-')} in "
                f"[tool.{SECTION}] of a file that you name with --config."
            )
        return found
