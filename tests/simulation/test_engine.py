"""The machinery itself: choices, scheduler, strategies, and what each fault does at the network.

A simulator that quietly simulates less than it says finds nothing, and no developer notices.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking_testing._engine.choices import Listed, NotTheSame, Recorded, Seeded, every_branch, shrink
from pynamo_locking_testing._engine.scheduler import Process, Scheduler, Stuck
from pynamo_locking_testing._engine.strategies import STRATEGIES
from pynamo_locking_testing.clock import ClockView
from tests.simulation.explore import parsed, random_choices, run_seed, written
from tests.simulation.plans import Plan, random_plan
from tests.simulation.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking_testing._engine.choices import Choices

# Choices


def _walk(choices: Choices) -> list[int]:
    """Make choices of which the number depends on the choices before."""
    first = choices.pick(3, "x")
    return [first, *(choices.pick(2, "x") for _ in range(first))]


def test_every_branch_is_walked_once() -> None:
    """The enumeration yields each list of choices exactly once, whatever the tree looks like."""
    walked = [tuple(_walk(branch)) for branch in every_branch()]
    expected = [(first, *rest) for first in range(3) for rest in itertools.product((0, 1), repeat=first)]
    assert sorted(walked) == sorted(expected)
    assert len(walked) == len(set(walked)) == 7


def test_a_tree_without_choices_is_walked_once() -> None:
    """Nothing to choose is one run, not none and not endless."""
    assert sum(1 for _ in every_branch()) == 1


def test_a_recorded_list_gives_the_same_choices_again() -> None:
    """What was recorded is repeated by Listed; questions with one answer do not count."""
    recorded = Recorded(Seeded(random.Random(1), STRATEGIES["uniform"](random.Random(1)), {}))
    taken = [recorded.pick(n, "x") for n in (5, 1, 7, 3)]
    again = Recorded(Listed(recorded.taken))
    assert [again.pick(n, "x") for n in (5, 1, 7, 3)] == taken
    assert len(recorded.taken) == 3


def test_a_list_ends_dully() -> None:
    """After its end a list gives option 0, so that a cut list is a run, too."""
    listed = Listed([2])
    assert [listed.pick(3, "x"), listed.pick(3, "x")] == [2, 0]


def test_a_list_that_does_not_fit_is_not_the_same() -> None:
    """A choice that is no option is reported, not bent."""
    with pytest.raises(NotTheSame, match="choice 0"):
        Listed([4]).pick(3, "x")


def test_an_enumeration_notices_another_number_of_options() -> None:
    """A run that asks other questions than the last time along the same path is not deterministic."""
    branches = every_branch()
    next(branches).pick(2, "x")
    with pytest.raises(NotTheSame, match="had 2 options, and has 3 now"):
        next(branches).pick(3, "x")


def test_faults_are_as_rare_as_asked() -> None:
    """A rate of 0 never chooses a fault, a rate of 1 always."""
    chance = random.Random(7)
    for rate, expected in ((0.0, {0}), (1.0, {1, 2})):
        seeded = Seeded(chance, STRATEGIES["uniform"](chance), {"fault": rate})
        assert {seeded.pick(3, "fault") for _ in range(50)} == expected


def test_shrinking_keeps_failing_and_gets_duller() -> None:
    """The result fails as the list did, and nothing can be left out of it."""

    def fails(choices: Sequence[int]) -> bool:
        return len(choices) > 6 and choices[2] == 1 and choices[6] == 3

    assert shrink([1, 2, 1, 0, 4, 2, 3, 1, 1, 1, 5], fails) == [0, 0, 1, 0, 0, 0, 3]


def test_choices_are_written_and_read() -> None:
    """What a failing run prints is what the command line reads."""
    for choices in ([], [0], [3, 0, 12]):
        assert parsed(written(choices)) == choices


# Strategies


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_follows_from_its_seed_and_forgets_no_thread(name: str) -> None:
    """The same seed gives the same order; over many seeds, everyone is chosen at some time."""

    def order(seed: int) -> list[int]:
        strategy = STRATEGIES[name](random.Random(seed))
        return [strategy.choose(["a", "b", "c"]) for _ in range(40)]

    assert order(3) == order(3)
    assert {choice for seed in range(10) for choice in order(seed)} == {0, 1, 2}


def test_pct_keeps_to_its_priorities_but_for_a_few_changes() -> None:
    """The first one stays first: an actor can be left behind for long, which uniform choice hardly ever does."""
    strategy = STRATEGIES["pct"](random.Random(5))
    order = [strategy.choose(["a", "b", "c"]) for _ in range(60)]
    assert sum(1 for one, other in itertools.pairwise(order) if one != other) <= 3


# The scheduler


class _World:
    """A scheduler with two processes, and a log of what its actors do."""

    def __init__(self, choices: Any = None, *, preemptions: int | None = None, horizon: float = 1000.0) -> None:
        self.choices = Recorded(choices or Listed([]))
        self.scheduler = Scheduler(self.choices, preemptions, horizon, lambda: None, is_fine=False)
        self.log: list[str] = []
        self.processes = [Process(f"p{number}", ClockView(self.scheduler)) for number in range(2)]

    def spawn(self, name: str, target: Callable[[], object], process: int = 0) -> None:
        self.scheduler.spawn(self.processes[process], name, target)

    def says(self, name: str, times: int) -> Callable[[], None]:
        def target() -> None:
            for number in range(times):
                self.scheduler.hand_over(f"says {number}")
                self.log.append(f"{name}{number}")

        return target


def _orders(preemptions: int | None) -> Counter[tuple[str, ...]]:
    """Count the orders of two actors with two requests each, over all branches."""
    found = Counter[tuple[str, ...]]()
    for branch in every_branch():
        world = _World(branch, preemptions=preemptions)
        world.spawn("a", world.says("a", 2))
        world.spawn("b", world.says("b", 2), process=1)
        world.scheduler.run()
        found[tuple(world.log)] += 1
    return found


def test_one_runs_at_a_time_and_every_order_is_tried() -> None:
    """Two actors with two requests each can be interleaved in six ways; the enumeration finds just these."""
    assert [*_orders(None).values()] == [1] * 6


def _interruptions(order: tuple[str, ...]) -> int:
    """Count the changes from an actor that had not finished."""
    return sum(one[0] != other[0] and one[1] == "0" for one, other in itertools.pairwise(order))


def test_preemptions_are_bounded() -> None:
    """An actor that could go on is interrupted no more often than allowed, and as often as allowed."""
    for allowed in (0, 1, 2):
        assert max(map(_interruptions, _orders(allowed))) == allowed
    assert set(_orders(0)) < set(_orders(1)) < set(_orders(None))


def test_time_passes_only_when_no_thread_can_run() -> None:
    """A sleeper wakes exactly when it wanted to, and not while anyone has something to do."""
    world = _World()

    def sleeper() -> None:
        world.scheduler.block(5.0, "sleeps")
        world.log.append(f"awake at {world.scheduler.now:g}")

    world.spawn("sleeper", sleeper)
    world.spawn("b", world.says("b", 3), process=1)
    world.scheduler.run()
    assert world.log == ["b0", "b1", "b2", "awake at 5"]


def test_in_a_dead_process_nothing_is_cleaned_up() -> None:
    """After its death a process does nothing more to the world, not in `finally` either; others go on."""
    world = _World()

    def victim() -> None:
        try:
            world.scheduler.hand_over("dies")
            world.scheduler.kill(world.processes[0])
            world.scheduler.hand_over("is dead")
            world.log.append("lives")
        finally:
            world.scheduler.hand_over("cleans up")
            world.log.append("cleaned up")

    world.spawn("victim", victim)
    world.spawn("twin", world.says("twin", 3))
    world.spawn("other", world.says("other", 2), process=1)
    world.scheduler.run()
    assert world.log == ["other0", "other1"]


def test_a_paused_process_stands_still_as_a_whole() -> None:
    """While one process is paused, another one works, and time passes; all its own actors wait."""
    world = _World()

    def paused() -> None:
        world.scheduler.pause(9.0)
        world.log.append(f"back at {world.scheduler.now:g}")

    def works_on() -> None:
        world.scheduler.block(4.0, "works")
        world.log.append(f"worked at {world.scheduler.now:g}")

    world.spawn("twin", works_on)
    world.spawn("paused", paused)
    world.spawn("other", works_on, process=1)
    world.scheduler.run()
    assert world.log[0] == "worked at 4"
    assert sorted(world.log[1:]) == ["back at 9", "worked at 9"]


def test_threads_that_are_stuck_are_named() -> None:
    """A wait that nothing can end is an error that says who waits for what."""
    world = _World()
    world.spawn("a", lambda: world.scheduler.block(None, "waits for Godot"))
    with pytest.raises(Stuck, match=r"p0\.a waits for Godot"):
        world.scheduler.run()
    world.scheduler.end()


def test_a_run_without_end_is_cut_off() -> None:
    """An actor that only sleeps and sleeps is stopped at the horizon."""
    world = _World(horizon=50.0)

    def forever() -> None:
        while True:
            world.scheduler.block(1.0, "polls")

    world.spawn("a", forever)
    with pytest.raises(Stuck, match=r"not ended after 50 simulated seconds: p0\.a polls"):
        world.scheduler.run()
    world.scheduler.end()


def test_an_error_of_an_actor_ends_the_run() -> None:
    """What an actor raises is the result of the run, and no actor is left behind."""
    world = _World()
    world.spawn("a", lambda: 1 // 0)
    world.spawn("b", world.says("b", 5), process=1)
    with pytest.raises(ZeroDivisionError):
        world.scheduler.run()
    world.scheduler.end()
    assert world.scheduler.actors == []


def test_an_actor_begins_in_an_empty_context() -> None:
    """Context variables of one actor are not seen by another, nor by the test."""
    seen, variable = list[str](), ContextVar("variable", default="not set")
    world = _World()

    def target() -> None:
        seen.append(variable.get())
        variable.set("set")

    variable.set("set")
    for name in ("a", "b"):
        world.spawn(name, target)
    world.scheduler.run()
    assert seen == ["not set", "not set"]


def test_each_actor_has_its_own_event_loop() -> None:
    """An actor that stops in the middle of a task leaves its loop; another one runs a loop of its own meanwhile."""
    world, seen = _World(), list[bool]()

    async def stop() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        world.scheduler.block(1.0, "waits")
        seen.append(asyncio.get_running_loop() is loop and asyncio.current_task() is task)

    for name in ("a", "b"):
        world.spawn(name, lambda: asyncio.run(stop()))
    world.scheduler.run()
    assert seen == [True, True]


# Runs


def test_a_seed_gives_the_same_run_every_time() -> None:
    """A seed is enough to repeat a run: its plan, its choices, its trace."""
    once, again = (run_seed("embedded", 11, twice=False) for _ in range(2))
    assert (once.plan, once.choices, once.trace) == (again.plan, again.choices, again.trace)


def test_a_run_is_its_plan_and_its_choices() -> None:
    """The list that a failing run prints leads to the same trace, by way of text."""
    derived = random_plan("edit", 4)
    first = run(derived.plan, random_choices(derived), twice=False)
    again = run(Plan.from_json(derived.plan.to_json()), Listed(parsed(written(first.choices))), twice=False)
    assert again.trace == first.trace


def test_what_is_not_under_control_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that depends on anything but its choices differs from its repetition, and says so."""
    chance = random.Random(0)
    monkeypatch.setattr("pynamo_locking_testing._engine.runtime.SimulatedRuntime.jitter", lambda _: chance.random())
    with pytest.raises(NotTheSame):
        for seed in range(5):
            run_seed("embedded", seed)
