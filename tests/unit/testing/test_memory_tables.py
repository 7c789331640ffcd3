"""The database in memory: queries, pages, indexes, batches, and what belongs to a whole table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from pynamodb.connection import Connection

from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import MemoryDynamoDB


def n(number: float | str) -> dict[str, str]:
    return {"N": str(number)}


def s(text: str) -> dict[str, str]:
    return {"S": text}


HASH = {"pk": s("a")}


@pytest.fixture
def client() -> Any:
    """A client of a database with one table that has an index of each kind, and some items."""
    client = MemoryDynamoDB().client()
    client.create_table(
        TableName="rows",
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kind} for name, kind in ("hS", "rN", "gS", "tS")
        ],
        KeySchema=keys("h", "r"),
        GlobalSecondaryIndexes=[
            {"IndexName": "by_g", "KeySchema": keys("g", "t"), "Projection": {"ProjectionType": "ALL"}},
            {"IndexName": "keys", "KeySchema": keys("g"), "Projection": {"ProjectionType": "KEYS_ONLY"}},
        ],
        LocalSecondaryIndexes=[
            {"IndexName": "by_t", "KeySchema": keys("h", "t"), "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ],
    )
    for number in range(10):
        item = {"h": s("ab"[number % 2]), "r": n(number), "x": n(number), "t": s("zyxwvutsrq"[number] * 2)}
        if number % 3:
            item["g"] = s("g")
        client.put_item(TableName="rows", Item=item)
    return client


def keys(hash_key: str, range_key: str | None = None) -> list[dict[str, str]]:
    roles = {"HASH": hash_key, "RANGE": range_key}
    return [{"AttributeName": name, "KeyType": role} for role, name in roles.items() if name]


def found(client: Any, condition: str, **request: Any) -> list[int]:
    """The range keys that a query finds, over all its pages."""
    used = {":h": s("a"), ":g": s("g"), ":two": n(2), ":six": n(6), ":v": s("v"), ":vv": s("vv"), ":xx": s("xx")}
    given = {key: value for key, value in used.items() if re.search(f"{key}\\b", condition)}
    request |= {"KeyConditionExpression": condition, "ExpressionAttributeValues": given}
    return [int(item["r"]["N"]) for item in pages(client.query, **request)]


def pages(operation: Any, **request: Any) -> list[dict[str, Any]]:
    items = []
    while True:
        answer = operation(TableName="rows", **request)
        items += answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return items
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


@pytest.mark.parametrize("limit", [None, 1, 2, 100])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(
    ("index", "condition", "expected"),
    [
        (None, "h = :h", [0, 2, 4, 6, 8]),
        (None, "h = :h AND r = :two", [2]),
        (None, ":h = h AND :two <= r", [2, 4, 6, 8]),
        (None, "h = :h AND r > :two", [4, 6, 8]),
        (None, "(h = :h) AND (r >= :two)", [2, 4, 6, 8]),
        (None, "h = :h AND r < :six", [0, 2, 4]),
        (None, "h = :h AND r <= :six", [0, 2, 4, 6]),
        (None, "h = :h AND r BETWEEN :two AND :six", [2, 4, 6]),
        ("by_t", "h = :h", [8, 6, 4, 2, 0]),
        ("by_t", "h = :h AND begins_with(t, :v)", [4]),
        ("by_g", "g = :g", [8, 7, 5, 4, 2, 1]),
        ("by_g", "g = :g AND t BETWEEN :vv AND :xx", [4, 2]),
        ("keys", "g = :g", [2, 4, 8, 1, 5, 7]),
    ],
)
def test_queries(client, index, condition, expected, forward, limit):
    """What the key condition says, in the order of the range key, whatever the size of the pages."""
    request: dict[str, Any] = {"ScanIndexForward": forward}
    if index:
        request["IndexName"] = index
    if limit:
        request["Limit"] = limit
    assert found(client, condition, **request) == (expected if forward else expected[::-1])


@pytest.mark.parametrize(
    ("index", "condition", "message"),
    [
        (None, "r = :two", "Query condition missed key schema element: h"),
        (None, "h > :h", "Query key condition not supported"),
        (None, "h = :h OR r = :two", "Invalid operator used in KeyConditionExpression"),
        (None, "h = :h AND h = :g", "KeyConditionExpressions must only contain one condition per key"),
        (None, "h = :h AND x = :two", "Query condition missed key schema element: r"),
        (None, "h = :two", "Condition parameter type does not match schema type"),
        ("gone", "h = :h", "The table does not have the specified index: gone"),
    ],
)
def test_queries_that_are_refused(client, index, condition, message):
    """A query has one hash value and one demand on the range key."""
    with pytest.raises(ClientError, match=message):
        found(client, condition, **({"IndexName": index} if index else {}))


def test_an_index_follows_its_items(client):
    """An item leaves an index with the attribute, moves with its value, and goes when it is deleted."""
    key = {"TableName": "rows", "Key": {"h": s("b"), "r": n(1)}}
    client.update_item(**key, UpdateExpression="REMOVE g")
    assert found(client, "g = :g", IndexName="by_g") == [8, 7, 5, 4, 2]
    names = {"ExpressionAttributeValues": {":g": s("g"), ":t": s("a")}}
    client.update_item(**key, UpdateExpression="SET g = :g, t = :t", **names)
    assert found(client, "g = :g", IndexName="by_g") == [1, 8, 7, 5, 4, 2]
    client.delete_item(**key)
    assert found(client, "g = :g", IndexName="by_g") == [8, 7, 5, 4, 2]
    with pytest.raises(ClientError, match="Type mismatch for Index Key g Expected: S Actual: N IndexName: by_g"):
        client.put_item(TableName="rows", Item={"h": s("a"), "r": n(1), "g": n(1)})


def test_an_index_shows_what_it_has(client):
    """Keys alone where it has only them; a local one fetches the rest if asked."""
    request = {
        "KeyConditionExpression": "h = :h AND t = :t",
        "ExpressionAttributeValues": {":h": s("a"), ":t": s("zz")},
    }
    local = {"TableName": "rows", "IndexName": "by_t", **request}
    assert client.query(**local)["Items"] == [{"h": s("a"), "r": n(0), "t": s("zz")}]
    assert client.query(**local, Select="ALL_ATTRIBUTES")["Items"][0]["x"] == n(0)
    assert client.query(**local, ProjectionExpression="x")["Items"] == [{"x": n(0)}]
    assert "Items" not in client.query(**local, Select="COUNT")
    request = {"KeyConditionExpression": "g = :g", "ExpressionAttributeValues": {":g": s("g")}}
    for wrong in ({"ProjectionExpression": "x"}, {"Select": "ALL_ATTRIBUTES"}, {"ConsistentRead": True}):
        with pytest.raises(ClientError, match="ValidationException"):
            client.query(TableName="rows", IndexName="keys", **request, **wrong)


def test_filters_come_after_the_limit(client):
    """The page is cut first; the counts tell how many items were looked at."""
    values = {":h": s("a"), ":six": n(6)}
    request = {"KeyConditionExpression": "h = :h", "FilterExpression": "x >= :six", "ExpressionAttributeValues": values}
    answer = client.query(TableName="rows", Limit=4, **request)
    assert (answer["Count"], answer["ScannedCount"], answer["Items"][0]["r"]) == (1, 4, n(6))
    request["FilterExpression"] = "x >= :six AND r >= :six"
    with pytest.raises(ClientError, match="can only contain non-primary key attributes: Primary key attribute: r"):
        client.query(TableName="rows", **request)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_scans_see_everything_once(client, limit):
    """In pages and in segments; of a sparse index, what it has."""
    whole = pages(client.scan, Limit=limit)
    assert sorted(int(item["r"]["N"]) for item in whole) == list(range(10))
    segments = [pages(client.scan, Limit=limit, Segment=segment, TotalSegments=3) for segment in range(3)]
    assert sorted(int(item["r"]["N"]) for segment in segments for item in segment) == list(range(10))
    assert len(pages(client.scan, Limit=limit, IndexName="by_g")) == 6


def test_a_page_has_one_megabyte(client):
    """The item that goes beyond it is the last."""
    for number in range(5):
        client.put_item(TableName="rows", Item={"h": s("big"), "r": n(number), "x": s("x" * 300_000)})
    request = {"KeyConditionExpression": "h = :h", "ExpressionAttributeValues": {":h": s("big")}}
    answer = client.query(TableName="rows", **request, ReturnConsumedCapacity="TOTAL")
    assert (answer["Count"], answer["LastEvaluatedKey"]) == (4, {"h": s("big"), "r": n(3)})
    assert answer["ConsumedCapacity"] == {"TableName": "rows", "CapacityUnits": 0.5 * 293}


def test_batches(client):
    """Items are written, deleted and read in one request; twice the same item is refused, and too many are."""
    new = [{"PutRequest": {"Item": {"h": s("new"), "r": n(number)}}} for number in range(24)]
    old = {"DeleteRequest": {"Key": {"h": s("a"), "r": n(0)}}}
    answer = client.batch_write_item(RequestItems={"rows": [*new, old]}, ReturnConsumedCapacity="TOTAL")
    assert answer["UnprocessedItems"] == {}
    assert answer["ConsumedCapacity"] == [{"TableName": "rows", "CapacityUnits": 24 + 2}]  # and that of an index
    wanted = [{"h": s("new"), "r": n(3)}, {"h": s("a"), "r": n(0)}, {"h": s("a"), "r": n(2)}]
    projection = {"ProjectionExpression": "x, r"}
    answer = client.batch_get_item(RequestItems={"rows": {"Keys": wanted, **projection}})
    assert answer["Responses"] == {"rows": [{"r": n(3)}, {"x": n(2), "r": n(2)}]}
    assert answer["UnprocessedKeys"] == {}
    key = wanted[0]
    for operation, request, message in (
        (client.batch_get_item, {"Keys": [key, key]}, "contains duplicates"),
        (client.batch_get_item, {"Keys": [{"h": s("a"), "r": n(i)} for i in range(101)]}, "Too many items requested"),
        (client.batch_get_item, {"Keys": []}, "greater than or equal to 1"),
        (client.batch_write_item, [old, old], "contains duplicates"),
        (client.batch_write_item, [*new, old, {"DeleteRequest": {"Key": key}}], "Too many items requested"),
    ):
        with pytest.raises(ClientError, match=message):
            operation(RequestItems={"rows": request})


def test_a_batch_answers_with_at_most_16_megabytes(client):
    """The rest is to be asked for again."""
    keys_ = [{"h": s("large"), "r": n(number)} for number in range(50)]
    for key in keys_:
        client.put_item(TableName="rows", Item={**key, "x": s("x" * 399_000)})
    answer = client.batch_get_item(RequestItems={"rows": {"Keys": keys_, "ConsistentRead": True}})
    left = answer["UnprocessedKeys"]["rows"]
    assert (len(answer["Responses"]["rows"]), left["Keys"], left["ConsistentRead"]) == (42, keys_[42:], True)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("NONE", None),
        ("ALL_OLD", {"h": s("c"), "r": n(1), "m": {"M": {"a": n(1), "b": n(2)}}, "x": n(9)}),
        ("ALL_NEW", {"h": s("c"), "r": n(1), "m": {"M": {"a": n(5), "b": n(2)}}}),
        ("UPDATED_OLD", {"m": {"M": {"a": n(1)}}, "x": n(9)}),
        ("UPDATED_NEW", {"m": {"M": {"a": n(5)}}}),
    ],
)
def test_return_values(client, wanted, expected):
    """Of an update: the whole item or what it was about, before or afterwards."""
    key = {"h": s("c"), "r": n(1)}
    client.put_item(TableName="rows", Item={**key, "m": {"M": {"a": n(1), "b": n(2)}}, "x": n(9)})
    update = {"UpdateExpression": "SET m.a = :five REMOVE x", "ExpressionAttributeValues": {":five": n(5)}}
    answer = client.update_item(TableName="rows", Key=key, ReturnValues=wanted, **update)
    assert answer.get("Attributes") == expected
    with pytest.raises(ClientError, match="Return values set to invalid value"):
        client.put_item(TableName="rows", Item=key, ReturnValues="ALL_NEW")


def test_nothing_is_shared_with_the_caller(client):
    """What is handed in or got back may be changed without an effect on what is stored."""
    row = {"TableName": "rows", "Key": {"h": s("c"), "r": n(1)}}
    item = {**row["Key"], "m": {"M": {"l": {"L": [n(1)]}}}}
    client.put_item(TableName="rows", Item=item)
    item["m"]["M"]["l"]["L"].append(n(2))
    answers = [client.get_item(**row)["Item"]]
    answers[0]["m"]["M"].clear()
    value = {":v": {"L": [n(5)]}}
    answers.append(
        client.update_item(
            **row, UpdateExpression="SET c = m, v = :v", ExpressionAttributeValues=value, ReturnValues="ALL_NEW"
        )["Attributes"]
    )
    value[":v"]["L"].clear()
    answers[1]["c"]["M"].clear()
    stored_item = client.get_item(**row)["Item"]
    assert stored_item["m"] == stored_item["c"] == {"M": {"l": {"L": [n(1)]}}}
    assert stored_item["v"] == {"L": [n(5)]}


def test_every_connection_goes_to_it_while_it_is_open():
    """Also one that was made before; afterwards all is as it was. Two cannot be open."""
    before = Connection(host="http://127.0.0.1:9", region="us-east-1")
    with MemoryDynamoDB() as database:
        assert before.dispatch("ListTables", {})["TableNames"] == []
        assert Connection().client is before.client is database.client()
        assert "memory" in repr(before)
        with pytest.raises(ConfigurationError, match="in use already"), MemoryDynamoDB():
            pass
        with pytest.raises(ConfigurationError, match="in use already"), database:
            pass
    assert not isinstance(before.client, type(database.client()))
    with MemoryDynamoDB() as another, pytest.raises(another.exceptions.ResourceNotFoundException):
        before.client._make_api_call("DescribeTable", {"TableName": "gone"})


def test_what_it_does_not_know_is_said(client):
    """An operation or argument that it would have to ignore."""
    with pytest.raises(ConfigurationError, match="AttributesToGet of GetItem"):
        client.get_item(TableName="rows", Key={"h": s("a"), "r": n(1)}, AttributesToGet=["x"])
    with pytest.raises(ConfigurationError, match="the operation ExecuteStatement"):
        client._make_api_call("ExecuteStatement", {})
    with pytest.raises(AttributeError, match="create_backup"):
        client.create_backup()


def test_a_token_is_remembered_for_ten_minutes():
    """By the database's own clock."""

    class Clock(MemoryDynamoDB):
        now_ms = 0

        def time_ms(self) -> int:
            return self.now_ms

    database = Clock()
    client = database.client()
    client.create_table(
        TableName="table",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=keys("pk"),
    )
    update = {"UpdateExpression": "ADD c :one", "ExpressionAttributeValues": {":one": n(1)}}
    action = {"Update": {"TableName": "table", "Key": HASH, **update}}
    for database.now_ms, expected in ((0, "1"), (599_999, "1"), (600_000, "2"), (1_199_999, "2")):
        client.transact_write_items(TransactItems=[action], ClientRequestToken="t")
        assert client.get_item(TableName="table", Key=HASH)["Item"]["c"] == n(expected)


def test_faults_go_around_the_one_method():
    """Every request of every client passes `handle`."""
    seen = []

    class Deaf(MemoryDynamoDB):
        def handle(self, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
            seen.append(operation)
            super().handle(operation, kwargs)
            raise ConnectionClosedError(endpoint_url="memory")

    with Deaf() as database, pytest.raises(ConnectionClosedError):
        database.client().list_tables()
    with Deaf(), pytest.raises(ConnectionClosedError):
        Connection().dispatch("ListTables", {})
    assert seen == ["ListTables", "ListTables"]
