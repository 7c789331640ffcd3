"""The tests of PynamoDB that our classes fail, each on purpose."""

from __future__ import annotations

from typing import Final, NamedTuple


class Difference(NamedTuple):
    """Why a test fails.

    Attributes:
        test: its module and its name.
        reason: what differs on purpose.
        shows: what the failure has to say; without it the test fails for another reason.
    """

    test: str
    reason: str
    shows: str


GUARDS: Final = "a write carries a write id, and asks for the stored item in case it is refused (ALL_OLD)"
COUNTED: Final = "a write that does not check the version counts the stored one up, which only an UpdateItem can"
COMMIT: Final = "the actions carry write ids and ask for the stored items, and the transaction has a token of its own"
PLACES: Final = "a model of another Region than the connection's is refused; PynamoDB sends it to the connection's"
BATCH: Final = "batch_write() of a versioned model is refused: it would overwrite any version"

#: The name of the write ids ends so; no expected request has one.
WRITE_ID: Final = "_write_id"

#: The documentation counts them: docs/reference/compatibility.md.
DIFFERENCES: Final = [
    Difference(
        "test_model.py::ModelTestCase::test_model_version_attribute_save_with_initial_version_zero",
        GUARDS,
        "ReturnValuesOnConditionCheckFailure",  # in a checkout it shows the names alone
    ),
    Difference("test_model.py::test_model_version_attribute_save[True]", GUARDS, WRITE_ID),
    # The last request is a read there: the response that the test gives to the update has no item.
    Difference("test_model.py::test_model_version_attribute_save[False]", COUNTED, "'Key': {"),
    Difference("test_model.py::test_version_attribute_increments_on_update[True]", GUARDS, WRITE_ID),
    Difference("test_model.py::test_version_attribute_increments_on_update[False]", COUNTED, WRITE_ID),
    Difference("test_transaction.py::TestTransactWrite::test_commit", COMMIT, WRITE_ID),
    Difference(
        "integration/test_transaction_integration.py::test_transact_write__error__different_regions",
        PLACES,
        "and the connection of this transaction sends to",
    ),
    # This one is in a checkout alone.
    Difference("integration/model_integration_test.py::test_model_integration", BATCH, "batch_write() of TestModel"),
]
