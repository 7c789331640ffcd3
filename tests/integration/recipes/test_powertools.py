"""What the page says of Powertools for AWS Lambda, tried beside ours: requests on the wire, zombies, lost answers."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.exceptions import LockLost, LockTimeout
from pynamo_locking.recipes import idempotent
from tests.support.call_models import Calls
from tests.support.parties import in_thread, shifted_clock
from tests.support.wire import count_requests, on

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig
    from aws_lambda_powertools.utilities.idempotency import idempotent_function as theirs
    from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


class Lambda:
    """A context with so much time left."""

    def __init__(self, left_ms: int = 20_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


class Work:
    """A function that does what it is told, under both decorators."""

    def __init__(self, engine: Engine) -> None:
        engine.bind(Calls)
        self.inner: Callable[[], object] = lambda: {"a": 1}
        self.table = engine.create_table()
        self.key_attr = engine.client().describe_table(TableName=self.table)["Table"]["KeySchema"][0]["AttributeName"]
        self.client = engine.client(attempts=3)

    def theirs(self, key: str, left_ms: int | None = 20_000, expires_s: int = 3_600) -> Any:
        store = DynamoDBPersistenceLayer(self.table, key_attr=self.key_attr, boto3_client=self.client)
        context: Any = None if left_ms is None else Lambda(left_ms)
        config = IdempotencyConfig(lambda_context=context, expires_after_seconds=expires_s)

        @theirs(data_keyword_argument="key", persistence_store=store, config=config)
        def function(key: str) -> object:
            return self.inner()

        return function(key=key)

    def ours(self, key: str, expires_after: float = 3_600, **options: Any) -> Any:
        @idempotent(Calls, key="key", key_prefix="f", expires_after=expires_after, **options)
        def function(key: str) -> object:
            return self.inner()

        return function(key)


@pytest.fixture
def work(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> Work:
    """On an engine that both reach."""
    for name, value in {"AWS_DEFAULT_REGION": "eu-west-1", "POWERTOOLS_SERVICE_NAME": "s"}.items():
        monkeypatch.setenv(name, value)
    return Work(memory)


class Killed(BaseException):
    """Stands for the end of the process: neither decorator hears of it."""


def fail() -> None:
    raise ValueError("no")


def die() -> None:
    raise Killed


def counted(call: Callable[[], object], error: type[Exception] | None = None) -> Counter[str]:
    with count_requests() as requests:
        if error is None:
            call()
        else:
            with pytest.raises(error):
                call()
    return requests.by_operation


def test_requests_of_each_case_beside_powertools(work):
    """As the table of the page says."""
    found = dict[str, tuple[int, int]]()

    def both(name: str, theirs: Counter[str], ours: Counter[str]) -> None:
        found[name] = theirs.total(), ours.total()

    both("first", counted(lambda: work.theirs("k")), counted(lambda: work.ours("k")))
    both("repeat", counted(lambda: work.theirs("k")), counted(lambda: work.ours("k")))
    refused = list[Counter[str]]()
    work.inner = lambda: refused.append(counted(lambda: work.theirs("busy"), IdempotencyAlreadyInProgressError))
    work.theirs("busy")
    with Calls.call("f#busy"):
        in_thread(lambda: refused.append(counted(lambda: work.ours("busy", wait=0), LockTimeout)))
    both("in progress", *refused)
    work.inner = fail
    both("raises", *(counted(lambda: call("r"), ValueError) for call in (work.theirs, work.ours)))  # noqa: B023
    work.inner = dict
    both("after that", counted(lambda: work.theirs("r")), counted(lambda: work.ours("r")))
    work.theirs("e", expires_s=-10)
    work.ours("e", expires_after=0.001)
    with shifted_clock() as clock:
        clock.shift = 60
        both("expired", counted(lambda: work.theirs("e")), counted(lambda: work.ours("e")))
    work.inner = die
    with pytest.raises(Killed):
        work.theirs("d", left_ms=-1_000)
    killed = Calls.call("f#d", heartbeat=False, lease=6)
    in_thread(killed.__enter__)
    work.inner = dict
    with shifted_clock() as clock:
        clock.shift = 90
        both("killed", counted(lambda: work.theirs("d")), counted(lambda: work.ours("d")))
    assert found == {
        "first": (2, 2),
        "repeat": (1, 1),
        "in progress": (1, 1),
        "raises": (2, 2),
        "after that": (2, 3),
        "expired": (2, 3),
        "killed": (2, 4),
    }


def test_a_zombie_of_powertools_replaces_the_result_and_ours_is_refused(work):
    """The call that took over has returned another result by then."""

    def outlive(again: Callable[[], object]) -> Callable[[], object]:
        def inner() -> object:
            work.inner = lambda: "second"
            again()
            return "zombie"

        return inner

    work.inner = outlive(lambda: work.theirs("z"))
    work.theirs("z", left_ms=-1_000)
    assert work.theirs("z") == "zombie"

    def take_over() -> None:
        Calls.break_lock("f#z", ticket=Calls.lock_state("f#z").entries[0].ticket)
        in_thread(lambda: work.ours("z"))

    work.inner = outlive(take_over)
    with pytest.raises(LockLost):
        work.ours("z", heartbeat=False)
    assert work.ours("z") == "second"


def test_a_lost_answer_makes_powertools_refuse_itself(work):
    """botocore sends the first request again, and it meets its own row."""
    with on("PutItem").lose_response(), pytest.raises(IdempotencyAlreadyInProgressError):
        work.theirs("l")
    with on("UpdateItem").lose_response():
        assert work.ours("l") == {"a": 1}


@pytest.mark.filterwarnings("ignore:Couldn't determine the remaining time")
def test_a_killed_call_without_a_context_keeps_its_key_in_powertools(work):
    """Until the row expires; ours until the lease is over."""

    work.inner = die
    with pytest.raises(Killed):
        work.theirs("d", left_ms=None)
    work.inner = dict
    with pytest.raises(IdempotencyAlreadyInProgressError):
        work.theirs("d", left_ms=None)
    row = work.client.scan(TableName=work.table)["Items"][0]
    assert "in_progress_expiration" not in row
    now = dt.datetime.now(tz=dt.timezone.utc).timestamp()
    assert float(row["expiration"]["N"]) > now + 3_000
