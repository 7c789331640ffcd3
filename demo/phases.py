"""The two phases of the demo: the same transfers, first without protection, then with locks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from demo import bank
from demo.bank import Account, PlainAccount
from demo.teller import Doing, Done, Failed, Finished, HoldForEver, Holding, Ready, Turn, Work

if TYPE_CHECKING:
    from demo.bank import AnyAccount, Transfer
    from demo.crew import Crew
    from demo.teller import Message
    from demo.view import View

VICTIM: Final = "victim"
VICTIM_TAKES: Final = "alice"
#: The victim enters once this part of the transfers is made.
VICTIM_ENTERS: Final = 0.4
#: It is killed after so many seconds, once so many wait for it; or later, once anybody does.
HANGS_S: Final = 0.5
AUDIENCE: Final = 3
PATIENCE_S: Final = 2.0
LOOK_EVERY_S: Final = 0.2


@dataclass
class Kill:
    """How the victim ended."""

    turn: Turn
    at: float
    waiting: int
    next: Turn | None = None

    @property
    def recovery_s(self) -> float | None:
        """How long the lock of the dead process stood in the way."""
        return None if self.next is None else self.next.granted - self.at


@dataclass
class Result:
    """What came out of a phase."""

    locked: bool
    planned: int
    began: float = 0.0
    ended: float = 0.0
    done: list[Transfer] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    reads: int = 0
    writes: int = 0
    balances: dict[str, int] = field(default_factory=dict)
    bookings: dict[str, int] = field(default_factory=dict)
    kill: Kill | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Phase:
    """One phase while it runs."""

    def __init__(self, crew: Crew, view: View, shares: dict[str, list[Transfer]], *, locked: bool) -> None:
        self._crew = crew
        self._view = view
        self._shares = shares
        self._busy = set(shares)
        self._victim: Turn | None = None
        self._victim_was_sent = False
        self._next_look = 0.0
        self.result = Result(locked, planned=sum(map(len, shares.values())))

    def run(self) -> Result:
        """Give out the work, watch, and count the money at the end."""
        self.result.began = time.monotonic()
        for name, transfers in self._shares.items():
            self._crew.send(name, Work(tuple(transfers), self.result.locked))
        while self._busy:
            for name, message in self._crew.messages(timeout=LOOK_EVERY_S / 2):
                self._note(name, message)
            if time.monotonic() >= self._next_look:
                self._look()
        accounts = self._look()
        self.result.balances = {account.name: int(account.balance) for account in accounts}
        self.result.bookings = {account.name: int(account.bookings) for account in accounts}
        return self.result

    def _note(self, name: str, message: Message) -> None:
        if isinstance(message, Doing):
            self._view.workers[name].doing = message.text
        elif isinstance(message, Done):
            self._view.workers[name].done += 1
            self.result.done.append(message.transfer)
            for turn in message.turns:
                self._note_turn(turn)
            self._send_victim()
        elif isinstance(message, Failed):
            self.result.failures.append(message.reason)
            self._view.say(f"[red]FAILED[/red] {escape(message.reason)}")
        elif isinstance(message, Holding):
            self._victim = message.turn
            self._view.say(f"One more process takes {message.turn.account}'s lock, and hangs with it.")
        elif isinstance(message, Finished):
            self._finish(name, message)

    def _finish(self, name: str, message: Finished) -> None:
        self._busy.remove(name)
        self._view.workers[name].doing = "done"
        self.result.reads += message.reads
        self.result.writes += message.writes
        self.result.ended = time.monotonic()

    def _note_turn(self, turn: Turn) -> None:
        self.result.turns.append(turn)
        kill = self.result.kill
        is_after = kill is not None and turn.account == kill.turn.account and turn.ticket > kill.turn.ticket
        if kill is None or not is_after or (kill.next is not None and kill.next.ticket < turn.ticket):
            return
        is_news = kill.next is None
        kill.next = turn
        if is_news:
            self._view.say(
                f"[green]{turn.worker} has {turn.account}'s lock[/green], "
                f"{turn.granted - kill.at:.1f} s after the kill."
            )

    # The victim

    def _send_victim(self) -> None:
        is_time = len(self.result.done) >= self.result.planned * VICTIM_ENTERS
        if self.result.locked and is_time and not self._victim_was_sent:
            self._victim_was_sent = True
            self._crew.send(VICTIM, HoldForEver(VICTIM_TAKES))

    def _kill_if_watched(self, waiting: int) -> None:
        turn = self._victim
        if turn is None or self.result.kill is not None:
            return
        hung_for = time.monotonic() - turn.granted
        is_watched = (waiting >= AUDIENCE and hung_for > HANGS_S) or (waiting and hung_for > PATIENCE_S)
        if self._busy and not is_watched:
            return
        self.result.kill = Kill(turn, self._crew.kill(VICTIM), waiting)
        self._view.workers[VICTIM].doing = "killed"
        self._view.say(
            f"[red]SIGKILL[/red]: it dies with {turn.account}'s lock, {waiting} wait. "
            f"Its {bank.SETTINGS.lease:g} s lease must run out."
        )

    # What the database says

    def _look(self) -> list[AnyAccount]:
        self._next_look = time.monotonic() + LOOK_EVERY_S
        model: Any = Account if self.result.locked else PlainAccount
        accounts: list[AnyAccount] = sorted(model.scan(consistent_read=True), key=lambda account: account.name)
        for account in accounts:
            line = self._view.accounts[account.name]
            line.balance = int(account.balance)
            if isinstance(account, Account):
                line.holder = next((entry.owner for entry in account.lock.holders), "")
                line.waiters = tuple(entry.owner for entry in account.lock.waiters)
                if account.name == VICTIM_TAKES:
                    self._kill_if_watched(len(line.waiters))
        self._view.made = len(self.result.done)
        self._view.refresh()
        return accounts


def wait_until_ready(crew: Crew, names: list[str], view: View) -> None:
    """Return when all workers have started."""
    missing = set(names)
    while missing:
        for name, message in crew.messages(timeout=LOOK_EVERY_S):
            if isinstance(message, Ready):
                missing.discard(name)
                view.workers[name].doing = "ready"
        view.refresh()
