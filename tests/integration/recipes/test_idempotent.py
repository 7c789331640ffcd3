"""Functions that may be called twice: one result for each key, whichever caller comes, and however calls end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from http import HTTPStatus
from json import JSONDecodeError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ConnectionClosedError
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import NamedLock, atransaction, atransactional, transaction, transactional
from pynamo_locking.exceptions import (
    CallAbandoned,
    ConfigurationError,
    Conflict,
    InvalidInput,
    ItemLocked,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    PayloadMismatch,
    StaleVersion,
)
from pynamo_locking.recipes import IdempotencyTable, idempotent
from pynamo_locking.transactions import current_transaction
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock
from tests.support.call_models import Calls
from tests.support.models import Locks
from tests.support.parties import SLOW_CLOCK, in_thread, shifted_clock
from tests.support.transaction_models import Purse, Transactions
from tests.support.wire import Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


class Declined(Exception):  # noqa: N818
    """An error that is final."""


class Refused(Exception):  # noqa: N818
    """Another one, which its arguments do not make again."""

    def __init__(self, order: str, why: object) -> None:
        super().__init__(f"{order}: {why}")
        self.why = why


class CardDeclined(Declined):
    """A special case of an error that is final."""


class WebError(Declined):
    """Has its facts in attributes, and calls no other constructor, as that of Starlette."""

    def __init__(self, status: int, detail: str | None = None, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.detail = detail or "Payment Required"
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"


class Worded(Declined):
    """Has fields that are given by name only."""

    def __init__(self, *, code: int, _why: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self._why = _why


@dataclass
class Dated(Declined):
    """A dataclass."""

    code: int
    why: str = field(kw_only=True)


class Wording(str):
    """A text that JSON takes for a plain one."""

    __slots__ = ()


class Slotted(Declined):
    """Keeps a fact where `vars` does not show it."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__("declined")
        self.code = code


class Strange(Declined):
    """Says something else each time that it is made."""

    def __str__(self) -> str:
        return f"{id(self)}"


class Twin(Declined):
    """There are two of that name."""


OLDER_TWIN = Twin


class Twin(Declined):  # type: ignore[no-redef]
    """The other one."""


class Listed(Declined):
    """Makes its words of its attributes."""

    def __init__(self, lines: Any) -> None:
        self.lines = lines

    def __str__(self) -> str:
        return ", ".join(map(str, self.lines))


class Caused(Declined):
    """Says what has caused it, which nothing keeps."""

    def __str__(self) -> str:
        return f"because of {self.__cause__!r}"


def caused() -> Declined:
    error = Caused("no money")
    error.__cause__ = ValueError("v")
    return error


class Kept:
    """A value that knows no equality."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return "Kept"


class Keeping:
    """A serializer that has a word for it."""

    @staticmethod
    def dumps(value: Any) -> str:
        return json.dumps(value, default=lambda kept: {"kept": kept.content})

    @staticmethod
    def loads(text: str) -> Any:
        return json.loads(text, object_hook=lambda each: Kept(each["kept"]) if "kept" in each else each)


def noted() -> Declined:
    """An error with an attribute that it was given later."""
    error = Declined("no money")
    error.receipt = {"id": 17, "lines": ["a"]}  # type: ignore[attr-defined]
    return error


@pytest.fixture
def calls(cheap: Engine) -> type[Calls]:
    """The table, on the two cheap engines."""
    return cheap.bind(Calls)


@pytest.fixture
def calls_anywhere(engine: Engine) -> type[Calls]:
    """The table, on each engine."""
    return engine.bind(Calls)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """The table in memory, in virtual time, with few looks."""
    rare = replace(Calls.Meta.lock_settings, poll_interval=1, max_poll_interval=1)
    monkeypatch.setattr(Calls.Meta, "lock_settings", rare)
    with MemoryDynamoDB(), VirtualClock() as clock:
        Calls.create_table()
        yield clock


class Lambda:
    """What AWS Lambda passes to a handler."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def get_remaining_time_in_millis(self) -> int:
        return int(self.left_s * 1000)


@pytest.fixture(params=["called", "awaited"])
def way(request: pytest.FixtureRequest) -> str:
    """How a function is called that is decorated: a coroutine function is awaited."""
    way: str = request.param
    return way


def counting(way: str = "called", **options: Any) -> Any:
    """Return a function that counts its calls; its result is the number of the call."""
    done: list[int] = []

    def work(amount: int) -> dict[str, int]:
        done.append(amount)
        if amount < 0:
            raise Declined("no money", amount)
        if amount == 0:
            raise ValueError("no amount")
        return {"number": len(done), "amount": amount}

    def charge(order_id: str, amount: int = 1) -> dict[str, int]:
        return work(amount)

    async def acharge(order_id: str, amount: int = 1) -> dict[str, int]:
        return work(amount)

    prefixed = {"key_prefix": "charge", **options}
    decorated: Any = idempotent(Calls, key="order_id", **prefixed)(charge if way == "called" else acharge)
    call: Any = decorated if way == "called" else lambda *arguments: asyncio.run(decorated(*arguments))
    return SimpleNamespace(call=call, done=done)


def test_a_second_call_gets_the_result_of_the_first(calls, way):
    """It costs two writes, and one refused write for each repeat."""
    charge = counting(way).call
    with count_requests() as requests:
        first = charge("o-1", 5)
    assert dict(requests.by_operation) == {"UpdateItem": 2}
    with count_requests() as requests:
        assert charge("o-1", 7) == first == {"number": 1, "amount": 5}
    assert dict(requests.by_operation) == {"UpdateItem": 1}
    assert charge("o-2")["number"] == 2
    assert calls.lock_state("charge#o-1").entries == ()
    row = calls.get("charge#o-1")
    assert row.expires.timestamp() * 1000 >= row.kept_until_ms


def test_the_name_of_a_function_begins_its_keys(memory):
    """Its module, and its qualified name."""
    Calls.create_table()
    idempotent(Calls, key="n")(work_of_a_name)(1)
    assert [row.name for row in Calls.scan()] == [f"{__name__}.work_of_a_name#1"]


