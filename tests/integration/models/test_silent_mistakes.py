"""What would do nothing, or another thing than was meant, without a word: it is refused, or there is a warning."""

from __future__ import annotations

import copy
import gc
import pickle
import types
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import TTLAttribute as StockTTLAttribute
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableMixin,
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactionTable,
    TTLAttribute,
    VersionedMixin,
    atransactional,
    locked_all,
    transactional,
)
from pynamo_locking.exceptions import ConfigurationError, Conflict
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking.unique import UniqueTable
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import Account, Device, Locks, declare, meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


def test_a_lock_attribute_on_a_stock_model() -> None:
    """Its writes would go through a lock that another party holds."""
    with pytest.raises(ConfigurationError, match="Plain has a LockAttribute of pynamo_locking, but"):
        declare("Plain", Model, lock=LockAttribute())


@pytest.mark.parametrize(
    ("bases", "attribute", "is_told"),
    [
        ((Model,), TTLAttribute, True),
        ((VersionedMixin, Model), TTLAttribute, True),
        ((ExpiringMixin, Model), TTLAttribute, False),
        ((VersionedMixin, Model), StockTTLAttribute, False),
    ],
)
def test_a_time_of_expiry_that_hides_nothing(
    recwarn: pytest.WarningsRecorder, bases: Any, attribute: Any, is_told: bool
) -> None:
    """A warning names the class and the attribute; PynamoDB's own attribute promises no more than it does."""
    declare("Ends", *bases, ends=attribute(null=True))
    assert [str(each.message).partition(",")[0] for each in recwarn] == ["Ends.ends hides no expired item"] * is_told


@pytest.mark.parametrize("make", [lambda: Account("a"), lambda: Device("a"), lambda: Slot("a", 1, end=2)])
@pytest.mark.parametrize("checks", [True, False])
def test_an_update_that_must_not_make_an_item(cheap: Engine, make: Callable[[], Any], checks: bool) -> None:
    """`must_exist` refuses an absent item, and goes together with the other conditions."""
    cheap.bind(Locks, SlotLocks, Account, Device, Slot)
    item, own = make(), "state" if isinstance(make(), Device) else "note"
    changes = [getattr(type(item), own).set("x")]
    with pytest.raises(Conflict) as caught:
        item.update(changes, add_version_condition=checks, must_exist=True)
    assert caught.value.current is None
    assert list(type(item).scan()) == []
    item.save() if not isinstance(item, Slot) else Slot.intervals.insert_disjoint([item])
    item.update(changes, add_version_condition=checks, must_exist=True)
    assert [getattr(each, own) for each in type(item).scan()] == ["x"]


@pytest.mark.parametrize("take", [lambda lock: [lock], lambda lock: lock.acquire])
def test_locks_in_a_list(take: Callable[[Any], Any]) -> None:
    """Each is an argument of its own."""
    with pytest.raises(ConfigurationError, match=r"locked_all\(\*locks\)"):
        locked_all(take(Account.locked("a")))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_lock(memory: Engine, copied: Callable[[Any], Any]) -> None:
    """Both would release what was taken once."""
    memory.bind(Locks)
    with Locks.locked("a") as lock, pytest.raises(ConfigurationError, match="cannot be copied or pickled"):
        copied(lock)


@pytest.mark.parametrize("model", [Account, Device])
def test_another_key_in_edit(cheap: Engine, model: Any) -> None:
    """Nothing is saved, and the lock is given back."""
    cheap.bind(Locks, Account, Device)
    model("a").save()
    name = model._hash_keyname
    with pytest.raises(ConfigurationError, match="the key of"), model.edit("a") as item:
        setattr(item, name, "b")
    assert [getattr(each, name) for each in model.scan()] == ["a"]
    assert model.lock_state("a").entries == ()


def dropped() -> None:
    Locks.locked("a", heartbeat=False).acquire()
    gc.collect()


def test_a_lock_that_nobody_can_release(memory: Engine) -> None:
    """It was acquired without a block, and its object is gone: a ResourceWarning, as for a file."""
    memory.bind(Locks)
    with pytest.warns(ResourceWarning, match="'?a'? was acquired, and is held for ever"):
        dropped()
    Locks.locked("b").acquire().release()


HIDDEN = ["save", "update", "delete", "refresh", "get", "batch_get", "query", "batch_write", "before_save", "modify"]


def own(name: str, *bases: Any) -> Any:
    """A class of a project, which does not come from this package, with a method or an attribute of its own."""
    body: dict[str, Any] = {name: lambda *_, **__: None, "__module__": __name__}
    return types.new_class("Project", bases, exec_body=lambda namespace: namespace.update(body))


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("base", [VersionedMixin, LockableMixin, LockableModel])
@pytest.mark.parametrize(("behind", "remedy"), [((Model,), "derive Project from"), ((), "name Project first")])
def test_a_method_behind_ours(name: str, base: type[Any], behind: tuple[type[Any], ...], remedy: str) -> None:
    """Nothing would call it, in any way to write: the class is refused, and the error says how to order its bases."""
    with pytest.raises(ConfigurationError, match=f"member '{name}' that V would never use.*{remedy}"):
        declare("V", base, own(name, *behind), version=True)


@pytest.mark.parametrize("name", ["save", "delete", "before_save"])
def test_a_method_that_is_found(name: str) -> None:
    """It stands first, or its class is derived from ours, or the model has one of its own: Python finds it."""
    project = own(name, VersionedMixin, Model)
    found = declare("V", project, version=True), declare("V", own(name), VersionedMixin, version=True)
    assert [getattr(each, name).__qualname__.partition(".")[0] for each in found] == ["own", "own"]
    namespace = {name: getattr(project, name), "Meta": meta("v")}
    types.new_class("V", (VersionedMixin, own(name, Model)), exec_body=lambda body: body.update(namespace))


