"""Several operations on one item, and several instances of it: no write is lost, and nothing is written twice."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.expressions.operand import Path

from pynamo_locking import VersionedMixin, transaction
from pynamo_locking.exceptions import ConfigurationError, LockLost, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.models import declare
from tests.support.transaction_models import (
    Animal,
    Dog,
    Plain,
    Purse,
    Robot,
    RowLocks,
    make_long_from,
    purses,
    stored,
)
from tests.support.transaction_models import Entry as Ledger

if TYPE_CHECKING:
    from tests.engines import Engine

pytestmark = pytest.mark.core


class Cat(Animal, discriminator="copies cat"):
    """Another class than `Dog`."""

    lives = NumberAttribute(default=9)


Strict = declare("Strict", VersionedMixin, version=True, needed=UnicodeAttribute())


@pytest.fixture(autouse=True)
def _tables(database: Engine, _purses: None) -> None:
    """Tables, and two purses: p0 and p1, each with 100 and a note."""
    database.bind(Plain, Ledger)
    purses(2, note="n")


def add(item: Any, amount: int, tx: Transaction | None = None, *, blind: bool = False) -> None:
    """Add to the number of an item, in a transaction or by itself."""
    attribute = Purse.balance if isinstance(item, Purse) else Plain.value
    (item if tx is None else _In(tx, item)).update([attribute.add(amount)], add_version_condition=not blind)


class _In:
    def __init__(self, tx: Transaction, item: Any) -> None:
        self.tx, self.item = tx, item

    def update(self, actions: list[Any], **options: Any) -> None:
        self.tx.update(self.item, actions, **options)


def number(item: Any) -> int:
    """What is stored of it."""
    found = type(item).get(item.purse_id if isinstance(item, Purse) else item.plain_id, consistent_read=True)
    return int(found.balance if isinstance(found, Purse) else found.value)


# Several operations without a check


@pytest.mark.parametrize("extra", [0, 1, 9])
@pytest.mark.parametrize("model", [Purse, Plain])
def test_two_updates_without_a_check_lose_no_write(few: None, model: Any, extra: int) -> None:
    """They are made of what was read, so the transaction is refused once that has changed; else both are applied."""
    model("p").save()
    with pytest.raises(StaleVersion), transaction() as tx:
        for _ in range(2):
            add(model("p"), 5, tx, blind=True)
        for i in range(extra):
            tx.save(Purse(f"other{i}"))
        add(model("p"), 100, blind=True)
    assert number(model("p")) == 100
    with transaction() as tx:
        for _ in range(4):
            add(model("p"), 5, tx, blind=True)
        tx.touch(model("p"), add_version_condition=False)
    assert number(model("p")) == 120


def test_a_key_says_which_item_is_meant_and_nothing_else() -> None:
    """After a read as well, the update is one of what was read; with a check the item would have to be absent."""
    with transaction() as tx:
        purse = tx.get(Purse, "p0")
        add(Purse("p0"), 5, tx, blind=True)
        with pytest.raises(StaleVersion):
            add(Purse("p0"), 5, tx)
        assert tx.get(Purse, "p0") is purse
        assert (purse.balance, purse.version) == (105, 1)
    assert (number(purse), purse.version) == (105, 2)


def test_a_touch_and_an_update_without_a_check_stay_relative() -> None:
    """The touch changes no value, so that nothing has to be read for the update."""
    with transaction() as tx:
        tx.touch(Purse("p0"), add_version_condition=False)
        add(Purse("p0"), 5, tx, blind=True)
        add(Purse("p0"), 1000, blind=True)
    assert number(Purse("p0")) == 1105


def test_two_updates_of_what_was_read_committed() -> None:
    """As above, although reads are not checked in this isolation; one update alone stays relative."""
    for times, error in ((1, None), (2, StaleVersion)):
        before = number(Purse("p0"))
        tx = Transaction(isolation="read_committed")
        purse = tx.get(Purse, "p0")
        for _ in range(times):
            add(purse, 5, tx, blind=True)
        add(Purse("p0"), 100, blind=True)
        if error is None:
            tx.commit()
        else:
            with pytest.raises(error):
                tx.commit()
        assert number(Purse("p0")) == before + (105 if error is None else 100)


def test_two_inserts_beside_each_other_do_not_check_the_guard() -> None:
    """Its count and its names are several updates without a check, and stay so."""
    with transaction() as one:
        one.save(Ledger("l", 1))
        with Transaction() as other:
            other.save(Ledger("l", 2))
    assert Ledger.count("l") == 2


# Savepoints


@pytest.mark.parametrize("operation", ["update", "touch", "save", "delete"])
def test_a_rollback_to_a_savepoint_leaves_a_read_checked(operation: str) -> None:
    """Also of an item whose write, from before the savepoint, was not checked."""
    tx, item = Transaction(), Purse("p0", note="n")
    arguments: list[Any] = [[Purse.note.set("n")]] if operation == "update" else []
    getattr(tx, operation)(item, *arguments, add_version_condition=False)
    savepoint = tx.savepoint()
    seen = tx.get_or_none(Purse, "p0")
    savepoint.rollback()
    tx.update(Purse("p1"), [Purse.balance.set(seen.balance if seen else 0)], add_version_condition=False)
    add(Purse("p0"), 7, blind=True)
    with pytest.raises(StaleVersion):
        tx.commit()
    assert (number(Purse("p0")), number(Purse("p1"))) == (107, 100)


def test_a_rollback_to_a_savepoint_leaves_a_query_guarded() -> None:
    """Two who insert, query, and go back before the query: one of them is refused."""
    one, two = Transaction(), Transaction()
    for i, tx in enumerate((one, two)):
        tx.save(Ledger("l", 100 + i))
        savepoint = tx.savepoint()
        assert len(tx.query(Ledger, "l")) == 1
        savepoint.rollback()
    one.commit()
    with pytest.raises(StaleVersion):
        two.commit()


@pytest.mark.parametrize("before", [False, True])
def test_a_rollback_to_a_savepoint_outdates_other_instances(before: bool) -> None:
    """One that shows what was rolled back does not write it later; the one that was restored can be saved."""
    tx = Transaction()
    first = tx.get(Purse, "p0") if before else None
    savepoint = tx.savepoint()
    first = first or tx.get(Purse, "p0")
    other = Purse.get("p0")
    add(other, 1000, tx)
    savepoint.rollback()
    assert tx.get(Purse, "p0") is first
    assert first.balance == 100
    tx.commit()
    with pytest.raises(StaleVersion):
        other.save()
    first.save()
    assert number(first) == 100


def test_an_update_that_is_kept_by_a_rollback_to_a_savepoint_is_not_saved_after_all() -> None:
    """The restored instance shows what is not committed still, and never is."""
    tx = Transaction()
    purse = tx.get(Purse, "p0")
    add(purse, 5, tx)
    savepoint = tx.savepoint()
    add(purse, 5, tx)
    savepoint.rollback()
    assert purse.balance == 105
    tx.rollback()
    with pytest.raises(StaleVersion):
        purse.save()


def test_a_rollback_of_a_delete_and_a_create_gives_the_first_instance_back() -> None:
    """The new one has no version, and could not be saved later."""
    with transaction() as tx:
        savepoint = tx.savepoint()
        first = tx.get(Purse, "p0")
        tx.delete(first)
        tx.save(Purse("p0", balance=3))
        savepoint.rollback()
        assert tx.get(Purse, "p0") is first
        assert (first.balance, first.version) == (100, 1)
    first.save()


def test_a_rollback_to_a_savepoint_forgets_the_condition_of_a_write() -> None:
    """What the commit checks of an item that was read since is what the caller still asks for."""
    with transaction() as tx:
        savepoint = tx.savepoint()
        purse = tx.get(Purse, "p0")
        tx.save(purse, Purse.balance > 1000)
        savepoint.rollback()
        purse.balance = 5
        tx.save(purse)
    assert number(purse) == 5


def test_a_rollback_to_a_savepoint_forgets_the_check_of_a_write() -> None:
    """An item that was read since without being relied on is not checked after all."""
    with transaction(isolation="read_committed") as tx:
        savepoint = tx.savepoint()
        tx.save(tx.get(Purse, "p0"))
        savepoint.rollback()
        add(Purse("p0"), 5, tx, blind=True)
        add(Purse("p0"), 100, blind=True)
    assert number(Purse("p0")) == 205


def test_a_rollback_to_a_savepoint_forgets_an_update_of_what_was_not_read() -> None:
    """The item that the transaction relies on is read afterwards, as it is stored."""
    purse = Purse.get("p0")
    with transaction() as tx:
        savepoint = tx.savepoint()
        tx.check(purse)
        add(purse, 5, tx)
        savepoint.rollback()
        assert tx.get(Purse, "p0").balance == 100
        tx.save(tx.get(Purse, "p0"))
    assert number(purse) == 100


def test_a_savepoint_asks_whether_the_transaction_is_over() -> None:
    """Going back would give instances old values under new versions."""
    purse = Purse.get("p0")
    tx = Transaction()
    tx.update(purse, [Purse.balance.add(1)])
    savepoint = tx.savepoint()
    tx.commit()
    with pytest.raises(ConfigurationError, match="has ended"):
        savepoint.rollback()


# What an instance shows


@pytest.mark.parametrize("isolation", ["serializable", "read_committed"])
def test_get_shows_what_is_stored_after_a_touch_of_a_key(isolation: str) -> None:
    """Without the check a key is enough, and its defaults are no item's values."""
    with transaction(isolation=isolation) as tx:
        tx.touch(Purse("p0"), add_version_condition=False)
        purse = tx.get(Purse, "p0")
        assert (purse.balance, purse.note) == (100, "n")
        purse.balance += 1
        tx.save(purse)
    assert stored(Purse, "p0") is not None
    assert (Purse.get("p0").balance, Purse.get("p0").note) == (101, "n")


