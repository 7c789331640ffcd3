"""Instances, conditions and versions: what a commit relies on, and what it leaves in the instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import PutError, TransactWriteError

from pynamo_locking import transaction
from pynamo_locking.exceptions import Conflict, StaleVersion
from tests.support.transaction_helpers import (
    WRITES,
    Expecting,
    add_fillers,
    balance,
    tx_delete,
    tx_save,
    tx_touch,
    tx_update,
)
from tests.support.transaction_models import Purse, marked_rows, purses, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


# Instances from elsewhere, conditions


def test_instances_from_outside(engine: Engine, path: str) -> None:
    """An instance that was read before counts as what it was then: written if that is still so, refused if not."""
    good, old = purses(2)
    Purse.get("p1").update([Purse.balance.add(1)])
    good.balance = 1
    with transaction() as tx:
        tx.save(good)
        add_fillers(tx, path)
    assert Purse.get("p0", consistent_read=True).balance == 1
    assert good.version == 2
    for write in (tx_save, tx_update, tx_delete, tx_touch):
        with pytest.raises(StaleVersion), transaction() as tx:
            write(tx, old)
            add_fillers(tx, path)
    assert Purse.get("p1", consistent_read=True).balance == 101


def test_key_only_instances_without_a_version_condition(engine: Engine, path: str) -> None:
    """With add_version_condition=False an instance with nothing but a key is written over whatever is stored."""
    for write in WRITES:
        Purse("p0", balance=100, note="old").save(add_version_condition=False)
        version = Purse.get("p0", consistent_read=True).version
        Purse.get("p0", consistent_read=True).update([Purse.balance.add(1)])
        with transaction() as tx:
            write(tx, Purse("p0"), add_version_condition=False)
            add_fillers(tx, path)
        found = stored(Purse, "p0")
        if write is tx_delete:
            assert found is None
            continue
        assert found is not None
        assert found["version"] == {"N": str(version + 2)}, write
        assert found["balance"]["N"] == ("0" if write is tx_save else "101"), write
        assert found.get("note", {}).get("S") == {tx_save: None, tx_update: "written", tx_touch: "old"}[write]


def test_key_only_instances_with_a_version_condition(engine: Engine, path: str) -> None:
    """A new instance must not be stored yet: StaleVersion if it is, and nothing is written."""
    purses(1)
    before = stored(Purse, "p0")
    for write in WRITES:
        with pytest.raises(StaleVersion) as caught, transaction() as tx:
            write(tx, Purse("p0"))
            add_fillers(tx, path)
        assert (caught.value.expected, caught.value.actual) == (None, 1), write
        assert stored(Purse, "p0") == before, write
        assert stored(Purse, "filler0") is None


@pytest.mark.parametrize("write", WRITES)
def test_conditions(engine: Engine, write: Callable[..., None], path: str) -> None:
    """A condition is on the item before the transaction; not met, it is a Conflict and nothing is written."""
    purses(2)
    with transaction() as tx:
        item = tx.get(Purse, "p0")
        item.balance = 1
        write(tx, item, condition=Purse.balance == 100)
        add_fillers(tx, path)
    other, before = Purse.get("p1"), stored(Purse, "p1")
    fillers = [stored(Purse, f"filler{i}") for i in range(5)]
    with pytest.raises(Conflict) as caught, transaction() as tx:
        write(tx, other, condition=Purse.balance > 100)
        add_fillers(tx, path)
    assert not isinstance(caught.value, StaleVersion)
    assert isinstance(caught.value, TransactWriteError if path != "single" else Conflict)
    assert caught.value.current.balance == 100
    assert stored(Purse, "p1") == before
    assert [stored(Purse, f"filler{i}") for i in range(5)] == fillers
    assert marked_rows(Purse) == []


def test_all_conditions_of_one_item_have_to_hold(cheap: Engine, path: str) -> None:
    """Conditions of several operations on one item are joined."""
    purses(1)
    with pytest.raises(Conflict), transaction() as tx:
        item = tx.get(Purse, "p0")
        tx.update(item, [Purse.balance.add(1)], Purse.balance == 99)
        tx.save(item, Purse.balance == 100)
        add_fillers(tx, path)
    assert Purse.get("p0").balance == 100


def test_check(engine: Engine, few: None) -> None:
    """check() makes an unwritten item, its version and a condition part of the commit, on every path."""
    good, old = purses(2)
    Purse.get("p1").touch()
    for size in (1, 6):
        cases: list[tuple[Any, Any, type[Exception] | None]] = [
            (good, None, None),
            (good, Purse.balance == 100, None),
            (good, Purse.balance == 1, Conflict),
            (old, None, StaleVersion),
            (Purse("absent"), None, None),
            (Purse("p0"), None, StaleVersion),
        ]
        for item, condition, error in cases:
            with Expecting(error), transaction() as tx:
                tx.check(item, condition)
                for i in range(size):
                    tx.save(Purse(f"new{i}"), add_version_condition=False)
    assert good.version == 1
    good.save()


def test_a_check_alone(engine: Engine) -> None:
    """A transaction that only checks or reads makes transactional reads, and notices what has changed."""
    one, two = purses(2)
    with transaction() as tx:
        tx.check(one)
        tx.get(Purse, "p1")
        assert tx.plan().path == "read"
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.get(Purse, "p1")
        two.touch()
    with pytest.raises(Conflict), transaction() as tx:
        tx.check(one, Purse.balance < 0)


# Versions


def test_versions(engine: Engine, path: str) -> None:
    """Each written item has one version more, however often it was written; a read one stays."""
    purses(3)
    with transaction() as tx:
        a, b, c = (tx.get(Purse, f"p{i}") for i in range(3))
        a.balance = 1
        for _ in range(3):
            tx.save(a)
        if path != "single":
            tx.touch(b)
        add_fillers(tx, path)
    assert (a.version, b.version, c.version) == (2, 1 if path == "single" else 2, 1)
    assert [Purse.get(f"p{i}", consistent_read=True).version for i in range(3)] == [a.version, b.version, c.version]


def test_a_failed_commit_leaves_the_instances_usable(cheap: Engine, path: str) -> None:
    """After a Conflict the instances have their old version, and can be saved again."""
    [item] = purses(1)
    item.balance = 1
    with pytest.raises(Conflict), transaction() as tx:
        tx.save(item, Purse.balance == -1)
        add_fillers(tx, path)
    assert item.version == 1
    item.save()
    assert Purse.get("p0").balance == 1


def test_what_is_read_after_an_unchecked_write_is_checked() -> None:
    """The value that was seen is the one that was written upon."""
    purses(1)
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.update(Purse("p0"), [Purse.balance.add(5)], add_version_condition=False)
        assert tx.get(Purse, "p0").balance == 105
        Purse("p0").update([Purse.balance.set(1000)], add_version_condition=False)
    assert balance("p0") == 1000


def test_two_copies_of_one_item_are_not_both_saved() -> None:
    """The second would undo what was done to the first."""
    purses(1)
    with pytest.raises(StaleVersion, match="another copy"), transaction() as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        tx.save(Purse.get("p0"))


def test_a_check_leaves_the_instance_that_get_has_given() -> None:
    """Everybody who asks the transaction gets the same one."""
    purses(1)
    with transaction() as tx:
        mine = tx.get(Purse, "p0")
        tx.check(Purse.get("p0"))
        assert tx.get(Purse, "p0") is mine


@pytest.mark.parametrize("long", [False, True])
def test_a_save_stores_what_was_saved(few: None, long: bool) -> None:
    """What is changed in the instance afterwards needs another save, also where the write is planned again."""
    purse = purses(1)[0]
    with transaction() as tx:
        purse.balance = 1
        tx.save(purse, add_version_condition=False)
        purse.balance = 999
        for i in range(9 if long else 1):
            tx.save(Purse(f"other{i}"))
        assert tx.plan().path == ("long" if long else "native")
    assert balance("p0") == 1


def test_a_failed_long_commit_teaches_no_instance_a_version(few: None) -> None:
    """An old instance that was to be saved whatever is stored is as old afterwards as it was."""
    old, stale = purses(2)
    for purse in (Purse.get("p0"), Purse.get("p1")):
        purse.update([Purse.balance.set(500)])
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.save(old, add_version_condition=False)
        tx.save(stale)
        for i in range(9):
            tx.save(Purse(f"other{i}"))
    with pytest.raises(PutError):
        old.save()
    assert balance("p0") == 500


def test_an_instance_does_not_carry_out_what_was_rolled_back() -> None:
    """It shows the result of an update that has not happened: to save it is refused."""
    purses(1)
    with transaction() as tx:
        purse = tx.get(Purse, "p0")
        tx.update(purse, [Purse.balance.add(1)])
        tx.rollback()
    with pytest.raises(StaleVersion):
        purse.save()
    assert balance("p0") == 100


def test_an_item_without_a_version_is_known_to_exist(memory: Engine) -> None:
    """One that stock PynamoDB has written, and that is deleted meanwhile, is not created again."""
    memory.client().put_item(TableName=Purse.Meta.table_name, Item={"purse_id": {"S": "old"}, "balance": {"N": "1"}})
    with pytest.raises(Conflict), transaction() as tx:
        purse = tx.get(Purse, "old")
        memory.client().delete_item(TableName=Purse.Meta.table_name, Key={"purse_id": {"S": "old"}})
        tx.save(purse)
    assert stored(Purse, "old") is None
