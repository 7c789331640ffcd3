"""What an exception of botocore says about the outcome of a request."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from pynamodb.exceptions import CancellationReason, PynamoDBException, TransactWriteError, VerboseClientError

from pynamo_locking._core import error_codes
from pynamo_locking._core.error_codes import (
    ACTION_FAILED,
    CANCELLED,
    CONDITION_FAILED,
    INVALID,
    PASSING,
    THROTTLED,
    Answer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Why a transaction was cancelled, one reason an action, as DynamoDB says it.
Reasons = list[dict[str, Any]]

#: What a request through PynamoDB can raise.
BOTOCORE_EXCEPTIONS: Final = (BotoCoreError, ClientError)

#: Set on an exception of botocore: whether an attempt before the last one may have been applied.
REPEATED: Final = "pynamo_locking_was_repeated"


def code_of(error: BaseException | None) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
    """Return DynamoDB's error message, or the exception's own."""
    return str(_response(error).get("Error", {}).get("Message", "")) or str(error)


def _response(error: BaseException | None) -> dict[str, Any]:
    return getattr(error, "response", None) or {}


def _original(error: BaseException | None) -> BaseException | None:
    """Return botocore's own exception: PynamoDB's copy lacks the item and the count of attempts."""
    return error.__cause__ if error is not None and isinstance(error.__cause__, ClientError) else error


def image_of(error: BaseException) -> dict[str, Any] | None:
    """Return the item that came with a failed condition, of a write or a transaction of one action."""
    response = _response(_original(error))
    image: dict[str, Any] | None = next(iter(response.get("CancellationReasons", [])), response).get("Item")
    return image


def reasons_of(error: BaseException | None) -> Reasons:
    """Return why a transaction was cancelled, one reason an action; empty if it was not."""
    return list(_response(_original(error)).get("CancellationReasons", []))


def was_repeated(error: BaseException | None) -> bool:
    """Tell whether botocore sent the request again after an attempt that may have been applied, not only throttled."""
    noted = getattr(error, REPEATED, None)
    if noted is not None:
        return bool(noted)
    return bool(_response(_original(error)).get("ResponseMetadata", {}).get("RetryAttempts", 0))


def answer_of(error: BaseException, *, is_single: bool = False) -> Answer:
    """Return how the last attempt of a request ended; `is_single` if botocore made no attempt before it."""
    reasons = reasons_of(error)
    if reasons:
        return error_codes.answer_of_reasons([reason.get("Code") or "None" for reason in reasons])
    if isinstance(error, (HTTPClientError, NoConnectionError)):
        # botocore raises the error of the last attempt: "no connection" says nothing about earlier attempts.
        is_known = is_single or hasattr(error, REPEATED)
        return Answer.NOT_SENT if is_known and was_not_sent(error) else Answer.UNANSWERED
    status = _response(_original(error)).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return error_codes.answer_of(code_of(error), status)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    return answer_of(error) in {*PASSING, Answer.UNANSWERED}


def is_ambiguous(error: BaseException) -> bool:
    """Tell whether the request may have been applied nevertheless."""
    return answer_of(error) is Answer.UNANSWERED or was_repeated(error)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Make the errors that PynamoDB raises inside the block `readable`."""
    try:
        yield
    except PynamoDBException as error:
        if error.cause is not None:
            readable(error.cause)
        raise


def readable(error: Exception) -> Exception:
    """Let PynamoDB ask an error for its code, which fails for an error without a response."""
    if getattr(error, "response", {}) is None:
        error.response = {}  # type: ignore[attr-defined]
    return error


def was_not_sent(error: BaseException | None) -> bool:
    """Tell whether the last attempt of a request was not sent, because there was no connection."""
    return isinstance(error, (EndpointConnectionError, ConnectTimeoutError))


def shown(reasons: Reasons) -> list[CancellationReason | None]:
    """Return reasons in the form of PynamoDB's errors."""
    return [
        None
        if reason.get("Code", "None") == "None"
        else CancellationReason(code=reason["Code"], message=reason.get("Message"), raw_item=reason.get("Item"))
        for reason in reasons
    ]


def set_reasons(error: Exception, reasons: Reasons) -> None:
    if isinstance(error, VerboseClientError):
        error.cancellation_reasons = shown(reasons)


def condition_failed(
    error: type[Exception], message: str, table: str, *, request: BaseException | None = None
) -> VerboseClientError:
    """Return a cause for PynamoDB's `error` of a refusal, with the code by which callers recognise it.

    `request` is what a refused request raised; None if none was sent.
    """
    if error is not TransactWriteError:
        return _cause(CONDITION_FAILED, message, table, request)
    reasons = shown([{"Code": ACTION_FAILED, "Message": message}])
    return _cause(CANCELLED, message, table, request, reasons)


def of_first_action(error: Exception, kind: type[Exception], message: str, table: str) -> VerboseClientError:
    """Return the refusal of the first action of a transaction as that of a request of its own."""
    single = condition_failed(kind, message, table, request=error)
    single.__cause__ = _original(error)  # which has the item
    return single


def invalid(message: str, table: str) -> VerboseClientError:
    """Return the cause for refusing, before it is sent, what DynamoDB would call invalid."""
    return _cause(INVALID, message, table, None)


def throttled(message: str, table: str) -> VerboseClientError:
    """Return the cause for giving up on what DynamoDB has left undone."""
    return _cause(THROTTLED, message, table, None, operation="BatchGetItem")


def unanswered(operation: str) -> ClientError:
    """Return what stands for the error of a request to which no answer came."""
    return ClientError({"Error": {"Code": error_codes.FAILED, "Message": "no answer came"}}, operation)


def _cause(
    code: str,
    message: str,
    table: str,
    request: BaseException | None,
    reasons: Iterable[CancellationReason | None] = (),
    operation: str = "TransactWriteItems",
) -> VerboseClientError:
    headers = _response(_original(request)).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return VerboseClientError(
        {"Error": {"Code": code, "Message": message}},
        operation,
        {"request_id": None if request is None else headers.get("x-amzn-requestid", ""), "table_name": table},
        cancellation_reasons=reasons,
    )
