"""Errors keep their facts: in pickles, and in the classes that are PynamoDB's errors as well."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import traceback
from pathlib import Path

import pytest
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from pynamodb.attributes import ListAttribute, MapAttribute, UnicodeAttribute
from pynamodb.exceptions import (
    CancellationReason,
    DeleteError,
    DoesNotExist,
    PutError,
    PynamoDBException,
    TransactWriteError,
    UpdateError,
    VerboseClientError,
)
from pynamodb.models import Model
from urllib3.exceptions import ProtocolError

from pynamo_locking import exceptions
from pynamo_locking._core import project
from pynamo_locking.batches import BatchResult
from pynamo_locking.contrib._frameworks import MalformedPrecondition, PreconditionRequired
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    InvalidInput,
    ItemLocked,
    ItemNotFound,
    LockingError,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    also,
)
from tests.support.models import meta
from tests.unit.helpers import Account, entry, queue

REFUSED = {
    "Error": {"Code": "ConditionalCheckFailedException", "Message": "The conditional request failed"},
    "Item": {"account_id": {"S": "a-1"}},
}
REQUEST = AWSRequest(method="POST", url="http://localhost/", data=b"{}", headers={"Host": "localhost"}).prepare()
STORED = (Account, REFUSED["Item"])
FACTS = {
    LockingError: {},
    Conflict: {"stored": STORED},
    StaleVersion: {"expected": 3, "actual": None, "stored": STORED},
    ItemLocked: {"holder": "host:1:main", "ticket": 7, "stored": STORED},
    TransactionConflict: {"reasons": (None, "TransactionConflict")},
    BatchError: {"results": (BatchResult("an item", "save"),)},
    LockTimeout: {"queue": queue(entry(1), entry(2))},
    LockLost: {"reason": "evicted", "ticket": 7},
    OutcomeUnknown: {"write_id": "abc/3"},
    ItemNotFound: {},
    InvalidInput: {},
    ConfigurationError: {},
}
PYNAMODB = [PutError, UpdateError, DeleteError, TransactWriteError]
ANSWERS = {
    "ClientError": ClientError(REFUSED, "PutItem"),
    "VerboseClientError": VerboseClientError(REFUSED, "PutItem", {"request_id": "r", "table_name": "t"}),
}
NO_ANSWERS = {
    "none": None,
    "closed": ConnectionClosedError(error=ProtocolError("x"), request=REQUEST, endpoint_url="http://localhost/"),
    "timeout": ReadTimeoutError(endpoint_url="http://localhost/", error=TimeoutError("x")),
    "no connection": EndpointConnectionError(endpoint_url="http://localhost/", error=OSError(111, "refused")),
}
CAUSES = {**ANSWERS, **NO_ANSWERS}


class Renamed(Account):
    """A model whose own DoesNotExist was raised."""


def copies(error):
    yield copy.copy(error)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(error, protocol))


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("kind", FACTS)
def test_errors_pickle(kind, cause):
    """Class, message, facts and cause are there again in another process."""
    error = kind("what happened", **FACTS[kind], cause=CAUSES[cause])

    for restored in copies(error):
        assert type(restored) is kind
        assert str(restored) == "what happened"
        assert {name: getattr(restored, name) for name in FACTS[kind]} == FACTS[kind]
        assert repr(restored.cause)[:30] == repr(CAUSES[cause])[:30] or cause == "VerboseClientError"
        assert restored.cause_response_code == error.cause_response_code


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("other", PYNAMODB)
@pytest.mark.parametrize("kind", [Conflict, StaleVersion, ItemLocked, TransactionConflict, OutcomeUnknown])
def test_combined_errors_pickle(kind, other, cause):
    """So do the errors that are PynamoDB's as well, with the same class."""
    error = also(kind, other)("what happened", **FACTS[kind], cause=CAUSES[cause])

    for restored in copies(error):
        assert type(restored) is type(error)
        assert (str(restored), restored.args, restored.msg) == ("what happened", ("what happened",), "what happened")
        assert {name: getattr(restored, name) for name in FACTS[kind]} == FACTS[kind]
        assert restored.cause_response_code == error.cause_response_code


