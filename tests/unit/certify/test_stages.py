"""What `certify` tells of each mistake, and of children that end as they should not."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from certify import page, stages, work
from certify.contract import Failed
from certify.plan import ACCOUNTS
from certify.work import Ledger, Meter
from pynamo_locking.exceptions import LockLost

if TYPE_CHECKING:
    from collections.abc import Iterator

TOTAL: Final = ACCOUNTS * work.BALANCE
#: Of four turns, in which each lock is granted to the next ticket.
TURNS: Final = [(1, 0.0, 1.0, 2.0), (2, 0.0, 2.0, 3.0), (3, 0.0, 3.0, 4.0), (4, 0.0, 4.0, 5.0)]


class Children:
    """Stands for a crew whose children answer what they are said to."""

    def __init__(self, found: dict[str, Any], **counts: float) -> None:
        self.plan = SimpleNamespace(workers=1, kills=0, turns=2, seed="s")
        self.first = 0
        self.ledger = SimpleNamespace(total=lambda name, since=0: counts.get(name, 0), of=lambda _, name: counts[name])
        self._found = {"took": {}, **found}

    def begin_stage(self) -> None:
        pass

    def start(self, _: Any) -> Any:
        return SimpleNamespace(slot=1)

    def result(self, _: Any) -> dict[str, Any]:
        return self._found

    def run(self, _: Any) -> dict[str, Any]:
        return self._found


LOCKS: Final = {"changes": {"1": 2}, "sum": 2}
MONEY: Final = {
    "changes": {"1": 4},
    "sum": TOTAL,
    "sums": [TOTAL],
    "finished": 0,
    "aborted": 0,
    "failed": {},
}


@pytest.mark.parametrize(
    ("stage", "found", "counts", "problem"),
    [
        ("contract", {"checks": 2, "failures": {"a_check": "why"}}, {}, "a_check: why"),
        ("contract", {"checks": 2, "failures": {}}, {}, ""),
        ("locks", LOCKS, {}, ""),
        ("locks", {**LOCKS, "sum": 1}, {}, "the counters are 1, after 2 increments"),
        ("locks", LOCKS, {"wrong": 3}, "3 times the lock was granted to a ticket after a later ticket"),
        ("locks", LOCKS, {"done": 1}, "process 1 has made 1 turns of 1 changes, and 2 changes are stored"),
        ("locks", {"changes": {"1": 2, "7": 1}, "sum": 3}, {}, "changes of a process 7 that was not there"),
        ("answers", {"applied": 1, "unknown": 1, "wrong": []}, {}, ""),
        ("answers", {"applied": 1, "unknown": 1, "wrong": ["a change"]}, {}, "a change"),
        ("transactions", MONEY, {}, ""),
        ("transactions", {**MONEY, "sum": 3}, {}, f"the accounts have 3 together at the end, and not {TOTAL}"),
        (
            "transactions",
            {**MONEY, "sums": [TOTAL, 3]},
            {},
            f"1 of 2 snapshots have another sum than {TOTAL}, such as 3",
        ),
        ("transactions", {**MONEY, "failed": {"t": "why"}}, {}, "transaction t was left: why"),
        ("contention", {"turns": TURNS}, {}, ""),
        ("contention", {"turns": [(9, 0.0, 0.5, 0.9), *TURNS]}, {}, "a ticket was served after a later ticket"),
        ("contention", {"turns": [(0, 0.0, 0.5, 1.5), *TURNS]}, {}, "two processes held the lock at once"),
    ],
)
def test_a_mistake_is_told(stage: str, found: dict[str, Any], counts: dict[str, float], problem: str) -> None:
    children: Any = Children(found, **{"done": 2, "begun": 2, "wrong": 0, **counts})
    assert stages.FUNCTIONS[stage](children).problems == ([problem] if problem else [])


def test_a_child_outside_a_turn_is_killed_if_none_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_CHANCE_S", 0.01)
    alone, chooser = SimpleNamespace(slot=1), SimpleNamespace(choice=lambda among: among[0])
    children: Any = Children({}, holds=0)
    assert stages._victim(children, [alone], chooser) is alone  # type: ignore[arg-type, list-item]


def test_problems_stand_on_the_page() -> None:
    """With the figures of their stage, and without any."""
    stage = {"name": "locks", "facts": {}, "problems": ["one\n  line", "two"]}
    assert page._details(stage) == ["", "## Locks", "", "* one line", "* two"]
    assert page._details({**stage, "facts": {"turns": 1}})[-3:] == ["", "* one line", "* two"]


# Children


class Process:
    """Has ended."""

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode = exitcode

    def join(self) -> None:
        pass


def crew_of(exitcode: int | None, *answers: Any) -> tuple[stages.Crew, stages.Child]:
    """Return a crew of one child that has sent these answers, and closed its pipe."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    for answer in answers:
        theirs.send(answer)
    theirs.close()
    child: Any = stages.Child(Process(exitcode), 0, ours)  # type: ignore[arg-type]
    made = stages.Crew(None, None, 1.0)  # type: ignore[arg-type]
    made._children.append(child)
    return made, child


