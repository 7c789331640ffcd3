"""What SECURITY.md says of values: in which texts, events and log lines those of items appear, and in which never."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection

from pynamo_locking import LockableModel, LockAttribute, NamedLock, TransactWrite, VersionAttribute, events, transaction
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    CorruptRow,
    InvalidInput,
    ItemLocked,
    LockLost,
    LockTimeout,
    NotUnique,
    OutcomeUnknown,
    OverlapError,
    StaleVersion,
)
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.telemetry import logs
from pynamo_locking.unique import UniqueTable
from pynamo_locking_testing import MemoryDynamoDB, held_by_other, lose_lock, lost_responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).parents[3]
SECRET: Final = "s3cret-0815"


class Names(UniqueTable):
    class Meta:
        table_name = "names"


class Person(LockableModel):
    class Meta:
        table_name = "people"
        unique = ("email",)
        unique_table = Names

    key = UnicodeAttribute(hash_key=True)
    secret = UnicodeAttribute(null=True)
    email = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Locks(NamedLock):
    class Meta:
        table_name = "locks"


class Stay(IntervalMixin, LockableModel):
    class Meta:
        table_name = "stays"
        lock_table = Locks
        interval = ("begin", "end")

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    secret = UnicodeAttribute(null=True)
    version = VersionAttribute()


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    with MemoryDynamoDB():
        for model in (Names, Locks, Person, Stay):
            model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        Person("p-1", secret=SECRET).save()
        yield


def save_stale() -> None:
    stale = Person.get("p-1")
    Person.get("p-1").save()
    stale.save()


def save_stale_in_a_transaction() -> None:
    stale = Person.get("p-1")
    Person.get("p-1").save()
    with TransactWrite(connection=Connection()) as native:
        native.save(stale)


def save_stale_in_a_batch() -> None:
    stale = Person.get("p-1")
    Person.get("p-1").save()
    with Person.guarded_batch() as batch:
        batch.save(stale)


def commit_stale() -> None:
    with transaction() as tx:
        person = tx.get(Person, "p-1")
        Person.get("p-1").save()
        tx.save(person)


def save_on_a_false_condition() -> None:
    Person.get("p-1").save(condition=Person.secret != SECRET)


def save_beside_a_holder() -> None:
    with held_by_other(Person.locked("p-1")):
        Person.get("p-1").save()


def wait_for_a_holder() -> None:
    with held_by_other(Person.locked("p-1")), Person.locked("p-1", wait=0):
        pass


def save_after_a_loss() -> None:
    with Person.locked("p-1") as lock:
        lose_lock(lock)
        lock.item.save()


def save_without_an_answer() -> None:
    person = Person.get("p-1")
    with lost_responses(Person, "p-1"):
        person.save()


def overlap() -> None:
    """Two rows with the same attribute, whose intervals overlap."""
    for begin in (1, 2):
        Stay.intervals.insert_disjoint([Stay("blue", begin, end=815, secret=SECRET)])


#: What fails, and its error. No value of an item is in its text.
SILENT: Final = {
    save_stale: StaleVersion,
    save_stale_in_a_transaction: StaleVersion,
    save_stale_in_a_batch: BatchError,
    commit_stale: StaleVersion,
    save_on_a_false_condition: Conflict,
    save_beside_a_holder: ItemLocked,
    wait_for_a_holder: LockTimeout,
    save_after_a_loss: LockLost,
    save_without_an_answer: OutcomeUnknown,
    overlap: OverlapError,
}


@pytest.mark.parametrize(("fail", "error"), SILENT.items(), ids=lambda each: each.__name__)
def test_values_of_items_are_in_no_text(
    fail: Callable[[], None], error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Not in that of the error and its context, not in an event, not in a line of the log."""
    heard: list[object] = []
    with (
        caplog.at_level(logging.DEBUG, "pynamo_locking"),
        events.subscribe(heard.append),
        logs.install(),
        pytest.raises(error) as raised,
    ):
        fail()
    lines = [record.getMessage() for record in caplog.records]
    assert [text for text in (str(raised.value), repr(raised.value), *map(repr, heard), *lines) if SECRET in text] == []


def take_a_value() -> None:
    for key in ("p-2", "p-3"):
        Person(key, email=SECRET).save()


def pass_a_wrong_value() -> None:
    Person.attach(SECRET)


def pass_a_wrong_argument() -> None:
    Person.locked("p-1", permits=SECRET)  # type: ignore[arg-type]


def read_a_broken_row() -> None:
    with Person.locked("p-1"):
        pass
    broken = {**Person.lock_state("p-1").raw, "next": {"S": SECRET}}  # type: ignore[dict-item]
    Connection().client.update_item(  # type: ignore[attr-defined]
        TableName="people",
        Key={"key": {"S": "p-1"}},
        UpdateExpression="SET #l = :l",
        ExpressionAttributeNames={"#l": "lock"},
        ExpressionAttributeValues={":l": {"M": broken}},
    )
    Person.locked("p-1").acquire()


def overlap_at_a_value() -> None:
    for begin in (1, 2):
        Stay.intervals.insert_disjoint([Stay("blue", begin, end=815)])


#: What fails, and its error. The value is in its text.
SAYING: Final = {
    take_a_value: NotUnique,
    overlap_at_a_value: OverlapError,
    pass_a_wrong_value: InvalidInput,
    pass_a_wrong_argument: ConfigurationError,
    read_a_broken_row: CorruptRow,
}


@pytest.mark.parametrize(("fail", "error"), SAYING.items(), ids=lambda each: each.__name__)
def test_the_page_names_each_error_whose_text_has_a_value(fail: Callable[[], None], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{SECRET}|815"):
        fail()
    rows = re.findall(r"^\| text(.*?)\|", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert any(f"`{error.__name__}`" in row for row in rows)
