"""Answers to batches of statements that are late, wrong or missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ReadTimeoutError

from tests.support.wire import Send, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = "BatchExecuteStatement"


@contextmanager
def answering(
    _: object,
    answer: Callable[[Callable[[dict[str, Any]], Any], Any], Any],
    answered_operation: str = BATCH,
) -> Any:
    """Let a function answer batches: it gets what sends a batch, and the batch. Yields how many there were."""
    batches = list[Any]()

    def answer_some(send: Send, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation != answered_operation:
            return send()
        batches.append(kwargs)
        return answer(send, kwargs)

    with intercepted(answer_some):
        yield batches


def denied(_: Any, __: Any) -> Any:
    raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized: PartiQLUpdate"}}, BATCH)


def denied_each(_: Any, kwargs: Any) -> Any:
    error = {"Code": "AccessDenied", "Message": "not authorized: PartiQLUpdate"}
    return {"Responses": [{"Error": error} for _ in kwargs["Statements"]]}


def unknown(_: Any, __: Any) -> Any:
    raise ClientError({"Error": {"Code": "UnknownOperationException", "Message": "no such operation"}}, BATCH)


def unknown_each(_: Any, kwargs: Any) -> Any:
    error = {"Code": "ValidationError", "Message": "Statement wasn't well formed, can't be processed: Expected data"}
    return {"Responses": [{"Error": error} for _ in kwargs["Statements"]]}


def answered(send: Any, kwargs: Any) -> Any:
    return send(kwargs)


def lost_before(_: Any, __: Any) -> Any:
    raise ReadTimeoutError(endpoint_url="test")


def lost_after(send: Any, kwargs: Any) -> Any:
    send(kwargs)
    raise ReadTimeoutError(endpoint_url="test")


def lost_half(send: Any, kwargs: Any) -> Any:
    send({**kwargs, "Statements": kwargs["Statements"][::2]})
    raise ReadTimeoutError(endpoint_url="test")


def throttled_in_part(send: Any, kwargs: Any) -> Any:
    first, *others = kwargs["Statements"]
    error = {"Code": "ThrottlingError", "Message": "too fast"}
    return {"Responses": [*send({**kwargs, "Statements": [first]})["Responses"], *[{"Error": error} for _ in others]]}


def failed_in_part(send: Any, kwargs: Any) -> Any:
    error = {"Code": "InternalServerError", "Message": "sorry"}
    return {"Responses": [{"Error": error}, *send(kwargs)["Responses"][1:]]}
