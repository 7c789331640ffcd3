"""What DynamoDB's error codes say of a request: the one table of them. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

CONDITION_FAILED: Final = "ConditionalCheckFailedException"
CANCELLED: Final = "TransactionCanceledException"
INVALID: Final = "ValidationException"
THROTTLED: Final = "ProvisionedThroughputExceededException"
FAILED: Final = "InternalServerError"
NO_TABLE: Final = "ResourceNotFoundException"
TABLE_EXISTS: Final = "ResourceInUseException"

#: The condition of one action of a transaction was not met.
ACTION_FAILED: Final = "ConditionalCheckFailed"
HTTP_CLIENT_ERROR: Final = 400
HTTP_SERVER_ERROR: Final = 500


class Answer(Enum):
    """What one attempt of a request came back with, if not with success."""

    REFUSED = "not applied: a condition was not met, and DynamoDB shows the stored item"
    CONFLICT = "not applied for now: another write has the item"
    BUSY = "not applied for now: a limit is reached"
    NOT_SENT = "not applied for now: there is no connection"
    UNANSWERED = "perhaps applied: DynamoDB failed, or its answer was lost"
    DENIED = "not applied, and refused however often it is sent"


#: The request was not applied; the same request may be later.
PASSING: Final = frozenset({Answer.CONFLICT, Answer.BUSY, Answer.NOT_SENT})

_BY_CODE: Final = {
    CONDITION_FAILED: Answer.REFUSED,
    "TransactionConflictException": Answer.CONFLICT,
    "ReplicatedWriteConflictException": Answer.CONFLICT,  # of another Region, in a table with strong consistency
    THROTTLED: Answer.BUSY,
    "RequestLimitExceeded": Answer.BUSY,
    "Throttling": Answer.BUSY,
    "ThrottlingException": Answer.BUSY,
    "TransactionInProgressException": Answer.BUSY,
    FAILED: Answer.UNANSWERED,
    "InternalFailure": Answer.UNANSWERED,
    "ServiceUnavailable": Answer.UNANSWERED,
}

#: Codes of single actions of a cancelled transaction, besides "None".
_BY_REASON: Final = {
    ACTION_FAILED: Answer.REFUSED,
    "TransactionConflict": Answer.CONFLICT,
    "ThrottlingError": Answer.CONFLICT,  # botocore does not repeat a cancelled transaction, whatever the reason
    "ProvisionedThroughputExceeded": Answer.CONFLICT,
}


def answer_of(code: str, status: int = 0) -> Answer:
    """Return what an error code says. The HTTP status decides where the code leaves open whether it was applied."""
    answer = _BY_CODE.get(code, Answer.DENIED)
    is_open = answer in {Answer.BUSY, Answer.DENIED}
    return Answer.UNANSWERED if is_open and status >= HTTP_SERVER_ERROR else answer


def answer_of_reasons(codes: Collection[str]) -> Answer:
    """Return what the cancellation reasons of a transaction say, one for each action."""
    answers = {_BY_REASON.get(code, Answer.DENIED) for code in codes if code != "None"}
    if Answer.REFUSED in answers:
        return Answer.REFUSED
    return Answer.CONFLICT if answers == {Answer.CONFLICT} else Answer.DENIED