@pytest.mark.parametrize("base", [VersionedMixin, LockableMixin, ExpiringMixin, IntervalMixin, NamedLock])
@pytest.mark.parametrize(
    ("name", "nearest"), [("uniques", "'unique'"), ("lock_setting", "'lock_settings'"), ("Region", "'region'")]
)
def test_an_option_that_nobody_knows(base: type[Any], name: str, nearest: str) -> None:
    """Two items with one address would be stored."""
    with pytest.raises(ConfigurationError, match=rf"Meta\.{name} of User is no option .* did you mean {nearest}\?"):
        declare("User", base, version=True, **{name: ("email",)})


FOREIGN: list[tuple[Any, str, Any, str]] = [
    (NamedLock, "unique", ("name",), "a model of yours"),
    (NamedLock, "unique_scope", "s", "a model of yours"),
    (NamedLock, "lock_table", None, "a model of yours"),
    (NamedLock, "enforce_locks", "table", "a model of yours"),
    (NamedLock, "interval", ("begin", "end"), "a model of yours"),
    (NamedLock, "keep_keys_s", 1, "a TransactionTable"),
    (IdempotencyTable, "unique", ("name",), "a model of yours"),
    (IdempotencyTable, "keep_rows_s", 1, "a TransactionTable"),
    (UniqueTable, "unique", ("name",), "a model of yours"),
    (TransactionTable, "guard_queries", True, "a model of yours, a NamedLock, an IdempotencyTable"),
    (LockableModel, "keys", ("pk", "sk"), "a NamedLock, an IdempotencyTable, a UniqueTable, a TransactionTable"),
    (LockableModel, "ttl_attribute", "ttl", "a NamedLock, an IdempotencyTable, a UniqueTable, a TransactionTable"),
    (LockableModel, "keep_finished_s", 1, "a TransactionTable"),
]


@pytest.mark.parametrize(("base", "name", "value", "kinds"), FOREIGN)
def test_an_option_of_another_kind_of_models(base: type[Any], name: str, value: object, kinds: str) -> None:
    """It would be ignored: two items with one name, for example. The error says which kinds know it.

    What a Meta inherits may be for several kinds.
    """
    options = {"table_name": "t", name: value}
    members = {"key": UnicodeAttribute(hash_key=True)} if base is LockableModel else {}
    with pytest.raises(ConfigurationError, match=rf"Meta\.{name} of Mine would be ignored: .* of {kinds}\. "):
        type("Mine", (base,), {"Meta": type("Meta", (), options), **members})
    shared = type("Shared", (), {name: value})
    if name != "interval":
        type("Mine", (base,), {"Meta": type("Meta", (shared,), {"table_name": "t"})})


def test_an_option_that_nobody_knows_is_inherited() -> None:
    """The Meta of another class, and that of a class of PynamoDB's alone, are read as well."""
    plain = types.new_class("Plain", (Model,), exec_body=lambda body: body.update({"Meta": meta("v", guard_query=1)}))
    with pytest.raises(ConfigurationError, match="did you mean 'guard_queries'"):
        types.new_class("V", (VersionedMixin, plain))
    derived = type("Meta", (plain.Meta,), {"table_name": "w"})
    with pytest.raises(ConfigurationError, match="did you mean 'guard_queries'"):
        types.new_class("V", (VersionedMixin, Model), exec_body=lambda body: body.update({"Meta": derived}))


def test_options_that_somebody_knows() -> None:
    """Those of PynamoDB, and those of a project that begin with an underscore."""
    known = {"billing_mode": "PAY_PER_REQUEST", "tags": {}, "stream_view_type": "NEW_IMAGE", "extra_headers": {}}
    declare("V", VersionedMixin, aws_session_token=None, max_retry_attempts=1, _description="ours", **known)


def test_an_interval_without_its_mixin() -> None:
    """Nothing would keep the rows from overlapping."""
    with pytest.raises(ConfigurationError, match="which does nothing without IntervalMixin"):
        declare("Hours", VersionedMixin, Model, interval=("begin", "end"))


def test_a_value_that_is_set_on_the_lock(memory: Engine) -> None:
    """In place of its item: nothing would be stored."""
    memory.bind(Account)
    Account("a").save()
    with Account.locked("a") as lock, pytest.raises(AttributeError, match="balance"):
        lock.balance = 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("decorate", [transactional, atransactional])
def test_a_value_of_a_decorator_that_does_not_exist(decorate: Any) -> None:
    """It is refused where the function is declared, not at its first call."""
    with pytest.raises(ConfigurationError, match="isolation"):
        decorate(isolation="serialisable")


@pytest.mark.parametrize("kind", ["order", UnicodeAttribute(), property(lambda self: "order")])
def test_a_model_with_a_kind_of_its_own(kind: object) -> None:
    """The kinds of models that options are for are those of our classes."""
    made: Any = type("Order", (VersionedMixin, Model), {"Meta": meta("orders"), "_kind": kind})
    assert made.Meta.table_name == "orders"
    with pytest.raises(ConfigurationError, match=r"Mine is a NamedLock"):
        type("Mine", (NamedLock,), {"Meta": type("Meta", (), {"table_name": "t", "unique": ("x",)}), "_kind": "order"})
