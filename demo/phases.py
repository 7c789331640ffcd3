"""The three phases of the demo: the same transfers, each time in another way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, cast

from rich.markup import escape

from demo import bank
from demo.bank import UNDER_LOCKS, UNPROTECTED, Account, PlainAccount, Transfer
from demo.worker import Process, hang, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.view import View

VICTIM: Final = "victim"
VICTIM_TAKES: Final = "alice"
#: The victim enters once this part of the transfers is made.
VICTIM_ENTERS: Final = 0.4
#: It is killed after so many seconds, once so many wait for it; or later, once anybody does.
HANGS_S: Final = 0.5
AUDIENCE: Final = 3
PATIENCE_S: Final = 2.0
LOOK_EVERY_S: Final = 0.1


@dataclass
class Result:
    """What came out of a phase."""

    way: str
    planned: int
    began: float = 0.0
    ended: float = 0.0
    done: list[Transfer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    balances: dict[str, int] = field(default_factory=dict)
    bookings: dict[str, int] = field(default_factory=dict)
    #: When the victim was killed, and when another had its lock.
    killed: float | None = None
    recovered: float | None = None

    @property
    def pause_s(self) -> float:
        """How long the lock of the dead process stood in the way."""
        return 0.0 if self.killed is None or self.recovered is None else self.recovered - self.killed

    def lost_changes(self) -> int:
        """Return how many changes of an account were overwritten by another process."""
        return 2 * len(self.done) - sum(self.bookings.values())

    def wrong_balances(self) -> dict[str, int]:
        """Return by how much each balance differs from what the transfers add up to, where it does."""
        off = {name: bank.START_BALANCE - self.balances.get(name, 0) for name in bank.NAMES}
        for transfer in self.done:
            off[transfer.source] -= transfer.amount
            off[transfer.target] += transfer.amount
        return {name: amount for name, amount in off.items() if amount}

    def problems(self) -> Iterator[str]:
        """Yield what a phase with protection must not show."""
        yield from self.failures
        if len(self.done) != self.planned:
            yield f"{self.way}: only {len(self.done)} of {self.planned} transfers were made."
        if self.lost_changes():
            yield f"{self.way}: {self.lost_changes()} changes were lost."
        if self.wrong_balances():
            yield f"{self.way}: wrong balances of {', '.join(self.wrong_balances())}."
        if self.way == UNDER_LOCKS and self.recovered is None:
            yield "Nobody took over from the killed process; try more transfers."


class Crew:
    """The worker processes and the victim; none of them outlives ``close()``."""

    def __init__(self, workers: list[str], host: str) -> None:
        self._processes = {name: Process(name, work, host) for name in workers}
        self._processes[VICTIM] = Process(VICTIM, hang, host, VICTIM_TAKES)
        for each in self._processes.values():
            each.pipe.recv()  # that it is ready

    def send(self, name: str, order: object) -> None:
        """Give an order to one of them."""
        self._processes[name].pipe.send(order)

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield what they said, waiting a moment for the first word."""
        pipes = {each.pipe: name for name, each in self._processes.items()}
        for pipe in cast("list[Any]", wait(pipes, LOOK_EVERY_S / 2)):
            while pipe.poll():
                yield pipes[pipe], pipe.recv()

    def kill(self, name: str) -> None:
        """End one of them with SIGKILL."""
        self._processes.pop(name).close()

    def close(self) -> None:
        """End all."""
        for each in self._processes.values():
            each.close()