@pytest.mark.parametrize(
    ("exitcode", "answers", "error", "why"),
    [
        (1, [(False, "ValueError: why")], stages.ChildFailed, "ValueError: why"),
        (-9, [], stages.ChildFailed, "exit code -9"),
        (work.EXIT_AT_CAP, [], stages.CapReached, "^$"),
    ],
)
def test_the_end_of_a_child_is_told(exitcode: int, answers: list[Any], error: type[Exception], why: str) -> None:
    """Who waits for its answer hears it, and so does who waits for something else."""
    for wait in (lambda made, child: made.result(child), lambda made, _: made.until(lambda: False)):
        with pytest.raises(error, match=why):
            wait(*crew_of(exitcode, *answers))


def test_a_stage_ends_at_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "PATIENCE_S", -1.0)
    with pytest.raises(stages.ChildFailed, match="has not ended within"):
        crew_of(None)[0].until(lambda: False)


def test_children_are_spawned_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert stages.context().get_start_method() == "spawn"


def test_there_is_room_for_so_many_processes() -> None:
    ledger = Ledger(stages.context(), 1.0)
    for _ in range(work.SLOTS):
        ledger.new_slot()
    with pytest.raises(RuntimeError, match=f"more than {work.SLOTS} processes"):
        ledger.new_slot()


def test_a_child_stops_before_it_exceeds_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before it sends the request, and the request is not counted as pending."""

    def stop(code: int) -> None:
        raise InterruptedError(f"with {code}")

    monkeypatch.setattr(work.os, "_exit", stop)
    ledger = Ledger(stages.context(), 1.0)
    request = SimpleNamespace(body=b"{}")
    with pytest.raises(InterruptedError, match=f"with {work.EXIT_AT_CAP}"):
        Meter(ledger, ledger.new_slot())._reserve(request, "before-send.dynamodb.PutItem")
    assert ledger.total("pending") == 0


# What a child tells


def test_a_check_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name and its error; the checks after it are made."""

    def check(_: Any) -> None:
        raise Failed("why")

    monkeypatch.setattr(work, "client_of", lambda *_, **__: None)
    monkeypatch.setattr(work, "checks_of", lambda module: {"good": lambda _: None, "bad": check})
    monkeypatch.setattr(work, "MODULES", [work])
    job: Any = SimpleNamespace(place=SimpleNamespace(table=str))
    assert work.contract(job) == {"checks": 2, "failures": {"bad": "Failed: why"}}


def test_a_change_that_was_refused_or_made_twice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form of a change is looked at by itself."""
    row = SimpleNamespace(n=0)

    class Rows:
        def __init__(self, _: str) -> None:
            row.n = 0

        def save(self) -> None:
            pass

        @staticmethod
        def get(_: str, **__: Any) -> Any:
            return row

    def twice(*_: Any) -> None:
        row.n += 2

    monkeypatch.setattr(work, "lost_responses", lambda *_, **__: multiprocessing.Lock())
    monkeypatch.setattr(work, "CHANGES", {"twice": twice, "lost": lost})
    job: Any = SimpleNamespace(models=SimpleNamespace(row=Rows), plan=SimpleNamespace(rounds=1))
    found = work.answers(job)
    assert [each.partition(", {")[0] for each in found["wrong"]] == ["twice", "lost", "lost"]
    assert "applied, and 2 changes were stored" in found["wrong"][0]
    assert "LockLost: why" in found["wrong"][1]


class Turns:
    """Stands for the job of a child that increments counters: what it adds to the ledger, until it has come so far."""

    def __init__(self, *tickets: int, loses: int | None = None) -> None:
        self.counts = dict.fromkeys(("holds", "begun", "done", "wrong"), 0.0)
        self.chooser = SimpleNamespace(randrange=lambda _: 0)
        self.plan = SimpleNamespace(turns=len(tickets))
        self.slot = 1
        self.models = SimpleNamespace(row=self)
        self._tickets, self._loses = iter(tickets), loses
        self._item = SimpleNamespace(ticket=0, n=0, changes={}, save=lambda: None)
        self._asked = 0

    def has_come_to(self, turns: int) -> bool:
        self._asked += 1
        return self._asked > turns

    def add(self, name: str, number: float = 1) -> None:
        self.counts[name] += number

    def of(self, name: str) -> float:
        return self.counts[name]

    @contextmanager
    def locked(self, _: str) -> Iterator[Any]:
        ticket = next(self._tickets)
        if ticket == self._loses:
            self._item.save = lost
        yield SimpleNamespace(ticket=ticket, item=self._item)


def lost(*_: Any) -> None:
    raise LockLost("why")


def test_a_ticket_that_comes_late_and_a_save_that_is_refused_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five tickets two come after a later one. The save in the last turn is refused, so that turn has no change."""
    monkeypatch.setattr(work, "_HOLD_S", 0.0)
    job: Any = Turns(1, 2, 2, 1, 5, loses=5)
    assert work.count(job) == {}
    assert job.counts == {"holds": 0, "begun": 4, "done": 4, "wrong": 2}
