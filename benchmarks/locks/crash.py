"""After a crash: how long the dead keep a lock from one who waits already, and from one who comes later."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Place
from benchmarks.locks.tables import markdown
from benchmarks.locks.variants import Variant, variants
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender

#: The same for everyone. Ours renews at a third of it.
LEASE_S: Final = 6.0
#: The latecomer arrives when the lease has been over for this long: more than clocks are allowed to differ.
LATE_S: Final = 11.0

_EARLY_KEY, _LATE_KEY = "early", "late"


@dataclass(frozen=True)
class Crash:
    """How long one waited for a lock whose holder was killed.

    Attributes:
        contender: its name.
        lease_s: of the dead.
        waiting: in leases, from the kill to the grant, for one who waited already.
        late: in leases, from its arrival to the grant, for one who came when the lease had long been over.
    """

    contender: str
    lease_s: float
    waiting: float
    late: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(host: str, ms: float, tick: Callable[[], None]) -> list[Crash]:
    """Measure all contenders at the same time: they do little but wait."""
    crew = [_Victim(host, ms, variant) for variant in variants(lambda kind: kind.has_lock)]
    threads = [threading.Thread(target=each.run) for each in crew]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        tick()
    return [Crash(each.variant.name, LEASE_S, each.waiting / LEASE_S, each.late / LEASE_S) for each in crew]


class _Victim:
    """One process that takes two locks and is killed, and those who wait for them here."""

    def __init__(self, host: str, ms: float, variant: Variant) -> None:
        self.variant = variant
        self.waiting = self.late = float("nan")
        self._place = Place(host, f"crash-{variant.slug}-", ms)

    def run(self) -> None:
        contender = self.variant.build(self._place, LEASE_S)
        try:
            contender.create([_EARLY_KEY, _LATE_KEY])
            self._kill(contender)
        finally:
            contender.close()

    def _kill(self, contender: Contender) -> None:
        with process(_hold_for_ever, self.variant, self._place) as victim:
            victim.recv()
            waiter = threading.Thread(target=self._wait, args=(contender,))
            waiter.start()
            time.sleep(1.0)
        self._killed = time.monotonic()
        waiter.join()
        time.sleep(max(0.0, self._killed + LEASE_S + LATE_S - time.monotonic()))
        arrived = time.monotonic()
        with contender.hold(_LATE_KEY):
            self.late = time.monotonic() - arrived

    def _wait(self, contender: Contender) -> None:
        with contender.hold(_EARLY_KEY):
            self.waiting = time.monotonic() - self._killed


def _hold_for_ever(pipe: Connection, variant: Variant, place: Place) -> None:
    contender = variant.build(place, LEASE_S)
    with contextlib.ExitStack() as stack:
        for key in (_EARLY_KEY, _LATE_KEY):
            stack.enter_context(contender.hold(key))
        pipe.send("holding")
        threading.Event().wait()


def as_markdown(done: list[Crash]) -> str:
    """Return the table."""
    head = (
        "after a kill of the holder",
        "the caller that waits already, in leases",
        f"the caller that comes {LATE_S:g} s after the lease",
    )
    return markdown(head, [(each.contender, f"{each.waiting:.2f}", f"{each.late:.2f}") for each in done])
