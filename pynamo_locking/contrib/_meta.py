"""The configuration of an application, put into the ``Meta`` of its models before they are used."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking import ConfigurationError, LockSettings
from pynamo_locking._edge import inspection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pynamodb.models import Model

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
KEYS: Final = frozenset({*_META, "TABLE_PREFIX", "LOCK_SETTINGS", "PROBLEM_TYPE"})


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
    with _configuring:
        for model in inspection.with_tables(models):
            _configure(model, {key: value for key, value in settings.items() if value is not None})


def _configure(model: type[Model], settings: dict[str, Any]) -> None:
    meta: Any = model.Meta
    before = _configured.get(meta)
    declared = _declared(meta) if before is None else before.declared
    values = _values(declared, settings)
    if before is not None and _SETTINGS in before.values:
        values.setdefault(
            _SETTINGS, before.values[_SETTINGS]
        )  # without this key an application accepts those from before
    if before is not None and before.values != values:
        raise _late(model, "configured otherwise, by another application of this process,")
    changed = {name: value for name, value in values.items() if getattr(meta, name, None) != value}
    if changed.keys() - {_SETTINGS} and model._connection is not None:
        raise _late(model, "used")
    for name, value in changed.items():
        setattr(meta, name, value)
    _configured[meta] = _Configured(declared, values)


def _declared(meta: Any) -> dict[str, Any]:
    return {name: getattr(meta, name, None) for name in (*_META.values(), "table_name", _SETTINGS)}


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
            model._connection = None
