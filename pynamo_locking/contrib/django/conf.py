"""The dictionary ``settings.PYNAMO_LOCKING``.

``MODELS`` lists the dotted paths of the models; the tables in their ``Meta.lock_table`` and ``Meta.transaction_table``
are added. ``HANDLER409``, and the same for 412, 423, 428, 500 and 503, is the dotted path of a function that makes the
answer instead: ``handler(request, error)``. All other keys are those of Flask, without their prefix: see
`pynamo_locking.contrib.flask.PynamoLocking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pynamo_locking._edge import inspection
from pynamo_locking.contrib import _http, _meta
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

KEYS: Final = _meta.KEYS | {"MODELS"} | {f"HANDLER{status}" for status in _http.STATUSES}


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
    given = {key: value for key, value in configuration().items() if key in _meta.KEYS}
    try:
        _meta.configure(models(), given)
    except ConfigurationError as error:
        raise ImproperlyConfigured(f"PYNAMO_LOCKING: {error}") from error


def handler(status: int) -> Callable[..., Any] | None:
    """Return the project's own function for a status, None if it has none."""
    path = configuration().get(f"HANDLER{status}")
    return None if path is None else import_string(path) if isinstance(path, str) else path
