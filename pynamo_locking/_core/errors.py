"""The roots of the errors, for code below `exceptions`."""

from __future__ import annotations

import sys
from typing import Any

from pynamo_locking._core import project


class LockingError(Exception):
    """Base class of everything this package raises.

    Its text is made where it is raised. What else a class knows is an attribute of the class, with a default, and is
    given by name. Once the project has an address, that of the entry in the reference is a note: it ends a traceback,
    and no text that quotes the error has it in its middle.

    Attributes:
        cause: the exception of botocore or PynamoDB behind this one, or None.
    """

    cause: Exception | None = None
    #: The heading of its entry in docs/reference/errors.md; None if that is the name of the class.
    _entry: str | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(self, name, value)
        if project.FILES and sys.version_info >= (3, 11):
            ours = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("pynamo_locking"))
            self.add_note(f"{project.FILES}/docs/reference/errors.md#{(self._entry or ours.__name__).lower()}")

    @property
    def cause_response_code(self) -> str | None:
        """DynamoDB's error code, or None where there was no response at all.

        PynamoDB's own property fails with an AttributeError on transport errors; this one does not.
        """
        return self._error_field("Code")

    @property
    def cause_response_message(self) -> str | None:
        """DynamoDB's error message, or None where there was no response at all."""
        return self._error_field("Message")

    def _error_field(self, name: str) -> str | None:
        response: dict[str, dict[str, str]] = getattr(self.cause, "response", None) or {}
        return response.get("Error", {}).get(name)


class ConfigurationError(LockingError, ValueError):
    """Arguments, settings, models or tables that cannot work. The message says what to change."""


class InvalidInput(LockingError, ValueError):  # noqa: N818 - named like the other errors of callers
    """A value that comes with a request cannot be used: a key, an idempotency key, an interval, a time, NaN.

    Nothing was sent. The message says why, and shows the first 80 characters of the value.
    """


for _error in (LockingError, ConfigurationError, InvalidInput):
    _error.__module__ = "pynamo_locking.exceptions"  # where they are public