@pytest.mark.parametrize("other", PYNAMODB)
def test_handlers_of_pynamodb_errors_catch_ours(other):
    """Existing code need not know our classes."""
    error = also(ItemLocked, other)("locked", holder="h", ticket=1, cause=ANSWERS["ClientError"])

    with pytest.raises(other) as caught:
        raise error

    for kind in (ItemLocked, Conflict, LockingError, other, PynamoDBException):
        assert isinstance(caught.value, kind)
    assert caught.value.cause is ANSWERS["ClientError"]
    assert caught.value.msg == "locked"


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("other", [None, *PYNAMODB])
@pytest.mark.parametrize("kind", [Conflict, OutcomeUnknown])
def test_the_code_of_an_answer(kind, other, cause):
    """DynamoDB's code and message are where PynamoDB's users look for them; None without a response.

    botocore's HTTP errors have a response that is None.
    """
    error = (kind if other is None else also(kind, other))("x", cause=CAUSES[cause])
    told = ("ConditionalCheckFailedException", "The conditional request failed") if cause in ANSWERS else (None, None)

    assert (error.cause_response_code, error.cause_response_message) == told


def test_reasons_of_a_transaction():
    """A TransactWriteError of ours lists the reasons of its cause, and none without a cause."""
    kind = also(ItemLocked, TransactWriteError)
    reasons = [None, CancellationReason("ConditionalCheckFailed", "no")]
    cause = VerboseClientError(REFUSED, "TransactWriteItems", cancellation_reasons=reasons)

    assert kind("x", cause=cause).cancellation_reasons == reasons
    assert kind("x").cancellation_reasons == []


def test_a_combination_is_one_class():
    """The same two classes give the same class, with the documentation of ours."""
    assert also(ItemLocked, PutError) is also(ItemLocked, PutError)
    assert also(ItemLocked, PutError) is not also(ItemLocked, UpdateError)
    assert also(ItemLocked, PutError).__name__ == "ItemLocked"
    assert also(ItemLocked, PutError).__doc__ == ItemLocked.__doc__


@pytest.mark.parametrize("model", [Account, Renamed])
def test_a_missing_item_is_the_models_own_error(model):
    """`except Account.DoesNotExist` catches it, here and after a pickle; that of another model does not."""
    error = also(ItemNotFound, model.DoesNotExist)("no such item")

    for it in (error, *copies(error)):
        assert isinstance(it, ItemNotFound)
        assert isinstance(it, model.DoesNotExist)
        assert isinstance(it, DoesNotExist)
        assert not isinstance(it, (Renamed if model is Account else type("Other", (Model,), {})).DoesNotExist)
        assert str(it) == "no such item"


def test_a_missing_item_of_a_local_model_pickles_or_says_why():
    """A class made in a function cannot be pickled by name; the error about it is that of pickle."""

    class Local(Model):
        pass

    error = also(ItemNotFound, Local.DoesNotExist)("no such item")

    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(error)


def test_the_tree():
    """The bases are those that the documentation draws."""
    assert {kind: kind.__bases__ for kind in FACTS} == {
        LockingError: (Exception,),
        Conflict: (LockingError,),
        StaleVersion: (Conflict,),
        ItemLocked: (Conflict,),
        TransactionConflict: (Conflict,),
        BatchError: (LockingError,),
        LockTimeout: (LockingError, TimeoutError),
        LockLost: (LockingError,),
        OutcomeUnknown: (LockingError,),
        ItemNotFound: (LockingError,),
        InvalidInput: (LockingError, ValueError),
        ConfigurationError: (LockingError, ValueError),
    }


CARRIERS = [Conflict, StaleVersion, ItemLocked]


@pytest.mark.parametrize("other", [None, *PYNAMODB])
@pytest.mark.parametrize("kind", CARRIERS)
def test_the_current_item_is_a_fresh_one_each_time(kind, other):
    """A caller that changes what it got changes no other caller's; also after a pickle."""
    kind = kind if other is None else also(kind, other)
    error = kind("refused", stored=(Account, {"account_id": {"S": "a-1"}}))

    for it in (error, *copies(error)):
        first = it.current
        first.account_id = "changed"
        assert type(first) is Account
        assert it.current is not first
        assert it.current.account_id == "a-1"


@pytest.mark.parametrize("kind", CARRIERS)
def test_the_image_is_not_changed_through_the_current_item(kind):
    """Attributes that decode in place (lists, maps) would otherwise change it."""

    class Basket(Model):
        Meta = meta("baskets", region="us-east-1")

        pk = UnicodeAttribute(hash_key=True)
        things = ListAttribute()
        facts = MapAttribute()

    image = {"pk": {"S": "b"}, "things": {"L": [{"S": "x"}]}, "facts": {"M": {"a": {"N": "1"}}}}
    before = copy.deepcopy(image)
    error = kind("refused", stored=(Basket, image))
    for _ in range(2):
        current = error.current
        assert (current.things, current.facts["a"]) == (["x"], 1)
        current.things.append("y")
        current.facts["a"] = 2
    assert image == before