def test_a_query_shows_what_is_stored_after_a_touch_of_a_key() -> None:
    """As above."""
    with transaction() as tx:
        tx.save(Ledger("l", 1, amount=5))
    with transaction() as tx:
        tx.touch(Ledger("l", 1), add_version_condition=False)
        assert [row.amount for row in tx.query(Ledger, "l", filter_condition=Ledger.amount == 5)] == [5]


@pytest.mark.parametrize("operation", ["touch", "check"])
def test_get_shows_all_of_an_item_that_was_read_in_part(operation: str) -> None:
    """A save of the part would destroy the rest."""
    part = Purse.get("p0", attributes_to_get=["purse_id", "version", "version_write_id"])
    with transaction() as tx:
        getattr(tx, operation)(part)
        purse = tx.get(Purse, "p0")
        assert (purse.balance, purse.note) == (100, "n")
        tx.save(Purse("other"))
    purse.save()
    assert (Purse.get("p0").balance, Purse.get("p0").note) == (100, "n")


def test_get_shows_all_although_a_part_was_handed_in_later() -> None:
    """The part has taken the place of the instance that was read; it is completed."""
    with transaction() as tx:
        tx.get(Purse, "p0")
        tx.touch(Purse.get("p0", attributes_to_get=["purse_id", "version", "version_write_id"]))
        assert (tx.get(Purse, "p0").balance, tx.get(Purse, "p0").note) == (100, "n")


