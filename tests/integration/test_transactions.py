"""Transactions by their public API: what they read, write, refuse, cost, and leave behind."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.expressions.operand import Path
from pynamodb.models import Model

from pynamo_locking import (
    ConfigurationError,
    Conflict,
    ItemLocked,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    Transaction,
    current_transaction,
    outcome,
    transaction,
    transactional,
)
from pynamo_locking.testing import VirtualClock
from tests.engines.engine import running
from tests.support.faults import count_requests, lost_responses
from tests.support.parties import held_elsewhere, in_thread
from tests.support.transaction_models import (
    Animal,
    Blob,
    Dog,
    Entry,
    Plain,
    Purse,
    Robot,
    RowLocks,
    Session,
    Sheet,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers


@pytest.fixture
def memory(servers: Servers) -> Iterator[Engine]:
    """The in-memory engine alone, for what does not depend on the engine."""
    with running("memory", servers) as engine:
        yield engine


@pytest.fixture(params=["memory", "dynoxide"])
def cheap(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """The two engines that cost little."""
    with running(request.param, servers) as engine:
        yield engine


def add_fillers(tx: Transaction, path: str) -> None:
    """Write other items besides, so that the transaction takes that path."""
    for i in range({"single": 0, "native": 1, "long": 5}[path]):
        tx.save(Purse(f"filler{i}", balance=i), add_version_condition=False)


@pytest.fixture(params=["single", "native", "long"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each path that writes, with `add_fillers`."""
    make_long_from(monkeypatch)
    name: str = request.param
    return name


# Several operations on one item


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


def run_all(sequences: list[tuple[str, ...]], in_one: int) -> dict[Any, Any]:
    """Run sequences in order and in transactions of so many; return those that do not end the same."""
    cases = [(names, exists) for names in sequences for exists in (True, False)]
    for names, exists in cases:
        for kind in ("tx", "in-order"):
            prepare(f"{kind} {names} {exists}", exists=exists)
        apply(InOrder(), f"in-order {names} {exists}", names)
    for start in range(0, len(cases), in_one):
        with transaction() as tx:
            for names, exists in cases[start : start + in_one]:
                apply(tx, f"tx {names} {exists}", names)
    differing = {}
    for names, exists in cases:
        expected, actual = values(f"in-order {names} {exists}"), values(f"tx {names} {exists}")
        if expected != actual:
            differing[names, exists] = {"in order": expected, "transaction": actual}
    return differing