@pytest.mark.parametrize("kind", [*CARRIERS, TransactionConflict])
def test_no_stored_item(kind):
    """There is none, or DynamoDB did not say: None, and no error."""
    assert kind("refused").stored is None
    assert kind("refused").current is None


def test_facts_that_were_not_given():
    """Each has a value that says so."""
    assert (StaleVersion("x").expected, StaleVersion("x").actual) == (None, None)
    assert TransactionConflict("x").reasons == ()
    assert BatchError("x").results == ()
    assert OutcomeUnknown("x").write_id is None


@pytest.mark.parametrize("kind", [StaleVersion, TransactionConflict, BatchError])
def test_facts_are_given_by_name(kind):
    """The message is the only positional argument, so that facts cannot be confused."""
    with pytest.raises(TypeError):
        kind("what happened", 1)


def test_results_of_a_batch_keep_their_errors():
    """In a pickle too: which write failed, and why."""
    results = (
        BatchResult("one", "save"),
        BatchResult("two", "delete", also(StaleVersion, DeleteError)("old", expected=1, actual=2)),
    )

    for restored in copies(BatchError("1 of 2 writes failed", results=results)):
        assert [result.is_applied for result in restored.results] == [True, False]
        error = restored.results[1].error
        assert isinstance(error, StaleVersion)
        assert isinstance(error, DeleteError)
        assert (error.expected, error.actual) == (1, 2)


def test_what_a_retry_catches():
    """`except Conflict` takes what can be tried again, and neither an unknown outcome nor a failed batch."""
    for kind in FACTS:
        assert issubclass(kind, Conflict) == (kind in (*CARRIERS, TransactionConflict))


def test_a_fact_that_an_error_does_not_know_is_refused() -> None:
    """A misspelt one is found where the error is made."""
    with pytest.raises(TypeError, match="LockLost has no attribute 'tikcet'"):
        LockLost("lost", tikcet=1)


# The address of an entry


ERRORS = Path(__file__).parents[2] / "docs/reference/errors.md"
PAGE = "https://example.org/pynamo-locking/blob/HEAD/docs/reference/errors.md"


@pytest.fixture(autouse=True)
def without_address(monkeypatch):
    """The project as it is now, whatever is decided."""
    monkeypatch.setattr(project, "FILES", "")


@pytest.fixture
def with_address(monkeypatch):
    """The project, when it has an address."""
    monkeypatch.setattr(project, "FILES", "https://example.org/pynamo-locking/blob/HEAD")


def shown(error):
    """An error as the end of a traceback shows it, line by line."""
    return "".join(traceback.format_exception_only(error)).splitlines()


has_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 shows no notes")


@has_notes
@pytest.mark.usefixtures("with_address")
@pytest.mark.parametrize("name", [*exceptions.__all__, "PreconditionRequired"])
def test_a_traceback_ends_with_the_address_of_the_entry(name):
    """On a line of its own, below a heading that is there; and so does its copy in another process."""
    kind = getattr(exceptions, name, PreconditionRequired)
    error = kind("what happened")
    text, address = shown(error)
    page, _, anchor = address.partition("#")
    assert page == PAGE
    assert text.endswith(f"{name}: what happened")
    headings = re.findall(r"^### `(\w+)`$", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in headings if heading.lower() == anchor] == [name]
    assert {tuple(shown(restored)) for restored in copies(error)} == {tuple(shown(error))}


@has_notes
@pytest.mark.usefixtures("with_address")
def test_variants_of_an_error_share_its_entry():
    """Those that are PynamoDB's errors as well, one that only the web frameworks tell apart, and a user's own."""

    class Mine(LockLost):
        pass

    error = also(StaleVersion, PutError)("what happened")
    assert {tuple(shown(each)[1:]) for each in [error, *copies(error)]} == {(f"{PAGE}#staleversion",)}
    assert shown(MalformedPrecondition("no tags"))[1:] == [f"{PAGE}#preconditionrequired"]
    assert shown(Mine("lost"))[1:] == [f"{PAGE}#locklost"]


@pytest.mark.usefixtures("with_address")
def test_the_text_has_no_address():
    """So a text that quotes an error has none in its middle."""
    assert str(LockLost("lost")) == "lost"


def test_without_an_address_nobody_is_led_to_nowhere():
    """Neither by the error nor by its kinds."""
    assert [len(shown(LockLost("lost"))), len(shown(also(Conflict, PutError)("no")))] == [1, 1]