@pytest.mark.parametrize("extra", [0, 1, 9])
def test_a_key_that_was_touched_is_not_saved_as_it_is(few: None, extra: int) -> None:
    """Nothing was shown in it, so it counts as old after the commit; or it shows all that is stored."""
    key = Purse("p0")
    with transaction() as tx:
        tx.touch(key, add_version_condition=False)
        for i in range(extra):
            tx.save(Purse(f"other{i}"))
    with contextlib.suppress(StaleVersion):
        key.save()
    assert (Purse.get("p0").balance, Purse.get("p0").note) == (100, "n")


@pytest.mark.parametrize("extra", [0, 1, 9])
def test_a_refresh_before_the_commit_takes_nothing_back(few: None, extra: int) -> None:
    """The instance shows the item of before the transaction then, and is not saved with the new version."""
    with transaction() as tx:
        purse = tx.get(Purse, "p0")
        add(purse, 5, tx)
        for i in range(extra):
            tx.save(Purse(f"other{i}"))
        purse.refresh()
    with contextlib.suppress(StaleVersion):
        purse.save()
    assert number(purse) == 105


def test_get_shows_what_was_done_in_a_refreshed_instance() -> None:
    """A refresh inside shows what is stored; the transaction goes on with what it sees."""
    tx = Transaction()
    purse = tx.get(Purse, "p0")
    add(purse, 5, tx)
    purse.refresh()
    assert tx.get(Purse, "p0").balance == 105
    tx.rollback()
    with pytest.raises(StaleVersion):
        purse.save()


