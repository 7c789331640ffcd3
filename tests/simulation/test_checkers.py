"""Each checker of locks and queues accepts what is right and refuses what is wrong, in runs made by hand."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from pynamo_locking.exceptions import LockLost
from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.checkers.by_hand import LOCKED, History, belief, grant, judged, judging, locked, log, refused
from tests.simulation.checkers.locks import OneHolder
from tests.simulation.history import Line, Told
from tests.simulation.plans import Plan
from tests.simulation.planted import choices_of
from tests.simulation.run import Run


def test_one_holder() -> None:
    """One who believes is fine, and so is a second one who knows that it is over. Two believers are not."""
    history, checker = judging("OneHolder")
    grant(history, 1, is_held=False)
    second = grant(history, 2)
    checker.on_step()
    history.holding[0].is_held = True
    with refused("OneHolder"):
        checker.on_step()
    second.actor = history.actor(process=SimpleNamespace(is_alive=False))
    checker.on_step()


def test_one_holder_under_wild_clocks_is_asked_of_locks_that_trust_none() -> None:
    """The exemption is of the lock, not of the plan; and a lock that an operator breaks has one, too."""
    history, checker = judging("OneHolder", skew="wild")
    first, second = grant(history, 1), grant(history, 2)
    checker.on_step()
    first.trusts_clocks = second.trusts_clocks = False
    with refused("OneHolder"):
        checker.on_step()
    history.broken.add((LOCKED, 1))
    checker.on_step()


def test_no_early_eviction() -> None:
    """An entry may be removed by its owner, or when the owner knows that its lease is over."""
    history, checker = judging("NoEarlyEviction")
    given, stranger = grant(history, 1), history.actor("party1", history.new_process("p1"))
    history.images[LOCKED] = locked(1, 2)
    history.wrote(checker, None, after={LOCKED: locked(2)})
    history.images[LOCKED], given.is_held = locked(1, 2), False
    history.wrote(checker, None, stranger, after={LOCKED: locked(2)})
    history.images[LOCKED], given.is_held = locked(1, 2), True
    with refused("NoEarlyEviction"):
        history.wrote(checker, None, stranger, after={LOCKED: locked(2)})


def test_no_early_eviction_by_a_late_copy() -> None:
    """A holder's own release of an earlier ticket does not remove its new entry."""
    for ticket, is_right in ((2, True), (1, False)):
        history, checker = judging("NoEarlyEviction")
        grant(history, 2)
        history.images[LOCKED] = locked(2)
        release = history.did("release", LOCKED, at=(0, 1), ticket=ticket)
        with judged("NoEarlyEviction", is_right):
            history.wrote(checker, release, after={LOCKED: locked()})


@pytest.mark.parametrize(
    ("silent_s", "request_name", "is_broken", "skew", "is_right"),
    [
        (5.9, "evict", False, "none", False),
        (6.0, "evict", False, "none", True),
        (1.0, "release", False, "none", True),
        (1.0, "evict", True, "none", True),
        (1.0, "evict", False, "wild", True),
        (1.0, "evict", False, "some", False),
    ],
    ids=["early", "in time", "release", "broken", "wild", "some skew"],
)
def test_silence(silent_s: float, request_name: str, is_broken: bool, skew: str, is_right: bool) -> None:
    """An eviction comes a whole lease after the last sign of life, unless an operator or a wrong clock makes it."""
    history, checker = judging("Silence", skew=skew)
    history.faults.happened[Fault.LATE] = 1
    history.wrote(checker, None, after={LOCKED: locked(1)})
    history.broken |= {(LOCKED, 1)} if is_broken else set()
    history.scheduler.now = silent_s
    with judged("Silence", is_right):
        history.wrote(checker, None, after={LOCKED: locked()}, request=request_name)


def test_silence_counts_from_when_a_sign_of_life_was_sent() -> None:
    """What comes late, or comes again under another ticket, is not alive because of that."""
    history, checker = judging("Silence")
    history.scheduler.now = 6.5
    history.wrote(checker, None, after={LOCKED: locked(1, sent_s=0)})
    history.wrote(checker, None, after={LOCKED: locked()}, request="evict")
    history.wrote(checker, None, after={LOCKED: locked(2, sent_s=6)})
    with refused("Silence"):
        history.wrote(checker, None, after={LOCKED: locked()}, request="evict")


