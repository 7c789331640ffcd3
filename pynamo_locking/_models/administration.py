"""Requests about tables: their keys, their TTL, and rows of other programs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import PynamoDBException, TableError

from pynamo_locking._core.error_codes import TABLE_EXISTS
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.naming import GUARD_PREFIX
from pynamo_locking._io import answers, connections, header_requests, lock_document, runtime
from pynamo_locking._io.denials import has_foreign
from pynamo_locking._io.stored import FORMAT_NAME
from pynamo_locking._items import expiry, key_text, versions
from pynamo_locking._items.keys import check_place, own_keys_of
from pynamo_locking.exceptions import CorruptRow, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.models import Model

    from pynamo_locking._core.outcome import Known
    from pynamo_locking._io.stored import Image

#: The pause between two checks whether a table is ready, in seconds; AWS takes about ten.
_LOOK_S: Final = 1.0


class Audited(NamedTuple):
    """Where a model keeps what an auditor of writes looks at: stored names, each None if there is none.

    Attributes:
        model: the class.
        table: its table.
        is_own: whether its rows are those of this package, as of a `NamedLock`.
        version: of the version.
        write_id: of the id of the last write.
        lock: of the lock in the item.
        expires: of the time after which an item counts as absent.
        ttl: of the time of expiry, whether the items count as absent after it or not.
    """

    model: type[Any]
    table: str
    is_own: bool
    version: str | None
    write_id: str | None
    lock: str | None
    expires: str | None
    ttl: str | None

    def versions_in(self, image: Mapping[str, Any]) -> Known:
        """Return the version and the write id of an image."""
        return versions.known_of(self.model, image)


def audited(model: type[Model]) -> Audited:
    """Return where a model keeps what an auditor looks at; `ConfigurationError` if it has no table."""
    check_place(model)
    shape, lock, ttl = versions.shape_of(model), getattr(model, "_lock_attribute", lambda: None)(), _ttl_of(model)
    return Audited(
        model=model,
        table=str(model.Meta.table_name),
        is_own=hasattr(model, "_own_keys"),
        version=None if shape.attribute is None else shape.attribute.attr_name,
        write_id=shape.write_id_name,
        lock=None if lock is None else lock.attr_name,
        expires=expiry.attribute_name(model),
        ttl=ttl,
    )


def _ttl_of(model: type[Model]) -> str | None:
    attribute: Any = model._ttl_attribute()
    return None if attribute is None else str(attribute.attr_name)


def describe(model: type[Model]) -> dict[str, Any]:
    """Return DynamoDB's description of a model's table; botocore's error if there is none. 1 DescribeTable."""
    connection = model._get_connection()
    answer = connection.connection.dispatch("DescribeTable", {"TableName": connection.table_name})
    description: dict[str, Any] = answer["Table"]
    return description


def describe_ready(model: type[Model]) -> dict[str, Any]:
    """Wait while a table is being created, and return its description; botocore's error if there is none."""
    while (description := describe(model))["TableStatus"] == "CREATING":
        runtime.current.sleep(_LOOK_S)
    return description


def is_created(create_table: Callable[[], object]) -> bool:
    """Call PynamoDB's `create_table`; return False if another process has just created the table."""
    try:
        create_table()
    except TableError as error:
        if answers.code_of(error.cause) != TABLE_EXISTS:
            raise
        return False
    return True


