"""The checkers of transactions: each anomaly is found by its name, and what is right is not accused.

The histories are made by hand. `T(1, 0, 5, reads=..., appends=...)` begins at 0 and ends at 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.campaign.histories import Op
from tests.simulation.checkers.graphs import components
from tests.simulation.checkers.transactions import PlainRead, Version, anomalies, transaction, uncommitted_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

ABORTED, UNKNOWN = "fail", "info"


def T(  # noqa: N802 - the name that such histories are written with
    number: int, begin: float = 0, end: float | None = 9, outcome: str = "ok", *, reads: Any = (), appends: Any = ()
) -> Op:
    """Return a transaction; at the same time as all others, unless told when."""
    return transaction(number, outcome if end is not None else UNKNOWN, begin, end, dict(reads), dict(appends))


def kinds(transactions: Sequence[Op], **final: Sequence[int]) -> list[str]:
    """Return the names of what is wrong."""
    return [anomaly.kind for anomaly in anomalies(transactions, final)]


# Clean histories


CLEAN: dict[str, Any] = {
    "nothing": ([], {}),
    "one after the other": (
        [T(1, 0, 1, appends={"x": [1]}), T(2, 2, 3, reads={"x": [1]}, appends={"x": [2]})],
        {"x": [1, 2]},
    ),
    "reads its own": ([T(1, appends={"x": [1, 2]}, reads={"x": [1, 2]}), T(2, reads={"x": []})], {"x": [1, 2]}),
    "an old state at the same time": ([T(1, 0, 5, appends={"x": [1]}), T(2, 4, 9, reads={"x": []})], {"x": [1]}),
    "aborted ones may see anything": ([T(1, outcome=ABORTED, reads={"x": [7]}, appends={"x": [1]})], {"x": []}),
    "unknown, done": ([T(1, 0, 1, UNKNOWN, appends={"x": [1]}), T(2, 2, 3, reads={"x": [1]})], {"x": [1]}),
    "unknown, not done": ([T(1, 0, 1, UNKNOWN, appends={"x": [1]}), T(2, 2, 3, reads={"x": []})], {}),
    "unknown, not done, may have seen anything": ([T(1, outcome=UNKNOWN, reads={"y": [7]}, appends={"x": [1]})], {}),
    "unknown, done later": (
        [T(1, 0, 1, UNKNOWN, appends={"x": [1]}), T(2, 2, 3, reads={"x": []}), T(3, 4, 5, reads={"x": [1]})],
        {"x": [1]},
    ),
    "never heard of, done later": ([T(1, 0, None, appends={"x": [1]}), T(2, 2, 3, reads={"x": []})], {"x": [1]}),
    "ends when the other begins": ([T(1, 0, 5, appends={"x": [1]}), T(2, 5, 9, reads={"x": []})], {"x": [1]}),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_right_is_not_accused(name: str) -> None:
    """A history that one order explains shows no anomaly."""
    transactions, final = CLEAN[name]
    assert anomalies(transactions, final) == []


# Writes and reads

#: What is read at last shows it as well: so do transactions that miss what was committed or see half of one.
WRONG: dict[str, Any] = {
    "lost write": ([T(1, appends={"x": [1], "y": [2]})], {"x": [1]}, ["G-single-item"]),
    "aborted write": ([T(1, outcome=ABORTED, appends={"x": [1]})], {"x": [1]}, ["G1a"]),
    "done in part": ([T(1, outcome=UNKNOWN, appends={"x": [1], "y": [2]})], {"x": [1]}, ["G-single-item"]),
    "done twice": ([T(1, appends={"x": [1]})], {"x": [1, 1]}, ["duplicate-elements"]),
    "unknown value": ([], {"x": [1]}, ["garbage-read"]),
    "read of an aborted one": (
        [T(1, outcome=ABORTED, appends={"x": [1]}), T(2, reads={"x": [1]})],
        {},
        ["G1a", "G-single-item-realtime"],
    ),
    "read of what was never done": (
        [T(1, outcome=UNKNOWN, appends={"x": [1]}), T(2, reads={"x": [1]})],
        {},
        ["G-single-item-realtime"],
    ),
    "read in the middle": (
        [T(1, appends={"x": [1, 2]}), T(2, reads={"x": [1]})],
        {"x": [1, 2]},
        ["G1b", "G-single-item"],
    ),
    "not a prefix": (
        [T(1, appends={"x": [1]}), T(2, appends={"x": [2]}), T(3, reads={"x": [2]})],
        {"x": [1, 2]},
        ["incompatible-order"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_writes_and_reads(name: str) -> None:
    """Each is found, by its name and by no other."""
    transactions, final, expected = WRONG[name]
    assert kinds(transactions, **final) == expected


def test_a_value_that_is_appended_twice_is_an_error_of_the_workload() -> None:
    """Nothing can be told of such a history."""
    assert "duplicate-appends" in kinds([T(1, appends={"x": [1]}), T(2, appends={"x": [1]})], x=[1])


# Cycles

CIRCLES: dict[str, Any] = {
    "G0": (
        [T(1, appends={"x": [1], "y": [3]}), T(2, appends={"x": [2], "y": [4]})],
        {"x": [1, 2], "y": [4, 3]},
        "1 -ww-> 2 -ww-> (again)",
    ),
    "G1c": (
        [T(1, appends={"x": [1]}, reads={"y": [2]}), T(2, appends={"y": [2]}, reads={"x": [1]})],
        {"x": [1], "y": [2]},
        "1 -wr-> 2 -wr-> (again)",
    ),
    "G-single-item": (  # a lost update that was not lost: both have read the same state
        [T(1, reads={"x": []}, appends={"x": [1]}), T(2, reads={"x": []}, appends={"x": [2]})],
        {"x": [1, 2]},
        "2 -rw-> 1 -ww-> (again)",
    ),
    "G2-item": (  # write skew
        [T(1, reads={"x": [], "y": []}, appends={"x": [1]}), T(2, reads={"x": [], "y": []}, appends={"y": [2]})],
        {"x": [1], "y": [2]},
        "1 -rw-> 2 -rw-> (again)",
    ),
    "G-single-item-realtime": (  # serializable, and yet a stale read
        [T(1, 0, 1, appends={"x": [1]}), T(2, 2, 3, reads={"x": []})],
        {"x": [1]},
        "2 -rw-> 1 -realtime-> (again)",
    ),
}


@pytest.mark.parametrize("kind", CIRCLES)
def test_circles_are_named_and_shown(kind: str) -> None:
    """By the worst name that fits, with the reason of each step."""
    transactions, final, shown = CIRCLES[kind]
    found = anomalies(transactions, final)[-1]
    assert (found.kind, found.message) == (kind, shown)


def test_read_skew_is_one_anti_dependency() -> None:
    """A reader that sees half of a transaction."""
    both = T(1, appends={"x": [1], "y": [2]})
    assert kinds([both, T(2, reads={"x": [1], "y": []})], x=[1], y=[2]) == ["G-single-item"]


def test_what_a_transaction_appended_itself_hides_nothing_of_what_it_read() -> None:
    """The state before its own values counts: from whom it read, and who came after."""
    one = T(1, appends={"x": [1]}, reads={"y": [3]})
    other = T(2, appends={"x": [2], "y": [3]}, reads={"x": [1, 2]})
    assert kinds([one, other], x=[1, 2], y=[3]) == ["G1c"]
    last = T(2, appends={"x": [2]}, reads={"x": [2]})
    assert kinds([T(1, appends={"x": [1]}), last], x=[1, 2]) == ["G-single-item"]


def test_two_separate_circles_are_two_anomalies() -> None:
    """One for each set of transactions that are before one another."""
    transactions, final = list[Op](), dict[str, list[int]]()
    for name, one, two in (("x", 1, 2), ("y", 3, 4)):
        transactions += [T(each, reads={name: []}, appends={name: [each]}) for each in (one, two)]
        final[name] = [one, two]
    assert kinds(transactions, **final)[-2:] == ["G-single-item", "G-single-item"]


def test_a_long_circle_is_found() -> None:
    """Through more transactions than Python's recursion goes deep."""
    size = 3000
    ring = [T(each, appends={f"k{each}": [each]}, reads={f"k{(each + 1) % size}": []}) for each in range(size)]
    assert kinds(ring, **{f"k{each}": [each] for each in range(size)}) == ["G2-item"]


