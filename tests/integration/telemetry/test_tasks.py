"""What is told of tasks of asyncio that are cancelled or collected, and what their requests are counted for."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from pynamo_locking.events import Acquired, Event, Released, TimedOut, Waiting, subscribe
from pynamo_locking.exceptions import LockTimeout
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests, on
from tests.support.workers import PATIENCE, Plain, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine
    from tests.integration.telemetry.conftest import Traced


@pytest.fixture
def heard(memory: Engine) -> Iterator[list[Event]]:
    """Everything that is told from the beginning of the test on."""
    memory.bind(Plain)
    Plain("a").save()
    with Plain.locked("a"):
        pass
    heard: list[Event] = []
    with subscribe(heard.append):
        yield heard


def names(heard: list[Event]) -> list[str]:
    return [type(event).__name__ for event in heard]


async def take() -> None:
    async with Plain.locked("a"):
        pass


@pytest.mark.parametrize("answer", ["granted", "on its way"])
def test_cancelled_when_it_is_granted(heard: list[Event], answer: str) -> None:
    """It was acquired and released, once each, and each with the units of its own request."""

    async def main() -> None:
        def cancel_now() -> None:
            is_cancelled = threading.Event()
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(is_cancelled.set)
            assert is_cancelled.wait(PATIENCE)

        request = on("UpdateItem")
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(take())
        cancels = request.after(cancel_now) if answer == "granted" else request.before(cancel_now)
        with cancels, pytest.raises(asyncio.CancelledError):
            await task

    before = threading.active_count()
    asyncio.run(main())
    until(lambda: threading.active_count() <= before, "the threads to leave")
    assert names(heard) in ([], ["Acquired", "Released"])
    assert answer != "granted" or len(heard) == 2
    assert [event.consumed_units for event in heard if isinstance(event, (Acquired, Released))] == [1.0] * len(heard)
    assert Plain.lock_state("a").entries == ()


def test_cancelled_while_it_waits(heard: list[Event]) -> None:
    """The wait is told, and nothing more: it is neither out of time nor does it hold anything."""

    async def main() -> None:
        task = asyncio.create_task(take())
        while "Waiting" not in names(heard):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with held_elsewhere(Plain.locked("a")):
        asyncio.run(main())
    assert names(heard) == ["Acquired", "Waiting", "Released"]  # the first and the last are of the holder


def test_collected_while_it_waits(heard: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop has gone: the collector, which runs it in another context, meets no error."""
    unraisable, before = list[Any](), threading.active_count() + 1  # that of the holder
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    loop = asyncio.new_event_loop()

    async def until_waiting() -> None:
        task = loop.create_task(take())
        while "Waiting" not in names(heard) or threading.active_count() > before:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    with held_elsewhere(Plain.locked("a")):
        loop.run_until_complete(until_waiting())
        loop.close()
        until(lambda: gc.collect() >= 0 and len(Plain.lock_state("a").entries) == 1, "the waiter to be gone")
    assert [repr(each.exc_value) for each in unraisable] == []


def test_a_subscriber_that_looks_is_not_counted(heard: list[Event]) -> None:
    """What it asks DynamoDB for, in the middle of an attempt, is not what the attempt took."""
    with held_elsewhere(Plain.locked("a")), subscribe(lambda _: Plain.lock_state("a"), Waiting):
        with count_requests() as counted, pytest.raises(LockTimeout):
            Plain.locked("a", wait=0.05).acquire()
        [over] = [event for event in heard if isinstance(event, TimedOut)]
        assert over.requests == counted.total - 1


def test_the_spans_of_a_task_are_under_its_own(heard: list[Event], traced: Traced) -> None:
    """Though they are made in threads, and however the tasks mix; the block goes on in the caller's span."""

    async def request(number: int) -> None:
        with traced.tracer.start_as_current_span(f"request {number}") as parent:
            async with Plain.edit("a", owner=str(number)) as item:
                assert trace.get_current_span() is parent
                item.value += 1

    async def main() -> None:
        await asyncio.gather(*[request(number) for number in range(5)])

    asyncio.run(main())
    spans = traced.spans
    requests = {span.context.span_id: span.name for span in spans if span.name.startswith("request") and span.context}
    owners = {span: (span.attributes or {}).get("pynamo_locking.owner") for span in spans}
    made = sorted(
        (span.name.split()[0], requests[span.parent.span_id], f"request {owners[span]}")
        for span in spans
        if span.parent
    )
    expected = [(kind, f"request {number}") for kind in ("acquire", "hold") for number in range(5)]
    assert made == [(kind, request, request) for kind, request in expected]
