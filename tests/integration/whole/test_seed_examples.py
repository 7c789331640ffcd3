# ruff: noqa: E501, RUF001 - the text is verbatim
"""Every code example of the text on optimistic locking runs unchanged but for its imports."""

from __future__ import annotations

import hashlib
import textwrap

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import UpdateError

#: PynamoDB's chapter on optimistic locking, verbatim.
TEXT = """\
Optimistic Locking

Optimistic Locking is a strategy for ensuring that your database writes are not overwritten by the writes of others. With optimistic locking, each item has an attribute that acts as a version number. If you retrieve an item from a table, the application records the version number of that item. You can update the item, but only if the version number on the server side has not changed. If there is a version mismatch, it means that someone else has modified the item before you did. The update attempt fails, because you have a stale version of the item. If this happens, you simply try again by retrieving the item and then trying to update it. Optimistic locking prevents you from accidentally overwriting changes that were made by others. It also prevents others from accidentally overwriting your changes.

Warning

  • Optimistic locking will not work properly if you use DynamoDB global tables as they use last-write-wins for concurrent updates.

See also: DynamoDBMapper Documentation on Optimistic Locking.

Version Attribute

To enable optimistic locking for a table, add a VersionAttribute to your model definition. The presence of this attribute will change the model’s behaviors:

  • save() and update() would increment the version attribute every time the model is persisted. This allows concurrent updates not to overwrite each other, at the expense of the latter update failing.

  • save(), update() and delete() would fail if they are the “latter update” (by adding to the update’s conditions). This behavior is optional since sometimes a more granular approach can be desired (see Conditioning on the version).

class OfficeEmployeeMap(MapAttribute):
    office_employee_id = UnicodeAttribute()
    person = UnicodeAttribute()

    def __eq__(self, other):
        return isinstance(other, OfficeEmployeeMap) and self.person == other.person


class Office(Model):
    class Meta:
        read_capacity_units = 1
        write_capacity_units = 1
        table_name = 'Office'
        host = "http://localhost:8000"
    office_id = UnicodeAttribute(hash_key=True)
    employees = ListAttribute(of=OfficeEmployeeMap)
    name = UnicodeAttribute()
    version = VersionAttribute()

The attribute is underpinned by an integer which is initialized with 1 when an item is saved for the first time and is incremented by 1 with each subsequent write operation.

justin = OfficeEmployeeMap(office_employee_id=str(uuid4()), person='justin')
garrett = OfficeEmployeeMap(office_employee_id=str(uuid4()), person='garrett')
office = Office(office_id=str(uuid4()), name="office", employees=[justin, garrett])
office.save()
assert office.version == 1

# Get a second local copy of Office
office_out_of_date = Office.get(office.office_id)

# Add another employee and persist the change.
office.employees.append(OfficeEmployeeMap(office_employee_id=str(uuid4()), person='lita'))
office.save()
# On subsequent save or update operations the version is also incremented locally to match the persisted value so
# there's no need to refresh between operations when reusing the local copy.
assert office.version == 2
assert office_out_of_date.version == 1

The version checking is implemented using DynamoDB conditional write constraints, asserting that no value exists for the version attribute on the initial save and that the persisted value matches the local value on subsequent writes.

Model.{update, save, delete}

These operations will fail if the local object is out-of-date.

@contextmanager
def assert_condition_check_fails():
    try:
        yield
    except (PutError, UpdateError, DeleteError) as e:
        assert isinstance(e.cause, ClientError)
        assert e.cause_response_code == "ConditionalCheckFailedException"
    except TransactWriteError as e:
        assert isinstance(e.cause, ClientError)
        assert e.cause_response_code == "TransactionCanceledException"
        assert any(r.code == "ConditionalCheckFailed" for r in e.cancellation_reasons)
    else:
        raise AssertionError("The version attribute conditional check should have failed.")


with assert_condition_check_fails():
    office_out_of_date.update(actions=[Office.name.set('new office name')])

office_out_of_date.employees.remove(garrett)
with assert_condition_check_fails():
    office_out_of_date.save()

# After refreshing the local copy our write operations succeed.
office_out_of_date.refresh()
office_out_of_date.employees.remove(garrett)
office_out_of_date.save()
assert office_out_of_date.version == 3

with assert_condition_check_fails():
    office.delete()

Conditioning on the version

To have save(), update() or delete() execute even if the item was changed by someone else, pass the add_version_condition=False parameter. In this mode, updates would perform unconditionally but would still increment the version: in other words, you could make other updates fail, but your update will succeed.

Done indiscriminately, this would be unsafe, but can be useful in certain scenarios:

  1. For save, this is almost always unsafe and undesirable.

  2. For update, use it when updating attributes for which a “last write wins” approach is acceptable, or if you’re otherwise conditioning the update in a way that is more domain-specific.

  3. For delete, use it to delete the item regardless of its contents.

For example, if your save operation experiences frequent “ConditionalCheckFailedException” failures, rewrite your code to call update with individual attributes while passing add_version_condition=False. By disabling the version condition, you could no longer rely on the checks you’ve done prior to the modification (due to what is known as the “time-of-check to time-of-use” problem). Therefore, consider adding domain-specific conditions to ensure the item in the table is in the expected state prior to the update.

For example, let’s consider a hotel room-booking service with the conventional constraint that only one person can book a room at a time. We can switch from a save to an update by specifying the individual attributes and rewriting the if statement as a condition:

- if room.booked_by:
-   raise Exception("Room is already booked")
- room.booked_by = user_id
- room.save()
+ room.update(
+   actions=[Room.booked_by.set(user_id)],
+   condition=Room.booked_by.does_not_exist(),
+   add_version_condition=False,
+ )

Transactions

Transactions are supported.

Successful

connection = Connection(host='http://localhost:8000')

office2 = Office(office_id=str(uuid4()), name="second office", employees=[justin])
office2.save()
assert office2.version == 1
office3 = Office(office_id=str(uuid4()), name="third office", employees=[garrett])
office3.save()
assert office3.version == 1

with TransactWrite(connection=connection) as transaction:
    transaction.condition_check(Office, office.office_id, condition=(Office.name.exists()))
    transaction.delete(office2)
    transaction.save(Office(office_id=str(uuid4()), name="new office", employees=[justin, garrett]))
    transaction.update(
        office3,
        actions=[
            Office.name.set('birdistheword'),
        ]
    )

try:
    office2.refresh()
except DoesNotExist:
    pass
else:
    raise AssertionError(
        'Office with office_id="{}" should have been deleted in the transaction.'
        .format(office2.office_id)
    )

assert office.version == 2
assert office3.version == 2

Failed

with assert_condition_check_fails(), TransactWrite(connection=connection) as transaction:
    transaction.save(Office(office.office_id, name='newer name', employees=[]))

with assert_condition_check_fails(), TransactWrite(connection=connection) as transaction:
    transaction.update(
        Office(office.office_id, name='newer name', employees=[]),
        actions=[Office.name.set('Newer Office Name')]
    )

with assert_condition_check_fails(), TransactWrite(connection=connection) as transaction:
    transaction.delete(Office(office.office_id, name='newer name', employees=[]))

Batch Operations

Unsupported as they do not support conditional writes.
"""

