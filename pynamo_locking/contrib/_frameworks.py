"""What frameworks have in common: configuration, errors as HTTP responses, entity tags, the table of locks."""

from __future__ import annotations

import json
import math
import re
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pynamodb.exceptions import DoesNotExist

from pynamo_locking import LockableMixin, LockSettings
from pynamo_locking._facade import (
    LONGEST_LEASE_S,
    believed,
    brief,
    has_connection,
    inspection,
    lock_attribute_of,
    logger,
    plain,
    set_connection,
    versions,
)
from pynamo_locking.exceptions import (
    CallAbandoned,
    ConfigurationError,
    Conflict,
    InvalidInput,
    ItemLocked,
    LockingError,
    LockLost,
    LockTimeout,
    NotUnique,
    OutcomeUnknown,
    OverlapError,
    PayloadMismatch,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pynamodb.models import Model

    from pynamo_locking.inspection import LockState

_M = TypeVar("_M", bound="Model")


# What an error is over HTTP


class PreconditionRequired(LockingError):  # noqa: N818 - the name of the status
    """The request changes an item and does not say which version of it (428): it has no ``If-Match``."""


class MalformedPrecondition(PreconditionRequired):
    """The request has an ``If-Match`` that is not a list of entity tags (400)."""

    _entry = PreconditionRequired.__name__


class Problem(NamedTuple):
    """An answer in the form of RFC 9457, whose body is sent as ``application/problem+json``."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


PROBLEM_TYPE: Final = "urn:pynamo-locking:problem:"
CONTENT_TYPE: Final = "application/problem+json"


@dataclass(frozen=True)
class _Kind:
    status: int
    code: str
    detail: str
    facts: tuple[str, ...] = ()


#: From the leaf to the root: the first that fits counts. No text here says what is stored, or where.
_KINDS: Final[dict[type[Exception], _Kind]] = {
    MalformedPrecondition: _Kind(
        400, "malformed-if-match", 'If-Match has to be *, or ETags in double quotes as they were sent: "3-a", "4-b".'
    ),
    PreconditionRequired: _Kind(428, "precondition-required", "Send If-Match with the ETag of what you have read."),
    StaleVersion: _Kind(
        409, "stale-version", "It was changed since it was read. Read it again.", ("expected", "actual")
    ),
    ItemLocked: _Kind(423, "item-locked", "Another owner holds its lock. Try again later.", ("ticket",)),
    TransactionAborted: _Kind(
        409, "transaction-aborted", "Another transaction needed the same item. Try again.", ("reason",)
    ),
    NotUnique: _Kind(409, "not-unique", "Another item has this value already.", ("fields",)),
    TransactionConflict: _Kind(409, "transaction-conflict", "Other transactions kept it busy. Try again later."),
    Conflict: _Kind(409, "conflict", "It is not in a state in which this can be done."),
    OverlapError: _Kind(409, "overlap", "The interval is taken, at least in part."),
    CallAbandoned: _Kind(409, "call-abandoned", "Whether this was done is not known. A person has to find out."),
    PayloadMismatch: _Kind(422, "payload-mismatch", "This key was used for another request. Take a new one."),
    InvalidInput: _Kind(422, "invalid-input", "A key, an interval or a time of this request cannot be used."),
    DoesNotExist: _Kind(404, "not-found", "There is no such item."),
    LockTimeout: _Kind(423, "lock-timeout", "Another owner holds its lock. Try again later."),
    # Not 503 or 504: proxies and clients retry those by themselves, and the request may have been applied.
    LockLost: _Kind(500, "lock-lost", "A lock was lost on the way: a part may have been done.", ("ticket", "reason")),
    OutcomeUnknown: _Kind(
        500, "outcome-unknown", "This may have been done, or not. Look before you try again.", ("write_id",)
    ),
}
_LOCKED: Final = 423
STATUSES: Final = frozenset({kind.status for kind in _KINDS.values()} | {412, 503})


def answered(*, not_found: object) -> tuple[type[Exception], ...]:
    """Return the errors that have an answer, an absent item if wanted; any other error is left to the application."""
    return tuple(kind for kind in _KINDS if not_found or kind is not DoesNotExist)


def answer(error: Exception, environ: dict[str, Any], request: str, base: str | None) -> Problem:
    """Return the answer to a request, and log an error that is no ordinary conflict: frameworks log no answers."""
    found = problem(error, is_conditional=is_conditional(environ), base=base)
    if found.status in (500, 503):
        logger.error("%s: %s", request, error, exc_info=error)
    return found


def problem(error: Exception, *, is_conditional: bool, base: str | None = None) -> Problem:
    """Return the answer to a request that has failed with one of the errors in `answered`.

    It has numbers, codes and names of attributes, never values, keys, owners or items, nor the text of the error,
    which is for the log. Its type is the problem's code, appended to `base`. If the request is conditional, a stale
    version is a 412.
    """
    kind = next(kind for error_class, kind in _KINDS.items() if isinstance(error, error_class))
    facts = {name: getattr(error, name) for name in kind.facts}
    headers = {}
    if isinstance(error, StaleVersion):
        kind = _of_stale(kind, error, is_conditional=is_conditional)
    if isinstance(error, (ItemLocked, LockTimeout)):
        state = _queue_of(error)
        if state is None and isinstance(error, LockTimeout):
            kind = _Kind(503, "no-answer", "The database did not answer. Try again later.")
        facts |= {"ticket": state.holders[0].ticket} if state is not None and state.holders else {}
        headers = {"Retry-After": str(_retry_after_s(state))} if kind.status == _LOCKED else {}
    title = kind.code.replace("-", " ").capitalize()
    body = {"type": f"{PROBLEM_TYPE if base is None else base}{kind.code}", "title": title, "status": kind.status}
    return Problem(kind.status, {**body, "detail": kind.detail, "code": kind.code, **facts}, headers)


def _of_stale(kind: _Kind, error: StaleVersion, *, is_conditional: bool) -> _Kind:
    """Return what a stale version is in this request. Without an expected version, no version was changed."""
    if error.expected is None and error.actual is not None:
        kind = replace(kind, detail="There is one already, and no strong ETag in If-Match names a version of it.")
    return replace(kind, status=412) if is_conditional else kind


def _queue_of(error: ItemLocked | LockTimeout) -> LockState | None:
    if isinstance(error, LockTimeout):
        return error.queue
    model, image = error.stored or (None, {})
    lock = None if model is None else lock_attribute_of(model)
    stored = None if lock is None else image.get(lock.attr_name)
    state: LockState | None = None if lock is None or stored is None else lock.deserialize(lock.get_value(stored))
    return state


def _retry_after_s(state: LockState | None) -> int:
    """Return after how many seconds to try again: the rest of the lease, if its holders have stopped renewing it.

    A live holder renews its lease after each third of it. It may release the lock at any moment: 1 s.
    """
    holders = () if state is None else state.holders
    if not holders or any(holder.age < holder.lease / 2 for holder in holders):
        return 1
    ends_ms = (believed(holder.lease_ms, holder.until_ms, LONGEST_LEASE_S)[1] - holder.read_ms for holder in holders)
    return max(1, math.ceil(max(ends_ms) / 1000))


# Entity tags

_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_TAGS: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))*")
#: Noted in a request's environ, which all objects that wrap the request share.
_IS_CONDITIONAL: Final = "pynamo_locking.is_conditional"
#: Where a request of Starlette has its environ.
_ENVIRON: Final = "pynamo_locking.environ"


def _tags_in(header: str) -> list[str] | None:
    """Return the strong tags in an ``If-Match``, None for ``*``. Weak tags match nothing, as RFC 9110 compares."""
    if header.strip(" \t") == "*":
        return None
    if _TAGS.fullmatch(header) is None:
        raise MalformedPrecondition("the If-Match of this request is no list of ETags. Nothing was read or written.")
    return [tag for weak, tag in _TAG.findall(header) if not weak]


def environ_of(request: Any) -> dict[str, Any]:
    """Return what is read of a request, and noted of it, in WSGI's names; all who wrap the request share it."""
    for of_django_or_flask in ("META", "environ"):
        if hasattr(request, of_django_or_flask):
            return getattr(request, of_django_or_flask)  # type: ignore[no-any-return]
    if _ENVIRON not in request.scope:
        environ = request.scope[_ENVIRON] = {"REQUEST_METHOD": request.scope["method"]}
        for name in ("If-Match", "If-None-Match"):
            if lines := request.headers.getlist(name):
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = ", ".join(lines)
    return request.scope[_ENVIRON]  # type: ignore[no-any-return]


def if_match(request: Any, item: type[_M] | _M, hash_key: Any = None, range_key: Any = None) -> _M:
    """Return an item that is written only if it is still what the client has read, as ``If-Match`` says.

    DynamoDB compares in the write itself, so no other write can intervene. For the rest of the request a stale version
    is answered by 412. It blocks where it has to read: in a coroutine of Starlette or FastAPI await `aif_match`.

    Args:
        request: the request with the header.
        item: the item as it was just read, or its model. With a model the item is read only if ``If-Match`` has several
            tags, a ``*`` or a tag without a write id; otherwise the instance has only its keys and its version. That is
            enough to `update` or `delete` it; to `save` it, set all its attributes.
        hash_key: with a model.
        range_key: with a model.

    Raises:
        PreconditionRequired: there is no ``If-Match``; answered by 428. Or it is not a list of tags; answered by 400.
        StaleVersion: it names another version, or there is no such item.
        ConfigurationError: the model has no version.
    """
    environ = environ_of(request)
    environ[_IS_CONDITIONAL] = True
    found: _M = matched(environ.get("HTTP_IF_MATCH"), item, hash_key, range_key)
    return found


def is_conditional(environ: dict[str, Any]) -> bool:
    """Tell whether a view has compared ``If-Match`` with an item, or the client wants to create one or nothing."""
    if environ.get("REQUEST_METHOD") not in ("GET", "HEAD") and environ.get("HTTP_IF_NONE_MATCH", "").strip() == "*":
        return True
    return _IS_CONDITIONAL in environ


def is_known(environ: dict[str, Any], tag: str) -> bool:
    """Tell whether ``If-None-Match`` has this tag. Compared weakly, as RFC 9110 asks; what is no list has none."""
    header = environ.get("HTTP_IF_NONE_MATCH", "")
    if header.strip(" \t") == "*":
        return True
    return _TAGS.fullmatch(header) is not None and tag.strip('"') in [known for _, known in _TAG.findall(header)]


def etag(item: Model) -> str:
    """Return the ETag of an item, with its quotes.

    ``response.headers["ETag"] = etag(account)``. It is a strong tag: it names the write that made the item what it is.
    No request.

    Args:
        item: a stored item.

    Raises:
        ConfigurationError: the model has no version.
    """
    return f'"{versions.etag_of(item)}"'


def matched(header: str | None, found: Any, hash_key: Any = None, range_key: Any = None) -> Any:
    """Return the item that a request with this ``If-Match`` may write, given the item, or its model and keys."""
    versions.check_model(found)
    if header is None:
        raise PreconditionRequired("this request changes an item and has no If-Match: send the ETag of what was read.")
    return versions.item_of(_tags_in(header), found, hash_key, range_key)


# The configuration of an application, put into the ``Meta`` of its models before they are used.


#: Keys of the configuration, and what they set in the ``Meta`` of each model.
_META: Final = {
    "HOST": "host",
    "REGION": "region",
    "CONNECT_TIMEOUT": "connect_timeout_seconds",
    "READ_TIMEOUT": "read_timeout_seconds",
    "MAX_RETRIES": "max_retry_attempts",
    "MAX_POOL_CONNECTIONS": "max_pool_connections",
}
#: Says how locks behave; all other keys say where the model is.
_SETTINGS: Final = "lock_settings"
KEYS: Final = frozenset({*_META, "TABLE_PREFIX", "LOCK_SETTINGS", "PROBLEM_TYPE", "ANSWER_NOT_FOUND"})


class _Configured(NamedTuple):
    declared: dict[str, Any]
    values: dict[str, Any]


_configured: weakref.WeakKeyDictionary[type, _Configured] = weakref.WeakKeyDictionary()
_configuring = threading.RLock()


def configure(models: Iterable[type[Model]], settings: Mapping[str, Any]) -> None:
    """Put settings, by the names in `KEYS`, into models and the tables that they name, before their first use.

    None, or leaving a key out, keeps what the model says.

    Raises:
        ConfigurationError: a model was used, or configured otherwise, before. A class has one place at a time.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    with _configuring:
        for model in inspection.with_tables(models):
            _configure(model, given)


def _configure(model: type[Model], settings: dict[str, Any]) -> None:
    meta: Any = model.Meta
    before = _configured.get(meta)
    names = (*_META.values(), "table_name", _SETTINGS)
    declared = {name: getattr(meta, name, None) for name in names} if before is None else before.declared
    values = _values(declared, settings)
    if before is not None and _SETTINGS in before.values:  # without this key an application accepts those from before
        values.setdefault(_SETTINGS, before.values[_SETTINGS])
    if before is not None and before.values != values:
        raise _late(model, "configured otherwise, by another application of this process,")
    changed = {name: value for name, value in values.items() if getattr(meta, name, None) != value}
    if changed.keys() - {_SETTINGS} and has_connection(model):
        raise _late(model, "used")
    for name, value in changed.items():
        setattr(meta, name, value)
    _configured[meta] = _Configured(declared, values)


def _values(declared: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    values = {name: settings[key] for key, name in _META.items() if key in settings}
    if settings.get("TABLE_PREFIX"):
        values["table_name"] = f"{settings['TABLE_PREFIX']}{declared['table_name']}"
    given = settings.get("LOCK_SETTINGS")
    if given is not None and declared[_SETTINGS] is None:
        values[_SETTINGS] = given if isinstance(given, LockSettings) else _lock_settings(given)
    return values


def _lock_settings(given: Any) -> LockSettings:
    try:
        return LockSettings(**given)
    except TypeError as error:
        raise ConfigurationError(f"LOCK_SETTINGS has to be a LockSettings, or its arguments: {error}") from error


def _late(model: type[Model], what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{model.__name__} was {what} before it was to be configured here. A model class has one place in a process: "
        f"configure it once, before its first request. A test that needs it elsewhere calls reset() first."
    )


def reset(models: Iterable[type[Model]]) -> None:
    """Undo the configuration of models: for tests that make applications with other configurations."""
    with _configuring:
        for model in inspection.with_tables(models):
            meta: Any = model.Meta
            before = _configured.pop(meta, None)
            if before is not None:
                for name in before.values:
                    setattr(meta, name, before.declared[name])
            set_connection(model, None)


# What operators ask of locks: to show the holders and the waiters, and to break a lock.


#: What is shown of an entry, in this order.
COLUMNS = ("model", "key", "ticket", "state", "owner", "claim", "for", "age", "lease", "lease ends")

Row = dict[str, Any]


def run_lock_command(
    models: Iterable[Any], action: str, options: Mapping[str, Any], is_sure: Callable[[str], bool]
) -> str:
    """Do what the command line says: list, show or break. Return what to print."""
    if action != "break":
        rows = list(listed(models)) if action == "list" else shown(models, options["model"], options["key"])
        return json.dumps(rows) if options["is_json"] else table(rows)
    model, key, ticket = options["model"], options["key"], options["ticket"]
    if not options["yes"] and not is_sure(f"Remove ticket {ticket} from the lock of {model} {'/'.join(key)}?"):
        raise LockingError("Nothing was done.")
    if not broken(models, model, key, ticket):
        raise LockingError(f"Ticket {ticket} is not in that queue (any more).")
    return f"Ticket {ticket} is gone."


def listed(models: Iterable[Any]) -> Iterator[Row]:
    """Yield an entry for each holder and waiter of all locks that these models have.

    Cost: a scan of each table that carries locks, eventually consistent: half a read unit for each 4 KB of it.
    """
    model: Any
    for model in inspection.with_tables(models):
        if issubclass(model, LockableMixin) and lock_attribute_of(model) is not None:
            for lock in inspection.listed(model, is_consistent=False):
                yield from _rows(model, lock)


def shown(models: Iterable[Any], name: str, key: Sequence[str]) -> list[Row]:
    """Return an entry for each holder and waiter of one lock. Cost: 1 consistent read.

    The model is found by the name of its class or table. The key is text, with bytes in base 64. Without its range key
    it is the key of the ranges of the hash key.
    """
    model = _find(models, name)
    state = model.lock_state(*inspection.keys_from_text(model, key))
    return list(_rows(model, inspection.shown("/".join(key), key, state)))


def broken(models: Iterable[Any], name: str, key: Sequence[str], ticket: int) -> bool:
    """Remove an entry from a queue, and write that into the log; return whether it was there.

    Cost: 1 read, 1 write.
    """
    model = _find(models, name)
    is_gone: bool = model.break_lock(*inspection.keys_from_text(model, key), ticket=ticket)
    what = "was broken by hand" if is_gone else "was to be broken by hand, and is not in the queue"
    logger.warning("ticket %d of the lock %s %s %s", ticket, name, brief("/".join(key)), what)
    return is_gone


def table(rows: Iterable[Row]) -> str:
    lines = [COLUMNS, *(tuple(_cell(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, float) else plain(value)


def _rows(model: Any, lock: Row) -> Iterator[Row]:
    key = "/".join(filter(None, lock["key"].values()))
    if lock["unreadable"]:
        logger.warning("the lock %s %s is broken: %s", model.__name__, brief(key), lock["unreadable"])
    for state, entry in inspection.entries(lock):
        yield {
            "model": model.__name__,
            "key": key,
            "ticket": entry["ticket"],
            "state": inspection.shown_role(state, entry),
            "owner": entry["owner"],
            "claim": inspection.shown_lock_mode(entry),
            "for": round(inspection.lasted(entry), 1),
            "age": round(entry["since_renewal_s"], 1),
            "lease": entry["lease_s"],
            "lease ends": entry["lease_ends_at"],
        }


def _find(models: Iterable[Any], name: str) -> Any:
    lockable = [model for model in inspection.with_tables(models) if issubclass(model, LockableMixin)]
    for model in lockable:
        if name in (model.__name__, model.Meta.table_name):
            return model
    known = ", ".join(model.__name__ for model in lockable) or "none"
    raise ConfigurationError(f"{name!r} is no model with locks; there are: {known}.")
