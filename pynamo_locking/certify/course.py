"""One run: tables, stages, tables removed, and what was found."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.certify.crew import CapReached, ChildFailed, Crew
from pynamo_locking.certify.plan import STAGES, Units
from pynamo_locking.certify.stages import FUNCTIONS, Found
from pynamo_locking.certify.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking.certify.plan import Place, Plan, Price

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
