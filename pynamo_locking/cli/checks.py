"""Whether a table is what its model needs. Reads only; nothing is written or changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import TTLAttribute

from pynamo_locking import IntervalMixin, LockableMixin, NamedLock, TransactionTable
from pynamo_locking._edge import NO_TABLE, administration, key_text
from pynamo_locking.cli.problems import EXPECTED, explain, said

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

#: Begins the remedy for a check that needs a permission.
_ALLOW: Final = "allow dynamodb:"

#: So many items of a table of locks are looked at.
MOST_ROWS: Final = 1000

#: Options of a model's Meta whose writes are transactions.
_BY_TRANSACTIONS: Final = ("lock_table", "transaction_table", "unique")

#: So many of them are named.
_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Finding:
    """What one look at a table has shown."""

    check: str  # what was looked at: a stable word
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
        administration.describe(model)
    except EXPECTED as error:
        if said(error)[0] == NO_TABLE:
            return False
        raise
    return True


def has_other_keys(model: type[Model], description: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a table, described already or not, has other keys than its model, or may have."""
    try:
        return administration.keys_in(
            administration.describe(model) if description is None else description
        ) != administration.keys_of(model)
    except EXPECTED:
        return True  # the findings say why it is not known


def findings(model: type[Model]) -> list[Finding]:
    """Look at a model's table.

    Cost: 1 DescribeTable, 1 DescribeTimeToLive, 1 read of a key that is not there, 1 scan of a single item, and of a
    table of locks or transactions 1 of up to 1,000 items (1 MB at most).
    """
    try:
        description = administration.describe(model)
    except EXPECTED as error:
        if said(error)[0] != NO_TABLE:
            return [_not_described(error)]
        remedy = "create it with the program that it belongs to" if administration.is_shared(model) else CREATE
        return [Finding("exists", PROBLEM, "there is no such table", remedy)]
    expiry = list(_expiry(model, is_global=bool(description.get("Replicas"))))
    return [
        _status(description),
        _keys(model, description),
        _replicas(model, description),
        _billing(description),
        _encryption(description),
        *expiry,
        *_permissions(model, description),
        *([] if has_other_keys(model, description) else _rows(model, expiry[0])),
        *_placement(model),
    ]


def _not_described(error: Exception) -> Finding:
    problem = explain(error)
    if problem.kind != "access_denied":
        raise problem from error
    return Finding("exists", WARNING, f"not seen: {problem.message}", f"{_ALLOW}DescribeTable")


def _status(description: Mapping[str, Any]) -> Finding:
    status = description["TableStatus"]
    if status in ("ACTIVE", "UPDATING"):
        return Finding("exists", OK, status)
    level, remedy = (PROBLEM, "restore the access to its key") if status == _ENCRYPTION_LOST else (WARNING, "wait")
    return Finding("exists", level, f"the table is {status}", remedy)


def _keys(model: type[Model], description: Mapping[str, Any]) -> Finding:
    found, wanted = administration.keys_in(description), administration.keys_of(model)
    if found == wanted:
        indexed = ", ".join(administration.indexed(model, description))
        if not indexed:
            return Finding("keys", OK, found)
        detail = f"{found}; an index has the key {indexed}, which these rows have as well"
        return Finding("keys", PROBLEM, detail, "use another table: the rows appear in that index, or are refused")
    remedy = "name another table, or correct the model: the keys of a table cannot be changed"
    return Finding("keys", PROBLEM, f"the table has {found}, the model {wanted}", remedy)


def _replicas(model: type[Model], description: Mapping[str, Any]) -> Finding:
    """Refuse global tables on which the last writer wins: two Regions would grant the same lock."""
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
    detail = f"a global table with strong consistency ({listed}): no transactions and no TTL on it"
    if needs := ", ".join(_needs_transactions(model)):
        remedy = "use tables in one Region, or do without these"
        return Finding("regions", PROBLEM, f"{detail}, and these need transactions: {needs}", remedy)
    remedy = "use single writes, versions and locks in items only"
    if role_of(model) == "locks":
        remedy = "use it for locks on names only, and delete what has expired yourself"
    return Finding("regions", WARNING, detail, remedy)


def _needs_transactions(model: type[Model]) -> Iterator[str]:
    """Yield what of a model works in transactions only."""
    if role_of(model) == "transactions":
        yield model.__name__
        return
    yield from (f"Meta.{name}" for name in _BY_TRANSACTIONS if getattr(model.Meta, name, None))
    if issubclass(model, IntervalMixin):
        yield "intervals"


def _billing(description: Mapping[str, Any]) -> Finding:
    mode = description.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return Finding("billing", OK, "on demand")
    given = description.get("ProvisionedThroughput", {})
    units = f"{given.get('ReadCapacityUnits', 0)} read and {given.get('WriteCapacityUnits', 0)} write units"
    remedy = "leave room for renewals: a throttled one is tried again in the lease"
    return Finding("billing", NOTE, f"provisioned, {units}", remedy)


