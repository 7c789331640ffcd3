"""DynamoDB's own transactions, step by step: prepare each item, decide, apply each item.

Others can look between the steps. While an item is pending, others cannot write it, and no transaction touches it; a
plain read shows it as it was, also when the transaction is decided already.

Two things that no actor can observe are left out, to keep searches small. The first step is taken when the request
arrives, and the decision is made with the last prepare: before either there is a step at which others can come in.

Source: Idziorek et al., Distributed Transactions at Scale in Amazon DynamoDB (2023), and DynamoDB's documentation of
transaction conflicts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pynamo_locking._core.values import Refusal
from pynamo_locking_testing._operations import (
    TRANSACTIONAL,
    Bill,
    bill_of_repetition,
    check_same,
    check_size,
    fingerprint,
    is_repeated,
    read_writes,
    remember,
)
from pynamo_locking_testing._tables import cancelled, reason
from pynamo_locking_testing.memory import check_arguments, client_error

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

    from pynamo_locking_testing import _operations
    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing._engine.scheduler import Landing
    from pynamo_locking_testing._engine.wire import Place, Request
    from pynamo_locking_testing._tables import Store

_ONGOING: Final = "Transaction is ongoing for the item"
#: DynamoDB leaves only the pending items of a batch unprocessed; here the whole of it has to come again.
_PLAIN_WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"})


class Replaced(NamedTuple):
    """An item that was written: its stored records before and after."""

    place: Place
    old: Any
    new: Any


class Listener(Protocol):
    """Hears of what becomes of transactions."""

    def decided(self, request: Request) -> None:
        """Hear that a transaction will be applied, whatever happens from now on."""
        ...

    def applied(self, request: Request, replaced: list[Replaced]) -> None:
        """Hear that some of its items are written."""
        ...


@dataclass(eq=False)
class Transaction:
    """A TransactWriteItems that DynamoDB has begun.

    Attributes:
        request: what was asked for; its own copy.
        begun_s: when, in true time.
        bill: what it costs.
        writes: its actions.
        unprepared: numbers of the actions that are to be prepared; those of one list in one step.
        unapplied: numbers of the actions that are to be applied, once it is decided.
        changes: what the prepared actions are going to change.
        outcome: the answer, or the refusal; None until all is done.
        landing: its next step, while no caller waits for it.
    """

    request: Request
    begun_s: float
    bill: Bill
    writes: list[_operations.Write] = field(default_factory=list)
    unprepared: list[list[int]] = field(default_factory=list)
    unapplied: list[list[int]] = field(default_factory=list)
    changes: dict[int, _operations.Change] = field(default_factory=dict)
    outcome: dict[str, Any] | ClientError | None = None
    landing: Landing | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def token(self) -> str | None:
        token: str | None = self.request.kwargs.get("ClientRequestToken")
        return token

    def answer(self) -> dict[str, Any]:
        """Return the answer, or raise the refusal."""
        assert self.outcome is not None
        if isinstance(self.outcome, dict):
            return self.outcome
        raise self.outcome

    def __str__(self) -> str:
        return f"{self.request} goes on"


class Native:
    """The transactions that DynamoDB is at work on.

    Args:
        store: the tables.
        choices: decide in which order items are applied.
        prepares: in how many steps the items of a transaction are prepared, at most.
        applies: in how many steps they are applied, at most.
        listener: hears of what happens.
    """

    def __init__(self, store: Store, choices: Recorded, prepares: int, applies: int, listener: Listener) -> None:
        self._store = store
        self._choices = choices
        self._prepares = prepares
        self._applies = applies
        self._listener = listener
        self.pending: dict[Place, Transaction] = {}
        self.running: list[Transaction] = []

    # Other requests

    def refuse_conflicts(self, request: Request) -> None:
        """Refuse a request that is not allowed while one of its items is pending.

        Raises:
            ClientError: it is not.
        """
        busy = [place in self.pending for place in request.places]
        if not any(busy):
            return
        if request.operation in _PLAIN_WRITES:
            raise client_error(request.operation, "TransactionConflictException", _ONGOING, {})
        if request.operation == "TransactGetItems":
            raise _error(request, cancelled([_conflict() if each else reason(None) for each in busy]))

    # The steps of a transaction

    def begin(self, request: Request, now_s: float, now_ms: int) -> Transaction:
        """Take the first step; the only one if there is only one action, or the request is refused.

        Args:
            request: what is asked for.
            now_s: the true time.
            now_ms: DynamoDB's own time.
        """
        request = request._replace(kwargs=copy.deepcopy(request.kwargs))
        check_arguments(request.operation, request.kwargs)
        transaction = Transaction(request, now_s, Bill(request.kwargs))
        try:
            self._admit(transaction, now_ms)
        except Refusal as refusal:
            transaction.outcome = _error(request, refusal)
        if transaction.is_over:
            return transaction
        self.running.append(transaction)
        self.step(transaction, now_ms)
        while len(transaction.writes) == 1 and not transaction.is_over:
            self.step(transaction, now_ms)
        return transaction

    def _admit(self, transaction: Transaction, now_ms: int) -> None:
        """Refuse or answer the copy of another request, and plan the steps of a new one."""
        kwargs = transaction.request.kwargs
        transaction.writes = read_writes(self._store, kwargs["TransactItems"])
        if is_repeated(self._store, kwargs, now_ms):
            transaction.outcome = _answer(bill_of_repetition(transaction.writes, kwargs))
            return
        for other in self.running:
            if transaction.token is not None and other.token == transaction.token:
                check_same(fingerprint(other.request.kwargs["TransactItems"]), kwargs)
                message = "The transaction with the given request token is already in progress."
                raise Refusal("TransactionInProgressException", message, Message=message)
        transaction.unprepared = _split_evenly(len(transaction.writes), self._prepares)
        transaction.unapplied = _split_evenly(len(transaction.writes), self._applies)

    def step(self, transaction: Transaction, now_ms: int) -> None:
        """Take the next step of a transaction that is not over."""
        try:
            if transaction.unprepared:
                self._prepare(transaction)
            else:
                self._apply(transaction, now_ms)
        except Refusal as refusal:
            self._end(transaction, _error(transaction.request, refusal))

    def _prepare(self, transaction: Transaction) -> None:
        numbers = transaction.unprepared[0]
        if any(self._try(transaction, number) != reason(None) for number in numbers):
            everything = range(len(transaction.writes))
            raise cancelled([self._try(transaction, number) for number in everything])
        for number in numbers:
            self.pending[transaction.request.places[number]] = transaction
        del transaction.unprepared[0]
        if not transaction.unprepared:
            check_size(change.new for change in transaction.changes.values())
            self._listener.decided(transaction.request)

    def _try(self, transaction: Transaction, number: int) -> dict[str, Any]:
        """Evaluate an action, unless it is prepared; return the reason why it cannot be done."""
        owner = self.pending.get(transaction.request.places[number])
        if owner is transaction:
            return reason(None)
        if owner is not None:
            return _conflict()
        try:
            transaction.changes[number] = transaction.writes[number].evaluate()
        except Refusal as refusal:
            return reason(refusal)
        return reason(None)

    def _apply(self, transaction: Transaction, now_ms: int) -> None:
        """Write some of the items, any of them first; after the last one, answer."""
        which = self._choices.pick(len(transaction.unapplied), "item to apply")
        replaced = list[Replaced]()
        for number in transaction.unapplied.pop(which):
            place, change = transaction.request.places[number], transaction.changes[number]
            transaction.bill.add(change.table.name, change.apply(TRANSACTIONAL))
            del self.pending[place]
            if change.old is not change.new:
                replaced.append(Replaced(place, change.old, change.new))
        if not transaction.unapplied:
            remember(self._store, transaction.request.kwargs, now_ms)
            self._end(transaction, _answer(transaction.bill.of_all()))
        if replaced:
            self._listener.applied(transaction.request, replaced)

    def _end(self, transaction: Transaction, outcome: dict[str, Any] | ClientError) -> None:
        self.pending = {place: owner for place, owner in self.pending.items() if owner is not transaction}
        self.running.remove(transaction)
        transaction.outcome = outcome


def _split_evenly(number: int, parts: int) -> list[list[int]]:
    """Return the numbers below a number, in order, in so many lists of about the same length."""
    parts = min(parts, number)
    edges = [number * part // parts for part in range(parts + 1)]
    return [list(range(edges[part], edges[part + 1])) for part in range(parts)]


def _conflict() -> dict[str, Any]:
    return {"Code": "TransactionConflict", "Message": _ONGOING}


def _error(request: Request, refusal: Refusal) -> ClientError:
    return client_error(request.operation, refusal.code, refusal.message, refusal.details)


def _answer(response: dict[str, Any]) -> dict[str, Any]:
    return {**response, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}
