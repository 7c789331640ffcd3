"""Which path a commit takes: everything once, within the limits, at the least cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._core.dynamodb import MOST_ACTIONS, MOST_BYTES
from pynamo_locking._core.transactions import (
    ROW_BYTES,
    CannotBeStaged,
    CommitPath,
    ItemFacts,
    choose_path,
    keys_in_rows,
    placeholders,
)
from tests.unit.helpers import steady


def writes(count: int, **facts: object) -> list[ItemFacts]:
    return [ItemFacts(is_write=True, **{"size": 100, **facts}) for _ in range(count)]  # type: ignore[arg-type]


def reads(count: int, **facts: object) -> list[ItemFacts]:
    return [ItemFacts(is_write=False, **{"size": 100, **facts}) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("items", "extra", "path"),
    [
        ([], 0, CommitPath.NOTHING),
        ([], 1, CommitPath.NATIVE),
        (reads(1), 0, CommitPath.READ),
        (reads(500), 0, CommitPath.READ),
        (writes(1), 0, CommitPath.SINGLE),
        (writes(1), 1, CommitPath.NATIVE),
        (writes(1) + reads(1), 0, CommitPath.NATIVE),
        (writes(MOST_ACTIONS), 0, CommitPath.NATIVE),
        (writes(MOST_ACTIONS), 1, CommitPath.LONG),
        (writes(MOST_ACTIONS + 1), 0, CommitPath.LONG),
        (writes(50) + reads(50), 0, CommitPath.NATIVE),
        (writes(50) + reads(51), 0, CommitPath.LONG),
        (writes(12, size=390_000), 0, CommitPath.LONG),
    ],
)
def test_path(items: list[ItemFacts], extra: int, path: CommitPath) -> None:
    """The cheapest path that can hold it is taken."""
    assert choose_path(items, extra=extra).path is path


MEMBERS = st.lists(
    st.builds(
        ItemFacts,
        is_write=st.booleans(),
        is_absent=st.booleans(),
        can_have_intent=st.just(True),
        wants_direct=st.booleans(),
        size=st.integers(0, 400_000),
    ),
    max_size=260,
)


@steady
@given(MEMBERS, st.integers(0, 3))
def test_every_plan_does_everything_once_within_the_limits(items: list[ItemFacts], extra: int) -> None:
    """Each write is direct or staged, each read checked or validated, and the decision fits into one transaction."""
    plan = choose_path(items, extra=extra)
    if plan.path is CommitPath.NOTHING:
        assert items == []
        return
    written = sorted((*plan.direct, *plan.staged))
    read = sorted((*plan.checked, *plan.validated))
    assert written == [i for i, item in enumerate(items) if item.is_write]
    assert read == [i for i, item in enumerate(items) if not item.is_write]
    if plan.path is CommitPath.LONG:
        assert 1 + extra + len(plan.direct) + len(plan.checked) <= MOST_ACTIONS
        assert sum(items[i].size for i in plan.direct) <= MOST_BYTES
        assert set(plan.with_intents) >= set(plan.staged)
        # Reads that are validated before the decision need every written item to be marked first.
        assert not plan.validated or set(plan.with_intents) == set(written)
    elif plan.path is CommitPath.NATIVE:
        assert len(items) + extra <= MOST_ACTIONS
        assert plan.staged == plan.validated == ()


def test_what_cannot_be_marked_is_direct() -> None:
    """Items without a place for a mark come first into the decision, then new ones, then large ones."""
    plan = choose_path([*writes(60), *writes(99, can_have_intent=False)])
    assert plan.direct == tuple(range(60, 159))
    plan = choose_path([*writes(60), *writes(60, is_absent=True), *writes(60, size=5000)])
    assert set(plan.direct) == {*range(60, 120), *range(120, 159)}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (writes(100, can_have_intent=False) + writes(1), "100 of 101 items .* has room for 99"),
        (writes(99, can_have_intent=False, size=50_000) + writes(2), "4,950,000 bytes together"),
        (
            writes(40, can_have_intent=False) + reads(60) + writes(60),
            "40 of 100 items .*, and the 60 items that are only read .* has room for 99",
        ),
    ],
    ids=["too many", "too large", "beside too many reads"],
)
def test_what_cannot_be_staged_is_refused(items: list[ItemFacts], why: str) -> None:
    """A transaction in which an item must be staged that cannot be is refused, by its count or by its size."""
    with pytest.raises(CannotBeStaged, match=why):
        choose_path(items)


def test_the_decision_writes_what_others_may_want() -> None:
    """What is locked first, then new items, then what was read: others would wait for an intent of it."""
    unread, read = writes(99, needs_read=True, is_absent=True), writes(1, size=10)
    locked, new = writes(1, is_locked=True), writes(98, is_absent=True)
    assert choose_path([*unread, *read]).path is CommitPath.NATIVE
    assert 99 in choose_path([*unread, *read, *locked]).direct
    assert choose_path([*read, *new, *writes(20), *locked]).direct == (*range(1, 99), 119)


def test_reads_inside_or_outside() -> None:
    """Few reads are checked by the decision; many are validated before it, and then every written item is marked."""
    inside, outside = choose_path(writes(80) + reads(49)), choose_path(writes(80) + reads(50))
    assert (len(inside.checked), len(inside.validated)) == (49, 0)
    assert (len(outside.checked), len(outside.validated)) == (0, 50)
    assert outside.with_intents == tuple(range(80))
    assert outside.staged == ()
    beside = choose_path(writes(39, can_have_intent=False) + reads(60) + writes(60))
    assert (len(beside.checked), len(beside.validated)) == (60, 0)


@steady
@given(st.lists(st.integers(0, 2 * MOST_BYTES), max_size=260))
def test_placeholders(sizes: list[int]) -> None:
    """As many as a native transaction holds beside the check of the header, and no more bytes; each once."""
    parts = placeholders(sizes)
    assert [i for part in parts for i in part] == list(range(len(sizes)))
    assert all(len(part) < MOST_ACTIONS for part in parts)
    assert all(len(part) == 1 or sum(sizes[i] for i in part) <= MOST_BYTES for part in parts)


def test_a_request_for_placeholders_checks_the_record_too() -> None:
    """So that it has room for one item less than a native transaction."""
    assert placeholders([300] * MOST_ACTIONS) == [range(MOST_ACTIONS - 1), range(MOST_ACTIONS - 1, MOST_ACTIONS)]


@steady
@given(st.lists(st.integers(1, ROW_BYTES), max_size=60))
def test_keys_in_rows(sizes: list[int]) -> None:
    """Every key is in one row, in its order, and no row is larger than allowed."""
    rows = keys_in_rows(sizes)
    assert [i for row in rows for i in row] == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in row) <= ROW_BYTES for row in rows)
    assert all(len(row) > 0 for row in rows)


def test_a_key_larger_than_a_row_has_one_of_its_own() -> None:
    """A size beyond the limit is not split, and does not make an empty row."""
    assert keys_in_rows([ROW_BYTES + 1]) == [range(1)]
    assert keys_in_rows([1, ROW_BYTES + 1, 1]) == [range(1), range(1, 2), range(2, 3)]
    assert keys_in_rows([]) == []
