"""`simulate` finds what is wrong with people's handlers, and lets right ones pass."""

from __future__ import annotations

import pytest

from pynamo_locking_simulator import Found, simulate
from tests.simulation.handlers import (
    Account,
    Calls,
    Job,
    Locks,
    Message,
    PlainAccount,
    Report,
    User,
    charge_and_mark,
    charge_once,
    nightly_by_date,
    nightly_once,
    register_after_check,
    register_if_new,
    withdraw_under_a_lock_elsewhere,
    withdraw_under_its_lock,
    withdraw_unguarded,
    withdraw_versioned,
)


def withdrawals(model, handler):
    """Two processes withdraw; one that returned has done so, of one that did not nobody knows."""

    def describe(world):
        Locks.create_table()
        model.create_table()
        model("a-1", balance=100).save()
        first, second = world.process(handler, 30), world.process(handler, 20)

        def has_each_withdrawal():
            possible = {100 - one - other for one in _paid(first, 30) for other in _paid(second, 20)}
            assert model.get("a-1").balance in possible

        world.finally_(has_each_withdrawal)

    return describe


def _paid(process, amount):
    return {amount} if process.has_returned else {0, amount}


def redelivery(handler):
    def describe(world):
        for model in (Account, Message, Calls):
            model.create_table()
        Account("a-1", balance=100).save()
        for _ in range(2):
            world.process(handler, "m-1", 30)
        world.always(lambda: Account.get("a-1").balance >= 70)

    return describe


def registrations(handler):
    def describe(world):
        User.create_table()
        both = [world.process(handler, "ann@example.com", name) for name in ("Ann", "Anna")]
        world.finally_(lambda: [each.result for each in both].count(None) >= 1)

    return describe


def nights(handler):
    def describe(world):
        for model in (Job, Report, Locks):
            model.create_table()
        Job("report").save()
        for _ in range(2):
            world.process(handler)
        world.always(lambda: len(list(Report.scan())) <= 1)

    return describe


WRONG = {
    "lost update": withdrawals(PlainAccount, withdraw_unguarded),
    "double charge on redelivery": redelivery(charge_and_mark),
    "check, then insert": registrations(register_after_check),
    "lock without fencing": withdrawals(PlainAccount, withdraw_under_a_lock_elsewhere),
    "cron twice": nights(nightly_by_date),
}
RIGHT = {
    "lost update": withdrawals(Account, withdraw_versioned),
    "double charge on redelivery": redelivery(charge_once),
    "check, then insert": registrations(register_if_new),
    "lock without fencing": withdrawals(Account, withdraw_under_its_lock),
    "cron twice": nights(nightly_once),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_handlers_are_found_and_told_in_few_lines(name):
    with pytest.raises(Found) as found:
        simulate()(WRONG[name])()
    assert len(str(found.value).splitlines()) <= 15
    with pytest.raises(Found) as again:
        simulate(seed=found.value.seed)(WRONG[name])()
    assert str(again.value) == str(found.value)
    print(found.value)


@pytest.mark.parametrize("name", RIGHT)
def test_right_handlers_pass(name):
    simulate(runs=500)(RIGHT[name])()
