"""Two places with tables of one name: two Regions, hosts or accounts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.connection import Connection

from tests.engines.engine import running
from tests.engines.memory import TappedMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

#: What the `Meta` of a model in the other place says.
PLACES: Final[dict[str, dict[str, Any]]] = {
    "region": {"region": "eu-west-3"},
    "host": {"host": "http://localhost:1"},
    "account": {"aws_access_key_id": "another", "aws_secret_access_key": "another"},
}

#: The engines that have them, each with its other places: moto has Regions.
OTHER_PLACES: Final = [*(("memory", kind) for kind in PLACES), ("moto", "region")]


@contextmanager
def another_place(servers: Servers, name: str, kind: str, *models: Any) -> Iterator[dict[str, Any]]:
    """Run an engine with tables of these models, and yield what a `Meta` says in its other place."""
    with running(name, servers) as engine, pytest.MonkeyPatch.context() as patch:
        _tell_apart(engine, patch)
        engine.bind(*models)
        yield PLACES[kind]


def inherit(base: Any, **options: Any) -> Any:
    """Return a class of a model with other options in its `Meta`, and nothing else."""
    return type("There", (base,), {"Meta": type("Meta", (base.Meta,), options)})


def _tell_apart(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine have a database for each place, as AWS has."""
    memory = engine._memory
    if memory is None:  # moto has one for each Region
        return
    here = engine.region, engine.host, engine.credentials["aws_access_key_id"]
    databases = {here: memory}

    def client_for(connection: Any) -> Any:
        place = connection.region, connection.host, connection._aws_access_key_id
        return databases.setdefault(place, TappedMemory()).client_for(connection)

    monkeypatch.setattr(Connection, "client", property(client_for))
