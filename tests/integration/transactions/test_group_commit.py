"""`transactional(combine=True)`: callers of one process commit together, and each hears how its own one ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import linecache
import os
import random
import re
import sys
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import VersionAttribute, VersionedMixin, atransactional, transaction, transactional
from pynamo_locking._core import dynamodb
from pynamo_locking._transactions import group
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    ItemLocked,
    LockingError,
    NotUnique,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
)
from pynamo_locking_testing.faults import concurrent_write
from tests.integration.telemetry.forked import in_child
from tests.support.interval_models import Slot, SlotLocks, slots, stored_slots
from tests.support.models import Locks, declare
from tests.support.parties import without_pauses
from tests.support.poisoned import put
from tests.support.transaction_helpers import balance
from tests.support.transaction_models import (
    Animal,
    Dog,
    Entry,
    Plain,
    Purse,
    Session,
    Transactions,
    purses,
    stored,
)
from tests.support.unique_models import Uniques, User
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import AsyncTransaction, Transaction

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert all(each.is_over for each in group.under_way.values())
    group.under_way.clear()


@pytest.fixture
def two(memory):
    """Purses p0 and p1 with 100 each."""
    memory.bind(Plain, Animal, Session)
    purses(2)


def move(amount: int, source: str = "p0", target: str = "p1") -> Callable[[Transaction], int]:
    """Move money; return what was there before."""

    def run(tx: Transaction) -> int:
        giver, taker = tx.get(Purse, source), tx.get(Purse, target)
        before = int(giver.balance)
        giver.balance -= amount
        taker.balance += amount
        tx.save(giver)
        tx.save(taker)
        return before

    return run


def combined(function: Callable[[Transaction], Any], **options: Any) -> Any:
    return transactional(combine=True, **options)(function)()


def count_joined() -> int:
    found = {*group.under_way.copy().values()}
    while more := {before for each in found for before in each.before.copy()} - found:
        found |= more
    return sum(len(each.content.runs) for each in found if each.is_open)


def until_joined(count: int) -> None:
    deadline = time.monotonic() + 60
    while count_joined() < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def together(*functions: Callable[[Transaction], Any], joining: int | None = None, **options: Any) -> list[Any]:
    """Run functions in threads, in one group, in this order; return the result or the error of each.

    They join while the commit of another transaction is under way, which changes nothing of the purses; those after the
    first `joining` have only read by then.
    """
    results: list[Any] = [None] * len(functions)
    have_read = [threading.Event() for _ in functions]

    def run(i: int) -> None:
        def function(tx: Transaction) -> Any:
            try:
                return functions[i](tx)
            finally:
                have_read[i].set()

        try:
            results[i] = combined(function, **options)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            results[i] = error

    threads = [threading.Thread(target=Context().run, args=(run, i)) for i in range(len(functions))]

    def gate() -> None:
        for i, thread in enumerate(threads):
            thread.start()
            if joining is None or i < joining:
                until_joined(i + 1)
            else:
                assert have_read[i].wait(60)

    def touch(tx: Transaction) -> None:
        for key in ("p0", "p1"):
            tx.touch(tx.get(Purse, key))

    with on("TransactWriteItems").before(gate):
        combined(touch)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_callers_commit_together_and_each_has_read_what_those_before_it_leave(two):
    """In the order in which they came: one request for all, and no read."""
    with count_requests() as counted:
        results = together(*(move(10) for _ in range(5)))

    assert results == [100, 90, 80, 70, 60]
    assert counted.by_operation == {"GetItem": 2, "TransactWriteItems": 2}  # of which one before the group
    assert (balance("p0"), balance("p1")) == (50, 150)
    assert Purse.get("p0").version == 7  # one for each, as without combine


@pytest.mark.parametrize("count", [1, 2])
def test_an_uncontended_call_costs_the_same(two, count):
    """The same requests, and the same actions in them."""
    sent = []
    for combine in (False, True):
        with on().watch() as hits, count_requests() as counted:
            transactional(combine=combine)(move(0) if count == 2 else lambda tx: tx.touch(tx.get(Purse, "p0")))()
        sent.append((dict(counted.by_operation), [sorted(each) for each in hits.bodies]))

    assert sent[0] == sent[1]


def test_the_instances_of_all_are_as_after_any_commit(two):
    """The last one can be saved again, and those before it are known to be old."""
    kept = []

    def keep(tx: Transaction) -> None:
        kept.append(tx.get(Purse, "p0"))
        kept[-1].balance += 1
        tx.save(kept[-1])

    assert together(keep, keep) == [None, None]
    first, last = kept
    with pytest.raises(StaleVersion):
        first.save()
    last.note = "once more"
    last.save()
    assert balance("p0") == 102


def test_updates_deletes_and_inserts_in_a_chain(two):
    """What each sees is what the one before it has done; what is stored is what the last one leaves."""
    seen = []

    def update(tx: Transaction) -> None:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(5), Purse.tags.add({"a"})])

    def delete(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        seen.append((purse.balance, purse.tags))
        tx.delete(purse)

    def insert(tx: Transaction) -> None:
        seen.append(tx.get_or_none(Purse, "p0"))
        tx.save(Purse("p0", balance=1, note="new"))

    def look(tx: Transaction) -> None:
        seen.append((tx.get(Purse, "p0").balance, tx.get(Purse, "p0").note))
        tx.touch(tx.get(Purse, "p1"))

    assert together(update, delete, insert, look) == [None] * 4
    assert seen == [(105, {"a"}), None, (1, "new")]
    purse = Purse.get("p0")
    assert (purse.balance, purse.note, purse.tags, purse.version) == (1, "new", None, 1)
    assert together(update, delete) == [None, None]
    assert stored(Purse, "p0") is None


def test_created_and_deleted_in_one_group(two):
    """Nothing is stored, and the absence is checked."""

    def create(tx: Transaction) -> None:
        assert tx.get_or_none(Plain, "x") is None
        tx.save(Plain("x", value=1))
        tx.touch(tx.get(Purse, "p0"))

    def delete(tx: Transaction) -> None:
        tx.delete(tx.get(Plain, "x"))

    def again(tx: Transaction) -> None:
        assert tx.get_or_none(Plain, "x") is None
        tx.save(Plain("x", value=2))

    assert together(create, delete) == [None, None]
    assert stored(Plain, "x") is None
    assert together(create, delete, again, lambda tx: tx.update(tx.get(Plain, "x"), [Plain.value.add(1)])) == [None] * 4
    assert Plain.get("x").value == 3


def test_a_blind_insert_of_an_item_that_exists_is_refused_alone(two):
    """It is told that the item exists; the others go on without it."""
    Plain("x", value=1).save()

    def insert(tx: Transaction) -> None:
        tx.save(Plain("x", value=2))
        tx.touch(tx.get(Purse, "p0"))

    with without_pauses():
        first, refused = together(move(10), insert, joining=1)
    assert first == 100
    assert isinstance(refused, StaleVersion)
    assert (balance("p0"), Plain.get("x").value) == (90, 1)


def test_each_copy_of_a_creation_has_another_write_id(two):
    """A late copy of the first one must not pass for the second: so it is sent as without combine."""
    Plain("x", value=1).save()

    def create(tx: Transaction) -> None:
        assert tx.get_or_none(Plain, "x") is None
        tx.save(Plain("x", value=2))

    def add(tx: Transaction) -> None:
        tx.update(tx.get(Plain, "x"), [Plain.value.add(1)])

    others = []
    with ThreadPoolExecutor(2) as pool:

        def gate() -> None:
            for number, function in enumerate((create, add), 1):
                others.append(pool.submit(combined, function))
                until_joined(number)

        def creates(body: Any) -> bool:
            return "attribute_not_exists" in body.get("ConditionExpression", "")

        with on("DeleteItem").before(gate), on(where=creates).watch() as sent, on(where=creates).lose_request():
            combined(lambda tx: tx.delete(tx.get(Plain, "x")))
            assert [each.result(60) for each in others] == [None, None]
    assert len(sent.bodies) == 2
    first, second = ({*re.findall("[0-9a-f]{8}-[0-9a-f]{20}", str(body))} for body in sent.bodies)
    assert not first & second
    assert Plain.get("x").value == 3


def test_a_refusal_of_a_group_is_no_attempt(two):
    """Its callers run again, those who use the item that another process has changed as well."""

    def change() -> None:
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    def first(tx: Transaction) -> int:
        tx.after_commit(is_committed.set)
        return move(10)(tx)

    def spend(tx: Transaction) -> int:
        if has_run:
            assert is_committed.wait(60)
        has_run.append(True)
        purse = tx.get(Purse, "p0")
        purse.balance -= 1
        tx.save(purse)
        return int(purse.balance)

    is_committed, has_run = threading.Event(), list[bool]()
    with on("TransactWriteItems", nth=2).before(change), without_pauses():
        assert together(first, spend, attempts=1) == [100, 89]
    assert (balance("p0"), balance("p1")) == (89, 1110)


def test_what_a_group_has_left_saves_reads_and_costs_no_attempt(two, monkeypatch):
    """If another process has changed it since, or it would be the reason for an error, the next run reads the table."""
    monkeypatch.setattr(group, "KEPT_S", 60.0)  # whatever else this machine does

    def look(tx: Transaction) -> None:
        raise LookupError(int(tx.get(Purse, "p0").balance))

    assert together(move(10), move(10)) == [100, 90]
    with count_requests() as counted:
        assert combined(move(10)) == 80
    assert "GetItem" not in counted.by_operation

    for end in (look, move(1)):
        assert together(move(10), move(10))[1] is not None
        Purse("p0").update([Purse.balance.set(7)], add_version_condition=False)
        if end is look:
            with pytest.raises(LookupError, match="7"):
                combined(end, attempts=1)
        else:
            assert combined(end, attempts=1) == 7


def test_a_write_without_a_check_leaves_what_another_program_writes(two):
    """What such a write leaves is not known, so nobody goes on with it."""
    Plain("x", value=0).save()

    def blind(tx: Transaction) -> None:
        found = tx.get(Plain, "x")
        tx.touch(tx.get(Purse, "p0"))
        tx.update(found, [Plain.value.add(1)], add_version_condition=False)

    def add(tx: Transaction) -> None:
        tx.touch(tx.get(Purse, "p0"))
        tx.update(tx.get(Plain, "x"), [Plain.value.add(10)])

    def of_another_program() -> None:
        with ThreadPoolExecutor(1) as pool:
            write = partial(Plain("x").update, [Plain.value.add(100)], add_version_condition=False)
            pool.submit(write).result(60)

    with on("TransactWriteItems", nth=2).before(of_another_program), without_pauses():
        assert together(blind, add, joining=0, isolation="read_committed") == [None, None]
    assert Plain.get("x").value == 111


def test_another_process_changes_an_item_of_the_group(two):
    """The group is refused, and all callers begin again; nothing is lost."""

    def change() -> None:
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    with on("TransactWriteItems", nth=2).before(change), without_pauses():
        results = together(*(move(10) for _ in range(3)))

    assert sorted(results) == [80, 90, 100]
    assert (balance("p0"), balance("p1")) == (70, 1130)


def test_an_error_is_believed_once_what_it_is_based_on_is_committed(two):
    """A function that has read what the one before it leaves raises: it runs again, on what is stored then."""
    seen = []

    def spend_all(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        seen.append(int(purse.balance))
        if purse.balance < 100:
            raise LookupError(f"only {purse.balance}")
        purse.balance = 0
        tx.save(purse)

    with count_requests() as counted:
        first, second = together(spend_all, spend_all, joining=1)
    assert first is None
    assert isinstance(second, LookupError)
    assert str(second) == "only 0"
    assert seen == [100, 0, 0]
    assert counted.by_operation == {"GetItem": 3, "TransactWriteItems": 1, "UpdateItem": 1}  # 2 and 1 before the group


def test_an_error_is_not_believed_if_what_it_is_based_on_is_refused(two):
    """It read that nothing was left, and that was never committed: so it runs again, and spends."""

    def spend_all(tx: Transaction) -> int:
        purse = tx.get(Purse, "p0")
        if purse.balance < 100:
            raise LookupError(f"only {purse.balance}")
        purse.balance -= 100
        tx.save(purse)
        return int(purse.balance)

    def change() -> None:
        Purse("p0").update([Purse.balance.set(200)], add_version_condition=False)

    with on("UpdateItem").before(change), without_pauses():
        results = together(spend_all, spend_all, joining=1)
    assert sorted(results, key=str) == [0, 100]


def test_an_error_is_not_based_on_what_was_read_before_and_after(two):
    """It has read one item before others have moved money, and one as they leave it: the next run sees neither half."""
    sums = []

    def check(tx: Transaction) -> None:
        first = int(tx.get(Purse, "p0").balance)
        if not sums:
            others.append(pool.submit(combined, move(10)))
            until_moving.wait(60)
        sums.append(first + int(tx.get(Purse, "p1").balance))
        may_go_on.set()
        raise LookupError

    others, until_moving, may_go_on = [], threading.Event(), threading.Event()

    def stand_still() -> None:
        until_moving.set()
        assert may_go_on.wait(60)

    with ThreadPoolExecutor(1) as pool, on("TransactWriteItems").before(stand_still):
        with pytest.raises(LookupError):
            combined(check)
        others[0].result(60)
    assert sums == [210, 200]


def test_what_is_returned_after_a_rollback_is_believed_as_an_error_is(two):
    """It read that nothing was left, and that was never committed: so it runs again."""

    def spend_all(tx: Transaction) -> str:
        purse = tx.get(Purse, "p0")
        if purse.balance < 100:
            tx.rollback()
            return f"only {purse.balance}"
        purse.balance -= 100
        tx.save(purse)
        return "spent"

    def change() -> None:
        Purse("p0").update([Purse.balance.set(250)], add_version_condition=False)

    with on("UpdateItem").before(change), without_pauses():
        assert together(spend_all, spend_all, joining=1) == ["spent", "spent"]
    assert balance("p0") == 50


def test_a_false_condition_is_of_its_own_caller(two):
    """It is told of a conflict; the others of the group are committed."""

    def demand(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        tx.update(purse, [Purse.balance.add(-1)], condition=Purse.balance > 1000)

    first, refused, last = together(move(10), demand, move(10), joining=1)
    assert (first, last) == (100, 90)
    assert isinstance(refused, Conflict)
    assert not isinstance(refused, StaleVersion)
    assert balance("p0") == 80


def test_a_condition_within_the_group_is_of_what_those_before_it_leave(two):
    def demand(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        tx.update(purse, [Purse.balance.add(-1)], condition=Purse.balance == 90)

    assert together(move(10), demand) == [100, None]
    assert balance("p0") == 89


def test_one_that_dynamodb_refuses_for_good_does_not_keep_the_others(two):
    """Too large an item: each goes alone then, and its caller alone hears of it."""

    def grow(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        purse.note = "x" * 410_000
        tx.save(purse)

    with on("TransactWriteItems").watch() as hits, without_pauses():
        first, refused, last = together(move(10), grow, move(10))
    assert sorted((first, last)) == [90, 100]
    tokens = [body["ClientRequestToken"] for body in hits.bodies]
    assert len(tokens) == len({*tokens})  # else DynamoDB would refuse one for having another content
    assert isinstance(refused, Exception)
    assert not isinstance(refused, StaleVersion | TransactionConflict)
    assert balance("p0") == 80


@pytest.mark.parametrize("is_applied", [True, False])
def test_an_unknown_outcome_reaches_each_caller(two, is_applied):
    """Each asks for itself what became of it, and hears the same; one that only reads is in no doubt."""
    lost = on("TransactWriteItems", nth=2, times=99)
    with lost.lose_response() if is_applied else lost.lose_request(), without_pauses():
        results = together(move(10), move(20), lambda tx: tx.get(Purse, "p0").balance, joining=2)
    first, second, read = results

    for error in (first, second):
        assert isinstance(error, OutcomeUnknown)
    assert first is not second
    assert first.resolve() == second.resolve() == ("applied" if is_applied else "not applied")
    assert read == balance("p0") == (70 if is_applied else 100)


def test_a_lost_response_is_settled_for_all(two):
    with on("TransactWriteItems", nth=2).lose_response():
        assert together(move(10), move(10)) == [100, 90]
    assert balance("p0") == 80


def test_a_savepoint(two):
    """What was rolled back is not left to others."""

    def back_and_forth(tx: Transaction) -> None:
        point = tx.savepoint()
        move(50)(tx)
        point.rollback()
        move(1)(tx)

    assert together(back_and_forth, move(1)) == [None, 99]
    assert (balance("p0"), balance("p1")) == (98, 102)


def test_classes_of_one_item(two):
    """An item that another class has left is handed out in the class that it names."""
    Dog("rex", tricks=1).save()
    tx_first = lambda tx: (tx.touch(tx.get(Purse, "p0")), tx.update(tx.get(Dog, "rex"), [Dog.tricks.add(1)]))  # noqa: E731

    def look(tx: Transaction) -> str:
        animal: Any = tx.get(Animal, "rex")
        return f"{type(animal).__name__} {animal.tricks}"

    assert together(tx_first, look)[1] == "Dog 2"


def test_a_read_under_read_committed(two):
    """What it has read is committed before it."""

    def look(tx: Transaction) -> int:
        tx.touch(tx.get(Purse, "p1"))
        return int(tx.get(Purse, "p0").balance)

    assert together(move(10), look, isolation="read_committed") == [100, 90]


def test_what_models_do_after_the_commit_is_of_their_own_callers(two, monkeypatch):
    """They see the instances of the functions only; an error of one is raised there, and nothing is applied twice."""
    after_commit = Purse.update_local_version_attribute
    seen = []

    def note(self: Purse) -> None:
        after_commit(self)
        seen.append(int(self.balance))
        if self.balance == 80:
            raise StaleVersion("the model's own")

    monkeypatch.setattr(Purse, "update_local_version_attribute", note)
    with count_requests() as counted:
        first, second, third = together(*(move(10) for _ in range(3)))

    assert (first, third) == (100, 80)
    assert isinstance(second, StaleVersion)
    assert (balance("p0"), balance("p1")) == (70, 130)
    assert {*seen} == {100, 90, 110, 80, 120, 70, 130} - {120}  # the first error of an instance ends it
    assert counted.by_operation["TransactWriteItems"] == 2
    with pytest.raises(StaleVersion, match="the model's own"):  # of a group of one
        combined(move(10, source="p1", target="p0"))
    assert balance("p0") == 80


def test_each_caller_hears_once(two):
    """Refused together, then sent without an answer: each has one commit, and what is to follow it happens once."""
    told = Counter[int]()

    def once(number: int) -> Callable[[Transaction], int]:
        def run(tx: Transaction) -> int:
            tx.after_commit(lambda: told.update([number]))
            return move(1)(tx)

        return run

    def change() -> None:
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    commit = "TransactWriteItems"
    with on(commit, nth=2).before(change), on(commit, nth=3).lose_response(), without_pauses():
        results = together(*(once(number) for number in range(3)))

    assert sorted(results) == [98, 99, 100]
    assert told == {0: 1, 1: 1, 2: 1}
    assert (balance("p0"), balance("p1")) == (97, 1103)


def test_one_that_is_overtaken_again_and_again_goes_alone(two, monkeypatch):
    """It has read what others are about to change, each time; then it waits for them, and reads what is stored."""
    monkeypatch.setattr(group, "MOST_RUNS", 2)
    is_slow, may_go_on = threading.Event(), threading.Event()
    others = []

    def stand_still() -> None:
        is_slow.set()
        assert may_go_on.wait(60)

    with on("TransactWriteItems").before(stand_still), ThreadPoolExecutor(4) as pool:
        others.append(pool.submit(combined, move(1)))
        assert is_slow.wait(60)

        def slow(tx: Transaction) -> int:
            if len(others) > 2:
                may_go_on.set()
            found = tx.get(Purse, "p0")
            if len(others) <= 2:
                others.append(pool.submit(combined, move(1)))
                until_joined(len(others) - 1)
            tx.touch(found)
            return int(found.balance)

        with count_requests() as counted:
            assert combined(slow, attempts=1) == 97
    assert [each.result(60) for each in others] == [100, 99, 98]
    assert counted.by_operation["GetItem"] == 1


def test_unrelated_items_do_not_wait_for_each_other(two):
    """A call that waits behind a slow one does not keep others, which want other items."""
    is_slow, may_go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        is_slow.set()
        assert may_go_on.wait(60)

    def touch(key: str) -> Callable[[Transaction], None]:
        return lambda tx: tx.touch(tx.get(Purse, key))

    with on("UpdateItem").before(stand_still), ThreadPoolExecutor(4) as pool:
        slow = pool.submit(combined, touch("p0"))
        assert is_slow.wait(60)
        behind = pool.submit(combined, touch("p0"))
        until_joined(1)

        def another() -> None:
            others.append(pool.submit(combined, touch("p1")))
            until_joined(2)

        others: list[Any] = []
        with on("UpdateItem").before(another):
            combined(touch("p1"))
        others[0].result(60)
        assert not slow.done()
        assert not behind.done()
        may_go_on.set()
        for each in (slow, behind):
            each.result(60)


def test_nobody_waits_longer_for_others_than_it_may(two):
    """Its function runs again, and its commit goes alone; so do those that were to wait longer, once they can."""
    is_slow, may_go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        is_slow.set()
        assert may_go_on.wait(60)

    with on("TransactWriteItems").before(stand_still), ThreadPoolExecutor(3) as pool, without_pauses():
        slow = pool.submit(combined, move(1))
        assert is_slow.wait(60)
        patient = pool.submit(combined, move(1))
        until_joined(1)
        assert combined(move(1), wait=0) == 100
        assert count_joined() == 1  # it breaks off nothing that others wait for
        assert combined(move(1), wait=0.1) == 99
        may_go_on.set()
        assert sorted([slow.result(60), patient.result(60)]) == [97, 98]


def each_line_interrupted(scenario: Callable[[Callable[[Callable[[], Any]], None]], None]) -> None:
    """Run a scenario again and again; what it passes to its argument is interrupted, each time one line later."""
    for number in itertools.count(1):
        left = [number]

        def at_each_line(frame: Any, event: str, _argument: object, left: list[int] = left) -> Any:
            # Python delivers no signal between the end of a block and the release of its mutex.
            is_block = linecache.getline(group.__file__, frame.f_lineno).lstrip().startswith("with ")
            left[0] -= event == "line" and not is_block
            if left[0] == 0 and event == "line" and not is_block:
                raise KeyboardInterrupt
            return at_each_line

        def enter(frame: Any, _event: str, _argument: object, at_each_line: Any = at_each_line) -> Any:
            return at_each_line if frame.f_code.co_filename == group.__file__ else None

        def interrupted(act: Callable[[], Any], enter: Any = enter) -> None:
            before = sys.gettrace()
            sys.settrace(enter)
            with contextlib.suppress(KeyboardInterrupt):
                act()
            sys.settrace(before)

        scenario(interrupted)
        if left[0] > 0:
            assert number > 50
            return


@pytest.mark.parametrize(("leads", "amount"), [(True, 1), (False, 1), (False, 0)])
def test_an_interrupt_at_any_moment(two, leads, amount, monkeypatch):
    """Of one that leads or has joined: the others end, nothing is half done, and they are told the truth."""
    monkeypatch.setattr(group, "_LOOK_AFTER_S", 0.01)

    def touch(*keys: str) -> Callable[[Transaction], None]:
        return lambda tx: [tx.touch(tx.get(Purse, key)) for key in keys]

    def scenario(interrupted: Callable[[Callable[[], Any]], None]) -> None:
        before = balance("p0")
        told: list[str] = []
        doubts: list[str] = []
        act = move(amount) if amount else touch("p1")  # of two items, or of one
        victim = threading.Thread(target=interrupted, args=(lambda: combined(move(10), attempts=1),))
        other = threading.Thread(target=lambda: told.append(told_of(lambda: combined(act), doubts)))
        late = threading.Thread(target=lambda: told_of(lambda: combined(touch("p0", "p1")), doubts))

        def gate() -> None:
            order = (victim, other, late) if leads else (other, victim, late)
            for i, thread in enumerate(order):
                thread.start()
                while thread.is_alive() and count_joined() < sum(each.is_alive() for each in order[: i + 1]):
                    time.sleep(0.0001)

        with on("TransactWriteItems").before(gate), without_pauses():
            combined(touch("p0", "p1"))
            for thread in (victim, other, late):
                thread.join(60)
                assert not thread.is_alive()
        gone = before - balance("p0")
        assert balance("p0") + balance("p1") == 200
        assert gone in ({0: (0, 10), 1: (amount, amount + 10)}[told == ["applied"]])
        assert "applied" not in doubts  # no request was interrupted, so the answer was known

    each_line_interrupted(scenario)


# What does not share


def test_intervals_commit_alone(memory):
    """Their guard is of use only together with rows that a query finds."""
    memory.bind(Slot, SlotLocks)
    purses(2)

    def insert(begin: int, end: int) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            tx.touch(tx.get(Purse, "p0"))
            tx.insert_disjoint(Slot, slots((begin, end)))

        return run

    with without_pauses():
        results = together(move(1), insert(0, 10), insert(5, 15), joining=1)
    assert sorted(type(each).__name__ for each in results) == ["NoneType", "OverlapError", "int"]
    assert len(stored_slots()) == 1


def test_a_guarded_query_and_the_items_it_would_show(memory):
    """Whoever has found nothing inserts, so one of them does: a query shows no row that is not committed."""
    memory.bind(Transactions, Entry)
    purses(2)

    def insert_first(number: int) -> Callable[[Transaction], bool]:
        def run(tx: Transaction) -> bool:
            tx.touch(tx.get(Purse, "p0"))
            is_first = not tx.query(Entry, "b") and tx.get_or_none(Entry, "b", number) is None
            if is_first:
                tx.save(Entry("b", number))
            return is_first

        return run

    with without_pauses():
        results = together(move(1), insert_first(1), insert_first(2), joining=1)
    assert sorted(results[1:]) == [False, True]
    assert len([*Entry.query("b")]) == 1


def test_two_want_one_unique_value(memory):
    """Each is in the group by its other item; one of them gets the value, and its caller alone hears of success."""
    memory.bind(Uniques, User)
    purses(2)
    for key in ("u", "v"):
        User(key, email=key).save()

    def rename(key: str) -> Callable[[Transaction], str]:
        def run(tx: Transaction) -> str:
            tx.touch(tx.get(Purse, "p0"))
            user = tx.get(User, key)
            user.email = "bob"
            tx.save(user)
            return key

        return run

    with without_pauses():
        results = together(move(1), rename("u"), rename("v"), joining=1)[1:]
    [won] = [each for each in results if isinstance(each, str)]
    [lost] = [each for each in results if not isinstance(each, str)]
    assert isinstance(lost, NotUnique)
    assert [user.id for user in User.scan() if user.email == "bob"] == [won]


def test_blind_inserts_of_one_item(two):
    """The second one is told at once that the item exists: to run again does not help it."""
    runs = []

    def insert(value: int) -> Callable[[Transaction], int]:
        def run(tx: Transaction) -> int:
            runs.append(value)
            tx.touch(tx.get(Purse, "p0"))
            tx.save(Plain("x", value=value))
            return value

        return run

    with on("TransactWriteItems").after(partial(time.sleep, 0.2)), without_pauses():
        results = together(move(1), insert(1), insert(2), joining=1)[1:]
    [won] = [each for each in results if isinstance(each, int)]
    assert sum(isinstance(each, StaleVersion) for each in results) == 1
    assert Plain.get("x").value == won
    assert len(runs) <= 6


def test_a_blind_insert_does_not_take_the_place_of_a_check(two):
    """One has seen that there is no such item, and relies on it; another creates it without having looked."""

    def look(tx: Transaction) -> Any:
        tx.touch(tx.get(Purse, "p0"))
        return tx.get_or_none(Plain, "x")

    def insert(tx: Transaction) -> None:
        tx.touch(tx.get(Purse, "p0"))
        tx.save(Plain("x", value=5))

    def of_another_program() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(put, Plain, {"plain_id": {"S": "x"}, "value": {"N": "77"}}).result(60)

    with on("TransactWriteItems", nth=2).before(of_another_program), without_pauses():
        seen, _ = together(look, insert, joining=1)
    assert seen is not None  # it is refused, or sees an item


@pytest.fixture
def two_classes(memory):
    """Classes of one table with other versions, and an item "k" that both have written."""
    one = declare("One", VersionedMixin, Model, table_name="both", numbers="a", version=True)
    two_ = declare(
        "Two", VersionedMixin, Model, table_name="both", numbers="b", version=VersionAttribute(attr_name="v")
    )
    memory.bind(one)
    memory.bind_to(one.Meta.table_name, two_)
    one("k", a=0).save()
    two_.get("k").update([two_.b.set(0)])
    return one, two_


def test_classes_of_one_item_with_other_versions(two, two_classes):
    """What one class writes is no news for the other one: each has its own version in the item."""
    one, two_ = two_classes
    kept = []

    def change(model: Any, name: str) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            kept.append(tx.get(model, "k"))
            tx.touch(tx.get(Purse, "p0"))
            tx.update(kept[-1], [getattr(model, name).set(1)])

        return run

    with without_pauses():
        assert together(change(one, "a"), change(two_, "b"), joining=1) == [None, None]
    [first] = [each for each in kept if type(each) is one]
    first.save()
    assert one.get("k").version == 3


def test_each_class_of_an_item_has_its_own_version_checked(two, two_classes):
    """Another program changes the item by the one class, while both classes are in use by a group."""
    one, two_ = two_classes

    def change(model: Any, name: str) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            item = tx.get(model, "k")
            tx.touch(tx.get(Purse, "p0"))
            tx.update(item, [getattr(model, name).set(getattr(item, name) + 1)])

        return run

    def of_another_program() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: two_.get("k").update([two_.b.set(10)])).result(60)

    with on("TransactWriteItems", nth=2).before(of_another_program), without_pauses():
        assert together(change(one, "a"), change(two_, "b")) == [None, None]
    assert (one.get("k").a, two_.get("k").b) == (1, 11)


def test_no_instance_is_made_to_commit_together(two, memory):
    """A model may refuse that: its default raises."""
    is_broken = []

    def default() -> str:
        if is_broken:
            raise LookupError
        return ""

    fragile = declare(
        "Fragile", VersionedMixin, Model, note=UnicodeAttribute(default_for_new=default), numbers="count", version=True
    )
    memory.bind(fragile)
    fragile("f", count=0).save()
    is_broken.append(True)

    def count(tx: Transaction) -> None:
        tx.touch(tx.get(Purse, "p0"))
        tx.update(tx.get(fragile, "f"), [fragile.count.add(1)])

    with count_requests() as counted:
        assert together(count, count) == [None, None]
    assert counted.by_operation["TransactWriteItems"] == 2
    assert fragile.get("f").count == 2


def test_what_cannot_share_commits_alone(two):
    """In silence, with what it has read of the groups before it."""

    def under_a_lock(tx: Transaction) -> int:
        return move(1)(tx) if tx.get(Purse, "p0", for_update=True) else 0

    def without_a_check(tx: Transaction) -> None:
        tx.update(Purse("p1"), [Purse.balance.add(1000)], add_version_condition=False)

    def expiring(tx: Transaction) -> None:
        tx.save(Session("s", user="u"))
        tx.touch(tx.get(Purse, "p0"))

    def many(tx: Transaction) -> None:
        for number in range(dynamodb.MOST_ACTIONS):
            tx.save(Purse(f"q{number}"), add_version_condition=False)
        tx.touch(tx.get(Purse, "p0"))

    with without_pauses():
        for function in (under_a_lock, without_a_check, expiring, many):
            result = together(move(1), function, joining=1)
            assert not [each for each in result if isinstance(each, Exception)], function.__name__
    assert balance("p0") + balance("p1") == 1200
    assert Session.get("s").user == "u"


def test_one_that_has_seen_what_was_refused_meanwhile(two):
    """Its function runs again at once: what it has read is nowhere stored, so nothing is sent."""

    def slow(tx: Transaction) -> int:
        found = move(1)(tx)
        if not have_read.is_set():
            have_read.set()
            threads[0].join(60)  # it is refused, and runs again
        return found

    have_read, results = threading.Event(), list[Any]()

    def gate() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(threads[0].start).result(60)
            until_joined(1)
            pool.submit(threads[1].start).result(60)
            assert have_read.wait(60)

    def change() -> None:
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    def run(function: Callable[[Transaction], int]) -> None:
        results.append(combined(function, attempts=1))

    threads = [threading.Thread(target=Context().run, args=(run, function)) for function in (move(10), slow)]
    commit = "TransactWriteItems"
    with on(commit).watch() as sent, on(commit).before(gate), on(commit, nth=2).before(change):
        combined(lambda tx: [tx.touch(tx.get(Purse, key)) for key in ("p0", "p1")])
        for thread in threads:
            thread.join(60)
    assert results == [100, 90]
    assert (balance("p0"), balance("p1")) == (89, 1111)
    assert sent.hits == 4  # with the one before, and the one that is refused


def test_one_that_waits_for_what_is_refused(two):
    """It runs again when the group before it is refused, which is no attempt, and sends nothing in between."""
    later = []

    def gate() -> None:
        later.append(pool.submit(combined, move(1), attempts=1))
        until_joined(1)
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    commit = "TransactWriteItems"
    with ThreadPoolExecutor(1) as pool, on(commit).watch() as sent, on(commit).before(gate):
        with pytest.raises(StaleVersion):
            combined(move(10), attempts=1)
        assert later[0].result(60) == 100
    assert sent.hits == 2


def test_one_whose_wait_is_over_while_its_group_is_being_sent(two):
    """Now it has to know how that ends: it is applied once."""
    with on("TransactWriteItems", nth=2).before(partial(time.sleep, 0.7)), without_pauses():
        assert sorted(together(move(10), move(10), wait=0.5)) == [90, 100]
    assert (balance("p0"), balance("p1")) == (80, 120)


@pytest.mark.parametrize(("count", "size"), [(60, 1), (4, 390_000)])
def test_a_group_is_never_too_large_for_a_native_transaction(two, memory, count, size):
    """Then the next one forms: each of them alone fits."""
    memory.bind(Transactions)

    def fill(prefix: str) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            tx.touch(tx.get(Purse, "p0"))
            for number in range(count):
                key = f"{prefix}{number}"
                assert tx.get_or_none(Purse, key) is None
                tx.save(Purse(key, note="x" * size))

        return run

    with on(to=Transactions).watch() as sent:
        assert together(fill("a"), fill("b"), fill("c")) == [None] * 3
    assert sent.hits == 0


def test_one_that_makes_an_item_expire(two):
    """The next one sees no such item, and does not run again and again for what was left of it."""
    Session("s", user="u").save()
    runs = []

    def end(tx: Transaction) -> None:
        tx.touch(tx.get(Purse, "p0"))
        tx.update(tx.get(Session, "s"), [Session.expires_at.set(datetime(2020, 1, 1, tzinfo=timezone.utc))])

    def begin(tx: Transaction) -> None:
        runs.append(1)
        tx.touch(tx.get(Purse, "p0"))
        if tx.get_or_none(Session, "s") is None:
            tx.save(Session("s", user="v"))

    with on("TransactWriteItems").after(partial(time.sleep, 0.2)), without_pauses():
        assert together(end, begin, joining=0) == [None, None]
    assert len(runs) <= 4


def test_locks_of_ranges_are_checked_by_each_for_itself(memory):
    """Their rows are as many actions more."""
    guarded = declare(
        "Guarded", range_key="at", numbers="count", version=True, lock_table=Locks, enforce_locks="ranges"
    )
    memory.bind(guarded, Locks)
    purses(2)
    guarded("g", 1, count=0).save()

    def count(tx: Transaction) -> None:
        tx.touch(tx.get(Purse, "p0"))
        tx.update(tx.get(guarded, "g", 1), [guarded.count.add(1)])

    with count_requests() as counted, without_pauses():
        assert together(count, count, joining=0) == [None, None]
    assert guarded.get("g", 1).count == 2
    assert counted.by_operation["TransactWriteItems"] > 2


def test_one_that_commits_in_the_block_of_a_lock_commits_alone(two):
    """Nobody else writes under that lock, so it joins no group: the call runs again, when the others are over."""

    def spend(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        with Purse.locked("p0"):
            tx.update(purse, [Purse.balance.add(-1)])
            tx.commit()

    with count_requests() as counted:
        assert together(spend, joining=0) == [None]
    assert balance("p0") == 99
    assert counted.by_operation["TransactWriteItems"] == 1  # of the one before


def test_one_that_has_locked_what_it_has_read_already_commits_alone(two):
    """Another one of its group would write the item, and be refused because of the lock."""
    Plain("x", value=0).save()

    def lock(tx: Transaction) -> None:
        tx.get(Purse, "p0")
        tx.update(tx.get(Plain, "x"), [Plain.value.add(1)])
        tx.get(Purse, "p0", for_update=True)

    with on("TransactWriteItems").watch() as sent, without_pauses():
        assert together(move(10), lock, joining=1)[1] is None
    assert not [body for body in sent.bodies if "'x'" in str(body) and "'p1'" in str(body)]
    assert Plain.get("x").value == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("idempotency_key", "k"), ("record", True), ("read_only", True), ("isolation", "snapshot")],
)
@pytest.mark.parametrize("decorator", [transactional, atransactional])
def test_what_would_be_wrong_is_refused_at_construction(decorator, name, value):
    with pytest.raises(ConfigurationError, match=f"leave out combine, or {name}="):
        decorator(combine=True, **{name: value})
    decorator(combine=False, **{name: value})


def test_one_that_combines_cannot_be_suspended(two):
    with pytest.raises(ConfigurationError, match="combine=True cannot be suspended"):
        combined(lambda tx: (move(10)(tx), tx.suspend()))
    assert balance("p0") == 100


def test_unique_values_commit_alone_and_other_attributes_of_their_items_together(memory):
    memory.bind(Uniques, User)
    purses(2)
    User("u", email="ann").save()

    def see(tx: Transaction) -> None:
        tx.update(tx.get(User, "u"), [User.age.set(1)])
        tx.touch(tx.get(Purse, "p0"))

    def rename(tx: Transaction) -> None:
        user = tx.get(User, "u")
        user.email = "bob"
        tx.save(user)

    with without_pauses():
        assert together(see, see, rename, joining=2) == [None] * 3
    user = User.get("u")
    assert (user.email, user.age, user.version) == ("bob", 1, 4)
    user.email = "ann"
    user.save()
    User("v", email="bob").save()


def test_inside_another_transaction_it_is_a_part_of_it(two):
    with transaction() as tx:
        transactional(combine=True, join=True)(move(10))()
        assert tx.get(Purse, "p0").balance == 90
        assert balance("p0") == 100
    assert balance("p0") == 90


def test_an_interrupt_of_the_caller_that_sends(two):
    """The others hear that the outcome is unknown, and can find out."""
    results: list[Any] = []

    def other() -> None:
        try:
            results.append(combined(move(10)))
        except OutcomeUnknown as error:
            results.append(error)

    thread = threading.Thread(target=other)
    holder = threading.Thread(target=lambda: combined(lambda tx: tx.touch(tx.get(Purse, "p0"))))
    is_sending, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_sending.set()
        assert may_go_on.wait(60)

    def lead(tx: Transaction) -> None:
        move(10)(tx)

    def release() -> None:
        until_joined(1)
        thread.start()
        until_joined(2)
        may_go_on.set()

    def die() -> None:
        raise KeyboardInterrupt

    with on("UpdateItem").before(hold), on("TransactWriteItems").after(die):
        holder.start()
        assert is_sending.wait(60)
        releaser = threading.Thread(target=release)
        releaser.start()
        with pytest.raises(KeyboardInterrupt):
            combined(lead)
        for each in (holder, releaser, thread):
            each.join(60)
    [error] = results
    assert isinstance(error, OutcomeUnknown)
    assert error.resolve() == "applied"
    assert balance("p0") == 80


def test_a_subscriber_that_transacts_while_its_thread_sends(two):
    """It commits alone: it must not wait for the group that its own thread commits."""
    done = []

    def nested() -> None:
        done.append(transactional(combine=True)(lambda tx: tx.get(Purse, "p0").balance)())

    with on("TransactWriteItems", nth=2).before(nested):
        assert together(move(10), move(10)) == [100, 90]
    assert done == [100]


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_fork_while_a_group_is_under_way(two):
    """The child knows nothing of the groups of its parent, and does not wait for them."""
    said = []

    def in_new_thread() -> str:
        with ThreadPoolExecutor(1) as pool:  # the thread of the fork is in the middle of a commit
            return str(pool.submit(combined, move(1)).result(60))

    with on("TransactWriteItems", nth=2).before(lambda: said.append(in_child(in_new_thread))):
        assert together(move(10), move(10)) == [100, 90]
    assert said == ["100"]


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_child_of_a_subscriber_forms_groups(two):
    """The thread that goes on there sends no group of its parent."""
    said = []
    with on("TransactWriteItems").before(lambda: said.append(in_child(lambda: str(together(move(1), move(1)))))):
        combined(move(10))
    assert said == ["[100, 99]"]


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_function_that_forks_after_it_has_read_of_a_group(two):
    """The child hears that the transaction is the parent's, and does not run the function again."""
    ended, runs = list[str](), list[int]()

    def fork(tx: Transaction) -> None:
        runs.append(int(tx.get(Purse, "p0").balance))
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            writings.append(writing)
            return
        os.close(writing)
        with os.fdopen(reading) as answers:
            ended.append(answers.read())
        os.waitpid(child, 0)

    def run() -> None:
        try:
            combined(fork)
        except ConfigurationError as error:
            if writings:
                os.write(writings[0], f"{len(runs)} {'was forked' in str(error)}".encode())
        finally:
            if writings:
                os._exit(0)

    writings = list[int]()
    thread = threading.Thread(target=run)

    def gate() -> None:
        thread.start()
        thread.join(0.5)

    with on("TransactWriteItems").before(gate):
        combined(lambda tx: [tx.touch(tx.get(Purse, key)) for key in ("p0", "p1")])
    thread.join(60)
    assert ended[0] == "1 True"


