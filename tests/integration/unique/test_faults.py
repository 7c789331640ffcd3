"""Lost answers, late requests, other writers: what is said is true, and rows fit their items."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError
from pynamodb.exceptions import PutError
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite, transaction
from pynamo_locking._items.unique_values import Value
from pynamo_locking._writes.unique_rows import Holder, UniqueRow
from pynamo_locking._writes.write import error_of_refusal
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    ItemLocked,
    NotUnique,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
)
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing.memory import client_error
from tests.support.models import Locks
from tests.support.parties import held_elsewhere, shifted_clock
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import EVERY, Guest, Member, Session, Uniques, User, rows
from tests.support.wire import Chosen, Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Uniques, Locks, Transactions, *EVERY)


@pytest.mark.parametrize("model", EVERY)
@pytest.mark.parametrize("lose", [Chosen.lose_response, Chosen.lose_request])
def test_a_lost_answer(model: Any, lose: Any) -> None:
    """The write is sent again, and recognises its own item and rows."""
    item = model("a", email="x")
    with lose(on("TransactWriteItems")) as lost:
        item.save()
    item.email = "y"
    with lose(on("TransactWriteItems")):
        item.save()
    with lose(on("TransactWriteItems")):
        item.update([model.email.set("z")])
    assert (lost.hits, item.email, rows()) == (1, "z", {"z": "a"})
    with lose(on("TransactWriteItems")):
        item.delete()
    assert rows() == {}


def test_an_answer_that_never_comes() -> None:
    """`resolve` tells what became of it."""
    user = User("a", email="x")
    user.save()
    user.email = "y"
    with on("TransactWriteItems", times=99).lose_response(), pytest.raises(OutcomeUnknown) as unknown:
        user.save()
    assert unknown.value.resolve() == "applied"
    assert rows() == {"y": "a"}


@pytest.mark.parametrize("model", [User, Guest])
def test_a_refused_row_says_nothing_of_an_earlier_copy(model: Any) -> None:
    """It may arrive once the value is free; under a lock in another row as well."""
    model("b", email="x").save()
    model("a").save()
    with model.locked("a") if model is Guest else contextlib.nullcontext():
        item = model.get("a")
        item.email = "x"
        with on("TransactWriteItems", times=1).delay() as late, pytest.raises(OutcomeUnknown):
            item.save()
        model.get("b").delete()
        late[0]()
    assert model.get("a", consistent_read=True).email == "x"
    assert rows() == {"x": "a"}


def given_to_another_item() -> tuple[Any, Any]:
    """The only row, which has another holder now, as another program may have stored it; and the holder before."""
    [row] = Uniques.scan(consistent_read=True)
    own = row.holder
    row.holder = {**own, "key": {"M": {"id": {"S": "b"}}}}
    row.save()
    return row, own


def test_a_row_of_another_item_is_left_out_of_no_transaction_with_a_token_of_the_caller() -> None:
    """Another call with that token has the row: DynamoDB would refuse it as another transaction."""
    user = User("a", email="x")
    user.save()
    given_to_another_item()
    connection = User._get_connection().connection
    with pytest.raises(TransactionConflict), TransactWrite("mine", connection=connection) as write:
        write.delete(user)
    assert User.count() == 1
    with TransactWrite(connection=connection) as write:
        write.delete(user)
    assert (User.count(), rows()) == (0, {"x": "b"})


def test_a_row_of_another_item_is_not_left_out_of_a_copy() -> None:
    """Without a doubt it would be. But the first copy may still arrive, and has the same token."""
    user = User("a", email="x")
    user.save()
    row, own = given_to_another_item()
    user.email = "y"
    with (
        count_requests() as sent,
        on("TransactWriteItems", times=1).delay() as late,
        pytest.raises(OutcomeUnknown) as unknown,
    ):
        user.save()
    assert sent.by_operation["TransactWriteItems"] == 2
    row.holder = own
    row.save()
    late[0]()
    assert unknown.value.resolve() == "applied"
    assert rows() == {"y": "a"}


def test_a_copy_without_an_answer_is_not_forgotten_when_the_next_is_throttled() -> None:
    """The third one finds the value taken, and the first may still arrive once the value is free."""
    User("b", email="x").save()
    copies = list[Any]()

    def answer(send: Send, operation: str, request: dict[str, Any]) -> Any:
        if operation != "TransactWriteItems":
            return send()
        copies.append(partial(send, {**request}))
        if len(copies) == 1:
            raise ReadTimeoutError(endpoint_url="test")
        if len(copies) == 2:
            raise client_error("TransactWriteItems", "ThrottlingException", "too fast", {})
        return send()

    with intercepted(answer), pytest.raises((NotUnique, OutcomeUnknown)) as told:
        User("a", email="x").save()
    User.get("b").delete()
    copies[0]()
    assert rows() == {"x": "a"}
    assert isinstance(told.value, OutcomeUnknown), f"the first copy was stored, and its caller was told: {told.value}"


def test_a_stale_copy_takes_nothing() -> None:
    """And is told why."""
    User("a", email="x").save()
    old, new = User.get("a"), User.get("a")
    new.email = "y"
    new.save()
    old.email = "z"
    with pytest.raises(StaleVersion):
        old.save()
    with pytest.raises(StaleVersion):
        old.delete()
    assert rows() == {"y": "a"}


@pytest.mark.parametrize("model", [Member, Guest])
def test_under_a_lock(model: Any) -> None:
    """The check of the lock is part of the transaction, and so is the end of an edit."""
    model("a", email="x").save()
    with model.edit("a") as item:
        item.email = "y"
    assert rows() == {"y": "a"}
    assert not model.lock_state("a").entries
    with model.locked("a") as lock:
        lock.item.email = "z"
        lock.item.save()
        lock.item.update([model.email.set("x")])
        lock.item.delete()
    assert rows() == {}


def test_a_locked_item_keeps_its_value() -> None:
    """Writers from outside are refused, and change no row."""
    Member("a", email="x").save()
    item = Member.get("a")
    with held_elsewhere(Member.locked("a")):
        item.email = "y"
        with pytest.raises(ItemLocked):
            item.save()
    assert rows() == {"x": "a"}


def test_a_taken_value_leaves_the_edit_undone() -> None:
    """And the lock is given back."""
    Member("a", email="x").save()
    Member("b", email="y").save()
    with pytest.raises(NotUnique), Member.edit("a") as item:
        item.email = "y"
    assert (rows(), Member.lock_state("a").entries) == ({"x": "a", "y": "b"}, ())


def test_what_has_expired_holds_nothing() -> None:
    """A value is free again, for others and for the same item; more time keeps it."""
    with shifted_clock() as clock:
        first = Session("a", email="x", expires=timedelta(minutes=1))
        first.save()
        clock.shift = 50
        first.expires = timedelta(minutes=1)
        first.save()
        clock.shift = 70
        with pytest.raises(NotUnique):
            Session("b", email="x").save()
        clock.shift = 120
        Session("b", email="x").save()
        assert rows() == {"x": "b"}
        first.delete()
        assert rows() == {"x": "b"}
        Session("a", email="y", expires=timedelta(minutes=1)).save()
        clock.shift = 190
        Session("a", email="z").save()
        assert rows() == {"x": "b", "z": "a"}
        Session("c", email="y").save()
        assert rows() == {"x": "b", "z": "a", "y": "c"}


def test_a_long_transaction_takes_what_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its marks replace rows that TTL has not removed yet; of those that count it says who has them."""
    make_long_from(monkeypatch)
    for model in (Session, Member):
        monkeypatch.setattr(model.Meta, "unique_scope", "people", raising=False)
    with shifted_clock() as clock:
        for i in range(9):
            Session(str(i), email=f"x{i}", expires=timedelta(minutes=1)).save()

        def take() -> None:
            with transaction() as tx:
                for i in range(9):
                    tx.save(Member(f"m{i}", email=f"x{i}"))

        with pytest.raises(NotUnique) as refused:
            take()
        assert refused.value.holder == {"id": "0"}
        assert not list(Member.scan())
        clock.shift = 70
        take()
        assert rows() == {f"x{i}": f"m{i}" for i in range(9)}
        assert Member.check_unique().is_sound


