"""How DynamoDB says no to an expression or a value, in its own words."""

from __future__ import annotations

from typing import Any

INVALID = "ValidationException"
SERIALIZATION = "SerializationException"


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB refuses a request.

    Attributes:
        code: the code of the error.
        message: its message.
        details: what the error carries besides, as ``Item`` or ``CancellationReasons``.
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details


def invalid(message: str) -> Refusal:
    """Return the refusal of a request that cannot be served."""
    return Refusal(INVALID, message)


def invalid_value(message: str) -> Refusal:
    """Return the refusal of a parameter's value."""
    return invalid(f"One or more parameter values were invalid: {message}")