def work_of_a_name(n: int) -> int:
    return n


def test_a_function_that_raises_frees_its_key(calls, way):
    """Nothing is stored; the next call runs, and may have another payload."""
    charge = counting(way, payload="amount").call
    with pytest.raises(ValueError, match="no amount"):
        charge("o-1", 0)
    with count_requests() as requests:
        assert charge("o-1", 3)["amount"] == 3
    assert dict(requests.by_operation) == {"UpdateItem": 3}
    assert charge("o-1", 3)["number"] == 2


def test_an_exception_that_is_final_is_a_result(calls, way):
    """It is raised again, with its arguments, and nothing is done."""
    charge = counting(way, store_errors=(Declined,))
    for _ in range(2):
        with pytest.raises(Declined) as refused:
            charge.call("o-1", -3)
        assert refused.value.args == ("no money", -3)
    assert charge.done == [-3]
    with pytest.raises(ConfigurationError, match=r"has ended with .*Declined"), calls.call("charge#o-1"):
        raise AssertionError


@pytest.mark.core
@pytest.mark.parametrize("way", ["called", "awaited", "block"])
@pytest.mark.parametrize(
    "error",
    [
        CardDeclined("no money", 3),
        WebError(402, detail="no money", headers={"x": "y"}),
        Worded(code=7, _why="stolen"),
        Dated(7, why="stolen"),
        Refused("o-1", "too late"),
        Listed(["a", {"b": 1.5}, None, True]),
        noted(),
        JSONDecodeError("no JSON", "{", 1),
        KeyError("k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_repeat_raises_what_the_first_call_raised(calls_anywhere, way, error):
    """A subclass of the stored class, too, as by `except`; with its attributes, whatever its constructor asks for."""
    done = list[str]()

    def work(_: str) -> None:
        done.append("work")
        raise error

    async def awork(order_id: str) -> None:
        work(order_id)

    terms: Any = {"store_errors": (Declined, Refused, ValueError, LookupError)}
    decorate = idempotent(Calls, key="_", key_prefix="charge", **terms)
    adecorate = idempotent(Calls, key="order_id", key_prefix="charge", **terms)

    def block(order_id: str) -> None:
        with Calls.call(f"charge#{order_id}", **terms) as call:
            if not call.is_repeated:
                work(order_id)

    call = {"called": decorate(work), "awaited": lambda key: asyncio.run(adecorate(awork)(key)), "block": block}[way]
    for _ in range(3):
        with pytest.raises(type(error)) as raised:
            call("o-1")
        assert type(raised.value) is type(error)
        assert (raised.value.args, vars(raised.value)) == (error.args, vars(error))
        assert str(raised.value) == str(error)
    assert done == ["work"]


@pytest.mark.core
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Slotted(7), "a repeat would raise"),
        (Strange("x"), "a repeat would raise"),
        (FileNotFoundError(2, "no such file", "f"), "a repeat would raise"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), "not JSON serializable"),
        (Worded(code=7, _why=Decimal(1)), "not JSON serializable"),  # type: ignore[arg-type]
        (OLDER_TWIN("x"), "another exception has its name"),
        (Declined(("no", "money")), r"whose args is \(\['no', 'money'\],\), and not \(\('no', 'money'\),\)"),
        (Declined([{"lines": ("a",)}]), r"whose args is .*\['a'\].*, and not .*\('a',\)"),
        (Declined({1: "one"}), r"whose args is \(\{'1': 'one'\},\)"),
        (Declined({1: "one", "1": "other"}), "whose args is"),
        (Declined({None: 1, True: 2}), "whose args is"),
        (Declined({"a"}), "not JSON serializable"),
        (Declined(HTTPStatus.PAYMENT_REQUIRED), "whose args is"),
        (Declined(OrderedDict(a=1)), "whose args is"),
        (Refused("o-1", ("too", "late")), r"whose why is \['too', 'late'\], and not \('too', 'late'\)"),
        (Listed(lines=("a", "b")), "whose lines is"),
        (Listed(lines={1: "a"}), "whose lines is"),
        (Declined(Wording("x")), r"whose args has other types"),
        (caused(), "whose text is 'because of None', and not"),
    ],
)
def test_an_error_that_a_repeat_cannot_raise_is_refused_when_it_is_stored(calls_anywhere, error, why):
    """With the reason, caused by the error; the key is free."""
    terms: Any = {"store_errors": (Declined, Refused, OSError, ValueError)}
    with pytest.raises(ConfigurationError, match=why) as refused, Calls.call("k", **terms):
        raise error
    assert refused.value.__cause__ is error
    with Calls.call("k", **terms) as call:
        assert not call.is_repeated


@pytest.mark.core
def test_an_error_with_a_value_that_is_not_equal_to_itself(calls_anywhere):
    """JSON of Python knows NaN."""
    for _ in range(2):
        with pytest.raises(Declined, match="nan"), calls_anywhere.call("k", store_errors=(Declined,)):
            raise Declined([float("nan")])


@pytest.mark.core
@pytest.mark.parametrize(("content", "is_stored"), [([1, {"a": None}], True), ((1, 2), False), ([(1,)], False)])
def test_values_that_know_no_equality_are_compared_by_what_they_hold(calls_anywhere, content, is_stored):
    """Where a serializer of the caller takes more than JSON."""
    for _ in range(2):
        with (
            pytest.raises(Declined if is_stored else ConfigurationError) as raised,
            calls_anywhere.call("k", store_errors=(Declined,), serializer=Keeping),
        ):
            raise Declined(Kept(content))
        if is_stored:
            assert raised.value.args[0].content == content


def test_an_error_of_a_class_that_is_not_known_here_is_refused_by_its_name(memory):
    """Nobody imports a module that a row names."""
    Calls.create_table()
    with pytest.raises(CardDeclined), Calls.call("k", store_errors=(Declined,)):
        raise CardDeclined("no money")
    with (
        pytest.raises(ConfigurationError, match=r"test_idempotent\.CardDeclined, .*no money"),
        Calls.call("k", store_errors=(Refused,)),
    ):
        raise AssertionError


