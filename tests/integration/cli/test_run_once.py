"""``pynamo-locking run --once-per``: a program that succeeds once in a period, in the words of a shell user."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import EndpointConnectionError

from pynamo_locking.cli import main
from pynamo_locking.cli import run as command
from pynamo_locking.cli.run import Turn
from tests.support.models import Locks
from tests.support.parties import held_elsewhere, shifted_clock
from tests.support.shell import running
from tests.support.wire import on
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.recipes import RunRecord
    from tests.engines.engine import Engine

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

DAILY = ("--lock", "job", "--once-per", "1d")
Ran = tuple[int, str, str]


@pytest.fixture
def run(memory: Engine, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command here; exit code, standard output and standard error, of the program as well."""
    return running(memory, capfd)


def last() -> RunRecord:
    """The last success, which there is."""
    found = Locks.lock_state("job").success
    assert found is not None
    return found


@pytest.mark.processes
def test_the_second_machine_does_not_run_it(run):
    """Exit code 0, since all is well: the job is done. It says who has done it, unless it is to be quiet."""
    show = 'echo "$PYNAMO_LOCKING_TICKET $PYNAMO_LOCKING_PERIOD"'
    daily = (*DAILY, "--zone", "Europe/Zurich")
    first = run(*daily, "--", "sh", "-c", show)
    ticket, period = first[1].split()
    again = run(*daily, "--", "echo", "never")
    ended = datetime.fromtimestamp(last().ended_ms / 1000, timezone.utc)
    at = ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    assert (first[0], first[2]) == (0, "")
    assert last().ticket == int(ticket)
    assert period.endswith(("T00:00:00+01:00", "T00:00:00+02:00"))
    assert again[:2] == (0, "")
    assert again[2] == (
        f"pynamo-locking: job is done for this period: {last().owner} (ticket {ticket}) has succeeded at {at}. "
        f"echo was not started.\n"
    )
    assert run(*daily, "--quiet", "--", "echo", "never") == (0, "", "")
    assert json.loads(run(*daily, "--json", "--quiet", "--", "echo", "never")[2])["status"] == "done"


@pytest.mark.processes
def test_what_a_script_reads(run):
    """One document on standard error, whether the program has run or not."""
    ran = json.loads(run(*DAILY, "--json", "--", "true")[2])
    done = json.loads(run(*DAILY, "--json", "--", "true")[2])
    noted = done["last_success"]

    assert (ran["status"], ran["has_run"], ran["counts"], ran["last_success"]) == ("due", True, True, None)
    assert (ran["exit_code"], ran["program_exit_code"]) == (0, 0)
    assert (done["status"], done["has_run"], done["counts"], done["exit_code"]) == ("done", False, False, 0)
    assert (done["name"], noted["ticket"]) == ("job", ran["ticket"])
    assert done["period_began_at"] <= noted["began_at"] <= noted["ended_at"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "code", "says"),
    [("exit 3", 3, "sh ended with exit code 3"), ("kill -9 $$", 137, "sh was killed by signal 9")],
)
def test_a_program_that_fails_does_not_count(run, script, code, says):
    """Its exit code is passed on, and the next machine runs it."""
    failed = run(*DAILY, "--", "sh", "-c", script)

    assert failed == (code, "", f"pynamo-locking: {says}, so this run does not count.\n")
    assert run(*DAILY, "--quiet", "--", "sh", "-c", script) == (code, "", "")
    assert json.loads(run(*DAILY, "--json", "--", "sh", "-c", script)[2])["counts"] is False
    assert run(*DAILY, "--", "echo", "now") == (0, "now\n", "")


@pytest.mark.parametrize("options", [DAILY, ("--lock", "job")])
def test_busy(run, options):
    """The lock is held elsewhere: exit code 75, or the one that was asked for; with or without a period."""
    with held_elsewhere(Locks.locked("job", owner="web-1:811")) as lock:
        code, out, err = run(*options, "--wait", "0", "--", sys.executable, "-V")
        quiet = run(*options, "--wait", "0", "--quiet", "--", sys.executable, "-V")
        chosen = run(*options, "--wait", "0", "--busy-exit", "0", "--quiet", "--", sys.executable, "-V")
        usual, error = (
            json.loads(run(*options, "--wait", "0", *more, "--json", "--", sys.executable, "-V")[2])["error"]
            for more in ((), ("--busy-exit", "9"))
        )

    assert (code, out) == (75, "")
    assert err == (
        f"pynamo-locking: {sys.executable} was not started: job is running elsewhere. web-1:811 (ticket {lock.ticket}) "
        f"has held the lock for 0 s.\n"
    )
    assert (quiet, chosen) == ((75, "", ""), (0, "", ""))
    assert [(each["kind"], each["exit_code"]) for each in (usual, error)] == [("not_obtained", 75), ("not_obtained", 9)]
    assert "web-1:811" in usual["message"]


