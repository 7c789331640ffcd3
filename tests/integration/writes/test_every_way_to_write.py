"""Version, lock, expiry and a caller's condition on one model, in every way to write it."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import (
    NumberAttribute,
)
from pynamodb.exceptions import DoesNotExist, PynamoDBException, TransactWriteError
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockLost,
    LockTimeout,
    StaleVersion,
    TransactionConflict,
)
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere, in_thread
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# The models


def make_model(*, version: bool, lock: str, hides: bool) -> type[Any]:
    """Return a model with those parts."""
    name = f"{'Versioned' if version else 'Plain'}{lock.title()}{'Hiding' if hides else ''}"
    base = VersionedMixin if lock == "none" else LockableModel
    return declare(
        name,
        *((ExpiringMixin, base) if hides else (base,)),
        hash_key="pk",
        lock=lock == "inside" and LockAttribute(attr_name="l"),
        version=version and VersionAttribute(attr_name="v"),
        lock_table=Locks if lock == "beside" else None,
        value=NumberAttribute(default=0, attr_name="val"),
        expires=TTLAttribute(null=True, attr_name="exp"),
    )


@dataclass(frozen=True)
class Parts:
    """What a model has."""

    version: bool
    lock: str
    hides: bool


ALL_PARTS = [
    Parts(version, lock, hides)
    for version, lock, hides in itertools.product((True, False), ("none", "inside", "beside"), (False, True))
    if version or lock == "none"  # what can be locked has a version
]
MODELS = {parts: make_model(**vars(parts)) for parts in ALL_PARTS}
#: What hides expired items is left to `make test-all`; the tests of expiry have each way to write such an item.
EACH_MODEL = [
    pytest.param(parts, id=MODELS[parts].__name__, marks=[pytest.mark.slow] if parts.hides else [])
    for parts in ALL_PARTS
]

# The ways to write. Each leaves 99 in the value, or counts it up by one, or deletes the item.


@dataclass(frozen=True)
class Path:
    """One way to write an item.

    Attributes:
        name: for people.
        effect: "save", "update", "delete" or "touch".
        via: "alone", in a transaction of "ours" or of "stock" PynamoDB, "edit" or "modify".
        write: called with the item, the caller's condition and whether the version is checked.
    """

    name: str
    effect: str
    via: str
    write: Callable[[Any, Any, bool], object]

    @property
    def has_switch(self) -> bool:
        """Whether it takes ``add_version_condition``."""
        return self.via in ("alone", "ours") or (self.via == "stock" and self.effect != "save")


def alone(effect: str) -> Callable[[Any, Any, bool], object]:
    def write(item: Any, condition: Any, checks: bool) -> object:
        arguments = ([type(item).value.add(1)],) if effect == "update" else ()
        return getattr(item, effect)(*arguments, condition=condition, add_version_condition=checks)

    return write


def transacted(effect: str, kind: type[Any]) -> Callable[[Any, Any, bool], object]:
    def write(item: Any, condition: Any, checks: bool) -> None:
        arguments = ([type(item).value.add(1)],) if effect == "update" else ()
        switch = {} if checks else {"add_version_condition": False}
        with kind(connection=item._get_connection().connection) as transaction:
            getattr(transaction, effect)(item, *arguments, condition=condition, **switch)

    return write


@contextmanager
def raised_alone() -> Iterator[None]:
    """Raise the error of a batch's only write instead of the batch's."""
    try:
        yield
    except BatchError as error:
        (result,) = error.results
        raise result.error or AssertionError("an error of no write") from None


def batched(effect: str, *, transactions: bool) -> Callable[[Any, Any, bool], object]:
    def write(item: Any, condition: Any, checks: bool) -> None:
        with raised_alone(), type(item).guarded_batch(transactions=transactions) as batch:
            getattr(batch, effect)(item, condition, add_version_condition=checks)

    return write


def set_99(item: Any) -> None:
    item.value = 99


def modify(item: Any, condition: Any, checks: bool) -> None:
    type(item).modify(item.pk, change=set_99, attempts=1, condition=condition)


def edit(item: Any, condition: Any, checks: bool) -> None:
    with type(item).edit(item.pk, wait=0) as edited:
        set_99(edited)


THREE = ("save", "update", "delete")
PATHS = [
    *(Path(effect, effect, "alone", alone(effect)) for effect in (*THREE, "touch")),
    *(Path(f"ours.{effect}", effect, "ours", transacted(effect, TransactWrite)) for effect in THREE),
    *(Path(f"stock.{effect}", effect, "stock", transacted(effect, StockTransactWrite)) for effect in THREE),
    *(
        Path(f"batch.{effect} {via}", effect, via, batched(effect, transactions=via == "ours"))
        for effect in ("save", "delete")
        for via in ("alone", "ours")
    ),
    Path("modify", "save", "modify", modify),
    Path("edit", "save", "edit", edit),
]

# The situations


SITUATIONS = (
    "fine",
    "stale",  # another party has written since the item was read
    "locked",  # another party holds the lock
    "inside",  # we hold it
    "lost",  # we held it
    "stale inside",  # a writer that does not care for locks has written although we hold it
    "expired",  # the item was read, and has expired since
    "new",  # the object was made by hand, and there is an item
    "new expired",  # the same, and the item has expired
    "condition true",
    "condition false",
    "absent",  # deleted since it was read
)
#: A `modify` or an `edit` reads the item itself, so it knows no stale copies.
READERS = ("fine", "locked", "inside", "lost", "expired", "condition true", "condition false", "absent")


def is_possible(parts: Parts, situation: str, path: Path, checks: bool) -> bool:
    if not checks and not (path.has_switch and parts.version):
        return False
    if situation in ("locked", "inside", "lost") and parts.lock == "none":
        return False
    if situation == "stale inside" and parts.lock != "beside":
        return False
    if path.via in ("modify", "edit") and situation not in READERS:
        return False
    return not (path.via == "edit" and (parts.lock == "none" or situation.startswith("condition")))


def expected(parts: Parts, situation: str, path: Path, checks: bool) -> type[Exception] | None:
    """Return the error of a write, or None if it is done. Pure."""
    is_checked = parts.version and checks
    if not parts.version and (path.via == "modify" or path.effect == "touch"):
        return ConfigurationError
    if path.via == "stock" and parts.lock != "none":
        return ConfigurationError  # it checks no locks
    error = _refusal(parts, situation, path, is_checked)
    if path.via == "stock" and error is not None:
        return TransactWriteError  # the class is PynamoDB's, and knows nothing of reasons
    if error is Conflict and path.via == "alone" and not (parts.version or parts.lock == "inside" or parts.hides):
        return PynamoDBException  # nothing to guard: it is PynamoDB's own write
    return error


def _refusal(parts: Parts, situation: str, path: Path, is_checked: bool) -> type[Exception] | None:  # noqa: PLR0911, C901
    is_hidden = situation == "absent" or (parts.hides and situation == "expired")
    if is_hidden and path.via == "edit":
        return ItemNotFound if parts.lock == "inside" else DoesNotExist  # another row can be locked without an item
    if is_hidden and path.via == "modify":
        return DoesNotExist
    if path.effect == "touch" and situation == "absent" and not is_checked:
        return Conflict  # there is nothing to touch
    match situation:
        case "stale" | "stale inside" | "absent":
            return StaleVersion if is_checked else None
        case "locked" if path.via == "edit":
            return LockTimeout
        case "locked":
            return ItemLocked if parts.lock == "inside" else None
        case "lost":
            return LockLost
        case "condition false":
            return Conflict
        case "new":
            return StaleVersion if is_checked else None
        case "new expired":
            return StaleVersion if is_checked and not (parts.hides and path.effect == "save") else None
    return None


def starts_afresh(parts: Parts, situation: str, path: Path, checks: bool) -> bool:
    """Tell whether nothing of the old item remains. Pure."""
    return situation == "absent" or (parts.hides and situation == "new expired" and path.effect == "save" and checks)


@contextmanager
def arranged(model: type[Any], situation: str, key: str) -> Iterator[Any]:
    """Bring a situation about, and yield the object to be written."""
    end = timedelta(seconds=-30 if "expired" in situation else 3600)
    model(key, value=1, expires=end).save()
    item = read(model, key)
    if situation.startswith("new"):
        item = model(key)
    with ExitStack() as stack:
        if situation == "stale":
            read(model, key).update([model.value.set(50)])
        elif situation == "absent":
            read(model, key).delete()
        elif situation == "locked":
            stack.enter_context(held_elsewhere(model.locked(key)))
        elif situation in ("inside", "lost", "stale inside"):
            stack.enter_context(suppress(LockLost))
            lock = stack.enter_context(model.locked(key, heartbeat=False))
            item = lock.item
            if situation == "lost":
                model.break_lock(key, ticket=lock.ticket)
            if situation == "stale inside":
                in_thread(lambda: read(model, key).update([model.value.set(50)]))
        yield item


def read(model: type[Any], key: str) -> Any:
    return model.get(key, consistent_read=True, **({"include_expired": True} if model._hides_expired else {}))


def stored(engine: Any, model: type[Any], key: str) -> dict[str, Any] | None:
    """Return the stored item without its lock."""
    answer = engine.client().get_item(TableName=model.Meta.table_name, Key={"pk": {"S": key}}, ConsistentRead=True)
    item = answer.get("Item")
    return None if item is None else {name: value for name, value in item.items() if name != "l"}


KINDS = (
    *(StaleVersion, ItemLocked, TransactionConflict, LockLost, LockTimeout, ItemNotFound, ConfigurationError),
    *(Conflict, DoesNotExist, TransactWriteError, PynamoDBException),
)


def kind_of(error: Exception | None) -> type[Exception] | None:
    """Return which of the errors it is; others are raised."""
    if error is None:
        return None
    kind = next((kind for kind in KINDS if isinstance(error, kind)), None)
    if kind is None:
        raise error
    return kind


def outcome(engine: Any, parts: Parts, situation: str, path: Path, checks: bool, key: str) -> list[str]:
    """Write in that situation, and return what differs from the expectation."""
    model, error = MODELS[parts], None
    with arranged(model, situation, key) as item:
        condition = {"condition true": model.value == 1, "condition false": model.value > 1}.get(situation)
        before = stored(engine, model, key)
        if path.effect == "save":
            item.value, item.expires = 99, None
        try:
            path.write(item, condition, checks)
        except Exception as failure:  # noqa: BLE001 - compared below
            error = failure
        after = stored(engine, model, key)
    wanted = expected(parts, situation, path, checks)
    if kind_of(error) is not wanted:
        return [f"raised {error!r}, expected {wanted}"]
    if wanted is not None:
        return [] if before == after else [f"refused, and changed {before} to {after}"]
    return differences(parts, situation, path, checks, before or {}, after)


def differences(
    parts: Parts, situation: str, path: Path, checks: bool, before: dict[str, Any], after: dict[str, Any] | None
) -> list[str]:
    """Return what an applied write has not done as it should."""
    if path.effect == "delete":
        return [] if after is None else [f"still there: {after}"]
    assert after is not None
    start: dict[str, Any] = {} if starts_afresh(parts, situation, path, checks) else before
    version = int(start.get("v", {"N": "0"})["N"]) + 1 if parts.version else None
    old = int(start["val"]["N"]) if "val" in start else None
    value = {"save": 99, "update": (old or 0) + 1, "touch": old}[path.effect]
    found = int(after["v"]["N"]) if "v" in after else None, int(after["val"]["N"]) if "val" in after else None
    problems = [] if found == (version, value) else [f"version and value are {found}, not {(version, value)}"]
    if parts.version and after.get("v_write_id") in (None, before.get("v_write_id")):
        problems.append("no new write id")
    return problems


@pytest.mark.parametrize("parts", EACH_MODEL)
def test_every_way_to_write_every_model_in_every_situation(concurrent_engine, parts):
    """Each write is done or refused as one small table says; a refused one changes nothing."""
    concurrent_engine.bind(Locks, MODELS[parts])
    cases = [case for case in itertools.product(SITUATIONS, PATHS, (True, False)) if is_possible(parts, *case)]
    assert len(cases) > 100
    # All of them in memory, which is checked against the others; these take samples, which all passed once.
    step = {"memory": 1, "dynoxide": 3}.get(concurrent_engine.name, 7)
    problems = []
    for number in range(0, len(cases), step):
        situation, path, checks = cases[number]
        found = outcome(concurrent_engine, parts, situation, path, checks, f"k{number}")
        problems += [f"{situation}, {path.name}, checks={checks}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


# Copies


def test_a_lost_answer_does_not_disturb_the_interplay(engine):
    """Version, lock, end and condition on one model: a save whose answer is lost is applied once."""
    model = MODELS[Parts(version=True, lock="inside", hides=True)]
    engine.bind(Locks, model)
    item = model("a", value=1, expires=timedelta(hours=1))
    for operation, write in (
        ("UpdateItem", lambda: item.save(model.pk.does_not_exist())),
        ("UpdateItem", lambda: item.save(model.value == 1)),
        ("UpdateItem", lambda: item.update([model.value.add(1)], condition=model.value == 1)),
        ("DeleteItem", lambda: item.delete(model.value == 2)),
    ):
        with on(operation).lose_response() as faults:
            write()
        assert faults.hits == 1
    assert item.version == 3
    assert stored(engine, model, "a") is None
