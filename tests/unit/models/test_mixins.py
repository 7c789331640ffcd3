"""What models refuse, before any request is made, and what their locks are made of."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pynamodb.attributes import (
    BinaryAttribute,
    BooleanAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UTCDateTimeAttribute,
)
from pynamodb.connection import Connection
from pynamodb.models import Model

from pynamo_locking import LockableMixin, LockableModel, LockAttribute, LockSettings, VersionAttribute, locked_all
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, LockingError, LockLost, LockTimeout
from pynamo_locking.inspection import LockState
from tests.support.models import declare, meta
from tests.unit.helpers import Account, Locks, entry, held_here, own_entry, queue

pytestmark = pytest.mark.usefixtures("no_requests")


class Reading(LockableModel):
    """Number hash key, bytes range key, lock attribute under another name."""

    Meta = meta("readings", region="us-east-1")

    sensor = NumberAttribute(hash_key=True)
    data = BinaryAttribute(range_key=True, legacy_encoding=False)
    version = VersionAttribute()
    guard = LockAttribute(attr_name="g")


Dated = declare("Dated", table_name="dated", lock=True, region="us-east-1", day=UTCDateTimeAttribute(hash_key=True))
Beside = declare("Beside", table_name="beside", region="us-east-1", lock_table=Locks)


class Savings(Account):
    """Shares the lock attribute of its base."""

    class Meta(Account.Meta):
        table_name = "savings"


PATIENCE = LockSettings(wait=1, lease=30, heartbeat=False, max_waiters=3)
Patient = declare("Patient", region="us-east-1", lock=True, lock_settings=PATIENCE)


# Reserved names


@pytest.mark.parametrize("name", ["locked", "edit", "lock_state", "break_lock", "lock_settings"])
def test_an_attribute_may_not_hide_a_method(name):
    """It is refused when the class is made; the message says how to keep the stored name."""
    with pytest.raises(ConfigurationError, match=f"attribute called '{name}'") as caught:
        type(LockableModel)("Door", (LockableModel,), {name: UnicodeAttribute(null=True)})

    assert str(caught.value).startswith("Door ")
    assert f"{name}_ = ...Attribute(attr_name='{name}')" in str(caught.value)


@pytest.mark.parametrize("name", ["locked", "edit", "lock_state", "break_lock", "lock_settings"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_an_inherited_attribute_may_not_hide_a_method(name, is_first):
    """Whether it comes from a plain mixin before or after our base: one of the two would hide the other."""
    mixin = type("Mixin", (), {name: UnicodeAttribute(null=True)})
    bases = (mixin, LockableModel) if is_first else (LockableModel, mixin)

    with pytest.raises(ConfigurationError, match=f"attribute called '{name}'"):
        type(LockableModel)("Door", bases, {})


@pytest.mark.parametrize("name", ["edit", "locked"])
def test_a_method_may_not_hide_an_attribute_of_an_existing_model(name):
    """Locks added to a model that has such an attribute would cut it off from its data."""
    plain = type(Model)("Plain", (Model,), {"key": UnicodeAttribute(hash_key=True), name: UnicodeAttribute(null=True)})

    with pytest.raises(ConfigurationError, match=f"attribute called '{name}'"):
        type(Model)("Door", (LockableMixin, plain), {})


def test_the_advice_for_a_reserved_name_works():
    """An attribute with another name in Python and the same in the item is fine."""

    class Door(LockableModel):
        key = UnicodeAttribute(hash_key=True)
        edit_ = BooleanAttribute(attr_name="edit", null=True)
        lock = LockAttribute()

    assert Door("x", edit_=True).serialize()["edit"] == {"BOOL": True}


def test_one_lock_attribute_is_enough():
    """Two are refused with their names and with what to do instead, also if one of them is inherited."""
    advice = r"\. An item has one lock: make parts .* items of their own, or lock a name for each part \(NamedLock\)\.$"
    with pytest.raises(ConfigurationError, match=r"^Two has more than one LockAttribute: lock, other" + advice):

        class Two(LockableModel):
            other = LockAttribute()
            lock = LockAttribute()

    with pytest.raises(ConfigurationError, match=r"^More has more than one LockAttribute: guard, lock"):

        class More(Account):
            guard = LockAttribute()


@pytest.mark.parametrize("place", [{"lock": LockAttribute()}, {"lock_table": Locks}], ids=["in the item", "in a row"])
def test_what_is_locked_has_a_version(place):
    """A model without one is refused when it is first used, with the line to add; a class to derive from may be so."""
    Base = declare("Base", region="us-east-1", version=False, **place)  # noqa: N806 - a class
    uses = [
        lambda: Base.locked("k"),
        lambda: Base.edit("k"),
        lambda: Base.lock_state("k"),
        lambda: Base.get("k"),
        Base("k").save,
        lambda: Base("k").update([Base.key.set("x")]),
        Base("k").delete,
        Base.batch_write,
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match=r"^Base can be locked .*Declare `version = VersionAttribute\(\)`"):
            use()
    Derived = declare("Derived", Base, region="us-east-1", version=True, **place)  # noqa: N806
    assert not Derived.locked("k").is_held


def test_a_subclass_may_declare_its_lock_again():
    """Under the same name there is still one."""

    class Again(Account):
        lock = LockAttribute(attr_name="l")

    assert Again._lock_attribute().attr_name == "l"


# The attribute


@pytest.mark.parametrize("value", [5, "x", {}, object()])
def test_a_lock_cannot_be_assigned(value):
    """Neither on an instance nor in its constructor."""
    account = Account("a-1")

    with pytest.raises(ConfigurationError, match=r"'lock' cannot be assigned; use Account\.locked\("):
        account.lock = value
    with pytest.raises(ConfigurationError, match="cannot be assigned"):
        Account("a-1", lock=value)


def test_a_new_instance_reads_as_free():
    """Without a stored lock it is a LockState, not None."""
    assert Account("a-1").lock == LockState()


def test_the_attribute_makes_locks():
    """`Model.locked(key)` works though the attribute has that name, with all options of `locked`."""
    lock = Account.locked("a-1", wait=3, owner="me")

    assert lock.name == Account.locked("a-1").name == "accounts/a-1"
    assert (lock.owner, lock._handle.options.wait) == ("me", 3.0)


def test_the_method_makes_locks_where_there_is_no_attribute():
    """A model whose locks are elsewhere has the method as well."""
    assert Beside.locked("k").name == "beside/k"
    assert Beside.locked("k")._handle.target.row.table == "locks"


def test_locks_are_of_the_class_they_were_asked_of():
    """A subclass makes locks of its own items."""
    assert Savings.locked("a-1").name == "savings/a-1"
    assert Account.locked("a-1").name == "accounts/a-1"
    assert Savings.locked("a-1")._handle.target.model is Savings


def test_the_attribute_can_be_named_in_conditions():
    """As any other attribute."""
    assert str(Account.lock.exists()) == "attribute_exists (lock)"
    assert str(Reading.guard.does_not_exist()) == "attribute_not_exists (g)"


# Where locks are


@pytest.mark.parametrize("table", [None, "locks", Account, Model, object(), Locks("x")])
def test_a_model_needs_a_place_for_locks(table):
    """Without one, or with one that is no NamedLock, `locked` says how to declare it."""
    Bare = declare("Bare", region="us-east-1", lock_table=table)  # noqa: N806 - a class
    with pytest.raises(ConfigurationError, match=r"^Bare has no place for locks: declare `lock = LockAttribute\(\)`"):
        Bare.locked("k")


def test_locks_of_the_same_item_are_one():
    """However number and key are written."""
    assert Reading.locked(1, b"x")._handle.target.row.identity == Reading.locked(1.0, b"x")._handle.target.row.identity
    assert Reading.locked(1, b"x")._handle.target.row.identity != Reading.locked(1, b"y")._handle.target.row.identity


def test_a_named_lock_is_called_by_its_name():
    """Unencoded, in messages as in the row."""
    assert Locks.locked("nightly/report").name == "nightly/report"
    assert Locks.locked("nightly/report")._handle.target.row.key == {"name": {"S": "nightly/report"}}


# Keys


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (Account, (None,)),
        (Account, ("",)),
        (Account, (5,)),
        (Account, (b"x",)),
        (Account, (["a"],)),
        (Account, ({"a": 1},)),
        (Account, (Colour.RED,)),
        (Account, (True,)),
        (Account, ("x" * 2049,)),
        (Account, ("ä" * 1025,)),
        (Account, ("\ud800",)),
        (Account, ("a-1", "extra")),
        (Account, ("a-1", 0)),
        (Locks, (None,)),
        (Locks, ("",)),
        (Reading, (True, b"x")),
        (Reading, (math.nan, b"x")),
        (Reading, (math.inf, b"x")),
        (Reading, ("5", b"x")),
        (Reading, (None, b"x")),
        (Reading, ([5], b"x")),
        (Reading, ({}, b"x")),
        (Reading, (5j, b"x")),
        (Reading, (5,)),
        (Reading, (5, b"")),
        (Reading, (5, "x")),
        (Reading, (5, b"x" * 1025)),
        (Beside, (None,)),
        (Beside, (7,)),
        (Beside, ("k", "extra")),
        (Dated, ("2020-01-01",)),
        (Dated, (5,)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:25],
)
def test_wrong_keys_are_refused(model, key):
    """A key that does not fit the model, without a request; a value that cannot be is the client's."""
    with pytest.raises((ConfigurationError, InvalidInput), match="key"):
        model.locked(*key)