class Charging:
    """A base class; what a subclass charges is its own."""

    rate = 1

    def __init__(self, account: str = "a") -> None:
        self.account = account

    @idempotent(Calls, key="order_id")
    def charge(self, order_id: str) -> int:
        return self.rate

    @idempotent(Calls, key="order_id", key_prefix="charge")
    def charge_named(self, order_id: str) -> int:
        return self.rate

    @idempotent(Calls, key="order_id")
    async def acharge(self, order_id: str) -> int:
        return self.rate

    @classmethod
    @idempotent(Calls, key="order_id")
    def charge_all(cls, order_id: str) -> int:
        return cls.rate

    @staticmethod
    @idempotent(Calls, key="order_id")
    def charge_any(order_id: str) -> int:
        return 1

    @idempotent(Calls, key=lambda self, order_id: f"{self.account}/{order_id}")
    def charge_account(self, order_id: str) -> str:
        return self.account


class Double(Charging):
    """Charges twice as much."""

    rate = 2

    @idempotent(Calls, key="order_id")
    def charge_over(self, order_id: str) -> int:
        return super().charge(order_id) + 1


class Triple(Double):
    """Charges three times as much."""

    rate = 3


@idempotent(Calls, key="order_id")
def charged_by(self: Any, order_id: str) -> int:
    return self.rate


Double.charged_by = Triple.charged_by = charged_by  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "call",
    [
        lambda each: each().charge("o"),
        lambda each: each().charge_named("o"),
        lambda each: asyncio.run(each().acharge("o")),
        lambda each: each.charge_all("o"),
        lambda each: each().charge_all("o"),
        lambda each: charged_by(each(), "o"),
        lambda each: each().charge_account("o") and each.rate,
    ],
    ids=["method", "prefix", "coroutine", "classmethod", "classmethod of an instance", "function", "key"],
)
def test_a_method_is_another_one_in_each_subclass(calls, call):
    """What one subclass has done is not done for the other one; each has its own result."""
    for _ in range(2):
        assert [call(each) for each in (Charging, Double, Triple)] == [1, 2, 3]


def test_a_method_of_the_class_that_defines_it_has_its_name_alone(memory):
    """One that is inherited has the name of the class as well; a static method has none. An inherited call nests."""
    Calls.create_table()
    Charging().charge("o")
    assert Triple.charge_any("o") == 1
    assert Triple().charge_over("o") == 4
    assert Triple().charge_account("o") == "a"
    assert Triple("b").charge_account("o") == "b"
    own, triple = f"{__name__}.Charging.charge", f"[{__name__}.Triple]"
    assert {row.name for row in Calls.scan()} == {
        f"{own}#o",
        f"{own}_any#o",
        f"{own}{triple}#o",
        f"{__name__}.Double.charge_over{triple}#o",
        f"{own}_account{triple}#a/o",
        f"{own}_account{triple}#b/o",
    }


class Kind(str, Enum):
    """Texts with names; another word in a format string, in each release of Python."""

    PAY = "pay"
    CHARGE = "charge"


class Number(int, Enum):
    """Numbers with names."""

    ONE = 1


def test_a_key_that_is_an_enum_is_its_value(memory):
    """In a decorator, its prefix, a block and a transaction, and in a range of a name: in every release of Python."""
    memory.bind(Calls, Purse, Transactions, Locks)

    @idempotent(Calls, key="kind", key_prefix=Kind.CHARGE)
    def charge(kind: Any) -> str:
        return "done"

    charge(Kind.PAY)
    charge(Number.ONE)
    with Calls.call(Kind.PAY):
        pass
    assert {row.name for row in Calls.scan()} == {"charge#pay", "charge#1", "pay"}
    with transaction(Transactions, idempotency_key=Kind.PAY) as tx:
        tx.save(Purse("p", balance=1))
    assert [row.id for row in Transactions.scan()] == ["key#pay"]
    with transaction(Transactions, idempotency_key="pay") as tx:
        tx.save(Purse("p", balance=2))
    assert tx.is_repeated
    assert Transactions.outcome(idempotency_key=Kind.PAY) == "committed"
    with Locks.locked_range("r", Number.ONE, 2):
        [entry] = Locks.lock_state("r").entries
    assert entry.lock_mode.lower == ("N", "1")


class Interrupted:
    """A serializer that does not come to its end."""

    loads = json.loads

    @staticmethod
    def dumps(_: Any) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("result", "terms", "error", "match"),
    [
        (object(), {}, TypeError, "not JSON"),
        ("\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 70_000, {}, ConfigurationError, "return where it is"),
        (None, {"serializer": Interrupted}, KeyboardInterrupt, None),
        (Declined(object()), {"store_errors": (Declined,)}, ConfigurationError, "cannot be stored: .*not JSON"),
    ],
)
def test_an_end_that_cannot_be_stored_frees_the_key(calls, result, terms, error, match):
    """A result, or a final exception; whatever the serializer raises reaches the caller."""
    with pytest.raises(error, match=match), calls.call("k", **terms) as call:
        if isinstance(result, Exception):
            raise result
        call.result = result
    assert calls.lock_state("k").entries == ()
    with calls.call("k") as call:
        assert not call.is_repeated
        call.result = "x" * 389_000
    with calls.call("k") as call:
        assert len(call.result) == 389_000


def test_another_payload_is_refused(calls, way):
    """The error names the key; without a payload nothing is compared."""
    charge = counting(way, payload="amount")
    charge.call("o-1", 5)
    with pytest.raises(PayloadMismatch) as refused:
        charge.call("o-1", 6)
    assert refused.value.key == "charge#o-1"
    assert charge.done == [5]
    with pytest.raises(PayloadMismatch), calls.call(refused.value.key, payload=b"[5]x"):
        raise AssertionError
    with calls.call(refused.value.key) as call:
        assert call.is_repeated


def test_a_payload_that_is_none_is_compared(calls):
    """It is an argument as any other."""
    pay = idempotent(Calls, key="n", payload="amount", key_prefix="pay")(lambda n, amount=None: [n, amount])
    assert pay(1) == pay(1, None) == [1, None]
    with pytest.raises(PayloadMismatch):
        pay(1, 5)


