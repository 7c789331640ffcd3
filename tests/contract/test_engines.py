"""The fixtures themselves: tables are fresh and vanish, models and environment are as before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pynamodb.attributes import TTLAttribute
from pynamodb.models import Model

from tests.engines.engine import AWS_PREFIX_VARIABLE, DUMMY_ENVIRONMENT, running
from tests.engines.servers import Servers, start_dynoxide
from tests.support.models import declare

if TYPE_CHECKING:
    from tests.engines.engine import Engine


ROOT: Final = Path(__file__).parents[2]
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


@pytest.mark.processes
def test_the_page_of_a_run_on_aws(servers: Servers, tmp_path: Path) -> None:
    """It has each question, its answer, and the date; the exit code says whether all is well, and no table is left."""
    with running("dynoxide", servers) as engine:
        environment = os.environ | DUMMY_ENVIRONMENT
        environment |= {AWS_PREFIX_VARIABLE: "trial-", "AWS_ENDPOINT_URL_DYNAMODB": engine.host or ""}
        plugin = ["-p", "tests.contract.page", "--page", str(tmp_path / "page.md")]
        command = [sys.executable, "-m", "pytest", "-q", *plugin, "tests/contract", "-k", "lock_document or faults"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=100)
        assert [name for name in engine.client().list_tables()["TableNames"] if name.startswith("trial-")] == []
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert done.returncode == 1, "dynoxide deviates"
    assert re.search(rf"^# {engine.host}, \d{{4}}-\d\d-\d\d: \d+ of \d+ answers", page)
    assert "| `test_renew` | A heartbeat only goes up, and only under the ticket it was given for. | yes |" in page
    assert "| `test_remove_below_a_missing_map_is_invalid` | REMOVE does not make the parents of a path, nor " in page
    assert "| no: Failed: DID NOT RAISE" in page
    assert "## Faults" not in page, "tests of the engines here are left out"
