"""The stages of a run: which children do what, and what of their answers is a failure."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking.certify import work
from pynamo_locking.certify.plan import ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking.certify.crew import Child, Crew, Work

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
