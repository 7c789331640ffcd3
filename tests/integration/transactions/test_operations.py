"""Several operations on one item in a transaction do what they do one after the other by themselves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.expressions.condition import Comparison
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict, StaleVersion
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import Purse, make_long_from, marked_rows, purses, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


class InOrder:
    """The operations of a transaction, each at once."""

    def get_or_none(self, model: type[Purse], key: str) -> Purse | None:
        try:
            return model.get(key, consistent_read=True)
        except model.DoesNotExist:
            return None

    def save(self, item: Purse) -> None:
        item.save()

    def update(self, item: Purse, actions: list[Any]) -> None:
        item.update(actions)

    def delete(self, item: Purse) -> None:
        item.delete()

    def touch(self, item: Purse) -> None:
        item.touch()


def _save(do: Any, item: Purse) -> None:
    item.note, item.balance = "saved", item.balance + 1
    do.save(item)


def _save_less(do: Any, item: Purse) -> None:
    item.note, item.tags = None, {"new"}
    do.save(item)


def _update(do: Any, item: Purse) -> None:
    do.update(item, [Purse.balance.set((Purse.balance | 0) + 10), Purse.note.set("updated"), Purse.tags.add({"more"})])


def _remove(do: Any, item: Purse) -> None:
    do.update(item, [Purse.note.remove(), Purse.tags.delete({"a"})])


def _delete(do: Any, item: Purse) -> None:
    do.delete(item)


def _touch(do: Any, item: Purse) -> None:
    do.touch(item)


OPERATIONS: dict[str, Callable[[Any, Purse], None]] = {
    "save": _save,
    "less": _save_less,
    "update": _update,
    "remove": _remove,
    "delete": _delete,
    "touch": _touch,
}
PAIRS = list(itertools.product(OPERATIONS, repeat=2))
TRIPLES = list(itertools.product(OPERATIONS, repeat=3))


def apply(do: Any, key: str, names: tuple[str, ...]) -> Purse:
    """Apply operations, each to the item as it then is, or to a new one if there is none."""
    item = Purse(key)
    for name in names:
        found = do.get_or_none(Purse, key)
        if found is None and name in ("touch", "remove"):
            continue  # nothing is there that could be touched, or have attributes
        item = found or Purse(key)
        OPERATIONS[name](do, item)
    return item


def values(key: str) -> dict[str, Any] | None:
    """What the application has stored in an item."""
    item = stored(Purse, key)
    if item is None:
        return None
    return {
        name: sorted(value["SS"]) if "SS" in value else value
        for name, value in item.items()
        if name not in ("purse_id", "version", "version_write_id", "lock")
    }


def prepare(key: str, *, exists: bool) -> None:
    """Store the item that a sequence of operations begins with, if it begins with one."""
    if exists:
        Purse(key, balance=100, note="old", tags={"a", "b"}).save()


def run_all(sequences: list[tuple[str, ...]], *paths: int) -> dict[Any, Any]:
    """Run sequences in order, and in transactions of so many; return those that do not end the same."""
    cases = [(names, exists) for names in sequences for exists in (True, False)]
    for names, exists in cases:
        for kind in (*paths, "in-order"):
            prepare(f"{kind} {names} {exists}", exists=exists)
        apply(InOrder(), f"in-order {names} {exists}", names)
    expected = {case: values(f"in-order {case[0]} {case[1]}") for case in cases}
    differing = {}
    for in_one in paths:
        for start in range(0, len(cases), in_one):
            with transaction() as tx:
                for names, exists in cases[start : start + in_one]:
                    apply(tx, f"{in_one} {names} {exists}", names)
        for names, exists in cases:
            actual = values(f"{in_one} {names} {exists}")
            if actual != expected[names, exists]:
                differing[names, exists, in_one] = {"in order": expected[names, exists], "transaction": actual}
    return differing


def test_two_operations_are_as_if_one_after_the_other(
    concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of operations leaves the item that it leaves when each is done by itself, on every path."""
    make_long_from(monkeypatch, 50)
    assert run_all(PAIRS, 1, 40, 1000) == {}
    assert marked_rows(Purse) == []


