"""What only a lock, or a single step of Python, keeps whole when threads run at the same time.

Each test lets another thread come in between two steps: where without a lock it might, in a build of Python without the
global interpreter lock (GIL) more often.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError

from pynamo_locking._io import client, event_stream
from pynamo_locking._locks import held_lock
from pynamo_locking.exceptions import Conflict, LockingError, also
from pynamo_locking.telemetry import opentelemetry
from pynamo_locking_testing import memory
from tests.support.parties import in_parallel, in_thread
from tests.unit.helpers import own_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

pytestmark = pytest.mark.core


@contextlib.contextmanager
def between_steps(come: Callable[[], object]) -> Iterator[None]:
    """Let another thread come a few times while this one goes through a weak collection: before each step of it."""
    times, came = iter(range(9)), []

    def step(frame: FrameType, what: str, _: object) -> None:
        is_of_weakref = what == "call" and "weakref" in frame.f_code.co_filename
        if is_of_weakref and "pynamo_locking" in str(frame.f_back) and next(times, None) is not None:
            came.append(in_thread(come))

    sys.setprofile(step)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert came


@pytest.mark.parametrize("go_through", [held_lock._leave_at_exit, held_lock._lose_all])
def test_a_lock_is_acquired_while_all_are_looked_at(go_through: Callable[[], None]) -> None:
    """At the end of the process, and after a restore, whose threads go on."""
    held: list[Any] = [in_thread(own_entry) for _ in range(3)]
    with between_steps(lambda: held.append(own_entry())):
        go_through()


def test_a_connection_is_made_while_all_are_closed() -> None:
    """After a restore."""
    made = [Connection(region="us-east-1") for _ in range(3)]
    with between_steps(lambda: made.append(Connection(region="us-east-1"))):
        client._close_after_restore()


def test_telemetry_is_installed_while_a_reader_asks(caplog: pytest.LogCaptureFixture) -> None:
    """It counts held locks for all installations. The SDK logs what its callbacks raise."""
    tracers, reader = TracerProvider(), InMemoryMetricReader()
    meters = MeterProvider([reader])
    with contextlib.ExitStack() as installed:

        def install() -> None:
            installed.enter_context(opentelemetry.install(tracer_provider=tracers, meter_provider=meters))

        install()
        with between_steps(install):
            reader.get_metrics_data()
    assert caplog.messages == []


def test_two_threads_make_one_class_of_errors() -> None:
    """The second begins while the first makes it."""
    made: list[Any] = []

    class Refusal(Conflict):
        def __init_subclass__(cls) -> None:
            if not made:
                made.append(None)
                made.append(in_thread(lambda: also(Refusal, PutError)))

    assert also(Refusal, PutError) is made[1]
    assert issubclass(made[1], LockingError)


def test_two_threads_make_one_class_of_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client in memory: what one thread raises is caught as the class that another has asked for."""
    made: list[Any] = []

    def come(*_: object) -> None:
        if not made:
            made.append(None)
            made.append(in_thread(lambda: memory.error_class("OfTwoThreads")))

    monkeypatch.setattr(ClientError, "__init_subclass__", come, raising=False)

    assert memory.error_class("OfTwoThreads") is made[1]


def test_a_client_is_watched_once() -> None:
    """By one thread at a time: botocore's own check for a second handler with the same id is no single step."""
    registered: list[tuple[str, bool]] = []

    def register(event: str, *_: object, **__: object) -> None:
        registered.append((event, client._mutex._is_owned()))  # type: ignore[attr-defined]

    events = SimpleNamespace(register=register, register_first=register)
    watched = type("Watched", (), {"meta": SimpleNamespace(events=events)})()
    connection: Any = SimpleNamespace(client=watched, _client=watched)
    client._watch(connection)
    client._watch(connection)

    assert registered == [
        ("needs-retry.dynamodb", True),
        ("before-parse.dynamodb", True),
        ("provide-client-params.dynamodb", True),
    ]


class Slow(float):
    """A number whose addition waits a moment for that of another thread, which comes if nothing keeps it away."""

    together = threading.Barrier(2)

    def __add__(self, other: float) -> Slow:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait(0.2)
        return Slow(float(self) + float(other))

    __radd__ = __add__


def test_what_the_threads_of_one_commit_consume_is_added_up() -> None:
    """Also if two of them report it at the same time."""
    Slow.together.reset()
    with event_stream.Scope(keeps=False) as scope:
        in_parallel(lambda: scope.consume(Slow(1)), lambda: scope.consume(Slow(2)))

    assert scope.units == 3
