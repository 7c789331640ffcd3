"""The body of a request is what botocore's own serializer makes of its parameters."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from pynamo_locking._io import client as client_module

UNUSUAL: dict[str, Any] = {
    "text": {"S": 'ä "q" \\ \ud800'},
    "number": {"N": "-1.5E+3"},
    "flag": {"BOOL": True},
    "none": {"NULL": True},
    "set": {"SS": ["a", "b"]},
    "map": {"M": {"inner": {"L": [{"M": {}}, {"L": []}, {"S": ""}]}}},
}
BINARY: dict[str, Any] = {
    "bytes": {"B": b"\x00\xff"},
    "text as bytes": {"B": "abcd"},
    "texts as bytes": {"BS": ["abcd", b"x"]},
    "inside": {"L": [{"M": {"b": {"B": "abcd"}}}]},
    "called B": {"M": {"B": {"S": "x"}}},
}


def put(item: dict[str, Any]) -> dict[str, Any]:
    names, values = {"#0": "id"}, {":0": {"S": "x"}}
    condition = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values, "ConditionExpression": "#0=:0"}
    return {"TableName": "table", "Item": item, **condition}


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *(("PutItem", put({name: value})) for name, value in {**UNUSUAL, **BINARY}.items()),
    ("TransactWriteItems", {"TransactItems": [{"Put": put(UNUSUAL)}, {"Put": put(BINARY)}], "ClientRequestToken": "t"}),
    ("TransactWriteItems", {"TransactItems": [{"Put": put(UNUSUAL)}] * 2, "ClientRequestToken": "t"}),
    ("TransactGetItems", {"TransactItems": [{"Get": {"TableName": "table", "Key": UNUSUAL}}]}),
    ("BatchGetItem", {"RequestItems": {"table": {"Keys": [UNUSUAL], "ConsistentRead": True}}}),
    ("BatchExecuteStatement", {"Statements": [{"Statement": "INSERT", "Parameters": [{"S": "x"}]}]}),
    (
        "ExportTableToPointInTime",
        {"TableArn": "arn:x", "S3Bucket": "b", "ClientToken": "t", "ExportTime": datetime.now(tz=timezone.utc)},
    ),
    ("ListBackups", {"TimeRangeLowerBound": "2024-01-01T00:00:00Z"}),  # it sends a number
]


class Client:
    """A client of DynamoDB that notes what it would send."""

    def __init__(self, *, writes_bodies: bool, **options: Any) -> None:
        session = botocore.session.Session()
        session.set_credentials("a", "b")
        config = Config(**{"parameter_validation": False, **options})
        self.client: Any = session.create_client("dynamodb", region_name="us-east-1", config=config)
        self.sent: list[tuple[str, Any, bytes]] = []
        self.client.meta.events.register("before-send.dynamodb", self._answer)
        if writes_bodies:
            client_module._watch(SimpleNamespace(client=self.client, _client=self.client))  # type: ignore[arg-type]

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        self.sent.append((request.url, json.loads(request.body), request.headers["X-Amz-Target"]))
        response = AWSResponse("https://dynamodb", 200, {}, None)
        answer: dict[str, Any] = (
            {"ConsumedCapacity": {}} if b"PutItem" in self.sent[-1][2] else {"ConsumedCapacity": []}
        )
        response._content = json.dumps(
            {**answer, "ExportDescription": {"ExportArn": "a"}, "BackupSummaries": []}
        ).encode()
        return response

    def send(self, operation: str, params: dict[str, Any]) -> tuple[str, Any, bytes]:
        self.client._make_api_call(operation, params)
        return self.sent.pop()


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return [Client(writes_bodies=False), Client(writes_bodies=True)]


@pytest.mark.parametrize(("operation", "params"), REQUESTS)
def test_a_body_is_that_of_botocore(clients: list[Client], operation: str, params: dict[str, Any]) -> None:
    """Also if a binary value was given as text, which botocore encodes; and the caller can send the parameters again"""
    given = copy.deepcopy(params)
    expected, found, again = (client.send(operation, given) for client in (*clients, clients[1]))
    assert found == again == expected
    assert given == params


def test_botocore_serializes_no_items() -> None:
    """That would take longer than all that PynamoDB does for a save."""
    client, item = Client(writes_bodies=True), dict[str, Any](put(UNUSUAL)["Item"])
    serializer, serialized = client.client._serializer, list[Any]()
    with mock.patch.object(serializer, "_serialize", side_effect=lambda _, value, *__: serialized.append(value)):
        client.send("PutItem", {"TableName": "table", "Item": item})
    assert serialized == [{}]


@pytest.mark.parametrize("event", ["before-call", "before-call.dynamodb.PutItem", "before-call.*.*"])
def test_another_program_sees_and_changes_the_body(event: str) -> None:
    """As an application can in botocore's events."""
    client, seen = Client(writes_bodies=True), list[Any]()

    def change(params: dict[str, Any], **_: Any) -> None:
        seen.append(json.loads(params["body"]))
        params["body"] = b'{"TableName": "other"}'

    client.client.meta.events.register(event, change)
    request = put({"id": {"S": "a"}})
    assert client.send("PutItem", request)[1] == {"TableName": "other"}
    assert seen == [request]


def test_a_signed_address_has_the_item() -> None:
    """botocore makes it without a call."""
    expected, found = (
        Client(writes_bodies=each).client.generate_presigned_url("put_item", Params=put({"id": {"S": "a"}}))
        for each in (False, True)
    )
    parts = [parse_qs(urlsplit(url).query) for url in (expected, found)]
    assert {name for one, other in [parts] for name in one if one[name] != other[name]} <= {
        "X-Amz-Date",
        "X-Amz-Signature",
    }


def test_botocore_sees_the_account_in_the_name_of_a_table() -> None:
    """An endpoint is made of it."""
    arn = "arn:aws:dynamodb:us-east-1:123456789012:table/t"
    action = {"Put": {"TableName": arn, "Item": {"id": {"S": "a"}}}}
    both = [Client(writes_bodies=each, account_id_endpoint_mode="preferred") for each in (False, True)]
    for operation, params in (
        ("PutItem", action["Put"]),
        ("TransactWriteItems", {"TransactItems": [action], "ClientRequestToken": "t"}),
        ("BatchGetItem", {"RequestItems": {arn: {"Keys": [{"id": {"S": "a"}}]}}}),
    ):
        expected, found = (client.send(operation, params) for client in both)
        assert found == expected
        assert "123456789012" in found[0]


def test_botocore_adds_what_a_request_lacks(clients: list[Client]) -> None:
    """The token of a transaction."""
    params = {"TransactItems": [{"Put": put(UNUSUAL)}]}
    _, body, _ = clients[1].send("TransactWriteItems", {**params})
    assert body.pop("ClientRequestToken")
    assert body == params


@pytest.mark.parametrize("event", ["provide-client-params", "provide-client-params.dynamodb.PutItem"])
def test_the_parameters_of_another_program_are_sent(event: str) -> None:
    """As an application can give others in botocore's events."""
    client, others = Client(writes_bodies=True), put({"id": {"S": "others"}})
    client.client.meta.events.register(event, lambda **_: others)
    assert client.send("PutItem", put({"id": {"S": "ours"}}))[1] == others


def test_a_client_that_validates_still_does() -> None:
    """PynamoDB's do not: such a client is a test's substitute."""
    client = Client(writes_bodies=True, parameter_validation=True)
    params = {"TransactItems": [{"Put": put(UNUSUAL)}], "ClientRequestToken": "t"}
    assert client.send("TransactWriteItems", params)[1] == params
