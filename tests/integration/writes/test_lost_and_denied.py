"""The answer of the deciding write is lost, and from then on every request is refused, as with an expired token.

Whatever fails after the write (the release of a lock, a look at the key) is the context of the `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pynamo_locking import TransactWrite, atransaction, transaction
from pynamo_locking.exceptions import LockingError, OutcomeUnknown
from tests.support.call_models import Calls
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import Purse, Transactions, make_long_from, purses
from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine


class Network:
    """Loses the answer of one write, and refuses what follows, until it is mended."""

    def __init__(self, *, is_applied: bool) -> None:
        self.is_applied = is_applied
        self._faults = ExitStack()

    def break_at(self, operation: str | None = None) -> None:
        """Begin with the next request, or with the next one of that operation."""
        self._faults.enter_context(self._broken(operation))

    def mended(self) -> ExitStack:
        """Mend it at the end of a block."""
        return self._faults

    @contextmanager
    def _broken(self, awaited: str | None) -> Iterator[None]:
        is_lost = False

        def answer(send: Send, operation: str, _: dict[str, Any]) -> Any:
            nonlocal is_lost
            if is_lost:
                error = {"Code": "ExpiredTokenException", "Message": "the security token is expired"}
                raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}, operation)
            if awaited not in (None, operation):
                return send()
            is_lost = True
            if self.is_applied:
                send()
            raise ReadTimeoutError(endpoint_url="test")

        with intercepted(answer):
            yield


def edited(network: Network) -> None:
    with Account.edit("a") as account:
        account.balance = 5
        network.break_at()


def edited_apart(network: Network) -> None:
    with Device.edit("d") as device:
        device.state = "on"
        network.break_at()


async def aedited(network: Network) -> None:
    async with Account.edit("a") as account:
        account.balance = 5
        network.break_at()


def saved_under_the_lock(network: Network) -> None:
    with Account.locked("a") as lock:
        lock.item.balance = 5
        network.break_at()
        lock.item.save()


def called(network: Network) -> None:
    with Calls.call("k") as call:
        call.result = 1
        network.break_at()


async def acalled(network: Network) -> None:
    async with Calls.call("k") as call:
        call.result = 1
        network.break_at()


def done_once(network: Network) -> None:
    with Locks.once("job", period=timedelta(days=1)) as run:
        assert run
        network.break_at()


async def adone_once(network: Network) -> None:
    async with Locks.once("job", period=timedelta(days=1)) as run:
        assert run
        network.break_at()


def written_together(network: Network) -> None:
    with Account.locked("a") as lock, TransactWrite(connection=Account._get_connection().connection) as tx:
        tx.save(lock.item)
        network.break_at()


def committed(count: int, operation: str | None = None, *, for_update: bool = True, **options: Any) -> Any:
    def commit(network: Network) -> None:
        with transaction(Transactions, **options) as tx:
            for number in range(count):
                purse = tx.get(Purse, f"p{number}", for_update=for_update)
                purse.balance += 1
                tx.save(purse)
            network.break_at(operation)

    return commit


async def acommitted(network: Network) -> None:
    async with atransaction(Transactions, idempotency_key="k") as tx:
        purse = await tx.get(Purse, "p0", for_update=True)
        purse.balance += 1
        await tx.save(purse)
        network.break_at()


#: Each way whose last write decides, and is followed by other requests.
WAYS: Final[dict[str, Callable[[Network], Any]]] = {
    "edit": edited,
    "edit, lock in a row": edited_apart,
    "edit, awaited": aedited,
    "save under the lock": saved_under_the_lock,
    "call": called,
    "call, awaited": acalled,
    "once": done_once,
    "once, awaited": adone_once,
    "TransactWrite under the lock": written_together,
    "transaction of one": committed(1),
    "transaction": committed(3),
    "with a key": committed(1, idempotency_key="k"),
    "with a key, without locks": committed(3, for_update=False, idempotency_key="k"),
    "with a key, awaited": acommitted,
    "with a record": committed(3, record=True),
    "long": committed(9, "TransactWriteItems"),
    "long, with a key": committed(9, "TransactWriteItems", idempotency_key="k"),
}


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_outcome_is_unknown_and_can_be_resolved(
    cheap: Engine, monkeypatch: pytest.MonkeyPatch, way: str, *, is_applied: bool
) -> None:
    """The last request that failed is in its context; once requests are answered again, `resolve` tells the truth."""
    cheap.bind(Account, Device, Locks, Calls, Purse, Transactions)
    if way.startswith("long"):
        make_long_from(monkeypatch)
    Account("a", balance=1).save()
    Device("d", state="off").save()
    purses(9)
    network = Network(is_applied=is_applied)
    with pytest.raises(OutcomeUnknown) as unknown, network.mended():
        found = WAYS[way](network)
        if found is not None:
            asyncio.run(found)
    context, seen = unknown.value.__context__, list[BaseException]()
    while context is not None:
        assert context not in seen
        seen.append(context)
        context = context.__context__
    assert any("ExpiredToken" in str(each) for each in seen)
    is_released = not way.startswith(("transaction", "with a record", "with a key, without"))  # else the log has it
    assert not is_released or any(isinstance(each, LockingError) for each in seen)
    for model, key in [(Account, "a"), (Calls, "k"), *((Purse, f"p{number}") for number in range(9))]:
        for entry in model.lock_state(key).entries:  # that was not released: until its lease ends, it is in the way
            model.break_lock(key, ticket=entry.ticket)
    truth = "applied" if is_applied else "not applied"
    can_never_tell = way.startswith("once") or (way.startswith("call") and not is_applied)  # the next call tells
    assert unknown.value.resolve() == ("unknown" if can_never_tell else truth)