def keys_in(description: Mapping[str, Any]) -> str:
    """Return the keys of a table, for people."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    names = {each["KeyType"]: each["AttributeName"] for each in description["KeySchema"]}
    return ", ".join(f"{names[role]} ({types[names[role]]})" for role in ("HASH", "RANGE") if role in names)


def keys_of(model: type[Model]) -> str:
    """Return the keys of a model, in the form of `keys_in`."""
    return ", ".join(f"{each.attr_name} ({each.attr_type})" for each in key_text.stored_keys(model))


def check_keys(model: type[Model], *, wait: bool) -> None:
    """Refuse a table with other keys than the model's. 1 DescribeTable.

    With `wait`, wait until the table is ready if another process is creating it. `TableError` without a response.
    """
    try:
        description = describe_ready(model) if wait else describe(model)
    except answers.BOTOCORE_EXCEPTIONS as error:
        raise TableError(f"Unable to describe table: {error}", error) from error
    found, wanted = keys_in(description), keys_of(model)
    if found != wanted:
        raise ConfigurationError(
            f"the table {model.Meta.table_name!r} is not one of {model.__name__}: its keys are {found}, and "
            f"{model.__name__} needs {wanted}. Nothing was changed. Name another table in Meta.table_name, or correct "
            f"the model: the keys of a table cannot be changed."
        )
    if found_in := indexed(model, description):
        raise ConfigurationError(
            f"the table {model.Meta.table_name!r} has an index with the key {', '.join(found_in)}, which rows of "
            f"{model.__name__} have as well: they would appear in that index, or be refused. Nothing was changed. Use "
            f"another table."
        )


def is_shared(model: Any) -> bool:
    """Tell whether the rows of a model are ours, in a table of other items."""
    return hasattr(model, "_own_keys") and own_keys_of(model).is_shared


def place_of(model: Any) -> str:
    """Return the table of a model; of rows of ours in a table of other items with their prefix."""
    name = str(model.Meta.table_name)
    return own_keys_of(model).place(name) if is_shared(model) else name


def is_own(model: Any, image: Image) -> bool:
    """Tell whether a row of a table of locks or transactions is not, by its key, an item of others beside them."""
    return own_keys_of(model).name_in(image) is not None


def indexed(model: Any, description: Mapping[str, Any]) -> list[str]:
    """Return the attributes of our rows in a table of others that are keys of its indexes."""
    if not is_shared(model):
        return []
    ours = {each.attr_name for each in model.get_attributes().values()} | model._also_stored
    return sorted(
        {each["AttributeName"] for each in description["AttributeDefinitions"]} & ours - {*own_keys_of(model).begins}
    )


def ttl_of(model: type[Model]) -> str | None:
    """Return the TTL attribute of a table; None if its TTL is off. 1 DescribeTimeToLive."""
    connection = model._get_connection()
    client: Any = connection.connection.client  # PynamoDB's dispatch adds arguments that this request refuses
    found: dict[str, Any] = client.describe_time_to_live(TableName=connection.table_name).get(
        "TimeToLiveDescription", {}
    )
    is_on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return found.get("AttributeName") if is_on else None


def is_empty(model: type[Model]) -> bool:
    """Tell whether a table is known to have no item. 1 Scan of a single item."""
    connection = model._get_connection()
    kwargs = {"TableName": connection.table_name, "Limit": 1, "ConsistentRead": True}
    try:
        return not connection.connection.dispatch("Scan", kwargs)["Items"]
    except answers.BOTOCORE_EXCEPTIONS:
        return False


def absent(kind: str) -> dict[str, Any]:
    """Return a stored key of that type that no item has: for requests that only test the connection."""
    return {kind: {"S": "pynamo-locking check", "N": "-1", "B": b"pynamo-locking check"}[kind]}


def probe(model: type[Model], patience_s: float) -> PynamoDBException | None:
    """Read an absent item; return the error if no response comes in that time. Half a read unit."""
    connection = connections.lock_connection(model._get_connection().connection, patience_s)
    keys = [absent(key.attr_type)[key.attr_type] for key in key_text.stored_keys(model)]
    try:
        with answers.readable_errors():
            connection.get_item(model.Meta.table_name, *keys)
    except PynamoDBException as error:
        return error
    return None


def flaw_of(model: Any, image: Image) -> str | None:
    """Return what is wrong with a row of locks or transactions; None if it is sound."""
    try:
        if not _is_of_locks(model):
            table = header_requests.header_table_of(model)
            header_requests.header_in(table.row(image), table)
            return None
        flaw = lock_document.state_in(image, model._lock_attribute().attr_name).unreadable
    except (CorruptRow, UnknownFormat) as error:
        return str(error)
    return f"{_name(model, image)!r}: {flaw}" if flaw else None


def is_strange(model: Any, image: Image) -> bool:
    """Tell whether a row belongs to another program, or has undeclared attributes."""
    is_guard = _name(model, image).startswith(GUARD_PREFIX) and "version" in image
    if not _is_of_locks(model):
        return not (is_guard or {header_requests.PRIORITY, header_requests.CONTENT} & image.keys())
    if has_foreign(model, image):
        return not is_guard
    ours = versions.shape_of(model).write_id_name, lock_document.LEASE_ENDS, FORMAT_NAME
    return not image.keys() <= {*ours, *(each.attr_name for each in model.get_attributes().values())}


def has_lock(model: Any, image: Image) -> bool:
    """Tell whether a row of a table of locks carries a lock."""
    return _is_of_locks(model) and not has_foreign(model, image)


def _is_of_locks(model: Any) -> bool:
    return bool(getattr(model, "_lock_creates_item", False))


def _name(model: Any, image: Image) -> str:
    return own_keys_of(model).name_in(image) or ""
