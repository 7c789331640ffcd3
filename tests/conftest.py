"""Fixtures for every test: the DynamoDB engines.

``engine``             each engine in turn
``concurrent_engine``  those that take concurrent requests of threads as DynamoDB does (not moto)
``real_engine``        those in a process of their own, which other processes reach as well (not the in-memory one)
``dynoxide``           the cheapest of them

The tests in `contract`, and those that `core` marks, run on each of these engines. Every other runs on at most two:
a rule is tested in memory, and once on a real engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import locale
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from coverage import Coverage

from pynamo_locking._io import runtime

# An assertion in what tests share shows the values that it compared, as those in the tests themselves do.
pytest.register_assert_rewrite("tests.campaign", "tests.simulation", "tests.support")

from tests.engines.engine import AWS_PREFIX_VARIABLE, Engine, running  # noqa: E402 - imports some of these
from tests.engines.servers import Servers  # noqa: E402
from tests.support import fence  # noqa: E402
from tests.support.surroundings import Surroundings, let_dropped_things_act  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ON_AWS = bool(os.environ.get(AWS_PREFIX_VARIABLE))
REAL = ["aws"] if ON_AWS else ["dynoxide", "dynamodb-local"]
ALL = ["aws"] if ON_AWS else ["memory", "moto", *REAL]


#: What `make test` leaves to `make test-all`: other processes, real time, and what takes long.
EXTENDED: Final = ("alone", "interrupts", "processes", "slow", "waits")

#: A collection of what they leave takes a quarter of a second.
TESTS_A_COLLECTION: Final = 50
_ended = itertools.count(1)


def engines(names: list[str]) -> list[Any]:
    """Parameters of a fixture. All but the engine in memory are marked."""
    return [name if name == "memory" else pytest.param(name, marks=pytest.mark.other_engine) for name in names]


def is_for_each_engine(item: pytest.Item) -> bool:
    """Whether it asks what engines answer, or is one of the few that every engine should pass."""
    return item.path.parent.name == "contract" or item.get_closest_marker("core") is not None


def is_extended(item: pytest.Item) -> bool:
    """Whether it is left to `make test-all`. On moto, `make test` has the contract, and what `core` marks."""
    if any(item.get_closest_marker(name) for name in EXTENDED):
        return True
    is_on_moto = isinstance(item, pytest.Function) and "moto" in item.name
    return item.get_closest_marker("other_engine") is not None and not (is_on_moto and is_for_each_engine(item))


def repeats_an_engine(item: pytest.Item) -> bool:
    """Whether a rule that another test asks of a real engine is asked of a further one."""
    chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    engines = {chosen.get(name) for name in ("engine", "concurrent_engine", "real_engine")}
    return not engines.isdisjoint({"moto", "dynamodb-local"}) and not is_for_each_engine(item)


#: What programs print, and where they look, depends on these; tests that are about one of them set it.
PERSONAL: Final = re.compile(
    r"(AWS|PYNAMODB|XDG|LC|DJANGO|FLASK|CELERY|GUNICORN|POWERTOOLS|OTEL|JUPYTER|TTY|CLICOLOR)_\w+"
    r"|PYNAMO_LOCKING_(REGION|PROFILE|ENDPOINT|(TRANSACTION_|CALL_)?TABLE|LOG_FILE)|(HTTPS?|ALL)_PROXY|PYTEST_ADDOPTS"
    r"|PYTHON(?!PATH$|HOME$|HASHSEED$|_GIL$|_THREAD_INHERIT_CONTEXT$)\w+"
    r"|COLUMNS|LINES|TERMINAL_WIDTH|LANGUAGE|COLORTERM|\w*NO_COLOR|\w*FORCE_COLOR"
    r"|CLICOLOR|PY_COLORS|CI|GITHUB_ACTIONS|WEB_CONCURRENCY|BASH_ENV|ENV|CDPATH",
    re.IGNORECASE,
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the surroundings of tests, and of the processes that they start, the same on every machine.

    SIGINT interrupts also where a shell has started the tests in the background, with it ignored.
    Without local wake-ups, what is sent does not depend on other processes of this machine. Child processes of tests
    have them.
    """
    if not ON_AWS:
        for name in [name for name in os.environ if PERSONAL.fullmatch(name)]:
            del os.environ[name]
        settings = Path(os.environ.get("HOME", "/"), ".gitconfig")  # it may say that git may read this repository
        if settings.is_file():
            os.environ.setdefault("GIT_CONFIG_GLOBAL", str(settings))
        home = tempfile.TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True)
        config.add_cleanup(home.cleanup)
        os.environ |= {"HOME": home.name, "LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"}
        os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # or botocore dials it, to find credentials
        if hasattr(time, "tzset"):  # not on Windows
            time.tzset()
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    runtime.Runtime.has_wakeups = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is there by now out of collections: modules and thousands of tests, which every one would visit.

    From here on the collector works between two tests; see `let_dropped_things_act`.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what `make test` leaves to `make test-all`."""
    if is_extended(item):
        item.add_marker(pytest.mark.extended)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what repeats an engine."""
    left_out = [item for item in items if repeats_an_engine(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not repeats_an_engine(item)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker the same tests in the same order in every run, if the order is fixed."""
    from tests.support.halves import FixedScheduling

    return FixedScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """End what the test has dropped, before its fixtures end."""
    let_dropped_things_act()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Do not measure the coverage of what repeats another engine: to trace takes as long as the test."""
    measuring = Coverage.current()
    if measuring is None or item.get_closest_marker("other_engine") is None:
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Collect now and then what tests have dropped with their fixtures, and what lived longer than one collection.

    The collections of `surroundings` leave it. With each test a process would have more open connections. What is still
    used is left out of the next ones: modules that tests have loaded, above all.
    """
    if next(_ended) % TESTS_A_COLLECTION == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what an error was raised from in a few lines: botocore's frames would stand before the error itself."""
    report = yield
    chain = getattr(report.longrepr, "chain", [])
    for traceback, _, _ in chain[:-1]:
        traceback.reprentries = traceback.reprentries[-1:]
        for entry in traceback.reprentries:
            entry.lines = [line for line in entry.lines if line.startswith("E ")] or entry.lines
            entry.reprfuncargs = entry.reprlocals = None
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a lock that is renewed, or a patch behind: the next one may be red by it."""
    is_inside = request.node.get_closest_marker("extended") is None
    if "simulation" in request.node.path.parts:  # a search makes hundreds of runs, and garbage in each
        gc.enable()
    before = Surroundings()
    with fence.up() if is_inside else contextlib.nullcontext():
        yield
    left = before.left_behind()
    gc.disable()
    if left:
        pytest.fail(f"this test leaves behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this run, each started by the first test that needs it."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(params=engines(ALL))
def engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine in turn."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=engines(REAL if ON_AWS else ["memory", *REAL]))
def concurrent_engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that handles concurrent requests of this process as DynamoDB does."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=engines(REAL))
def real_engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that handles concurrent requests as DynamoDB does, from any process."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=engines(REAL[:1]))
def dynoxide(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """The real engine that is cheapest to use."""
    with running(request.param, servers) as engine:
        yield engine
