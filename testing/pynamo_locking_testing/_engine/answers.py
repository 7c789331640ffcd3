"""What a client hears of a request that was not applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from pynamo_locking_testing._engine import partitions
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing.memory import client_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking_testing._engine.wire import Request


def _refusal(request: Request, code: str, status: int = 400, **details: Any) -> ClientError:
    return client_error(request.operation, code, "simulated", details, status)


def failed(request: Request) -> ClientError:
    return _refusal(request, "InternalServerError", 500)


def throttled(request: Request, are_spent: Sequence[bool]) -> ClientError:
    """Return the answer of a partition that has no units left.

    Args:
        request: that is refused.
        are_spent: for each of its places, whether its partition is the reason.
    """
    refused = partitions.refusal(request.operation, are_spent, request.kwargs.get("TableName", ""))
    code, _message = refused.pop("Code"), refused.pop("Message")
    return _refusal(request, code, **refused)


def too_old(request: Request) -> ClientError:
    """Return the answer to a request that was signed too long ago."""
    return _refusal(request, "InvalidSignatureException")


def _conflict(request: Request) -> ClientError:
    if request.operation != "TransactWriteItems":
        return _refusal(request, "TransactionConflictException")
    others = len(request.kwargs["TransactItems"]) - 1
    reasons = [{"Code": "TransactionConflict", "Message": "simulated"}, *[{"Code": "None"} for _ in range(others)]]
    return _refusal(request, "TransactionCanceledException", CancellationReasons=reasons)


#: By fault, what the client hears.
NOT_APPLIED: Final[dict[Any, Callable[[Request], Exception]]] = {
    Fault.THROTTLED: lambda request: _refusal(request, "ThrottlingException"),
    Fault.NO_CONNECTION: lambda _: ConnectTimeoutError(endpoint_url="simulation"),
    Fault.FAILED_BEFORE: failed,
    Fault.CONFLICT: _conflict,
    Fault.REPLICATED: lambda request: _refusal(request, "ReplicatedWriteConflictException"),
    Fault.LOST_REQUEST: lambda _: ReadTimeoutError(endpoint_url="simulation"),
}