@pytest.mark.parametrize("in_one", [1, 40, 1000], ids=["single", "native", "long"])
def test_two_operations_are_as_if_one_after_the_other(
    concurrent_engine: Engine, in_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of operations leaves the item that it leaves when each is done by itself, on every path."""
    concurrent_engine.bind(Purse, Transactions)
    make_long_from(monkeypatch, 50)
    assert run_all(PAIRS, in_one) == {}
    assert marked_rows(Purse) == []


@pytest.mark.parametrize("in_one", [1, 40, 150], ids=["single", "native", "long"])
def test_three_operations_are_as_if_one_after_the_other(
    memory: Engine, in_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every three operations leave the item that they leave when each is done by itself, on every path."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch, 50)
    assert run_all(TRIPLES, in_one) == {}
    assert marked_rows(Purse) == []


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_an_instance_can_be_used_after_the_commit(memory: Engine, names: tuple[str, str], path: str) -> None:
    """After any two operations the instance is the stored item, and a save of it is accepted."""
    memory.bind(Purse, Transactions)
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
    cheap.bind(Purse, Transactions)
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
    engine.bind(Purse, Transactions)
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


def test_an_item_is_deleted_and_made_again_by_another_instance(engine: Engine, path: str) -> None:
    """A deleted item can be created anew in the same transaction."""
    engine.bind(Purse, Transactions)
    purses(1, note="old")
    with transaction() as tx:
        tx.delete(tx.get(Purse, "p0"))
        tx.save(Purse("p0", balance=1))
        assert tx.get(Purse, "p0").balance == 1
        add_fillers(tx, path)
    found = Purse.get("p0", consistent_read=True)
    assert (found.balance, found.note) == (1, None)


def test_updates_of_an_absent_item_store_no_defaults(memory: Engine, path: str) -> None:
    """Two updates that create an item store what they set, and no defaults of the model, as by themselves."""
    memory.bind(Purse, Transactions)
    with transaction() as tx:
        item = Purse("a")
        tx.update(item, [Purse.note.set("1")])
        tx.update(item, [Purse.note.set("2")])
        add_fillers(tx, path)
    assert values("a") == {"note": {"S": "2"}}


def test_touch_of_an_absent_item(cheap: Engine, path: str) -> None:
    """touch() of an item that does not exist is refused, as by `Model.touch`, and makes none."""
    cheap.bind(Purse, Transactions)
    with pytest.raises(Conflict), transaction() as tx:
        tx.touch(Purse("absent"))
        add_fillers(tx, path)
    assert stored(Purse, "absent") is None


def test_only_one_of_two_copies_can_be_written(memory: Engine) -> None:
    """Another copy of the same version is taken instead; one of another version is refused at once."""
    memory.bind(Purse, Transactions)
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


# Instances from elsewhere, conditions


def test_instances_from_outside(engine: Engine, path: str) -> None:
    """An instance that was read before counts as what it was then: written if that is still so, refused if not."""
    engine.bind(Purse, Transactions)
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


def tx_save(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.save(item, **options)


def tx_update(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.update(item, [Purse.note.set("written")], **options)


def tx_delete(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.delete(item, **options)


def tx_touch(tx: Transaction, item: Purse, **options: Any) -> None:
    tx.touch(item, **options)


WRITES = [tx_save, tx_update, tx_delete, tx_touch]


@pytest.mark.parametrize("write", WRITES)
def test_key_only_instances_without_a_version_condition(engine: Engine, write: Callable[..., None], path: str) -> None:
    """With add_version_condition=False an instance with nothing but a key is written over whatever is stored."""
    engine.bind(Purse, Transactions)
    purses(1, note="old")
    Purse.get("p0").update([Purse.balance.add(1)])
    with transaction() as tx:
        write(tx, Purse("p0"), add_version_condition=False)
        add_fillers(tx, path)
    found = stored(Purse, "p0")
    if write is tx_delete:
        assert found is None
        return
    assert found is not None
    assert found["version"] == {"N": "3"}
    assert found["balance"]["N"] == ("0" if write is tx_save else "101")
    assert found.get("note", {}).get("S") == {tx_save: None, tx_update: "written", tx_touch: "old"}[write]


@pytest.mark.parametrize("write", WRITES)
def test_key_only_instances_with_a_version_condition(engine: Engine, write: Callable[..., None], path: str) -> None:
    """A new instance must not be stored yet: StaleVersion if it is, and nothing is written."""
    engine.bind(Purse, Transactions)
    purses(1)
    before = stored(Purse, "p0")
    with pytest.raises(StaleVersion) as caught, transaction() as tx:
        write(tx, Purse("p0"))
        add_fillers(tx, path)
    assert (caught.value.expected, caught.value.actual) == (None, 1)
    assert stored(Purse, "p0") == before
    assert stored(Purse, "filler0") is None


@pytest.mark.parametrize("write", WRITES)
def test_conditions(engine: Engine, write: Callable[..., None], path: str) -> None:
    """A condition is on the item before the transaction; not met, it is a Conflict and nothing is written."""
    engine.bind(Purse, Transactions)
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
    cheap.bind(Purse, Transactions)
    purses(1)
    with pytest.raises(Conflict), transaction() as tx:
        item = tx.get(Purse, "p0")
        tx.update(item, [Purse.balance.add(1)], Purse.balance == 99)
        tx.save(item, Purse.balance == 100)
        add_fillers(tx, path)
    assert Purse.get("p0").balance == 100


def test_check(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """check() makes an unwritten item, its version and a condition part of the commit, on every path."""
    engine.bind(Purse, Transactions)
    make_long_from(monkeypatch)
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


class Expecting:
    """Expects an error of exactly this class or of one derived from it, or none."""

    def __init__(self, kind: type[Exception] | None) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if self._kind is None:
            return False
        assert kind is not None, f"{self._kind.__name__} was expected"
        return issubclass(kind, self._kind) and (self._kind is not Conflict or not issubclass(kind, StaleVersion))


def test_a_check_alone(engine: Engine) -> None:
    """A transaction that only checks or reads makes transactional reads, and notices what has changed."""
    engine.bind(Purse, Transactions)
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
    engine.bind(Purse, Transactions)
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
    cheap.bind(Purse, Transactions)
    [item] = purses(1)
    item.balance = 1
    with pytest.raises(Conflict), transaction() as tx:
        tx.save(item, Purse.balance == -1)
        add_fillers(tx, path)
    assert item.version == 1
    item.save()
    assert Purse.get("p0").balance == 1


# Savepoints, callbacks, the end


def test_savepoint(engine: Engine, path: str) -> None:
    """Going back to a savepoint undoes what came after it, in the instances too, as often as one likes."""
    engine.bind(Purse, Transactions)
    purses(3)
    with transaction() as tx:
        first, second = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        tx.update(first, [Purse.balance.add(1)])
        point = tx.savepoint()
        for _ in range(2):
            tx.update(first, [Purse.balance.add(10)])
            tx.delete(second)
            tx.save(Purse("new"))
            third = tx.get(Purse, "p2")
            tx.update(third, [Purse.balance.add(1)])
            point.rollback()
            assert first.balance == 101
            assert tx.get(Purse, "p1").balance == 100
            assert tx.get_or_none(Purse, "new") is None
            assert tx.get(Purse, "p2").balance == 100
        tx.update(first, [Purse.balance.add(100)])
        add_fillers(tx, path)
    assert [Purse.get(f"p{i}", consistent_read=True).balance for i in range(3)] == [201, 100, 100]
    assert stored(Purse, "new") is None


def test_callbacks_and_locks(engine: Engine) -> None:
    """After a commit the locks are given back first, then the callbacks run in their order; so after a rollback."""
    engine.bind(Purse, Transactions)
    purses(1)
    calls: list[Any] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: calls.append((name, len(Purse.lock_state("p0").entries)))

    for fails in (False, True):
        with suppress(KeyError), transaction() as tx:
            tx.get(Purse, "p0", for_update=True)
            for i in (1, 2):
                tx.after_commit(note(f"commit {i}"))
                tx.after_rollback(note(f"rollback {i}"))
            note("inside")()
            if fails:
                raise KeyError
    assert calls == [
        ("inside", 1),
        ("commit 1", 0),
        ("commit 2", 0),
        ("inside", 1),
        ("rollback 1", 0),
        ("rollback 2", 0),
    ]


def test_a_callback_that_fails_does_not_keep_the_others(memory: Engine) -> None:
    """All callbacks run, the locks are free and the writes stay when one raises."""
    memory.bind(Purse, Transactions)
    purses(1)
    calls: list[int] = []

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), transaction() as tx:
        item = tx.get(Purse, "p0", for_update=True)
        tx.update(item, [Purse.balance.add(1)])
        tx.after_commit(fail)
        tx.after_commit(lambda: calls.append(1))
        tx.after_rollback(lambda: calls.append(2))
    assert calls == [1]
    assert Purse.get("p0").balance == 101
    assert Purse.lock_state("p0").entries == ()


def test_explicit_end(engine: Engine) -> None:
    """commit() and rollback() end a transaction; after that nothing can be done with it, and rollback does nothing."""
    engine.bind(Purse, Transactions)
    purses(1)
    tx = Transaction()
    item = tx.get(Purse, "p0")
    item.balance = 1
    tx.save(item)
    tx.commit()
    tx.rollback()
    assert Purse.get("p0").balance == 1
    over: list[Callable[[], object]] = [
        tx.commit,
        tx.savepoint,
        lambda: tx.get(Purse, "p0"),
        lambda: tx.get_or_none(Purse, "p0"),
        lambda: tx.save(item),
        lambda: tx.update(item, [Purse.balance.add(1)]),
        lambda: tx.delete(item),
        lambda: tx.check(item),
        lambda: tx.touch(item),
        lambda: tx.query(Purse, "p0"),
        tx.__enter__,
    ]
    for call in over:
        with pytest.raises(ConfigurationError, match="over"):
            call()
    other = Transaction()
    other.save(item)
    other.rollback()
    with pytest.raises(ConfigurationError, match="over"):
        other.commit()
    assert item.version == 2
    assert Purse.get("p0").version == 2


def test_ended_inside_its_block(memory: Engine) -> None:
    """A transaction that was committed or rolled back inside its block is not committed again at its end."""
    memory.bind(Purse, Transactions)
    with transaction() as tx:
        tx.save(Purse("a"))
        tx.commit()
    with transaction() as tx:
        tx.save(Purse("b"))
        tx.rollback()
    assert stored(Purse, "a") is not None
    assert stored(Purse, "b") is None


def test_an_empty_transaction(engine: Engine) -> None:
    """One that does nothing makes no request."""
    engine.bind(Purse, Transactions)
    with count_requests() as counted:
        with transaction() as tx:
            pass
        assert not tx.is_repeated
    assert counted.total == 0


# Locks


@pytest.mark.parametrize("model", [Purse, Robot])
def test_for_update(engine: Engine, model: type[Any], path: str) -> None:
    """for_update holds the item's lock until the end, in the item and in a row of its own."""
    engine.bind(Purse, Robot, RowLocks, Transactions)
    model("a").save()
    name = model.total if model is Robot else model.balance
    with transaction() as tx:
        item = tx.get(model, "a", for_update=True)
        assert tx.get(model, "a", for_update=True) is item
        assert len(model.lock_state("a").entries) == 1
        with pytest.raises(LockTimeout):
            in_thread(lambda: model.locked("a", wait=0).acquire())
        tx.update(item, [name.add(5)])
        add_fillers(tx, path)
    assert model.lock_state("a").entries == ()
    assert getattr(model.get("a", consistent_read=True), name.attr_name) == 5
    item.save()


@pytest.mark.parametrize("model", [Purse, Robot])
def test_for_update_and_delete(engine: Engine, model: type[Any], path: str) -> None:
    """An item that was locked for update can be deleted."""
    engine.bind(Purse, Robot, RowLocks, Transactions)
    model("a").save()
    with transaction() as tx:
        tx.delete(tx.get(model, "a", for_update=True))
        add_fillers(tx, path)
    assert stored(model, "a") is None


def test_for_update_waits_for_the_lock(memory: Engine) -> None:
    """It waits until the deadline of the transaction, and leaves no entry behind."""
    memory.bind(Purse, Transactions)
    purses(1)
    with VirtualClock(), held_elsewhere(Purse.locked("p0")):
        with pytest.raises(LockTimeout), transaction(wait=3) as tx:
            tx.get(Purse, "p0", for_update=True)
        assert len(Purse.lock_state("p0").entries) == 1


def test_for_update_of_an_absent_item(cheap: Engine) -> None:
    """That an item is absent is relied upon with for_update as well."""
    cheap.bind(Purse, Transactions)
    with pytest.raises(Conflict), transaction() as tx:
        assert tx.get_or_none(Purse, "a", for_update=True) is None
        tx.save(Purse("because there is no a"))
        in_thread(Purse("a").save)
    assert stored(Purse, "because there is no a") is None


def test_for_update_inside_the_lock(memory: Engine, path: str) -> None:
    """Somebody who holds the lock already can take it again in a transaction, and still holds it afterwards."""
    memory.bind(Purse, Transactions)
    purses(1)
    with Purse.locked("p0"):
        with transaction() as tx:
            item = tx.get(Purse, "p0", for_update=True)
            tx.update(item, [Purse.balance.add(1)])
            add_fillers(tx, path)
        assert len(Purse.lock_state("p0").entries) == 1
    assert Purse.lock_state("p0").entries == ()
    assert Purse.get("p0").balance == 101


def test_for_update_needs_a_lock(memory: Engine) -> None:
    """A model without a lock cannot be locked."""
    memory.bind(Plain, Transactions)
    with transaction() as tx, pytest.raises(ConfigurationError, match="no lock for for_update"):
        tx.get(Plain, "a", for_update=True)


# Options


@pytest.mark.parametrize("options", [{"read_only": True}, {"isolation": "snapshot"}])
def test_read_only(engine: Engine, options: dict[str, Any]) -> None:
    """Nothing can be written, everything that is read is checked."""
    engine.bind(Purse, Transactions)
    purses(2)
    with transaction(**options) as tx:
        item = tx.get(Purse, "p0")
        tx.check(item)
        for write in WRITES:
            with pytest.raises(ConfigurationError, match="read only"):
                write(tx, item)
    with pytest.raises(StaleVersion), transaction(**options) as tx:
        assert tx.get(Purse, "p0").balance + tx.get(Purse, "p1").balance == 200
        Purse.get("p0").update([Purse.balance.add(1)])


def test_read_committed_checks_only_what_it_writes(engine: Engine) -> None:
    """What is only read may change; what is written may not."""
    engine.bind(Purse, Transactions)
    purses(3)
    with transaction(isolation="read_committed") as tx:
        seen, written = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        Purse.get("p0").update([Purse.balance.add(1)])
        written.balance = seen.balance + 1
        tx.save(written)
        assert tx.plan().path == "single"
    assert Purse.get("p1").balance == 101
    with pytest.raises(StaleVersion), transaction(isolation="read_committed") as tx:
        written = tx.get(Purse, "p1")
        Purse.get("p1").touch()
        tx.save(written)


def test_check_counts_whatever_the_isolation(cheap: Engine) -> None:
    """An item given to check() is checked with read_committed too."""
    cheap.bind(Purse, Transactions)
    purses(2)
    with pytest.raises(StaleVersion), transaction(isolation="read_committed") as tx:
        tx.check(tx.get(Purse, "p0"))
        Purse.get("p0").touch()
        tx.save(tx.get(Purse, "p1"))


def test_bad_options(memory: Engine) -> None:
    """Every option that cannot work is refused at once, with what is wrong."""
    memory.bind(Purse, Plain, Transactions)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"isolation": "chaos"}, "isolation must be one of serializable, snapshot"),
        ({"table": Purse}, "subclass of TransactionTable"),
        ({"wait": -1}, "wait"),
        ({"wait": "soon"}, "wait"),
        ({"lease": 1}, "at least 3"),
        ({"lease": float("inf")}, "finite"),
        ({"idempotency_key": ""}, "idempotency key is a text"),
        ({"idempotency_key": "x" * 2001}, "2,000 bytes"),
        ({"idempotency_key": 3}, "idempotency key is a text"),
        ({"workers": 0}, "workers must be"),
        ({"workers": 1.5}, "workers must be"),
    ]
    for options, message in bad:
        with pytest.raises(ConfigurationError, match=message):
            Transaction(**options)
        with pytest.raises(ConfigurationError, match=message), transaction(**options):
            pass
    with pytest.raises(ConfigurationError, match="at least one attempt"):
        transactional(attempts=0)