@pytest.mark.parametrize(
    ("period", "terms", "wait"),
    [({"period": 3600}, {}, 3600), ({"period": 3600}, {"wait": 5}, 5), (None, {"wait": None}, 60)],
)
def test_how_long_it_waits(memory, period, terms, wait):
    """For one period, so that a machine that dies or fails is taken over; for a minute without a period."""
    memory.bind(Locks)

    assert Turn(Locks, "job", terms, period).lock._handle.options.wait == wait


@pytest.mark.processes
def test_too_soon_and_since_success(run):
    """A run has just succeeded: it is too soon for the next period, and not yet a period ago."""
    hourly = ("--lock", "job", "--once-per", "1s")
    run(*hourly, "--", "true")
    _, out, err = run("--lock", "job", "--once-per", "1h", "--since-success", "--", "echo", "never")
    assert (out, "is done for this period" in err) == ("", True)
    while True:
        code, out, err = run(*hourly, "--at-least", "1h", "--", "echo", "never")
        assert (code, out) == (0, "")
        if "it is too soon for job: the last run that has succeeded, of" in err:
            break


@pytest.mark.processes
def test_a_lost_lock_does_not_count(run, monkeypatch):
    """The program has ended with 0, and may not have run alone: 70 says so."""

    def break_it(lock: Any, child: Any, *_: Any) -> None:
        assert child.exit_code == 0
        assert Locks.break_lock("job", ticket=lock.ticket)

    monkeypatch.setattr(command, "_watch", break_it)
    code, _, err = run(*DAILY, "--", sys.executable)

    assert code == 70
    assert "the lock job had been lost" in err
    assert err.endswith("This run does not count.\n")
    assert Locks.lock_state("job").success is None


@pytest.mark.processes
def test_a_program_that_was_ended_does_not_count(run, tmp_path):
    """It stops half-way with 0 when it is told to, as many do: the next machine runs it."""
    mark = tmp_path / "up"
    polite = f"trap 'exit 0' TERM; touch {mark}; while :; do sleep 0.02; done"

    def let_the_lease_run_out() -> None:
        until(mark.exists, "the program")
        clock.shift = 31

    def is_renewal(body: dict[str, Any]) -> bool:
        return ":beat" in body.get("ExpressionAttributeValues", {})

    with shifted_clock() as clock, on("UpdateItem", times=99, where=is_renewal).lose_request():
        meanwhile = threading.Thread(target=let_the_lease_run_out)
        meanwhile.start()
        code, _, err = run(*DAILY, "--lease", "60", "--grace", "30", "--json", "--", "sh", "-c", polite)
        meanwhile.join()
    error = json.loads(err.splitlines()[-1])["error"]

    assert (code, error["program_exit_code"], error["was_ended"]) == (70, 0, True)
    assert Locks.lock_state("job").success is None, "a program that was ended before it was done counts as a success"
    assert run(*DAILY, "--", "echo", "now") == (0, "now\n", "")


@pytest.mark.processes
def test_no_answer_to_the_note(run):
    """The program has succeeded, and its exit code stays; that it may run again is said."""
    note = on("UpdateItem", times=99, where=lambda body: ":success" in body["ExpressionAttributeValues"])
    with note.lose_request():
        code, _, err = run(*DAILY, "--", sys.executable)

    assert code == 0
    assert "the job runs again in this period" in err


def test_no_answer_at_all(run):
    """Is not the same as a lock that another holder has."""
    with on().answer(EndpointConnectionError, always=True):
        code, _, err = run("--lock", "job", "--wait", "0", "--json", "--", sys.executable)
    error = json.loads(err.splitlines()[-1])["error"]

    assert (code, error["kind"]) == (69, "unreachable")


@pytest.mark.processes
def test_in_lists(run, capfd):
    """The last success stands beside the lock."""
    run(*DAILY, "--owner", "web-1:811", "--", "true")
    assert main(["locks", "list", "--all", "--table", Locks.Meta.table_name]) == 0
    listed = capfd.readouterr().out
    assert main(["locks", "show", "job", "--table", Locks.Meta.table_name, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)

    assert "last success" in listed
    assert "by web-1:811" in listed
    assert shown["last_success"]["ticket"] == last().ticket
    assert shown["is_free"] is True
