"""System checks: ``manage.py check``, and with ``--deploy`` and ``--database`` those that make requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import checks
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import ExpiringMixin, LockableMixin
from pynamo_locking.contrib import _http
from pynamo_locking.contrib.django import conf

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_keys(**_: Any) -> list[Any]:
    """Find keys of the settings that nothing reads (E001)."""
    unknown = sorted(conf.configuration().keys() - conf.KEYS)
    hint = f"There are: {', '.join(sorted(conf.KEYS))}."
    return [checks.Error(f"PYNAMO_LOCKING has no key {key!r}.", hint=hint, id="pynamo_locking.E001") for key in unknown]


def check_handlers(**_: Any) -> list[Any]:
    """Find handlers of statuses that lead to no function (E003)."""
    wrong = {f"HANDLER{status}": _wrong_with_handler(status) for status in sorted(_http.STATUSES)}
    return [
        checks.Error(f"PYNAMO_LOCKING[{key!r}] leads to no function: {why}.", id="pynamo_locking.E003")
        for key, why in wrong.items()
        if why
    ]


def _wrong_with_handler(status: int) -> str:
    try:
        handler: Any = conf.handler(status)
    except ImportError as error:
        return str(error)
    return "" if handler is None or callable(handler) else "it cannot be called"


def check_models(**_: Any) -> list[Any]:
    """Find leases that end within one long request (W001), and expiring models without a time of expiry (W002)."""
    return [
        warning for model in conf.models() for found in (_short_leases, _without_expiry) for warning in found(model)
    ]


def _short_leases(model: Any) -> Iterator[Any]:
    # Where a heartbeat renews the lock, a slow request of its holder does no harm.
    if not issubclass(model, LockableMixin) or model.lock_settings().heartbeat:
        return
    meta: Any = model.Meta
    longest = (meta.max_retry_attempts + 1) * (meta.connect_timeout_seconds + meta.read_timeout_seconds)
    lease = model.lock_settings().lease
    if lease < longest:
        yield checks.Warning(
            f"One request of {model.__name__} can take {longest:g} s, and its locks, which no heartbeat renews, "
            f"last {lease:g} s.",
            hint="Take shorter CONNECT_TIMEOUT and READ_TIMEOUT, fewer MAX_RETRIES, a longer lease, or a heartbeat.",
            obj=model,
            id="pynamo_locking.W001",
        )


def _without_expiry(model: Any) -> Iterator[Any]:
    if issubclass(model, ExpiringMixin) and model._ttl_attribute() is None:
        yield checks.Warning(
            f"{model.__name__} derives from ExpiringMixin and has no time of expiry, so its items never expire.",
            hint="Declare `expires = TTLAttribute(null=True)`.",
            obj=model,
            id="pynamo_locking.W002",
        )


def check_tables(databases: Any = None, **_: Any) -> list[Any]:
    """Find tables that are absent (E002), or cannot be described (W003). 1 request for each.

    Only with both ``--deploy`` and ``--database``: checks that cost requests have to be asked for.
    """
    if not databases:
        return []
    found = []
    for model in conf.models():
        try:
            if not model.exists():
                text, hint = f"There is no table {model.Meta.table_name!r}.", "Run `manage.py dynamodb_tables create`."
                found.append(checks.Error(text, hint=hint, obj=model, id="pynamo_locking.E002"))
        except PynamoDBException as error:
            found.append(checks.Warning(f"Nothing is known of it: {error}", obj=model, id="pynamo_locking.W003"))
    return found