# What a caller hears is what became of its own transaction


def test_a_lock_is_in_the_way_of_writers_only(two):
    """A call that only reads an item whose lock another party holds succeeds, whatever others of its group write."""

    def read(tx: Transaction) -> int:
        tx.update(tx.get(Purse, "p1"), [Purse.balance.add(1)])
        return int(tx.get(Purse, "p0").balance)

    def write(tx: Transaction) -> None:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(-1)])

    with ThreadPoolExecutor(1) as pool:
        lock = Purse.locked("p0")
        with on("TransactWriteItems", nth=2).before(lambda: pool.submit(lock.acquire).result(60)):
            seen, refused = together(read, write, attempts=1)
        pool.submit(lock.release).result(60)
    assert seen == 100
    assert isinstance(refused, ItemLocked)
    assert (balance("p0"), balance("p1")) == (100, 101)


@pytest.mark.parametrize("raises", [True, False])
def test_one_that_goes_on_after_its_own_commit_was_refused(two, raises):
    """It catches the refusal and tells of what it has read, which was never committed: so it runs again."""

    def look(tx: Transaction) -> str:
        found = tx.get(Purse, "p0")
        tx.update(tx.get(Plain, "x"), [Plain.value.add(1)])
        try:
            tx.commit()
        except TransactionConflict as error:
            if raises:
                raise LookupError(f"only {found.balance}") from error
            return f"only {found.balance}"
        return f"done with {found.balance}"

    def gate() -> None:
        later.append(pool.submit(combined, look))
        until_joined(1)
        Purse("p1").update([Purse.balance.add(1000)], add_version_condition=False)

    Plain("x", value=0).save()
    later = list[Any]()
    with ThreadPoolExecutor(1) as pool, on("TransactWriteItems").before(gate):
        with pytest.raises(StaleVersion):
            combined(move(100), attempts=1)
        assert later[0].result(60) == "done with 100"
    assert Plain.get("x").value == 1


