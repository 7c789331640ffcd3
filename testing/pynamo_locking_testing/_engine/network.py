"""DynamoDB, and everything that can happen on the way to it and back."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from pynamo_locking._core.dynamodb import ACTION_FAILED
from pynamo_locking._io import lock_record
from pynamo_locking_testing._engine.answers import NOT_APPLIED, failed, throttled, too_old
from pynamo_locking_testing._engine.client import FaultyClient
from pynamo_locking_testing._engine.expiry import Expiry
from pynamo_locking_testing._engine.faults import TIMEOUTS, Fault
from pynamo_locking_testing._engine.native import Native, Replaced
from pynamo_locking_testing._engine.partitions import READS, TRANSACTIONS, Partitions, write_units
from pynamo_locking_testing._engine.scheduler import LATENCY_S, Dead, Landing
from pynamo_locking_testing._engine.steps import Steps
from pynamo_locking_testing._engine.wire import Change, Image, Place, Request, places_of, step_of_lock
from pynamo_locking_testing._operations import refused, single_write
from pynamo_locking_testing.memory import MemoryDynamoDB, response_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.connection import Connection

    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing._engine.faults import Faults
    from pynamo_locking_testing._engine.native import Transaction
    from pynamo_locking_testing._engine.scheduler import Actor, Scheduler

__all__ = ["Change", "Image", "Network", "Place", "Request"]

#: An eventually consistent read may show the item as it was before so many writes.
_OLDEST: Final = 3

#: A signed request that arrives later than that is refused. Source: AWS's Signature Version 4, for most services.
_SIGNED_S: Final = 300.0

#: For how long the partition of an item is used up by others. A client of botocore's may have given up by then.
_HOT_S: Final = 0.3

#: How long botocore waits before it repeats a transaction that is in progress, or a request that was throttled.
_BACK_OFF_S: Final = 0.05

#: What a statement is refused with, where the single request has another code.
_STATEMENT_CODES: Final = {"ThrottlingException": "ThrottlingError"}

_BEFORE: Final = frozenset({Fault.CRASH_BEFORE, Fault.PAUSE_BEFORE})
_AFTER: Final = frozenset({Fault.CRASH_AFTER, Fault.PAUSE_AFTER})
_UNHEARD: Final = frozenset({Fault.FAILED_AFTER, Fault.LOST_RESPONSE})


class Network(MemoryDynamoDB):
    """The in-memory DynamoDB behind a network that is not to be trusted.

    Args:
        scheduler: says who runs.
        faults: decide what happens to a request.
        pause_s: how long a paused process stands still.
    """

    def __init__(self, scheduler: Scheduler, faults: Faults, pause_s: float) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._faults = faults
        self._pause_s = pause_s
        self._clients: dict[int, FaultyClient] = {}
        self._older: dict[Place, list[Any]] = {}
        self._tokens = 0
        self._steps: Steps | None = None
        self._expiries = list[Expiry]()
        self._partitions, self._is_limited = Partitions(), False
        self.purpose_of: Callable[[Actor], Any] = lambda _: None
        self.on_changes: list[Callable[[Request, list[Change]], None]] = []
        self.on_decided: list[Callable[[Request], None]] = []
        self.on_request: list[Callable[[Request, Fault | None, Any], None]] = []

    def time_ms(self) -> int:
        """Return DynamoDB's own time."""
        return self._scheduler.time_ms()

    def client_for(self, connection: Connection) -> FaultyClient:
        """Return the client of a connection, with its number of attempts."""
        if id(connection) not in self._clients:
            self._clients[id(connection)] = FaultyClient(self, connection)
        return self._clients[id(connection)]

    def new_token(self) -> str:
        """Return a ClientRequestToken, as botocore makes one for each call."""
        self._tokens += 1
        return f"request-{self._tokens}"

    def take_steps(self, choices: Recorded, *, prepares: int = 4, applies: int = 4) -> None:
        """Serve each TransactWriteItems in steps, between which others can look; see `native`.

        Args:
            choices: decide in which order the items are applied.
            prepares: in how many steps items are prepared, at most; 1 for fewer schedules, without crossing prepares.
            applies: in how many steps they are applied, at most; with 1, others see all or nothing of it.
        """
        native = Native(self._store, choices, prepares, applies, self)
        self._steps = Steps(native, self._scheduler, self._faults, self._heard)

    def expire(self, table: str, attribute: str = "expires_s", most: int | None = None) -> None:
        """Delete items of a table at any moment once their time is over, as DynamoDB's TTL does.

        Args:
            table: its name.
            attribute: where an item has its time, in s since the epoch.
            most: how many items; None for all.
        """
        self._expiries.append(Expiry(table, attribute, most))

    def limit(self, units: float) -> None:
        """Serve so many write units of each hash key in a second, and three times as many read units."""
        self._partitions, self._is_limited = Partitions(units, 3 * units), True

    # One attempt

    def attempt(self, operation: str, kwargs: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request once, and return or raise what the client hears of it."""
        actor = self._scheduler.current
        if actor is None:
            return super().handle(operation, kwargs)
        if operation == "BatchExecuteStatement":
            return self._batch(actor, kwargs, timeout_s)
        self._let_expire()
        places = places_of(self._store, kwargs)
        request = Request(operation, kwargs, actor, self.purpose_of(actor), places, step_of_lock())
        self._scheduler.hand_over(request)
        if self._steps is not None:
            self._steps.finish_overdue()
        fault = self._faults.at(
            operation,
            is_consistent=bool(kwargs.get("ConsistentRead")),
            may_conflict=operation not in READS,
            knows_itself=_is_fenced(request),
            now=self._scheduler.now,
        )
        fault = self._throttle(request, fault)
        if fault in _BEFORE:
            self._heard(request, fault, None)
            self._strike(fault, actor)
        if self._steps is not None and fault in _AFTER and _is_transaction(request):
            return self._interrupted(self._steps, request, fault, actor)
        try:
            answer = self._result(request, fault)
        except Exception as error:
            self._heard(request, fault, error)
            if fault in TIMEOUTS:
                self._scheduler.block(timeout_s, f"{operation} is not answered")
            self._strike_after(fault, actor)
            raise
        self._heard(request, fault, answer)
        self._strike_after(fault, actor)
        return answer

    def _batch(self, actor: Actor, kwargs: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Serve each statement as the single write that it is, with faults of its own; silence is about all of them.

        Or all have the same fault: all get lost, are late, or are throttled. Those that are late arrive one by one.
        """
        writes = [single_write(self._store, statement) for statement in kwargs["Statements"]]
        fault = self._faults.at(
            "BatchExecuteStatement", is_consistent=False, may_conflict=False, now=self._scheduler.now
        )
        if fault is not None:
            raise self._struck(actor, writes, fault, timeout_s)
        responses, silence = list[dict[str, Any]](), list[Exception]()
        for write in writes:
            try:
                old = self.attempt(*write, timeout_s).get("Attributes")
                responses.append({} if old is None else {"Item": old})
            except ClientError as error:
                given: Any = error.response
                code = _STATEMENT_CODES.get(given["Error"]["Code"], given["Error"]["Code"].removesuffix("Exception"))
                responses.append({"Error": {"Code": refused(write[0]) if code == ACTION_FAILED else code}})
            except ConnectTimeoutError:
                if not responses:
                    raise  # nothing was sent
                silence.append(ReadTimeoutError(endpoint_url="simulation"))
            except ReadTimeoutError as error:
                silence.append(error)
        if silence:
            raise silence[0]
        return {"Responses": responses, "ResponseMetadata": response_metadata(200)}

    def _struck(
        self, actor: Actor, writes: list[tuple[str, dict[str, Any]]], fault: Fault, timeout_s: float
    ) -> Exception:
        """Let a fault strike a whole batch; return what the client hears of it."""
        error = Exception()
        for operation, kwargs in writes:
            request = Request(operation, kwargs, actor, self.purpose_of(actor), places_of(self._store, kwargs), "")
            self._scheduler.hand_over(request)
            try:
                self._result(request, fault)
            except Exception as raised:  # noqa: BLE001 - what the client hears
                error = raised
            self._heard(request, fault, error)
        if fault in TIMEOUTS:
            self._scheduler.block(timeout_s, "a batch is not answered")
        return error

    def _strike_after(self, fault: Fault | None, actor: Actor) -> None:
        if fault in {Fault.CRASH_AFTER, Fault.PAUSE_AFTER}:
            self._strike(fault, actor)

    def _heard(self, request: Request, fault: Fault | None, answer: Any) -> None:
        for listener in self.on_request:
            listener(request, fault, answer)

    def _strike(self, fault: Fault | None, actor: Actor) -> None:
        if self._steps is not None:
            self._steps.detach_callers_of(actor.process)
        if fault in {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}:
            self._scheduler.kill(actor.process)
            raise Dead
        self._scheduler.pause(self._pause_s)
        self._faults.last_at = self._scheduler.now

    def _interrupted(self, steps: Steps, request: Request, fault: Fault | None, actor: Actor) -> dict[str, Any]:
        """Strike a process while DynamoDB is at work on its transaction, which goes on meanwhile."""
        transaction = self._begun(steps, request)
        steps.leave(transaction)
        self._heard(request, fault, None)
        self._strike(fault, actor)
        steps.wait_for(transaction)
        self._heard(request, None, transaction.outcome)
        return transaction.answer()

    def _result(self, request: Request, fault: Fault | None) -> dict[str, Any]:
        """Return what the client hears, or raise it."""
        if fault is Fault.HOT:
            raise throttled(request, self._are_spent(request))
        if fault is Fault.STALE:
            return self._stale(request)
        answer: dict[str, Any] = {}
        if fault is Fault.DOUBLED:
            with contextlib.suppress(ClientError):
                self.apply(request)
        if fault is Fault.LATE:
            copied = request._replace(kwargs=copy.deepcopy(request.kwargs))
            land = partial(self._land, copied, self._scheduler.now)
            self._scheduler.landings.append(Landing(f"late {request.operation}", land))
        elif fault in NOT_APPLIED:
            raise NOT_APPLIED[fault](request)
        elif self._steps is not None and _is_transaction(request):
            transaction = self._begun(self._steps, request)
            if fault not in _UNHEARD:
                self._steps.wait_for(transaction)
                return transaction.answer()
            self._steps.leave(transaction)
        else:
            with contextlib.suppress(*[ClientError] if fault in _UNHEARD else []):  # a refusal gets lost as well
                answer = self.apply(request)
        if fault is Fault.FAILED_AFTER:
            raise failed(request)
        if fault in TIMEOUTS:
            raise ReadTimeoutError(endpoint_url="simulation")
        return answer

    def _land(self, request: Request, sent_s: float) -> None:
        self._faults.last_at = self._scheduler.now
        try:
            if self._steps is not None and self._scheduler.now - sent_s > _SIGNED_S:
                raise too_old(request)
            if self._steps is not None and _is_transaction(request):
                transaction = self._begun(self._steps, request)
                self._steps.leave(transaction)
                answer: Any = transaction.outcome
            else:
                answer = self.apply(request)
        except ClientError as refusal:
            answer = refusal
        self._heard(request, Fault.LATE, answer)

    # Partitions

    def _throttle(self, request: Request, fault: Fault | None) -> Fault | None:
        """Return what happens to a request, now that its partition is known."""
        if fault is Fault.HOT:
            for place in request.places[:1]:
                self._partitions.exhaust(_partition(place), _HOT_S, reading=False, now=self._scheduler.now)
        elif fault is None and request.places and any(self._are_spent(request)):
            self._faults.note(Fault.HOT, self._scheduler.now)
            return Fault.HOT
        return fault

    def _are_spent(self, request: Request) -> list[bool]:
        reading, now = request.operation in READS, self._scheduler.now
        spent = [self._partitions.is_spent(_partition(place), reading=reading, now=now) for place in request.places]
        return spent or [True]  # a query is about no item that we know

    def _charge(self, request: Request) -> None:
        """Take the units of a request that is served now, also if a condition refuses it."""
        factor = 2.0 if request.operation in TRANSACTIONS else 1.0
        for place in request.places if self._is_limited else ():
            stored = self._record(place)
            units = factor * (1.0 if request.operation in READS else write_units(stored.size if stored else 0))
            reading, now = request.operation in READS, self._scheduler.now
            self._partitions.take(_partition(place), units, reading=reading, now=now)

    def back_off(self) -> None:
        if self._scheduler.current is not None:
            self._scheduler.block(_BACK_OFF_S, "backs off")

    def _stale(self, request: Request) -> dict[str, Any]:
        [place] = request.places
        older = self._older.get(place, [])[-_OLDEST:]
        if not older:
            return self.apply(request)
        table = self._store.table(place.table)
        now, then = table.primary.get(place.key), older[-1 - self._faults.age(len(older))]
        table.replace(now, then)
        try:
            return super().handle(request.operation, request.kwargs)
        finally:
            table.replace(then, now)

    def apply(self, request: Request) -> dict[str, Any]:
        """Let DynamoDB serve a request in one step, and tell what it changed."""
        self._scheduler.now += LATENCY_S
        self._charge(request)
        if self._steps is not None:
            self._steps.native.refuse_conflicts(request)
        token: Any = request.kwargs.get("ClientRequestToken")
        known = self._store.tokens.get(token)
        places = request.places if request.operation not in READS else ()
        before = [self._record(place) for place in places]
        answer = super().handle(request.operation, request.kwargs)
        after = [self._record(place) for place in places]
        if _is_transaction(request) and (token is None or self._store.tokens.get(token) is not known):
            self.decided(request)
        replaced = [
            Replaced(place, old, new) for place, old, new in zip(places, before, after, strict=True) if old is not new
        ]
        self.applied(request, replaced)
        return answer

    def _begun(self, steps: Steps, request: Request) -> Transaction:
        self._scheduler.now += LATENCY_S
        self._charge(request)
        return steps.begin(request)

    def decided(self, request: Request) -> None:
        """Tell that a transaction will be applied."""
        for listener in self.on_decided:
            listener(request)

    def applied(self, request: Request, replaced: list[Replaced]) -> None:
        changes = list[Change]()
        for place, old, new in replaced:
            self._older.setdefault(place, []).append(old)
            changes.append(Change(place, old and old.item, new and new.item))
        for listener in self.on_changes:
            listener(request, changes)

    def is_pending(self, place: Place) -> bool:
        """Tell whether a transaction that is not over yet has prepared an item, and not applied it."""
        return self._steps is not None and place in self._steps.native.pending

    # Expiry

    def _let_expire(self) -> None:
        """Let expired items be deleted at any later step."""
        for expiry in self._expiries:
            for place in expiry.found(self._store, self.time_ms()):
                self._scheduler.landings.append(Landing(f"TTL of {place}", partial(self._delete, expiry, place)))

    def _delete(self, expiry: Expiry, place: Place) -> None:
        old = self._record(place)
        if expiry.takes(place, None if self.is_pending(place) else old, self.time_ms()):
            self._store.table(place.table).replace(old, None)
            request = Request("TTL", {}, None, None, (place,), "")
            self.applied(request, [Replaced(place, old, None)])
            self._heard(request, None, {})

    def _record(self, place: Place) -> Any:
        return self._store.table(place.table).primary.get(place.key)

    def key_names(self, table: str) -> frozenset[str]:
        return frozenset(self._store.table(table).schema.names)

    def images(self, table: str) -> list[Image]:
        return [record.item for record in self._store.table(table).primary.scan(None, 0, 1)]

    def image(self, place: Place) -> Image | None:
        record = self._record(place)
        return None if record is None else record.item


def _is_fenced(request: Request) -> bool:
    """Tell whether an update is made under a lock, or to take one: it then knows a copy that its sender does not.

    A delete does not, nor what checks nothing of the past.
    """
    names_ticket = f"[{lock_record.TICKET}] = " in request.kwargs.get("ConditionExpression", "")
    return request.operation == "UpdateItem" and (bool(request.step) or names_ticket)


def _partition(place: Place) -> tuple[str, Any]:
    return place.table, place.key[0]


def _is_transaction(request: Request) -> bool:
    return request.operation == "TransactWriteItems"
