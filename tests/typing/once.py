"""Jobs that run once in a period, as applications write them, with the type of every result."""

# PynamoDB's Model has a protocol called Meta, which no model's own Meta fulfils in full.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Literal
from zoneinfo import ZoneInfo

from typing_extensions import assert_type

from pynamo_locking import Lock, NamedLock
from pynamo_locking.recipes import OnceRun, RunRecord


class Locks(NamedLock):
    class Meta:
        table_name = "locks"


def jobs() -> None:
    with Locks.once("nightly-report", period=timedelta(days=1), zone="Europe/Zurich", at_least=600) as run:
        assert_type(run, OnceRun[Locks])
        assert_type(bool(run), bool)
        assert_type(run.status, Literal["due", "done", "too_soon", "busy"])
        if run:
            assert_type(run.lock, Lock[Locks])
            assert_type(run.ticket, int)
            assert_type(run.period_begins, datetime)
            run.discard()
        elif run.last is not None:
            assert_type(run.last, RunRecord)
            assert_type((run.last.ticket, run.last.owner), tuple[int, str])
            assert_type((run.last.period_ms, run.last.began_ms, run.last.ended_ms), tuple[int, int, int])
    assert_type(Locks.lock_state("nightly-report").success, RunRecord | None)
    with Locks.once("import", period=3600, since_success=True, wait=0, lease=20, on_lost=print):
        pass
    with Locks.once("import", period=3600, zone=timezone.utc), Locks.once("b", period=60, zone=ZoneInfo("UTC")):
        pass


@Locks.once("weekly", period=timedelta(days=7))
def weekly(recipient: str) -> int:
    return len(recipient)


async def tasks() -> None:
    assert_type(weekly("a@b"), int | None)
    async with Locks.once("nightly-report", period=timedelta(days=1)) as run:
        assert_type(run, OnceRun[Locks])


def mistakes() -> None:
    Locks.once("j")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Locks.once("j", period="1d")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Locks.once("j", period=1, wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
