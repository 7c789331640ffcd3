"""No two items have the same unique value, and each value has one row."""

from __future__ import annotations

import contextvars
import itertools
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask
from pynamodb.exceptions import PutError

from pynamo_locking import TransactWrite, transaction
from pynamo_locking.contrib.flask import etag, if_match
from pynamo_locking.exceptions import BatchError, ConfigurationError, Conflict, NotUnique, StaleVersion
from tests.support.models import Locks
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import EVERY, Member, Uniques, rows
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import Transaction
    from tests.engines.engine import Engine


@pytest.fixture(params=EVERY, ids=lambda model: model.__name__)
def model(request: pytest.FixtureRequest, cheap: Engine) -> Any:
    cheap.bind(Uniques, Locks, Transactions, *EVERY)
    return request.param


def test_a_value_that_another_item_has_is_refused(model: Any) -> None:
    model("a", email="x").save()
    with pytest.raises(NotUnique) as refused:
        model("b", email="x").save()
    assert isinstance(refused.value, PutError)
    assert refused.value.fields == ("email",)
    assert refused.value.values == ("x",)
    assert refused.value.holder == {"id": "a"}
    assert rows() == {"x": "a"}


def test_changed(model: Any) -> None:
    item = model("a", email="x")
    item.save()
    item.email = "y"
    item.save()
    assert rows() == {"y": "a"}
    item.update([model.email.set("z"), model.age.set(3)])
    assert (item.email, item.age, rows()) == ("z", 3, {"z": "a"})
    item.update([model.email.remove()])
    assert rows() == {}
    item.email = "x"
    item.save()
    assert rows() == {"x": "a"}
    item.delete()
    assert rows() == {}


def in_transaction(act: Callable[[Transaction], object]) -> None:
    with transaction() as tx:
        act(tx)


@pytest.mark.parametrize(
    ("by", "way"),
    [
        *itertools.product(("alone", "transaction", "TransactWrite"), ("save", "update", "remove", "delete")),
        *itertools.product(("batch",), ("save", "delete")),
    ],
)
def test_a_write_that_does_not_check_the_version_is_refused(model: Any, way: str, by: str) -> None:
    """It does not know which values the item gives up. Nothing is sent, and the error says what to do."""
    model("a", email="x").save()
    item = model("a", email="y")
    arguments = {"update": [[model.email.set("y")]], "remove": [[model.email.remove()]]}.get(way, [])
    name = "update" if way == "remove" else way

    def act(writer: Any) -> None:
        getattr(writer, name)(*([] if writer is item else [item]), *arguments, add_version_condition=False)

    def native() -> None:
        with TransactWrite(connection=model._get_connection().connection) as write:
            act(write)

    def batch() -> None:
        with model.guarded_batch() as guarded:
            act(guarded)

    ways = {"alone": lambda: act(item), "transaction": lambda: in_transaction(act), "TransactWrite": native}
    with count_requests() as sent, pytest.raises((ConfigurationError, BatchError)) as refused:
        ways.get(by, batch)()
    error = refused.value.results[0].error if isinstance(refused.value, BatchError) else refused.value
    assert isinstance(error, ConfigurationError)
    assert re.search(r"must be unique.*does not check the version.*get\(\) the item first", str(error))
    assert sent.total == 0
    assert rows() == {"x": "a"}


def test_what_has_nothing_to_do_with_a_value_needs_no_check(model: Any) -> None:
    """An update of other attributes, and a write of an item that its transaction has read."""
    model("a", email="x").save()
    model("a").update([model.age.set(3)], add_version_condition=False)
    model("a").touch(add_version_condition=False)
    with transaction() as tx:
        item = tx.get(model, "a")
        item.email = "y"
        tx.save(item, add_version_condition=False)
    assert (model.get("a").age, rows()) == (3, {"y": "a"})


def test_a_copy_that_was_read_in_part(model: Any) -> None:
    """It does not show the values that it gives up: the error says what to do."""
    model("a", email="x").save()
    part = model.get("a", attributes_to_get=["id", "version", "version_write_id"])
    for write in (part.delete, lambda: part.update([model.email.set("y")])):
        with pytest.raises(Conflict, match=r"unique values of the stored item: refresh\(\) it first"):
            write()
    part.refresh()
    part.update([model.email.set("y")])
    assert rows() == {"y": "a"}


