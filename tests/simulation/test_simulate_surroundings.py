"""What code finds around it in a simulation, and what a test may say there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from random import Random
from time import sleep
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError
from pynamodb.exceptions import GetError, PutError, TableDoesNotExist

from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import Found, SimulationError, World, simulate
from tests.simulation.handlers import Account, PlainAccount

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing import MemoryDynamoDB, SimulatedProcess


NO_TABLE = GetError(cause=ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "GetItem"))


def _accounts() -> None:
    PlainAccount.create_table()
    PlainAccount("a-1", balance=100).save()


def _read() -> int:
    return int(PlainAccount.get("a-1").balance)


def outcomes(code: Callable[[], Any], *, runs: int = 5) -> list[Any]:
    """Return what code returns in a process, in several runs."""
    seen: list[SimulatedProcess] = []

    @simulate(runs=runs, faults=0)
    def test(world: World) -> None:
        seen.append(world.process(code))

    test()
    return [each.result for each in seen]


def _connect() -> None:
    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


def _send() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.sendto(b"count:1", ("127.0.0.1", 9))


def _call_another_service() -> None:
    """Send a message; botocore raises an error of its own about the refused socket."""
    options: dict[str, Any] = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "eu-west-1"}
    boto3.client("sqs", **options).send_message(QueueUrl="https://localhost/queue", MessageBody="-")


WARM = ThreadPoolExecutor(1)


class TestTime:
    def test_sleep_takes_time_on_all_clocks_and_none_in_truth(self) -> None:
        def code() -> tuple[float, ...]:
            now: Callable[[], float] = lambda: datetime.now(timezone.utc).timestamp()  # noqa: E731
            boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)  # noqa: E731
            clocks = [time.time, time.monotonic, time.perf_counter, now, boot]
            before = [clock() for clock in clocks]
            time.sleep(3600)
            sleep(3600)  # imported by its name
            return tuple(round(clock() - earlier, 3) for clock, earlier in zip(clocks, before, strict=True))

        assert set(outcomes(code)) == {(7200.0,) * 5}

    def test_each_run_begins_on_the_same_day(self) -> None:
        def code() -> tuple[date, int]:
            time.sleep(86_400)
            return datetime.now(timezone.utc).date(), time.time_ns() // 10**9

        assert set(outcomes(code)) == {(date(2026, 1, 2), 1_767_225_600 + 86_400)}

    def test_wall_clocks_may_differ_between_processes(self) -> None:
        seen = set()

        @simulate(runs=50, faults=0, clock_skew_s=5)
        def test(world: World) -> None:
            first, second = world.process(time.time), world.process(time.time)
            world.finally_(lambda: seen.add(round(first.result - second.result)))

        test()
        assert seen == {-10, -5, 0, 5, 10}

    def test_other_threads_go_on_in_real_time(self) -> None:
        seen: list[float] = []
        asked, answered = threading.Event(), threading.Event()

        def answer() -> None:
            asked.wait()
            seen.extend([time.time(), time.monotonic()])
            answered.set()

        def code() -> None:
            asked.set()
            answered.wait()

        thread = threading.Thread(target=answer)
        before = time.monotonic()
        thread.start()
        outcomes(code)
        thread.join()
        assert seen[0] > 1_780_000_000, "not on the day on which each run begins"
        assert before <= seen[1] <= time.monotonic()

    def test_modules_that_are_imported_meanwhile_find_real_functions_afterwards(self) -> None:
        module = types.ModuleType("imported_meanwhile")

        def code() -> float:
            exec("from time import sleep, monotonic", vars(module))
            sys.modules[module.__name__] = module
            vars(module)["sleep"](60)
            return time.monotonic()

        try:
            assert set(outcomes(code)) == set(outcomes(code)) == {60.0}
            assert vars(module)["sleep"] is time.sleep
            assert vars(module)["monotonic"] is time.monotonic
        finally:
            del sys.modules[module.__name__]

    def test_the_test_itself_may_sleep(self) -> None:
        seen: list[SimulatedProcess] = []

        @simulate(runs=1)
        def test(world: World) -> None:
            time.sleep(100)
            seen.append(world.process(time.monotonic))

        test()
        assert seen[0].result == 100

    def test_a_function_may_run_an_event_loop(self) -> None:
        async def wait() -> float:
            await asyncio.sleep(60)
            return time.monotonic()

        assert set(outcomes(lambda: asyncio.run(wait()))) == {60.0}

    def test_asyncio_sleeps_in_the_time_of_the_run(self) -> None:
        async def code() -> float:
            before = time.monotonic()
            await asyncio.gather(asyncio.sleep(60), asyncio.sleep(90))
            return round(time.monotonic() - before, 3)

        assert set(outcomes(code)) == {90.0}


class TestRandomness:
    @pytest.mark.parametrize(
        "code",
        [uuid.uuid1, uuid.uuid4, random.random, secrets.token_hex, lambda: os.urandom(8), lambda: Random().random()],
        ids=["uuid1", "uuid4", "random", "secrets", "urandom", "Random"],
    )
    def test_it_follows_from_the_number_of_the_run(self, code: Callable[[], Any]) -> None:
        first, again = outcomes(code), outcomes(code)
        assert first == again
        assert len({*first}) == len(first) - 1, "only the first run is made twice"

    def test_it_is_real_again_afterwards(self) -> None:
        before = random.getstate()
        outcomes(random.random)
        assert random.getstate() == before
        assert os.urandom(8) != os.urandom(8)


class TestRefusals:
    @pytest.mark.parametrize(
        "code",
        [
            lambda: socket.create_connection(("127.0.0.1", 9)),
            _connect,
            _send,
            lambda: socket.getaddrinfo("localhost", 80),
            lambda: socket.gethostbyname("localhost"),
            _call_another_service,
        ],
        ids=["create_connection", "connect", "sendto", "getaddrinfo", "gethostbyname", "boto3"],
    )
    def test_sockets(self, code: Callable[[], Any]) -> None:
        with pytest.raises(SimulationError, match=r"no network.*stand-in"):
            outcomes(code)

    @pytest.mark.parametrize("start", [lambda: threading.Thread(target=print).start(), lambda: WARM.submit(print)])
    def test_threads(self, start: Callable[[], Any]) -> None:
        WARM.submit(print)
        with pytest.raises(SimulationError, match=r"starts a thread.*world\.process"):
            outcomes(start)

    def test_programs(self) -> None:
        with pytest.raises(SimulationError, match="starts a program"):
            outcomes(lambda: subprocess.run(["true"], check=True))

    def test_what_is_refused_cannot_be_overlooked(self) -> None:
        def code() -> None:
            with contextlib.suppress(Exception):
                _connect()

        with pytest.raises(SimulationError, match="no network"):
            outcomes(code)

    def test_code_whose_runs_cannot_be_repeated(self) -> None:
        calls: list[int] = []

        def code() -> None:
            calls.append(1)
            PlainAccount(f"a-{len(calls)}").save()

        @simulate(runs=2)
        def test(world: World) -> None:
            PlainAccount.create_table()
            world.process(code)

        with pytest.raises(SimulationError, match="went differently when it was repeated"):
            test()

    def test_a_test_without_processes(self) -> None:
        with pytest.raises(SimulationError, match="added no process"):
            simulate()(lambda world: None)()

    def test_a_test_without_a_world(self) -> None:
        with pytest.raises(SimulationError, match="no argument `world`"):
            simulate()(lambda: None)

    def test_describing_while_processes_run(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(lambda: world.process(print))

        with pytest.raises(SimulationError, match=r"world\.process\(\) is for the test itself"):
            test()

    @pytest.mark.parametrize("bad", [{"runs": 0}, {"faults": -1}, {"pause_s": -1.0}, {"clock_skew_s": -1.0}])
    def test_numbers_that_make_no_sense(self, bad: dict[str, Any]) -> None:
        with pytest.raises(SimulationError):
            simulate(**bad)

    def test_another_database_in_use(self, memory_dynamodb: MemoryDynamoDB) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(print)

        with pytest.raises(ConfigurationError, match="in use already"):
            test()


class TestRequirements:
    def test_always_holds_before_the_processes_begin(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            _accounts()
            world.process(_read)
            world.always(lambda: _read() == 0)

        with pytest.raises(Found, match=r"world.always failed: world.always\(lambda: _read\(\) == 0\)"):
            test()

    def test_always_sees_each_write(self) -> None:
        def code() -> None:
            account = PlainAccount.get("a-1")
            for balance in (50, 0, 100):
                account.balance = balance
                account.save()

        @simulate(runs=1)
        def test(world: World) -> None:
            _accounts()
            world.process(code)
            world.always(lambda: _read() > 0)

        with pytest.raises(Found, match=r"balance 50 → 0") as found:
            test()
        assert "→ 100" not in str(found.value)

    def test_looking_takes_no_time_and_changes_no_run(self) -> None:
        def slow_look() -> None:
            assert _read() >= 0
            time.sleep(10)

        def ends(*, looks: bool) -> list[Any]:
            seen: list[SimulatedProcess] = []

            @simulate(runs=20)
            def test(world: World) -> None:
                _accounts()
                seen.append(world.process(lambda: (_read(), time.time(), PlainAccount("a-1").save(), time.time())))
                if looks:
                    world.always(slow_look)

            test()
            return [(each.result, type(each.error), each.is_killed) for each in seen]

        assert ends(looks=True) == ends(looks=False)

    def test_late_requests_arrive_before_the_end(self) -> None:
        def code() -> None:
            for balance in (1, 2):
                PlainAccount("a-1", balance=balance).save()

        @simulate(runs=1_000)
        def test(world: World) -> None:
            _accounts()
            process = world.process(code)
            world.finally_(lambda: not process.has_returned or _read() == 2)

        with pytest.raises(Found, match=r"the late request of process 1, .* arrived \(balance 2 → 1\)"):
            test()


class TestTasks:
    def test_what_a_task_has_raised_may_be_caught(self) -> None:
        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        async def code() -> str:
            [error] = await asyncio.gather(fail(), return_exceptions=True)
            return type(error).__name__

        assert set(outcomes(code)) == {"ValueError"}

    def test_tasks_that_are_left_are_cancelled(self) -> None:
        ended: list[str] = []

        async def fail() -> None:
            raise PutError

        async def go_on() -> None:
            try:
                await asyncio.sleep(10**6)
            except asyncio.CancelledError:
                ended.append(f"{time.monotonic():.0f} s")
                raise

        async def code(*, fails: bool) -> None:
            if fails:
                await asyncio.gather(fail(), go_on())

        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(code, fails=False)
            world.process(code, fails=True)

        with pytest.raises(SimulationError, match="process 2 returned in none of 1 run"):
            test()
        assert ended == ["0 s", "0 s"]  # of the run, and of its repetition

    def test_errors_of_a_group_count_one_by_one(self) -> None:
        class Group(Exception):  # noqa: N818 - as Python 3.11 has it
            exceptions = (PutError(), ValueError())

        def code() -> None:
            raise Group

        @simulate(runs=1, raises=(ValueError,))
        def test(world: World) -> None:
            world.process(print)
            world.process(code)

        with pytest.raises(SimulationError, match="returned in none"):
            test()
        Group.exceptions = (PutError(), KeyError())  # type: ignore[assignment]
        with pytest.raises(Found, match="process 2 ended with Group"):
            test()


class TestErrors:
    @pytest.mark.parametrize("error", [PlainAccount.DoesNotExist(), TableDoesNotExist("accounts"), NO_TABLE])
    def test_no_fault_makes_an_item_or_a_table_disappear(self, error: Exception) -> None:
        def code() -> None:
            raise error

        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(code)

        with pytest.raises(Found, match=f"process 1 ended with {type(error).__name__}"):
            test()

    def test_what_the_test_itself_raises_is_no_failure_of_a_run(self) -> None:
        @simulate()
        def test(world: World) -> None:
            raise LookupError(world)

        with pytest.raises(LookupError):
            test()

    def test_a_check_that_raises(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(print)
            world.finally_(lambda: dict[str, int]()["balance"])

        with pytest.raises(Found, match=r"world\.finally_ raised KeyError: 'balance'"):
            test()

    def test_coroutine_functions_that_nobody_awaits(self) -> None:
        async def check() -> bool:
            return False

        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(print)
            world.finally_(check)

        @simulate(runs=1)
        async def written_so(world: World) -> None:
            world.process(print)

        with pytest.raises(SimulationError, match=r"a check of world\.finally_ is a coroutine function"):
            test()
        with pytest.raises(SimulationError, match="the test is a coroutine function"):
            written_so()

    def test_what_is_called_too_early(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.always(True)  # type: ignore[arg-type]

        with pytest.raises(SimulationError, match=r"world.always\(\) needs a function, and not True"):
            test()

    def test_a_program_may_exit(self) -> None:
        ends: list[SimulatedProcess] = []

        @simulate(runs=1)
        def test(world: World) -> None:
            ends[:] = [world.process(sys.exit, 0), world.process(sys.exit, 1)]

        with pytest.raises(SimulationError, match="process 2 returned in none"):
            test()
        assert [each.has_returned for each in ends] == [True, False]

    def test_each_process_has_its_own_message(self) -> None:
        def code(event: dict[str, Any]) -> int:
            return int(event.pop("id"))

        @simulate(runs=5)
        def test(world: World) -> None:
            event = {"id": 7}
            for _ in range(2):
                world.process(code, event)

        test()

    def test_a_failure_can_be_sent_to_another_process(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(lambda: 1 // 0)

        with pytest.raises(Found) as found:
            test()
        copied = pickle.loads(pickle.dumps(found.value))
        assert (str(copied), copied.seed, copied.story) == (str(found.value), 0, found.value.story)

    def test_a_mistake_in_the_code_fails_the_run(self) -> None:
        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(lambda: 1 // 0)

        with pytest.raises(Found, match="process 1 ended with ZeroDivisionError") as found:
            test()
        assert isinstance(found.value.__cause__, ZeroDivisionError)

    def test_errors_of_faults_are_no_mistakes(self) -> None:
        seen: list[SimulatedProcess] = []

        @simulate(runs=300)
        def test(world: World) -> None:
            _accounts()
            seen.append(world.process(_read))

        test()
        killed = {each.is_killed for each in seen}
        errors = {type(each.error).__name__ for each in seen}
        assert killed == {False, True}
        assert "GetError" in errors

    def test_other_errors_are_named(self) -> None:
        class Insufficient(Exception):  # noqa: N818
            pass

        def code() -> None:
            raise Insufficient

        def describe(world: World) -> None:
            world.process(code)

        simulate(runs=2, raises=(Insufficient,))(describe)()
        with pytest.raises(Found, match="Insufficient"):
            simulate(runs=2)(describe)()

    def test_a_process_that_never_ends(self) -> None:
        def code() -> None:
            while True:
                time.sleep(1)

        @simulate(runs=1)
        def test(world: World) -> None:
            world.process(code)

        with pytest.raises(Found, match="have not ended after 100,000 steps"):
            test()


def test_the_first_run_is_one_process_after_the_other_without_faults() -> None:
    seen: list[tuple[str, int]] = []

    def code(name: str) -> None:
        seen.append((name, _read()))
        PlainAccount("a-1", balance=_read() + 1).save()

    @simulate(runs=1)
    def test(world: World) -> None:
        seen.clear()
        _accounts()
        for name in ("one", "two"):
            world.process(code, name)

    test()
    assert seen == [("one", 100), ("two", 101)]


@pytest.mark.parametrize("given", [7])
@simulate(runs=3)
def test_pytest_gives_the_other_arguments(world: World, given: int) -> None:
    assert given == 7
    world.process(print)


def test_a_killed_process_does_nothing_more() -> None:
    after_death: list[str] = []

    def code() -> None:
        try:
            PlainAccount("a-1", balance=1).save()
        finally:
            try:
                PlainAccount("a-2").save()
            except BaseException as error:
                after_death.append(type(error).__name__)
                raise

    @simulate(runs=200)
    def test(world: World) -> None:
        _accounts()
        each = world.process(code)
        world.finally_(lambda: not each.is_killed or PlainAccount.count("a-2") == 0 or _read() == 1)

    test()
    assert "Dead" in after_death


def test_locks_of_a_killed_process_are_left_to_their_lease() -> None:
    waited: list[float] = []

    def code() -> float:
        began = time.monotonic()
        with Account.locked("a-1", wait=600) as lock:
            waited.append(time.monotonic() - began)
            lock.item.balance += 1
            lock.item.save()
        return waited[-1]

    @simulate(runs=100)
    def test(world: World) -> None:
        Account.create_table()
        Account("a-1").save()
        for _ in range(2):
            world.process(code)
        world.always(lambda: Account.get("a-1").balance <= 2)

    test()
    assert max(waited) > 50, "somebody waited for the lease of a process that was killed"
