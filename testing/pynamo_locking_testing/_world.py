"""What a test says of its runs: who takes part, and what must hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing._engine.scheduler import Process
    from pynamo_locking_testing._run import Run


@dataclass(eq=False)
class SimulatedProcess:
    """A process of a run.

    Attributes:
        name: as the story of a run calls it.
        has_returned: whether its function returned, or called `sys.exit(0)`.
        result: what its function returned.
        error: what its function raised, also `SystemExit`.
    """

    name: str
    _process: Process
    has_returned: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def is_killed(self) -> bool:
        """Whether a fault has killed it."""
        return not self._process.is_alive


class World:
    """What a test describes: who runs at the same time, and what must hold.

    What the test itself does with PynamoDB (create tables, save the first items) happens before the processes begin.
    Each run calls the test with an empty DynamoDB.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def process(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> SimulatedProcess:
        """Add a process that calls a function, once the test has described all of them.

        The function may be a coroutine function, which runs in an event loop of its process. It may end with an error
        of PynamoDB, botocore or pynamo_locking, or with one of ``raises``: under faults that is no mistake. Each other
        error fails the run. So do `DoesNotExist`, and errors that no fault causes, as of a table that is not there. A
        process that returns in no run fails the test, unless ``raises`` names its error: nothing was checked.

        Args:
            function: the code under test.
            arguments: what it is called with; dicts and lists are copied, as each delivery of a message is decoded.
            keywords: what else it is called with.

        Returns:
            The process. Once the run is over, it tells what its function returned or raised.
        """
        return self._run.add(function, arguments, keywords)

    def always(self, holds: Callable[[], object]) -> None:
        """Require something before the processes begin, and after each write.

        Args:
            holds: fails if it raises, or returns something false other than None. Its reads take no time and have no
                faults: they see what DynamoDB has stored at that moment.
        """
        self._run.require("always", holds)

    def finally_(self, holds: Callable[[], object]) -> None:
        """Require something once all processes have ended, and all late requests have arrived.

        Args:
            holds: as for `always`.
        """
        self._run.require("finally_", holds)
