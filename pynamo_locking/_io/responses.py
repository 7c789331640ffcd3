"""What a response or an exception of botocore says of a request: refused, throttled, unanswered, or for good."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import sys
import traceback
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import urllib3.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from pynamodb.exceptions import CancellationReason, PynamoDBException, TransactWriteError, VerboseClientError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import (
    ACTION_FAILED,
    CANCELLED,
    CONDITION_FAILED,
    HTTP_REDIRECTION,
    INVALID,
    NO_TABLE,
    PASSING,
    THROTTLED,
    Answer,
)
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._io import lock_record
from pynamo_locking._io.model_doors import creates_item, lock_attribute_of
from pynamo_locking._io.stored_rows import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pynamodb.models import Model

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image


#: Why a transaction was cancelled, one reason an action, as DynamoDB says it.
Reasons = list[dict[str, Any]]

#: What a request through PynamoDB can raise.
BOTOCORE_EXCEPTIONS: Final = (BotoCoreError, ClientError)

#: Set on an exception of botocore: whether an attempt before the last one may have been applied.
REPEATED: Final = "pynamo_locking_was_repeated"


def code_of(error: BaseException | None) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
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


def time_s_of(answer: Mapping[str, Any]) -> float | None:
    """Return when DynamoDB has answered, by its own clock; None if the response does not say so."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return parsedate_to_datetime(headers["date"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return None


def answer_in(error: BaseException, *, is_single: bool = False) -> Answer:
    """Return how the last attempt of a request ended; `is_single` if botocore made no attempt before it."""
    reasons = reasons_of(error)
    if reasons:
        return dynamodb.answer_of_reasons([reason.get("Code") or dynamodb.ACTION_PASSED for reason in reasons])
    if isinstance(error, (HTTPClientError, NoConnectionError)):
        # botocore raises the error of the last attempt: "no connection" says nothing about earlier attempts.
        is_known = is_single or hasattr(error, REPEATED)
        return Answer.NOT_SENT if is_known and was_not_sent(error) else Answer.UNANSWERED
    status = _response(_original(error)).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return dynamodb.answer_of(code_of(error), status)


def explain(error: BaseException, tables: Sequence[str]) -> dict[str, Any]:
    """Say in an error why DynamoDB has throttled the request about these tables; return DynamoDB's response."""
    response = _response(_original(error))
    found = [each for each in dynamodb.throttling_in(response, tables) if each.reason != code_of(error)]
    if found:
        error.args = (f"{error} ({'; '.join(f'{each.reason} of {each.resource}' for each in found)})",)
        _response(error)["ThrottlingReasons"] = dynamodb.throttling_reasons(response)  # PynamoDB's copy lacks them
    return response


def is_transient(error: BaseException) -> bool:
    return answer_in(error) in {*PASSING, Answer.UNANSWERED}


def is_ambiguous(error: BaseException) -> bool:
    """Tell whether the request may have been applied nevertheless."""
    return answer_in(error) is Answer.UNANSWERED or was_repeated(error)


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


#: What the modules that send a request raise; all else that botocore wraps came from elsewhere.
_OF_THE_NETWORK: Final = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)


def interruption_in(error: BaseException) -> BaseException | None:
    """Return what botocore has taken for an error of the network: an exception of a signal's handler, as a time limit.

    Python runs a signal's handler between any two steps of the main thread, so in the midst of a request as well. If
    its exception is an `OSError`, such as `TimeoutError`, urllib3 has wrapped it before botocore has.
    """
    wrapped = getattr(error, "kwargs", {}).get("error") if isinstance(error, BotoCoreError) else None
    if isinstance(wrapped, Exception) and not isinstance(wrapped, _OF_THE_NETWORK):
        return wrapped
    handlers, outer = _codes_of_handlers(), sys.exc_info()[1]  # that of an except block of the application
    found = None
    while isinstance(wrapped, _OF_THE_NETWORK) and wrapped is not outer:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(wrapped.__traceback__)):
            found = wrapped  # or what it wraps, whose traceback it has got
        wrapped = wrapped.__cause__ or wrapped.__context__
    return found