@pytest.mark.parametrize("method", ["locked", "edit", "lock_state", "break_lock"])
def test_every_method_checks_keys(method):
    """Not only `locked`."""
    options = {"ticket": 1} if method == "break_lock" else {}
    with pytest.raises(InvalidInput, match="cannot be the hash key of Account"):
        getattr(Account, method)("", **options)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((5, b""), "b'' cannot be the range key of Reading: DynamoDB allows 1 to 1024 bytes, and it has 0."),
        *(((key, b"x"), f"{key!r} cannot be the hash key of Reading: ") for key in (math.nan, math.inf, "5")),
    ],
)
def test_wrong_keys_are_named_in_the_message(key, message):
    """The value as given, the model, which key it is, and what is wrong with it."""
    with pytest.raises((ConfigurationError, InvalidInput)) as caught:
        Reading.locked(*key)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("model", "key", "name"),
    [
        (Account, ("x" * 2048,), None),
        (Account, ("a/b",), "accounts/a%2Fb"),
        (Reading, (0, b"\x00"), "readings/0/%00"),
        (Reading, (-0.0, b"x"), "readings/0/x"),
        (Reading, (1e2, b"x"), "readings/100/x"),
        (Reading, (2**100, b"x"), f"readings/{2**100}/x"),
        (Dated, (datetime(2020, 1, 2, tzinfo=timezone.utc),), "dated/2020-01-02T00%3A00%3A00.000000%2B0000"),
    ],
)
def test_good_keys_are_accepted(model, key, name):
    """Up to DynamoDB's limits."""
    assert model.locked(*key).name == name or name is None


