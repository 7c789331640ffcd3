"""DynamoDB's limits, its error codes, and when a request is sent again. Pure.

A change that waits inside the intent of its item is no attribute yet, so DynamoDB does not check it. If DynamoDB
refused it after the decision, the transaction could not be completed.

An attempt without a definite answer may have been applied. From then on the request is in doubt: a refusal of a later
copy does not prove that nothing was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pynamo_locking._core.values import Refusal, canonical_item, item_size, size_of, type_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


# What DynamoDB can store: an item is checked here before it is too late to refuse it.


#: The largest values of key attributes, in bytes.
LARGEST_KEYS: Final = {"hash": 2048, "range": 1024}

#: The largest item, in bytes, names included.
LARGEST_ITEM: Final = 400 * 1024

#: The longest expression, in bytes: it updates 315 attributes inside a lock, 329 outside.
LONGEST_EXPRESSION: Final = 4096

#: Actions of a native transaction.
MOST_ACTIONS: Final = 100

#: Keys of a BatchGetItem.
MOST_KEYS: Final = 100

#: Statements of a BatchExecuteStatement; with 1, none is sent.
MOST_STATEMENTS: Final = 25

#: The most item bytes of a native transaction: DynamoDB's 4 MB, less what names and expressions take.
MOST_BYTES: Final = 3_800_000

#: The largest entry of a queue, in bytes, with its ticket and the longest label, but without the ends of a range.
LARGEST_ENTRY: Final = 512

#: So many entries may be in one queue: the largest ones take half of an item.
MOST_WAITERS: Final = LARGEST_ITEM // 2 // LARGEST_ENTRY

_TYPE_NAMES: Final = {
    "S": "a string",
    "N": "a number",
    "B": "binary",
    "SS": "a set of strings",
    "NS": "a set of numbers",
    "BS": "a set of binaries",
    "M": "a map",
    "L": "a list",
    "BOOL": "a boolean",
    "NULL": "null",
}


@dataclass(frozen=True)
class KeyRule:
    """A key attribute of a table or an index.

    Attributes:
        name: the attribute, as it is stored.
        type: its type: ``S``, ``N`` or ``B``.
        role: which part of the key it is.
        index: whose key; None for the table's own, which every item must have.
    """

    name: str
    type: str
    role: Literal["hash", "range"]
    index: str | None = None

    @property
    def label(self) -> str:
        of_index = "" if self.index is None else f" of the index {self.index!r}"
        return f"the {self.role} key {self.name!r}{of_index}"


def problems(image: Mapping[str, Mapping[str, Any]], keys: Iterable[KeyRule]) -> list[str]:
    """Return why DynamoDB would not store an item; an empty list if it would.

    Not checked, because the item alone does not show it: a local secondary index has at most 10 GB for one hash key,
    and 400 KB for an item together with its entries in all local secondary indexes.

    Args:
        image: the item in DynamoDB's JSON form, with binary values as bytes.
        keys: the key attributes of its table and of all indexes. Only the first of several equal rules is reported.

    Returns:
        One text for each problem: attributes in their order, then keys in theirs, then the size of the item.
    """
    found, stored = list[str](), dict[str, dict[str, Any]]()
    for name, value in image.items():
        try:
            stored |= canonical_item({name: value})
        except Refusal as refusal:
            found.append(f"the attribute {name[:40]!r} cannot be stored: {refusal.message}")
    for key in _distinct(keys):
        if key.name in stored:
            found += _wrong_key(key, stored[key.name])
        elif key.name not in image and key.index is None:
            found.append(f"{key.label} is missing")
    size = item_size(stored)
    if size > LARGEST_ITEM:
        found.append(f"the item has {size:,} bytes, and DynamoDB stores at most {LARGEST_ITEM:,}")
    return found


def _distinct(keys: Iterable[KeyRule]) -> list[KeyRule]:
    first = dict[tuple[str, str, str], KeyRule]()
    for key in keys:
        first.setdefault((key.name, key.type, key.role), key)
    return list(first.values())


def _wrong_key(key: KeyRule, value: dict[str, Any]) -> list[str]:
    actual = type_of(value)
    if actual != key.type:
        return [f"{key.label} is {_TYPE_NAMES[actual]}, and must be {_TYPE_NAMES[key.type]}"]
    if not value[actual]:
        return [f"{key.label} is empty"]
    size, largest = size_of(value), LARGEST_KEYS[key.role]
    return [f"{key.label} has {size:,} bytes, and may have {largest:,}"] if size > largest else []


# What DynamoDB's error codes say of a request: the one table of them. Pure.


CONDITION_FAILED: Final = "ConditionalCheckFailedException"
CANCELLED: Final = "TransactionCanceledException"
INVALID: Final = "ValidationException"
THROTTLED: Final = "ProvisionedThroughputExceededException"
FAILED: Final = "InternalServerError"
NO_TABLE: Final = "ResourceNotFoundException"
TABLE_EXISTS: Final = "ResourceInUseException"

#: The condition of one action of a transaction was false.
ACTION_FAILED: Final = "ConditionalCheckFailed"
#: An action was not the reason why a transaction was cancelled.
ACTION_PASSED: Final = "None"
HTTP_REDIRECTION: Final = 300
HTTP_CLIENT_ERROR: Final = 400
HTTP_SERVER_ERROR: Final = 500
HTTP_BAD_GATEWAY: Final = 502

#: A limit was reached: by a request, by an action of a transaction, or by a statement of a batch.
THROTTLING: Final = frozenset(
    {THROTTLED, "RequestLimitExceeded", "Throttling", "ThrottlingException"}
    | {"ThrottlingError", "ProvisionedThroughputExceeded"}
)


class Answer(Enum):
    """What one attempt of a request came back with, if not with success."""

    REFUSED = "not applied: a condition was not met, and DynamoDB shows the stored item"
    CONFLICT = "not applied for now: another write has the item"
    BUSY = "not applied for now: a limit is reached"
    NOT_SENT = "not applied for now: there is no connection"
    UNANSWERED = "perhaps applied: DynamoDB failed, or its answer was lost"
    DENIED = "not applied, and refused however often it is sent"


#: The request was not applied; the same request may be later.
PASSING: Final = frozenset({Answer.CONFLICT, Answer.BUSY, Answer.NOT_SENT})

_BY_CODE: Final = {
    CONDITION_FAILED: Answer.REFUSED,
    "TransactionConflictException": Answer.CONFLICT,
    "ReplicatedWriteConflictException": Answer.CONFLICT,  # of another Region, in a table with strong consistency
    **dict.fromkeys(THROTTLING, Answer.BUSY),
    "TransactionInProgressException": Answer.BUSY,
    FAILED: Answer.UNANSWERED,
    "InternalFailure": Answer.UNANSWERED,
    "ServiceUnavailable": Answer.UNANSWERED,
}

#: Codes of single actions of a cancelled transaction, apart from `ACTION_PASSED`.
_BY_REASON: Final = {
    ACTION_FAILED: Answer.REFUSED,
    "TransactionConflict": Answer.CONFLICT,
    **dict.fromkeys(THROTTLING, Answer.CONFLICT),  # botocore does not repeat a cancelled transaction
}


def answer_of(code: str, status: int = 0) -> Answer:
    """Return what an error code says. The HTTP status decides where the code leaves open whether it was applied."""
    answer = _BY_CODE.get(code, Answer.DENIED)
    is_open = answer in {Answer.BUSY, Answer.DENIED}
    return Answer.UNANSWERED if is_open and status >= HTTP_SERVER_ERROR else answer


def answer_of_reasons(codes: Collection[str]) -> Answer:
    """Return what the cancellation reasons of a transaction say, one for each action."""
    answers = {_BY_REASON.get(code, Answer.DENIED) for code in codes if code != ACTION_PASSED}
    if Answer.REFUSED in answers:
        return Answer.REFUSED
    return Answer.CONFLICT if answers == {Answer.CONFLICT} else Answer.DENIED


# Why a request was throttled.


class Throttling(NamedTuple):
    """Why a request was throttled: the reason, or the error code if DynamoDB gives none, and the table or index.

    Attributes:
        resource: ``TABLE`` or ``TABLE/index/INDEX``.
        action: which action of a transaction, or statement of a batch, it is; None for the request.
    """

    reason: str
    resource: str
    action: int | None = None


def throttling_in(response: Mapping[str, Any], tables: Sequence[str]) -> list[Throttling]:
    """Return why DynamoDB has throttled a request, by its response; empty if it has not.

    Args:
        response: the error, or the answer of a batch of statements.
        tables: the table of each item that is asked for; the first one, if DynamoDB does not name it.
    """
    code = response.get("Error", {}).get("Code")
    if code in THROTTLING:
        causes = [(each.get("reason"), each.get("resource") or "") for each in throttling_reasons(response) or [{}]]
        return [Throttling(reason or code, arn.partition(":table/")[2] or tables[0]) for reason, arn in causes]
    parts = response.get("CancellationReasons") or [each.get("Error", {}) for each in response.get("Responses", ())]
    causes = [(part.get("Code"), table) for part, table in zip(parts, tables, strict=False)]
    return [Throttling(code, table, i) for i, (code, table) in enumerate(causes) if code in THROTTLING]


def throttling_reasons(response: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return DynamoDB's reasons as it gives them; their name begins with a small letter in a ThrottlingException."""
    return list(response.get("ThrottlingReasons") or response.get("throttlingReasons") or ())


