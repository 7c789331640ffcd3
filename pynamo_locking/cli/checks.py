"""Whether a table is what its model needs. Reads only; nothing is written or changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import TTLAttribute

from pynamo_locking import LockableMixin, NamedLock, TransactionTable
from pynamo_locking._io import listing
from pynamo_locking._io.transport import code_of, message_of
from pynamo_locking.cli.problems import EXPECTED, explain
from pynamo_locking.cli.session import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamodb.models import Model

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

#: What mends a table that is missing, or whose TTL is off.
CREATE: Final = "pynamo-locking tables create"

_ENCRYPTION_LOST: Final = "INACCESSIBLE_ENCRYPTION_CREDENTIALS"

#: A key that no item has, for requests whose answer does not matter.
_PROBE: Final[Mapping[str, Any]] = {"S": "pynamo-locking check", "N": "0", "B": b"pynamo-locking check"}


@dataclass(frozen=True)
class Finding:
    """What one look at a table has shown.

    Attributes:
        check: what was looked at: a stable word.
        level: ``"ok"``, ``"note"``, ``"warning"`` or ``"problem"``.
        detail: what was seen.
        remedy: what to do; empty if nothing.
    """

    check: str
    level: str
    detail: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """Return what ``--json`` shows."""
        return asdict(self)


def role_of(model: type[Model]) -> str:
    """Return what a table is for."""
    if issubclass(model, NamedLock):
        return "locks"
    return "transactions" if issubclass(model, TransactionTable) else "items"


def exists(model: type[Model]) -> bool:
    """Tell whether a model's table is there."""
    try:
        describe(model)
    except EXPECTED as error:
        if code_of(error) == "ResourceNotFoundException":
            return False
        raise
    return True


def is_being_made(model: type[Model]) -> bool:
    """Tell whether a model's table is not ready yet. 1 DescribeTable."""
    try:
        return bool(describe(model)["TableStatus"] == "CREATING")
    except EXPECTED:
        return False  # what it is, the findings say


def findings(model: type[Model]) -> list[Finding]:
    """Look at a model's table.

    Cost: 1 DescribeTable, 1 DescribeTimeToLive, 1 read of a key that is not there, 1 scan of a single item.
    """
    try:
        description = describe(model)
    except EXPECTED as error:
        if code_of(error) != "ResourceNotFoundException":
            return [_not_described(error)]
        return [Finding("exists", PROBLEM, "there is no such table", CREATE)]
    return [
        _status(description),
        _keys(model, description),
        _replicas(model, description),
        _billing(description),
        _encryption(description),
        *_expiry(model, is_global=bool(description.get("Replicas"))),
        *_permissions(model, description),
        *_placement(model),
    ]


def _not_described(error: Exception) -> Finding:
    problem = explain(error)
    if problem.kind == "access_denied":
        return Finding(
            "exists", WARNING, f"not seen: {problem.message}", "allow dynamodb:DescribeTable to whoever checks"
        )
    raise problem from error


def _status(description: Mapping[str, Any]) -> Finding:
    status = description["TableStatus"]
    if status in ("ACTIVE", "UPDATING"):
        return Finding("exists", OK, status)
    level, remedy = (PROBLEM, "restore the access to its key") if status == _ENCRYPTION_LOST else (WARNING, "wait")
    return Finding("exists", level, f"the table is {status}", remedy)


def _keys(model: type[Model], description: Mapping[str, Any]) -> Finding:
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    found = [(each["AttributeName"], types[each["AttributeName"]]) for each in description["KeySchema"]]
    wanted = [(each.attr_name, each.attr_type) for each in listing.key_attributes(model)]
    if found == wanted:
        return Finding("keys", OK, _text(found))
    return Finding(
        "keys",
        PROBLEM,
        f"the table has {_text(found)}, the model {_text(wanted)}",
        "name another table, or correct the model: the keys of a table cannot be changed",
    )


def _text(keys: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in keys)


def _replicas(model: type[Model], description: Mapping[str, Any]) -> Finding:
    """Refuse global tables on which the last writer wins: two Regions would give the same lock away."""
    regions = sorted(each["RegionName"] for each in description.get("Replicas") or ())
    if not regions:
        return Finding("regions", OK, "one Region")
    listed = ", ".join(regions)
    if description.get("MultiRegionConsistency") != "STRONG":
        return Finding(
            "regions",
            PROBLEM,
            f"a global table with eventual consistency ({listed}): the last writer wins, so a lock that is taken in "
            f"two Regions is given to both, and conditions hold in one Region only",
            "use a table in one Region, or one with multi-Region strong consistency",
        )
    if issubclass(model, LockableMixin) and role_of(model) == "locks":
        remedy = "use it for locks on names; locks of items in other tables need transactions"
    else:
        remedy = "use single writes and embedded locks only"
    return Finding(
        "regions",
        WARNING,
        f"a global table with strong consistency ({listed}): no transactions and no TTL on it",
        remedy,
    )


