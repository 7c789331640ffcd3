"""The checks of `pynamo_locking.certify.contract` as tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.certify.contract import Rows
    from tests.contract.helpers import Table

#: What engines do otherwise than DynamoDB, although this package needs it. Asserted, so a mended engine shows.
FAILURES: Final[dict[str, set[str]]] = {
    "moto": {
        "a_map_and_an_entry_of_it_overlap",
        "a_resent_success_does_not_look_at_its_conditions_again",
        "numbers_and_texts_have_no_order",
        "the_same_token_applies_once",
        "the_same_token_with_other_content_is_refused",
        "the_size_of_a_missing_path_compares_with_nothing",
    }
}


def asked(check: Callable[[Rows], None]) -> Callable[[Table], None]:
    """Return a test that asks each engine."""

    def test(table: Table) -> None:
        _ask(check, table)

    return _named(test, check)


def asked_at_once(check: Callable[[Rows], None]) -> Callable[[Table], None]:
    """Return a test that asks each engine that takes concurrent requests as DynamoDB does."""

    def test(concurrent_table: Table) -> None:
        _ask(check, concurrent_table)

    return _named(test, check)


def _named(test: Callable[[Table], None], check: Callable[[Rows], None]) -> Callable[[Table], None]:
    test.__name__, test.__doc__ = f"test_{check.__name__}", check.__doc__
    return test


def _ask(check: Callable[[Rows], None], table: Table) -> None:
    if check.__name__ in FAILURES.get(table.engine.name, ()):
        with pytest.raises((AssertionError, ClientError, TypeError, ValueError)):  # it fails, or the engine crashes
            check(table)
    else:
        check(table)