def test_every_caller_gets_what_was_stored(calls):
    """The first one too: a tuple becomes a list in the first test, and not in the first repeat in production."""

    @idempotent(Calls, key=lambda first, *others: f"{first}-{len(others)}")
    def pair(*values: int) -> tuple[int, ...]:
        return values

    assert pair(1, 2) == pair(1, 3) == [1, 2]
    assert pair(1, 2, 3) == [1, 2, 3]


class Reversed:
    """A serializer that no other one understands."""

    @staticmethod
    def dumps(value: Any) -> Any:
        return value[::-1] if isinstance(value, str) else value

    @staticmethod
    def loads(text: str) -> str:
        return text[::-1]


def test_a_serializer_of_the_caller(calls):
    """It has to make text."""
    for _ in range(2):
        with calls.call("k", serializer=Reversed) as call:
            if not call.is_repeated:
                call.result = "abc"
        assert call.result == "abc"
    assert calls.get("k").result == "cba"
    with pytest.raises(ConfigurationError, match="must make text"), calls.call("k-2", serializer=Reversed) as call:
        call.result = b"abc"


def test_a_call_in_progress_is_waited_for_or_refused(calls):
    """By choice; a waiter gets the result without a turn of its own."""
    begun, ends, results = threading.Event(), threading.Event(), list[Any]()

    @idempotent(Calls, key="order_id", key_prefix="slow")
    def slow(order_id: str) -> str:
        begun.set()
        ends.wait(60)
        return order_id + "!"

    def wait_for_it() -> None:
        results.append(slow("o-1"))

    threads = [threading.Thread(target=wait_for_it) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    with pytest.raises(LockTimeout), calls.call("slow#o-1", wait=0):
        raise AssertionError
    ends.set()
    for thread in threads:
        thread.join()
    assert results == ["o-1!"] * 4
    assert calls.lock_state("slow#o-1").entries == ()


def test_a_refusal_of_a_call_in_progress_is_one_request(calls):
    """`wait=0` does not send a second write to hear the same."""

    def other() -> dict[str, int]:
        with count_requests() as requests, pytest.raises(LockTimeout), calls.call("k", wait=0):
            raise AssertionError
        return dict(requests.by_operation)

    with calls.call("k"):
        assert in_thread(other) == {"UpdateItem": 1}


def test_a_call_within_itself_is_refused(calls):
    """It would wait for itself, or do the work twice."""
    with calls.call("k") as call:
        with pytest.raises(ConfigurationError, match="in progress in this very thread"), calls.call("k"):
            raise AssertionError
        call.result = 1
    assert call.result == 1


def test_what_is_expired_does_not_count(clock):
    """Although its row is still there."""
    charge = counting(expires_after=timedelta(hours=1)).call
    assert charge("o-1")["number"] == 1
    clock.jump(3_599)
    assert charge("o-1")["number"] == 1
    clock.jump(2)
    assert charge("o-1")["number"] == 2
    assert charge("o-1")["number"] == 2


def test_a_result_is_kept_longer_than_a_row_of_a_lock(clock):
    """DynamoDB's TTL leaves the row for as long as the result counts, also if a waiter was the last to write it."""
    begun = threading.Event()
    month = timedelta(days=30)

    def first() -> None:
        with Calls.call("k", expires_after=month) as call:
            begun.set()
            clock.jump(1)
            call.result = 1

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    with Calls.call("k", expires_after=month) as call:
        assert call.is_repeated
    thread.join()
    row = Calls.get("k")
    assert row.expires.timestamp() * 1000 >= row.kept_until_ms


def test_a_crashed_call_is_taken_over_and_its_result_is_never_stored(clock):
    """Under a new ticket; the zombie's result is refused."""
    zombie = Calls.call("k", heartbeat=False, lease=20)
    zombie.__enter__()

    def other() -> Any:
        with Calls.call("k", wait=60) as call:
            assert not call.is_repeated
            assert call.lock.ticket > zombie.lock.ticket
            call.result = "second"
        return call.result

    assert in_thread(other) == "second"
    zombie.result = "zombie"
    with pytest.raises(LockLost):
        zombie.__exit__(None, None, None)
    with Calls.call("k") as call:
        assert call.result == "second"


def test_a_lambda_function_is_taken_over_when_its_time_is_over(clock):
    """Its lease is what is left of the invocation, and no heartbeat goes on beside a frozen process."""

    @idempotent(Calls, key=lambda event, context: event["id"], key_prefix="handler")
    def handler(event: dict[str, str], context: Lambda) -> str:
        call = Calls.lock_state("handler#" + event["id"])
        assert call.entries[0].lease_ms == 15_000
        raise KeyboardInterrupt  # stands for the death of the process

    dying = Calls.call("handler#m-1", lambda_context=Lambda(15))
    dying.__enter__()
    assert dying.lock.remaining == 15
    began = clock.elapsed

    def retry() -> None:
        with Calls.call("handler#m-1", lambda_context=Lambda(60)) as call:
            call.result = "done"

    in_thread(retry)
    assert 15 <= clock.elapsed - began <= 15 * SLOW_CLOCK + 2
    with pytest.raises(KeyboardInterrupt):
        handler({"id": "m-2"}, Lambda(15))


def test_a_short_invocation_has_the_shortest_lease(clock):
    """A function of three seconds could not use the lock otherwise; and it does not wait until it is killed."""
    with Calls.call("k", lambda_context=Lambda(3)) as call:
        assert call.lock.remaining == 6
        with pytest.raises(LockTimeout, match=r"within 1\.5 s"):
            in_thread(Calls.call("k", lambda_context=Lambda(3)).__enter__)
    with pytest.raises(ConfigurationError, match="sets the lease"):
        Calls.call("k", lambda_context=Lambda(3), lease=10)


def test_a_lost_answer_changes_nothing(calls, way):
    """Neither to the request that enters nor to the one that stores the result."""
    charge = counting(way).call
    for n, times in enumerate((1, 1, 2)):
        with on("UpdateItem", times=times).lose_response():
            assert charge(f"o-{n}")["number"] == n + 1
    with on("UpdateItem", where=lambda body: "version" in str(body)).lose_response():
        assert charge("o-9")["number"] == 4
    assert charge("o-9")["number"] == 4


def test_an_unknown_outcome_is_told_by_the_next_call(calls, way):
    """The result was stored although no answer came."""
    charge = counting(way)
    with (
        VirtualClock(),
        on("UpdateItem", times=99, where=lambda body: "version" in str(body)).lose_response(),
        pytest.raises(OutcomeUnknown),
    ):
        charge.call("o-1")
    assert charge.call("o-1")["number"] == 1
    assert charge.done == [1]


def test_a_late_copy_of_a_first_request_does_no_harm(calls):
    """The request that creates the row arrives when the call is over."""
    charge = counting()
    with on("UpdateItem", times=1).delay() as late:
        first = charge.call("o-1")
    late[0]()
    assert charge.call("o-1") == first
    assert charge.done == [1]


# In asyncio


def test_coroutines_are_called_once(calls):
    """All that wait get the result."""
    done = []

    @idempotent(Calls, key="order_id", key_prefix="acharge")
    async def charge(order_id: str) -> int:
        done.append(order_id)
        await asyncio.sleep(0)
        return len(done)

    async def use() -> None:
        assert await asyncio.gather(*(charge("o-1") for _ in range(5))) == [1] * 5
        async with Calls.call("acharge#o-1") as call:
            assert call.is_repeated
            assert call.result == 1

    asyncio.run(use())
    assert calls.lock_state("acharge#o-1").entries == ()


# In transactions


@pytest.fixture
def purse(cheap: Engine) -> Purse:
    """Beside the table of calls."""
    cheap.bind(Calls, Purse, Transactions)
    Purse("p", balance=100).save()
    return Purse.get("p")


def pay_into(way: str = "called", **options: Any) -> Any:
    """Return a function whose effect and result are stored together."""
    terms: dict[str, Any] = {"key": "message_id", "payload": "amount", "key_prefix": "pay_in", **options}

    @transactional()
    @idempotent(Calls, **terms)
    def pay_in(tx: Any, message_id: str, amount: int) -> int:
        item = tx.get(Purse, "p")
        item.balance += amount
        tx.save(item)
        if amount < 0:
            raise ValueError("no amount")
        return int(item.balance)

    @atransactional()
    @idempotent(Calls, **terms)
    async def apay_in(tx: Any, message_id: str, amount: int) -> int:
        item = await tx.get(Purse, "p")
        item.balance += amount
        await tx.save(item)
        if amount < 0:
            raise ValueError("no amount")
        return int(item.balance)

    return pay_in if way == "called" else lambda *arguments: asyncio.run(apay_in(*arguments))


def test_effect_and_result_are_committed_together(purse, way):
    """One native transaction, and one read before; no lock is taken."""
    pay_in = pay_into(way, expires_after=timedelta(days=30))
    with count_requests() as requests:
        assert pay_in("m-1", 5) == 105
    assert dict(requests.by_operation) == {"GetItem": 2, "TransactWriteItems": 1}
    with count_requests() as requests:
        assert pay_in("m-1", 5) == 105
    assert dict(requests.by_operation) == {"GetItem": 1, "TransactGetItems": 1}
    with pytest.raises(PayloadMismatch):
        pay_in("m-1", 6)
    with pytest.raises(ValueError, match="no amount"):
        pay_in("m-2", -1)
    assert pay_in("m-2", 1) == 106
    assert Purse.get("p").balance == 106
    row = Calls.get("pay_in#m-1")
    assert row.expires.timestamp() * 1000 >= row.kept_until_ms


def test_a_new_result_leaves_nothing_of_an_expired_one(clock):
    """The payload of the first call is not compared with that of a repeat of the second, which had none."""
    with Calls.call("k", payload="first", expires_after=timedelta(hours=1)) as call:
        call.result = 1
    clock.jump(3_601)
    with transaction(), Calls.call("k") as call:
        call.result = 2
    with Calls.call("k", payload="third") as call:
        assert call.is_repeated
        assert call.result == 2


def test_two_transactions_with_one_key_do_it_once(purse):
    """The second is refused by the row of the first, begins again, and finds the result."""
    pay_in, results = pay_into(), list[Any]()
    with transaction() as tx, Calls.call("pay_in#m-1", payload=[5]) as call:
        results.append(in_thread(lambda: pay_in("m-1", 5)))
        tx.save(Purse("other"))
        call.result = 0
        with pytest.raises(StaleVersion):
            tx.commit() if leave(call) else None
    assert results == [105]
    assert Purse.get("p").balance == 105


def leave(call: Any) -> bool:
    """End the block of a call early."""
    call.__exit__(None, None, None)
    call.is_repeated = True  # so that its real end does nothing
    return True


def test_a_call_with_a_lock_and_one_in_a_transaction_exclude_each_other(purse):
    """Whichever way the other callers of a key go."""
    pay_in = pay_into()
    with Calls.call("pay_in#m-1") as call:
        call.result = 7
    assert pay_in("m-1", 5) == 7
    assert pay_in("m-2", 5) == 105
    with Calls.call("pay_in#m-2") as call:
        assert call.result == 105


def test_a_committed_result_replaces_an_error_that_is_no_longer_kept(purse):
    """A repeat gets the result of the call that succeeded, and not the error of the one before."""
    with pytest.raises(Declined), Calls.call("k", expires_after=60, store_errors=(Declined,)):
        raise Declined("no money")
    with shifted_clock() as clock:
        clock.shift = 61
        with transaction(), Calls.call("k") as call:
            call.result = "paid"
        told: Any = None
        try:
            with Calls.call("k", store_errors=(Declined,)) as again:
                told = again.result
        except Declined as error:
            told = error
    assert told == "paid", "the commit has stored a result, and left the error of an earlier call beside it"


def test_a_lock_around_and_a_result_in_the_commit(purse):
    """`complete` stores the result with the effect, guarded by the lock."""
    with Calls.call("k") as call:
        with count_requests() as requests, transaction() as tx:
            tx.save(Purse("new"))
            call.complete("done")
        assert dict(requests.by_operation) == {"TransactWriteItems": 1}
    assert call.result == "done"
    with Calls.call("k") as again:
        assert (again.is_repeated, again.result) == (True, "done")
    assert Calls.lock_state("k").entries == ()
    with pytest.raises(ConfigurationError, match="not committed"), Calls.call("k-2") as call:
        tx = transaction()
        with pytest.raises(ZeroDivisionError), tx:
            call.complete(1)
            raise ZeroDivisionError
    with Calls.call("k-2") as call:
        assert not call.is_repeated
        with pytest.raises(ConfigurationError, match=r"assign call\.result"):
            call.complete(1)


def test_what_a_failed_call_was_to_write_is_not_committed(purse):
    """Although the caller goes on with the transaction; the key is free then."""

    @idempotent(Calls, key="n", key_prefix="write")
    def write(n: int, tx: Any) -> None:
        tx.save(Purse(f"new-{n}"))
        if n < 2:
            raise ValueError("no")

    with transaction() as tx:
        with pytest.raises(ValueError, match="no"):
            write(1, tx)
        write(2, tx)
    with pytest.raises(Purse.DoesNotExist):
        Purse.get("new-1")
    Purse.get("new-2")
    with Calls.call("write#1") as call:
        assert not call.is_repeated


def test_a_task_stores_the_result_with_its_commit(purse):
    """`complete` in `atransaction`."""

    async def use() -> None:
        async with Calls.call("k") as call, atransaction() as tx:
            await tx.save(Purse("new"))
            call.complete([1])
        async with Calls.call("k") as again:
            assert again.result == call.result == [1]

    asyncio.run(use())
    assert Purse.get("new").balance == 0


def test_a_commit_of_a_zombie_is_refused(purse):
    """Its effect and its result, both."""
    zombie = Calls.call("k", heartbeat=False)
    zombie.__enter__()
    Calls.break_lock("k", ticket=zombie.lock.ticket)
    with pytest.raises(LockLost), transaction() as tx:
        tx.save(Purse("new"))
        zombie.complete("zombie")
    with pytest.raises(Purse.DoesNotExist):
        Purse.get("new")
    assert Calls.get("k").result is None


def test_final_exceptions_are_refused_in_a_transaction(purse):
    """It would be rolled back with what they stand for."""
    with pytest.raises(ConfigurationError, match="stores nothing"):
        pay_into(store_errors=(Declined,))("m-1", 5)


def test_calls_in_a_table_of_other_items(memory):
    """Under a prefix: an item, a lock and a call of one name do not see each other."""

    class App(Model):
        class Meta:
            table_name = "app"

        pk = UnicodeAttribute(hash_key=True)
        sk = UnicodeAttribute(range_key=True)

    memory.bind(App, Purse, Transactions)
    place = {name: getattr(App.Meta, name) for name in ("table_name", "host", "region", *memory.credentials)}

    class Shared(IdempotencyTable):
        Meta = type("Meta", (), {**place, "keys": ("pk", "sk"), "prefix": "ours#"})

    class SharedLocks(NamedLock):
        Meta = type("Meta", (), {**place, "keys": ("pk", "sk"), "prefix": "ours#"})

    App("ours#f#1", "mine").save()
    double = idempotent(Shared, key="n", payload="n", key_prefix="f")(lambda n: [n, n])
    with SharedLocks.locked("f#1"):
        assert double(1) == double(1) == [1, 1]
    with transaction() as tx, Shared.call("g") as call:
        tx.save(Purse("new"))
        call.result = 2
    with Shared.call("g") as call:
        assert call.result == 2
    with Shared.call("h") as call, transaction() as tx:
        tx.save(Purse("newer"))
        call.complete(3)
    assert Shared.get("h").result == "3"
    assert {row.sk for row in App.scan()} == {"mine", "lock#f#1", "call#f#1", "call#g", "call#h"}


def test_each_attempt_of_a_transaction_completes_the_call(memory):
    """And what a rolled back one was to store is not the result."""
    Calls.create_table()
    Purse.create_table()
    Purse("p", balance=1).save()
    attempts: list[int] = []

    @transactional()
    def pay(tx: Any, call: Any) -> None:
        purse = tx.get(Purse, "p")
        attempts.append(purse.balance)
        purse.balance += 10
        tx.save(purse)
        call.complete(purse.balance)
        if len(attempts) == 1:
            Purse("p", balance=2).save(add_version_condition=False)

    with Calls.call("k") as call:
        pay(call)
    assert attempts == [1, 2]
    assert Purse.get("p").balance == call.result == 12
    with Calls.call("k") as again:
        assert again.result == 12
    with Calls.call("rolled back") as call:
        with pytest.raises(ZeroDivisionError), transaction():
            call.complete(1)
            raise ZeroDivisionError
        call.result = 2
    assert call.result == 2
    assert json.loads(Calls.get("rolled back").result) == 2


def test_a_result_that_a_savepoint_takes_back_is_not_lost_unseen(memory):
    Calls.create_table()
    with pytest.raises(ConfigurationError, match="is not committed"), Calls.call("k") as call, transaction() as tx:
        before = tx.savepoint()
        call.complete(1)
        before.rollback()
    with Calls.call("k") as call, transaction() as tx:
        before = tx.savepoint()
        call.complete(1)
        before.rollback()
        call.complete(2)
    assert json.loads(Calls.get("k").result) == call.result == 2


def test_a_result_that_is_not_committed_when_the_call_ends_is_not_lost_unseen(purse):
    """The transaction is still open, and could roll back later."""
    with ExitStack() as ends_later:
        with pytest.raises(ConfigurationError, match="is not committed"), Calls.call("k") as call:
            ends_later.enter_context(transaction()).save(Purse("new"))
            call.complete(1)
        assert Calls.lock_state("k").entries == ()
        current_transaction().rollback()
    with Calls.call("k") as call:
        assert not call.is_repeated


def test_a_transaction_that_could_not_store_the_result_is_refused_before_the_work(memory):
    """It is read only, or has a key of its own."""
    Calls.create_table()
    Transactions.create_table()
    charge = counting()
    for options in ({"read_only": True}, {"isolation": "snapshot"}):
        with transaction(**options), pytest.raises(ConfigurationError, match="read only"):
            charge.call(1)
    assert charge.done == []
    with Calls.call("k") as call:
        with transaction(Transactions, idempotency_key="own"), pytest.raises(ConfigurationError, match="key out"):
            call.complete(1)
        call.result = 2
    assert json.loads(Calls.get("k").result) == 2


def test_a_transactional_function_is_refused(memory):
    """It would commit before its result is stored, and the second call after a crash would do it again."""
    with pytest.raises(ConfigurationError, match="above @idempotent"):

        @idempotent(Calls, key="a")
        @transactional()
        def _function(tx: Any, a: str) -> None: ...

    with pytest.raises(ConfigurationError, match="above @idempotent"):

        @idempotent(Calls, key="a")
        @atransactional()
        async def _coroutine(tx: Any, a: str) -> None: ...


def test_a_result_that_is_an_empty_text(memory):
    """In the serializer's own words, which are not those of JSON."""
    Calls.create_table()

    class Text:
        dumps = loads = staticmethod(str)

    for is_repeated in (False, True):
        with Calls.call("k", serializer=Text) as call:
            if not call.is_repeated:
                call.result = ""
        assert (call.is_repeated, call.result) == (is_repeated, "")


def test_a_function_that_is_the_key_sees_defaults(memory):
    Calls.create_table()

    @idempotent(Calls, key=lambda order, part: f"{order}-{part}")
    def ship(order: str, part: int = 1) -> list[object]:
        runs.append(order)
        return [order, part]

    runs: list[str] = []
    assert ship("o") == ship("o", 1) == ship(part=1, order="o") == ["o", 1]
    assert runs == ["o"]


# What cannot work


def test_what_cannot_work_is_refused_before_any_request(memory):
    """With a text that says what to do."""

    def generator(a: int) -> Any:
        yield a

    for options, why in [
        ({"key": "a"}, "is a generator"),
        ({"key": "b"}, "has no argument 'b', which is to be the key"),
        ({"key": "k", "payload": "c"}, "has no argument 'c', which is to be the payload"),
        ({"key": None}, "name of an argument, or a function"),
        ({"key": "k", "expires_after": -1}, "not be negative"),
        ({"key": "k", "serializer": str}, "dumps and loads"),
        ({"key": "k", "wait": -1}, "wait must not be negative"),
        ({"key": "k", "lease": 1}, "too short"),
        ({"key": "k", "heartbeat": "always"}, "heartbeat must be"),
        ({"key": "k", "store_errors": (Declined, type("Declined", (Exception,), {}))}, "two exceptions of one name"),
    ]:
        with pytest.raises(ConfigurationError, match=why):
            idempotent(Calls, **options)(generator if options["key"] == "a" else lambda k: k)  # type: ignore[arg-type]
    for function in (partial(generator, 1), classmethod(generator)):
        with pytest.raises(ConfigurationError, match="below @classmethod"):
            idempotent(Calls, key="a")(function)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="subclass of IdempotencyTable"):
        idempotent(Purse, key="a")  # type: ignore[arg-type]
    for options, why in [
        ({"key": ""}, "not empty"),
        ({"key": "k", "expires_after": 0}, "above 0"),
        ({"key": "k", "expires_after": 1e40}, "at most a hundred years"),
        ({"key": "k", "store_errors": ValueError}, "tuple of exception classes"),
        ({"key": "k", "store_errors": (BaseException,)}, "tuple of exception classes"),
        ({"key": "k", "payload": {1, 2}}, "must be JSON"),
    ]:
        with pytest.raises((ConfigurationError, InvalidInput), match=why):
            Calls.call(options.pop("key"), **options)
    for wrong in (None, True, 1.5, ""):
        with pytest.raises(InvalidInput, match="text or a whole number"):
            counting().call(wrong)


