"""What errors and `repr` say of a lock: which request was refused, and in one line whatever the table contains."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import NamedLock
from pynamo_locking.exceptions import ConfigurationError, LockingError, LockLost, LockTimeout, OverlapError
from pynamo_locking.intervals import IntervalMixin
from tests.support.models import declare
from tests.support.parties import in_thread
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.core

Names = declare("Names", NamedLock)
Shift = declare(
    "Shift",
    IntervalMixin,
    begin=UnicodeAttribute(range_key=True),
    end=UnicodeAttribute(),
    version=True,
    lock_table=Names,
    interval=("begin", "end"),
)
DENIED = "AccessDeniedException"


@pytest.fixture(autouse=True)
def _bound(engine):
    engine.bind(Names, Shift)


def released(lock: Any) -> None:
    lock.acquire()
    with on("UpdateItem").answer(DENIED, always=True):
        lock.release()


def noted() -> None:
    with Names.locked("n"):  # now there is a row
        pass
    with on("UpdateItem", nth=2).answer(DENIED, always=True), Names.once("n", period=60) as run:
        assert run


def under_the_lock(act: Callable[[Any], object]) -> Callable[[], object]:
    def call() -> None:
        with Names.locked("n") as lock:
            refused: LockingError | None = None
            with on("UpdateItem").answer(DENIED, always=True):
                try:
                    act(lock)
                except LockingError as error:
                    refused = error
        assert refused is not None
        raise refused

    return call


def attached() -> None:
    with Names.locked("n") as lock:
        token = lock.detach(lease=60)
    with on("UpdateItem").answer(DENIED, always=True):
        Names.attach(token, wait=0).acquire()


def broken() -> None:
    lock = Names.locked("n")
    lock.acquire()
    try:
        with on("UpdateItem").answer(DENIED, always=True):
            Names.break_lock("n", ticket=lock.ticket)
    finally:
        lock.release()


def acquired() -> None:
    with on("UpdateItem").answer(DENIED, always=True):
        Names.locked("n", wait=0).acquire()


def looked_at() -> None:
    with on("GetItem").answer(DENIED, always=True):
        Names.lock_state("n")


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (acquired, "lock"),
        (lambda: released(Names.locked("n")), "release the lock of"),
        (under_the_lock(lambda lock: lock.renew()), "renew the lock of"),
        (under_the_lock(lambda lock: lock.detach(lease=60)), "detach the lock of"),
        (under_the_lock(lambda lock: lock.downgrade()), "share the lock of"),
        (attached, "attach the lock of"),
        (broken, "remove dead entries from the lock of"),
        (looked_at, "read the lock of"),
        (noted, "note a success, and release the lock of"),
    ],
    ids=["acquire", "release", "renew", "detach", "downgrade", "attach", "break", "look", "once"],
)
def test_an_error_says_which_request_was_refused(act, what):
    """A release that was refused is no lock that was not acquired."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(LockingError, match=f"cannot {what} .*n: .*AccessDenied"):
            act()


#: A name, an owner and a key that would forge a line of a log, or paint a terminal.
HOSTILE = "n\n2026-01-01 INFO all is well \x1b[2J\x9b2J"


def said_of_a_job() -> Iterator[object]:
    with Names.once(HOSTILE, period=60, owner=HOSTILE) as run:
        assert run
        yield repr(run)
    with Names.once(HOSTILE, period=60) as run:
        assert not run
        yield repr(run)
        with pytest.raises(ConfigurationError) as refused:
            _ = run.ticket
        yield refused.value
    with pytest.warns(UserWarning, match="has not asked") as warned:  # noqa: SIM117 - outside of it
        with Names.once(HOSTILE, period=60):
            pass
    yield warned[0].message


def said_of_a_leader() -> Iterator[object]:
    election = Names.lead(HOSTILE)
    with election:
        term = election.elected(timeout=60)
        yield repr(term)
        with pytest.raises(ConfigurationError) as refused:
            election.start()
        yield refused.value
    with pytest.raises(LockLost) as ended:
        term.held_condition()
    yield ended.value


def said_of_a_lock() -> Iterator[object]:
    with Names.locked(HOSTILE, owner=HOSTILE) as lock:
        yield from (repr(lock), str(lock), repr(Names.lock_state(HOSTILE)))
        with pytest.raises(LockTimeout) as late:
            in_thread(Names.locked(HOSTILE, wait=0).acquire)
        yield late.value


def said_of_a_range() -> Iterator[object]:
    with Names.locked_range("r", HOSTILE, HOSTILE + "a", shared=True, owner=HOSTILE):
        yield str(Names.lock_state("r").entries[0].lock_mode)
        with pytest.raises(LockTimeout) as late:
            in_thread(Names.locked_range("r", HOSTILE, None, wait=0).acquire)
        yield late.value
        for lower, upper in ((HOSTILE, HOSTILE + "b"), (1, 2)):
            with pytest.raises(LockingError) as refused:
                Names.locked_range("r", lower, upper).acquire()
            yield refused.value


def said_of_intervals() -> Iterator[object]:
    Shift.intervals.insert_disjoint([Shift("k", begin=HOSTILE, end=HOSTILE + "b")])
    with pytest.raises(OverlapError) as refused:
        Shift.intervals.insert_disjoint([Shift("k", begin=HOSTILE + "a", end=HOSTILE + "c")])
    yield refused.value


@pytest.mark.parametrize("say", [said_of_a_job, said_of_a_leader, said_of_a_lock, said_of_a_range, said_of_intervals])
def test_stored_text_has_no_control_characters(say):
    """In errors, warnings and `repr`."""
    texts = [str(each) for each in say()]
    assert [text for text in texts if not text.isprintable()] == []
    assert any("all is well" in text for text in texts)