@pytest.mark.slow
def test_three_operations_are_as_if_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every three operations leave the item that they leave when each is done by itself, on every path."""
    make_long_from(monkeypatch, 50)
    assert run_all(TRIPLES, 1, 40, 150) == {}
    assert marked_rows(Purse) == []


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_an_instance_can_be_used_after_the_commit(names: tuple[str, str], path: str) -> None:
    """After any two operations the instance is the stored item, and a save of it is accepted."""
    prepare("a", exists=True)
    with transaction() as tx:
        item = apply(tx, "a", names)
        add_fillers(tx, path)
    if stored(Purse, "a") is None:
        return
    actual = Purse.get("a", consistent_read=True)
    assert (item.version, item.balance, item.note, item.tags) == (
        actual.version,
        actual.balance,
        actual.note,
        actual.tags,
    )
    item.note = "afterwards"
    item.save()
    assert Purse.get("a", consistent_read=True).note == "afterwards"


def test_an_instance_that_lacks_the_result_says_refresh(cheap: Engine, path: str) -> None:
    """An instance from outside that was updated unread has not the result, so its save is refused until refresh()."""
    [item] = purses(1)
    with transaction() as tx:
        tx.update(item, [Purse.balance.add(5)])
        add_fillers(tx, path)
    assert Purse.get("p0", consistent_read=True).balance == 105
    if item.balance != 105:
        with pytest.raises(StaleVersion, match="refresh"):
            item.save()
        item.refresh(consistent_read=True)
    item.note = "afterwards"
    item.save()


def test_a_transaction_reads_what_it_has_written(engine: Engine) -> None:
    """get() returns the same instance with what was done to it: saved, updated, deleted, created again."""
    purses(1)
    with transaction() as tx:
        item = tx.get(Purse, "p0")
        tx.update(item, [Purse.balance.add(5)])
        assert item.balance == 105
        assert tx.get(Purse, "p0") is item
        item.balance = 7
        tx.save(item)
        assert tx.get(Purse, "p0").balance == 7
        tx.update(item, [Purse.balance.add(1), Purse.note.set("n")])
        assert (item.balance, item.note) == (8, "n")
        tx.delete(item)
        assert tx.get_or_none(Purse, "p0") is None
        with pytest.raises(Purse.DoesNotExist):
            tx.get(Purse, "p0")
        assert Purse.get("p0").balance == 100  # nothing is stored yet
    assert stored(Purse, "p0") is None


def test_an_item_is_deleted_and_made_again_by_another_instance(cheap: Engine, path: str) -> None:
    """A deleted item can be created anew in the same transaction."""
    purses(1, note="old")
    with transaction() as tx:
        tx.delete(tx.get(Purse, "p0"))
        tx.save(Purse("p0", balance=1))
        assert tx.get(Purse, "p0").balance == 1
        add_fillers(tx, path)
    found = Purse.get("p0", consistent_read=True)
    assert (found.balance, found.note) == (1, None)


def test_updates_of_an_absent_item_store_no_defaults(path: str) -> None:
    """Two updates that create an item store what they set, and no defaults of the model, as by themselves."""
    with transaction() as tx:
        item = Purse("a")
        tx.update(item, [Purse.note.set("1")])
        tx.update(item, [Purse.note.set("2")])
        add_fillers(tx, path)
    assert values("a") == {"note": {"S": "2"}}


def test_touch_of_an_absent_item(cheap: Engine, path: str) -> None:
    """touch() of an item that does not exist is refused, as by `Model.touch`, and makes none."""
    with pytest.raises(Conflict), transaction() as tx:
        tx.touch(Purse("absent"))
        add_fillers(tx, path)
    assert stored(Purse, "absent") is None


@pytest.mark.parametrize("way", ["check", "touch"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_check_after_a_write_adds_its_condition(path: str, name: str, way: str) -> None:
    """The condition of `check`, or of `touch`, counts as well if the transaction writes the item already."""
    prepare("refused", exists=True)
    prepare("written", exists=True)
    with pytest.raises(Conflict), transaction() as tx:
        item = apply(tx, "refused", (name,))
        getattr(tx, way)(item, Purse.note == "another")
        add_fillers(tx, path)
    with transaction() as tx:
        item = apply(tx, "written", (name,))
        getattr(tx, way)(item, Purse.note == "old")
        add_fillers(tx, path)
    assert values("refused") == {"balance": {"N": "100"}, "note": {"S": "old"}, "tags": ["a", "b"]}
    apply(InOrder(), "refused", (name,))
    assert values("refused") == values("written")


def test_only_one_of_two_copies_can_be_written() -> None:
    """Another copy of the same version is taken instead; one of another version is refused at once."""
    purses(1)
    with transaction() as tx:
        tx.get(Purse, "p0")
        other = Purse.get("p0")
        other.balance = 3
        tx.save(other)
        assert tx.get(Purse, "p0") is other
        with pytest.raises(StaleVersion, match="another copy"):
            tx.save(Purse("p0", balance=4))
    assert Purse.get("p0").balance == 3


def test_a_save_of_what_was_read_leaves_alone_what_it_does_not_change(path: str) -> None:
    """A change by a program that knows no versions survives, on every path."""
    prepare("a", exists=True)
    with transaction() as tx:
        item = tx.get(Purse, "a")
        item.balance, item.tags = 50, None
        tx.save(item)
        add_fillers(tx, path)
        by_hand(Purse, [Purse.note.set("by hand")])
    assert values("a") == {"balance": {"N": "50"}, "note": {"S": "by hand"}}


def test_a_save_of_any_stored_item_sets_every_attribute(path: str) -> None:
    """Without a version check the item as it was read is no base for what has to be set."""
    prepare("a", exists=True)
    with transaction(isolation="read_committed") as tx:
        item = tx.get(Purse, "a")
        item.balance = 50
        tx.save(item, add_version_condition=False)
        add_fillers(tx, path)
        other = Purse.get("a")
        other.note, other.tags = "other", {"c"}
        other.save()
    assert values("a") == {"balance": {"N": "50"}, "note": {"S": "old"}, "tags": ["a", "b"]}


class Twice(SetAction):
    """A user's own action, of which nobody knows what it does."""