# Settings and arguments


def test_settings_come_from_meta():
    """Without arguments the model's settings count, without those the defaults."""
    options = Patient.locked("k")._handle.options

    assert (options.wait, options.lease, options.heartbeat, options.settings) == (1, 30, False, PATIENCE)
    assert Account.locked("a-1")._handle.options.settings == Account.lock_settings() == LockSettings()
    assert Account.locked("a-1")._handle.options.wait == 60


def test_arguments_override_settings():
    """Each of them, whatever its type; `settings` replaces those of Meta as a whole."""
    options = Patient.locked(
        "k", wait=timedelta(seconds=5), lease=timedelta(minutes=1), heartbeat=True, owner="me"
    )._handle.options

    assert (options.wait, options.lease, options.heartbeat, options.owner) == (5.0, 60.0, True, "me")
    assert options.settings is Patient.Meta.lock_settings

    other = LockSettings(wait=7, lease=8)

    assert Patient.locked("k", settings=other)._handle.options.wait == 7
    assert Patient.locked("k", settings=other, wait=0)._handle.options.wait == 0
    assert Patient.locked("k", settings=other)._handle.options.settings is other


@pytest.mark.parametrize("settings", [5, "x", {}, {"wait": 5}, False, LockSettings])
def test_settings_are_lock_settings(settings):
    """Anything else is refused, also what is false."""
    with pytest.raises(ConfigurationError, match="must be a LockSettings"):
        Account.locked("a-1", settings=settings)