def _encryption(description: Mapping[str, Any]) -> Finding:
    found = description.get("SSEDescription") or {}
    if found.get("InaccessibleEncryptionDateTime"):
        remedy = "restore the access to it within 7 days"
        return Finding("encryption", PROBLEM, "DynamoDB cannot use the table's key", remedy)
    if not found:
        return Finding("encryption", OK, "with a key of DynamoDB's own")
    return Finding("encryption", OK, f"{found.get('SSEType', 'KMS')} {found.get('KMSMasterKeyArn', '')}".rstrip())


def _expiry(model: type[Model], *, is_global: bool) -> Iterator[Finding]:
    """Compare TTL with the attribute that the model has for it."""
    wanted = next((each.attr_name for each in model.get_attributes().values() if isinstance(each, TTLAttribute)), None)
    try:
        used = administration.ttl_of(model)
    except EXPECTED as error:
        yield Finding("ttl", NOTE, f"not seen: {_why(error)}", f"{_ALLOW}DescribeTimeToLive")
        return
    if used == wanted:
        yield Finding("ttl", OK, f"by {used}" if used else "off, and none is needed")
    elif used is None:
        detail = f"off; what has expired by {wanted} is kept for ever"
        remedy = CREATE if role_of(model) == "items" else f"{CREATE}; with --enable-ttl if it has locks already"
        if administration.is_shared(model):
            remedy = f"{CREATE} --enable-ttl, if no other item has an attribute {wanted}: DynamoDB would delete it"
        yield Finding("ttl", NOTE if is_global else WARNING, detail, "" if is_global else remedy)
    else:
        detail = f"by {used}, while the model has {wanted or 'no attribute for it'}"
        level, remedy = WARNING, "make sure that it does not delete what is in use"
        if role_of(model) != "items":  # their classes always have one
            level, remedy = PROBLEM, "name another table, or switch TTL of this one off: it has one attribute only"
            if administration.is_shared(model):
                remedy = f"set Meta.ttl_attribute = {used!r}: a table has one attribute only"
        yield Finding("ttl", level, detail, remedy)


def _rows(model: type[Model], ttl: Finding) -> Iterator[Finding]:
    """Look for items of other programs in a table of locks or transactions, and for what was written into them."""
    if role_of(model) == "items":
        return
    connection, name = model._get_connection(), key_text.key_attributes(model)[0].attr_name
    try:
        kwargs = {"TableName": connection.table_name, "Limit": MOST_ROWS, "ConsistentRead": True}
        answer = connection.connection.dispatch("Scan", kwargs)
    except EXPECTED as error:
        yield Finding("rows", NOTE, f"not seen: {_why(error)}", f"{_ALLOW}Scan")
        return
    answer["Items"] = [image for image in answer["Items"] if administration.is_own(model, image)]
    unreadable = [flaw for flaw in (administration.flaw_of(model, image) for image in answer["Items"]) if flaw]
    if unreadable:
        what = f"{len(unreadable):,} cannot be read: {'; '.join(_few(unreadable))}"
        yield Finding("broken", PROBLEM, what, "restore or remove them")
    seen = f"{'the first' if 'LastEvaluatedKey' in answer else 'all'} {answer['ScannedCount']:,} items were looked at"
    if administration.is_shared(model):
        seen += f", {len(answer['Items']):,} of them in {administration.place_of(model)!r}"
    strange = [image for image in answer["Items"] if administration.is_strange(model, image)]
    if not strange:
        yield Finding("rows", OK, f"{seen}; none is of another program")
        return
    ttl_attribute: Any = model._ttl_attribute()
    expires = ttl_attribute.attr_name
    locked = sum(administration.has_lock(model, image) for image in strange)
    expiring = sum(expires in image for image in strange)
    does = "deletes" if ttl.detail == f"by {expires}" else "would delete"
    named = ", ".join(_few([repr(image[name]["S"]) for image in strange]))
    yield Finding(
        "rows",
        PROBLEM if locked or expiring else WARNING,
        f"{seen}; {len(strange):,} are of other programs, or have attributes that the model does not declare: {named}. "
        f"{locked:,} of them carry a lock, and {expiring:,} the attribute {expires}, by which DynamoDB {does} them",
        f"if they are not yours, switch TTL off, remove {expires} and the lock from them, and use another table; if "
        f"the attributes are those of a class of yours, check that as module:Class",
    )


def _few(texts: list[str]) -> list[str]:
    return texts if len(texts) <= _MOST_NAMED else [*texts[:_MOST_NAMED], "..."]


def _permissions(model: type[Model], description: Mapping[str, Any]) -> Iterator[Finding]:
    """Try the requests that write nothing."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    key = {
        each["AttributeName"]: administration.absent(types[each["AttributeName"]]) for each in description["KeySchema"]
    }
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
            yield Finding(f"permission_{operation}", level, _why(error), f"{_ALLOW}{operation}; {remark}")
        else:
            yield Finding(f"permission_{operation}", OK, "allowed")
    yield Finding("permission_writes", NOTE, "not seen: that would need a write")


def _why(error: Exception) -> str:
    return ": ".join(filter(None, said(error)))


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
