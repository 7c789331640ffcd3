"""``certify``: it finds mistakes, stops at its cap, and leaves nothing, also after it was killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.client import BaseClient

from certify import STAGES, Course, Place, Plan, Price, Tables, stages, work
from certify.plan import ACCOUNTS
from certify.tables import KINDS
from certify.work import Job, Ledger, Meter
from pynamo_locking import TransactionTable
from pynamo_locking.cli.terminal import Exit
from tests.engines.engine import DUMMY_ENVIRONMENT, running
from tests.support import certify_mistakes
from tests.support.certify_mistakes import Quick
from tests.support.crew import ROOT
from tests.support.shell import Shell, prepared
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from certify import Report
    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

pytestmark = [pytest.mark.waits, pytest.mark.processes]

REAL: Final = ["dynoxide", "dynamodb-local"]
PREFIX: Final = "certify-test-"
#: `make simulate` runs all stages, with more of everything.
SCALE: Final = os.environ.get("CERTIFY_SCALE", "0.03")
CHOSEN: Final = list(STAGES) if "CERTIFY_SCALE" in os.environ else ["locks", "answers", "contention"]


#: In `make test` one engine is enough.
ENGINES: Final = REAL if "CERTIFY_SCALE" in os.environ else REAL[:1]


@pytest.fixture(params=ENGINES)
def certified(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that is certified."""
    with running(request.param, servers) as engine:
        yield engine


def tables(engine: Engine) -> list[str]:
    return [name for name in engine.client().list_tables()["TableNames"] if name.startswith(PREFIX)]


