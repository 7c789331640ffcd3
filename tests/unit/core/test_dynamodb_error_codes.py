"""What DynamoDB's error codes say, and what botocore's exceptions do: the whole table."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from pynamo_locking._core.dynamodb import PASSING, Answer, answer_of, answer_of_reasons, throttling_in
from pynamo_locking._io import responses

CODES = {
    "ConditionalCheckFailedException": Answer.REFUSED,
    "TransactionConflictException": Answer.CONFLICT,
    "ReplicatedWriteConflictException": Answer.CONFLICT,
    "ProvisionedThroughputExceededException": Answer.BUSY,
    "RequestLimitExceeded": Answer.BUSY,
    "Throttling": Answer.BUSY,
    "ThrottlingException": Answer.BUSY,
    "TransactionInProgressException": Answer.BUSY,
    "InternalServerError": Answer.UNANSWERED,
    "InternalFailure": Answer.UNANSWERED,
    "ServiceUnavailable": Answer.UNANSWERED,
    "ValidationException": Answer.DENIED,
    "ResourceNotFoundException": Answer.DENIED,
    "AccessDeniedException": Answer.DENIED,
    "TransactionCanceledException": Answer.DENIED,  # without a reason
    "IdempotentParameterMismatchException": Answer.DENIED,
    "": Answer.DENIED,
}
FAILED, CONFLICT, INVALID = "ConditionalCheckFailed", "TransactionConflict", "ValidationError"
LIMITS = ["ThrottlingError", "ProvisionedThroughputExceeded"]


def error(code: str, status: int = 400, **more: Any) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(response, "PutItem")


def cancelled(*codes: str | None) -> ClientError:
    reasons = [{"Code": code, "Item": {"number": {"N": str(number)}}} for number, code in enumerate(codes)]
    return error("TransactionCanceledException", CancellationReasons=reasons)


@pytest.mark.parametrize("code", CODES)
def test_codes(code):
    """What a code says that comes with the usual status, or without one."""
    assert answer_of(code) is answer_of(code, 400) is CODES[code]
    assert responses.answer_in(error(code)) is CODES[code]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("status", [500, 503])
def test_a_failed_server(code, status):
    """It may have applied the request, unless the code says that a condition or another write kept it from it."""
    is_certain = CODES[code] in {Answer.REFUSED, Answer.CONFLICT}
    assert answer_of(code, status) is (CODES[code] if is_certain else Answer.UNANSWERED)
    assert responses.answer_in(error(code, status)) is answer_of(code, status)


@pytest.mark.parametrize("others", [*itertools.product(["None", FAILED, CONFLICT, *LIMITS, INVALID], repeat=2)])
def test_reasons_of_a_cancelled_transaction(others):
    """A failed condition says more than a conflict, and one that never passes more than one that does."""
    codes = {*others} - {"None"}
    if FAILED in codes:
        expected = Answer.REFUSED
    elif codes and INVALID not in codes:
        expected = Answer.CONFLICT
    else:
        expected = Answer.DENIED
    assert answer_of_reasons(others) is expected
    assert responses.answer_in(cancelled(*others)) is expected
    assert responses.answer_in(cancelled(None, *others)) is expected


RESOURCE = "arn:aws:dynamodb:us-east-1:1:table/t"
REASONS = [
    {"reason": "TableWriteKeyRangeThroughputExceeded", "resource": RESOURCE},
    {"reason": "IndexWriteAccountLimitExceeded", "resource": f"{RESOURCE}/index/i"},
]


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (error("ThrottlingException").response, [("ThrottlingException", "a", None)]),
        (error("RequestLimitExceeded", throttlingReasons=[{}]).response, [("RequestLimitExceeded", "a", None)]),
        *(
            (
                error("ThrottlingException", **{name: REASONS}).response,
                [(REASONS[0]["reason"], "t", None), (REASONS[1]["reason"], "t/index/i", None)],
            )
            for name in ("ThrottlingReasons", "throttlingReasons")
        ),
        (cancelled("None", LIMITS[0]).response, [(LIMITS[0], "b", 1)]),
        ({"Responses": [{"Error": {"Code": LIMITS[1]}}, {}]}, [(LIMITS[1], "a", 0)]),
        ({"Responses": [{"Item": {}}, {}]}, []),
        (cancelled(CONFLICT, "None").response, []),
        (error("ValidationException").response, []),
    ],
)
def test_why_a_request_was_throttled(response, told):
    """Reason, table or index, and which item of the request, so far as DynamoDB says it."""
    assert throttling_in(response, ["a", "b"]) == told


NOT_SENT = [EndpointConnectionError(endpoint_url="u"), ConnectTimeoutError(endpoint_url="u")]
LOST = [
    ReadTimeoutError(endpoint_url="u"),
    ConnectionClosedError(endpoint_url="u"),
    ResponseStreamingError(error="cut"),
]


@pytest.mark.parametrize("lost", [*NOT_SENT, *LOST], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("repeated", [None, False, True])
def test_no_response(lost, is_single, repeated):
    """Without a connection nothing was applied, unless botocore may hide an attempt before that one."""
    lost = type(lost)(**lost.kwargs)
    if repeated is not None:
        setattr(lost, responses.REPEATED, repeated)
    is_known = is_single or repeated is not None
    is_sent = type(lost) not in map(type, NOT_SENT)
    found = responses.answer_in(lost, is_single=is_single)
    assert found is (Answer.UNANSWERED if is_sent or not is_known else Answer.NOT_SENT)
    assert responses.is_ambiguous(lost) is (is_sent or repeated is not False)
    assert responses.is_transient(lost)


def test_what_never_left():
    """botocore's other errors are raised before anything is sent."""
    found = NoCredentialsError()
    assert responses.answer_in(found) is Answer.DENIED
    assert not responses.is_ambiguous(found)
    assert not responses.is_transient(found)


@pytest.mark.parametrize("answer", Answer)
def test_what_may_succeed_later(answer):
    """The same request again, whether or not it was applied."""
    refused = [error(code) for code, said in CODES.items() if said is answer]
    may_succeed = answer in PASSING or answer is Answer.UNANSWERED
    assert [responses.is_transient(each) for each in refused] == [may_succeed] * len(refused)


def test_the_item_of_a_refusal():
    """Of a write, and of a transaction of one action."""
    assert responses.image_of(error("ConditionalCheckFailedException", Item={"k": {"S": "a"}})) == {"k": {"S": "a"}}
    assert responses.image_of(cancelled(FAILED)) == {"number": {"N": "0"}}
    assert responses.image_of(error("ConditionalCheckFailedException")) is None
    assert responses.image_of(error("TransactionCanceledException", CancellationReasons=[{"Code": FAILED}])) is None
