"""The pure rules of transactions: what a header says of a mark, and who may be wounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._core.transactions import (
    GRACE_S,
    IntentResolution,
    TransactionRecord,
    TransactionStatus,
    observe_pending,
    reason_to_abort,
    resolution_of_intent,
    shows_committed,
)
from pynamo_locking._io import transaction_record
from tests.unit.helpers import steady

LEASE = 10.0


def header(state: TransactionStatus = TransactionStatus.PENDING, **facts: object) -> TransactionRecord:
    """A header of a transaction that began at 500 and whose lease ends at 1,000 s of the wall clock."""
    defaults: dict[str, object] = {"priority": "500", "lease_ms": 10_000, "until_ms": 1_000_000}
    return TransactionRecord("id", state, **(defaults | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "resolution", "is_shown"),
    [
        (None, IntentResolution.DROP, True),
        (TransactionStatus.PENDING, IntentResolution.WAIT, True),
        (TransactionStatus.COMMITTED, IntentResolution.FINISH, False),
        (TransactionStatus.FINISHED, IntentResolution.DROP, True),
        (TransactionStatus.ABORTED, IntentResolution.DROP, True),
    ],
)
def test_fate(state: TransactionStatus | None, resolution: IntentResolution, *, is_shown: bool) -> None:
    """Only a pending transaction is waited for, only a committed one is finished, and a missing one is over.

    Only what is committed and not in place makes the values beside a mark old ones; or an order that is fixed.
    """
    known = None if state is None else header(state)
    assert resolution_of_intent(known) is resolution
    assert shows_committed(known) is is_shown
    assert not shows_committed(header(is_validated_early=True))


def test_states() -> None:
    """Committed is not final, finished is both, aborted is final alone."""
    assert {state for state in TransactionStatus if state.is_final} == {
        TransactionStatus.FINISHED,
        TransactionStatus.ABORTED,
    }
    assert {state for state in TransactionStatus if state.is_committed} == {
        TransactionStatus.COMMITTED,
        TransactionStatus.FINISHED,
    }
    assert header().lease == LEASE


def test_meetings_remember_the_first_sight_and_the_newest_beat() -> None:
    """An old beat, as of a late answer, does not count as a sign of life; a new one does."""
    first = observe_pending(None, header(heartbeats=3), 100.0)
    assert (first.first, first.observation.heartbeats, first.observation.since) == (100.0, 3, 100.0)
    for beat in (2, 3):
        assert observe_pending(first, header(heartbeats=beat), 105.0) == first
    newer = observe_pending(first, header(heartbeats=4), 105.0)
    assert (newer.first, newer.observation.heartbeats, newer.observation.since) == (100.0, 4, 105.0)


def reason(
    now: float, *, now_ms: int = 0, skew: float | None = None, priority: str | None = None, beat_at: float = 0.0
) -> str | None:
    """Of a transaction that was met at 0 and whose last beat was seen at `beat_at`."""
    meeting = observe_pending(observe_pending(None, header(heartbeats=0), 0.0), header(heartbeats=1), beat_at)
    return reason_to_abort(
        header(heartbeats=1), meeting, now=now, now_ms=now_ms, max_clock_skew=skew, priority=priority
    )


def test_silence_of_a_whole_lease_is_death() -> None:
    """A beat that does not move for a lease, by the watcher's own clock, means expired; before that nothing does."""
    assert reason(LEASE * 0.99) is None
    assert reason(LEASE * 1.2) == "expired"
    assert reason(LEASE * 1.2, beat_at=5.0) is None
    assert reason(5.0 + LEASE * 1.2, beat_at=5.0) == "expired"


def test_the_stored_end_is_a_hint() -> None:
    """The stored end of the lease counts only if clocks are trusted, and with their skew."""
    assert reason(0.0, now_ms=10**9, skew=None) is None
    assert reason(0.0, now_ms=1_000_000, skew=5.0) is None
    assert reason(0.0, now_ms=1_004_000, skew=5.0) is None
    assert reason(0.0, now_ms=1_006_000, skew=5.0) == "expired"


def test_a_lease_beyond_belief_counts_as_a_day() -> None:
    """By silence, and by the stored end: from the last renewal on."""
    poisoned = header(lease_ms=10**30, until_ms=10**30)  # renewed at 0
    day = 86_400

    def verdict(now: float, now_ms: int, skew: float | None) -> str | None:
        met = observe_pending(None, poisoned, 0.0)
        return reason_to_abort(poisoned, met, now=now, now_ms=now_ms, max_clock_skew=skew, priority=None)

    assert verdict(day * 1.04, 0, None) is None
    assert verdict(day * 1.06, 0, None) == "expired"
    assert verdict(0.0, (day + 10) * 1000, 10.0) is None
    assert verdict(0.0, (day + 10) * 1000 + 1, 10.0) == "expired"


def test_the_older_one_wounds_after_the_grace() -> None:
    """Wound-wait: the older one waits for the grace, the younger one and one that is no transaction for a lease."""
    assert reason(GRACE_S * 0.9, priority="400") is None
    assert reason(GRACE_S, priority="400") == "wounded"
    assert reason(GRACE_S, priority="400", beat_at=GRACE_S) == "wounded"  # signs of life do not help
    for priority in ("500", "600", None):
        assert reason(LEASE * 0.9, priority=priority) is None
        assert reason(LEASE * 1.2, priority=priority) == "expired"


@steady
@given(st.text("0123456789", min_size=3, max_size=3), st.text("0123456789", min_size=3, max_size=3))
def test_of_two_one_is_never_wounded(one: str, other: str) -> None:
    """Two transactions never wound each other, whatever their ages."""
    wounded = [
        reason_to_abort(
            header(priority=theirs),
            observe_pending(None, header(), 0.0),
            now=1.0,
            now_ms=0,
            max_clock_skew=None,
            priority=mine,
        )
        for mine, theirs in ((one, other), (other, one))
    ]
    assert wounded.count("wounded") == (0 if one == other else 1)


# The path


def test_a_header_that_does_not_say_may_have_checked_early():
    """It was written by a process that did not know that it matters: no reader looks past it."""
    record_table, stored = transaction_record.RecordTable(None, "headers"), {}
    known = header()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            transaction_record, "ask", lambda _record_table, _operation, kwargs: stored.update(kwargs["Item"])
        )
        transaction_record.begin(record_table, known)
    assert not transaction_record.record_in(stored).is_validated_early
    del stored[transaction_record.EARLY]
    assert transaction_record.record_in(stored).is_validated_early
