"""What tests of applications need: a DynamoDB in memory, a clock that does not make them wait, faults, and a simulator.

Each name is loaded when it is first asked for. So the plugin for pytest, which pytest loads in every run, costs nothing
where nobody uses it, and only `simulate` loads greenlets.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from pynamo_locking_testing.clock import ClockView, TimeSource, VirtualClock, VirtualProcess
    from pynamo_locking_testing.faults import (
        FaultCount,
        concurrent_write,
        held_by_other,
        lose_lock,
        lost_responses,
        strong_global_table,
        throttled,
    )
    from pynamo_locking_testing.memory import MemoryClient, MemoryDynamoDB
    from pynamo_locking_testing.simulation import Found, SimulatedProcess, SimulationError, World, simulate

__all__ = [
    "ClockView",
    "FaultCount",
    "Found",
    "MemoryClient",
    "MemoryDynamoDB",
    "SimulatedProcess",
    "SimulationError",
    "TimeSource",
    "VirtualClock",
    "VirtualProcess",
    "World",
    "concurrent_write",
    "held_by_other",
    "lose_lock",
    "lost_responses",
    "simulate",
    "strong_global_table",
    "throttled",
]

_HOMES = {
    **dict.fromkeys(("ClockView", "TimeSource", "VirtualClock", "VirtualProcess"), "clock"),
    **dict.fromkeys(("FaultCount", "concurrent_write", "held_by_other", "lose_lock", "lost_responses"), "faults"),
    **dict.fromkeys(("strong_global_table", "throttled"), "faults"),
    **dict.fromkeys(("MemoryClient", "MemoryDynamoDB"), "memory"),
    **dict.fromkeys(("Found", "SimulatedProcess", "SimulationError", "World", "simulate"), "simulation"),
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