DIGEST = "e30716980b25edabd89c24c825bd7df5aa7e83d9789b7d709c524831e233b772"

#: First and last line of each code example, in the order of the text.
EXAMPLES = [
    ("class OfficeEmployeeMap(MapAttribute):", "    version = VersionAttribute()"),
    ("justin = OfficeEmployeeMap(", "assert office_out_of_date.version == 1"),
    ("@contextmanager", "    office.delete()"),
    ("connection = Connection(", "assert office3.version == 2"),
    ("with assert_condition_check_fails(), TransactWrite(", "    transaction.delete(Office(office.office_id, "),
]

IMPORTS = """
from contextlib import contextmanager
from uuid import uuid4

from botocore.exceptions import ClientError
from pynamodb.attributes import ListAttribute, MapAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DeleteError, DoesNotExist, PutError, TransactWriteError, UpdateError
"""

STOCK = """
from pynamodb.attributes import VersionAttribute
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
"""

LOCKABLE = """
from pynamo_locking import LockableModel as Model, LockAttribute, TransactWrite, VersionAttribute
"""

VERSIONED = """
from pynamodb.models import Model
from pynamo_locking import TransactWrite, VersionAttribute, VersionedMixin
"""

NO_CHANGE = {}
MIXIN = {"(Model):": "(VersionedMixin, Model):"}
EMBEDDED = {"    version = VersionAttribute()": "    version = VersionAttribute()\n    lock = LockAttribute()"}

