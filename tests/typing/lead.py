"""`NamedLock.lead` as users write it. Never run, only type-checked."""

from __future__ import annotations

from datetime import timedelta

from pynamodb.expressions.condition import Condition
from typing_extensions import assert_type

from pynamo_locking import NamedLock, TransactWrite
from pynamo_locking.recipes import LeaderElection, LeaderTerm


class Locks(NamedLock):
    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride]
        table_name = "locks"


def work(term: LeaderTerm) -> None:
    assert term.is_leader
    assert_type(term.held_condition(), Condition)
    with TransactWrite() as transaction:
        term.add_check_to(transaction)
    assert_type(term.ended.wait(1), bool)
    term.resign()


def lead() -> tuple[int, str] | None:
    with Locks.lead("scheduler", on_elected=work, on_lost=print, lease=30, max_hold=timedelta(hours=1)) as campaign:
        assert_type(campaign, LeaderElection)
        assert_type(campaign.is_leader, bool)
        assert_type(campaign.term, "LeaderTerm | None")
        while term := campaign.elected(timeout=timedelta(seconds=1)):
            assert_type(term.is_leader, bool)
            return term.ticket, term.reason
    campaign.start()
    campaign.stop(wait=False)
    return None


async def alead() -> None:
    async with Locks.lead("scheduler", owner="me") as campaign:
        assert_type(campaign, LeaderElection)
        assert_type(await campaign.aelected(), "LeaderTerm | None")


def refused() -> None:
    Locks.lead("scheduler", max_hold="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Locks.lead("scheduler", on_elected=lambda: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
