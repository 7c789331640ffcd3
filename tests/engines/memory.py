"""The in-memory DynamoDB as an engine: requests pass the taps of `tests.support.faults`, and are tried again."""

from __future__ import annotations

import base64
import json
import uuid
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from botocore.exceptions import BotoCoreError, ClientError

from pynamo_locking.testing import MemoryClient, MemoryDynamoDB
from tests.support import faults

if TYPE_CHECKING:
    from pynamodb.connection import Connection


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
    """A client whose attempts can be lost and counted."""

    def __init__(self, database: MemoryDynamoDB, attempts: int) -> None:
        super().__init__(database)
        self._endpoint = self
        self._attempts = attempts

    def _make_api_call(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        if operation_name == "TransactWriteItems":
            operation_kwargs = {"ClientRequestToken": str(uuid.uuid4()), **operation_kwargs}
        for attempt in range(self._attempts):
            answer, error = self._attempt(operation_name, operation_kwargs)
            self._tell(operation_name, answer, error)
            if error is None:
                return self._parsed(answer, attempt)
        raise error or AssertionError  # the last attempt failed

    def _tell(self, operation: str, answer: Any, error: Exception | None) -> None:
        """Emit what botocore does after each attempt."""
        response = answer.response if isinstance(answer, ClientError) else answer
        http = SimpleNamespace(status_code=response["ResponseMetadata"]["HTTPStatusCode"]) if response else None
        self.meta.events.emit(
            f"needs-retry.dynamodb.{operation}",
            response=(http, response) if response else None,
            caught_exception=error,
        )

    def _attempt(self, operation: str, kwargs: dict[str, Any]) -> faults.Answer:
        body = json.dumps(kwargs, default=lambda raw: base64.b64encode(raw).decode())
        request = AWSPreparedRequest("POST", self.meta.endpoint_url, HTTPHeaders(), body, stream_output=False)
        return faults.attempt(self, request, operation, lambda: self._forward(operation, kwargs))

    def _forward(self, operation: str, kwargs: dict[str, Any]) -> faults.Answer:
        try:
            return super()._make_api_call(operation, kwargs), None
        except ClientError as refusal:
            return refusal, None
        except BotoCoreError as error:
            return None, error

    def _parsed(self, answer: Any, retries: int) -> dict[str, Any]:
        response: Any = answer.response if isinstance(answer, ClientError) else answer
        response["ResponseMetadata"]["RetryAttempts"] = retries
        if isinstance(answer, ClientError):
            raise answer
        parsed: dict[str, Any] = response
        return parsed
