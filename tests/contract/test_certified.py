"""All that `python -m certify` asks of DynamoDB, asked of each engine.

moto is not asked about concurrency: under threads it loses updates and entries, lets two creators in, lets readers see
half a transaction, and now and then raises a RuntimeError ("dictionary changed size during iteration"). None of that
happens every time, so no test can assert it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from botocore.exceptions import ClientError

from certify import contract
from certify.contract import concurrency

if TYPE_CHECKING:
    from collections.abc import Callable

    from certify.contract import Rows
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


def asked(check: Callable[[Rows], None], *, at_once: bool) -> Callable[[Table], None]:
    """Return a test that asks each engine; of concurrency, each that takes concurrent requests as DynamoDB does."""

    def test(table: Table) -> None:
        if check.__name__ in FAILURES.get(table.engine.name, ()):
            with pytest.raises((AssertionError, ClientError, TypeError, ValueError)):  # it fails, or the engine crashes
                check(table)
        else:
            check(table)

    def test_at_once(concurrent_table: Table) -> None:
        test(concurrent_table)

    made = test_at_once if at_once else test
    made.__name__, made.__doc__ = f"test_{check.__name__}", check.__doc__
    return made


for module in contract.MODULES:
    for name, check in contract.checks_of(module).items():
        assert f"test_{name}" not in globals(), f"two checks are called {name}"
        globals()[f"test_{name}"] = asked(check, at_once=module is concurrency)
