"""Finds out what became of a write that had no answer, so that what is said stays true.

A copy of the request may still be on its way. So "not applied" is said only once no copy can be applied any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import GetError, PynamoDBException

from pynamo_locking._core.outcome import Outcome, resolve_by_id
from pynamo_locking._io import answers, loops, retries
from pynamo_locking._io.retries import Unavailable
from pynamo_locking._items import versions
from pynamo_locking.exceptions import Conflict, LockLost, OutcomeUnknown, StaleVersion, as_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamodb.models import Model

    from pynamo_locking._core.outcome import Resolution
    from pynamo_locking._io.stored import Image
    from pynamo_locking._items.versions import VersionPart

#: So often an item is read whose other writers are faster.
_MOST_LOOKS: Final = 3

_TEXTS: Final[dict[Outcome, Resolution]] = {Outcome.APPLIED: "applied", Outcome.REJECTED: "not applied"}


class Question:
    """What became of a write; `ask` sends the requests. A definite answer is kept."""

    def __init__(self, ask: Callable[[], Resolution]) -> None:
        self._ask = ask
        self._answer: Resolution = "unknown"

    def answer(self) -> Resolution:
        """Return the answer; "unknown" if no response came, or DynamoDB is busy."""
        if self._answer == "unknown":
            try:
                self._answer = self._ask()
            except Unavailable:
                pass
            except PynamoDBException as error:
                if error.cause is None or not answers.is_transient(error.cause):
                    raise
        return self._answer

    async def awaited(self) -> Resolution:
        """As `answer`, for tasks."""
        return await loops.to_the_end(self.answer)


class Sent(NamedTuple):
    """One write of one item, as it was sent; `is_delete` if the item's absence is all that was asked for."""

    model: type[Model]
    table: str
    key: Image
    part: VersionPart
    is_delete: bool

    @classmethod
    def of(cls, model: type[Model], request: Mapping[str, Any], part: VersionPart, *, is_delete: bool) -> Sent:
        """Return the write that a request makes: the caller may change the instance later."""
        named, keys = request.get("Key") or request["Item"], (model._hash_key_attribute(), model._range_key_attribute())
        key = {each.attr_name: named[each.attr_name] for each in keys if each is not None}
        return cls(model, request["TableName"], key, part, is_delete)

    def read(self) -> Image | None:
        """Return the stored item."""
        connection = self.model._get_connection().connection
        request = {"TableName": self.table, "Key": self.key, "ConsistentRead": True}
        try:
            image: Image | None = retries.patiently(lambda: retries.ask(connection, "GetItem", request)).get("Item")
        except answers.BOTOCORE_EXCEPTIONS as error:
            raise GetError(f"Error getting item: {error}", answers.readable(error)) from error
        return image

    def judge(self, image: Image | None) -> Outcome | None:
        """See `resolve_by_id`."""
        seen = None if image is None else versions.known_of(self.model, image)
        part = self.part
        return resolve_by_id(seen, part.before, part.write_ids, is_checked=part.is_checked, is_delete=self.is_delete)


def question_of(writes: Sequence[Sent]) -> Question:
    """Return the question what became of a write, or of several that are applied together or not at all."""
    return Question(lambda: _resolve(writes))


def _resolve(writes: Sequence[Sent]) -> Resolution:
    for write in sorted(writes, key=lambda each: each.part.begins_life):  # last those that cannot be kept out
        outcome = _outcome(write)
        if outcome in _TEXTS:
            return _TEXTS[outcome]
    return "unknown"


def _outcome(write: Sent) -> Outcome:
    if not write.part.write_ids:
        return Outcome.UNKNOWN
    for _ in range(_MOST_LOOKS):
        image = write.read()
        outcome = write.judge(image)
        if outcome is not None or image is None:
            return outcome or Outcome.UNKNOWN
        try:
            as_model(write.model, image)._writer().touch(None, checks_version=True)
        except (StaleVersion, OutcomeUnknown):  # the next read tells by whom
            continue
        except (Conflict, LockLost):  # the item is locked, or has expired
            break
        return Outcome.REJECTED
    return Outcome.UNKNOWN