def test_a_refresh_that_finds_a_later_version_is_left_alone() -> None:
    """What is older, under the later version, could be saved over it."""
    with pytest.raises(StaleVersion), transaction() as tx:
        purse = tx.get(Purse, "p0")
        add(Purse("p0"), 5, blind=True)
        purse.refresh()
        assert tx.get(Purse, "p0").balance == 105
    purse.save()
    assert number(purse) == 105


def test_a_refreshed_instance_may_be_saved_after_a_rollback() -> None:
    """It shows nothing of what was rolled back."""
    with transaction() as tx:
        purse = tx.get(Purse, "p0")
        add(purse, 5, tx)
        purse.refresh()
        tx.rollback()
    purse.note = "n"
    purse.save()
    assert number(purse) == 100


def test_a_save_does_not_take_an_update_back_that_it_does_not_show() -> None:
    """An instance from elsewhere has nothing of it; the one that get returns has."""
    purse = Purse.get("p0")
    with transaction() as tx:
        add(purse, 5, tx)
        purse.note = "lost"
        with pytest.raises(StaleVersion, match="does not show"):
            tx.save(purse)
        again = tx.get(Purse, "p0")
        again.note = "kept"
        tx.save(again)
    assert (number(purse), Purse.get("p0").note) == (105, "kept")


@pytest.mark.parametrize("operation", ["touch", "update"])
def test_another_copy_does_not_take_the_place_of_the_changed_one(operation: str) -> None:
    """What get returns shows all that was done, whichever copy was handed in."""
    with transaction() as tx:
        mine = tx.get(Purse, "p0")
        add(mine, 5, tx)
        arguments: list[Any] = [[Purse.tags.add({"t"})]] if operation == "update" else []
        getattr(tx, operation)(Purse.get("p0"), *arguments)
        purse = tx.get(Purse, "p0")
        assert purse is mine
        assert purse.balance == 105
        purse.note = "x"
        tx.save(purse)
    assert (number(mine), Purse.get("p0").note) == (105, "x")


def test_an_instance_that_was_replaced_does_not_write_what_was_rolled_back() -> None:
    """It was shown the update, then the item was deleted and made anew with another one."""
    tx = Transaction()
    purse = tx.get(Purse, "p0")
    add(purse, 1000, tx)
    tx.delete(purse)
    tx.save(Purse("p0", balance=3))
    tx.rollback()
    with pytest.raises(StaleVersion):
        purse.save()
    assert number(purse) == 100


# Versions, keys


