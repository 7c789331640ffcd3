"""What a request of a transaction does to which item, however many of them it does at once.

    deeds(operation, kwargs)                     # ["mark p3", "mark p4"]: also of a batch, and of a body of HTTP
    with dying_at(monkeypatch, "decision"):      # the process dies at the first request that does this
    hit(monkeypatch, from_deed("mark p3", 2))    # this request and the next one

So a test says its moment in words, which are true whether writes are sent one by one or in batches. The words:

``header``, ``row``        the header of a transaction is created; rows beside it are stored
``renew``                  its lease is renewed
``mark KEY``               an item gets its mark; a new item a placeholder
``decision``               the native transaction that commits
``abort``, ``end``, ``clean``
                           the header becomes aborted or finished; it is noted that nothing is left to do
``finish KEY``, ``drop KEY``
                           a mark is applied to its item, or removed from it
"""

from __future__ import annotations

import itertools
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._io import transaction_record
from tests.support.parties import in_thread
from tests.support.transaction_models import dying_where, survive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

    from tests.support.transaction_models import Process

#: What a change of a header is called, by the attribute or the state that it sets.
_OF_HEADERS: Final = {"'clean'": "clean", "'aborted'": "abort", "'finished'": "end", "'beat'": "renew"}
_KEY: Final = re.compile(r'WHERE "\w+" = \?')


def deeds(operation: str, kwargs: Mapping[str, Any]) -> list[str]:
    """Return what a request does, in its order; nothing for a read."""
    if operation == "BatchExecuteStatement":
        return [_of_statement(each) for each in kwargs["Statements"]]
    if operation == "TransactWriteItems":
        actions = [next(iter(each.values())) for each in kwargs["TransactItems"]]
        headers = [each for each in actions if "from" in str(each.get("ConditionExpression"))]
        if any("'committed'" in str(each) or "'finished'" in str(each) for each in headers):
            return ["decision"]
        return [_of_write("UpdateItem", each) for each in actions if each not in headers]
    return [_of_write(operation, kwargs)] if operation in ("PutItem", "UpdateItem", "DeleteItem") else []


def _of_write(operation: str, kwargs: Mapping[str, Any]) -> str:
    item, values = kwargs.get("Item", {}), str(kwargs.get("ExpressionAttributeValues", {}))
    key = _text(kwargs.get("Key", item))
    if transaction_record.STATE in item:
        return "header"
    if transaction_record.CONTENT in item:
        return "row"
    if "#state = :from" in kwargs.get("ConditionExpression", ""):
        return next(deed for sets, deed in _OF_HEADERS.items() if sets in str(kwargs))
    return _of_intent(
        key,
        is_intent="'intent'" in values,
        names=str(kwargs.get("ExpressionAttributeNames", {})),
        is_removed="REMOVE" in kwargs.get("UpdateExpression", "") or operation == "DeleteItem",
    )


def _of_statement(statement: Mapping[str, Any]) -> str:
    text, parameters = statement["Statement"], statement["Parameters"]
    before = text[: _KEY.search(text).start()].count("?")  # type: ignore[union-attr]
    return _of_intent(
        _text({"": parameters[before]}),
        is_intent="'intent'" in str(parameters[:before]),
        names=text.replace('"', "'"),
        is_removed="REMOVE" in text or text.startswith("DELETE"),
    )


def _of_intent(key: str, *, is_intent: bool, names: str, is_removed: bool) -> str:
    if is_intent:
        return f"mark {key}"
    if is_removed and "'tx'" in names and "'id'" in names:
        return f"{'drop' if 'ghost' in names else 'finish'} {key}"
    return f"write {key}"


def _text(key: Mapping[str, Any]) -> str:
    return str(next(iter(next(iter(key.values())).values())))


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, deed: str, *, is_answer_lost: bool = False) -> Iterator[Process]:
    """Let all requests through until one does this; at that one the process dies. See `dying_after`."""
    with dying_where(
        monkeypatch, lambda _, operation, kwargs: deed in deeds(operation, kwargs), is_answer_lost=is_answer_lost
    ) as process:
        yield process
        assert process.is_dead, (deed, [deeds(*each) for each in process.sent])


def die_at(monkeypatch: pytest.MonkeyPatch, deed: str, call: Callable[[], object]) -> None:
    """Call in a thread of its own, in a process that dies at the first request that does this."""
    with dying_at(monkeypatch, deed):
        in_thread(lambda: survive(call))


def from_deed(deed: str, times: float = float("inf")) -> Callable[[int, str, Mapping[str, Any]], bool]:
    """Return what tells, of a request after the other, whether it does this for the first time, or follows that one."""
    seen, numbers = list[str](), itertools.count(1)  # each thread that sends gets another number

    def is_hit(_: int, operation: str, kwargs: Mapping[str, Any]) -> bool:
        if not seen and deed not in deeds(operation, kwargs):
            return False
        seen.append(operation)
        return next(numbers) <= times

    return is_hit
