"""No two items have the same unique value, and each value has one row."""

from __future__ import annotations

import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import PutError

from pynamo_locking import TransactWrite, transaction
from pynamo_locking.exceptions import NotUnique, StaleVersion
from tests.support.models import Locks
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import EVERY, Member, Uniques, rows

if TYPE_CHECKING:
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


def test_unknown(model: Any) -> None:
    model("a", email="x").save()
    model("a").update([model.email.set("y")], add_version_condition=False)
    assert rows() == {"y": "a"}
    model("a", email="z").save(add_version_condition=False)
    assert rows() == {"z": "a"}
    model("a").delete(add_version_condition=False)
    assert rows() == {}


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