def started(engine: Engine, folder: Path) -> subprocess.Popen[str]:
    only = [word for stage in CHOSEN for word in ("--only", stage)]
    where = ["--prefix", PREFIX, "--endpoint", str(engine.host), "--region", engine.region]
    command = [sys.executable, "-m", "certify", *where, "--scale", SCALE, *only]
    return subprocess.Popen(
        [*command, "--out", str(folder), "--yes", "--json"],
        cwd=ROOT,
        env={**os.environ, **DUMMY_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_reached(process: subprocess.Popen[str], stage: str) -> bool:
    assert process.stderr is not None
    return any(f'"{stage}: ' in line for line in iter(process.stderr.readline, ""))


def run_in_process(engine: Engine, plan: Plan, cap: float = 1e6, **functions: Any) -> Report:
    course = Course(Place(PREFIX, engine.region, engine.host), plan, cap, Price(), lambda _: None)
    return course.run({**stages.FUNCTIONS, **functions})


@pytest.mark.timeout(900)
def test_twice_with_a_kill_in_between(certified: Engine, tmp_path: Path) -> None:
    """A run that is killed leaves its tables; the next one removes them, says so, and writes the page."""
    with started(certified, tmp_path) as first:
        assert is_reached(first, "locks")
        until(lambda: len(tables(certified)) == len(KINDS))
        first.kill()
        assert first.stderr is not None
        first.stderr.read()  # ends when the last child process has
    assert first.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []

    with started(certified, tmp_path) as second:
        out, err = second.communicate()

    document = json.loads(out)
    assert second.returncode == Exit.OK, (document["stages"], err)
    assert f"removed what an earlier run has left: {PREFIX}certify-contract" in err
    assert tables(certified) == []
    assert [stage["result"] for stage in document["stages"]] == ["passed"] * len(CHOSEN)
    page, facts = sorted(tmp_path.iterdir(), reverse=True)
    assert json.loads(facts.read_text()) == document
    assert all(stage["about"] in page.read_text() for stage in document["stages"])
    estimated, used = document["cost"]["estimated"], document["cost"]["used"]
    assert estimated / 4 < used < 2 * estimated, "the estimate is near the units that DynamoDB reports"


@pytest.mark.parametrize("number", [signal.SIGTERM] if len(ENGINES) == 1 else [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_the_tables(dynoxide: Engine, tmp_path: Path, number: int) -> None:
    """SIGTERM ends a run as it ends any command, and leaves no table. So does Ctrl-C, in `make simulate`."""
    with started(dynoxide, tmp_path) as process:
        assert is_reached(process, "locks")
        process.send_signal(number)
        process.communicate()
    assert process.returncode == Exit.SIGNALLED + number
    assert tables(dynoxide) == []


class Longer(Quick):
    """Turns that need more units than the cap, however few writes they take: callers in line share some."""

    turns = 600


def test_the_cap(dynoxide: Engine) -> None:
    """A run that would use more stops before, removes its tables, and says which stages were not run."""
    report = run_in_process(dynoxide, Longer(stages=("locks", "answers")), cap=300)
    assert [stage.result for stage in report.stages] == ["stopped at the cap", "not run"]
    assert report.is_capped
    assert 100 < sum(report.used.values()) <= 300
    assert tables(dynoxide) == []


MISTAKES: Final = {
    "contract": (certify_mistakes.contract_without_images, "refused_update_brings_the_old_image: Failed"),
    "locks": (certify_mistakes.count_without_lock, "changes are stored"),
    "answers": (certify_mistakes.answers_by_retrying, "applied, and 2 changes were stored"),
    "transactions": (certify_mistakes.transfer_in_two_writes, "snapshots have another sum than 2000"),
    "contention": (certify_mistakes.contend_without_lock, "a ticket was served after a later ticket"),
}


def test_each_stage_finds_a_mistake(dynoxide: Engine) -> None:
    """With work that has a mistake, each stage fails, and says why; the stages after it are run."""

    def with_mistake(name: str) -> Any:
        return lambda crew: getattr(stages, name)(crew, MISTAKES[name][0])

    report = run_in_process(dynoxide, Quick(stages=tuple(MISTAKES)), **{name: with_mistake(name) for name in MISTAKES})
    assert {stage.name: stage.result for stage in report.stages} == dict.fromkeys(MISTAKES, "failed")
    for stage in report.stages:
        assert any(MISTAKES[stage.name][1] in problem for problem in stage.problems), stage.problems
    assert tables(dynoxide) == []


# What child processes do, in this one


POLICY: Final = ROOT / "docs/how-to/certify.md"
#: What an action of a transaction needs.
ACTIONS: Final = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "Get": "GetItem"}


def needed(operation: str, body: dict[str, Any]) -> set[str]:
    """The permissions that a request needs."""
    kinds = {ACTIONS.get(kind, "ConditionCheckItem") for each in body.get("TransactItems", ()) for kind in each}
    verbs = {f"PartiQL{each['Statement'].split()[0].capitalize()}" for each in body.get("Statements", ())}
    return kinds | verbs or {operation}


def test_all_work_is_metered_and_permitted(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is counted, with the units that DynamoDB reports; and the policy in the docs permits it."""
    place, ledger = Place(PREFIX, dynoxide.region, dynoxide.host), Ledger(stages.context(), 1e6)
    client: Any = BaseClient
    original, permissions, reported = client._make_api_call, set[str](), list[float]()

    def call(made: Any, operation: str, arguments: dict[str, Any]) -> Any:
        permissions.update(needed(operation, arguments))
        answer = original(made, operation, arguments)
        capacity = answer.get("ConsumedCapacity", [])
        reported.extend(each["CapacityUnits"] for each in (capacity if isinstance(capacity, list) else [capacity]))
        return answer

    monkeypatch.setattr(client, "_make_api_call", call)
    monkeypatch.setattr(work, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))
    job = Job(place, Quick(), ledger, ledger.new_slot(), 0)
    Meter(ledger, job.slot).install()
    tables = Tables(place)
    tables.create()
    try:
        for do in (work.open_counters, work.count, work.latencies, work.open_accounts):
            do(job)
        job.add("done", -job.of("done"))
        tickets = [ticket for ticket, *_ in work.contend(job)["turns"]]
        assert len(tickets) == job.plan.contended
        assert tickets == sorted(tickets)
        job.add("done", -job.of("done"))
        job.add("looks", Quick.snapshots)
        work.transfer(job)
        found = {do.__name__: do(job) for do in (work.counted, work.transferred, work.snapshots, work.answers)}
        asked = work.contract(job)
    finally:
        tables.remove()

    assert found["counted"]["sum"] == sum(found["counted"]["changes"].values()) == Quick.turns
    assert found["snapshots"] == {"sums": [ACCOUNTS * work.BALANCE] * Quick.snapshots}
    assert found["transferred"]["sum"] == ACCOUNTS * work.BALANCE
    assert found["answers"]["wrong"] == []
    assert (asked["checks"], asked["failures"]) == (52, {})
    assert ledger.total("reads", "writes") == sum(reported) > 1_000
    assert ledger.total("pending") == 0 < ledger.total("unreported") < ledger.total("requests")
    policy = set(re.findall(r"dynamodb:(\w+)", POLICY.read_text()))
    assert permissions <= policy
    assert policy - permissions == {"PartiQLDelete"}, "what is left by a killed process may need it"


def test_a_child_tells_what_it_found_or_why_it_failed(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error ends the child with 1, and the parent hears where it came from."""
    monkeypatch.setattr(BaseClient, "_make_api_call", BaseClient._make_api_call)  # which a child replaces
    monkeypatch.setattr(stages.signal, "signal", lambda *_: None)
    ledger = Ledger(stages.context(), 1e6)
    job = Job(Place(PREFIX, dynoxide.region, dynoxide.host), Quick(), ledger, ledger.new_slot(), 0)

    def fail(_: Job) -> dict[str, Any]:
        raise ValueError("why")

    ours, theirs = multiprocessing.Pipe()
    stages._live(lambda _: {"done": 1}, job, theirs)
    assert ours.recv() == (True, {"done": 1})
    with pytest.raises(SystemExit, match="1"):
        stages._live(fail, job, theirs)
    is_well, why = ours.recv()
    assert not is_well
    assert re.fullmatch(r"ValueError: why \(test_certify\.py:\d+\)", why)


def test_the_outcome_of_transfers_that_nothing_can_complete(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that stay pending although no process is left are told; so is what a sweep could not complete."""
    ledger = Ledger(stages.context(), 1e6)
    job = Job(Place(PREFIX, dynoxide.region, dynoxide.host), Quick(), ledger, ledger.new_slot(), 0)
    monkeypatch.setattr(work, "time", SimpleNamespace(**{**vars(time), "sleep": lambda _: None}))
    monkeypatch.setattr(work, "_read", lambda *_: {"sum": 0})
    for pending, failed in ((1, {"some": "still pending, although no process is left"}), (0, {"t": "why"})):
        report = SimpleNamespace(finished=1, aborted=2, failed={"t": "why"}, pending=pending)
        monkeypatch.setattr(TransactionTable, "sweep", lambda report=report: report)
        assert work.transferred(job)["failed"] == failed


# The command, in this process


@pytest.fixture
def shell(dynoxide: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return prepared(dynoxide, capsys, monkeypatch)


def test_a_table_of_others_is_left_alone(dynoxide: Engine, shell: Shell) -> None:
    """A table with the name of one of ours, which lacks the mark, ends the command before it changes anything."""
    client, name = dynoxide.client(), f"{PREFIX}certify-locks"
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    try:
        for words in (["--remove"], ["--yes", "--only", "latencies"]):
            error = shell.error("certify", "--prefix", PREFIX, *words)
            assert (error["kind"], error["exit_code"]) == ("foreign_table", Exit.CONFIGURATION)
            assert tables(dynoxide) == [name]
    finally:
        client.delete_table(TableName=name)


def test_all_stages_and_the_page(dynoxide: Engine, shell: Shell, tmp_path: Path) -> None:
    """What is printed is what is written, and it has a row for each stage and for each operation that was timed."""
    words = ("--prefix", PREFIX, "--scale", "0.01", "--seed", "s", "--out", str(tmp_path), "--yes")
    code, out, err = shell.run("certify", *words)
    assert code == Exit.OK, (out, err)
    page, facts = sorted(tmp_path.iterdir(), reverse=True)
    document = json.loads(facts.read_text())
    assert page.read_text().strip() in out
    assert [stage["result"] for stage in document["stages"]] == ["passed"] * len(STAGES)
    latencies = document["stages"][-1]["facts"]
    assert latencies
    assert all(f"{stage['about']}" in out for stage in document["stages"])
    assert f"written: {page}" in err
    assert shell.run("certify", "--prefix", PREFIX, "--remove") == (0, "There was nothing to remove.\n", "")
    assert tables(dynoxide) == []


def test_the_estimate_and_nothing_else(dynoxide: Engine, shell: Shell) -> None:
    """A dry run says what a run would do and cost, stage by stage; it makes no request."""
    all_of_it = shell.answer("certify", "--prefix", PREFIX, "--dry-run")
    one = shell.answer("certify", "--prefix", PREFIX, "--dry-run", "--only", "answers", "--write-price", "1")
    assert all_of_it["tables"] == [f"{PREFIX}certify-{kind}" for kind in KINDS]
    assert 0 < one["estimated_writes"] < all_of_it["estimated_writes"]
    assert 0 < all_of_it["estimated_cost"] < all_of_it["max_cost"] == 1.875
    assert one["max_cost"] == 3
    assert tables(dynoxide) == []


@pytest.mark.parametrize(
    "words", [["--only", "other"], ["--scale", "0"], ["--scale", "nan"], ["--prefix", ""], []], ids=str
)
def test_what_cannot_work_is_refused(shell: Shell, words: list[str]) -> None:
    """Before any request. Without --yes, and with no user to ask, nothing is done."""
    error = shell.error("certify", "--prefix", PREFIX, *words)
    assert error["kind"] == "usage"
