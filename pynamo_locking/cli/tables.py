"""``tables``: create and check tables."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pynamodb.attributes import TTLAttribute
from pynamodb.exceptions import TableError
from rich.text import Text

from pynamo_locking import LockableMixin, NamedLock, TransactionTable
from pynamo_locking._facade import (
    NO_TABLE,
    connection_of,
    endpoint_of,
    has_lock_place,
    inspection,
    keys,
    lock_attribute_of,
    lock_table_of,
    tables,
    ttl_attribute_of,
)
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import BOTH, Commands
from pynamo_locking.cli.session import Session
from pynamo_locking.cli.terminal import EXPECTED, answer_behind, explain, usage
from pynamo_locking.intervals import IntervalMixin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pynamodb.models import Model
    from rich.console import RenderableType


# Whether a table is what its model needs. Reads only; nothing is written or changed.


OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

#: What mends a table that is missing, or whose TTL is off.
CREATE: Final = "pynamo-locking tables create"

_ENCRYPTION_LOST: Final = "INACCESSIBLE_ENCRYPTION_CREDENTIALS"

#: Begins the remedy for a check that needs a permission.
_ALLOW: Final = "allow dynamodb:"

#: So many items of a table of locks are read.
MOST_ROWS: Final = 1000

#: Options of a model's Meta whose writes are transactions.
_BY_TRANSACTIONS: Final = ("lock_table", "transaction_table", "unique")

#: So many of them are named.
_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Finding:
    """What one check of a table has shown."""

    check: str  # what was checked: a stable word
    level: str
    detail: str
    remedy: str = ""


def role_of(model: type[Model]) -> str:
    """Return what a table is for."""
    if issubclass(model, NamedLock):
        return "locks"
    return "transactions" if issubclass(model, TransactionTable) else "items"


def exists(model: type[Model]) -> bool:
    """Tell whether a model's table is there."""
    try:
        tables.describe(model)
    except EXPECTED as error:
        if answer_behind(error)[0] == NO_TABLE:
            return False
        raise
    return True


