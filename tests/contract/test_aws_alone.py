"""What only AWS has, so that no emulator is asked: limits of throughput, and several addresses of one table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from pynamo_locking._core.dynamodb import THROTTLING
from tests.contract.helpers import Table, code_of, wire

if TYPE_CHECKING:
    import pytest

    from tests.engines.engine import Engine

#: For so long DynamoDB may let pass more than a table has.
PATIENCE_S: Final = 60.0
#: It takes ten write units.
LARGE: Final = "x" * 9_500


def test_a_throttled_write_says_why_and_is_not_applied(engine: Engine) -> None:
    """On demand, with at most one write unit a second: the reason, the table, and the item as it was."""
    client, name = engine.client(), engine.new_name("slow")
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
        OnDemandThroughput={"MaxWriteRequestUnits": 1, "MaxReadRequestUnits": 1000},
    )
    engine.await_table(name)
    applied, refusal = -1, None
    end = time.monotonic() + PATIENCE_S
    while refusal is None and time.monotonic() < end:
        item = {"pk": wire("a"), "n": wire(applied + 1), "text": wire(LARGE)}
        try:
            client.put_item(TableName=name, Item=item)
        except ClientError as error:
            refusal = error
        else:
            applied += 1
    assert refusal is not None, f"{applied + 1} writes in {PATIENCE_S:.0f} s, and none was throttled"
    assert code_of(refusal) in THROTTLING
    response: dict[str, Any] = dict(refusal.response)
    [why] = response.get("ThrottlingReasons") or response["throttlingReasons"]
    assert why["reason"] == "TableWriteMaxOnDemandThroughputExceeded"
    assert why["resource"].endswith(f":table/{name}")
    stored = client.get_item(TableName=name, Key={"pk": wire("a")}, ConsistentRead=True).get("Item")
    assert (stored and stored["n"]) == (wire(applied) if applied >= 0 else None)


def test_the_address_of_the_account_leads_to_the_same_table(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By credentials with the id of the account, botocore sends to that; another process may send to the Region."""
    table = Table(engine)
    table.put(n=1)
    monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "disabled")
    client = engine.client(read_timeout=9.5)  # a new one
    found = client.get_item(TableName=table.name, Key=table.key(), ConsistentRead=True)["Item"]
    assert found["n"] == wire(1)