def test_circles() -> None:
    """A circle is found wherever it is, and two ways to one place are none."""
    assert all(len(each) == 1 for each in components({1: {2: [], 3: []}, 2: {4: []}, 3: {4: []}, 4: {}}))
    found = components({1: {2: []}, 2: {3: []}, 3: {2: []}})
    assert {frozenset(each) for each in found} == {frozenset({1}), frozenset({2, 3})}


# Any history


class _Serial:
    """Transactions that are done one after the other."""

    def __init__(self, steps: list[Any]) -> None:
        self.final: dict[str, list[int]] = {}
        self.transactions = list[Op]()
        for number, (registers, outcome, is_done) in enumerate(steps):
            happens = outcome == "ok" or (outcome == UNKNOWN and is_done)
            appends, reads = dict[str, list[int]](), dict[str, list[int]]()
            for register, is_write in registers.items():
                reads[register] = list(self.final.get(register, []))
                if is_write:
                    appends[register] = [number]
            if happens:
                for register in appends:
                    self.final.setdefault(register, []).append(number)
            self.transactions.append(T(number, number, number + 0.5, outcome, reads=reads, appends=appends))


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("xyz"), st.booleans()), st.sampled_from(["ok", ABORTED, UNKNOWN]), st.booleans()
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_serial_histories_are_always_clean(steps: list[Any]) -> None:
    """Whatever is read and appended, aborted, or unknown and done or not."""
    serial = _Serial(steps)
    assert anomalies(serial.transactions, serial.final) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.data())
def test_a_stale_read_is_always_found(steps: list[Any], data: st.DataObject) -> None:
    """A committed read of a serial history that is cut by one value shows an anomaly: real time forbids it at least."""
    serial = _Serial(steps)
    candidates = [
        (at, micro)
        for at, each in enumerate(serial.transactions)
        for micro in each.value
        if micro[0] == "r" and micro[2] and {each.outcome, serial.transactions[micro[2][-1]].outcome} == {"ok"}
    ]
    if candidates:
        at, (_, register, seen) = data.draw(st.sampled_from(candidates))
        old = serial.transactions[at]
        old.value = [["r", register, seen[:-1]] if micro[1] == register else micro for micro in old.value]
        assert anomalies(serial.transactions, serial.final)


# Plain reads


def test_plain_reads_see_committed_states() -> None:
    """Old ones are fine; what was never committed is not, nor what is seen before its decision."""
    versions = {"x": [Version(None), Version(1, decided=10), Version(2, decided=20)]}
    right = [PlainRead("r", "x", value, ended) for value, ended in ((None, 99), (1, 10), (1, 99), (2, 20))]
    assert list(uncommitted_reads(right, versions)) == []
    wrong = [PlainRead("r", "x", 3, 99), PlainRead("r", "x", 2, 19), PlainRead("r", "y", 1, 99)]
    assert list(uncommitted_reads(wrong, versions)) == [
        "r saw x as 3, which was never committed",
        "r saw x as 2 before that was decided",
        "r saw y as 1, which was never committed",
    ]
