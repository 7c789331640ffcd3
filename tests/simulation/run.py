"""One run: the library's own code, under a plan and a list of choices."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError

from pynamo_locking._core import dynamodb
from pynamo_locking._intervals import disjoint_writes
from pynamo_locking._io import transaction_record, wakeups
from pynamo_locking._locks import local_queue
from pynamo_locking_testing._engine.choices import Choices, Listed, NotTheSame, Recorded
from pynamo_locking_testing._engine.faults import Fault, Faults
from pynamo_locking_testing._engine.network import Network
from pynamo_locking_testing._engine.processes import simulated_processes
from pynamo_locking_testing._engine.runtime import SimulatedRuntime
from pynamo_locking_testing._engine.scheduler import Process, Scheduler
from pynamo_locking_testing.clock import ClockView
from tests.simulation.checkers import CHECKERS, Lives, Violation, own_methods
from tests.simulation.history import History, Told
from tests.simulation.local_wakeups import LocalWakeups
from tests.simulation.models import ALL, SETTINGS, Headers, share_entries
from tests.simulation.plans import DRIFTS, SKEWS_S
from tests.simulation.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing._engine.network import Change, Request
    from pynamo_locking_testing._engine.processes import Replacement
    from tests.simulation.history import Operation
    from tests.simulation.plans import Plan

#: A process that is paused stands still for longer than a lease.
PAUSE_S: Final = 1.5 * SETTINGS.lease

#: The longest a run may take.
HORIZON_S: Final = 200 * SETTINGS.lease


class Step(NamedTuple):
    """A request, as the timeline shows it."""

    at_s: float
    actor: str
    process: str
    operation: str
    places: str
    fault: str
    answer: str
    step: str
    purpose: str


@dataclass
class Result:
    """What became of a run."""

    plan: Plan
    choices: list[int]
    trace: list[Step]
    happened: Counter[Fault]
    told: Counter[Told]
    error: BaseException | None
    steps: int
    settled_s: float = 0.0
    operations: list[Operation] = field(default_factory=list)


class Run:
    """A world, and what happens in it."""

    def __init__(self, plan: Plan, choices: Choices) -> None:
        self.plan = plan
        self.choices = Recorded(choices)
        self.scheduler = Scheduler(self.choices, plan.preemptions, HORIZON_S, self._on_step, is_fine=plan.is_fine)
        self.faults = Faults(self.choices, plan.faults)
        self.network = Network(self.scheduler, self.faults, PAUSE_S)
        self.world = SimulatedRuntime(self.scheduler, self.choices, is_fine=plan.is_fine, has_jitter=plan.has_jitter)
        self.local_wakeups = LocalWakeups(self.scheduler, self.choices)
        self.history = History(self.scheduler)
        self.workload = WORKLOADS[plan.workload](self.history)
        self.checkers = [checker(self) for checker in CHECKERS]
        self._looks_at_step = own_methods(self.checkers, "on_step")
        self._looks_at_changes = own_methods(self.checkers, "on_changes")
        self._looks_at_end = own_methods(self.checkers, "at_end")
        self.trace: list[Step] = []
        self.lives = Lives()
        self.network.purpose_of = self.history.purpose_of
        self.network.on_changes.append(self._on_changes)
        self.network.on_request.append(self._on_request)
        self.settled_s = 0.0

    def execute(self) -> Result:
        """Run to the end, and look whether everything is as it must be."""
        error: BaseException | None = None
        with self.network, _limits_of(self.world, self.workload, self.plan, self.local_wakeups):
            try:
                self._play()
            except NotTheSame:
                raise
            except Exception as failure:  # noqa: BLE001 - the result of the run
                error = failure
            finally:
                self.scheduler.end()
        return Result(
            plan=self.plan,
            choices=self.choices.taken,
            trace=self.trace,
            happened=self.faults.happened,
            told=Counter(done.told for done in self.history.operations),
            error=error,
            steps=self.scheduler.steps,
            settled_s=self.settled_s,
            operations=self.history.operations,
        )

    def _play(self) -> None:
        used = {*self.workload.tables, *(model for model, _ in self.workload.items)}
        for name in ("lock_table", "transaction_table", "unique_table"):
            used |= {getattr(model.Meta, name) for model in used if hasattr(model.Meta, name)}
        for model in ALL:
            if model in used:  # to make all tables takes as long as two parties
                model.create_table()
        self.workload.prepare()
        if self.workload.most_actions is not None:
            self.network.take_steps(self.choices)
        if self.plan.write_units is not None:
            self.network.limit(self.plan.write_units)
        if self.workload.final_ttl_s is not None:
            self.network.expire(Headers.Meta.table_name)
        self._start_parties()
        self.scheduler.run()
        self._require_calm()
        self.scheduler.let_land()
        self.faults.are_over = True
        self._take_every_lock_once()
        self._look(self._looks_at_end, step=lambda: "the end of the run")

    def _start_parties(self) -> None:
        processes = [self._process(f"p{number}") for number in range(self.plan.processes)]
        for index in range(self.plan.parties):
            process = processes[index % len(processes)]
            self.scheduler.spawn(process, f"party{index}", lambda index=index: self._party(index))  # type: ignore[misc]

    def _process(self, name: str) -> Process:
        skews = SKEWS_S[self.plan.skew]
        skew_s = skews[self.choices.pick(len(skews), "skew")]
        drift = DRIFTS[self.choices.pick(len(DRIFTS), "drift")] if self.plan.has_drift else 0.0
        self.local_wakeups.processes.append(Process(name, ClockView(self.scheduler, skew_s=skew_s, drift=drift)))
        return self.local_wakeups.processes[-1]

    def _party(self, index: int) -> None:
        for turn in range(self.plan.rounds):
            self.workload.party(index, turn)
        since = max(self.faults.last_at, 0.0)
        self.settled_s = max(self.settled_s, self.scheduler.now - since)

    def _require_calm(self) -> None:
        """After the last fault everyone who lives has finished within a number of leases."""
        leases = 3 + 4 * self.plan.parties * self.plan.rounds
        if self.settled_s > leases * SETTINGS.lease:
            raise Violation(f"Calm: it took {self.settled_s / SETTINGS.lease:.1f} leases after the last fault")

    def _take_every_lock_once(self) -> None:
        """A newcomer gets each lock within a lease, whatever the others left behind."""
        janitor = self._process("janitor")

        def clean() -> None:
            self.workload.clean_up()
            for lock in self.workload.locks():
                with lock:
                    pass

        before = self.scheduler.now
        self.scheduler.spawn(janitor, "janitor", clean)
        self.scheduler.run()
        leases = (self.scheduler.now - before) / SETTINGS.lease
        if leases > 2 * len(self.workload.rows()) + 2:
            raise Violation(f"Calm: a newcomer waited for {leases:.1f} leases")

    # Looking on

    def _on_step(self) -> None:
        self._look(self._looks_at_step)

    def _on_changes(self, request: Request, changes: list[Change]) -> None:
        self.lives.note(request, changes, self.scheduler.moment())
        try:
            self._look(
                self._looks_at_changes,
                request,
                changes,
                step=lambda: f"{request.actor or 'the beginning'}, by its {request}",
            )
        except Violation as violation:
            self.scheduler.fail(violation)  # the library or its client would take it for a time-out, and go on
            raise

    def _look(self, looks: list[Any], *at: Any, step: Callable[[], str] | None = None) -> None:
        """Let checkers look; a violation says which rule was broken, and by which step."""
        for look in looks:
            try:
                look(*at)
            except Exception as error:
                raise look.__self__.violation(error, (step or self._last_request)()) from error

    def _last_request(self) -> str:
        if not self.trace:
            return "what came before the first request"
        last = self.trace[-1]
        return f"{last.actor}, after its {last.operation} {last.places}"

    def _on_request(self, request: Request, fault: Fault | None, answer: Any) -> None:
        actor = request.actor
        self.trace.append(
            Step(
                round(self.scheduler.now, 6),
                str(actor),
                "" if actor is None else actor.process.name,
                request.operation,
                ", ".join(map(str, request.places)),
                "" if fault is None else fault.value,
                _summary(answer),
                request.step,
                "" if request.purpose is None else f"{request.purpose.kind} {request.purpose.number}",
            )
        )


def _summary(answer: Any) -> str:
    if isinstance(answer, ClientError):
        response: Any = answer.response
        return str(response["Error"]["Code"])
    if isinstance(answer, Exception):
        return type(answer).__name__
    return "" if answer is None else "ok"


@contextlib.contextmanager
def _limits_of(world: SimulatedRuntime, workload: Workload, plan: Plan, local: LocalWakeups) -> Iterator[None]:
    """Let each process have its own state, and the library the limits that the workload and its plan ask for."""
    more: list[Replacement] = [
        (local_queue, "enqueue_locally", workload.history.lining_up(local_queue.enqueue_locally)),
        (dynamodb, "MOST_STATEMENTS", workload.most_statements),
    ]
    if plan.has_wakeups:
        more += [(wakeups, "send_wakeup", local.send), (wakeups, "other_listeners", local.neighbours)]
        more += [(wakeups, "call_next", local.call_next), (wakeups, "are_listening", lambda _: True)]
    if workload.most_actions is not None:
        more += [(dynamodb, "MOST_ACTIONS", workload.most_actions)]
    if workload.refusals is not None:
        more += [(disjoint_writes, "_REFUSALS", workload.refusals)]
    if workload.final_ttl_s is not None:
        more += [(transaction_record, "IDLE_TTL_S", workload.final_ttl_s)]
    with simulated_processes(world, more):
        share_entries(plan.block)
        try:
            yield
        finally:
            share_entries(1)


def run(plan: Plan, choices: Choices, *, twice: bool = True) -> Result:
    """Run once; and once more with the same choices, which must give the same trace. One that fails is repeated too."""
    result = Run(plan, choices).execute()
    if twice or result.error is not None:
        again = Run(plan, Listed(result.choices)).execute()
        if again.trace != result.trace or again.choices != result.choices:
            raise NotTheSame(f"a repetition went differently: {plan.to_json()} {result.choices}")
    return result