def _codes_of_handlers() -> set[Any]:
    """Return the code of the functions that handle signals now."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    called = [each if hasattr(each, "__code__") else type(each).__call__ for each in handlers if callable(each)]
    return {getattr(each, "__code__", None) for each in called}


def was_not_sent(error: BaseException | None) -> bool:
    """Tell whether the last attempt of a request was not sent, because there was no connection."""
    return isinstance(error, (EndpointConnectionError, ConnectTimeoutError))


def shown(reasons: Reasons) -> list[CancellationReason | None]:
    """Return reasons in the form of PynamoDB's errors."""
    return [
        None
        if (reason.get("Code") or dynamodb.ACTION_PASSED) == dynamodb.ACTION_PASSED
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


def invalid(message: str, table: str) -> VerboseClientError:
    """Return the cause for refusing, before it is sent, what DynamoDB would call invalid."""
    return _cause(INVALID, message, table, None)


def throttled(message: str, table: str) -> VerboseClientError:
    """Return the cause for giving up on what DynamoDB has left undone."""
    return _cause(THROTTLED, message, table, None, operation="BatchGetItem")


def unanswered(operation: str) -> ClientError:
    """Return the substitute for the error of a request that got no response."""
    return ClientError({"Error": {"Code": dynamodb.FAILED, "Message": "no answer came"}}, operation)


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


# The items in a response. botocore calls several functions for each value in them, although DynamoDB's JSON is what it
# returns, but for binary values. A lock document of 100 entries has 1,000 values, and would take it some 10 ms.


#: The parts of a response that are items, or lists and maps of items; and the reasons that older releases of botocore
#: leave out.
_ITEMS: Final = frozenset({"Attributes", "Item", "Items", "Responses", "ThrottlingReasons", "throttlingReasons"})


#: Added to a response with status 200 that is none of DynamoDB's.
NO_ANSWER: Final = "pynamo_locking_no_answer"


def take_items(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], operation_model: Any, **_: Any
) -> None:
    """Take the items out of a response before botocore parses the rest; its event ``before-parse`` calls this.

    Args:
        response_dict: the response; its ``body`` is text.
        customized_response_dict: what botocore adds to the rest.
        operation_model: what botocore knows of the request.
    """
    text, is_refusal = response_dict["body"], response_dict["status_code"] >= HTTP_REDIRECTION
    if not text:  # as of a request that says nothing
        return
    parts = _parts_in(text, operation_model, is_refusal=is_refusal)
    if parts is not None:
        rest, items = parts
        customized_response_dict |= items
    elif is_refusal:  # the status says it all
        rest, items = {"message": text.decode(errors="replace")}, {}
    else:
        rest, items = {}, {}
        customized_response_dict[NO_ANSWER] = True
    if items or parts is None:
        response_dict["body"] = json.dumps(rest).encode()


def _parts_in(text: bytes, operation_model: Any, *, is_refusal: bool) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return what is in a response besides its items, and these; None if botocore's parser would fail on it."""
    try:
        body = json.loads(text)
        shape = _shape_of(body, operation_model) if is_refusal else operation_model.output_shape
        if not isinstance(body, dict) or (shape is not None and not _has_form(body, shape)):
            return None
        known = _ITEMS if is_refusal or shape is None else _ITEMS & shape.members.keys()
        items = {name: body.pop(name) for name in known if body.get(name) is not None}
        return body, decoded(items, text)
    except (ValueError, RecursionError):
        return None


def _shape_of(body: Any, operation_model: Any) -> Any:
    """Return the form of the refusal that a body names; None if botocore knows none of that name."""
    name = body.get("__type", "") if isinstance(body, dict) else ""
    if not isinstance(name, str):
        raise ValueError(name)  # noqa: TRY004 - as of what is no JSON
    return operation_model.service_model.shape_for_error_code(name.partition(":")[0].rpartition("#")[2])


def _has_form(value: Any, shape: Any) -> bool:
    """Tell whether structures, lists and maps are where they belong. Within items, which may be large, nobody looks."""
    if value is None:  # as if it were left out
        return True
    match shape.type_name:
        case "structure":
            members = shape.members
            return isinstance(value, dict) and all(
                _has_form(value[name], members[name]) for name in value.keys() & members.keys()
            )
        case "list":
            return isinstance(value, list) and all(_has_form(each, shape.member) for each in value)
        case "map" if shape.value.name == "AttributeValue":
            return isinstance(value, dict) and {*map(type, value.values())} <= {dict}
        case "map":
            return isinstance(value, dict) and all(_has_form(each, shape.value) for each in value.values())
        case _:
            return not isinstance(value, (dict, list))


# Errors that a retry cannot mend: requests that DynamoDB refuses for good, and items of other programs.


