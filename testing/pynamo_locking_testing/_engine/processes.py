"""What each process of the library has for itself: while a run lasts, each simulated process has it too."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import batch_requests, concurrency, runtime, wakeups
from pynamo_locking._locks import acquire, heartbeat, held_lock, local_queue, release
from pynamo_locking._transactions import group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamo_locking_testing._engine.runtime import SimulatedRuntime

#: An object, the name of one of its attributes, and what stands there while a run lasts.
Replacement = tuple[Any, str, Any]


class _OfProcess:
    """Stands for an object that each process has for itself."""

    def __init__(self, simulated: SimulatedRuntime, name: str, make: Any) -> None:
        self._simulated, self._name, self._make = simulated, name, make

    def _of_running_process(self) -> Any:
        own = self._simulated.process.own
        if self._name not in own:
            own[self._name] = self._make()
        return own[self._name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_running_process(), name)

    def __contains__(self, key: Any) -> bool:
        return key in self._of_running_process()

    def __getitem__(self, key: Any) -> Any:
        return self._of_running_process()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of_running_process()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of_running_process()[key]


@contextlib.contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Set attributes for a while."""
    before = [(of, name, getattr(of, name)) for of, name, _ in replacements]
    try:
        for of, name, value in replacements:
            setattr(of, name, value)
        yield
    finally:
        for of, name, value in reversed(before):
            setattr(of, name, value)


@contextlib.contextmanager
def simulated_processes(simulated: SimulatedRuntime, more: Sequence[Replacement] = ()) -> Iterator[None]:
    """Let the library run in a simulation, whose processes share no state.

    Args:
        simulated: what the library gets as its runtime.
        more: what else is replaced while the run lasts.
    """
    of_processes: list[Replacement] = [
        (runtime, "current", simulated),
        (wakeups, "_mailboxes", _OfProcess(simulated, "mailboxes", dict)),
        (local_queue, "local_queues", _OfProcess(simulated, "cohorts", dict)),
        (group, "under_way", _OfProcess(simulated, "groups", dict)),
        (concurrency, "blocking_threads", _OfProcess(simulated, "crew", concurrency.BlockingThreads)),
        (heartbeat, "heartbeat_thread", _OfProcess(simulated, "heartbeat", heartbeat.HeartbeatThread)),
        (acquire, "_underway", set()),
        (batch_requests, "_off_until_s", {}),
        (runtime, "forks", simulated),  # to what is collected after the run, what is left of it is of another process
        (logging.getLogger("pynamo_locking"), "disabled", True),
    ]
    with replaced([*of_processes, *more]):
        try:
            yield
        finally:
            for entry in runtime.living(held_lock.all_held):
                entry.ownership = entry.ownership.ended()
            release._unfinished.clear()
