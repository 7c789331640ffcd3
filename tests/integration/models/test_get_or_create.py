"""Get an item, or create it: one caller creates it, the others get it, whatever the model has."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import ExpiringMixin, TTLAttribute, VersionedMixin, transaction
from pynamo_locking.exceptions import ConfigurationError, NotUnique
from tests.support.models import Locks, declare
from tests.support.parties import in_parallel, in_thread
from tests.support.unique_models import Uniques, User
from tests.support.wire import Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from tests.engines.engine import Engine

Embedded = declare("Embedded", lock=True, version=True, texts="note")
Beside = declare("Beside", lock_table=Locks, texts="note")
Versioned = declare("Versioned", VersionedMixin, version=True, texts="note")
Expiring = declare("Expiring", ExpiringMixin, texts="note", expires=TTLAttribute(null=True))
Ranged = declare("Ranged", range_key="number", version=True, texts="note")
MODELS = (Embedded, Beside, Versioned, Expiring, Ranged)


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Locks, Uniques, User, *MODELS)


def key_of(model: Any) -> tuple[Any, ...]:
    return ("a", 7) if model is Ranged else ("a",)


@pytest.mark.parametrize("model", MODELS)
def test_the_first_call_creates_it(model):
    """With the defaults, in one read and one write; the second call gets it, in one read."""
    with count_requests() as requests:
        item, is_new = model.get_or_create(*key_of(model), defaults={"note": "first"})
    assert (item.note, is_new, requests.total) == ("first", True, 2)
    with count_requests() as requests:
        item, is_new = asyncio.run(model.aget_or_create(*key_of(model), defaults={"note": "second"}))
    assert (item.note, is_new, requests.total) == ("first", False, 1)
    item.note = "third"
    item.save()
    assert model.get(*key_of(model), consistent_read=True).note == "third"


@pytest.mark.parametrize("model", MODELS)
def test_another_caller_creates_it_meanwhile(model):
    """Between the read and the write: it is not overwritten."""
    others = iter(["other"])

    def answer(send: Send, operation: str, _arguments: dict[str, Any]) -> Any:
        if operation in ("PutItem", "UpdateItem") and (note := next(others, "")):
            in_thread(lambda: model.get_or_create(*key_of(model), defaults={"note": note}))
        return send()

    with intercepted(answer):
        item, is_new = model.get_or_create(*key_of(model), defaults={"note": "mine"})
    assert (item.note, is_new) == ("other", False)


@pytest.mark.parametrize("model", [Embedded, Versioned])
def test_a_lost_answer_is_recognised(model):
    """By the write id, so that nobody says that another caller has created it."""
    with on("UpdateItem").lose_response(), on("PutItem").lose_response():
        item, is_new = model.get_or_create("a", defaults={"note": "mine"})
    assert (item.note, is_new) == ("mine", True)


def test_of_many_callers_one_creates_it():
    """And all get the same item."""
    found = in_parallel(*[lambda n=n: User.get_or_create("a", defaults={"email": "a", "age": n}) for n in range(8)])
    assert sum(is_new for _, is_new in found) == 1
    assert len({item.age for item, _ in found}) == 1


def test_an_expired_item_is_replaced():
    """It counts as absent, although it is stored."""
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    Expiring("a", note="old", expires=past).save()
    item, is_new = Expiring.get_or_create("a", defaults={"note": "new"})
    assert (item.note, is_new) == ("new", True)
    assert Expiring.get("a").note == "new"


def test_a_value_that_another_item_has():
    """As for a save: no such item was created."""
    User("b", email="x").save()
    with pytest.raises(NotUnique):
        User.get_or_create("a", defaults={"email": "x"})
    assert User.count() == 1


def test_in_a_transaction_it_is_refused():
    """It would write before the commit."""
    with transaction(), pytest.raises(ConfigurationError, match=r"tx\.get_or_none"):
        Embedded.get_or_create("a")
    assert Embedded.count() == 0


def test_what_another_caller_has_created_is_read_consistently():
    """A replica may lack it still, and the caller would hear of a refusal in place of the item."""
    other = on("PutItem").before(lambda: Versioned("a", note="other").save())
    with count_requests() as counted, other:
        assert not Versioned.get_or_create("a")[1]
    reads = [body.get("ConsistentRead") for operation, body in counted.bodies if operation == "GetItem"]
    assert reads == [True, True]
