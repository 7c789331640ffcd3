"""A client of the simulated DynamoDB, with the repetitions of botocore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from pynamo_locking_testing._engine.partitions import REFUSED
from pynamo_locking_testing.memory import MemoryClient

if TYPE_CHECKING:
    from pynamodb.connection import Connection

    from pynamo_locking_testing._engine.network import Network

_IN_PROGRESS: Final = "TransactionInProgressException"

_REPLICATED: Final = "ReplicatedWriteConflictException"

#: Refusals that botocore repeats. Source: its `_retry.json`, `retries/standard.py`, and the service's model.
_REPEATED: Final = {"ThrottlingException", REFUSED, _IN_PROGRESS, _REPLICATED}

#: What it waits after. It does so after others as well; there the next attempt finds the same without a wait.
_NOT_AT_ONCE: Final = {REFUSED, _IN_PROGRESS, _REPLICATED}


class FaultyClient(MemoryClient):
    """A client that tries again as botocore does: after time-outs, failures and throttling."""

    def __init__(self, network: Network, connection: Connection) -> None:
        super().__init__(network)
        given: Any = connection
        retries = given._retry_configuration
        self._network = network
        self._timeout_s = given._read_timeout_seconds
        self._attempts = (
            retries["total_max_attempts"] if isinstance(retries, dict) else 1 + given._max_retry_attempts_exception
        )

    def _make_api_call(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        if operation_name == "TransactWriteItems" and "ClientRequestToken" not in operation_kwargs:
            operation_kwargs = {**operation_kwargs, "ClientRequestToken": self._network.new_token()}
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._network.attempt(operation_name, operation_kwargs, self._timeout_s)
            except Exception as error:
                self._tell(operation_name, error)
                if attempt == self._attempts or not _is_repeated(error):
                    if isinstance(error, ClientError):
                        refused: Any = error.response
                        refused["ResponseMetadata"]["RetryAttempts"] = attempt - 1
                    raise
                if _code(error) in _NOT_AT_ONCE:
                    self._network.back_off()
            else:
                self._tell(operation_name, answer)
                return answer

    def _tell(self, operation: str, answer: Any) -> None:
        """Emit what botocore does after each attempt."""
        response: Any = answer.response if isinstance(answer, ClientError) else answer
        heard: dict[str, Any] = {"caught_exception": answer}
        if isinstance(response, dict):
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            heard = {"response": (SimpleNamespace(status_code=status, headers={}), response), "caught_exception": None}
        self.meta.events.emit(f"needs-retry.dynamodb.{operation}", **heard)


def _is_repeated(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return True
    response: Any = error.response
    return bool(response["ResponseMetadata"]["HTTPStatusCode"] >= 500 or _code(error) in _REPEATED)


def _code(error: Exception) -> str:
    response: Any = error.response if isinstance(error, ClientError) else None
    return str(response["Error"]["Code"]) if response else ""