def _billing(description: Mapping[str, Any]) -> Finding:
    mode = description.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return Finding("billing", OK, "on demand")
    given = description.get("ProvisionedThroughput", {})
    units = f"{given.get('ReadCapacityUnits', 0)} read and {given.get('WriteCapacityUnits', 0)} write units"
    return Finding(
        "billing", NOTE, f"provisioned, {units}", "leave room for renewals: a throttled one is tried again in the lease"
    )


def _encryption(description: Mapping[str, Any]) -> Finding:
    found = description.get("SSEDescription") or {}
    if found.get("InaccessibleEncryptionDateTime"):
        return Finding(
            "encryption", PROBLEM, "DynamoDB cannot use the table's key", "restore the access to it within 7 days"
        )
    if not found:
        return Finding("encryption", OK, "with a key of DynamoDB's own")
    return Finding("encryption", OK, f"{found.get('SSEType', 'KMS')} {found.get('KMSMasterKeyArn', '')}".rstrip())


def _expiry(model: type[Model], *, is_global: bool) -> Iterator[Finding]:
    """Compare TTL with the attribute that the model has for it."""
    wanted = next((each.attr_name for each in model.get_attributes().values() if isinstance(each, TTLAttribute)), None)
    connection = model._get_connection()
    try:
        client: Any = connection.connection.client  # PynamoDB's own way to send a request adds what this one refuses
        answer = client.describe_time_to_live(TableName=connection.table_name)
    except EXPECTED as error:
        yield Finding("ttl", NOTE, f"not seen: {_why(error)}", "allow dynamodb:DescribeTimeToLive to whoever checks")
        return
    found = answer.get("TimeToLiveDescription", {})
    is_on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    used = found.get("AttributeName") if is_on else None
    if used == wanted:
        yield Finding("ttl", OK, f"by {used}" if used else "off, and none is needed")
    elif used is None:
        detail = f"off; what has expired by {wanted} is kept for ever"
        yield Finding("ttl", NOTE if is_global else WARNING, detail, "" if is_global else CREATE)
    else:
        detail = f"by {used}, while the model has {wanted or 'no attribute for it'}"
        yield Finding("ttl", WARNING, detail, "make sure that it does not delete what is in use")


def _permissions(model: type[Model], description: Mapping[str, Any]) -> Iterator[Finding]:
    """Try what may be tried without a write."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    key = {each["AttributeName"]: _probe(types[each["AttributeName"]]) for each in description["KeySchema"]}
    connection = model._get_connection()
    tried = (
        ("GetItem", {"Key": key, "ConsistentRead": True}, "nothing works without it"),
        ("Scan", {"Limit": 1}, "only `locks list` and `watch`, `tx list` and `sweep` need it"),
    )
    for operation, arguments, remark in tried:
        try:
            connection.connection.dispatch(operation, {"TableName": connection.table_name, **arguments})
        except EXPECTED as error:
            level = PROBLEM if operation == "GetItem" else NOTE
            yield Finding(f"permission_{operation}", level, _why(error), f"allow dynamodb:{operation}; {remark}")
        else:
            yield Finding(f"permission_{operation}", OK, "allowed")
    yield Finding("permission_writes", NOTE, "not seen: that would need a write")


def _probe(kind: str) -> dict[str, Any]:
    return {kind: _PROBE[kind]}


def _why(error: Exception) -> str:
    return f"{code_of(error)}: {message_of(error)}" if code_of(error) else str(error)


def _placement(model: type[Model]) -> Iterator[Finding]:
    """Say where the locks of an application's model are."""
    if role_of(model) != "items":
        return
    if not issubclass(model, LockableMixin) or not model._has_lock_place():
        yield Finding("locks", NOTE, "the model has none")
    elif model._lock_attribute() is not None:
        yield Finding("locks", OK, f"in the items, attribute {model._lock_attribute().attr_name}")  # type: ignore[union-attr]
    else:
        yield Finding("locks", OK, f"in the table {model._lock_table().Meta.table_name}")
