"""The in-memory DynamoDB as an engine: requests pass the taps of `tests.support.wire`, and are tried again."""

from __future__ import annotations

import base64
import json
import time
import uuid
import weakref
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import botocore.endpoint
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from botocore.exceptions import ClientError
from botocore.retries import standard
from botocore.session import get_session

from pynamo_locking_testing import MemoryClient, MemoryDynamoDB
from pynamo_locking_testing.memory import error_class
from tests.support import wire

if TYPE_CHECKING:
    from pynamodb.connection import Connection

_STANDARD: Final[Any] = standard  # the stubs do not know all of it
#: What botocore repeats by itself; the last of them is not in older ones.
_CHECKERS: Final = tuple(
    getattr(_STANDARD, name)()
    for name in ("TransientRetryableChecker", "ThrottledRetryableChecker", "ThrottlingStatusCodeChecker")
    if hasattr(_STANDARD, name)
)
#: A real request lets other threads run; without that, those of a test would hardly ever meet.
_ON_THE_WAY_S: Final = 1e-6
_SERVICE: Final[Any] = get_session().get_service_model("dynamodb")
#: Tests replace the `time` in it, to step in before a repetition.
_ENDPOINT: Final[Any] = botocore.endpoint


class TappedMemory(MemoryDynamoDB):
    """Each connection has a client of its own, which tries as often as the connection says."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: weakref.WeakKeyDictionary[Connection, TappedClient] = weakref.WeakKeyDictionary()

    def client(self, attempts: int = 1) -> TappedClient:
        """A client that makes at most so many attempts."""
        return TappedClient(self, attempts)

    def client_for(self, connection: Connection) -> TappedClient:
        """The client of a connection."""
        if connection not in self._clients:
            given: Any = connection
            retries = given._retry_configuration
            attempts = (
                retries["total_max_attempts"] if isinstance(retries, dict) else 1 + given._max_retry_attempts_exception
            )
            self._clients[connection] = self.client(attempts)
        return self._clients[connection]


class TappedClient(MemoryClient):
    """A client whose attempts can be lost and counted, and are repeated where botocore repeats them."""

    def __init__(self, database: MemoryDynamoDB, attempts: int) -> None:
        super().__init__(database)
        self._endpoint = self
        self._attempts = attempts

    def _make_api_call(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        if operation_name == "TransactWriteItems":
            operation_kwargs = {"ClientRequestToken": str(uuid.uuid4()), **operation_kwargs}
        context: dict[str, Any] = {}
        asked = {"params": operation_kwargs, "model": _SERVICE.operation_model(operation_name), "context": context}
        self.meta.events.emit(f"provide-client-params.dynamodb.{operation_name}", **asked)
        for number in range(1, self._attempts + 1):
            response, error = self._attempt(operation_name, operation_kwargs)
            self.meta.events.emit(  # as botocore does after each attempt
                f"needs-retry.dynamodb.{operation_name}",
                response=response,
                caught_exception=error,
                request_dict={"context": context},
            )
            if number == self._attempts or not _is_worth_repeating(number, response, error):
                break
            _ENDPOINT.time.sleep(0)  # a test may step in here, as it does with botocore
        if error is not None:
            raise error
        return _parsed(operation_name, response, number - 1)

    def _attempt(self, operation: str, kwargs: dict[str, Any]) -> wire.Answer:
        body = json.dumps(kwargs, default=lambda raw: base64.b64encode(raw).decode())
        request = AWSPreparedRequest("POST", self.meta.endpoint_url, HTTPHeaders(), body, stream_output=False)
        return wire.attempt(self, request, operation, lambda: self._forward(operation, kwargs))

    def _forward(self, operation: str, kwargs: dict[str, Any]) -> wire.Answer:
        """Serve a request; the answer has the shape of that of botocore's endpoint."""
        time.sleep(_ON_THE_WAY_S)
        try:
            parsed: Any = super()._make_api_call(operation, kwargs)
        except ClientError as refusal:
            parsed = refusal.response
        return as_answer(parsed), None


def as_answer(parsed: Any) -> Any:
    """Return a response as botocore's endpoint does, from what was parsed of it."""
    return SimpleNamespace(status_code=parsed["ResponseMetadata"]["HTTPStatusCode"], headers={}, content=b""), parsed


def _is_worth_repeating(number: int, response: Any, error: Exception | None) -> bool:
    """Ask botocore."""
    http, parsed = response or (None, None)
    context = _STANDARD.RetryContext(number, parsed_response=parsed, http_response=http, caught_exception=error)
    return any(checker.is_retryable(context) for checker in _CHECKERS)


def _parsed(operation: str, response: Any, retries: int) -> dict[str, Any]:
    http, parsed = response
    answer: dict[str, Any] = parsed
    answer["ResponseMetadata"]["RetryAttempts"] = retries
    if http.status_code >= HTTPStatus.MULTIPLE_CHOICES:
        raise error_class(parsed["Error"]["Code"])(parsed, operation)
    return answer
