"""`check_unique` finds what writers without rows have left, and `repair_unique` mends it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute
from pynamodb.models import Model

from pynamo_locking import VersionedMixin, transaction
from pynamo_locking.exceptions import ConfigurationError, NotUnique
from tests.support.deeds import dying_at
from tests.support.models import Locks, declare
from tests.support.parties import shifted_clock
from tests.support.shell import prepared
from tests.support.transaction_models import Purse, Transactions, make_long_from, survive
from tests.support.unique_models import EVERY, Member, Session, Uniques, User, rows, with_email
from tests.support.wire import Send, count_requests, intercepted

if TYPE_CHECKING:
    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Uniques, Locks, Transactions, Purse, *EVERY)


#: The users, as a program without this package sees them.
Stranger = declare(
    "Stranger", Model, table_name=User.Meta.table_name, hash_key="id", version=NumberAttribute(null=True), texts="email"
)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("table_name", "host", "region", "aws_access_key_id", "aws_secret_access_key"):
        monkeypatch.setattr(Stranger.Meta, name, getattr(User.Meta, name, None), raising=False)
    monkeypatch.setattr(Stranger, "_connection", None)
    return Stranger


def kinds(model: Any) -> list[tuple[str, tuple[Any, ...], bool]]:
    return sorted((each.kind, each.values, each.is_repaired) for each in model.check_unique().problems)


def test_nothing_to_mend() -> None:
    """Items with their rows, those without a value, and rows of other models in the same table."""
    for number in range(4):
        User(f"u{number}", email=f"x{number}", tenant="t", name=f"n{number}").save()
        Member(f"m{number}", email=f"x{number}").save()
    User("none").save()
    report = User.repair_unique()
    assert (report.items, report.rows, report.problems, report.is_sound) == (5, 8, (), True)


def test_items_without_rows_get_them(stranger: Any) -> None:
    """The way to begin with a table that has items."""
    for number in range(3):
        stranger(f"u{number}", email=f"x{number}").save()
    assert kinds(User) == [("missing row", (f"x{number}",), False) for number in range(3)]
    report = User.repair_unique()
    assert [problem.is_repaired for problem in report.problems] == [True] * 3
    assert report.is_sound
    assert rows() == {"x0": "u0", "x1": "u1", "x2": "u2"}
    assert kinds(User) == []
    with pytest.raises(NotUnique):
        User("new", email="x1").save()


def test_rows_without_items_are_removed(stranger: Any) -> None:
    """Of an item that was deleted, and of one that was given another value."""
    User("a", email="x").save()
    User("b", email="y").save()
    stranger("a").delete()
    stranger("b").update([stranger.email.set("z")])
    found = User.repair_unique().problems
    assert sorted(((each.kind, each.values, each.holder, each.items) for each in found), key=repr) == [
        ("missing row", ("z",), None, ({"id": "b"},)),
        ("stray row", (), {"id": "a"}, ()),
        ("stray row", (), {"id": "b"}, ()),
    ]
    assert rows() == {"z": "b"}


def test_a_row_goes_to_the_item_that_has_the_value(stranger: Any) -> None:
    """Its holder has it no more."""
    User("a", email="x").save()
    stranger("a").update([stranger.email.remove()])
    stranger("b", email="x").save()
    assert User.repair_unique().is_sound
    assert rows() == {"x": "b"}


def test_two_items_with_one_value_are_reported(stranger: Any) -> None:
    """And are set right by changing one of them, which leaves the row of the other one alone."""
    User("a", email="x").save()
    stranger("b", email="x", version=1).save()
    [found] = User.repair_unique().problems
    assert (found.kind, found.fields, found.values, found.is_repaired) == ("duplicate", ("email",), ("x",), False)
    assert sorted(key["id"] for key in found.items) == ["a", "b"]
    with pytest.raises(NotUnique):
        User("c", email="x").save()
    user = User.get("b")
    user.email = "y"
    user.save()
    assert rows() == {"x": "a", "y": "b"}
    assert kinds(User) == []


def test_what_has_expired_is_none_of_its_business() -> None:
    """Neither the item nor its row."""
    with shifted_clock() as clock:
        clock.shift = -3600
        Session("a", email="x", expires=timedelta(minutes=1)).save()
    Session("b", email="x").save()
    assert rows() == {"x": "b"}
    assert kinds(Session) == []


def test_a_row_is_not_given_to_an_item_that_has_expired(cheap: Engine) -> None:
    """It has the value still, and so has another item, which gets the row."""
    Session("a", email="x", expires=timedelta(hours=-1)).save()
    Session("b").save()
    cheap.client().update_item(
        TableName=Session.Meta.table_name,
        Key={"id": {"S": "b"}},
        UpdateExpression="SET email = :x",
        ExpressionAttributeValues={":x": {"S": "x"}},
    )
    assert kinds(Session) == [("missing row", ("x",), False)]
    assert Session.repair_unique().is_sound
    assert rows() == {"x": "b"}


def expiries() -> set[Any]:
    """When the rows of unique values expire."""
    return {row.expires for row in Uniques.scan(consistent_read=True, include_expired=True)}


def test_a_row_expires_with_its_item() -> None:
    """A row that was lost gets the time of its item; one of another time is found, and mended."""
    Session("a", email="x", expires=timedelta(hours=1)).save()
    [row] = Uniques.scan(consistent_read=True)
    row.delete()
    assert Session.repair_unique().is_sound
    assert expiries() == {Session.get("a").expires}, "the row was written with another time of expiry than its item has"

    [row] = Uniques.scan(consistent_read=True)
    row.expires = None
    row.save()
    assert kinds(Session) == [("missing row", ("x",), False)]
    assert Session.repair_unique().is_sound
    assert expiries() == {Session.get("a").expires}
    assert kinds(Session) == []


def test_every_item_and_row_is_seen_as_it_is_now() -> None:
    """The scans are consistent: a row of just now would be missing otherwise."""
    User("a", email="x").save()
    with count_requests() as counted:
        assert kinds(User) == []
    assert [body.get("ConsistentRead") for operation, body in counted.bodies if operation == "Scan"] == [True, True]


def test_a_stray_row_that_is_taken_meanwhile_was_not_mended(stranger: Any) -> None:
    """Between the look and the repair it was removed, and another item has got the value: nothing is wrong then."""
    User("a", email="x").save()
    stranger("a").delete()
    left = [True]

    def answer(send: Send, operation: str, _: Any) -> Any:
        answered = send()
        if operation == "TransactGetItems" and left:
            left.clear()
            [row] = Uniques.scan(consistent_read=True)
            row.delete()
            User("b", email="x").save()
        return answered

    with intercepted(answer):
        assert User.repair_unique().problems == ()
    assert rows() == {"x": "b"}


def test_only_models_with_unique_values() -> None:
    """Others have nothing to look at."""
    with pytest.raises(ConfigurationError, match=r"Meta\.unique"):
        Purse.check_unique()


def test_beside_a_long_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has marked and not finished is finished before it is judged."""
    make_long_from(monkeypatch)

    def commit() -> None:
        with transaction(Transactions) as tx:
            for number in range(6):
                tx.save(Member(f"m{number}", email=f"x{number}"))

    with dying_at(monkeypatch, "decision", is_answer_lost=True):
        assert not survive(commit)
    assert kinds(Member) == []
    assert rows() == {f"x{number}": f"m{number}" for number in range(6)}