# When a request is sent again, and when its sender stops. Pure: it neither sends nor waits.


#: How often a request that conflicts with other writes is sent again (a heartbeat is such a write).
MOST_CONFLICTS: Final = 8


class Next(Enum):
    """What the sender does after an attempt that failed."""

    SETTLE = "judge by the stored item, which came with the refusal"
    AGAIN = "send it again: no attempt was applied"
    REPEAT = "send a copy: an attempt may have been applied"
    READ = "read the item to find out whether it was applied"
    FAIL = "report that it was not applied"
    UNKNOWN = "report that it may have been applied"


class Step(NamedTuple):
    """What is next, and the `lease.backoff` number of the pause before it; None for no pause."""

    next: Next
    pause: int | None = None


class RetryPolicy(NamedTuple):
    """How a request may be sent again.

    Attributes:
        repeats: how many copies follow attempts without a definite answer.
        first_pause: the number of the pause before the first copy; None if copies follow at once.
        is_single: whether botocore sends each attempt only once, so that the sender repeats throttled ones.
        looks: whether the sender reads the item instead of sending a copy, which could be applied as well.
        is_patient: whether it repeats throttled attempts that botocore has repeated before, or without a connection.
    """

    repeats: int = 1
    first_pause: int | None = None
    is_single: bool = False
    reads_outcome: bool = False
    is_patient: bool = False


class RetryState:
    """One request, from its first attempt to its end.

    Attributes:
        in_doubt: whether an attempt may have been applied.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.in_doubt = False
        self._conflicts = 0
        self._repeats = 0

    def after(self, answer: Answer, *, was_repeated: bool = False) -> Step:
        """Return what follows a failed attempt; `was_repeated` if an earlier try of botocore may have been applied."""
        self.in_doubt = self.in_doubt or was_repeated
        if answer is Answer.REFUSED:
            return Step(Next.SETTLE)
        is_patient = self.policy.is_single or self.policy.is_patient
        passes = answer in PASSING if is_patient else answer is Answer.CONFLICT
        if passes and self._conflicts < MOST_CONFLICTS:
            self._conflicts += 1
            return Step(Next.REPEAT if self.in_doubt else Next.AGAIN, self._conflicts)
        if answer is not Answer.UNANSWERED and not self.in_doubt:
            return Step(Next.FAIL)
        self.in_doubt = True
        if self.policy.reads_outcome or self._repeats >= self.policy.repeats:
            return Step(Next.READ if self.policy.reads_outcome else Next.UNKNOWN)
        number, first = self._repeats, self.policy.first_pause
        self._repeats += 1
        return Step(Next.REPEAT, None if first is None else first + number)
