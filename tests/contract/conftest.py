"""A table on each engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ON_AWS
from tests.contract.helpers import Table

if TYPE_CHECKING:
    from tests.engines.engine import Engine

#: Of what no emulator has.
collect_ignore: Final = [] if ON_AWS else ["test_aws_alone.py"]

#: What moto does otherwise than DynamoDB, although this package needs it: these tests have to fail there, so that a
#: mended moto shows.
MOTO_DIFFERS: Final = {
    "test_a_map_and_an_entry_of_it_overlap",
    "test_a_resent_success_does_not_look_at_its_conditions_again",
    "test_numbers_and_texts_have_no_order",
    "test_the_same_token_applies_once",
    "test_the_same_token_with_other_content_is_refused",
    "test_the_size_of_a_missing_path_compares_with_nothing",
}


@pytest.fixture
def table(engine: Engine, request: pytest.FixtureRequest) -> Table:
    """A new table with the key ``pk``, on each engine in turn."""
    if engine.is_moto and request.node.originalname in MOTO_DIFFERS:
        request.applymarker(pytest.mark.xfail(reason="moto differs"))
    return Table(engine)


@pytest.fixture
def concurrent_table(concurrent_engine: Engine) -> Table:
    """A new table with the key ``pk``, on each engine that takes concurrent requests as DynamoDB does."""
    return Table(concurrent_engine)