#: One of two hierarchies in a table, of which this process knows one.
Pet = with_email("Pet", VersionedMixin, kind=DiscriminatorAttribute())


class Dog(Pet, discriminator="dog"):
    """A kind of it."""


def test_an_item_of_an_unknown_kind_is_none_of_its_business(cheap: Engine) -> None:
    """It is not one of this model, whatever it is; also an item without a kind."""
    cheap.bind(Pet)
    Dog("a", email="x").save()
    for other in ({"kind": {"S": "plane"}}, {}):
        place = cheap.client(), Pet.Meta.table_name
        place[0].put_item(TableName=place[1], Item={"id": {"S": f"b{len(other)}"}, "email": {"S": "x"}, **other})
    for report in (Pet.check_unique(), Dog.repair_unique()):
        assert (report.items, report.rows, report.problems) == (1, 1, ())


def test_from_the_command_line(
    cheap: Engine, stranger: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong, with the exit code 1; what was mended; what is left to people."""
    shell, model = prepared(cheap, capsys, monkeypatch), "tests.support.unique_models:User"
    User("a", email="x").save()
    assert shell.answer("unique", "check", model) == {"items": 1, "rows": 1, "problems": [], "is_sound": True}
    stranger("b", email="y").save()
    assert shell.answer("unique", "check", model, code=1)["problems"][0]["kind"] == "missing row"
    code, out, _ = shell.run("unique", "repair", model, "--yes")
    assert (code, "items: 2, rows: 1, problems: 1" in out, "missing row" in out) == (0, True, True)
    stranger("c", email="y").save()
    [problem] = shell.answer("unique", "repair", model, "--yes", code=1)["problems"]
    assert (problem["kind"], problem["values"], problem["holder"]) == ("duplicate", ["y"], {"id": "b"})
    assert shell.error("unique", "check", "tests.support.transaction_models:Purse")["exit_code"] == 78
