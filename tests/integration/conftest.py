"""Fixtures: engines for what needs fewer of them, and the paths of a commit.

``memory``              the in-memory engine alone
``cheap``               the two engines that cost little
``account``             an account, with a lock document in it
``device``              a device, its lock in a row of its own
``purses_and_entries``  tables in memory
``path``                each path that writes
``stock``, ``ours``, ``everybody``
                        a model with a version: PynamoDB's, each of ours, all of them
``transact``            PynamoDB's TransactWrite, and ours
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite
from tests.conftest import engines
from tests.engines.engine import running
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import Entry, Purse, Transactions, make_long_from
from tests.support.versioned_models import EVERYBODY, OURS, STOCK, connection_of, document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers


@pytest.fixture
def memory(servers: Servers) -> Iterator[Engine]:
    """The in-memory engine alone, for what does not depend on the engine."""
    with running("memory", servers) as engine:
        yield engine


@pytest.fixture(params=engines(["memory", "dynoxide"]))
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


@pytest.fixture
def purses_and_entries(memory: Engine) -> None:
    """Their tables, in memory."""
    memory.bind(Purse, Entry, Transactions)


@pytest.fixture(params=["single", "native", "long"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each path that writes, with `add_fillers`."""
    make_long_from(monkeypatch)
    name: str = request.param
    return name


@pytest.fixture
def stock(engine: Engine) -> Any:
    """PynamoDB's model."""
    return engine.bind(document(STOCK))


@pytest.fixture(params=OURS.values(), ids=OURS.keys())
def ours(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """The same model on our base classes, and with a lock in the item."""
    return engine.bind(document(request.param))


@pytest.fixture(params=EVERYBODY.values(), ids=EVERYBODY.keys())
def everybody(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """Each of them, for what is the same everywhere."""
    return engine.bind(document(request.param))


@pytest.fixture(
    params=[("versioned", StockTransactWrite), ("versioned", TransactWrite), ("lockable", TransactWrite)],
    ids=["versioned-stock-transaction", "versioned-our-transaction", "lockable-our-transaction"],
)
def transacted(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """Each model of `ours`, and what makes transactions of each class that takes it."""
    bases, kind = request.param
    model = engine.bind(document(OURS[bases]))
    return model, lambda **options: kind(connection=connection_of(model), **options)
