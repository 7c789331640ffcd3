"""Wake-ups between the processes of a run: received at any later step, lost, or forged."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pynamo_locking._io import wakeups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing._engine.scheduler import Process, Scheduler


class LocalWakeups:
    """What stands for `pynamo_locking._io.wakeups`.

    Args:
        scheduler: lets the wake-ups be received.
        choices: of what becomes of a wake-up.
    """

    def __init__(self, scheduler: Scheduler, choices: Recorded) -> None:
        self.processes: list[Process] = []
        self._scheduler = scheduler
        self._choices = choices
        self._count = 0

    def neighbours(self) -> frozenset[str]:
        return frozenset({"others"})

    def send(self, entry_ids: Iterable[str], row: LockRow | None = None, image: Image | None = None) -> None:
        """Wake the waiters with these entries in other processes with the item, or none, or all without one."""
        is_lost, is_forged = ((False, False), (True, False), (False, True))[self._choices.pick(3, "wake-up")]
        woken = set() if is_lost else set(entry_ids)
        item = b"" if is_forged or row is None or image is None else wakeups.item_of(row, image)
        for process in self._others():
            waiting = {box.entry_id for boxes in process.own.get("mailboxes", {}).values() for box in boxes}
            for entry_id in sorted(waiting if is_forged else waiting & woken):
                self._throw(process, entry_id.encode() + item)

    def call_next(self, row: LockRow) -> None:
        """Wake who may be next for a lock in other processes, or nobody."""
        if self._choices.pick(2, "wake-up"):
            return
        for process in self._others():
            self._throw(process, wakeups.item_of(row, None))

    def _others(self) -> list[Process]:
        actor = self._scheduler.current
        return [process for process in self.processes if actor is None or process is not actor.process]

    def _throw(self, process: Process, message: bytes) -> None:
        self._count += 1
        self._scheduler.spawn(process, f"wakeup-{self._count}", partial(wakeups.wake, message))