class Unversioned(Model):
    """No model of this package."""

    class Meta:
        table_name = "unversioned"
        region = "us-east-1"

    id = Purse.purse_id


def test_models_that_cannot_take_part(memory: Engine) -> None:
    """A model without a version, or of plain PynamoDB, is refused at once."""
    from tests.support.models import Account

    memory.bind(Account, Transactions)
    with transaction() as tx:
        for call in (
            lambda: tx.get(Unversioned, "a"),  # type: ignore[type-var]
            lambda: tx.save(Unversioned("a")),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigurationError, match="VersionedMixin"):
                call()
        for call in (lambda: tx.get(Account, "a"), lambda: tx.save(Account("a"))):
            with pytest.raises(ConfigurationError, match="VersionAttribute"):
                call()
        with pytest.raises(ConfigurationError):
            tx.update(Purse("a"), [Purse.lock.remove()])
        with pytest.raises(TypeError, match="non-empty"):
            tx.update(Purse("a"), [])


def test_actions_that_do_not_fit(engine: Engine) -> None:
    """An action that the item cannot take is refused: at once if the item was read, else at the commit."""
    engine.bind(Purse, Transactions)
    purses(1, note="text")
    with transaction() as tx:
        item = tx.get(Purse, "p0")
        with pytest.raises(TransactWriteError):
            tx.update(item, [Path("balance").set(Path("note") + 5)])
    with pytest.raises(TransactWriteError), transaction() as tx:
        tx.update(Purse.get("p0"), [Path("balance").set(Path("note") + 5)])
        tx.save(Purse("other"))
    assert stored(Purse, "other") is None