def test_one_that_goes_on_after_its_own_commit_is_in_doubt(two):
    """It may have been applied, so its function does not run again."""

    def add(tx: Transaction) -> str:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        try:
            tx.commit()
        except OutcomeUnknown as error:
            return error.resolve()
        return "done"

    with on("TransactWriteItems", nth=2, times=99).lose_response(), without_pauses():
        assert together(move(10), add)[1] == "applied"
    assert balance("p0") == 91


def test_a_task_that_is_cancelled_waits_for_no_other_in_any_run(two):
    """Also if its function has run before."""

    async def main() -> None:
        is_held, may_end, has_read, runs = threading.Event(), threading.Event(), asyncio.Event(), list[int]()

        def hold() -> None:
            is_held.set()
            assert may_end.wait(60)

        @atransactional(combine=True, wait=600)
        async def add(tx: AsyncTransaction) -> None:
            purse = await tx.get(Purse, "p0")
            runs.append(1)
            if len(runs) == 1:
                has_read.set()
                await asyncio.to_thread(is_held.wait, 60)
            purse.balance += 1
            await tx.save(purse)

        with on("TransactWriteItems").before(hold):
            task = asyncio.create_task(add())
            await has_read.wait()
            other = asyncio.create_task(asyncio.to_thread(combined, move(10)))
            await asyncio.to_thread(until_joined, 1)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=20)
            may_end.set()
            await other
            await asyncio.wait({task})
        assert done
        assert len(runs) == 2

    asyncio.run(main())
    assert balance("p0") == 90


