"""The refusals of operations, in DynamoDB's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._expressions.refusals import Refusal, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONDITION_FAILED = "ConditionalCheckFailedException"
CANCELLED = "TransactionCanceledException"
NOT_FOUND = "ResourceNotFoundException"
IN_USE = "ResourceInUseException"
MISMATCH = "IdempotentParameterMismatchException"


def condition_failed(item: Mapping[str, Any] | None) -> Refusal:
    """Return the refusal of a write whose condition is false, with the stored item if it was asked for."""
    details = {} if item is None else {"Item": item}
    return Refusal(CONDITION_FAILED, "The conditional request failed", **details)


def no_such_table() -> Refusal:
    """Return the refusal of a request to a table that does not exist."""
    return Refusal(NOT_FOUND, "Requested resource not found")


def unfit(name: str, constraint: str, value: object = None) -> Refusal:
    """Return the refusal of a value that breaks a constraint of the service's model."""
    shown = "Value" if value is None else f"Value '{value}'"
    return invalid(
        f"1 validation error detected: {shown} at '{name}' failed to satisfy constraint: Member must {constraint}"
    )


def reason(refusal: Refusal | None) -> dict[str, Any]:
    """Return why one action of a transaction was refused; without a refusal, that it was not."""
    if refusal is None:
        return {"Code": "None"}
    code = "ConditionalCheckFailed" if refusal.code == CONDITION_FAILED else "ValidationError"
    return {"Code": code, "Message": refusal.message, **refusal.details}


def cancelled(reasons: Sequence[Mapping[str, Any]]) -> Refusal:
    """Return the refusal of a transaction, with a reason for each action."""
    codes = ", ".join(each["Code"] for each in reasons)
    message = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
    return Refusal(CANCELLED, message, Message=message, CancellationReasons=list(reasons))
