"""``demo``: what gets lost without a lock, on a DynamoDB in memory."""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from rich.text import Text

from pynamo_locking import LockableModel, LockAttribute, LockSettings
from pynamo_locking.cli import output
from pynamo_locking.cli.command import command
from pynamo_locking.cli.problems import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from pynamo_locking.cli.session import Session

ACCOUNT: Final = "shared account"

#: What a teller needs between reading and saving, in seconds; in a real program that is a form, or a network.
_THINK_S: Final = 0.002


class PlainAccount(Model):
    """An account as PynamoDB has it."""

    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where it is."""

        table_name = "plain-accounts"

    name: UnicodeAttribute = UnicodeAttribute(hash_key=True)
    balance: NumberAttribute = NumberAttribute(default=0)


class Account(LockableModel):
    """The same account with a lock in it."""

    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where it is."""

        table_name = "accounts"
        lock_settings: LockSettings = LockSettings(poll=0.005, poll_max=0.05)

    name: UnicodeAttribute = UnicodeAttribute(hash_key=True)
    balance: NumberAttribute = NumberAttribute(default=0)
    lock = LockAttribute()


@dataclass(frozen=True)
class Result:
    """What one round has shown; amounts are in units of play money.

    Attributes:
        how: what the tellers did.
        deposited: by all tellers together; each was told that it went well.
        found: on the account at the end.
        lost: the difference.
        elapsed_s: how long it took, in seconds.
    """

    how: str
    deposited: int
    found: int
    lost: int
    elapsed_s: float


def attach(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "demo",
        demo,
        "pynamo-locking demo",
        "pynamo-locking demo --tellers 20 --deposits 5 --json",
        reach=False,
    )


def demo(
    session: Session,
    tellers: Annotated[int, typer.Option("--tellers", metavar="NUMBER", min=2, max=50, help="Threads.")] = 8,
    deposits: Annotated[int, typer.Option("--deposits", metavar="NUMBER", min=1, max=1000, help="Each.")] = 10,
) -> int:
    """Let tellers deposit into one account, without and with a lock, and count what is missing.

    Everything is in this process: no AWS account, no network. The exit code is 1 if the locks have lost anything.
    """
    testing = importlib.import_module("pynamo_locking.testing")  # only this command needs it
    with testing.MemoryDynamoDB():
        for model in (PlainAccount, Account):
            model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
            model(ACCOUNT).save()
        results = [
            _round("get, change, save", lambda: _deposit_plainly(PlainAccount), PlainAccount, tellers, deposits),
            _round("with Account.edit(...)", _deposit_locked, Account, tellers, deposits),
        ]
    document = {"tellers": tellers, "deposits_each": deposits, "rounds": [asdict(each) for each in results]}
    session.show(document, lambda console: _print(console, tellers, deposits, results))
    return Exit.NO if results[-1].lost else Exit.OK


def _deposit_plainly(model: type[PlainAccount]) -> None:
    account = model.get(ACCOUNT, consistent_read=True)
    time.sleep(_THINK_S)
    account.balance += 1
    account.save()


def _deposit_locked() -> None:
    with Account.edit(ACCOUNT) as account:
        time.sleep(_THINK_S)
        account.balance += 1


def _round(how: str, deposit: Callable[[], None], model: type[Any], tellers: int, deposits: int) -> Result:
    """Let so many threads deposit one unit so many times each, all at once."""
    start, failures = threading.Barrier(tellers), list[BaseException]()

    def work() -> None:
        try:
            start.wait()
            for _ in range(deposits):
                deposit()
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(tellers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    deposited, found = tellers * deposits, int(model.get(ACCOUNT, consistent_read=True).balance)
    return Result(how, deposited, found, deposited - found, round(time.monotonic() - began, 3))


def _print(console: Console, tellers: int, deposits: int, results: list[Result]) -> None:
    console.print(f"{tellers} tellers deposit 1 into the same account, {deposits} times each, all at once.\n")
    rows = [
        (each.how, each.deposited, each.found, Text(str(each.lost), "bold red" if each.lost else "bold green"))
        for each in results
    ]
    console.print(output.table("", ("what each teller does", "deposited", "found", "lost"), rows))
    plain, locked = results
    console.print(
        f"\nWithout a lock {plain.lost} of {plain.deposited} deposits vanished, although each save succeeded. "
        f"With the lock {'none did' if not locked.lost else f'{locked.lost} did, which is a bug'}."
    )