def test_silence_is_in_true_time() -> None:
    """The owner's wall clock may be wrong, and what it stores with it."""
    for skew_ms, is_right in ((3000, True), (-3000, False)):
        history, checker = judging("Silence", skew="some")
        history.process.clock.skew_ms = skew_ms
        history.wrote(checker, None, after={LOCKED: locked(1, sent_s=0)})
        history.scheduler.now = 4.0
        with judged("Silence", is_right):
            history.wrote(checker, None, after={LOCKED: locked()}, request="evict")


@pytest.mark.parametrize(
    ("granted", "removed_by_others", "told", "is_right"),
    [
        ("e1", False, Told.APPLIED, True),
        ("again2", False, Told.APPLIED, False),
        ("again2", True, Told.APPLIED, True),
        (None, False, Told.REFUSED, True),
    ],
    ids=["kept", "left and came again", "was evicted and came again", "gave up"],
)
def test_kept_place(granted: str | None, removed_by_others: bool, told: Told, is_right: bool) -> None:
    """One acquire is granted the entry that it came with, unless others have removed that one."""
    history, checker = judging("KeptPlace")
    history.faults.happened[Fault.STALE] = 1
    done = history.did("acquire", LOCKED, at=(0, 9), told=told, value=granted)
    history.wrote(checker, done, after={LOCKED: locked(1)})
    if granted != "e1":
        history.wrote(checker, None if removed_by_others else done, after={LOCKED: locked()})
        history.wrote(checker, done, after={LOCKED: locked(2, named="again")})
    with judged("KeptPlace", is_right):
        checker.at_end()


@pytest.mark.parametrize("excuse", ["none", "owner", "fault", "operator", "wild clocks", "holder"])
def test_kept_place_where_nothing_goes_wrong(excuse: str) -> None:
    """Only faults, an operator and wild clocks let others remove a waiter. Holders are not meant here."""
    history, checker = judging("KeptPlace", skew="wild" if excuse == "wild clocks" else "none")
    if excuse == "fault":
        history.faults.happened[Fault.LATE] = 1
    if excuse == "operator":
        history.broken.add((LOCKED, 1))
    if excuse == "holder":
        grant(history, 1)
    history.images[LOCKED] = locked(1)
    remover = history.actor("owner" if excuse == "owner" else "somebody")
    with judged("KeptPlace", excuse != "none"):
        history.wrote(checker, None, remover, after={LOCKED: locked()})


@pytest.mark.parametrize(
    ("request_name", "at", "told", "fault", "is_right"),
    [
        ("evict", (200, 300), Told.APPLIED, None, False),
        ("evict", (200, 300), Told.REFUSED, None, True),
        ("release", (200, 300), Told.APPLIED, None, True),
        ("evict", (0, 300), Told.APPLIED, None, False),
        ("evict", (0, 300), Told.APPLIED, Fault.LOST_REQUEST, True),
        ("evict", (0, 50), Told.APPLIED, None, True),
    ],
    ids=["before", "told", "not evicted", "meanwhile", "meanwhile, no answer", "after"],
)
def test_told_loss(request_name: str, at: tuple[int, int], told: Told, fault: Fault | None, is_right: bool) -> None:
    """A release that goes well was not too late, as far as the one who releases can know."""
    history, checker = judging("ToldLoss")
    history.faults.happened.update([] if fault is None else [fault])
    history.wrote(checker, None, after={LOCKED: locked(1)})
    history.wrote(checker, None, after={LOCKED: locked()}, request=request_name)
    history.did("release", LOCKED, at=at, told=told, ticket=1)
    with judged("ToldLoss", is_right):
        checker.at_end()


def test_told_loss_needs_the_document() -> None:
    """With the document goes the trace of the eviction, so no holder can be told of it."""
    history, checker = judging("ToldLoss")
    history.wrote(checker, None, after={LOCKED: locked(1)})
    history.wrote(checker, None, after={LOCKED: locked()}, request="evict")
    history.wrote(checker, None, after={LOCKED: None})
    history.did("release", LOCKED, at=(200, 300), ticket=1)
    checker.at_end()


def _own(history: History, *, is_lost: bool, reason: str = "evicted") -> None:
    """Report a lock with ticket 1, and what its holder's entry believes."""
    held = SimpleNamespace(entry=SimpleNamespace(id="e1", ticket=1), ownership=belief(reason if is_lost else ""))
    grant(history, 1).lock = SimpleNamespace(_handle=SimpleNamespace(entry=held))


