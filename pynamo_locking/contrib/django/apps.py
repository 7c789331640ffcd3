"""The Django application: the dictionary ``settings.PYNAMO_LOCKING``, and system checks.

``MODELS`` lists the dotted paths of the models; the tables in their ``Meta.lock_table``, ``Meta.transaction_table`` and
``Meta.unique_table`` are added. ``HANDLER409``, and the same for any other status of an answer, is the dotted path of a
function that makes the answer instead: ``handler(request, error)``. All other keys are those of Flask, without their
prefix: see `pynamo_locking.contrib.flask.PynamoLocking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import ExpiringMixin, LockableMixin
from pynamo_locking._facade import inspection, ttl_attribute_of
from pynamo_locking.contrib import _frameworks
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamodb.models import Model


KEYS: Final = _frameworks.KEYS | {"MODELS"} | {f"HANDLER{status}" for status in _frameworks.STATUSES}


def configuration() -> dict[str, Any]:
    """Return the dictionary; an empty one if there is none."""
    return dict(getattr(settings, "PYNAMO_LOCKING", {}))


def models() -> list[type[Model]]:
    """Return the models, and the tables that they name; `ImproperlyConfigured` for a path that is no model."""
    found = []
    for path in configuration().get("MODELS", ()):
        try:
            model = import_string(path)
        except ImportError as error:
            raise ImproperlyConfigured(f"PYNAMO_LOCKING['MODELS'] names {path!r}: {error}") from error
        if not (isinstance(model, type) and hasattr(model, "Meta")):
            raise ImproperlyConfigured(f"PYNAMO_LOCKING['MODELS'] names {path!r}, which is no model of PynamoDB.")
        found.append(model)
    return inspection.with_tables(found)


def apply() -> None:
    """Configure the models by the settings; `ImproperlyConfigured` for wrong values, or if one was used before."""
    given = {key: value for key, value in configuration().items() if key in _frameworks.KEYS}
    try:
        _frameworks.configure(models(), given)
    except ConfigurationError as error:
        raise ImproperlyConfigured(f"PYNAMO_LOCKING: {error}") from error


def handler_of(status: int) -> Callable[..., Any] | None:
    """Return the project's own function for a status, None if it has none."""
    path = configuration().get(f"HANDLER{status}")
    return None if path is None else import_string(path) if isinstance(path, str) else path


# System checks: ``manage.py check``, and with ``--deploy`` and ``--database`` those that make requests.


def check_keys(**_: Any) -> list[Any]:
    """Find keys of the settings that nothing reads (E001)."""
    unknown = sorted(configuration().keys() - KEYS)
    hint = f"There are: {', '.join(sorted(KEYS))}."
    return [checks.Error(f"PYNAMO_LOCKING has no key {key!r}.", hint=hint, id="pynamo_locking.E001") for key in unknown]


def check_handlers(**_: Any) -> list[Any]:
    """Find handlers of statuses that lead to no function (E003)."""
    wrong = {f"HANDLER{status}": _wrong_with_handler(status) for status in sorted(_frameworks.STATUSES)}
    return [
        checks.Error(f"PYNAMO_LOCKING[{key!r}] leads to no function: {why}.", id="pynamo_locking.E003")
        for key, why in wrong.items()
        if why
    ]


def _wrong_with_handler(status: int) -> str:
    try:
        handler: Any = handler_of(status)
    except ImportError as error:
        return str(error)
    return "" if handler is None or callable(handler) else "it cannot be called"


def check_models(**_: Any) -> list[Any]:
    """Find leases that end within one long request (W001), and expiring models without a time of expiry (W002)."""
    return [warning for model in models() for found in (_short_leases, _without_expiry) for warning in found(model)]


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
    if issubclass(model, ExpiringMixin) and ttl_attribute_of(model) is None:
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
    for model in models():
        try:
            if not model.exists():
                text, hint = f"There is no table {model.Meta.table_name!r}.", "Run `manage.py dynamodb_tables create`."
                found.append(checks.Error(text, hint=hint, obj=model, id="pynamo_locking.E002"))
        except PynamoDBException as error:
            found.append(checks.Warning(f"Nothing is known of it: {error}", obj=model, id="pynamo_locking.W003"))
    return found


class PynamoLockingConfig(AppConfig):
    """Puts the models where ``settings.PYNAMO_LOCKING`` says, before their first use. No request."""

    name = "pynamo_locking.contrib.django"
    label = "pynamo_locking"
    verbose_name: str = "pynamo_locking"

    def ready(self) -> None:
        """Configure the models, and register the checks."""
        apply()
        checks.register(check_keys, checks.Tags.compatibility)
        checks.register(check_handlers, checks.Tags.compatibility)
        checks.register(check_models, checks.Tags.models)
        checks.register(check_tables, checks.Tags.database, deploy=True)
