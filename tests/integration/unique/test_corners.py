"""Where unique values meet the rest: intervals, events, declarations that cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, TransactWrite, VersionAttribute, VersionedMixin, events, transaction
from pynamo_locking.exceptions import ConfigurationError, NotUnique
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.unique import UniqueTable
from tests.support.interval_models import SlotLocks
from tests.support.models import Locks, declare, meta
from tests.support.transaction_models import Transactions
from tests.support.unique_models import EVERY, Uniques, User, rows

if TYPE_CHECKING:
    from tests.engines.engine import Engine


class Stay(IntervalMixin, LockableModel):
    """Rows that must not overlap, each with a code of its own."""

    class Meta:
        table_name = "unique_stays"
        lock_table = SlotLocks
        transaction_table = Transactions
        interval = ("begin", "end")
        unique = ("code",)
        unique_table = Uniques

    id = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    code = UnicodeAttribute(null=True)
    version = VersionAttribute()


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Uniques, Locks, SlotLocks, Transactions, Stay, *EVERY)


def test_intervals() -> None:
    """Inserted, moved and deleted: another key is another item, which keeps the code."""
    first = Stay("d", 1, end=5, code="x")
    Stay.intervals.insert_disjoint([first, Stay("d", 5, end=9, code="y")])
    with pytest.raises(NotUnique):
        Stay.intervals.insert_disjoint([Stay("d", 10, end=12, code="x")])
    Stay.intervals.move(first, 20, 25)
    assert Stay.check_unique().is_sound
    with TransactWrite(connection=Stay._get_connection().connection) as write:
        write.insert_disjoint(Stay, [Stay("d", 30, end=31, code="z")])
        write.move(first, 40, 45)
    assert Stay.check_unique().is_sound
    assert sorted(rows()) == ["x", "y", "z"]
    first.code = "w"
    first.save()
    first.delete()
    assert sorted(rows()) == ["y", "z"]
    assert Stay.check_unique().is_sound


def test_listeners_hear_what_was_taken() -> None:
    """By its own name."""
    heard = list[Any]()
    User("a", email="x").save()
    with events.subscribe(heard.append), pytest.raises(NotUnique):
        User("b", email="x").save()
    assert [event.error for event in heard if isinstance(event, events.WriteRefused)] == ["NotUnique"]


def declared(**options: Any) -> Any:
    """A model with that in its Meta."""

    class Thing(VersionedMixin, Model):
        Meta = meta("things", **{"unique_table": Uniques, **options})

        id = UnicodeAttribute(hash_key=True)
        kind = UnicodeAttribute(range_key=True)
        name = UnicodeAttribute(null=True)
        tags: Any = ListAttribute(null=True)
        version = VersionAttribute()

    return Thing


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"unique": "name"}, "tuple of names"),
        ({"unique": ()}, "tuple of names"),
        ({"unique": ("nothing",)}, "'nothing'"),
        ({"unique": ("tags",)}, "'tags'"),
        ({"unique": ("version",)}, "version"),
        ({"unique": (("id", "kind"),)}, "keys"),
        ({"unique": ("name", "name")}, "twice"),
        ({"unique": (("name", "name"),)}, "twice"),
        ({"unique": ("name",), "unique_table": Locks}, "UniqueTable"),
        ({"unique": ("name",), "unique_table": None}, "UniqueTable"),
    ],
)
def test_what_cannot_work_is_refused_at_the_first_write(meta: dict[str, Any], why: str) -> None:
    """And the message says what to do."""
    with pytest.raises(ConfigurationError, match=why):
        declared(**meta)("a", "b", name="x").save()


def test_a_version_is_needed() -> None:
    """By which the writer knows what it replaces."""

    class Thing(LockableModel):
        Meta = meta("things", unique=("name",), unique_table=Uniques)

        id = UnicodeAttribute(hash_key=True)
        name = UnicodeAttribute(null=True)

    with pytest.raises(ConfigurationError, match="VersionAttribute"):
        Thing.check_unique()


def test_scopes() -> None:
    """A name of its own keeps two models of one table apart, and joins two of different tables."""
    User("a", email="x").save()
    User.Meta.unique_scope = "people"
    try:
        User("b", email="x").save()
    finally:
        del User.Meta.unique_scope
    assert len(list(Uniques.scan())) == 2


def test_a_scope_that_is_no_text() -> None:
    class Numbered(User):
        class Meta(User.Meta):
            unique_scope = 5

    with pytest.raises(ConfigurationError, match="unique_scope of Numbered is a text, not 5"):
        Numbered("a", email="x").save()
    assert not rows()


def test_a_long_value_has_a_row() -> None:
    """Named by its digest."""
    User("a", email="x" * 5000).save()
    with pytest.raises(NotUnique):
        User("b", email="x" * 5000).save()
    User("b", email="x" * 4999).save()
    assert User.check_unique().is_sound


#: Rows under a prefix, in the table of the items themselves.
Beside = declare("Beside", UniqueTable, table_name="unique_app", keys=("pk", "sk"), prefix="unique#")


class Order(VersionedMixin, Model):
    """An item among others."""

    Meta = meta("unique_app", unique=("code",), unique_table=Beside)

    pk = UnicodeAttribute(hash_key=True)
    sk = UnicodeAttribute(range_key=True)
    code = UnicodeAttribute(null=True)
    version = VersionAttribute()


def test_rows_in_the_table_of_the_items(cheap: Engine) -> None:
    """Under a prefix, with names that fit into both keys; other items are left alone."""
    cheap.bind(Order)
    cheap.bind_to(Order.Meta.table_name, Beside)
    table = Order._get_connection()
    table.put_item("unique#x", "theirs", attributes={"code": {"S": "a"}, "theirs": {"S": "y"}})
    first = Order("o", "1", code="x")
    first.save()
    with pytest.raises(NotUnique) as refused:
        Order("o", "2", code="x").save()
    assert refused.value.holder == {"pk": "o", "sk": "1"}
    Order("o", "2", code="y" * 1500).save()
    with transaction() as tx:
        one, two = tx.get(Order, "o", "1"), tx.get(Order, "o", "2")
        one.code, two.code = two.code, one.code
        tx.save(one)
        tx.save(two)
    assert {row.holder["key"]["M"]["sk"]["S"] for row in Beside.scan(consistent_read=True)} == {"1", "2"}
    assert [problem.items for problem in Order.check_unique().problems] == [({"pk": "unique#x", "sk": "theirs"},)]
    one.delete()
    assert len(list(Beside.scan(consistent_read=True))) == 1
    assert table.get_item("unique#x", "theirs")["Item"]["theirs"] == {"S": "y"}