def test_no_table_of_transactions(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long transactions and idempotency keys need a table, and say so before anything is written."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    monkeypatch.delattr(Purse.Meta, "transaction_table")
    items = purses(6)
    with pytest.raises(ConfigurationError, match="TransactionTable"), transaction() as tx:
        for item in items:
            tx.touch(item)
    with pytest.raises(ConfigurationError, match="TransactionTable"), transaction(idempotency_key="k") as tx:
        tx.touch(items[0])
    with pytest.raises(ConfigurationError, match="for new items"), transaction(Transactions) as tx:
        for i in range(6):
            tx.save(Purse(f"n{i}"))  # a model without the table would show their placeholders
    assert {(item.purse_id[0], item.version) for item in Purse.scan(consistent_read=True)} == {("p", 1)}
    with transaction(Transactions) as tx:
        for item in items:
            tx.touch(item)
    assert {item.version for item in Purse.scan(consistent_read=True)} == {2}


# Idempotency keys


def test_idempotency_key(engine: Engine, path: str) -> None:
    """A second transaction with the same key writes nothing, and says so; another key writes."""
    engine.bind(Purse, Transactions)
    purses(1)
    repeated = []
    for key in ("k", "k", "other"):
        with transaction(idempotency_key=key) as tx:
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
            add_fillers(tx, path)
        repeated.append(tx.is_repeated)
    assert repeated == [False, True, False]
    assert Purse.get("p0", consistent_read=True).balance == 102


def test_idempotency_key_where_items_have_changed(engine: Engine, path: str) -> None:
    """A repetition by an old copy, whose version does not fit any more, is a repetition all the same."""
    engine.bind(Purse, Transactions)
    purses(1)
    copies = [Purse.get("p0", consistent_read=True) for _ in range(2)]
    for expected, copy in zip((False, True), copies, strict=True):
        copy.balance += 1
        with transaction(idempotency_key="k") as tx:
            tx.save(copy)
            add_fillers(tx, path)
        assert tx.is_repeated is expected
    assert Purse.get("p0", consistent_read=True).balance == 101


def test_idempotency_key_where_the_answer_was_lost(engine: Engine, path: str) -> None:
    """When the answer of the first one is lost for good, the second one finds that it was committed."""
    if engine.is_moto:
        pytest.skip("moto ignores ClientRequestToken")
    engine.bind(Purse, Transactions)
    purses(1)
    results = []
    for _ in range(3):
        try:
            with transaction(idempotency_key="k") as tx, lost_responses("TransactWriteItems", 1):
                tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
                add_fillers(tx, path)
                tx.commit()
            results.append(tx.is_repeated)
        except OutcomeUnknown:
            results.append(None)
    assert results[1:] == [True, True]
    assert Purse.get("p0", consistent_read=True).balance == 101


def test_an_idempotency_key_lives_for_a_day(memory: Engine) -> None:
    """After a day the key is free again, also while DynamoDB still keeps its row, and a conflict is no repetition."""
    memory.bind(Purse, Transactions)
    with VirtualClock() as clock:
        [old] = purses(1)
        with transaction(idempotency_key="k") as tx:
            tx.save(old)
        clock.jump(25 * 3600)
        stale = Purse.get("p0")
        Purse.get("p0").touch()
        with pytest.raises(StaleVersion), transaction(idempotency_key="k") as tx:
            tx.save(stale)
        with transaction(idempotency_key="k") as tx:
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        assert not tx.is_repeated
        assert Purse.get("p0").balance == 101


def test_an_idempotency_key_of_nothing(cheap: Engine) -> None:
    """A transaction with a key and without writes is committed, once."""
    cheap.bind(Purse, Transactions)
    purses(1)
    repeated = []
    for _ in range(2):
        with transaction(Transactions, idempotency_key="k") as tx:
            pass
        repeated.append(tx.is_repeated)
        with transaction(Transactions, idempotency_key="of reads") as tx:
            tx.get(Purse, "p0")
        repeated.append(tx.is_repeated)
    assert repeated == [False, False, True, True]


# Nested, and functions


def test_nested(memory: Engine) -> None:
    """Inside another one a transaction is refused, or joins it: then its block does not end it."""
    memory.bind(Purse, Transactions)
    assert current_transaction() is None
    with transaction() as outer:
        assert current_transaction() is outer
        with pytest.raises(ConfigurationError, match="join=True"), transaction():
            pass
        with transaction(join=True) as inner:
            assert inner is outer
            inner.save(Purse("a"))
        assert stored(Purse, "a") is None
        assert in_thread(current_transaction) is None
    assert current_transaction() is None
    assert stored(Purse, "a") is not None
    with pytest.raises(KeyError), transaction() as outer, transaction(join=True):
        outer.save(Purse("b"))
        raise KeyError
    assert stored(Purse, "b") is None


def test_transactional_tries_again(engine: Engine) -> None:
    """After a conflict the function runs again, with the age of the first attempt and an id of its own."""
    engine.bind(Purse, Transactions)
    purses(1)
    seen: list[Transaction] = []

    @transactional(attempts=5)
    def add(tx: Transaction, key: str, *, by: int) -> int:
        seen.append(tx)
        assert current_transaction() is tx
        item = tx.get(Purse, key)
        if len(seen) < 3:
            in_thread(lambda: Purse.get(key).update([Purse.balance.add(1)]))
        tx.update(item, [Purse.balance.add(by)])
        return int(item.balance)

    with VirtualClock():
        assert add("p0", by=10) == 112
    assert Purse.get("p0", consistent_read=True).balance == 112
    assert len({tx.id for tx in seen}) == 3
    assert len({tx._terms.priority for tx in seen}) == 1
    assert current_transaction() is None


def test_transactional_gives_up(memory: Engine) -> None:
    """After the last attempt its error is raised; a condition of the caller's own is not tried again."""
    memory.bind(Purse, Transactions)
    purses(1)
    calls = []

    @transactional(attempts=3)
    def always_late(tx: Transaction) -> None:
        calls.append("late")
        item = tx.get(Purse, "p0")
        in_thread(lambda: Purse.get("p0").touch())
        tx.save(item)

    @transactional(attempts=3)
    def never_met(tx: Transaction) -> None:
        calls.append("not met")
        tx.save(tx.get(Purse, "p0"), Purse.balance == -1)

    @transactional(attempts=3)
    def broken(tx: Transaction) -> None:
        calls.append("broken")
        tx.save(tx.get(Purse, "p0"))
        raise KeyError

    with VirtualClock():
        with pytest.raises(StaleVersion) as last:
            always_late()
        assert last.value.actual == 4
        with pytest.raises(Conflict) as caught:
            never_met()
        assert not isinstance(caught.value, StaleVersion)
        with pytest.raises(KeyError):
            broken()
    assert calls == ["late"] * 3 + ["not met", "broken"]
    assert Purse.get("p0").version == 4


def test_transactional_inside_another(memory: Engine) -> None:
    """Inside another transaction it is refused, or is a part of that."""
    memory.bind(Purse, Transactions)

    @transactional(join=True)
    def joins(tx: Transaction) -> Transaction:
        tx.save(Purse("a"))
        return tx

    @transactional()
    def refuses(tx: Transaction) -> None:
        raise AssertionError("never runs")

    with transaction() as outer:
        assert joins() is outer
        assert stored(Purse, "a") is None
        with pytest.raises(ConfigurationError, match="join=True"):
            refuses()
    assert stored(Purse, "a") is not None
    Purse.get("a").delete()
    assert joins().id != outer.id


def test_the_deadline(memory: Engine, path: str) -> None:
    """A commit waits for the lock of somebody else until its deadline at most, or refuses at once."""
    memory.bind(Purse, Transactions)
    purses(1)
    with VirtualClock() as clock, held_elsewhere(Purse.locked("p0")):
        with pytest.raises(ItemLocked), transaction(wait=5) as tx:
            tx.save(tx.get(Purse, "p0"))
            add_fillers(tx, path)
        assert clock.elapsed <= 8
    assert stored(Purse, "filler0") is None
    assert marked_rows(Purse) == []


# Queries


def fill_entries() -> None:
    with transaction() as tx:
        for i in range(4):
            tx.save(Entry("b", i, amount=i))


def test_query_sees_own_writes(engine: Engine) -> None:
    """A query shows what is stored with what the transaction has done: created, changed, deleted."""
    engine.bind(Entry, Transactions)
    fill_entries()
    with transaction() as tx:
        tx.save(Entry("b", 10, amount=10))
        tx.save(Entry("other", 11))
        tx.delete(tx.get(Entry, "b", 1))
        tx.update(tx.get(Entry, "b", 2), [Entry.amount.set(20)])

        def numbers(*conditions: Any, **options: Any) -> list[int]:
            return [int(item.number) for item in tx.query(Entry, "b", *conditions, **options)]

        assert numbers() == [0, 2, 3, 10]
        assert numbers(scan_index_forward=False) == [10, 3, 2, 0]
        assert numbers(Entry.number > 1) == [2, 3, 10]
        assert numbers(None, Entry.amount >= 10) == [2, 10]
        assert numbers(limit=2) == [0, 2]
        found = tx.query(Entry, "b")
        assert found[1] is tx.get(Entry, "b", 2)
    assert [int(item.number) for item in Entry.query("b")] == [0, 2, 3, 10]


def test_guarded_queries_notice_what_appears(engine: Engine) -> None:
    """Whoever creates or deletes an item of the hash key makes the query's transaction fail; an update does not."""
    engine.bind(Entry, Transactions)
    fill_entries()

    def create() -> None:
        with transaction() as tx:
            tx.save(Entry("b", 5))

    def delete() -> None:
        with transaction() as tx:
            tx.delete(tx.get(Entry, "b", 5))

    def elsewhere() -> None:
        with transaction() as tx:
            tx.save(Entry("c", 5))

    for change, is_noticed in ((create, True), (delete, True), (elsewhere, False)):
        with Expecting(StaleVersion if is_noticed else None), transaction() as tx:
            total = sum(item.amount for item in tx.query(Entry, "b"))
            in_thread(change)
            tx.save(Entry("totals", 1, amount=total), add_version_condition=False)


def test_queries_that_promise_too_much_are_refused(memory: Engine) -> None:
    """Without guards only weaker isolations query; an index never."""
    memory.bind(Sheet, Entry, Transactions)
    Sheet("f", 1).save()
    with transaction() as tx:
        with pytest.raises(ConfigurationError, match="guard_queries"):
            tx.query(Sheet, "f")
        with pytest.raises(ConfigurationError, match="index"):
            tx.query(Entry, "b", index_name="by-amount")
    with transaction(isolation="read_committed") as tx:
        [sheet] = tx.query(Sheet, "f", Sheet.number > 0, Sheet.body.does_not_exist())
        assert tx.query(Sheet, "f", Sheet.number > 1) == []
        tx.update(sheet, [Sheet.body.set("x")])
        assert tx.query(Sheet, "f", filter_condition=Sheet.body == "x") == [sheet]


# Costs


def units(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> tuple[int, float, float]:
    """How many requests a call makes, and how many write and read units they take."""
    from pynamodb.connection import Connection

    total = {"requests": 0, "CapacityUnits": 0.0, "read": 0.0}
    original = Connection.dispatch

    def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any], *args: Any) -> Any:
        answer: Any = original(connection, operation, {**kwargs, "ReturnConsumedCapacity": "TOTAL"}, *args)
        consumed = answer.get("ConsumedCapacity", [])
        is_read = "Get" in operation or operation in ("Query", "Scan")
        for each in consumed if isinstance(consumed, list) else [consumed]:
            total["read" if is_read else "CapacityUnits"] += each["CapacityUnits"]
        total["requests"] += 1
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "dispatch", dispatch)
        call()
    return int(total["requests"]), total["CapacityUnits"], total["read"]


