"""What can go wrong, said in one sentence each, and the exit codes."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from pynamodb.exceptions import PynamoDBException

from pynamo_locking._edge import NO_TABLE
from pynamo_locking.exceptions import ConfigurationError, LockingError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator


class Exit(enum.IntEnum):
    """The exit codes of the program's own; those above 64 are the ones of ``sysexits.h``."""

    OK = 0
    NO = 1  # the answer is no: something is wrong with a table, there is no such ticket, ...
    USAGE = 2
    CAPPED = 3  # `certify`: it has stopped at the cap on units
    FAILED = 69  # EX_UNAVAILABLE: no answer from DynamoDB, or a refusal
    LOST = 70  # `run`: the lock was lost, and the program was ended for that or ended with 0 by itself
    NOT_WRITTEN = 74  # EX_IOERR: standard output cannot be written
    NOT_OBTAINED = 75  # EX_TEMPFAIL. `run`: not our turn in time; the command was not started
    NOT_PERMITTED = 77  # EX_NOPERM: no credentials, or not the right ones
    CONFIGURATION = 78  # EX_CONFIG: a table is missing or another one than expected
    NOT_EXECUTABLE = 126  # `run`: as a shell says it
    NOT_FOUND = 127  # `run`: as a shell says it
    SIGNALLED = 128  # plus the number of the signal


class Problem(Exception):  # noqa: N818 - what the person is told; mostly not an error of the program
    """Something to tell the person, after which the program ends.

    `kind` is a stable word for scripts, and `facts` are for them as well. The message says in a sentence or two what
    happened, and what to do about it.
    """

    as_json: bool | None = None  # None if the options were not read that far

    def __init__(self, kind: str, message: str, exit_code: int, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.exit_code: int = int(exit_code)
        self.facts = facts

    def told(self, *, as_json: bool) -> Problem:
        """Say in which form to tell it; return it."""
        self.as_json = as_json
        return self

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` shows."""
        return {"error": {"kind": self.kind, "message": self.message, "exit_code": self.exit_code, **self.facts}}


def usage(message: str) -> Problem:
    """Return the problem of a command that was used wrongly."""
    return Problem("usage", message, Exit.USAGE)


#: Errors that have a meaning here. Any other error is a bug, and keeps its traceback.
EXPECTED: Final[tuple[type[Exception], ...]] = (LockingError, PynamoDBException, BotoCoreError, ClientError)

_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, SSOError)
_NO_ACCESS: Final = {
    "AccessDeniedException": "access_denied",
    "AccessDenied": "access_denied",
    "ExpiredTokenException": "bad_credentials",
    "ExpiredToken": "bad_credentials",
    "IncompleteSignature": "bad_credentials",
    "InvalidClientTokenId": "bad_credentials",
    "InvalidSignatureException": "bad_credentials",
    "MissingAuthenticationToken": "bad_credentials",
    "UnrecognizedClientException": "bad_credentials",
}
_UNREACHABLE: Final = (HTTPClientError, NoConnectionError)


def explain(error: Exception) -> Problem:
    """Return what to tell of an error of the library, of PynamoDB or of botocore."""
    chain = list(_chain(error))
    for each in chain:
        problem = _of_settings(each) or _of_answer(each)
        if problem is not None:
            return problem
    if isinstance(error, OutcomeUnknown):
        return Problem("outcome_unknown", str(error), Exit.FAILED)
    if isinstance(error, ConfigurationError):
        return Problem("configuration", str(error), Exit.CONFIGURATION)
    return Problem("failed", str(error), Exit.FAILED)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what is behind it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__


def _of_settings(error: BaseException) -> Problem | None:
    """Return the problem of a request that was never sent."""
    if isinstance(error, _CREDENTIALS):
        return Problem(
            "no_credentials",
            f"there are no usable AWS credentials ({_first_line(error)}). Name a profile with --profile or "
            f"PYNAMO_LOCKING_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for an emulator of "
            f"DynamoDB any values do.",
            Exit.NOT_PERMITTED,
        )
    if isinstance(error, ProfileNotFound):
        return Problem(
            "no_credentials", f"{_first_line(error)}. See `aws configure list-profiles`.", Exit.NOT_PERMITTED
        )
    if isinstance(error, (NoRegionError, InvalidRegionError)):
        return usage(f"no usable AWS Region ({_first_line(error)}). Name one with --region or PYNAMO_LOCKING_REGION.")
    return None


def _of_answer(error: BaseException) -> Problem | None:
    """Return the problem of a request that was refused, or got no response."""
    code, message = _code_and_message(error)
    if code == NO_TABLE:
        said = str(error) if isinstance(error, LockingError) else message
        return Problem(
            "table_missing",
            f"there is no such table here ({said}). Check its name, --region and --endpoint, or create it: "
            f"pynamo-locking tables create.",
            Exit.CONFIGURATION,
        )
    if code in _NO_ACCESS:
        return Problem(_NO_ACCESS[code], f"DynamoDB said {code}: {message}", Exit.NOT_PERMITTED)
    if isinstance(error, _UNREACHABLE):
        return Problem("unreachable", f"no answer from DynamoDB: {_first_line(error)}", Exit.FAILED)
    return None


def said(error: BaseException) -> tuple[str, str]:
    """Return the code and the message of the answer behind an error; no code, and its text, where there was none."""
    return next((found for found in map(_code_and_message, _chain(error)) if found[0]), ("", str(error)))


def _code_and_message(error: BaseException) -> tuple[str, str]:
    response = getattr(error, "response", None) or {}
    found = response.get("Error", {}) if isinstance(response, dict) else {}
    return str(found.get("Code", "")), str(found.get("Message", "")) or str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
