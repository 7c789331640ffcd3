"""Why a ticket lock takes its number and its place in one write.

The scheme as published (Distributed Locking in DynamoDB, 2020) takes a number in one request, writes the queue row in
a second, and looks who is first in a third. This is a model of it, small enough to try every order of its requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = tuple[str, "World"]


@dataclass(frozen=True)
class World:
    """The next ticket, the rows of the queue, and for each process its ticket and what it has done."""

    processes: tuple[tuple[str, int], ...]
    rows: frozenset[int] = frozenset()
    next_ticket: int = 1

    def after(self, who: int, state: str, ticket: int, **changes: object) -> World:
        processes = (*self.processes[:who], (state, ticket), *self.processes[who + 1 :])
        return replace(self, processes=processes, **changes)


def published(world: World, who: int) -> Iterator[Step]:
    """The next request of a process, in the published scheme."""
    state, ticket = world.processes[who]
    if state == "new":
        ticket = world.next_ticket
        yield f"takes ticket {ticket}", world.after(who, "numbered", ticket, next_ticket=ticket + 1)
    if state == "numbered":
        yield f"writes row {ticket}", world.after(who, "queued", ticket, rows=world.rows | {ticket})
    yield from look_and_leave(world, who)


def one_write(world: World, who: int) -> Iterator[Step]:
    """The next request of a process here: number and place are one atomic write."""
    if world.processes[who][0] == "new":
        ticket = world.next_ticket
        changes = {"next_ticket": ticket + 1, "rows": world.rows | {ticket}}
        yield f"enters with ticket {ticket}", world.after(who, "queued", ticket, **changes)
    yield from look_and_leave(world, who)


def look_and_leave(world: World, who: int) -> Iterator[Step]:
    state, ticket = world.processes[who]
    if state == "queued" and ticket == min(world.rows):
        yield "sees itself first, enters", world.after(who, "inside", ticket)
    if state == "inside":
        yield "leaves", world.after(who, "gone", ticket, rows=world.rows - {ticket})


def schedules_with_two_inside(scheme: Callable[[World, int], Iterator[Step]], processes: int) -> list[list[str]]:
    """Try every order of requests, shortest first; return all shortest ones that let two processes in."""
    start = World((("new", 0),) * processes)
    reached, found, ahead = {start: 0}, [], deque([(start, [])])
    while ahead:
        world, done = ahead.popleft()
        if [state for state, _ in world.processes].count("inside") > 1:
            found.append(done)
            continue
        for who in range(processes):
            for what, then in scheme(world, who):
                if reached.setdefault(then, len(done) + 1) == len(done) + 1:
                    ahead.append((then, [*done, f"{'ABCD'[who]} {what}"]))
    return [schedule for schedule in found if len(schedule) == len(found[0])]


def test_the_published_scheme_lets_two_processes_in() -> None:
    """Six requests are enough, and with the roles exchanged there is no other schedule as short."""
    first, second = schedules_with_two_inside(published, 2)

    assert first == [
        "A takes ticket 1",
        "B takes ticket 2",
        "B writes row 2",
        "B sees itself first, enters",
        "A writes row 1",
        "A sees itself first, enters",
    ]
    assert second == [step.translate({65: "B", 66: "A"}) for step in first]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_number_and_place_in_one_write_let_only_one_in(processes: int) -> None:
    """No order of the requests of up to four processes lets two of them in."""
    assert schedules_with_two_inside(one_write, processes) == []