KINDS = ["insert", "update", "save", "delete", "mixed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 9], ids=["single", "native", "long"])
def test_a_plan_costs_what_it_says(dynoxide: Engine, kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """plan() predicts the path, the requests and the units that DynamoDB counts, for every path and operation."""
    dynoxide.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    if kind != "insert":
        purses(count, note="x" * 700)
    tx = Transaction()
    for i in range(count):
        each = KINDS[i % 4] if kind == "mixed" else kind
        if each == "insert":
            tx.save(Purse(f"n{i}", note="x" * 700))
            continue
        item = tx.get(Purse, f"p{i}")
        if each == "update":
            tx.update(item, [Purse.balance.add(1)])
        elif each == "save":
            item.balance = 1
            tx.save(item)
        else:
            tx.delete(item)
    plan = tx.plan()
    assert plan.path == ("single" if count == 1 else "native" if count <= 4 else "long")
    requests, written, read = units(monkeypatch, tx.commit)
    assert (plan.requests, plan.read_units) == (requests, read)
    assert plan.write_units == written


def test_a_plan_of_reads_costs_what_it_says(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for reads alone, and for many reads beside many writes."""
    dynoxide.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    purses(9, note="x" * 700)
    for reads, writes in ((1, 0), (9, 0), (1, 2), (7, 2), (1, 6)):
        tx = Transaction()
        for i in range(reads):
            tx.get(Purse, f"p{i}")
        for i in range(writes):
            tx.save(Purse(f"{reads} {writes} {i}"))
        plan = tx.plan()
        requests, written, read = units(monkeypatch, tx.commit)
        assert (plan.requests, plan.write_units, plan.read_units) == (requests, written, read), (reads, writes, plan)


def test_progress(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """on_progress counts up to the number of all, and ends there."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    calls: list[tuple[int, int]] = []
    with transaction(on_progress=lambda done, of: calls.append((done, of))) as tx:
        for i in range(10):
            tx.save(Purse(f"n{i}"))
        plan = tx.plan()
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]
    assert {of for _, of in calls} == {2 * len(plan.staged)}


# Models of all sorts


def test_models_of_all_sorts(concurrent_engine: Engine, path: str) -> None:
    """Renamed attributes, range keys, number and binary keys, discriminators: created, updated, deleted."""
    concurrent_engine.bind(Sheet, Blob, Animal, Purse, Robot, RowLocks, Transactions)
    makers: list[Callable[[int], Any]] = [
        lambda i: Sheet("f", i, body="b"),
        lambda i: Blob(bytes([i, 255]), data=b"d"),
        lambda i: Dog(f"dog{i}", tricks=i),
        lambda i: Robot(f"r{i}", total=i),
    ]
    count = {"single": 1, "native": 2, "long": 6}[path]
    changes: dict[type[Any], Any] = {
        Sheet: Sheet.body.set("changed"),
        Blob: Blob.data.set(b"changed"),
        Dog: Dog.tricks.set(99),
        Robot: Robot.total.set(99),
    }
    for make in makers[: 3 if path == "long" else 4]:
        items = [make(i) for i in range(count)]
        model = type(items[0])
        with transaction() as tx:
            for item in items:
                tx.save(item)
        with transaction() as tx:
            for item in items:
                found = tx.get(model, *item._key_values())
                assert type(found) is model
                tx.update(found, [changes[model]])
        for item in items:
            again = model.get(*item._key_values(), consistent_read=True)
            assert type(again) is model
            assert again.version == 2
            assert again.serialize()[changes[model].values[0].path[0]] in (
                {"S": "changed"},
                {"B": b"changed"},
                {"N": "99"},
            )
        with transaction() as tx:
            for item in items:
                tx.delete(tx.get(model, *item._key_values()))
        assert rows_of(model) == []


def test_several_models_in_one(concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long transaction of several tables is one: all or none of them change."""
    concurrent_engine.bind(Purse, Sheet, Plain, Robot, RowLocks, Transactions)
    make_long_from(monkeypatch, 6)

    def fill(tx: Transaction, *, fails: bool) -> None:
        tx.save(Plain("a", value=1))
        tx.save(Robot("a", total=1))
        for i in range(4):
            tx.save(Purse(f"p{i}"))
            tx.save(Sheet("f", i), Sheet.body == "never" if fails and i == 3 else None)

    with pytest.raises(Conflict), transaction() as tx:
        fill(tx, fails=True)
    assert [rows_of(model) for model in (Plain, Robot, Purse, Sheet)] == [[], [], [], []]
    with transaction() as tx:
        fill(tx, fails=False)
        assert tx.plan().path == "long"
    assert [len(rows_of(model)) for model in (Plain, Robot, Purse, Sheet)] == [1, 1, 4, 4]


def test_models_without_a_place_for_a_mark(engine: Engine) -> None:
    """Up to 99 of their items can be part of a long transaction; more are refused before anything is written."""
    engine.bind(Plain, Purse, Transactions)

    def fill(tx: Transaction, plain: int) -> None:
        for i in range(plain):
            tx.save(Plain(f"a{i}"))
        for i in range(3):
            tx.save(Purse(f"p{i}"))

    with pytest.raises(ConfigurationError, match="LockAttribute"), transaction() as tx:
        fill(tx, 100)
    assert rows_of(Plain) == rows_of(Purse) == rows_of(Transactions) == []
    with transaction() as tx:
        fill(tx, 99)
        assert tx.plan().path == "long"
    assert (len(rows_of(Plain)), len(rows_of(Purse))) == (99, 3)


def test_items_that_expire(cheap: Engine, path: str) -> None:
    """An expired item counts as absent: it is not read, and one that is made in its place has nothing of it."""
    cheap.bind(Session, Purse, Transactions)
    with VirtualClock() as clock:
        for i in range(6):
            Session(f"s{i}", user="old", note="old", expires_at=timedelta(seconds=10)).save()
        clock.jump(100)
        count = {"single": 1, "native": 2, "long": 6}[path]
        for reads in (True, False):
            with transaction() as tx:
                for i in range(count):
                    assert not reads or tx.get_or_none(Session, f"s{i}") is None
                    tx.save(Session(f"s{i}", user="new", expires_at=timedelta(seconds=10)))
            for i in range(count):
                found = Session.get(f"s{i}", consistent_read=True)
                assert (found.user, found.note, found.version) == ("new", None, 1)
            clock.jump(100)
        assert marked_rows(Session) == []


def test_items_that_do_not_expire_yet(cheap: Engine, path: str) -> None:
    """Living items of a model whose items expire are updated and deleted as all others."""
    cheap.bind(Session, Purse, Transactions)
    count = {"single": 1, "native": 2, "long": 6}[path]
    for i in range(count):
        Session(f"s{i}", user="u", expires_at=timedelta(days=1)).save()
    with transaction() as tx:
        for i in range(count):
            tx.update(tx.get(Session, f"s{i}"), [Session.note.set("n")])
    assert {(s.note, s.version) for s in Session.scan(consistent_read=True)} == {("n", 2)}
    with transaction() as tx:
        for i in range(count):
            tx.delete(tx.get(Session, f"s{i}"))
    assert rows_of(Session) == []


def add_undeclared(key: str) -> None:
    connection = Purse._get_connection()
    connection.connection.dispatch(
        "UpdateItem",
        {
            "TableName": connection.table_name,
            "Key": {"purse_id": {"S": key}},
            "UpdateExpression": "SET undeclared = :u",
            "ExpressionAttributeValues": {":u": {"S": "kept"}},
        },
    )


@pytest.mark.parametrize("outside", [False, True], ids=["read", "unread"])
def test_undeclared_attributes_survive(engine: Engine, path: str, *, outside: bool) -> None:
    """Attributes that a lockable model does not declare survive saves and updates, on every path."""
    engine.bind(Purse, Transactions)
    count = {"single": 1, "native": 3, "long": 7}[path]
    purses(count)
    for i in range(count):
        add_undeclared(f"p{i}")
    with transaction() as tx:
        for i in range(count):
            item = Purse.get(f"p{i}") if outside else tx.get(Purse, f"p{i}")
            if i % 3 == 0:
                item.balance = 1
                tx.save(item)
            if i % 3 == 1:
                tx.update(item, [Purse.balance.set(1)])
            if i % 3 == 2:
                tx.save(item)
                tx.update(item, [Purse.balance.set(1)])
    for row in rows_of(Purse):
        assert (row["undeclared"], row["balance"]) == ({"S": "kept"}, {"N": "1"})


# Large items


def test_large_items(cheap: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items too large for their mark beside them are staged by rows of their own, which are gone afterwards."""
    cheap.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    for text in ("a", "b"):
        with transaction() as tx:
            for i in range(6):
                item = tx.get_or_none(Purse, f"big{i}") or Purse(f"big{i}")
                item.note = text * 300_000
                tx.save(item)
            assert tx.plan().path == "long"
    assert {Purse.get(f"big{i}", consistent_read=True).note for i in range(6)} == {"b" * 300_000}
    assert [row["id"] for row in rows_of(Transactions) if "!" in row["id"]["S"]] == []
    assert marked_rows(Purse) == []


def test_more_than_a_native_transaction_holds(cheap: Engine) -> None:
    """Few items of more than 4 MB together take the long path."""
    cheap.bind(Purse, Transactions)
    with transaction() as tx:
        for i in range(14):
            tx.save(Purse(f"big{i}", note="x" * 300_000))
        assert tx.plan().path == "long"
    assert len(rows_of(Purse)) >= 1
    assert all(Purse.count(f"big{i}") for i in range(14))


@pytest.mark.parametrize(("size", "fits"), [(395_000, True), (408_000, True), (409_500, False)])
def test_items_at_the_limit_of_dynamodb(
    cheap: Engine, size: int, monkeypatch: pytest.MonkeyPatch, *, fits: bool
) -> None:
    """Staged items of almost 400 KB are stored, or refused before anything is written."""
    cheap.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    with Expecting(None if fits else ConfigurationError), transaction() as tx:
        for i in range(6):
            tx.save(Purse(f"big{i}", note="x" * size))
    assert [Purse.count(f"big{i}") for i in range(6)] == [int(fits)] * 6
    assert fits or rows_of(Transactions) == []


def test_items_that_are_too_large_are_refused(cheap: Engine, path: str) -> None:
    """An item that DynamoDB would refuse is refused before anything is written, on every path."""
    cheap.bind(Purse, Transactions)
    with pytest.raises((ConfigurationError, TransactWriteError, PutError)), transaction() as tx:
        add_fillers(tx, path)
        tx.save(Purse("big", note="x" * 420_000))
    assert rows_of(Purse) == []
    assert marked_rows(Purse) == []


def test_real_numbers(cheap: Engine) -> None:
    """250 items without any lowered limit: all are written, once, and the header says finished."""
    cheap.bind(Purse, Transactions)
    with transaction() as tx:
        for i in range(250):
            tx.save(Purse(f"p{i}", balance=i))
        assert tx.plan().path == "long"
    assert sum(row["balance"]["N"] == str(int(row["purse_id"]["S"][1:])) for row in rows_of(Purse)) == 250
    assert outcome(Transactions, tx.id) == "finished"
    assert {row["version"]["N"] for row in rows_of(Purse)} == {"1"}