@pytest.mark.parametrize("version", [None, 1])
def test_a_version_that_was_assigned_is_expected(version: int | None) -> None:
    """As by `Model.save`: that is how an ETag is compared."""
    add(Purse.get("p0"), 1)
    with transaction() as tx:
        purse: Any = tx.get(Purse, "p0")
        purse.version = version
        with pytest.raises(StaleVersion) as caught:
            tx.save(purse)
        assert (caught.value.expected, caught.value.actual) == (version, 2)
        purse.version = 2
        purse.balance = 7
        tx.save(purse)
    assert number(purse) == 7


def test_the_same_instance_is_deleted_and_created_again() -> None:
    """Whether or not its version is taken away in between."""
    for version in (None, 1):
        with transaction() as tx:
            purse: Any = tx.get(Purse, "p0")
            tx.delete(purse)
            purse.version = purse.version if version else None
            purse.balance = 8
            tx.save(purse)
            tx.save(purse)
        assert number(purse) == 8


@pytest.mark.parametrize("path", ["single", "native", "long"])
@pytest.mark.parametrize("model", [Plain, Purse])
def test_an_instance_with_another_key_is_refused(few: None, model: Any, path: str) -> None:
    """The write would be that of another item than was asked for."""
    for name in "ab":
        model(name).save()
    for operation in ("delete", "save", "check"):
        item = model("a") if operation != "check" else model.get("a")
        with pytest.raises(ConfigurationError, match="key"), transaction() as tx:
            getattr(tx, operation)(item, **({} if operation == "check" else {"add_version_condition": False}))
            setattr(item, item._hash_keyname, "b")
            for i in range({"single": 0, "native": 1, "long": 9}[path]):
                tx.save(Purse(f"other{i}"))
    assert [model.get(name).version for name in "ab"] == [1, 1]
    assert Purse.count() == (4 if model is Purse else 2)


@pytest.mark.parametrize("extra", [0, 1, 9])
@pytest.mark.parametrize("name", ["purses", "plains"])
def test_an_item_without_a_version_is_deleted(memory: Engine, few: None, name: str, extra: int) -> None:
    """One that was not written by this package, and was read outside of the transaction."""
    model: Any = Purse if name == "purses" else Plain
    if model is Plain and extra > 2:
        extra = 2
    key = {model._hash_keyname: {"S": "old"}}
    memory.client().put_item(TableName=model.Meta.table_name, Item=key | {"balance": {"N": "4"}})
    with transaction() as tx:
        tx.delete(model.get("old"))
        for i in range(extra):
            tx.save(Purse(f"other{i}"))
    assert stored(model, "old") is None


# Attributes that are not declared


def extra_of(model: Any, key: str) -> Any:
    """An attribute that no model has."""
    return (stored(model, key) or {}).get("extra")


@pytest.mark.parametrize("extra", [0, 9])
@pytest.mark.parametrize("model", [Purse, Plain])
@pytest.mark.parametrize("read", [True, False])
def test_nothing_is_left_of_an_item_that_was_made_anew(
    monkeypatch: pytest.MonkeyPatch, model: Any, read: bool, extra: int
) -> None:
    """Deleted and created in one transaction, it has only what it was created with."""
    make_long_from(monkeypatch, 20 if model is Plain else 4)
    model("p").save()
    model("p").update([Path("extra").set("old")], add_version_condition=False)
    with transaction() as tx:
        tx.delete(tx.get(model, "p") if read else model.get("p"))
        again = model("p")
        tx.save(again)
        tx.save(again)
        for i in range(extra):
            tx.save(Purse(f"other{i}"))
    assert extra_of(model, "p") is None
    assert model.get("p").version == 3


