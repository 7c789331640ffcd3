"""Bugs on purpose: small mutations of the library, each of which the simulator has to find.

What finds none of these finds nothing. Each bug names the workload and the faults under which it shows, and the
checkers that have to notice it, so that no checker is there for decoration. `machinery` says what a bug is; the
bugs themselves are in `guards`, `queue`, `handing_over`, `waiting`, `modes`, `intervals`, `jobs`, `leading`,
`locked_reads`, `outcomes`, `resolving`, `tasks`, `transactions`, `calls` and `unique`.
"""

from __future__ import annotations

from tests.simulation.planted import (
    calls,
    guards,
    handing_over,
    intervals,
    jobs,
    leading,
    locked_reads,
    modes,
    outcomes,
    queue,
    resolving,
    statements,
    tasks,
    transactions,
    unique,
    waiting,
)
from tests.simulation.planted.machinery import (
    BUGS,
    OPEN,
    Bug,
    checker_of,
    choices_of,
    measure,
    runs_until_found,
    search,
)

__all__ = [
    "BUGS",
    "OPEN",
    "Bug",
    "calls",
    "checker_of",
    "choices_of",
    "guards",
    "handing_over",
    "intervals",
    "jobs",
    "leading",
    "locked_reads",
    "measure",
    "modes",
    "outcomes",
    "queue",
    "resolving",
    "runs_until_found",
    "search",
    "statements",
    "tasks",
    "transactions",
    "unique",
    "waiting",
]
