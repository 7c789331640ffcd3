"""`simulate` finds what is wrong with people's handlers, and lets right ones pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking_testing import Found, simulate
from tests.simulation import handlers
from tests.simulation.handlers import Account, Calls, Job, Locks, Message, PlainAccount, Report, User

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing import SimulatedProcess, World


def withdrawals(model: Any, handler: Callable[..., Any]) -> Callable[[World], None]:
    """Two processes withdraw; one that returned has done so, of one that did not nobody knows."""

    def describe(world: World) -> None:
        Locks.create_table()
        model.create_table()
        model("a-1", balance=100).save()
        first, second = world.process(handler, 30), world.process(handler, 20)

        def has_each_withdrawal() -> None:
            possible = {100 - one - other for one in _paid(first, 30) for other in _paid(second, 20)}
            assert model.get("a-1").balance in possible

        world.finally_(has_each_withdrawal)

    return describe


def _paid(process: SimulatedProcess, amount: int) -> set[int]:
    return {amount} if process.has_returned else {0, amount}


def redelivery(handler: Callable[..., Any]) -> Callable[[World], None]:
    def describe(world: World) -> None:
        for model in (Account, Message, Calls):
            model.create_table()
        Account("a-1", balance=100).save()
        both = [world.process(handler, "m-1", 30) for _ in range(2)]
        world.always(lambda: Account.get("a-1").balance >= 70)
        world.finally_(lambda: Account.get("a-1").balance == 70 or not any(each.has_returned for each in both))

    return describe


def registrations(handler: Callable[..., Any]) -> Callable[[World], None]:
    def describe(world: World) -> None:
        User.create_table()
        both = [world.process(handler, "ann@example.com", name) for name in ("Ann", "Anna")]
        world.finally_(lambda: [each.result for each in both].count(None) >= 1)

    return describe


def nights(handler: Callable[..., Any]) -> Callable[[World], None]:
    def describe(world: World) -> None:
        for model in (Job, Report, Locks):
            model.create_table()
        Job("report").save()
        both = [world.process(handler) for _ in range(2)]
        world.always(lambda: len(list(Report.scan())) <= 1)
        world.finally_(lambda: len(list(Report.scan())) == 1 or not any(each.has_returned for each in both))

    return describe


WRONG = {
    "lost update": withdrawals(PlainAccount, handlers.withdraw_unguarded),
    "double charge on redelivery": redelivery(handlers.charge_and_mark),
    "check, then insert": registrations(handlers.register_after_check),
    "lock without fencing": withdrawals(PlainAccount, handlers.withdraw_under_a_lock_elsewhere),
    "cron twice": nights(handlers.nightly_by_date),
}
RIGHT = {
    "lost update": withdrawals(Account, handlers.withdraw_versioned),
    "double charge on redelivery": redelivery(handlers.charge_once),
    "check, then insert": registrations(handlers.register_if_new),
    "lock without fencing": withdrawals(Account, handlers.withdraw_under_its_lock),
    "cron twice": nights(handlers.nightly_once),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_handlers_are_found_and_told_in_few_lines(name: str) -> None:
    with pytest.raises(Found) as found:
        simulate()(_test(WRONG[name]))()
    message = str(found.value)
    assert len(message.splitlines()) <= 15
    assert "process 1 " in message
    assert "process 2 " in message
    with pytest.raises(Found) as again:
        simulate(seed=found.value.seed)(_test(WRONG[name]))()
    assert str(again.value) == message


@pytest.mark.parametrize(("name", "seed"), [("double charge on redelivery", 16), ("lock without fencing", 33)])
def test_the_run_that_is_told_differs_in_as_few_choices_as_possible(name: str, seed: int) -> None:
    """Choices that only others made necessary go with them."""
    with pytest.raises(Found, match=r"differs from one process after the other in 1 choice, with 1 fault\."):
        simulate(seed=seed)(_test(WRONG[name]))()


@pytest.mark.parametrize("runs", [20, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RIGHT)
def test_right_handlers_pass(name: str, runs: int) -> None:
    simulate(runs=runs)(_test(RIGHT[name]))()


def _test(describe: Callable[[World], None]) -> Callable[..., None]:
    def test(world: World) -> None:
        describe(world)

    return test
