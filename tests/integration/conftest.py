"""Fixtures: engines for what needs fewer of them, and the paths of a commit.

``memory``  the in-memory engine alone
``cheap``   the two engines that cost little
``path``    each path that writes
``account``  an account with a lock in it
``device``   a device with its lock in a row of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.engine import running
from tests.support.models import Account, Device, Locks
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


@pytest.fixture
def account(engine: Engine) -> type[Account]:
    """An account with 100 in it, and a lock document."""
    engine.bind(Account)
    Account("a", balance=100).save()
    with Account.locked("a"):
        pass
    return Account


@pytest.fixture
def device(engine: Engine) -> type[Device]:
    """A device whose lock is in a row of its own."""
    engine.bind(Locks, Device)
    Device("d", state="off").save()
    return Device


@pytest.fixture(params=["single", "native", "long"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each path that writes, with `add_fillers`."""
    make_long_from(monkeypatch)
    name: str = request.param
    return name
