"""Items read together: in one native transaction, or in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.error_codes import CANCELLED, INVALID, PASSING
from pynamo_locking._core.lease import PATIENCE_S, Deadline, backoff
from pynamo_locking._core.sending import Policy, Sending
from pynamo_locking._io import answers, dispatch, runtime
from pynamo_locking._io.retries import is_sent_again
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection
    from pynamodb.models import Model

    from pynamo_locking._io.stored import Image

#: Codes with which a read of more than 4 MB is refused.
_TOO_LARGE: Final = frozenset({INVALID, CANCELLED})


class TooLarge(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB refuses to read these items together, as it does if they have more than 4 MB."""

    def __init__(self, error: TransactWriteError) -> None:
        super().__init__(str(error))
        self.error = error


def get_together(connection: Connection, gets: Sequence[dict[str, Any]]) -> list[Image | None]:
    """Return stored items as they were at one moment, up to a hundred.

    Raises:
        TooLarge: the request is refused as it is.
        TransactionConflict: other transactions kept the items busy.
        TransactWriteError: DynamoDB refused the request for another reason.
    """
    sending = Sending(Policy(repeats=0))
    while True:
        try:
            answer: dict[str, Any] = dispatch.dispatch(connection, "TransactGetItems", {"TransactItems": gets})
        except answers.BOTOCORE_EXCEPTIONS as error:
            if is_sent_again(sending, answers.answer_of(error)):
                continue
            if answers.answer_of(error, is_single=True) in PASSING:
                raise also(TransactionConflict, TransactWriteError)(
                    f"other transactions kept the items of this one busy; nothing was written, and it can be tried "
                    f"again: {error}",
                    cause=error,
                ) from error
            failure = TransactWriteError("Failed to read transaction items", answers.readable(error))
            if answers.code_of(error) in _TOO_LARGE:
                raise TooLarge(failure) from error
            raise failure from error
        return [each.get("Item") for each in answer["Responses"]]


def settle(model: type[Model], keys: Sequence[Image]) -> None:
    """Return once DynamoDB has applied all native transactions that were decided before to these items.

    DynamoDB decides a native transaction at one moment, and applies it item by item. Until it has applied it to an
    item, a plain read (consistent or not) and a query show that item as it was before, although another item of the
    same transaction is already new. Until then it refuses a transactional read. The values that were read are not used.

    Raises:
        TransactionConflict: other transactions kept the items busy.
        TransactWriteError: DynamoDB refused the request for another reason.
    """
    connection = model._get_connection()
    get = {
        "TableName": connection.table_name,
        "ProjectionExpression": "#key",
        "ExpressionAttributeNames": {"#key": next(iter(keys[0]))} if keys else {},
    }
    gets = [{"Get": {**get, "Key": key}} for key in keys]
    for start in range(0, len(gets), limits.MOST_ACTIONS):
        _settle_some(connection.connection, gets[start : start + limits.MOST_ACTIONS])


def _settle_some(connection: Connection, gets: list[dict[str, Any]]) -> None:
    try:
        get_together(connection, gets)
    except TooLarge as refused:
        if len(gets) == 1:
            raise refused.error from refused
        half = len(gets) // 2  # DynamoDB counts 4 MB before it applies the projection
        _settle_some(connection, gets[:half])
        _settle_some(connection, gets[half:])


def get_batch(
    ask: Callable[[Connection, str, dict[str, Any]], dict[str, Any]],
    connection: Connection,
    table: str,
    keys: Sequence[Image],
    deadline: Deadline | None = None,
    **how: Any,
) -> list[Image]:
    """Return the stored items of up to a hundred different keys, in any order; each is read for itself, consistently.

    Keys that DynamoDB has left out, since it was busy or the answer had 16 MB, are asked for again: until the
    deadline if an answer brings nothing, and always if it brings some. `how` they are read is a
    projection. What `ask` raises is raised.
    """
    found: list[Image] = []
    repeats, end = 0, deadline or Deadline(runtime.current.monotonic() + PATIENCE_S)
    while keys:
        asked = {table: {"Keys": keys, "ConsistentRead": True, **how}}
        answer = ask(connection, "BatchGetItem", {"RequestItems": asked})
        found += [image for images in answer["Responses"].values() for image in images]
        count, keys = len(keys), [key for left in answer.get("UnprocessedKeys", {}).values() for key in left["Keys"]]
        if len(keys) == count and runtime.current.monotonic() >= end.at:
            why = f"DynamoDB had no time for {count} items of {table} until the wait was over; a retry is safe"
            raise answers.throttled(why, table)
        if keys and repeats:
            runtime.current.sleep(backoff(repeats, runtime.current.jitter()))
        repeats += 1
    return found
