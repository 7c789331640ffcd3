"""The stream of events: who is called, when, and what cannot harm whom. Nothing here makes a request."""

from __future__ import annotations

import contextvars
import dataclasses
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import events as public
from pynamo_locking._core import events
from pynamo_locking._io import event_stream
from pynamo_locking.events import Event, LockEvent, Lost, TransactionEvent, WriteEvent, subscribe
from pynamo_locking.exceptions import ConfigurationError
from tests.support.parties import in_parallel, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
LEAVES = [kind for kind in KINDS if not kind.__subclasses__()]


def event(reason: str = "evicted") -> Lost:
    times = {"time_ms": 1, "monotonic_s": 2.0, "held_ms": 4.0}
    return Lost(**times, name="n", table="t", model=None, owner="o", entry_id="e", ticket=3, reason=reason)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    assert event_stream.listeners == ()


def test_a_subscriber_hears_what_is_told_until_it_is_cancelled() -> None:
    """In the order in which it is told; cancelling twice does nothing, and leaves another subscription of it."""
    heard: list[Any] = []
    subscription = subscribe(heard.append)
    first, second, third = event("a"), event("b"), event("c")
    event_stream.emit(first)
    with subscribe(heard.append):
        event_stream.emit(second)
        subscription.cancel()
        subscription.cancel()
        event_stream.emit(third)
    event_stream.emit(event("d"))
    assert heard == [first, second, second, third]


@pytest.mark.parametrize(
    ("of", "is_heard"),
    [(None, True), (Event, True), (LockEvent, True), (Lost, True), (WriteEvent, False), ((WriteEvent, Lost), True)],
)
def test_only_what_was_asked_for_is_heard(of: Any, is_heard: bool) -> None:
    """A class stands for itself and those derived from it."""
    heard: list[Any] = []
    with subscribe(heard.append, of):
        event_stream.emit(event())
    assert bool(heard) is is_heard


async def never_awaited(_: Event) -> None: ...


@pytest.mark.parametrize(
    ("subscriber", "of", "says"),
    [
        *((print, of, "which classes of") for of in ("Lost", int, (Lost, int), Lost.__init__)),
        *((subscriber, None, "function of one argument") for subscriber in (None, "print", never_awaited)),
    ],
)
def test_what_cannot_be_told_is_refused(subscriber: Any, of: Any, says: str) -> None:
    """At once, not at the first event; so is a coroutine function, which no caller would await."""
    with pytest.raises(ConfigurationError, match=says):
        subscribe(subscriber, of)


def test_a_failing_subscriber_is_logged_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """It is called for every event, the others hear everything, and no caller gets its error."""
    calls: list[Any] = []
    heard: list[Any] = []

    def fail(event: Event) -> None:
        calls.append(event)
        raise ValueError("broken")

    with subscribe(fail), subscribe(heard.append), caplog.at_level(logging.DEBUG):
        for _ in range(3):
            event_stream.emit(event())
    assert (len(calls), len(heard)) == (3, 3)
    [record] = caplog.records
    assert "Lost" in record.message
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken"


def test_an_interrupt_is_not_swallowed() -> None:
    """Ctrl-C while a subscriber runs is the program's, not the subscriber's."""

    def interrupted(_: Event) -> None:
        raise KeyboardInterrupt

    with subscribe(interrupted), pytest.raises(KeyboardInterrupt):
        event_stream.emit(event())


def test_a_subscriber_does_not_hear_itself() -> None:
    """What it causes is told to others only; else it would never end."""
    heard: list[str] = []
    others: list[str] = []

    def echo(told: Lost) -> None:
        heard.append(told.reason)
        if len(heard) < 10:
            event_stream.emit(event(f"{told.reason}+"))

    with subscribe(echo), subscribe(lambda told: others.append(told.reason)):
        event_stream.emit(event("a"))
    assert heard == ["a"]
    assert others == ["a+", "a"]


def test_what_is_told_in_a_scope_waits_for_the_end_of_the_outermost() -> None:
    """A scope stands for a mutex that is held; a scope that does not keep is none."""
    heard: list[Any] = []
    with subscribe(heard.append):
        with event_stream.scope():
            with event_stream.scope(), event_stream.scope(keeps=False):
                event_stream.emit(event("a"))
            event_stream.emit(event("b"))
            assert heard == []
        assert [told.reason for told in heard] == ["a", "b"]
        with event_stream.scope(keeps=False):
            event_stream.emit(event("c"))
            assert len(heard) == 3