def test_an_item_changes_its_class(memory: Engine) -> None:
    """The attributes of the old class go with it."""
    memory.bind(Animal)
    Dog("x", tricks=5).save()
    with transaction() as tx:
        tx.delete(tx.get(Animal, "x"))
        tx.save(Cat("x"))
    found = stored(Animal, "x") or {}
    assert (found["kind"]["S"], "tricks" in found, found["lives"]) == ("copies cat", False, {"N": "9"})


@pytest.mark.parametrize("order", ["save update", "update save", "save update save"])
@pytest.mark.parametrize("blind", [True, False])
@pytest.mark.parametrize("model", [Purse, Plain])
def test_an_update_of_what_is_not_declared_is_not_dropped(model: Any, blind: bool, order: str) -> None:
    """Beside a save of the same item. A Put alone takes away what is not declared, as PynamoDB's does."""
    model("p").save()
    model("p").update([Path("extra").set(1), Path("left").set(1)], add_version_condition=False)
    with transaction() as tx:
        item = model("p") if blind and order.startswith("save") else tx.get(model, "p")
        for operation in order.split():
            if operation == "save":
                tx.save(item, add_version_condition=not blind)
            else:
                tx.update(item, [Path("extra").add(5)], add_version_condition=not blind)
    found = stored(model, "p") or {}
    is_put = model is Plain
    if not is_put:
        assert (found["extra"], found["left"]) == ({"N": "6"}, {"N": "1"})
    elif order == "save update" and not blind:
        assert (found["extra"], "left" in found) == ({"N": "5"}, False)
    elif not blind:
        assert "left" not in found


# Locks, failures


def test_a_lock_that_is_taken_after_the_save_guards_it(memory: Engine) -> None:
    """In a row of its own: once it is lost, nothing is written. In the item: the save is not kept out by ourselves."""
    memory.bind(Robot, RowLocks)
    Robot("r").save()
    with pytest.raises(LockLost), transaction(wait=5) as tx:
        robot = Robot.get("r")
        robot.total = 1
        tx.save(robot)
        tx.get(Robot, "r", for_update=True)
        [holder] = Robot.lock_state("r").holders
        Robot.break_lock("r", ticket=holder.ticket)
    assert Robot.get("r").total == 0
    purse = Purse.get("p0")
    with transaction(wait=5) as tx:
        purse.balance = 7
        tx.save(purse)
        tx.get(Purse, "p0", for_update=True)
    assert number(purse) == 7


def test_a_failed_operation_leaves_no_condition_behind(memory: Engine) -> None:
    """What was not asked for successfully is not asked for."""
    memory.bind(Strict)
    Strict("a", needed="x").save()
    with transaction() as tx:
        item: Any = tx.get(Strict, "a")
        item.needed = None
        with pytest.raises(ValueError, match="needed"):
            tx.save(item, Strict.needed == "nope")
        item.needed = "y"
        tx.save(item)
    assert Strict.get("a").needed == "y"


def test_a_failed_operation_leaves_no_check_behind(memory: Engine) -> None:
    """An item that was read, and is not relied on, may change until the commit as before."""
    memory.bind(Strict)
    Strict("a", needed="x").save()
    with transaction(isolation="read_committed") as tx:
        item: Any = tx.get(Strict, "a")
        item.needed = None
        with pytest.raises(ValueError, match="needed"):
            tx.save(item)
        tx.update(Strict("a"), [Strict.needed.set("y")], add_version_condition=False)
        Strict.get("a").touch()
    assert (Strict.get("a").needed, Strict.get("a").version) == ("y", 3)


def test_a_failed_first_operation_leaves_nothing_behind(memory: Engine) -> None:
    """Its instance is not the one that get returns."""
    memory.bind(Strict)
    Strict("a", needed="x").save()
    with transaction() as tx:
        bad: Any = Strict("a")
        with pytest.raises(ValueError, match="needed"):
            tx.save(bad)
        item = tx.get(Strict, "a")
        assert item is not bad
        item.needed = "y"
        tx.save(item)
    assert Strict.get("a").needed == "y"