def final(row: LockRow, failed: str, error: Exception) -> LockingError:
    """Return the error for a lock request that DynamoDB refuses for good; `failed` says what it was to do."""
    code, message, failure = code_of(error), message_of(error), f"cannot {failed} {row.label}"
    if code == NO_TABLE:
        return ConfigurationError(
            f"{failure}: there is no table {row.table!r}. "
            f"Create it (the model's create_table()) or correct Meta.table_name or Meta.host.",
            cause=error,
        )
    if is_about_size(error):
        return no_room(failure, "an entry of the queue does not fit", f" DynamoDB said: {message}", error)
    if _is_about_keys(error):
        return _other_keys(failure, row.table, row.key, error)
    kind = ConfigurationError if code == INVALID else LockingError
    return kind(f"{failure}: DynamoDB refused the request: {code}: {message}", cause=error)


def no_room(failure: str, why: str, said: str = "", cause: Exception | None = None) -> ConfigurationError:
    """Return the error for an item that cannot carry an entry of the queue."""
    return ConfigurationError(
        f"{failure}: the item is so close to DynamoDB's limit of 400 KB that {why}. Make the item smaller, or keep its "
        f"lock in a separate row (Meta.lock_table instead of a LockAttribute).{said}",
        cause=cause,
    )


def of_transactions(table: str, key: Mapping[str, Any], error: Exception) -> LockingError:
    """Return the error for a request to a table of transactions that DynamoDB refuses for good."""
    code, message = code_of(error), message_of(error)
    if code == NO_TABLE:
        return ConfigurationError(
            f"there is no table of transactions {table!r}: create it (its create_table()), or correct "
            f"Meta.table_name, Meta.region or Meta.host of the TransactionTable.",
            cause=error,
        )
    if _is_about_keys(error):
        return _other_keys("no transaction can be kept", table, key, error)
    return LockingError(
        f"DynamoDB refused a request to the table of transactions {table!r}: {code}: {message}", cause=error
    )


def is_about_size(error: BaseException | None) -> bool:
    message = "" if error is None else message_of(error).lower()
    return code_of(error) == INVALID and "size" in message and "item" in message


def _is_about_keys(error: Exception) -> bool:
    """Tell whether a request was refused because its table has other keys. Each engine has its own words for that."""
    says = re.search(r"\bkeys?\b", message_of(error), re.IGNORECASE)
    return code_of(error) == INVALID and says is not None


def _other_keys(failure: str, table: str, key: Mapping[str, Any], error: Exception) -> ConfigurationError:
    keys = ", ".join(f"{name} ({next(iter(value))})" for name, value in key.items())
    return ConfigurationError(
        f"{failure}: the table {table!r} does not have the keys that its model says, {keys}. Nothing was written. Name "
        f"another table in Meta.table_name, or correct the model (for a NamedLock: "
        f"`name = UnicodeAttribute(hash_key=True, attr_name=...)`): the keys of a table cannot be changed. "
        f"DynamoDB said: {message_of(error)}",
        cause=error,
    )


# Items of other programs
def foreign_row_error(failure: str, table: str, found: str) -> ConfigurationError:
    """Return the error for an item of another program in the place of one of our rows; `found` shows that it is."""
    return ConfigurationError(
        f"{failure}: the item of that key in the table {table!r} has {found}, so it is none that pynamo_locking has "
        f"stored. It was left as it is. Use a table that nothing else is stored in, or another key; if the item is a "
        f"leftover, delete it."
    )


def check_not_foreign(row: LockRow, image: Image) -> None:
    """Refuse to put a lock document into the item of another program. The item has no document yet.

    Raises:
        ConfigurationError: the attribute of the lock has another value, or it is missing in a table whose rows all have
            it.
    """
    stored = image.get(row.attribute)
    if (stored is None and row.may_create) or stored not in (None, lock_record.EMPTY, lock_record.NULL):
        what = "no attribute" if stored is None else "something that is no lock in its attribute"
        raise foreign_row_error(f"cannot lock {row.label}", row.table, f"{what} {row.attribute!r}")


def has_foreign(model: type[Model], image: Image | None) -> bool:
    """Tell whether an item lacks its lock, in a table whose rows are all there for locks alone."""
    if image is None or not creates_item(model):
        return False
    lock: Any = lock_attribute_of(model)
    return "M" not in image.get(lock.attr_name, {})