def test_who_keeps_a_transaction_keeps_no_later_ones(two):
    """However long the line of groups is that each waited for the one before it. The last one is kept for others."""
    kept, later = list[Any](), list[Any]()

    def touch(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        if kept:
            later.append(weakref.ref(purse))
        else:
            kept.append(tx)
        tx.touch(purse)

    def another() -> None:
        threads.append(threading.Thread(target=Context().run, args=(combined, touch)))
        threads[-1].start()
        until_joined(1)

    threads = list[threading.Thread]()
    with on("UpdateItem", times=3).before(another):
        combined(touch)
        for number in range(3):
            threads[number].join(60)
    del threads[:]
    gc.collect()
    assert len(later) == 3
    assert [each() for each in later[:-1]] == [None] * 2


@pytest.mark.parametrize("is_interrupted_again", [True, False])
def test_the_others_end_whatever_becomes_of_the_caller_that_sends(two, is_interrupted_again):
    """It is interrupted while it sends, and does not get to tell the others what they have to hear."""

    class Key(str):
        """A key at which the caller that sends cannot look."""

        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            if threading.current_thread() is leader:
                raise KeyboardInterrupt
            return str(self) == other

        __hash__ = str.__hash__

    Plain("x", value=0).save()
    kept, told = list[Plain](), list[Any]()

    def follow(tx: Transaction) -> None:
        kept.append(tx.get(Plain, "x"))
        tx.update(kept[0], [Plain.value.add(1)])
        tx.touch(tx.get(Purse, "p0"))

    def lead() -> None:
        with contextlib.suppress(BaseException):
            combined(move(10))

    def hear() -> None:
        try:
            combined(follow, wait=1)
        except OutcomeUnknown as error:
            told.append(error)

    def gate() -> None:
        for number, thread in enumerate((leader, follower), 1):
            thread.start()
            until_joined(number)

    def die() -> None:
        kept[0].plain_id = Key("x") if is_interrupted_again else "y"
        raise KeyboardInterrupt

    leader, follower = (threading.Thread(target=each, daemon=True) for each in (lead, hear))
    with on("TransactWriteItems").before(gate), on("TransactWriteItems", nth=2).after(die):
        combined(lambda tx: [tx.touch(tx.get(Purse, key)) for key in ("p0", "p1")])
        leader.join(60)
        follower.join(20)
    assert len(told) == 1
    assert told[0].resolve() == ("applied" if is_interrupted_again else "unknown")


def test_a_delete_and_a_creation_of_an_item_are_of_two_groups(two):
    """What several do to one item is sent as an update, which neither of them is."""
    Plain("x", value=1).save()

    def delete(tx: Transaction) -> None:
        tx.delete(tx.get(Plain, "x"))
        tx.touch(tx.get(Purse, "p0"))

    def create(tx: Transaction) -> None:
        assert tx.get_or_none(Plain, "x") is None
        tx.save(Plain("x", value=2))
        tx.touch(tx.get(Purse, "p0"))

    with count_requests() as counted:
        assert together(delete, create) == [None, None]
    assert counted.by_operation["TransactWriteItems"] == 3  # of which one before the groups
    assert (Plain.get("x").value, Plain.get("x").version) == (2, 1)


def test_an_absent_item_that_all_only_read_does_not_keep_them_apart(two):
    def look(tx: Transaction) -> None:
        assert tx.get_or_none(Plain, "x") is None
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])

    with count_requests() as counted:
        assert together(look, look, look) == [None] * 3
    assert counted.by_operation["TransactWriteItems"] == 2  # of which one before the group
    assert balance("p0") == 103


