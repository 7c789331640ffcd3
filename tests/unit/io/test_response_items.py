"""The items of a response are what botocore's own parser makes of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._io import responses
from tests.unit.helpers import steady

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BYTES = st.binary(max_size=6).map(lambda content: base64.b64encode(content).decode())
SCALARS = (
    st.fixed_dictionaries({"S": TEXT})
    | st.fixed_dictionaries({"N": st.integers().map(str)})
    | st.fixed_dictionaries({"B": BYTES})
    | st.fixed_dictionaries({"BOOL": st.booleans()})
    | st.just({"NULL": True})
    | st.fixed_dictionaries({"SS": st.lists(TEXT)})
    | st.fixed_dictionaries({"NS": st.lists(st.integers().map(str))})
    | st.fixed_dictionaries({"BS": st.lists(BYTES)})
)
NAMES = st.sampled_from(["B", "BS", "Item", "base64"]) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.fixed_dictionaries({"L": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"M": st.dictionaries(NAMES, inner, max_size=3)})
    ),
    max_leaves=8,
)
ITEMS = st.dictionaries(NAMES, VALUES, max_size=4)

KEY: Any = {"TableName": "t", "Key": {"id": {"S": "a"}}}
UNITS = {"TableName": "t", "CapacityUnits": 1.5}


class Client:
    """A client of DynamoDB that receives the given bodies."""

    def __init__(self, *, takes_items: bool) -> None:
        self.client: Any = botocore.session.Session().create_client(
            "dynamodb",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=Config(parameter_validation=False),  # boto3 1.28 refuses tables below 3 letters
        )
        self.body, self.status = b"", 200
        self.client.meta.events.register("before-send.dynamodb", self._answer)
        if takes_items:
            self.client.meta.events.register("before-parse.dynamodb", responses.take_items)

    def _answer(self, **_: Any) -> AWSResponse:
        response = AWSResponse("https://dynamodb", self.status, {}, None)
        response._content = self.body
        return response

    def ask(self, operation: str, body: Any, status: int = 200, **arguments: Any) -> Any:
        """Return the parsed response, or that of the error."""
        self.body, self.status = body if isinstance(body, bytes) else json.dumps(body).encode(), status
        try:
            found = getattr(self.client, operation)(**arguments)
        except ClientError as error:
            found = error.response
        del found["ResponseMetadata"]
        return found


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return [Client(takes_items=False), Client(takes_items=True)]


def both(clients: list[Client], operation: str, body: Any, status: int = 200, **arguments: Any) -> Any:
    """Return what both make of a body; it must be the same."""
    expected, found = (client.ask(operation, body, status, **arguments) for client in clients)
    assert found == expected
    return found


@steady
@given(item=ITEMS, others=st.lists(ITEMS, max_size=3))
def test_items_are_those_of_botocore(clients: list[Client], item: Any, others: list[Any]) -> None:
    units, key = {"ConsumedCapacity": UNITS}, {"id": {"B": "AA=="}}
    both(clients, "update_item", {"Attributes": item, **units}, **KEY)
    both(clients, "get_item", {"Item": item, **units}, **KEY)
    both(clients, "query", {"Items": others, "Count": 1, "LastEvaluatedKey": key}, TableName="t")
    asked = {table: {"Keys": [key]} for table in ("t", "B", "BS")}
    body = {"Responses": {"t": others, "B": [item], "BS": []}, "UnprocessedKeys": {"t": {"Keys": [key]}}}
    both(clients, "batch_get_item", body, RequestItems=asked)
    body = {"Responses": [{"Item": item}, {}, *({"Item": each} for each in others)]}
    both(clients, "transact_get_items", body, TransactItems=[{"Get": KEY}])
    refused = {"Code": "ConditionalCheckFailed", "Message": "The condition failed", "Item": item}
    body = {"Responses": [{"Error": refused, "TableName": "t"}, {"TableName": "t", "Item": item}]}
    both(clients, "batch_execute_statement", body, Statements=[{"Statement": "x"}])


@steady
@given(item=ITEMS)
def test_items_of_refusals_are_those_of_botocore(clients: list[Client], item: Any) -> None:
    failed = {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "message": "no"}
    found = both(clients, "update_item", {**failed, "Item": item}, 400, **KEY)
    assert found["Error"]["Code"] == "ConditionalCheckFailedException"
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Message": "no", "Item": item}]
    body = {"__type": "x#TransactionCanceledException", "Message": "no", "CancellationReasons": reasons}
    both(clients, "transact_write_items", body, 400, TransactItems=[{"Delete": KEY}])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"Attributes": None},
        {"Attributes": {}},
        {"ConsumedCapacity": UNITS},
        b"{}",
        b'{"Attributes": {"a": {"S": "\xc3\xa9"}}}',
    ],
)
def test_a_response_without_items(clients: list[Client], body: Any) -> None:
    both(clients, "update_item", body, **KEY)


def test_a_list_with_nothing_in_it(clients: list[Client]) -> None:
    """Botocore takes it for one that was left out."""
    both(clients, "transact_get_items", {"Responses": [None]}, TransactItems=[{"Get": KEY}])


#: What some proxy answers, and no DynamoDB.
PAGES = [b"<html>", b"gesperrt f\xfcr Sie", b"[1]", b"1", b'"x"', b"null", b"[" * 100_000]
PAGES += [
    json.dumps({name: "blocked"}).encode() for name in ("ConsumedCapacity", "Attributes", "ItemCollectionMetrics")
]
PAGES += [b'{"Attributes": {"id": 3}}', b'{"Attributes": {"id": {"B": "x"}}}', b'{"ConsumedCapacity": [3]}']


@pytest.mark.parametrize("page", PAGES)
def test_what_is_no_answer_is_said_to_be_none(clients: list[Client], page: bytes) -> None:
    """No error of botocore's parser reaches the caller."""
    taking = clients[1]
    assert taking.ask("update_item", page, **KEY) == {responses.NO_ANSWER: True}
    for status in (400, 403, 500):
        assert taking.ask("update_item", page, status, **KEY)["Error"]["Code"] == str(status)


@pytest.mark.parametrize(
    "page",
    [
        {"__type": 3},
        {"__type": "x#TransactionCanceledException", "CancellationReasons": "x"},
        {"__type": "x#TransactionCanceledException", "CancellationReasons": [{"Item": "x"}]},
        {"__type": "x#ConditionalCheckFailedException", "Item": "x"},
    ],
)
def test_a_refusal_that_cannot_be_read_has_the_code_of_its_status(clients: list[Client], page: Any) -> None:
    """What it names is not believed."""
    assert clients[1].ask("transact_write_items", page, 400, TransactItems=[])["Error"]["Code"] == "400"