@pytest.mark.parametrize("settings", [5, {}, LockSettings])
def test_settings_in_meta_are_lock_settings(settings):
    """The same for Meta, at the first use, whichever method asks."""
    Odd = declare("Odd", region="us-east-1", lock=True, lock_settings=settings)  # noqa: N806 - a class
    for method in (Odd.locked, Odd.edit, Odd.lock_state):
        with pytest.raises(ConfigurationError, match="must be a LockSettings"):
            method("k")


@pytest.mark.parametrize("value", [-1, math.nan, "1", True, timedelta(seconds=-1), []])
@pytest.mark.parametrize("name", ["wait", "lease"])
def test_durations_are_checked(name, value):
    """A wrong one is refused by name."""
    for method in (Account.locked, Account.edit):
        with pytest.raises(ConfigurationError, match=f"^{name} must "):
            method("a-1", **{name: value})


def test_the_wait_of_acquire_is_checked():
    """As that of `locked`, and of `locked_all`."""
    with pytest.raises(ConfigurationError, match=r"^wait must not be negative"):
        Account.locked("a-1").acquire(wait=-1)
    with (
        pytest.raises(ConfigurationError, match=r"^wait must not be negative"),
        locked_all(Account.locked("a"), wait=-1),
    ):
        pass


@pytest.mark.parametrize(("lease", "message"), [(0, "too short"), (5.9, "at least 6.0 s"), (math.inf, "finite")])
def test_leases_are_checked_against_the_request_timeout(lease, message):
    """Too short or infinite ones are refused when the lock is made."""
    with pytest.raises(ConfigurationError, match=message):
        Account.locked("a-1", lease=lease)


def test_a_model_without_items_cannot_be_locked():
    """A model needs a hash key."""

    class Keyless(LockableModel):
        Meta = meta("keyless", region="us-east-1")

        lock = LockAttribute()

    with pytest.raises(ConfigurationError, match=r"^Keyless has no hash key"):
        Keyless.locked("k")


# Locks that are not taken


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((use, "is not held") for use in ("release", "renew", "held_condition")),
        *((fact, "was never acquired") for fact in ("ticket", "item", "lost")),
    ],
)
def test_a_lock_that_was_never_taken_cannot_be_used_and_has_no_facts(name, why):
    """It says so, by name."""
    lock = Account.locked("a-1")

    with pytest.raises(ConfigurationError, match=rf"^the lock accounts/a-1 {why} by this Lock object"):
        getattr(lock, name)()


def test_a_lock_that_is_not_held_has_nothing_left():
    """And says so in its repr."""
    lock = Account.locked("a-1")

    assert (lock.is_held, lock.remaining) == (False, 0.0)
    assert repr(lock) == "<Lock accounts/a-1 not held>"
    with pytest.raises(ConfigurationError):
        lock.ensure_remaining(1)


@pytest.fixture
def held(world):
    """Our entry in the queue of account a-1, lease 60 s, just granted in this context."""
    with held_here(own_entry(ticket=7)) as own:
        yield own


def test_a_held_lock_in_words(held, world):
    """The repr has name, ticket and what is left."""
    lock = Account.locked("a-1").acquire()
    world.now += 15

    assert repr(lock) == "<Lock accounts/a-1 ticket 7, 45.0 s left>"
    assert (lock.ticket, lock.is_held, lock.remaining) == (7, True, 45.0)

    world.now += 45

    assert (lock.is_held, lock.remaining) == (False, 0.0)


@pytest.mark.parametrize("wanted", [60, 61, math.inf, timedelta(minutes=1)])
def test_no_more_can_be_ensured_than_a_lease(held, wanted):
    """A whole lease is never left after a request; the message says how long the lease is."""
    lock = Account.locked("a-1").acquire()

    with pytest.raises(ConfigurationError, match="the lease is 60 s"):
        lock.ensure_remaining(wanted)


