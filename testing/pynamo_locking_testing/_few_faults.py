"""Faults as an application has them: few in a run, of all kinds that concern it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_testing._engine.faults import Fault, Faults

if TYPE_CHECKING:
    import random

    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing._engine.scheduler import Scheduler

#: What can happen at a request of anybody's code. Left out is what only concerns the package itself.
_KINDS: Final = tuple(fault for fault in Fault if fault not in {Fault.DOUBLED, Fault.HOT, Fault.REPLICATED})

#: What hits a process, whatever it asks for.
_OF_PROCESSES: Final = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)

#: What hits requests, and may hit all attempts of one.
_OF_NETWORK: Final = (
    *(Fault.THROTTLED, Fault.NO_CONNECTION, Fault.FAILED_BEFORE, Fault.FAILED_AFTER),
    *(Fault.LOST_REQUEST, Fault.LOST_RESPONSE),
)
#: So many more attempts fail then, at most: more than PynamoDB makes unless it is told to.
_MOST_ATTEMPTS: Final = 5


class FewFaults(Faults):
    """Faults as an application has them: few, but one of the network may last for all attempts of a request.

    A request that repeats one without a fault, as in a long wait, has none either: the wait would use them up.

    Args:
        scheduler: knows whose request it is, and which.
        choices: decide at each request.
        kinds: what may happen.
        most: how many faults may happen altogether.
    """

    def __init__(self, scheduler: Scheduler, choices: Recorded, kinds: list[Fault], most: int) -> None:
        super().__init__(choices, dict.fromkeys(kinds, most), most)
        self._scheduler = scheduler
        self._last: dict[Any, _Asked] = {}

    def at(self, operation: str, **more: Any) -> Fault | None:
        """Choose what happens to a request; None: nothing."""
        actor: Any = self._scheduler.current
        request = (operation, getattr(actor.doing, "kwargs", None))
        last = self._last.get(actor)
        if last is not None and last.request == request:
            return last.again(self._choices)
        fault = super().at(operation, **more)
        self._last[actor] = _Asked(request, fault)
        return fault


@dataclass
class _Asked:
    """The last request of an actor, its fault, and how many more attempts have the same."""

    request: object
    fault: Fault | None
    left: int | None = None

    def again(self, choices: Recorded) -> Fault | None:
        """Return the fault of the next attempt."""
        if self.fault not in _OF_NETWORK:
            return None
        if self.left is None:
            self.left = _MOST_ATTEMPTS * choices.pick(2, "outage")
        self.left -= 1
        return self.fault if self.left >= 0 else None


def kinds_of_run(chance: random.Random) -> list[Fault]:
    """Return the kinds of faults that a run may have: some, so that all combinations come up, and none is rare."""
    if chance.random() < 1 / 2:
        return list(_OF_PROCESSES)
    return [kind for kind in _KINDS if chance.random() < 1 / 3]
