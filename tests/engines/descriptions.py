"""botocore's description of DynamoDB, read and digested once for all clients of this process.

botocore reads it anew for each session (0.1 s) and digests it anew for each client (10 ms by its first request of each
kind). A test makes several of both. Only what never changes is shared: no connections, retries, credentials or event
handlers.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import botocore.client
import botocore.regions
import botocore.session

if TYPE_CHECKING:
    from collections.abc import Callable

#: The stubs do not know what is replaced here.
_CLIENT_CREATOR: Final[Any] = botocore.client.ClientCreator
_REGIONS: Final[Any] = botocore.regions
_SESSION: Final[Any] = botocore.session
_TYPES: Final = frozenset(("B", "BOOL", "BS", "L", "M", "N", "NS", "NULL", "S", "SS"))


def share() -> None:
    """Let all sessions and clients of this process share the descriptions. Calling it twice does no harm."""
    if hasattr(_CLIENT_CREATOR._load_service_model, "__wrapped__"):
        return
    _SESSION.create_loader = functools.lru_cache(maxsize=None)(_SESSION.create_loader)
    _CLIENT_CREATOR._load_service_model = _once_for_each_loader(_CLIENT_CREATOR._load_service_model)
    _CLIENT_CREATOR._create_client_class = _once_for_each_session(_CLIENT_CREATOR._create_client_class)
    _REGIONS.EndpointProvider = _once_for_each_ruleset(_REGIONS.EndpointProvider)


def hasten_moto() -> None:
    """Let moto write its answers in a tenth of the time. Calling it twice does no harm."""
    from moto.core import responses, serialize  # workers of tests need not wait for it

    answers: Any = serialize.JSONSerializer
    module: Any = responses
    if not hasattr(answers._serialize_type_structure, "__wrapped__"):
        answers._serialize_type_structure = _values_at_once(answers._serialize_type_structure)
        module.method_names_from_class = functools.cache(module.method_names_from_class)


def _once_for_each_loader(load: Callable[..., Any]) -> Callable[..., Any]:
    models: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    @functools.wraps(load)
    def load_once(creator: Any, service_name: str, api_version: str | None = None) -> Any:
        known = models.setdefault(creator._loader, {})
        key = (service_name, api_version)
        if key not in known:
            known[key] = load(creator, service_name, api_version)
        return known[key]

    return load_once


def _once_for_each_session(create: Callable[..., Any]) -> Callable[..., Any]:
    """A session's event handlers have a say in the class."""
    classes: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    @functools.wraps(create)
    def create_once(creator: Any, service_name: str, service_model: Any) -> Any:
        known = classes.setdefault(creator._event_emitter, {})
        if service_model not in known:
            known[service_model] = create(creator, service_name, service_model)
        return known[service_model]

    return create_once


def _once_for_each_ruleset(provider: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    @functools.wraps(provider, updated=())
    def provide_once(ruleset_data: Any, partition_data: Any, *more: Any, **named: Any) -> Any:
        key = (id(ruleset_data), id(partition_data), *more, *named.items())
        if key not in known:  # what is kept with it makes the key last
            known[key] = provider(ruleset_data, partition_data, *more, **named), ruleset_data, partition_data
        return known[key][0]

    return provide_once


def _values_at_once(write: Callable[..., None]) -> Callable[..., None]:
    """moto looks in each value of an item for each of ten types, by each of six names: half of its time.

    A value has one type, and its name is that of DynamoDB.
    """

    @functools.wraps(write)
    def write_at_once(answer: Any, serialized: Any, value: Any, shape: Any, key: str) -> None:
        if shape.name == "AttributeValue" and type(value) is dict and len(value) == 1 and value.keys() <= _TYPES:
            ((kind, content),) = value.items()
            inner: dict[str, Any] = {}
            answer._serialize(inner, content, shape.members[kind], kind)
            answer._default_serialize(serialized, inner, shape, key)
        else:
            write(answer, serialized, value, shape, key)

    return write_at_once
