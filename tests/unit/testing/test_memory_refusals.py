"""What only the in-memory DynamoDB can be asked: boto3 would not send such requests to another one."""

from __future__ import annotations

import threading
from enum import Enum

import pytest
from botocore.exceptions import ClientError

from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock
from pynamo_locking_testing.clock import Sleeper
from tests.support.boundaries import nested, number


class Colour(str, Enum):
    """A text of another type."""

    RED = "red"


INVALID = "ValidationException"
WRITE = [{"Put": {"TableName": "stock", "Item": {"pk": {"S": "a"}}}}]


@pytest.fixture
def client():
    """The client of a database with one table."""
    with MemoryDynamoDB() as database:
        client = database.client()
        create(client, "stock")
        yield client


def create(client, name):
    key = {"AttributeName": "pk", "AttributeType": "S"}
    schema = [{"AttributeName": "pk", "KeyType": "HASH"}]
    client.create_table(TableName=name, AttributeDefinitions=[key], KeySchema=schema)


@pytest.mark.parametrize(
    ("operation", "arguments", "code", "message"),
    [
        ("scan", {"Limit": 0}, INVALID, "Value '0' at 'limit'"),
        ("scan", {"Segment": 0, "TotalSegments": 0}, INVALID, "Value '0' at 'totalSegments'"),
        ("put_item", {"Item": {"pk": {"S": 1}}}, "SerializationException", "int cannot be converted to String"),
        ("put_item", {"Item": {"pk": {"B": 1}}}, "SerializationException", "int cannot be converted to Binary"),
    ],
)
def test_values_out_of_range(client, operation, arguments, code, message):
    """They are refused with a code and a reason."""
    with pytest.raises(ClientError) as caught:
        getattr(client, operation)(TableName="stock", **arguments)
    assert caught.value.response["Error"]["Code"] == code
    assert message in caught.value.response["Error"]["Message"]


def test_a_name_that_no_table_can_have(client):
    """A blank is not allowed."""
    with pytest.raises(ClientError, match="Value 'a b' at 'tableName'"):
        create(client, "a b")


def test_a_token_that_is_too_long(client):
    """37 characters are one too many, and nothing is written."""
    with pytest.raises(ClientError, match="at 'clientRequestToken'"):
        client.transact_write_items(TransactItems=WRITE, ClientRequestToken="x" * 37)
    assert client.scan(TableName="stock")["Count"] == 0


def test_a_missing_argument(client):
    """It is named."""
    with pytest.raises(ConfigurationError, match="PutItem needs Item"):
        client.put_item(TableName="stock")


def test_text_for_bytes(client):
    """It is encoded, as botocore does."""
    client.put_item(TableName="stock", Item={"pk": {"S": "a"}, "b": {"B": "é"}})
    assert client.scan(TableName="stock")["Items"] == [{"pk": {"S": "a"}, "b": {"B": "é".encode()}}]


def test_private_names_are_no_exceptions(client):
    """So that a copy or a debugger does not take them for error classes."""
    with pytest.raises(AttributeError):
        client.exceptions._of_no_kind  # noqa: B018


def test_ttl_of_another_attribute(client):
    """It is not disabled by the wrong name, and a table without it says so."""
    request = {"TableName": "stock", "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "expires"}}
    assert client.describe_time_to_live(TableName="stock")["TimeToLiveDescription"] == {"TimeToLiveStatus": "DISABLED"}
    client.update_time_to_live(**request)
    with pytest.raises(ClientError, match="active on a different AttributeName"):
        client.update_time_to_live(**{**request, "TimeToLiveSpecification": {"Enabled": False, "AttributeName": "x"}})


def test_a_clock_tells_whether_it_jumps():
    """And a wait for an event after its end goes by real time."""
    with VirtualClock(auto_jump=False) as clock:
        assert clock.auto_jump is False
        event = clock._world.event()
    assert event.wait(0) is False
    event.set()
    assert event.wait(0) is True


def test_an_enum_is_stored_as_its_text(client):
    """Not as a member of its class."""
    client.put_item(TableName="stock", Item={"pk": {"S": Colour.RED}})
    [item] = client.scan(TableName="stock")["Items"]
    assert type(item["pk"]["S"]) is str
    assert item == {"pk": {"S": "red"}}


def test_a_transaction_reads_four_megabytes(client):
    """Eleven items of 390 KB are too much."""
    keys = [{"pk": {"S": str(number)}} for number in range(11)]
    for key in keys:
        client.put_item(TableName="stock", Item={**key, "text": {"S": "x" * 399_000}})
    gets = [{"Get": {"TableName": "stock", "Key": key}} for key in keys]
    assert len(client.transact_get_items(TransactItems=gets[:10])["Responses"]) == 10
    with pytest.raises(ClientError, match="4MB"):
        client.transact_get_items(TransactItems=gets)


def test_the_sign_of_a_number_takes_a_byte(client):
    """The largest item has 409,600 of them."""
    item = {"pk": {"S": "a"}, "n": {"N": "1"}, "t": {"S": "x" * (409_600 - 3 - 3 - 1)}}
    client.put_item(TableName="stock", Item=item)
    with pytest.raises(ClientError, match="Item size"):
        client.put_item(TableName="stock", Item={**item, "n": {"N": "-1"}})


def test_maps_are_counted_through_the_path_that_they_are_put_at(client):
    """31 levels, of those that are there and those that are new."""
    row = {"TableName": "stock", "Key": {"pk": {"S": "a"}}}
    client.put_item(TableName="stock", Item={"pk": {"S": "a"}, "m": nested(20, number("1"))})
    update = {"UpdateExpression": f"SET m{'.a' * 19} = :v"}
    client.update_item(**row, **update, ExpressionAttributeValues={":v": nested(12, number("1"))})
    with pytest.raises(ClientError, match="Nesting Levels"):
        client.update_item(**row, **update, ExpressionAttributeValues={":v": nested(13, number("1"))})


def test_an_empty_update_makes_the_item(client):
    """It is taken for none."""
    client.update_item(TableName="stock", Key={"pk": {"S": "a"}}, UpdateExpression="")
    assert client.scan(TableName="stock")["Items"] == [{"pk": {"S": "a"}}]


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("SET x = ((:n))", "redundant parentheses"),
        ("SET x = if_not_exists(x)", "Incorrect number of operands"),
    ],
)
def test_updates_that_are_no_updates(client, update, message):
    """They are refused with a reason."""
    values = {":n": {"N": "1"}}
    with pytest.raises(ClientError, match=message):
        client.update_item(
            TableName="stock", Key={"pk": {"S": "a"}}, UpdateExpression=update, ExpressionAttributeValues=values
        )


@pytest.mark.parametrize("wait", ["sleep", "mutex"])
def test_an_interrupted_wait_leaves_no_sleeper(monkeypatch, wait):
    """Time does not wait for a thread that was interrupted, nor does a mutex become its own."""

    def interrupted(_sleeper):
        raise KeyboardInterrupt

    with VirtualClock(auto_jump=False) as clock:
        mutex = clock._world.mutex()
        holder = threading.Thread(target=mutex.acquire)
        holder.start()
        holder.join()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Sleeper, "rest", interrupted)
            clock.sleep(1) if wait == "sleep" else mutex.acquire()
        assert clock._timeline._sleepers == []
        assert mutex.acquire(blocking=False) is False