def test_a_result_is_set_once(calls):
    """Not of a repeated call, nor of one that is complete."""
    with calls.call("k") as call:
        call.result = {"a": (1, 2)}
    assert call.result == {"a": [1, 2]} == json.loads(calls.get("k").result)
    with calls.call("k") as call:
        with pytest.raises(ConfigurationError, match="is_repeated first"):
            call.result = 2
        with pytest.raises(ConfigurationError, match="holds no lock"):
            _ = call.lock


# A call whose process has died, and that is not made again by itself.


#: Calls that were begun: the garbage collector would release their locks.
BEGUN: list[Any] = []


def begun(key: str) -> Any:
    """Begin a call in another thread, and walk away from it, as a process does that is killed."""
    call = Calls.call(key, lease=20, heartbeat=False, on_abandoned="raise")
    in_thread(call.__enter__)
    BEGUN.append(call)
    return call


def failed(call: Any) -> None:
    """End a call with an exception, which frees its key."""
    call.__exit__(ValueError, ValueError(), None)


def made(key: str, **options: Any) -> Any:
    """Make a call, whose result is 2."""

    def make() -> Any:
        with Calls.call(key, on_abandoned="raise", **options) as call:
            if not call.is_repeated:
                call.result = 2
        return call.result

    return in_thread(make)