def has_other_keys(model: type[Model], description: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a table, described already or not, has other keys than its model, or may have."""
    try:
        return tables.keys_in(tables.describe(model) if description is None else description) != tables.keys_of(model)
    except EXPECTED:
        return True  # the findings say why it is not known


def findings(model: type[Model], others: Sequence[type[Model]] = ()) -> list[Finding]:
    """Check a model's table; `others` are checked with it, some perhaps in the same table.

    Cost: 1 DescribeTable, 1 DescribeTimeToLive, 1 read of a key that is not there, 1 scan of a single item, and of a
    table of locks or transactions 1 of up to 1,000 items (1 MB at most).
    """
    try:
        description = tables.describe(model)
    except EXPECTED as error:
        if answer_behind(error)[0] != NO_TABLE:
            return [_not_described(error)]
        remedy = "create it with the program that it belongs to" if tables.is_shared(model) else CREATE
        return [Finding("exists", PROBLEM, "there is no such table", remedy)]
    sharing = [each for each in others if tables.is_shared(each) and each.Meta.table_name == model.Meta.table_name]
    expiry = list(_expiry(model, sharing, is_global=bool(description.get("Replicas"))))
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
    found, wanted = tables.keys_in(description), tables.keys_of(model)
    if found == wanted:
        indexed = ", ".join(tables.indexed(model, description))
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


def _ttl_name(model: type[Model]) -> str | None:
    return next((each.attr_name for each in model.get_attributes().values() if isinstance(each, TTLAttribute)), None)


def _expiry(model: type[Model], sharing: Sequence[type[Model]], *, is_global: bool) -> Iterator[Finding]:
    """Compare TTL with the attribute that the model has for it, or one of the classes of ours in the same table."""
    wanted, owner = _ttl_name(model), None
    try:
        used = tables.ttl_of(model)
    except EXPECTED as error:
        yield Finding("ttl", NOTE, f"not seen: {_reason(error)}", f"{_ALLOW}DescribeTimeToLive")
        return
    if wanted is None and used is not None:
        owner = next((each.__name__ for each in sharing if _ttl_name(each) == used), None)
    if owner is not None:
        yield Finding("ttl", OK, f"by {used}, for the rows of {owner} in it")
    elif used == wanted:
        yield Finding("ttl", OK, f"by {used}" if used else "off, and none is needed")
    elif used is None:
        detail = f"off; what has expired by {wanted} is kept for ever"
        remedy = CREATE if role_of(model) == "items" else f"{CREATE}; with --enable-ttl if it has locks already"
        if tables.is_shared(model):
            remedy = f"{CREATE} --enable-ttl, if no other item has an attribute {wanted}: DynamoDB would delete it"
        yield Finding("ttl", NOTE if is_global else WARNING, detail, "" if is_global else remedy)
    else:
        detail = f"by {used}, while the model has {wanted or 'no attribute for it'}"
        level, remedy = WARNING, "make sure that it does not delete what is in use"
        if role_of(model) != "items":  # their classes always have one
            level, remedy = PROBLEM, "name another table, or switch TTL of this one off: it has one attribute only"
            if tables.is_shared(model):
                remedy = f"set Meta.ttl_attribute = {used!r}: a table has one attribute only"
        yield Finding("ttl", level, detail, remedy)


def _rows(model: type[Model], ttl: Finding) -> Iterator[Finding]:
    """Look for items of other programs in a table of locks or transactions, and for what was written into them."""
    if role_of(model) == "items":
        return
    connection, name = connection_of(model), keys.key_attributes(model)[0].attr_name
    try:
        kwargs = {"TableName": connection.table_name, "Limit": MOST_ROWS, "ConsistentRead": True}
        answer = connection.connection.dispatch("Scan", kwargs)
    except EXPECTED as error:
        yield Finding("rows", NOTE, f"not seen: {_reason(error)}", f"{_ALLOW}Scan")
        return
    answer["Items"] = [image for image in answer["Items"] if tables.is_own(model, image)]
    unreadable = [flaw for flaw in (tables.flaw_of(model, image) for image in answer["Items"]) if flaw]
    if unreadable:
        what = f"{len(unreadable):,} cannot be read: {'; '.join(_first_names(unreadable))}"
        yield Finding("broken", PROBLEM, what, "restore or remove them")
    seen = f"{'the first' if 'LastEvaluatedKey' in answer else 'all'} {answer['ScannedCount']:,} items were looked at"
    if tables.is_shared(model):
        seen += f", {len(answer['Items']):,} of them in {tables.place_of(model)!r}"
    strange = [image for image in answer["Items"] if tables.is_strange(model, image)]
    if not strange:
        yield Finding("rows", OK, f"{seen}; none is of another program")
        return
    ttl_attribute: Any = ttl_attribute_of(model)
    expires = ttl_attribute.attr_name
    locked = sum(tables.has_lock(model, image) for image in strange)
    expiring = sum(expires in image for image in strange)
    does = "deletes" if ttl.detail == f"by {expires}" else "would delete"
    named = ", ".join(_first_names([repr(image[name]["S"]) for image in strange]))
    yield Finding(
        "rows",
        PROBLEM if locked or expiring else WARNING,
        f"{seen}; {len(strange):,} are of other programs, or have attributes that the model does not declare: {named}. "
        f"{locked:,} of them carry a lock, and {expiring:,} the attribute {expires}, by which DynamoDB {does} them",
        f"if they are not yours, switch TTL off, remove {expires} and the lock from them, and use another table; if "
        f"the attributes are those of a class of yours, check that as module:Class",
    )


def _first_names(texts: list[str]) -> list[str]:
    return texts if len(texts) <= _MOST_NAMED else [*texts[:_MOST_NAMED], "..."]


def _permissions(model: type[Model], description: Mapping[str, Any]) -> Iterator[Finding]:
    """Try the requests that write nothing."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    key = {each["AttributeName"]: tables.absent(types[each["AttributeName"]]) for each in description["KeySchema"]}
    connection = connection_of(model)
    tried = (
        ("GetItem", {"Key": key, "ConsistentRead": True}, "nothing works without it"),
        ("Scan", {"Limit": 1}, "only `locks list` and `watch`, `tx list` and `sweep` need it"),
    )
    for operation, arguments, remark in tried:
        try:
            connection.connection.dispatch(operation, {"TableName": connection.table_name, **arguments})
        except EXPECTED as error:
            level = PROBLEM if operation == "GetItem" else NOTE
            yield Finding(f"permission_{operation}", level, _reason(error), f"{_ALLOW}{operation}; {remark}")
        else:
            yield Finding(f"permission_{operation}", OK, "allowed")
    yield Finding("permission_writes", NOTE, "not seen: that would need a write")


def _reason(error: Exception) -> str:
    return ": ".join(filter(None, answer_behind(error)))


def _placement(model: type[Model]) -> Iterator[Finding]:
    """Say where the locks of an application's model are."""
    if role_of(model) != "items":
        return
    if not issubclass(model, LockableMixin) or not has_lock_place(model):
        yield Finding("locks", NOTE, "the model has none")
    elif lock_attribute_of(model) is not None:
        yield Finding("locks", OK, f"in the items, attribute {lock_attribute_of(model).attr_name}")
    else:
        yield Finding("locks", OK, f"in the table {lock_table_of(model).Meta.table_name}")


# ``tables create`` and ``tables check``.


_STYLES: Final = {OK: "green", NOTE: "cyan", WARNING: "yellow", PROBLEM: "bold red"}

_HELP: Final = "Models of your application; also the tables that they name."
_Models = Annotated[list[str] | None, typer.Argument(metavar="[MODULE:MODEL]...", help=_HELP)]


app: Final = Commands("The tables of locks, of transactions, and of your models.", name="tables", settings=BOTH)


@app.add(
    "create --table locks --region eu-west-1",
    "create --table locks --transaction-table transactions",
    "create shop.models:Order shop.models:Customer",
)
def create(
    session: Session,
    *,
    names: _Models = None,
    enable_ttl: Annotated[
        bool, typer.Option("--enable-ttl", help="Enable TTL also for tables of locks that have items.")
    ] = False,
) -> int:
    """Create the tables that are missing, and check all of them.

    They are billed on demand unless the model's Meta says otherwise, with TTL enabled where the model has an attribute
    for it. If a table that is there has other keys than its model, nothing is changed at all. Otherwise nothing that is
    there is changed, but for TTL where it is off: of tables of locks and transactions only while they are empty, unless
    --enable-ttl is given. Safe to run again, and by several at once.
    """
    found = _models(session, names)
    missing = [model for model in found if not exists(model) and not tables.is_shared(model)]
    there = [model for model in found if model not in missing and exists(model)]
    if any(has_other_keys(model) for model in there):
        return _report(session, found, created=[], strict=False)
    created = [model for model in missing if tables.is_created(functools.partial(_create, model))]
    for model in [*missing, *there]:
        with contextlib.suppress(*EXPECTED):  # what it is, the findings say
            tables.describe_ready(model)
        _enable_ttl(model, whatever_is_there=enable_ttl)
    return _report(session, found, created=created, strict=False)


@app.add(
    "check --table locks",
    "check shop.models:Order --json",
    "check shop.models:Order --strict  # warnings count as problems",
)
def check(
    session: Session,
    *,
    names: _Models = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as problems.")] = False,
) -> int:
    """Check that tables are what they have to be. Nothing is written.

    Keys, Region and replication, billing, TTL, encryption, and the permissions that can be seen without a write. The
    exit code is 1 if there is a problem.
    """
    return _report(session, _models(session, names), created=None, strict=strict)


def _models(session: Session, names: list[str] | None) -> list[type[Model]]:
    """Return the models to check: those of the settings, those that are named, and the tables they name."""
    found: list[type[Model]] = []
    if session.settings.table is not None:
        found.append(session.locks())
    if session.settings.transaction_table is not None:
        found.append(session.transactions(None))
    for name in names or ():
        found += inspection.with_tables([session.model(name)])
    by_table: dict[tuple[object, ...], type[Model]] = {}
    for model in found:  # of those for the same rows the last one, which is an application's own if there is one
        role = role_of(model)
        is_one_of_many = role == "items" or tables.is_shared(model)
        of_its = f"{role} {model.__qualname__}" if is_one_of_many else role
        by_table[endpoint_of(model), model.Meta.table_name, of_its] = model
    if not by_table:
        raise usage(
            "which tables? Name models as module:Class, or tables with --table and --transaction-table (or the "
            "settings for them)."
        )
    return list(by_table.values())


def _create(model: type[Model]) -> None:
    meta: Any = model.Meta
    says_how = getattr(meta, "billing_mode", None) is not None or getattr(meta, "read_capacity_units", None) is not None
    options: Any = {} if says_how or role_of(model) != "items" else {"billing_mode": "PAY_PER_REQUEST"}
    model.create_table(wait=True, **options)


def _enable_ttl(model: type[Model], *, whatever_is_there: bool) -> None:
    if not _lacks_ttl(model):
        return
    is_shared = tables.is_shared(model)
    is_asked = whatever_is_there or (role_of(model) == "items" and not is_shared)
    if not is_asked and (is_shared or not tables.is_empty(model)):
        return
    try:
        model.update_ttl(ignore_update_ttl_errors=False)
    except TableError:
        if _lacks_ttl(model):  # else another process was faster
            raise


def _lacks_ttl(model: type[Model]) -> bool:
    return any(each.check == "ttl" and each.remedy.startswith(CREATE) for each in findings(model))


def _report(session: Session, found: list[type[Model]], *, created: list[type[Model]] | None, strict: bool) -> int:
    bad = {PROBLEM, WARNING} if strict else {PROBLEM}
    is_ok, documents = True, list[dict[str, Any]]()
    people: list[RenderableType] = []
    for model in found:
        seen, name, role = findings(model, found), model.Meta.table_name, role_of(model)
        is_ok = is_ok and not any(each.level in bad for each in seen)
        document: dict[str, Any] = {"table": name, "role": role, "model": _name(model)}
        document |= {} if created is None else {"created": model in created}
        documents.append({**document, "findings": [asdict(each) for each in seen]})
        rows = [(each.check, Text(each.level, _STYLES[each.level]), each.detail, each.remedy) for each in seen]
        title = f"{name} ({role}){', created' if model in (created or ()) else ''}"
        people.append(terminal.table(title, ("check", "", "what was seen", "what to do"), rows))
    return session.show({"ok": is_ok, "tables": documents}, *people, is_well=is_ok)


def _name(model: type[Model]) -> str | None:
    """Return how a model of an application is named; None for those made up here."""
    return None if model.__module__ == Session.__module__ else f"{model.__module__}:{model.__qualname__}"
