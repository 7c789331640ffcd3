"""The key of each kind of message, and which records of a batch Lambda delivers again."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pynamo_locking.contrib.messages import (
    celery_key,
    durable_key,
    partial_batch,
    sqs_key,
    step_functions_key,
    stream_key,
)
from pynamo_locking.exceptions import ConfigurationError, InvalidInput

QUEUE = "arn:aws:sqs:eu-west-1:1:orders"
EXECUTION = {"Execution": {"Id": "arn:e"}, "State": {"Name": "Charge", "RetryCount": 2}}
IN_MAP = EXECUTION | {"Map": {"Item": {"Index": 0}}}
DURABLE = SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:d"))


def a_task(message_id: Any) -> Any:
    return SimpleNamespace(request=SimpleNamespace(id=message_id))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (lambda: sqs_key({"messageId": "m-1", "receiptHandle": "another each time"}), "m-1"),
        (lambda: sqs_key({"MessageId": "m-1"}), "m-1"),
        (lambda: stream_key({"eventID": "e-1", "dynamodb": {"SequenceNumber": "1"}}), "e-1"),
        (lambda: durable_key(DURABLE, "charge"), '["arn:d", "charge"]'),
        (lambda: durable_key(DURABLE, "charge", 7), '["arn:d", "charge", 7]'),
        (lambda: step_functions_key(EXECUTION), '["arn:e", "Charge"]'),
        (lambda: step_functions_key(IN_MAP, "ö"), '["arn:e", "Charge", "ö"]'),
        (lambda: celery_key(a_task("c-1")), "c-1"),
    ],
)
def test_a_key_is_the_same_in_each_delivery(key, expected):
    assert key() == expected


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (lambda: sqs_key({}), "not its body"),
        (lambda: sqs_key({"messageId": ""}), "not its body"),
        (lambda: stream_key({"dynamodb": {}}), "of a stream"),
        (lambda: durable_key(SimpleNamespace(attempt=1), "charge"), "the DurableContext of the handler"),
        (lambda: durable_key(DURABLE, ""), "a text that is not empty"),
        (lambda: durable_key(DURABLE, "charge", None), "not None"),
        (lambda: durable_key(DURABLE, "charge", True), "not True"),
        (lambda: step_functions_key({"Execution": "arn:e"}), r'"context.\$"'),
        (lambda: step_functions_key({"Execution": {"Id": "arn:e"}}), r'"context.\$"'),
        (lambda: step_functions_key(IN_MAP), "id of the item"),
        (lambda: celery_key(a_task(None)), "bind=True"),
        (lambda: celery_key(None), "bind=True"),
    ],
)
def test_a_message_without_a_key_is_refused(key, advice):
    """Two messages with one key would be one: the second would be lost."""
    with pytest.raises(InvalidInput, match=advice):
        key()


def from_queue(number: int, name: str = "") -> dict[str, Any]:
    # A message of a standard queue may have a group as well.
    return {"messageId": f"{number}", "eventSourceARN": QUEUE + name, "attributes": {"MessageGroupId": "g"}}


SOURCES = {
    "standard queue": from_queue,
    "FIFO queue": lambda number: from_queue(number, ".fifo"),
    "DynamoDB": lambda number: {"eventID": "e", "dynamodb": {"SequenceNumber": f"{number}"}},
    "Kinesis": lambda number: {"eventID": "e", "kinesis": {"sequenceNumber": f"{number}"}},
}


@pytest.mark.parametrize(
    ("source", "fail", "applied", "again"),
    [
        *((source, "", "01234", "") for source in SOURCES),
        ("standard queue", "13", "01234", "13"),
        ("standard queue", "01234", "01234", "01234"),
        ("FIFO queue", "13", "01", "1234"),
        ("FIFO queue", "4", "01234", "4"),
        ("DynamoDB", "13", "01", "1"),
        ("Kinesis", "13", "01", "1"),
    ],
)
def test_a_partial_batch(source, fail, applied, again, caplog):
    """An ordered source stops at the first failure. Lambda delivers a queue's list again, a stream from there on."""
    records, seen = [SOURCES[source](number) for number in range(5)], list[int]()

    def apply(record: Any) -> None:
        seen.append(records.index(record))
        if str(seen[-1]) in fail:
            raise OSError(f"no {seen[-1]}")

    with caplog.at_level(logging.ERROR):
        answer = partial_batch({"Records": records}, apply)
    assert "".join(map(str, seen)) == applied
    assert answer == {"batchItemFailures": [{"itemIdentifier": each} for each in again]}
    assert [f"no {each}" in caplog.text for each in fail if each in applied] == [True] * len(set(fail) & set(applied))


def fail(_record: object) -> None:
    raise OSError


async def afail(_record: object) -> None:
    raise OSError


@pytest.mark.parametrize(
    ("event", "apply", "error"),
    [
        ({"Records": [{"body": "{}"}]}, fail, InvalidInput),
        ({"Records": [from_queue(1)]}, afail, ConfigurationError),
        ({"eventSource": "aws:kafka", "records": {"t-0": [{}]}}, fail, InvalidInput),
    ],
)
def test_a_batch_whose_failures_cannot_be_named_fails_as_a_whole(event, apply, error):
    """Lambda would take an empty list for a success, and delete the messages."""
    with pytest.raises(error):
        partial_batch(event, apply)
