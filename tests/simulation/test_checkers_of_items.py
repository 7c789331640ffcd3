"""Each checker of items and values accepts what is right and refuses what is wrong, in runs made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pynamo_locking.exceptions import StaleVersion
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.network import Place
from pynamo_locking_testing._engine.scheduler import START_S
from tests.simulation.checkers.by_hand import NOTE, OTHER, History, judged, judging, log, refused
from tests.simulation.checkers.linear import FOREVER, Call, RegisterModel, is_linearizable
from tests.simulation.history import Told

# Items


@pytest.mark.parametrize(
    ("told", "times", "is_right"),
    [
        (Told.APPLIED, 1, True),
        (Told.APPLIED, 0, False),
        (Told.APPLIED, 2, False),
        (Told.REFUSED, 0, True),
        (Told.REFUSED, 1, False),
        (Told.UNKNOWN, 0, True),
        (Told.UNKNOWN, 1, True),
        (Told.UNKNOWN, 2, False),
        (Told.NOTHING, 2, False),
    ],
)
def test_truth(told: Told, times: int, is_right: bool) -> None:
    """What was told and how often it was done have to fit."""
    history, checker = judging("Truth")
    history.faults.happened[Fault.LATE] = 1
    done = history.did("append", NOTE, at=(0, 9), told=told)
    history.images[NOTE] = log()
    for time in range(times):
        history.wrote(checker, done, after={NOTE: log(*[done.number] * (time + 1))})
    with judged("Truth", is_right):
        checker.at_end()


def test_truth_is_known_where_no_answer_was_lost() -> None:
    """A conflict, or a write of another Region, leaves nothing unknown."""
    for fault, is_right in ((Fault.LATE, True), (Fault.REPLICATED, False)):
        history, checker = judging("Truth")
        history.faults.happened[fault] = 1
        history.did("append", NOTE, at=(0, 9), told=Told.UNKNOWN)
        history.images[NOTE] = log()
        with judged("Truth", is_right):
            checker.at_end()


def test_truth_of_two_items_is_all_or_none() -> None:
    """Half a transaction is none, whatever was told."""
    history, checker = judging("Truth")
    history.faults.happened[Fault.LATE] = 1
    done = history.did("transaction", NOTE, OTHER, at=(0, 9), told=Told.UNKNOWN)
    history.images |= {NOTE: log(), OTHER: log()}
    history.wrote(checker, done, after={NOTE: log(1)})
    with refused("Truth"):
        checker.at_end()


def test_truth_of_deletions() -> None:
    """A delete is generous if there was no item meanwhile, and only then; one that was refused did not happen."""
    for told, gone_at, by_other, is_right in (
        (Told.APPLIED, 5, True, True),
        (Told.APPLIED, 20, True, False),
        (Told.APPLIED, 5, False, True),
        (Told.REFUSED, 5, False, False),
        (Told.REFUSED, 5, True, True),
    ):
        history, checker = judging("Truth")
        done = history.did("delete", NOTE, at=(0, 9), told=told)
        history.images[NOTE] = log()
        history.wrote(checker, None if by_other else done, after={NOTE: None}, step=gone_at)
        with judged("Truth", is_right):
            checker.at_end()


def test_truth_lets_a_late_copy_make_an_item_anew() -> None:
    """That counts as one creation; a second change of an item that lives does not."""
    history, checker = judging("Truth")
    done = history.did("create", NOTE, at=(0, 9))
    for image in (log(1), None, log(1)):
        history.wrote(checker, done, after={NOTE: image})
    checker.at_end()
    history.wrote(checker, done, after={NOTE: log(1, 1)})
    with refused("Truth"):
        checker.at_end()


def test_truth_does_not_believe_stock_pynamodb() -> None:
    """It may call a write refused that was applied; we may not."""
    for kind, is_right in (("stock save", True), ("save", False)):
        history, checker = judging("Truth")
        done = history.did(kind, NOTE, at=(0, 9), told=Told.REFUSED)
        history.images[NOTE] = log()
        history.wrote(checker, done, after={NOTE: log(1)})
        with judged("Truth", is_right):
            checker.at_end()


def test_nothing_lost() -> None:
    """Appending keeps what is there; overwriting is refused, unless its name says so or the item is another one."""
    history, checker = judging("NothingLost")
    save, unchecked = (history.did(kind, NOTE, at=(0, 9)) for kind in ("save", "unchecked save"))
    for done, image in ((save, log(1)), (save, log(1, 2)), (unchecked, log(3)), (save, None), (save, log(4))):
        history.wrote(checker, done, after={NOTE: image})
    with refused("NothingLost"):
        history.wrote(checker, save, after={NOTE: log(5)})


@pytest.mark.parametrize(
    ("before", "after", "is_right"),
    [
        (log(version=1), log(1, version=2), True),
        (log(version=1), log(1, version=1), False),
        (log(version=2), log(1, version=1), False),
        (log(version=2), log(1), False),
    ],
    ids=["up", "same", "back", "gone"],
)
def test_versions(before: Any, after: Any, is_right: bool) -> None:
    """Each write of data counts the version up."""
    history = History()
    history.images[NOTE] = before
    with judged("Versions", is_right):
        history.wrote(history.checked_by("Versions"), history.did("save", NOTE, at=(0, 1)), after={NOTE: after})


def test_real_time_of_writes() -> None:
    """Who returned before another was called is before it in the item."""
    for second_called, is_right in ((5, True), (15, False)):
        history, checker = judging("RealTime")
        history.images[NOTE] = log()
        first = history.did("save", NOTE, at=(0, 10))
        second = history.did("save", NOTE, at=(second_called, 20))
        history.wrote(checker, second, after={NOTE: log(2)})
        history.wrote(checker, first, after={NOTE: log(2, 1)})
        with judged("RealTime", is_right):
            checker.at_end()


@pytest.mark.parametrize(
    ("at", "saw", "is_right"),
    [
        ((0, 30), [], True),
        ((15, 18), [1], True),
        ((15, 30), [1, 2], True),
        ((15, 30), [], False),  # too old: the first write was over
        ((15, 18), [1, 2], False),  # from the future
        ((0, 30), [2], False),  # never was
    ],
)
def test_real_time_of_reads(at: tuple[int, int], saw: list[int], is_right: bool) -> None:
    """A read sees a state that was there while it ran."""
    history, checker = judging("RealTime")
    history.images[NOTE] = log()
    for numbers, when in (((1,), (5, 10)), ((1, 2), (20, 25))):
        done = history.did("save", NOTE, at=when)
        history.wrote(checker, done, after={NOTE: log(*numbers)})
    history.did("read", NOTE, at=at, value=saw)
    with judged("RealTime", is_right):
        checker.at_end()


def session(expires_in_s: float, *numbers: int) -> dict[str, Any]:
    """Return an item with a time of expiry."""
    return log(*numbers, expires={"N": str(int(START_S + expires_in_s))})


@pytest.mark.parametrize(("left_s", "is_right"), [(-5, True), (30, False)])
def test_expiry_lets_only_expired_items_be_replaced(left_s: float, is_right: bool) -> None:
    """A creation replaces what has expired, and nothing else."""
    history = History()
    place = Place("session", ("s",))
    history.images[place] = session(left_s, 1)
    done = history.did("create", place, at=(0, 1))
    with judged("Expiry", is_right):
        history.wrote(history.checked_by("Expiry"), done, after={place: session(60, 2)})


@pytest.mark.parametrize(("left_s", "is_right"), [(-5, False), (30, True)])
def test_expiry_does_not_keep_callers_from_a_new_item(left_s: float, is_right: bool) -> None:
    """A creation is refused only where an item lives."""
    history, checker = judging("Expiry")
    place = Place("session", ("s",))
    history.images[place] = session(left_s, 1)
    done = history.did("create", place, at=(0, 1))
    done.returned = None
    checker.on_step()
    done.returned, done.told, done.error = 1, Told.REFUSED, StaleVersion("x", expected=None, actual=1, cause=None)
    with judged("Expiry", is_right):
        checker.on_step()


def test_progress() -> None:
    """Without faults and contention nothing is refused, unknown, timed out or lost; with them it may be."""
    history, checker = judging("Progress")
    history.did("save", NOTE, at=(0, 1))
    checker.at_end()
    history.losses = 1
    with refused("Progress"):
        checker.at_end()
    history.losses = 0
    history.did("save", NOTE, at=(0, 1), told=Told.UNKNOWN)
    with refused("Progress"):
        checker.at_end()
    history.faults.happened[Fault.LATE] = 1
    checker.at_end()


# Values


def read(called: float, returned: float, value: int) -> Call:
    """Return a read of a register."""
    return Call(called, returned, ("read", value))


def write(called: float, returned: float, seen: int, value: int, *, is_certain: bool = True) -> Call:
    """Return a write of a register that replaces what it has seen."""
    return Call(called, returned, ("write", seen, value), is_certain)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], True),
        ([write(0, 1, 0, 1), read(2, 3, 1)], True),
        ([write(0, 1, 0, 1), read(2, 3, 0)], False),  # stale read
        ([write(0, 9, 0, 1), read(2, 3, 0)], True),  # overlaps
        ([write(0, 9, 0, 1), read(2, 3, 1), read(4, 5, 0)], False),  # new, then old
        ([write(0, 9, 0, 1), write(0, 9, 0, 2)], False),  # lost update
        ([write(0, 9, 0, 1), write(0, 9, 1, 2)], True),
        ([write(0, 9, 0, 1), write(0, 9, 1, 2), read(10, 11, 1)], False),
        ([write(0, FOREVER, 0, 1, is_certain=False), read(50, 51, 1)], True),  # unknown, and happened
        ([write(0, FOREVER, 0, 1, is_certain=False), read(50, 51, 0)], True),  # unknown, and did not (yet)
        ([write(0, FOREVER, 0, 1, is_certain=False), read(50, 51, 1), read(52, 53, 0)], False),
        ([read(5, 6, 1), write(7, FOREVER, 0, 1, is_certain=False)], False),  # seen before it was made
        ([write(0, 5, 0, 1), read(5, 6, 0)], True),  # closed intervals: they touch
    ],
)
def test_search_for_a_linear_order(calls: list[Call], expected: bool) -> None:
    """Known histories, linearizable and not."""
    assert is_linearizable(calls, RegisterModel()) is expected


@pytest.mark.parametrize(("saw", "is_right"), [(1, True), (0, False)])
def test_linearizable(saw: int, is_right: bool) -> None:
    """Operations of a run are judged by what they saw and left; refused ones did nothing."""
    history = History()
    place = Place("register", ("r",))
    history.did("write", place, at=(0, 1), seen=0)
    history.did("write", place, at=(2, 3), seen=0, told=Told.REFUSED)
    history.did("look", place, at=(4, 5), value=saw)
    with judged("Linearizable", is_right):
        history.checked_by("Linearizable").at_end()


def purses(first: int, second: int) -> dict[Place, Any]:
    """Return two purses."""
    return {Place("purse", (key,)): log(balance={"N": str(balance)}) for key, balance in (("a", first), ("b", second))}


def test_bank() -> None:
    """Money moves, and is neither made nor lost, in no state and for no reader."""
    history, checker = judging("Bank")
    history.images |= purses(100, 100)
    history.wrote(checker, None, after=purses(90, 110))
    with refused("Bank"):
        history.wrote(checker, None, after={Place("purse", ("a",)): purses(80, 0)[Place("purse", ("a",))]})
    history.did("count", at=(0, 1), value=200)
    checker.at_end()
    history.did("count", at=(0, 1), value=190)
    with refused("Bank"):
        checker.at_end()


def test_one_order_of_writes() -> None:
    """Two transactions in one order in one item and in the other order in another contradict each other."""
    for order, is_right in (([1, 2], True), ([2, 1], False)):
        history, checker = judging("OneOrder")
        history.images |= {NOTE: log(), OTHER: log()}
        done = {number: history.did("transaction", NOTE, OTHER, at=(0, 9)) for number in (1, 2)}
        for at, number in enumerate((1, 2)):
            history.wrote(checker, done[number], after={NOTE: log(*(1, 2)[: at + 1])})
        for at, number in enumerate(order):
            history.wrote(checker, done[number], after={OTHER: log(*order[: at + 1])})
        with judged("OneOrder", is_right):
            checker.at_end()


def test_one_order_finds_write_skew() -> None:
    """Each read what the other wrote, as it was before: no order explains both."""
    for second_saw, is_right in (([1], True), ([], False)):
        history, checker = judging("OneOrder")
        history.images |= {NOTE: log(), OTHER: log()}
        first = history.did("dependent transaction", NOTE, at=(0, 9), seen={OTHER: []})
        second = history.did("dependent transaction", OTHER, at=(0, 9), seen={NOTE: second_saw})
        history.wrote(checker, first, after={NOTE: log(1)})
        history.wrote(checker, second, after={OTHER: log(2)})
        with judged("OneOrder", is_right):
            checker.at_end()


def test_one_order_goes_by_real_time_as_well() -> None:
    """A reader that began after a write has returned does not see the state before it."""
    for called, is_right in ((5, True), (15, False)):
        history, checker = judging("OneOrder")
        history.images[NOTE] = log()
        history.wrote(checker, history.did("save", NOTE, at=(0, 10)), after={NOTE: log(1)})
        history.did("count", at=(called, 20), seen={NOTE: []})
        with judged("OneOrder", is_right):
            checker.at_end()
