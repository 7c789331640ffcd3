"""The stages of a run, and the processes that make it."""

from __future__ import annotations

import importlib.metadata
import logging
import multiprocessing
import os
import platform
import random
import signal
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from certify import work
from certify.plan import ACCOUNTS, STAGES, Units
from certify.tables import Tables
from certify.work import EXIT_AT_CAP, Job, Ledger, Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from certify.plan import Place, Plan, Price


# The child processes of a run: started, killed and awaited.


if TYPE_CHECKING:
    Work = Callable[[Job], dict[str, Any]]

#: A child that does not end by then hangs: no stage takes so long.
PATIENCE_S: Final = 3600.0
_POLL_S: Final = 0.005


class CapReached(Exception):  # noqa: N818 - it is no error
    """A child would have used more units than the cap allows."""


class ChildFailed(Exception):  # noqa: N818 - it is an answer
    """A child has ended with an error."""


class Child(NamedTuple):
    """One child process."""

    process: BaseProcess
    slot: int
    pipe: Connection


def context() -> ForkServerContext | SpawnContext:
    """Return how children are started: forked from a process that has imported everything, where there is fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([__name__])
    return made


class Crew:
    """The children of a run.

    Args:
        place: where the tables are.
        plan: what they do.
        cap: on the units that all of them use together.
    """

    def __init__(self, place: Place, plan: Plan, cap: float) -> None:
        self._place = place
        self.plan = plan
        self._context = context()
        self.ledger = Ledger(self._context, cap)
        self._children: list[Child] = []
        self.first = 0
        self._give_up = time.monotonic() + PATIENCE_S

    def begin_stage(self) -> None:
        """Let children that are started from now on belong to a new stage."""
        self.close()
        self.first = self.ledger.new_slot()
        self._give_up = time.monotonic() + PATIENCE_S

    def start(self, work: Work) -> Child:
        """Start a child that does this."""
        slot = self.ledger.new_slot()
        ours, theirs = self._context.Pipe(duplex=False)
        job = Job(self._place, self.plan, self.ledger, slot, self.first)
        process = self._context.Process(target=_live, args=(work, job, theirs), daemon=True)
        process.start()
        theirs.close()
        child = Child(process, slot, ours)
        self._children.append(child)
        return child

    def kill(self, child: Child) -> bool:
        """SIGKILL a child; tell whether it was in the middle of a turn."""
        child.process.kill()
        child.process.join()
        self._children.remove(child)
        return self.ledger.of(child.slot, "holds") > 0

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait while the children work.

        Raises:
            CapReached: a child has stopped at the cap.
            ChildFailed: a child has ended with an error.
        """
        while not is_so():
            self._check()
            time.sleep(_POLL_S)

    def _check(self, but: Child | None = None) -> None:
        """Raise what has ended a child; its answer, if it has one, may wait."""
        for child in self._children:
            if child is not but and child.process.exitcode not in (None, 0):
                self.result(child)
        if time.monotonic() > self._give_up:
            raise ChildFailed(f"the stage has not ended within {PATIENCE_S:.0f} s")

    def result(self, child: Child) -> dict[str, Any]:
        """Wait for the end of a child, and return what it has found.

        Raises:
            CapReached, ChildFailed: as for `until`.
        """
        while not child.pipe.poll(_POLL_S):  # also at its end
            self._check(but=child)
        try:
            is_well, found = child.pipe.recv()
        except EOFError:
            child.process.join()
            if child.process.exitcode == EXIT_AT_CAP:
                raise CapReached from None
            raise ChildFailed(f"a child process has ended with exit code {child.process.exitcode}") from None
        if not is_well:
            raise ChildFailed(found)
        answer: dict[str, Any] = found
        return answer

    def run(self, work: Work) -> dict[str, Any]:
        """Let one child do this, and return what it has found."""
        return self.result(self.start(work))

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join()
            child.pipe.close()
        self._children.clear()


# In the child