class Like(Comparison):
    """A user's own condition."""


LIKE = Like("=", Path("note"), Value("old"))


@pytest.mark.parametrize(
    ("operate", "name"),
    [
        (lambda tx, item: tx.save(item, condition=LIKE), "Like"),
        (lambda tx, item: tx.update(item, [Twice(Path("balance"), Value(2))]), "Twice"),
        (lambda tx, item: tx.update(item, [Purse.balance.set(2)], condition=~LIKE), "Like"),
        (lambda tx, item: tx.delete(item, LIKE), "Like"),
        (lambda tx, item: tx.check(item, LIKE | Purse.note.exists()), "Like"),
        (lambda tx, _: tx.query(Purse, "a", None, LIKE), "Like"),
        (lambda tx, _: tx.scan(Purse, LIKE, at_most=9), "Like"),
    ],
)
def test_classes_that_users_have_derived_are_refused(operate: Callable[[Any, Any], object], name: str) -> None:
    """Where they are given: a transaction evaluates PynamoDB's own. The item stays as it was for it."""
    prepare("a", exists=True)
    with transaction(isolation="read_committed") as tx:
        item = tx.get(Purse, "a")
        with pytest.raises(ConfigurationError, match=rf"{name}, which is no class of PynamoDB's"):
            operate(tx, item)
        tx.update(item, [Purse.note.set("new")])
    assert values("a")["note"] == {"S": "new"}


def by_hand(model: type[Purse], actions: list[Any]) -> None:
    """Change an item as a program does that knows neither versions nor locks."""
    model._get_connection().update_item("a", actions=actions)
