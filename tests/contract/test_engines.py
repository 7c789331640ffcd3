"""The fixtures themselves: tables are fresh and vanish, models and environment are as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pynamodb.attributes import TTLAttribute
from pynamodb.models import Model

from tests.engines.engine import running
from tests.engines.servers import Servers, start_dynoxide
from tests.support.models import declare

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine


Thing = declare("Thing", Model, hash_key="pk", expires=TTLAttribute(null=True))
Other = declare("Other", Model, hash_key="pk")


def test_bind_one_or_several_models(engine: Engine) -> None:
    """One model is returned itself, several as a tuple; each bind gives a fresh table."""
    assert engine.bind(Thing) is Thing
    Thing("a").save()
    assert engine.bind(Thing, Other) == (Thing, Other)
    assert Thing.count() == Other.count() == 0
    assert Thing.Meta.table_name.endswith("-Thing")


@pytest.mark.processes
def test_models_and_tables_are_put_back(servers: Servers) -> None:
    """After a test its tables are gone and ``Meta`` is what it was."""
    before = dict(vars(Other.Meta))
    with running("dynoxide", servers) as engine:
        engine.bind(Other)
        Other("a").save()
        names = {Other.Meta.table_name, engine.create_table()}
        assert names <= set(engine.client().list_tables()["TableNames"])
    assert dict(vars(Other.Meta)) == before
    assert Other._connection is None
    with running("dynoxide", servers) as engine:
        assert not names & set(engine.client().list_tables()["TableNames"])


@pytest.mark.processes
def test_a_database_file_outlives_its_server(tmp_path: Path) -> None:
    """dynoxide with a file: what one process wrote the next one reads."""
    file = tmp_path / "tables.db"
    for expected in (0, 1):
        with start_dynoxide(file) as server:
            servers = Servers()
            servers.adopt(server)
            with running("dynoxide", servers) as engine:
                client = engine.client()
                assert len(client.list_tables()["TableNames"]) == expected
                if expected == 0:
                    client.create_table(
                        TableName="kept",
                        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
                        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                        BillingMode="PAY_PER_REQUEST",
                    )