def test_another_caller_that_was_faster_and_has_ended_costs_no_attempt(two):
    """What the call had read is known to be old, so the next run reads it again."""
    has_read, may_end, is_held = threading.Event(), threading.Event(), threading.Event()

    def let_the_other_end() -> None:
        may_end.set()
        other.result(60)

    def slow(tx: Transaction) -> int:
        purse = tx.get(Purse, "p0")
        if not has_read.is_set():
            tx.after_rollback(let_the_other_end)
            has_read.set()
            assert is_held.wait(60)
        purse.balance -= 1
        tx.save(purse)
        return int(purse.balance)

    def hold() -> None:
        is_held.set()
        assert may_end.wait(60)

    with ThreadPoolExecutor(2) as pool, on("TransactWriteItems").before(hold):
        waiting = pool.submit(combined, slow, attempts=1)
        assert has_read.wait(60)
        other = pool.submit(combined, move(10))
        assert waiting.result(60) == 89


def test_one_that_had_to_go_alone_combines_again_in_its_next_attempt(two):
    """Its group was refused because of another transaction, and it was overtaken when it went alone."""

    def grow(tx: Transaction) -> None:
        tx.update(tx.get(Purse, "p0"), [Purse.note.set("x" * 410_000)])

    def take(tx: Transaction) -> int:
        tx.update(tx.get(Plain, "x"), [Plain.value.add(1)])
        return move(10)(tx)

    def change() -> None:  # of what has no lock, which the next attempt would hold
        Plain("x").update([Plain.value.add(1000)], add_version_condition=False)

    def another() -> None:
        others.append(pool.submit(combined, move(1)))
        until_joined(1)

    Plain("x").save()
    others, commit = list[Any](), "TransactWriteItems"
    with (
        ThreadPoolExecutor(1) as pool,
        on(commit, nth=3).before(change),
        on(commit, nth=4).before(another),
        without_pauses(),
    ):
        first, refused = together(take, grow)
        assert others[0].result(60) == 90
    assert first == 100
    assert isinstance(refused, Exception)
    assert Plain.get("x").value == 1001