def test_what_was_told_before_an_error_is_heard() -> None:
    """A loss is found out by a request that fails. What another thread tells meanwhile does not wait for the scope."""
    heard: list[Any] = []

    def lose() -> None:
        with event_stream.scope():
            event_stream.emit(event("kept"))
            in_thread(lambda: event_stream.emit(event("of another")))
            raise ValueError

    with subscribe(heard.append), pytest.raises(ValueError):
        lose()
    assert [told.reason for told in heard] == ["of another", "kept"]


@pytest.mark.parametrize("where", ["later", "another thread"])
def test_a_copy_of_a_context_does_not_keep_events_for_ever(where: str) -> None:
    """A handler of PynamoDB's signals that begins a task, in the middle of a write, hands this context on."""
    heard: list[Any] = []
    with subscribe(heard.append):
        with event_stream.scope():
            context = contextvars.copy_context()
            if where == "another thread":
                in_thread(lambda: context.run(event_stream.emit, event("a")))
                assert len(heard) == 1
        if where == "later":
            context.run(event_stream.emit, event("a"))
        assert len(heard) == 1
        context.run(emit_in_a_scope, heard)
    assert [told.reason for told in heard] == ["a", "b"]


def emit_in_a_scope(heard: list[Any]) -> None:
    """A scope of its own keeps events as ever."""
    before = len(heard)
    with event_stream.scope():
        event_stream.emit(event("b"))
        assert len(heard) == before


def test_a_scope_may_end_in_another_context() -> None:
    """That of the thread that collects the task that began it."""
    with subscribe(print):
        entered = event_stream.scope(keeps=False)
        contextvars.copy_context().run(entered.__enter__)
        entered.__exit__(None, None, None)


def test_what_a_subscriber_requests_is_its_own() -> None:
    """The work that it hears of has not sent it."""
    with subscribe(lambda _: event_stream.requesting("GetItem")), event_stream.scope(keeps=False) as scope:
        event_stream.emit(event())
        event_stream.requesting("UpdateItem")
    assert scope is not None
    assert (scope.requests, scope.polls) == (1, 0)


def test_without_subscribers_a_scope_is_nothing() -> None:
    """The same object each time, which counts nothing."""
    assert event_stream.scope() is event_stream.scope()
    with event_stream.scope() as scope:
        assert scope is None
        assert event_stream.current_scope() is None


def test_threads_may_subscribe_and_cancel_at_the_same_time() -> None:
    """None of them is forgotten, and none stays."""
    start = threading.Barrier(8)

    def work() -> event_stream.Subscription:
        start.wait()
        left = subscribe(lambda _: None)
        for _ in range(200):
            subscribe(lambda _: None).cancel()
        return left

    left = in_parallel(*[work] * 8)
    assert set(event_stream.listeners) == set(left)
    for subscription in left:
        subscription.cancel()


def test_a_scope_counts_requests_reads_and_units() -> None:
    """Of its own; those of the scope around it are other ones."""
    with subscribe(print, TransactionEvent), event_stream.scope(keeps=False) as outer:
        assert outer is not None
        event_stream.requesting("UpdateItem")
        event_stream.answered({"ConsumedCapacity": {"TableName": "t", "CapacityUnits": 1.5}})
        event_stream.answered({"ConsumedCapacity": {"TableName": "t", "CapacityUnits": 0.5}})
        with event_stream.scope() as inner:
            assert inner is not None
            event_stream.requesting("GetItem")
            event_stream.answered({})
    assert (outer.requests, outer.polls, outer.units) == (1, 0, 2.0)
    assert (inner.requests, inner.polls, inner.units) == (1, 1, None)


def test_every_kind_is_public() -> None:
    """`pynamo_locking.events` has them all, and says so."""
    assert sorted(kind.__name__ for kind in KINDS) == sorted(set(public.__all__) - {"Subscription", "subscribe"})
    assert public.__all__ == sorted(public.__all__, key=lambda name: (name.islower(), name))


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_is_documented_and_typed(kind: type[Event]) -> None:
    """Where it is declared; quantities carry their unit."""
    own = vars(kind).get("__annotations__", {})
    text = kind.__doc__ or ""
    assert [name for name in own if f"    {name}: " not in text] == []
    floats = {name for name, hint in own.items() if "float" in hint}
    assert [name for name in floats if not name.endswith(("_ms", "_s", "_units"))] == []


def test_events_are_frozen_and_pickle() -> None:
    """They are facts, which may go to another process."""
    told = event()
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.reason = "b"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(told)) == told


@pytest.mark.parametrize("kind", LEAVES)
def test_no_fact_is_an_item(kind: type[Event]) -> None:
    """Facts are numbers, strings, and the class of a model: no value of an item can be among them."""
    allowed = {"int", "float", "str", "bool", "int | None", "float | None", "str | None", "type[Any] | None"}
    assert {str(field.type) for field in dataclasses.fields(kind)} <= allowed