@pytest.mark.parametrize(
    ("after", "request_name", "by", "reason", "is_right"),
    [
        (locked(), "evict", None, "evicted", True),
        (locked(), "release", None, "evicted", False),
        (None, "", 2, "deleted", True),
        (None, "", 1, "deleted", False),
        (locked(since=7), "", 2, "deleted", True),
        (locked(1), "renew", None, "evicted", False),
        (locked(1), "renew", None, "forked", True),
    ],
    ids=["evicted", "released", "deleted by another", "deleted by itself", "made anew", "nothing happened", "forked"],
)
def test_true_loss(after: Any, request_name: str, by: int | None, reason: str, is_right: bool) -> None:
    """What counts as lost was taken away by others."""
    history, checker = judging("TrueLoss")
    history.images[LOCKED] = locked(1)
    _own(history, is_lost=True, reason=reason)
    checker.on_step()
    done = None if by is None else history.did("delete", LOCKED, at=(0, 1), ticket=by)
    history.wrote(checker, done, after={LOCKED: after}, request=request_name)
    checker.on_step()
    with judged("TrueLoss", is_right):
        checker.at_end()


@pytest.mark.parametrize("kind", ["save", "delete", "read"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_true_loss_is_noted(is_lost: bool, kind: str) -> None:
    """Who is told by a write that the lock is lost has a lock that knows."""
    history, checker = judging("TrueLoss")
    _own(history, is_lost=is_lost)
    error = LockLost("gone", reason="evicted", ticket=1)
    done = history.did(kind, LOCKED, at=(0, 1), ticket=1, told=Told.REFUSED, error=error)
    done.returned = None
    checker.on_step()
    done.returned = 2
    with judged("TrueLoss", is_lost or kind == "read"):
        checker.on_step()


@pytest.mark.parametrize(("ticket", "first", "is_right"), [(1, [1], True), (1, [2], False), (1, [], False)])
def test_fence_for_holders(ticket: int, first: list[int], is_right: bool) -> None:
    """Who writes with a ticket must be first."""
    history, checker = judging("Fence")
    history.images[LOCKED] = locked(*first)
    done = history.did("save", LOCKED, at=(0, 1), ticket=ticket)
    with judged("Fence", is_right):
        history.wrote(checker, done, after={LOCKED: locked(*first, item=log(1))})


@pytest.mark.parametrize("after", [locked(1, item=log(1)), None], ids=["write", "delete"])
def test_fence_for_outsiders(after: Any) -> None:
    """Who writes or deletes without a ticket must find the queue empty."""
    history, checker = judging("Fence")
    done = history.did("save", LOCKED, at=(0, 1))
    history.images[LOCKED] = locked()
    history.wrote(checker, done, after={LOCKED: locked(item=log(1))})
    history.images[LOCKED] = locked(1)
    with refused("Fence"):
        history.wrote(checker, done, after={LOCKED: after})


@pytest.mark.parametrize(
    "after",
    [
        locked(1, 1 + 2, next_ticket=3),  # the next ticket is taken
        locked(1, next_ticket=1),  # went back
        locked(1, 2, since=7),  # another document over a living one
        {**locked(1), "lock": {"M": {**locked(1)["lock"]["M"], "queue": {"M": {"e1": {"L": []}}}}}},  # no ticket
    ],
    ids=["taken", "back", "anew", "half"],
)
def test_sound_queue_refuses(after: Any) -> None:
    """A document that contradicts itself, or the one before it."""
    history, checker = judging("SoundQueue")
    history.wrote(checker, None, after={LOCKED: locked(1, next_ticket=2)})
    with refused("SoundQueue"):
        history.wrote(checker, None, after={LOCKED: after})


def test_sound_queue_lets_tickets_go_back_only_after_a_deletion() -> None:
    """A new document may begin anywhere, the tickets of one document only grow."""
    for between, is_right in ((None, True), (locked(), False)):
        history, checker = judging("SoundQueue")
        history.wrote(checker, None, after={LOCKED: locked(50)})
        history.wrote(checker, None, after={LOCKED: between})
        with judged("SoundQueue", is_right):
            history.wrote(checker, None, after={LOCKED: locked(40)})


def test_fifo_goes_by_arrival_also_across_deletions() -> None:
    """A lower ticket in a later document is later; one that overtakes is refused."""
    history, checker = judging("Fifo", skew="some")
    history.wrote(checker, None, after={LOCKED: locked(50)})
    grant(history, 50)
    checker.on_step()
    history.wrote(checker, None, after={LOCKED: None})
    history.wrote(checker, None, after={LOCKED: locked(40, since=40)})
    history.wrote(checker, None, after={LOCKED: locked(40, 41, 42, since=40)})
    grant(history, 40)
    checker.on_step()
    history.wrote(checker, None, after={LOCKED: locked(42, since=40)})
    grant(history, 42)
    checker.on_step()
    grant(history, 41)
    with refused("Fifo"):
        checker.on_step()


def test_breaking() -> None:
    """Once `break_lock` has returned, the ticket is gone."""
    for left, is_right in ((locked(2), True), (locked(1, 2), False)):
        history = History()
        history.images[LOCKED] = left
        history.did("break lock", at=(0, 1), value=(LOCKED, 1, True))
        with judged("Breaking", is_right):
            history.checked_by("Breaking").on_step()


def test_quiet() -> None:
    """Neither entries nor threads nor mailboxes may be left."""
    history = History()
    history.did("save", LOCKED, at=(0, 1))
    history.checked_by("Quiet").at_end()
    history.process.own["mailboxes"] = {"row": ["box"]}
    with refused("Quiet"):
        history.checked_by("Quiet").at_end()
    history.process.own.clear()
    history.process.own["heartbeat"] = SimpleNamespace(_due=[], _threads=1)
    with refused("Quiet"):
        history.checked_by("Quiet").at_end()
    history.process.own.clear()
    history.images[LOCKED] = locked(1)
    with refused("Quiet"):
        history.checked_by("Quiet").at_end()


def test_growing() -> None:
    """The same holder may write again, and a later one; one with an earlier ticket, or another with the same, not."""
    history, checker = judging("Growing")

    def write(number: int, *queue: int, ticket: int, since: int = 1, named: str = "e") -> None:
        history.images[LOCKED] = locked(*queue, item=log(*range(number)), since=since, named=named)
        done = history.did("save", LOCKED, at=(number, number), ticket=ticket)
        history.wrote(checker, done, after={LOCKED: locked(*queue, item=log(*range(number + 1)), since=since)})

    write(1, 5, ticket=5)
    write(2, 5, ticket=5)
    write(3, 6, ticket=6)
    with refused("Growing"):
        write(4, 6, ticket=6, named="f")
    with refused("Growing"):
        write(4, 5, ticket=5)
    write(5, 2, ticket=2, since=2)


def test_turns_in_order_of_arrival() -> None:
    """Who was in line before another came is served before it, if both are of one process."""
    for began, process, is_right in ((4, None, False), (2, None, True), (4, "p1", True)):
        history, checker = judging("Turns")
        grant(history, 7, line=Line(began, began + 2), process=process and history.new_process(process))
        checker.on_step()
        grant(history, 8, line=Line(1, 3))
        with judged("Turns", is_right):
            checker.on_step()


@pytest.mark.parametrize(
    ("tickets", "fault", "is_right"),
    [((1, 2, 3), None, False), ((1, 3), None, True), ((1, 4), None, True), ((1, 2, 3), Fault.LATE, True)],
    ids=["passed over twice", "once", "lost", "after a fault"],
)
def test_turns_soon(tickets: tuple[int, ...], fault: Fault | None, is_right: bool) -> None:
    """One draw with room for more may pass a caller over, since it may have been under way, but not two."""
    history, checker = judging("Turns", block=2)
    history.faults.happened.update([fault] if fault else [])
    for ticket in (1, 2, 3, 4):
        history.wrote(checker, None, after={LOCKED: locked(ticket)})
    for ticket in tickets[:-1]:
        grant(history, ticket, line=Line(0, 1))
    grant(history, tickets[-1], line=Line(1, 2))
    with judged("Turns", is_right):
        checker.at_end()


def test_turns_of_a_block() -> None:
    """No draw has more tickets than a block."""
    history, checker = judging("Turns", block=2)
    image = locked(1)
    image["lock"]["M"]["queue"]["M"]["e1"]["L"][1]["M"]["n"] = {"N": "3"}
    with refused("Turns"):
        history.wrote(checker, None, after={LOCKED: image})


def test_a_violation_says_which_rule_was_broken_and_by_which_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the checker did not find what it looks at, as an attribute that is missing."""

    def refuse_entries(self: OneHolder, request: Any, changes: Any) -> None:
        self.require(request.step != "enter", "an entry has come")

    def error_of(on_changes: Any) -> str:
        monkeypatch.setattr(OneHolder, "on_changes", on_changes)
        plan = Plan("embedded")
        return str(Run(plan, choices_of(plan, 0)).execute().error)

    by = r"; by p\d\.party\d, by its UpdateItem account/a"
    assert re.fullmatch("OneHolder: an entry has come" + by, error_of(refuse_entries))
    unread = error_of(lambda *_: dict[str, int]()["expires_s"])
    assert re.fullmatch(r"OneHolder: KeyError\('expires_s'\) where .*: At most one party believes .*" + by, unread)