def settled() -> None:
    Calls.settle("k", {"receipt": 1})


def forgotten() -> None:
    Calls.forget("k")


@pytest.mark.parametrize(("settle", "result"), [(settled, {"receipt": 1}), (forgotten, 2)])
@pytest.mark.parametrize("wait", [0, 60])
def test_an_abandoned_call_is_not_made_before_it_is_settled(clock, wait, settle, result):
    """Each caller is refused, and leaves nothing behind. Then callers get the result, or make the call."""
    zombie = begun("k")
    clock.jump(35)
    for _ in range(2):
        with pytest.raises(CallAbandoned, match=r"'k'.*Calls\.settle.*Calls\.forget") as refused:
            made("k", wait=wait)
        assert refused.value.key == "k"
        assert [entry.owner for entry in Calls.lock_state("k").entries] == [refused.value.owner]
    settle()
    assert made("k", wait=wait) == result
    with pytest.raises(LockLost):
        zombie.__exit__(None, None, None)


def no_answer(send: Send, operation: str, _arguments: dict[str, Any]) -> Any:
    if operation == "UpdateItem":
        raise ConnectionClosedError(endpoint_url="memory")
    return send()


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (object(), TypeError),
        ("x" * 500_000, ConfigurationError),
        (Refused("o-1", object()), ConfigurationError),
        (SystemExit(), SystemExit),
        (asyncio.CancelledError(), asyncio.CancelledError),
        ("no answer", OutcomeUnknown),
    ],
)
def test_work_whose_result_was_not_stored_is_not_repeated(clock, result, error):
    """It was done, or may have been: no result could be stored, no answer came, or the process was told to end."""
    with (
        pytest.raises(error),
        ExitStack() as faults,
        Calls.call("k", lease=20, on_abandoned="raise", store_errors=(Refused,)) as call,
    ):
        if isinstance(result, BaseException):
            raise result
        if result == "no answer":
            faults.enter_context(intercepted(no_answer))
        call.result = result
    assert len(Calls.lock_state("k").entries) == 1
    clock.jump(60)
    with pytest.raises(CallAbandoned):
        made("k")