@pytest.mark.parametrize("combine", [True, False])
def test_an_isolation_that_is_no_name(combine):
    with pytest.raises(ConfigurationError):
        transactional(combine=combine, isolation=["serializable"])


# Many at once


def told_of(call: Callable[[], object], doubts: list[str] | None = None) -> str:
    """What a caller knows in the end; `doubts` gets what it knows only because it has asked."""
    try:
        call()
    except OutcomeUnknown as error:
        if doubts is not None:
            doubts.append(error.resolve())
        return error.resolve()
    except (LookupError, LockingError):
        return "not applied"
    return "applied"


@pytest.mark.parametrize(("model", "name"), [(Purse, "balance"), (Plain, "value")])
@pytest.mark.parametrize("seed", range(3))
def test_money_is_neither_made_nor_lost(two, model, name, seed):
    """Threads, lost requests and responses, functions that raise: the sum is right, and nobody is told an untruth."""
    keys = [f"m{i}" for i in range(4)]
    for key in keys:
        model(key, **{name: 100}).save()
    chance = random.Random(seed)
    moved: list[tuple[str, str, str]] = []

    @transactional(combine=True, attempts=20)
    def move_one(tx: Transaction, source: str, target: str) -> None:
        giver, taker = tx.get(model, source), tx.get(model, target)
        if getattr(giver, name) <= 95:
            raise LookupError
        setattr(giver, name, getattr(giver, name) - 1)
        tx.save(giver)
        tx.update(taker, [getattr(model, name).add(1)])

    def work(number: int) -> None:
        own = random.Random(f"{seed} {number}")
        for _ in range(12):
            source, target = own.sample(keys, 2)
            moved.append((source, target, told_of(lambda: move_one(source, target))))  # noqa: B023 - called at once

    def is_hit(_: Any) -> bool:
        return chance.random() < 0.2

    with (
        on("TransactWriteItems", where=is_hit, times=20).lose_response(),
        on("TransactWriteItems", where=is_hit, times=20).lose_request(),
        without_pauses(),
    ):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    found = {key: int(getattr(model.get(key, consistent_read=True), name)) for key in keys}
    assert len(moved) == 72
    assert sum(found.values()) == 400
    if "unknown" not in {told for *_, told in moved}:
        gone = Counter(source for source, _, told in moved if told == "applied")
        come = Counter(target for _, target, told in moved if told == "applied")
        assert found == {key: 100 - gone[key] + come[key] for key in keys}