def test_an_etag_names_a_version_and_no_values(model: Any) -> None:
    """So the item is read, and written if it still has the version."""
    model("a", email="x").save()
    request_ = Flask(__name__).test_request_context(headers={"If-Match": f'"{etag(model.get("a"))}"'})
    with request_:
        if_match(model, "a").update([model.email.set("y")])
    assert rows() == {"y": "a"}
    with request_, pytest.raises(StaleVersion):
        if_match(model, "a").update([model.email.set("z")])


def test_transactions(model: Any) -> None:
    with transaction() as tx:
        tx.save(model("a", email="x"))
        tx.save(model("b", email="y"))
    assert rows() == {"x": "a", "y": "b"}
    with transaction() as tx:
        a, b = tx.get(model, "a"), tx.get(model, "b")
        a.email, b.email = b.email, a.email
        tx.save(a)
        tx.save(b)
    assert rows() == {"y": "a", "x": "b"}
    with pytest.raises(NotUnique), transaction() as tx:
        tx.save(model("c", email="y"))
    with transaction() as tx:
        tx.delete(model.get("a"))
        tx.update(model.get("b"), [model.email.set("y")])
    assert rows() == {"y": "b"}


def test_transact_write(model: Any) -> None:
    connection = model._get_connection().connection
    with TransactWrite(connection=connection) as tx:
        tx.save(model("a", email="x"))
        tx.save(model("b", email="y"))
    assert rows() == {"x": "a", "y": "b"}
    a, b = model.get("a"), model.get("b")
    a.email, b.email = b.email, a.email
    with TransactWrite(connection=connection) as tx:
        tx.save(a)
        tx.save(b)
    assert rows() == {"y": "a", "x": "b"}
    with pytest.raises(NotUnique), TransactWrite(connection=connection) as tx:
        tx.save(model("c", email="y"))


def test_long(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_long_from(monkeypatch)
    with transaction(Transactions) as tx:
        for number in range(6):
            tx.save(Member(f"m{number}", email=f"x{number}"))
    assert rows() == {f"x{number}": f"m{number}" for number in range(6)}
    with pytest.raises(NotUnique), transaction(Transactions) as tx:
        for number in range(6):
            tx.save(Member(f"n{number}", email=f"x{number + 5}"))
    with transaction(Transactions) as tx:
        for number in range(6):
            tx.save(Member(f"n{number}", email=f"z{number}"))
            tx.delete(Member.get(f"m{number}"))
    assert rows() == {f"z{number}": f"n{number}" for number in range(6)}


def exchange(
    tx: Any, model: Any, one: str, other: str, *, between: Any = lambda: None, then: Any = lambda: None
) -> None:
    first = tx.get(model, one)
    between()
    second = tx.get(model, other)
    first.email, second.email = second.email, first.email
    tx.save(first)
    tx.save(second)
    then()


exchanges = pytest.mark.parametrize(
    ("moment", "others"), [("between", "ab"), ("then", "ab"), ("then", "bc"), ("between", "bc")]
)


@exchanges
def test_values_that_were_exchanged_meanwhile(model: Any, moment: str, others: str) -> None:
    """An item whose copy is stale seems to want the value of another one: that is `StaleVersion`, and retried."""
    for name, email in zip("abc", "xyz", strict=True):
        model(name, email=email).save()

    def others_exchange() -> None:
        with transaction() as tx:
            exchange(tx, model, *others)

    meanwhile = partial(contextvars.Context().run, others_exchange)

    if (moment, others) == ("between", "bc"):  # the copies are of one moment
        with transaction() as tx:
            exchange(tx, model, "a", "b", between=meanwhile)
        assert rows() == {"z": "a", "x": "b", "y": "c"}
        return
    with pytest.raises(StaleVersion), transaction() as tx:
        exchange(tx, model, "a", "b", **{moment: meanwhile})
    with pytest.raises(NotUnique), transaction() as tx:
        tx.save(model("d", email="x"))
        exchange(tx, model, "a", "b")


@exchanges
@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("model", [Member], indirect=True)
def test_values_that_were_exchanged_during_a_long_commit(
    monkeypatch: pytest.MonkeyPatch, moment: str, others: str
) -> None:
    make_long_from(monkeypatch, 2)  # each of them has two items and the rows of two values
    test_values_that_were_exchanged_meanwhile(Member, moment, others)