#: The imports, and what else is changed in the text.
VARIANTS = {
    "stock": (STOCK, NO_CHANGE),
    "lockable": (LOCKABLE, NO_CHANGE),
    "lockable, embedded lock": (LOCKABLE, EMBEDDED),
    "versioned": (VERSIONED, MIXIN),
    # the attribute and the transactions may stay PynamoDB's, too
    "lockable, other imports stock": (STOCK + "from pynamo_locking import LockableModel as Model", NO_CHANGE),
    "versioned, other imports stock": (STOCK + "from pynamo_locking import VersionedMixin", MIXIN),
}


def examples():
    """Return the code examples of the text."""
    lines = TEXT.splitlines()
    found, begin = [], 0
    for first, last in EXAMPLES:
        begin = next(n for n in range(begin, len(lines)) if lines[n].startswith(first))
        end = next(n for n in range(begin, len(lines)) if lines[n].startswith(last))
        found.append("\n".join(lines[begin : end + 1]))
        begin = end + 1
    return found


def hotel_examples():
    """Return what the text advises against, and what it advises to do instead."""
    lines = TEXT.splitlines()
    return ["\n".join(line[2:] for line in lines if line.startswith(f"{sign} ")) for sign in "-+"]


def changed(code, changes):
    """Return the code with some texts replaced."""
    for old, new in changes.items():
        code = code.replace(old, new)
    return code


def test_the_text_is_the_original():
    """The examples were not mended, and none of the text's code is left out."""
    assert hashlib.sha256(TEXT.encode()).hexdigest() == DIGEST
    rest = TEXT
    for code in examples():
        assert code in rest
        rest = rest.replace(code, "")
    left = [line for line in rest.splitlines() if line.startswith(("    ", "with ", "class ", "assert ", "@", "def "))]
    assert left == []


@pytest.fixture(params=list(VARIANTS))
def variant(request):
    """PynamoDB's imports, and then ours."""
    return VARIANTS[request.param]


def test_the_examples_run(concurrent_engine, variant):
    """All examples, in the order of the text, pass their own asserts with each set of imports."""
    imports, changes = variant
    names = {"__name__": "examples"}
    exec(IMPORTS + imports, names)
    hosts = {quoted: repr(concurrent_engine.host) for quoted in ('"http://localhost:8000"', "'http://localhost:8000'")}
    model, *others = (changed(code, changes | hosts) for code in examples())
    exec(model, names)
    concurrent_engine.bind(names["Office"])
    for code in others:
        exec(code, names)
    assert names["office_out_of_date"].version == 3
    assert names["Office"].get(names["office3"].office_id).name == "birdistheword"


@pytest.fixture
def rooms(memory, variant):
    """A table of hotel rooms."""
    imports, changes = variant
    names = {"UnicodeAttribute": UnicodeAttribute}
    code = """
        class Room(Model):
            class Meta:
                table_name = "rooms"
            number = UnicodeAttribute(hash_key=True)
            booked_by = UnicodeAttribute(null=True)
            version = VersionAttribute()
    """
    exec(imports + changed(textwrap.dedent(code), changes), names)
    room = memory.bind(names["Room"])
    room("101").save()
    return room


def test_booking_by_save(rooms):
    """The first version of the hotel example: one of two bookings of the same room is refused by the version."""
    code, _ = hotel_examples()
    room, other = rooms.get("101"), rooms.get("101")
    exec(code, {"room": room, "user_id": "Ada"})
    assert (room.booked_by, room.version) == ("Ada", 2)
    with pytest.raises(Exception, match=r"put item|the save of") as refused:
        exec(code, {"room": other, "user_id": "Bob"})
    assert refused.value.cause_response_code == "ConditionalCheckFailedException"
    with pytest.raises(Exception, match="Room is already booked"):
        exec(code, {"room": rooms.get("101"), "user_id": "Bob"})
    assert rooms.get("101").booked_by == "Ada"


def test_booking_by_update(rooms):
    """The second version: an old copy may book a free room, and a booked one is refused by the condition."""
    _, code = hotel_examples()
    old, older = rooms.get("101"), rooms.get("101")
    room = rooms.get("101")
    room.save()
    exec(code, {"room": old, "Room": rooms, "user_id": "Ada"})
    assert (old.booked_by, old.version) == ("Ada", 3)
    with pytest.raises(UpdateError) as refused:
        exec(code, {"room": older, "Room": rooms, "user_id": "Bob"})
    assert refused.value.cause_response_code == "ConditionalCheckFailedException"
    stored = rooms.get("101")
    assert (stored.booked_by, stored.version) == ("Ada", 3)
    with pytest.raises(Exception, match=r"put item|the save of"):
        room.save()  # a version that was not checked has been counted
