"""What would do nothing, or another thing than was meant, without a word: it is refused, or there is a warning."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import TTLAttribute as StockTTLAttribute
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockAttribute,
    TTLAttribute,
    VersionedMixin,
    atransactional,
    locked_all,
    transactional,
)
from pynamo_locking.exceptions import ConfigurationError, Conflict
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import Account, Device, Locks, declare

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