def _live(work: Work, job: Job, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("pynamo_locking").addHandler(logging.NullHandler())  # evictions of killed processes
    Meter(job.ledger, job.slot).install()
    try:
        answer: tuple[bool, Any] = (True, work(job))
    except Exception as error:  # noqa: BLE001 - the parent tells of it
        where = traceback.extract_tb(error.__traceback__)[-1]
        answer = (False, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    pipe.send(answer)
    if not answer[0]:
        raise SystemExit(1)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


# The stages of a run: which children do what, and what of their answers is a failure.


#: So long a kill waits for a child that is in the middle of a turn, in seconds.
_CHANCE_S: Final = 2.0


class Found(NamedTuple):
    """What a stage has found."""

    facts: dict[str, Any]
    problems: list[str]


def contract(crew: Crew, asked: Work = work.contract) -> Found:
    """Ask DynamoDB for what the package needs."""
    found = crew.run(asked)
    problems = [f"{name}: {why}" for name, why in found["failures"].items()]
    return Found({"checks": found["checks"]}, problems)


def locks(crew: Crew, counting: Work = work.count) -> Found:
    """Increment counters under locks whose holders are killed."""
    crew.run(work.open_counters)
    facts, ends = _under_kills(crew, counting)
    found = crew.run(work.counted)
    problems = _miscounted(crew, found["changes"], ends, 1)
    if found["sum"] != sum(found["changes"].values()):
        problems.append(f"the counters are {found['sum']}, after {sum(found['changes'].values())} increments")
    overtaken = int(crew.ledger.total("wrong", since=crew.first))
    if overtaken:
        problems.append(f"{overtaken} times the lock was granted to a ticket after a later ticket")
    return Found({**facts, "overtaken": overtaken, "sum of the counters": found["sum"]}, problems)


def answers(crew: Crew, losing: Work = work.answers) -> Found:
    """Lose requests and answers."""
    found = crew.run(losing)
    changes = found["applied"] + found["unknown"]
    return Found({"changes": changes, "reported as unknown": found["unknown"]}, found["wrong"])


def transactions(crew: Crew, moving: Work = work.transfer) -> Found:
    """Move money in transactions of processes that are killed, while snapshots are taken."""
    crew.run(work.open_accounts)
    reader = crew.start(work.snapshots)
    facts, ends = _under_kills(crew, moving)
    sums = crew.result(reader)["sums"]
    found = crew.run(work.transferred)
    total = ACCOUNTS * work.BALANCE
    problems = _miscounted(crew, found["changes"], ends, 2)
    wrong = [each for each in sums if each != total]
    if wrong:
        problems.append(f"{len(wrong)} of {len(sums)} snapshots have another sum than {total}, such as {wrong[0]}")
    if found["sum"] != total:
        problems.append(f"the accounts have {found['sum']} together at the end, and not {total}")
    problems += [f"transaction {id_} was left: {why}" for id_, why in found["failed"].items()]
    done_for = {"left, then finished": found["finished"], "left, then aborted": found["aborted"]}
    return Found({**facts, "snapshots": len(sums), "sum": total, **done_for}, problems)


def contention(crew: Crew, contending: Work = work.contend) -> Found:
    """Let all processes take turns at one lock."""
    before = crew.ledger.total("requests")
    children = [crew.start(contending) for _ in range(crew.plan.workers)]
    turns = sorted((turn for child in children for turn in crew.result(child)["turns"]), key=lambda turn: turn[2])
    requests = crew.ledger.total("requests") - before
    tickets = [ticket for ticket, *_ in turns]
    problems = [] if tickets == sorted(tickets) else ["a ticket was served after a later ticket"]
    if any(later[2] < earlier[3] for earlier, later in pairwise(turns)):
        problems.append("two processes held the lock at once")
    took = turns[-1][3] - turns[0][1]
    waits = [granted - asked for _, asked, granted, _ in turns]
    facts = {"processes": len(children), "turns": len(turns), "turns a second": round(len(turns) / took, 1)}
    facts["requests a turn"] = round(requests / len(turns), 2)
    return Found(
        {**facts, **{f"wait for the lock, {name}": value for name, value in _quantiles(waits).items()}}, problems
    )


def latencies(crew: Crew, timing: Work = work.latencies) -> Found:
    """Time each operation."""
    took = crew.run(timing)["took"]
    return Found({name: {"times": len(each), **_quantiles(each)} for name, each in took.items()}, [])


#: By name.
FUNCTIONS: Final[dict[str, Callable[[Crew], Found]]] = {
    "contract": contract,
    "locks": locks,
    "answers": answers,
    "transactions": transactions,
    "contention": contention,
    "latencies": latencies,
}


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    ranked = sorted(seconds)
    return {f"p{rank} ms": round(1000 * ranked[(len(ranked) - 1) * rank // 100], 1) for rank in (50, 99)}


def _under_kills(crew: Crew, task: Work) -> tuple[dict[str, Any], dict[int, bool]]:
    """Let children work, and kill some of them; return the facts, and of each slot whether its child was killed."""
    chooser, ledger, plan = random.Random(f"{crew.plan.seed}/{crew.first}"), crew.ledger, crew.plan  # noqa: S311 - which one to kill
    working = [crew.start(task) for _ in range(plan.workers)]
    begun, ends, in_a_turn = time.monotonic(), dict[int, bool](), 0
    for number in range(plan.kills):
        due = plan.turns * (number + 1) / (plan.kills + 2)
        crew.until(lambda due=due: ledger.total("done", since=crew.first) >= due)  # type: ignore[misc]
        victim = _victim(crew, working, chooser)
        working.remove(victim)
        in_a_turn += crew.kill(victim)
        ends[victim.slot] = True
        working.append(crew.start(task))
    for child in working:
        crew.result(child)
        ends[child.slot] = False
    took = time.monotonic() - begun
    turns = int(ledger.total("done", since=crew.first))
    facts = {"processes": len(ends), "turns": turns, "killed": plan.kills, "killed in a turn": in_a_turn}
    return {**facts, "seconds": round(took, 1)}, ends


def _victim(crew: Crew, working: list[Child], chooser: random.Random) -> Child:
    """Choose a child that is in the middle of a turn, if one is within some time."""
    give_up = time.monotonic() + _CHANCE_S
    while time.monotonic() < give_up:
        within = [child for child in working if crew.ledger.of(child.slot, "holds") > 0]
        if within:
            return chooser.choice(within)
        time.sleep(0.0005)
    return chooser.choice(working)


def _miscounted(crew: Crew, changes: dict[str, int], ends: dict[int, bool], each: int) -> list[str]:
    """Compare the changes in the rows with what the children say; a killed one may not have heard of its last."""
    problems = []
    for slot, was_killed in ends.items():
        found, done, begun = changes.get(str(slot), 0), *(int(crew.ledger.of(slot, name)) for name in ("done", "begun"))
        may_be = {each * done, each * begun} if was_killed else {each * done}
        if found not in may_be:
            problems.append(f"process {slot} has made {done} turns of {each} changes, and {found} changes are stored")
    unknown = set(changes) - {str(slot) for slot in ends}
    return [*problems, *(f"changes of a process {slot} that was not there" for slot in unknown)]


# One run: tables, stages, tables removed, and what was found.


PASSED: Final = "passed"
FAILED: Final = "failed"
CAPPED: Final = "stopped at the cap"
NOT_RUN: Final = "not run"

_PACKAGES: Final = ("pynamo-locking", "pynamodb", "boto3", "botocore")


@dataclass
class Stage:
    """What became of one stage. `unreported` are units of requests without a report, by our count."""

    name: str
    about: str
    result: str
    facts: dict[str, Any]
    problems: list[str]
    seconds: float
    requests: int
    estimated: Units
    reported: Units
    unreported: float


@dataclass
class Report:
    """A run, as its page tells of it."""

    began_at: str
    region: str
    endpoint: str
    versions: dict[str, str]
    settings: dict[str, Any]
    price: dict[str, float]
    stages: list[Stage] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        """Whether all stages that were asked for have run, and found nothing wrong."""
        return all(stage.result == PASSED for stage in self.stages)

    @property
    def is_capped(self) -> bool:
        """Whether the cap has ended it."""
        return any(stage.result == CAPPED for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        document = asdict(self)
        for stage in document["stages"]:
            for kind in ("estimated", "reported"):
                stage[kind] = dict(zip(Units._fields, stage[kind], strict=True))
        return {"result": PASSED if self.has_passed else CAPPED if self.is_capped else FAILED, **document}


class Course:
    """One run.

    Args:
        place: where.
        plan: what.
        cap: on units, reads and writes together.
        price: of units.
        tell: is called with a line about what happens next.
    """

    def __init__(self, place: Place, plan: Plan, cap: float, price: Price, tell: Callable[[str], object]) -> None:
        self._place, self._plan, self._cap, self._price, self._tell = place, plan, cap, price, tell
        self.tables = Tables(place)

    def run(self, functions: Mapping[str, Callable[[Crew], Found]] = FUNCTIONS) -> Report:
        """Do all of it. The tables are gone afterwards, whatever ends it but SIGKILL.

        Raises:
            ForeignTable: a table has the name of one of ours. Nothing was changed.
        """
        report = self._report()
        left = self.tables.remove()
        if left:
            self._tell(f"removed what an earlier run has left: {', '.join(left)}")
        crew = Crew(self._place, self._plan, self._cap)
        try:
            self._tell(f"creating {', '.join(self.tables.names)}")
            self.tables.create()
            for name in self._plan.stages:
                report.stages.append(self._stage(name, crew, functions, is_capped=report.is_capped))
        finally:
            crew.close()
            self._tell("removing the tables")
            report.removed = self.tables.remove()
        ledger = crew.ledger
        report.used = {name: round(ledger.total(name), 1) for name in ("reads", "writes", "unreported", "pending")}
        used = Units(report.used["reads"], report.used["writes"] + report.used["unreported"] + report.used["pending"])
        estimated = self._plan.estimates()
        costs = {"estimated": self._price.of(*estimated), "used": self._price.of(*used)}
        report.cost = {name: round(dollars, 6) for name, dollars in costs.items()}
        return report

    def _report(self) -> Report:
        versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
        versions |= {"python": platform.python_version(), "system": platform.platform()}
        plan = self._plan
        settings = {"prefix": self._place.prefix, "scale": plan.scale, "seed": plan.seed, "max_units": self._cap}
        settings |= {"processes": plan.workers, "lease_s": plan.lease}
        began = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        return Report(began, self.tables.region, self.tables.endpoint, versions, settings, asdict(self._price))

    def _stage(
        self, name: str, crew: Crew, functions: Mapping[str, Callable[[Crew], Found]], *, is_capped: bool
    ) -> Stage:
        fields = ("reads", "writes", "unreported", "requests")
        before, begun = [crew.ledger.total(each) for each in fields], time.monotonic()
        found, result = Found({}, []), NOT_RUN
        if not is_capped:
            self._tell(f"{name}: {STAGES[name]}")
            crew.begin_stage()
            try:
                found = functions[name](crew)
                result = FAILED if found.problems else PASSED
            except CapReached:
                result = CAPPED
            except ChildFailed as error:
                found, result = Found({}, [str(error)]), FAILED
            crew.close()
            self._tell(f"{name}: {result}")
        reads, writes, unreported, requests = (
            round(crew.ledger.total(each) - earlier, 1) for each, earlier in zip(fields, before, strict=True)
        )
        took = round(time.monotonic() - begun, 1)
        estimated, reported = self._plan.estimate(name), Units(reads, writes)
        return Stage(
            name,
            STAGES[name],
            result,
            found.facts,
            found.problems,
            took,
            int(requests),
            estimated,
            reported,
            unreported,
        )
