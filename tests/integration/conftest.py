"""Fixtures: engines for what needs fewer of them, the paths of a commit, and a keyboard.

``memory``  the in-memory engine alone
``cheap``   the two engines that cost little
``path``    each path that writes
``ctrl_c``  SIGINT as a terminal's foreground job has it
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.engines.engine import running
from tests.support.transaction_models import make_long_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers


@pytest.fixture
def memory(servers: Servers) -> Iterator[Engine]:
    """The in-memory engine alone, for what does not depend on the engine."""
    with running("memory", servers) as engine:
        yield engine


@pytest.fixture(params=["memory", "dynoxide"])
def cheap(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """The two engines that cost little."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture(params=["single", "native", "long"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each path that writes, with `add_fillers`."""
    make_long_from(monkeypatch)
    name: str = request.param
    return name


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell has started the tests in the background, with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
