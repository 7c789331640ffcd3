"""The places where the in-memory DynamoDB meets botocore and PynamoDB."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from botocore.hooks import HierarchicalEmitter
from pynamodb.connection.base import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@lru_cache(maxsize=64)
def error_class(code: str) -> type[ClientError]:
    """Return the class of the errors with this code, as ``client.exceptions`` has it."""
    return type(code, (ClientError,), {})


def client_error(operation: str, code: str, message: str, details: dict[str, Any]) -> ClientError:
    """Return an error as botocore raises it; `details` are further parts of the response, as ``Item``."""
    error = {"Code": code, "Message": message}
    response: Any = {"Error": error, "ResponseMetadata": response_metadata(400), **details}
    return error_class(code)(response, operation)


def response_metadata(status: int) -> dict[str, Any]:
    """Return what botocore adds to every response."""
    return {"RequestId": "memory", "HTTPStatusCode": status, "HTTPHeaders": {}, "RetryAttempts": 0}


class Meta:
    """As much of ``client.meta`` as PynamoDB and this package look at.

    The in-memory database raises none of botocore's events by itself; a test that plays botocore's retries can.
    """

    def __init__(self) -> None:
        self.endpoint_url = "memory://dynamodb"
        self.region_name = "memory"
        self.events: Any = HierarchicalEmitter()


class Exceptions:
    """The exception classes of a client: ``client.exceptions.ConditionalCheckFailedException``."""

    def __getattr__(self, name: str) -> type[ClientError]:
        """Return the class of the errors with this code."""
        if name.startswith("_"):
            raise AttributeError(name)
        return ClientError if name == "ClientError" else error_class(name)


@contextmanager
def connections_use(client_of: Callable[[Connection], Any]) -> Iterator[None]:
    """Give every PynamoDB connection of this process the client of this function, also those made before."""
    connection: Any = Connection
    original = connection.client
    connection.client = property(client_of)
    try:
        yield
    finally:
        connection.client = original