def test_what_a_long_transaction_makes_lasting_is_not_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a value loses its time of expiry together with its item, or another item gets the same value."""
    make_long_from(monkeypatch)
    with shifted_clock() as clock:
        for i in range(3):
            Session(str(i), email=f"x{i}", expires=timedelta(days=2)).save()
        with transaction(Transactions) as tx:
            for i in range(3):
                tx.update(tx.get(Session, str(i)), [Session.expires.remove()])
            assert tx.plan().path.value == "long"
        clock.shift = timedelta(days=3).total_seconds()
        for i in range(3):
            with contextlib.suppress(NotUnique):
                Session(f"late{i}", email=f"x{i}").save()
        holders = sorted((session.email, session.id) for session in Session.scan(consistent_read=True))
    assert holders == [(f"x{i}", str(i)) for i in range(3)], "two items have one unique value"


@pytest.mark.parametrize(("actions", "path"), [(100, "native"), (101, "long")])
def test_the_border_between_native_and_long(actions: int, path: str) -> None:
    """Items, their rows and the row of the idempotency key: none is forgotten where it is close."""

    def change() -> tuple[str, bool]:
        tx = Transaction(idempotency_key=f"{actions}", record=actions > 100)
        for i in range(33):  # three actions each
            item = tx.get(Member, str(i))
            item.email = f"y{i}"
            tx.save(item)
        taken = tx.plan().path.value
        tx.commit()
        return taken, tx.is_repeated

    for i in range(33):
        Member(str(i), email=f"x{i}").save()
    assert change() == (path, False)
    assert rows() == {f"y{i}": f"{i}" for i in range(33)}
    assert change()[1]


def test_several_attributes() -> None:
    """Their combination is unique; one that is missing makes it none."""
    User("a", tenant="t", name="n").save()
    User("b", tenant="t").save()
    User("c", tenant="t").save()
    with pytest.raises(NotUnique) as refused:
        User.get("b").update([User.name.set("n")])
    assert (refused.value.fields, refused.value.values) == (("tenant", "name"), ("t", "n"))
    User.get("c").update([User.name.set("m")])
    User.get("a").update([User.tenant.remove()])
    User.get("b").update([User.name.set("n")])
    assert rows() == {"m": "c", "n": "b"}


def test_a_batch_tells_which_value_was_taken() -> None:
    """By statements and one by one; in native transactions all or none."""
    User("a", email="x").save()
    with pytest.raises(BatchError) as failed, User.guarded_batch() as batch:
        batch.save(User("b", email="x"))
        batch.save(User("c", email="y"))
    assert [type(result.error) for result in failed.value.results][1:] == [type(None)]
    assert isinstance(failed.value.results[0].error, NotUnique)
    with pytest.raises(BatchError), User.guarded_batch(transactions=True) as batch:
        batch.save(User("d", email="z"))
        batch.save(User("e", email="y"))
    assert rows() == {"x": "a", "y": "c"}


def test_one_transaction_claims_a_value_once() -> None:
    """Two items of it cannot have the same."""
    with pytest.raises(NotUnique, match="'x'"), transaction() as tx:
        tx.save(User("a", email="x"))
        tx.save(User("b", email="x"))
    with pytest.raises(NotUnique), TransactWrite(connection=User._get_connection().connection) as write:
        write.save(User("a", email="x"))
        write.save(User("b", email="x"))
    assert rows() == {}


def test_a_row_that_its_own_item_has_got_meanwhile() -> None:
    """Is no value of another item: a long transaction has read the row before, and lost a race."""
    own, other = (Holder("users", {"id": {"S": key}}) for key in "ab")
    row = UniqueRow(Uniques, "x", Value(User, ("email",), ({"S": "x"},)), own)
    _, write = row.plan(PutError)
    for holder, kind in ((own, TransactionConflict), (other, NotUnique)):
        image = {"holder": holder.stored().values[0]}
        refused = error_of_refusal(write, PutError, image, Conflict("refused"))
        assert isinstance(refused, kind)
        assert isinstance(refused, PutError)


def test_a_transaction_of_a_projected_copy() -> None:
    """Which lacks the values that it gives up: they are read, or the delete is refused."""
    names = ["id", "version", "version_write_id"]
    User("a", email="x").save()
    with transaction() as tx:
        tx.update(User.get("a", attributes_to_get=names), [User.email.set("y")])
    assert rows() == {"y": "a"}
    with pytest.raises(Conflict), transaction() as tx:
        tx.delete(User.get("a", attributes_to_get=names))
    assert rows() == {"y": "a"}
    with transaction() as tx:
        tx.delete(User.get("a", attributes_to_get=[*names, "email"]))
    assert rows() == {}


def test_ways_that_leave_rows_out_are_refused() -> None:
    """PynamoDB's batches and transactions, and updates to a value that is not known beforehand."""
    user = User("a", email="x")
    user.save()
    with pytest.raises(ConfigurationError, match="guarded_batch"):
        User.batch_write(unguarded=True)
    user.email = "y"
    with (
        pytest.raises(ConfigurationError, match="TransactWrite"),
        StockTransactWrite(connection=User._get_connection().connection) as write,
    ):
        write.save(user)
    with pytest.raises(ConfigurationError, match="unique"):
        user.update([User.email.set(User.name)])
    with pytest.raises(ConfigurationError, match="unique"):
        user.update([User.email.set(User.email | "z")])
    user.email, user.age = "x", 3
    with StockTransactWrite(connection=User._get_connection().connection) as write:
        write.save(user)
    assert (rows(), User.get("a").age) == ({"x": "a"}, 3)


def test_a_row_of_another_program_stays() -> None:
    """It has no holder."""
    user = User("a", email="x")
    user.save()
    [name] = [row.name for row in Uniques.scan(consistent_read=True)]
    user.delete()
    table = Uniques._get_connection()
    table.put_item(name, attributes={"theirs": {"S": "y"}})
    with pytest.raises(ConfigurationError, match="none that pynamo_locking has"):
        User("a", email="x").save()
    assert table.get_item(name)["Item"]["theirs"] == {"S": "y"}