def test_tasks(two):
    """Tasks of one event loop, which goes on meanwhile."""
    ticks = 0

    @atransactional(combine=True)
    async def spend(tx: AsyncTransaction, amount: int) -> int:
        purse = await tx.get(Purse, "p0")
        if purse.balance < amount:
            raise LookupError
        purse.balance -= amount
        await tx.save(purse)
        return int(purse.balance)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def main() -> list[Any]:
        ticking = asyncio.ensure_future(tick())
        results = await asyncio.gather(*(spend(10) for _ in range(12)), return_exceptions=True)
        ticking.cancel()
        return results

    results = asyncio.run(main())
    assert sorted(each for each in results if isinstance(each, int)) == list(range(0, 100, 10))
    assert sum(isinstance(each, LookupError) for each in results) == 2
    assert balance("p0") == 0
    assert ticks > 12


def test_concurrent_write_of_another_process(two):
    """A refusal of one alone counts as an attempt, as without combine."""
    Plain("x").save()
    with concurrent_write(Plain, "x", times=2), pytest.raises(StaleVersion, match="attempt 2 of 2"), without_pauses():
        combined(lambda tx: tx.touch(tx.get(Plain, "x")), attempts=2)
    with concurrent_write(Purse, "p0"), without_pauses():
        assert combined(move(10), attempts=2) == 100
