"""Fixtures for every test: the DynamoDB engines.

``engine``             each engine in turn
``concurrent_engine``  those that take concurrent requests of threads as DynamoDB does (not moto)
``real_engine``        those in a process of their own, which other processes reach as well (not the in-memory one)
``dynoxide``           the cheapest of them
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
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
from tests.support.surroundings import Surroundings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ON_AWS = bool(os.environ.get(AWS_PREFIX_VARIABLE))
REAL = ["aws"] if ON_AWS else ["dynoxide", "dynamodb-local"]
ALL = ["aws"] if ON_AWS else ["memory", "moto", *REAL]


#: What they repeat of the first two engines has shown nothing in all their runs: `make test-all` has it.
SLOW: Final = {"moto", "dynamodb-local"}


def first_and_others(engines: list[str]) -> list[Any]:
    """Parameters of a fixture: what repeats its first engine is marked, and left out of `make test` if it is SLOW."""
    first, *others = engines
    repeats, slow = pytest.mark.other_engine, pytest.mark.slow
    return [
        first,
        *(pytest.param(engine, marks=[repeats, slow] if engine in SLOW else [repeats]) for engine in others),
    ]


#: What programs print, and where they look, depends on these; tests that are about one of them set it.
PERSONAL: Final = re.compile(
    r"(AWS|PYNAMODB|XDG|LC|DJANGO|FLASK|CELERY|GUNICORN|POWERTOOLS|OTEL|JUPYTER|TTY|CLICOLOR)_\w+"
    r"|PYNAMO_LOCKING_(REGION|PROFILE|ENDPOINT|(TRANSACTION_|CALL_)?TABLE|LOG_FILE)|(HTTPS?|ALL)_PROXY|PYTEST_ADDOPTS"
    r"|PYTHON(?!PATH$|HOME$|HASHSEED$|_GIL$)\w+|COLUMNS|LINES|TERMINAL_WIDTH|LANGUAGE|COLORTERM|\w*NO_COLOR|\w*FORCE_COLOR"
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
        time.tzset()
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    runtime.Runtime.has_wakeups = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is there by now out of collections: modules and thousands of tests, which every one would visit."""
    gc.collect()
    gc.freeze()


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
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a lock that is renewed, or a patch behind: the next one may be red by it."""
    before = Surroundings()
    yield
    if left := before.left_behind():
        pytest.fail(f"this test leaves behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this run, each started by the first test that needs it."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(params=first_and_others(ALL))
def engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine in turn."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=first_and_others(REAL if ON_AWS else ["memory", *REAL]))
def concurrent_engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that handles concurrent requests of this process as DynamoDB does."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=first_and_others(REAL))
def real_engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that handles concurrent requests as DynamoDB does, from any process."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=REAL[:1])
def dynoxide(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """The real engine that is cheapest to use."""
    with running(request.param, servers) as engine:
        yield engine