def test_a_call_that_outlasts_its_lock_is_not_repeated(clock, monkeypatch):
    """Its process was told to end after `max_hold`: the end of its block leaves the entry, as that of any other."""
    monkeypatch.setattr(Calls.Meta, "lock_settings", replace(Calls.Meta.lock_settings, max_hold=90))
    with pytest.raises(SystemExit), Calls.call("k", lease=20, on_abandoned="raise") as call:
        assert call.lock.lost.wait(100)
        raise SystemExit
    assert len(Calls.lock_state("k").entries) == 1
    clock.jump(60)
    with pytest.raises(CallAbandoned):
        made("k")


def test_a_call_that_has_its_result_is_not_settled(clock):
    """Its process died between the commit that has stored it, and the end of the block."""
    Purse.create_table()

    def die_after_the_commit() -> None:
        call = Calls.call("k", lease=20, heartbeat=False, on_abandoned="raise")
        call.__enter__()
        BEGUN.append(call)
        with transaction() as tx:
            tx.save(Purse("new"))
            call.complete("truth")

    in_thread(die_after_the_commit)
    clock.jump(35)
    for settle in (settled, forgotten):
        with pytest.raises(Conflict, match="has its result"):
            settle()
    assert made("k") == "truth"


def test_a_settled_result_is_that_of_its_payload(clock):
    """A caller with another one does not get it."""
    begun("k")
    clock.jump(35)
    Calls.settle("k", 1, payload=["alice", 30])
    with pytest.raises(PayloadMismatch):
        made("k", payload=["mallory", 30])
    assert made("k", payload=["alice", 30]) == 1