def test_no_more_can_be_ensured_than_the_lease_that_is_held(held):
    """A lock entered again has the lease it was first taken with, whatever the inner one asked for."""
    inner = Account.locked("a-1", lease=600).acquire()

    with pytest.raises(ConfigurationError, match="the lease is 60 s"):
        inner.ensure_remaining(120)


def test_ensuring_what_is_left_makes_no_request(held, world):
    """Only if too little is left the lease is renewed."""
    lock = Account.locked("a-1").acquire()
    world.now += 30

    lock.ensure_remaining(30)
    with pytest.raises(AssertionError, match="a request was made: UpdateItem"):
        lock.ensure_remaining(31)


def test_ensure_after_a_loss(held):
    """It says that the lock is lost, without a request."""
    lock = Account.locked("a-1").acquire()
    held.lose("evicted")

    with pytest.raises(LockLost) as caught:
        lock.ensure_remaining(1)

    assert (caught.value.reason, caught.value.ticket) == ("evicted", 7)
    assert "ticket 7 of accounts/a-1" in str(caught.value)
    assert lock.lost.is_set()
    assert not lock.is_held


# Writes


@pytest.mark.parametrize("model", [Account, Beside, Locks])
def test_batch_write_has_to_be_asked_for(model):
    """It has no conditions; the message says what to do instead."""
    with pytest.raises(ConfigurationError, match=rf"^batch_write\(\) of {model.__name__} .*unguarded=True"):
        model.batch_write()

    assert model.batch_write(unguarded=True).model is model
    assert model.batch_write(auto_commit=False, unguarded=True).auto_commit is False


def test_actions_on_the_lock_are_refused():
    """An update may not change the lock behind its back."""
    account = Account("a-1")

    for action in (Account.lock.remove(), Account.lock["next"].set(5)):
        with pytest.raises(ConfigurationError, match="would change the lock of Account"):
            account.update([action])


@pytest.mark.parametrize("actions", [[], None, (Account.lock.remove(),)])
def test_actions_are_a_list(actions):
    """What PynamoDB refuses is refused here as well, with the same exception."""
    with pytest.raises(TypeError, match="non-empty list"):
        Account("a-1").update(actions)


# Facts behind errors


def test_an_error_names_the_answer_behind_it(monkeypatch, world):
    """`cause` is the exception of botocore, so that handlers can look at DynamoDB's code."""
    monkeypatch.setattr(world, "sleep", lambda seconds: None, raising=False)
    throttled = ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "GetItem")

    def dispatch(connection, operation, kwargs):
        raise throttled

    monkeypatch.setattr(Connection, "dispatch", dispatch)

    with pytest.raises(LockingError) as caught:
        Account.lock_state("a-1")

    assert caught.value.cause is throttled
    assert caught.value.cause_response_code == "ThrottlingException"

    with pytest.raises(LockTimeout) as caught:
        Account.locked("a-1", wait=0).acquire()

    assert caught.value.cause is throttled
    assert caught.value.cause_response_code == "ThrottlingException"


def test_states_read_from_instances():
    """The attribute of a loaded instance is the queue at that time."""
    state = queue(entry(1), entry(2))
    account = Account("a-1", lock=state)

    assert account.lock is state
    assert [holder.owner for holder in account.lock.holders] == ["owner1"]


@pytest.mark.parametrize(
    "members",
    [
        {"_writer": lambda self: None},
        {"_placement_condition": classmethod(lambda cls: [])},
        {"_lock_row_of_item": property(lambda self: 1)},
        {"_writer": UnicodeAttribute(null=True)},
    ],
    ids=["method", "class method", "property", "attribute"],
)
@pytest.mark.parametrize("is_inherited", [False, True])
def test_a_member_that_would_replace_a_private_method(members: dict[str, Any], *, is_inherited: bool) -> None:
    """A model that worked before the method came, or a mixin of the user's, breaks nothing silently."""
    bases = (type("Theirs", (), members), LockableMixin, Model) if is_inherited else (LockableMixin, Model)
    own = {} if is_inherited else members
    with pytest.raises(ConfigurationError, match="a name that pynamo_locking uses for itself"):
        type("Desk", bases, {"Meta": meta("desks"), "key": UnicodeAttribute(hash_key=True), **own})