class Phase:
    """One phase while it runs."""

    def __init__(self, crew: Crew, view: View, way: str, shares: dict[str, list[Transfer]]) -> None:
        self._crew = crew
        self._view = view
        self._shares = shares
        self._model: Any = PlainAccount if way == UNPROTECTED else Account
        self._busy = set(shares)
        self._victim_was_sent = way != UNDER_LOCKS
        self._victim_since: float | None = None
        self._next_look = 0.0
        self.result = Result(way, planned=sum(map(len, shares.values())))

    def run(self) -> Result:
        """Give out the work, watch, and count the money at the end."""
        result = self.result
        bank.open_accounts(self._model)
        result.began = time.monotonic()
        for name, transfers in self._shares.items():
            self._view.workers[name].doing = "works"
            self._crew.send(name, (result.way, transfers))
        while self._busy:
            for name, message in self._crew.messages():
                self._note(name, message)
            if time.monotonic() >= self._next_look:
                self._look()
        result.ended = time.monotonic()
        accounts = self._look()
        result.balances = {account.name: int(account.balance) for account in accounts}
        result.bookings = {account.name: int(account.bookings) for account in accounts}
        return result

    def _note(self, name: str, message: Transfer | str | None) -> None:
        if isinstance(message, Transfer):
            self.result.done.append(message)
            self._view.workers[name].done += 1
        elif message is None:
            self._busy.remove(name)
        else:
            self.result.failures.append(f"{name}: {message}")
            self._view.say(f"[red]FAILED[/red] {name}: {escape(message)}")
        if not self._victim_was_sent and len(self.result.done) >= self.result.planned * VICTIM_ENTERS:
            self._victim_was_sent = True
            self._crew.send(VICTIM, None)

    # What the database says

    def _look(self) -> list[Any]:
        self._next_look = time.monotonic() + LOOK_EVERY_S
        accounts = sorted(self._model.scan(consistent_read=True), key=lambda account: account.name)
        for account in accounts:
            self._view.accounts[account.name].balance = int(account.balance)
        if self.result.way == UNDER_LOCKS:
            self._look_at_locks(accounts)
        self._view.made = len(self.result.done)
        self._view.refresh()
        return accounts

    def _look_at_locks(self, accounts: list[Account]) -> None:
        has: dict[str, list[str]] = {name: [] for name in self._view.workers}
        wants = dict.fromkeys(self._view.workers, "")
        for account in accounts:
            line = self._view.accounts[account.name]
            line.holder = next((entry.owner for entry in account.lock.holders), "")
            waiting = [entry.owner for entry in account.lock.waiters]
            line.waiting = len(waiting)
            has.get(line.holder, []).append(account.name)
            wants.update(dict.fromkeys(waiting, account.name))
            if account.name == VICTIM_TAKES:
                self._watch_victim(line.holder, len(waiting))
        for name in self._shares:
            said = [f"has {' and '.join(has[name])}"] * bool(has[name]) + [f"wants {wants[name]}"] * bool(wants[name])
            self._view.workers[name].doing = ", ".join(said) or ("works" if name in self._busy else "done")

    def _watch_victim(self, holder: str, waiting: int) -> None:
        now = time.monotonic()
        if self.result.killed is not None:
            if holder not in {"", VICTIM} and self.result.recovered is None:
                self.result.recovered = now
                self._view.say(
                    f"[green]{holder} has {VICTIM_TAKES}'s lock[/green], {self.result.pause_s:.1f} s after the kill."
                )
        elif holder == VICTIM and self._victim_since is None:
            self._victim_since = now
            self._view.workers[VICTIM].doing = f"has {VICTIM_TAKES}, hangs"
            self._view.say(f"One more process takes {VICTIM_TAKES}'s lock, and hangs with it.")
        elif self._victim_since is not None:
            hung_for = now - self._victim_since
            if not self._busy or hung_for > (HANGS_S if waiting >= AUDIENCE else PATIENCE_S):
                self._kill(waiting)

    def _kill(self, waiting: int) -> None:
        self.result.killed = time.monotonic()
        self._crew.kill(VICTIM)
        self._view.workers[VICTIM].doing = "killed"
        self._view.say(
            f"[red]SIGKILL[/red]: it dies with {VICTIM_TAKES}'s lock, {waiting} wait. "
            f"Its {bank.SETTINGS.lease:g} s lease must run out."
        )