def test_a_settled_result_is_stored_by_the_callers_serializer(clock):
    """Callers read it by theirs."""
    begun("k")
    clock.jump(35)
    Calls.settle("k", "abc", serializer=Reversed)
    assert made("k", serializer=Reversed) == "abc"


def test_a_call_that_was_only_paused_stores_its_result(clock):
    """Nobody takes its key. A waiter watches it for a lease, as no clock says that it has ended."""
    paused = Calls.call("k", lease=20, heartbeat=False, on_abandoned="raise")
    paused.__enter__()
    began = clock.elapsed
    with pytest.raises(CallAbandoned):
        made("k")
    assert 20 <= clock.elapsed - began <= 35
    paused.result = 1
    paused.__exit__(None, None, None)
    assert made("k") == 1


@pytest.mark.parametrize("settle", [settled, forgotten])
@pytest.mark.parametrize(
    ("passes_s", "meanwhile", "error"),
    [
        (0, None, ItemLocked),
        (25, None, ItemLocked),  # longer than the lease, but clocks may differ by that
        (35, lambda call: call.lock.renew(), Conflict),
        (35, failed, Conflict),
    ],
)
def test_a_call_that_lives_is_not_settled(clock, passes_s, meanwhile, error, settle):
    """Not if it is renewed, or ends, just before it would be evicted either; then it is free as before."""
    living = begun("k")
    clock.jump(passes_s)
    happens = iter([] if meanwhile is None else [meanwhile])

    def answer(send: Send, operation: str, _arguments: dict[str, Any]) -> Any:
        if operation == "UpdateItem":
            next(happens, repr)(living)
        return send()

    with intercepted(answer), pytest.raises(error):
        in_thread(settle)
    assert list(happens) == []
    if meanwhile is not failed:
        failed(living)
    assert made("k") == 2
    for key in ("k", "k-2"):
        with pytest.raises(Calls.DoesNotExist):
            Calls.forget(key)
    assert made("k") == 2


@pytest.mark.parametrize("settle", [settled, forgotten])
def test_a_settlement_whose_answer_is_lost_is_recognised(calls, settle):
    """It is one read and one write, and is sent again if no response comes."""
    with shifted_clock() as world:
        begun("k")
        world.shift += 35
        with count_requests() as requests, on("UpdateItem").lose_response() as lost:
            settle()
        assert lost.hits == 1
        assert dict(requests.by_operation) == {"GetItem": 1, "UpdateItem": 2}
        assert calls.lock_state("k").entries == ()


def test_a_settled_result_is_kept_as_long_as_it_counts(clock):
    """From when it was settled, and no other time: also in the row of a call that was abandoned long before."""
    begun("k")
    clock.jump(timedelta(days=2).total_seconds())
    asyncio.run(Calls.asettle("k", 1, expires_after=timedelta(days=30)))
    row = Calls.get("k")
    assert row.expires.timestamp() * 1000 >= row.kept_until_ms
    clock.jump(timedelta(days=29).total_seconds())
    assert made("k") == 1
    clock.jump(timedelta(days=1).total_seconds())
    assert made("k") == 2


def test_a_transaction_cannot_refuse_abandoned_calls(purse):
    """A call in it has no entry that could tell of it."""
    with transaction(), pytest.raises(ConfigurationError, match="leave out on_abandoned"):
        Calls.call("k", on_abandoned="raise").__enter__()
