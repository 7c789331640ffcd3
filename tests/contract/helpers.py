"""Terse low-level requests for the contract tests, and the engines' known deviations from DynamoDB."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from certify.contract.rows import CANCELED, INVALID, REFUSED, Rows, plain_item, wire_item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

__all__ = ["CANCELED", "INVALID", "REFUSED", "Table", "deviates", "plain_item", "refused", "wire_item"]

#: What an engine lets pass, or does otherwise, although DynamoDB does not. The tests assert the deviation,
#: so a mended engine shows.
DEVIATIONS: dict[str, set[str]] = {
    "accepts a wrong key type in GetItem": {"moto"},
    "accepts an empty key in UpdateItem": {"moto"},
    "accepts an empty transaction": {"moto"},
    "accepts transactions above 4 MB": {"moto"},
    "accepts conditions above 4 KB": {"moto"},
    "accepts conditions of more than 300 operators": {"moto", "dynoxide"},
    "accepts maps 33 levels deep": {"moto"},
    "accepts numbers of 39 digits": {"moto"},
    "accepts a sum of three terms in SET": {"moto"},
    "accepts REMOVE below a missing map": {"dynoxide"},
    "crashes on an update of 320 clauses": {"moto"},
    "enables TTL twice": {"moto", "dynoxide"},
    "ignores projections in TransactGetItems": {"moto"},
    "adds the key to projections in TransactGetItems": {"dynoxide"},
    "refuses items above 405,000 bytes": {"moto"},
    "checks conditions before it looks for one item written twice": {"dynamodb-local"},
}


def deviates(engine: Engine, deviation: str) -> bool:
    return engine.name in DEVIATIONS[deviation]


class Table(Rows):
    """A new table with the key ``pk`` on an engine. Every method is one request; ``pk`` is "a" unless given."""

    def __init__(self, engine: Engine, hash_type: str = "S") -> None:
        super().__init__(engine.client(), engine.create_table(hash_type))
        self.engine = engine


class Refusal:
    """The error answer caught by ``refused``."""

    response: dict[str, Any]

    @property
    def message(self) -> str:
        text: str = self.response["Error"]["Message"]
        return text

    @property
    def codes(self) -> list[str]:
        return [reason["Code"] for reason in self.response["CancellationReasons"]]


@contextmanager
def refused(code: str = REFUSED, *, unless: bool = False) -> Iterator[Refusal]:
    """The request inside must fail with this code; where the engine deviates (``unless``), it must go
    through.
    """
    refusal = Refusal()
    if unless:
        yield refusal
        return
    with pytest.raises(ClientError) as caught:
        yield refusal
    refusal.response = dict(caught.value.response)
    assert refusal.response["Error"]["Code"] == code, refusal.response
