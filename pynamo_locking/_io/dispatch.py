"""Sends one request, and counts the attempts that botocore hides."""

from __future__ import annotations

import re
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError, ResponseStreamingError
from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.error_codes import HTTP_CLIENT_ERROR, HTTP_SERVER_ERROR, Answer
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import answers, connections
from pynamo_locking.exceptions import also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamodb.connection import Connection
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model


class Attempt(NamedTuple):
    """What is known of one attempt of a request."""

    is_doubtful: bool
    is_cut: bool = False


#: One entry for each attempt of the request that is on its way.
_attempts: ContextVar[list[Attempt] | None] = ContextVar("pynamo_locking_attempts", default=None)
_watched: weakref.WeakSet[Any] = weakref.WeakSet()

#: What the refusal of a transaction says where a table has none. AWS documents that it is refused, not in which words.
_NO_TRANSACTIONS: Final = re.compile(r"multi-?\s?region|\bMRSC\b|global table|strong(ly)? consisten", re.IGNORECASE)


def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a request, and note on its error whether an attempt before the last may have been applied.

    Raises:
        ResponseStreamingError: the last answer was cut short. botocore accepts such an answer, unless a checksum shows
            it and the request may be repeated.
        ConfigurationError: it is a transaction, and one of its tables has none; also PynamoDB's `TransactWriteError`.
    """
    return _noted(connection, partial(connection.dispatch, operation, kwargs))


def transact_write(connection: Connection, **arguments: Any) -> dict[str, Any]:
    """Send a transaction as `dispatch` does, through PynamoDB's method for it.

    Tests of applications replace that method. It sends the actions sorted by kind.
    """

    def send() -> dict[str, Any]:
        try:
            return connection.transact_write_items(**arguments)
        except TransactWriteError as error:
            if not isinstance(error.cause, answers.BOTOCORE_EXCEPTIONS):
                raise
            cause = error.cause
        raise cause  # as it was raised, with its own cause

    return _noted(connection, send)


def _noted(connection: Connection, send: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with suppress(BotoCoreError):  # there is no client: the request itself says why
        _watch(connections.client_of(connection))
    attempts: list[Attempt] = []
    reset = _attempts.set(attempts)
    try:
        data = send()
    except answers.BOTOCORE_EXCEPTIONS as error:
        _refuse_cut(attempts)
        _note(error, attempts)
        _check_supported(error)
        raise
    finally:
        _attempts.reset(reset)
    _refuse_cut(attempts)
    return data


def _refuse_cut(attempts: list[Attempt]) -> None:
    if attempts and attempts[-1].is_cut:
        error = ResponseStreamingError(error="the answer was cut short")
        _note(error, attempts)
        raise error


def _check_supported(error: Exception) -> None:
    """Say what to do about a transaction on a global table with strong consistency between Regions."""
    if not isinstance(error, ClientError) or not error.operation_name.startswith("Transact"):
        return
    said = [answers.message_of(error), *(str(each.get("Message", "")) for each in answers.reasons_of(error))]
    if answers.answer_of(error) is Answer.DENIED and _NO_TRANSACTIONS.search(" ".join(said)):
        raise also(ConfigurationError, TransactWriteError)(
            f"this transaction was refused, and nothing was written: one of its tables is a global table with strong "
            f"consistency between Regions, which has no transactions. Single writes, versions, locks in items and "
            f"NamedLock work there. Transaction, TransactWrite, intervals, Meta.lock_table and Meta.unique need tables "
            f"in one Region; `pynamo-locking tables check` finds the others. DynamoDB said: {' '.join(said)}",
            cause=error,
        ) from error


def _note(error: Exception, attempts: list[Attempt]) -> None:
    if attempts:
        setattr(error, answers.REPEATED, any(attempt.is_doubtful for attempt in attempts[:-1]))


def _watch(client: Any) -> None:
    """Hear of every attempt of a client. A test's substitute may make none."""
    meta = getattr(client, "meta", None)
    if meta is not None and client not in _watched:
        meta.events.register("needs-retry.dynamodb", _note_attempt, unique_id="pynamo-locking")
        _watched.add(client)


def _note_attempt(
    response: tuple[Any, dict[str, Any]] | None = None, caught_exception: Exception | None = None, **_: Any
) -> None:
    attempts = _attempts.get()
    if attempts is None:
        return
    if caught_exception is not None:
        attempts.append(Attempt(is_doubtful=not answers.was_not_sent(caught_exception)))
    elif response is not None:
        http, _ = response
        # A good answer is followed by another attempt if it was cut short.
        is_refused = HTTP_CLIENT_ERROR <= http.status_code < HTTP_SERVER_ERROR
        attempts.append(Attempt(is_doubtful=not is_refused, is_cut=_is_cut(http)))


def _is_cut(http: Any) -> bool:
    length = http.headers.get("Content-Length")
    return length is not None and "Content-Encoding" not in http.headers and len(http.content) < int(length)


def scan(
    model: type[Model], condition: Condition | None, attributes: list[str] | None = None, *, is_consistent: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the items of a table that meet a condition, as stored, page by page."""
    connection = model._get_connection()
    start: Any = None
    while True:
        answer = connection.scan(
            filter_condition=condition,
            attributes_to_get=attributes,
            consistent_read=is_consistent,
            exclusive_start_key=start,
        )
        yield from answer["Items"]
        start = answer.get("LastEvaluatedKey")
        if start is None:
            return
