"""The adapter: the one module that uses PynamoDB's private names of models, items and connections.

PynamoDB has no public way to a model's connection, keys, version or discriminator. If a release of PynamoDB renames one
of these, this is the module to change; `tests/unit/whole/test_pynamodb_seams.py` pins them. Overridden methods of
PynamoDB stay in the classes that override them: `TransactWrite` in `_models/batch_writes.py`, and the tables of the
package's own rows in `_models/tables.py`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pynamodb.models import MetaProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.attributes import DiscriminatorAttribute
    from pynamodb.connection.base import Connection
    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.indexes import Index
    from pynamodb.models import Model
    from pynamodb.pagination import ResultIterator

#: A model, or an item of it.
AnyModel: TypeAlias = "Model | type[Model]"
_M = TypeVar("_M", bound="Model")

#: The options in the `Meta` of a model that PynamoDB knows. It warns of the last two itself.
META_NAMES: Final = frozenset({*MetaProtocol.__annotations__, "session_cls", "request_timeout_seconds"})

#: The options that say where a connection sends requests, with whose keys; and which rows of a shared table are ours.
_PLACE_NAMES: Final = (
    *("table_name", "region", "host", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    *("keys", "prefix"),
)


def connection_of(model: AnyModel) -> TableConnection:
    """Return the connection of a model to its table; its own `connection` sends requests for any table.

    A model of this package does not use the connection that a base class has to another place.
    """
    return model._get_connection()


def has_connection(model: type[Model]) -> bool:
    """Tell whether a model has made its connection, after which its `Meta` has no effect any more."""
    return model._connection is not None and not is_connection_of_another_place(model)


def is_connection_of_another_place(model: type[Model]) -> bool:
    """Tell whether a class has inherited the connection of a base class whose `Meta` names another place.

    PynamoDB uses it if the tables have one name. A connection that was set for the class itself is its own.
    """
    owner: Any = next((base for base in model.__mro__ if "_connection" in vars(base)), None)
    if owner is None:  # it is no model
        return False
    mine, others = getattr(model, "Meta", None), getattr(owner, "Meta", None)
    if owner._connection is None or others is None or mine is others:
        return False
    return any(getattr(mine, name, None) != getattr(others, name, None) for name in _PLACE_NAMES)


def set_connection(model: type[Model], connection: TableConnection | None) -> None:
    """Give a model a connection; None lets it make one by its `Meta` when it needs one."""
    model._connection = connection


# Keys. A name is the one of the attribute in Python.


def hash_attribute_of(model: AnyModel) -> Any:
    return model._hash_key_attribute()  # type: ignore[no-untyped-call]


def range_attribute_of(model: AnyModel) -> Any:
    return model._range_key_attribute()  # type: ignore[no-untyped-call]


def key_attributes_of(model: AnyModel) -> tuple[Any, Any]:
    """Return the attributes of the hash key and of the range key; None for no range key."""
    return model._hash_key_attribute(), model._range_key_attribute()  # type: ignore[no-untyped-call]


def hash_name_of(model: AnyModel) -> str:
    name: Any = model._hash_keyname
    return name  # type: ignore[no-any-return]


def range_name_of(model: AnyModel) -> str | None:
    return model._range_keyname


def key_values_of(item: Model) -> tuple[Any, Any]:
    """Return the hash key and the range key of an item as they are in Python; None for no range key."""
    hash_name: Any = item._hash_keyname
    range_name = item._range_keyname
    return getattr(item, hash_name), None if range_name is None else getattr(item, range_name)


def serialized_key_of(item: Model) -> tuple[Any, Any]:
    """Return the hash key and the range key of an item, serialized."""
    return item._get_hash_range_key_serialized_values()


def stored_key_of(item: Model) -> tuple[Any, Any]:
    """Return the hash key and the range key of an item, as they are stored."""
    return item._get_serialized_keys()


def serialize_key(model: type[Model], hash_key: Any, range_key: Any = None) -> tuple[Any, Any]:
    """Return a hash key and a range key as a connection takes them."""
    return model._serialize_keys(hash_key, range_key)


def new_item(model: type[_M], hash_key: Any, range_key: Any = None, values: Mapping[str, Any] = {}) -> _M:
    """Return a new instance, made without keys as PynamoDB makes one: its own `__init__` may take them otherwise."""
    item = model(_user_instantiated=False)
    for name, attribute in model.get_attributes().items():
        default = attribute.default_for_new
        if default is not None:
            setattr(item, name, default() if callable(default) else default)
    keys = (hash_name_of(model), hash_key), (range_name_of(model), range_key)
    item._set_attributes(**values, **{str(name): value for name, value in keys if value is not None})
    return item


# Other attributes


def version_name_of(model: AnyModel) -> str | None:
    """Return the name of the version attribute in Python."""
    return model._version_attribute_name


def version_of(item: Model) -> int | None:
    """Return the version of an item; None if it has none, or its model."""
    name = item._version_attribute_name
    return None if name is None else item.attribute_values.get(name)


def ttl_attribute_of(model: AnyModel) -> Any:
    """Return the attribute by which DynamoDB removes expired items; None without one."""
    return model._ttl_attribute()  # type: ignore[no-untyped-call]


def discriminator_of(model: AnyModel) -> DiscriminatorAttribute | None:
    return model._get_discriminator_attribute()


def class_of(model: type[Model], image: dict[str, dict[str, Any]]) -> type[Model] | None:
    """Return the class of a stored item, which a discriminator names; None if this process does not know it."""
    try:
        return model._get_discriminator_class(image)
    except ValueError:
        return None


def is_of(model: type[Model], image: dict[str, dict[str, Any]]) -> bool:
    """Tell whether a query of a model shows a stored item: whether its discriminator names it, or a class of it."""
    attribute = discriminator_of(model)
    if attribute is None:
        return True
    names = [attribute.get_discriminator(each) for each in attribute.get_registered_subclasses(model)]
    stored = image.get(attribute.attr_name)
    return stored is not None and attribute.get_value(stored) in names


def class_named_by(item: Model) -> type[Model] | None:
    """Return the class that the discriminator of an instance names: of an item that was read, as it is stored."""
    attribute = discriminator_of(item)
    named: type[Model] | None = None if attribute is None else attribute.__get__(item, type(item))
    return named


def known_classes_of(model: type[Model]) -> list[type[Model]]:
    """Return a model, and the classes of it that its discriminator knows."""
    attribute = discriminator_of(model)
    return [model] if attribute is None else [model, *attribute.get_registered_subclasses(model)]


def python_name_of(model: type[Model], stored: str) -> str:
    """Return the name in Python of a stored attribute."""
    return model._dynamo_to_python_attr(stored)


def indexes_of(model: type[Model]) -> dict[str, Index[Any]]:
    return model._indexes


def schema_of(model: type[Model]) -> Any:
    """Return the definition of the table, as it would be created."""
    return model._get_schema()


def save_arguments_of(item: Model, condition: Condition | None) -> tuple[Any, dict[str, Any]]:
    """Return the keys and the arguments of a save that does not check the version."""
    return item._get_save_args(condition, add_version_condition=False)


def map_results(found: ResultIterator[Any], function: Callable[[Any], Any]) -> None:
    """Let a query or a scan return what a function makes of each instance."""
    make: Any = found._map_fn
    found._map_fn = lambda image: function(make(image))


# Connections


def region_of(connection: Connection) -> str | None:
    """Return the Region of a connection: its own, or the one of the environment."""
    region: str | None = connection.region or connection.session.get_config_variable("region")
    return region


def access_key_of(connection: Connection) -> str | None:
    """Return the access key that a connection was given; None if it uses those of the environment."""
    return connection._aws_access_key_id


def key_in_use(connection: Connection) -> str | None:
    """Return the access key by which requests are signed, which the environment may have to be asked for."""
    credentials: Any = connection.session.get_credentials()
    return None if credentials is None else credentials.access_key


def attempts_of(connection: Connection) -> int:
    """Return how often botocore sends a request of this connection that gets no response."""
    return connection._max_retry_attempts_exception + 1


def has_client(connection: Connection) -> bool:
    """Tell whether a connection has made its client; a test's substitute may have none."""
    return getattr(connection, "_client", None) is not None


def copy_without_retries(connection: Connection, timeout_s: float | None, pool_size: int) -> Connection:
    """Return a copy that makes a separate client, which sends each request once; None keeps the timeouts."""
    twin = copy.copy(connection)
    twin._client = None
    twin._retry_configuration = {"total_max_attempts": 1, "mode": "standard"}
    if timeout_s is not None:
        twin._connect_timeout_seconds = twin._read_timeout_seconds = timeout_s
        twin._max_pool_connections = max(pool_size, connection._max_pool_connections)
    return twin


def session_holder_of(connection: Connection) -> Any:
    """Return what keeps botocore's session of a connection, for each thread."""
    return getattr(connection, "_local", None)


def forget_client(connection: Connection, session_holder: Any) -> None:
    """Let a connection make its client again, with that session."""
    connection._client = None
    connection._local = session_holder
