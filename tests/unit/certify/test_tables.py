"""How `certify` removes its tables where DynamoDB cannot do so at once."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from certify import Place, Tables, tables
from certify.tables import KINDS, MARK

MARKED: Final = {"GlobalSecondaryIndexes": [{"IndexName": MARK}]}


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, "DeleteTable")


class Client:
    """Answers from lists; an error is raised. Every table is there, as described first, until the list has ended."""

    def __init__(self, described: list[Any], deleted: list[Any]) -> None:
        self._described, self._deleted = deque(described), deque(deleted)

    def describe_table(self, **_: Any) -> dict[str, Any]:
        return {"Table": self._next(self._described)}

    def delete_table(self, **_: Any) -> None:
        self._next(self._deleted)

    @staticmethod
    def _next(answers: deque[Any]) -> Any:
        answer = answers.popleft() if answers else refusal("ResourceNotFoundException")
        if isinstance(answer, Exception):
            raise answer
        return answer


def tables_with(monkeypatch: pytest.MonkeyPatch, described: list[Any], deleted: list[Any]) -> Tables:
    monkeypatch.setattr(tables, "client_of", lambda _: Client(described, deleted))
    return Tables(Place("p-", "eu-west-1", None))


ABSENT: Final = [refusal("ResourceNotFoundException")] * (len(KINDS) - 1)


@pytest.mark.parametrize(
    ("described", "deleted"),
    [
        ([], [None]),
        ([], [refusal("ResourceNotFoundException")]),
        ([{"TableStatus": "CREATING"}], [refusal("ResourceInUseException"), None]),
        ([{"TableStatus": "DELETING"}], [refusal("ResourceInUseException")]),
        ([refusal("ResourceNotFoundException")], [refusal("LimitExceededException")]),
    ],
)
def test_a_table_that_is_on_its_way_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, described: list[Any], deleted: list[Any]
) -> None:
    """DynamoDB refuses to delete a table while it is created, deleted, or too many others are."""
    made = tables_with(monkeypatch, [MARKED, *ABSENT, *described], deleted)
    assert made.remove() == made.names[:1]
    assert not made._client._deleted


def test_another_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for described, deleted in (([MARKED, *ABSENT], [refusal("AccessDenied")]), ([refusal("AccessDenied")], [])):
        with pytest.raises(ClientError, match="AccessDenied"):
            tables_with(monkeypatch, described, deleted).remove()


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that never goes is an error, not a wait for ever."""
    monkeypatch.setattr(tables, "_PATIENCE_S", 0.0)
    with pytest.raises(TimeoutError, match="within 0 s"):
        tables_with(monkeypatch, [MARKED, *ABSENT, *[{"TableStatus": "DELETING"}] * 9], []).remove()
