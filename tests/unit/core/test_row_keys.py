"""Keys of our rows: what a class may declare, and which rows are ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import NamedLock, TransactionTable
from pynamo_locking._core.row_keys import OwnKeys
from pynamo_locking.exceptions import ConfigurationError
from tests.support.models import declare, meta

SHARED = OwnKeys("pk", "sk", "acme#", "lock")


def test_alone() -> None:
    """Without keys and prefix, the hash key is the name."""
    keys = OwnKeys.declared(SimpleNamespace(), "lock", "name", (), "Locks")
    assert keys == OwnKeys("name")
    assert (keys.of("n"), keys.place("locks"), keys.longest_name) == ({"name": {"S": "n"}}, "locks", 2048)
    assert keys.filter() == ("", {}, {})


def test_shared() -> None:
    """The hash key has the prefix, the range key the kind, and both the name."""
    assert SHARED.of("n") == {"pk": {"S": "acme#n"}, "sk": {"S": "lock#n"}}
    assert SHARED.place("app") == "app#acme#"
    assert SHARED.longest_name == 1024 - len("lock#")
    assert OwnKeys("pk", "sk", "é" * 600, "lock").longest_name == 2048 - 1200
    condition, names, values = SHARED.filter()
    assert (condition, names) == ("begins_with(#k0, :k0) AND begins_with(#k1, :k1) AND ", {"#k0": "pk", "#k1": "sk"})
    assert values == {":k0": {"S": "acme#"}, ":k1": {"S": "lock#"}}


@pytest.mark.parametrize(
    ("pk", "sk", "name"),
    [
        ("acme#n", "lock#n", "n"),
        ("acme#acme#n", "lock#acme#n", "acme#n"),
        ("acme#n", "lock#m", None),
        ("acme#n", "transaction#n", None),
        ("other#n", "lock#n", None),
        ("other#n", "lock#other#n", None),
        ("n", "lock#n", None),
    ],
)
def test_which_rows_are_ours(pk: str, sk: str, name: str | None) -> None:
    """Those whose keys both have the same name, behind the prefix and the kind."""
    image = {"pk": {"S": pk}, "sk": {"S": sk}, "id": {"S": "other"}, "ttl": {"N": "1"}, "expires_s": {"N": "2"}}
    assert SHARED.name_in(image) == name
    as_alone = SHARED.alone(image, "id", {"ttl": "expires_s"})
    assert (as_alone is None) == (name is None)
    if as_alone is not None:
        assert (as_alone["id"], as_alone["expires_s"]) == ({"S": name}, {"N": "1"})


@pytest.mark.parametrize("image", [{}, {"pk": {"N": "1"}, "sk": {"N": "1"}}, {"pk": {"S": "acme#n"}}])
def test_other_images_are_not_ours(image: dict[str, Any]) -> None:
    """Whatever their keys are."""
    assert SHARED.name_in(image) is None


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"keys": ("pk", "sk")}, "Meta.prefix"),
        ({"prefix": "locks#"}, "Meta.keys"),
        ({"keys": "pk", "prefix": "locks#"}, "Meta.keys"),
        ({"keys": ("pk",), "prefix": "locks#"}, "Meta.keys"),
        ({"keys": ("pk", "pk"), "prefix": "locks#"}, "Meta.keys"),
        ({"keys": ("pk", 1), "prefix": "locks#"}, "Meta.keys"),
        ({"keys": ("pk", "sk"), "prefix": ""}, "Meta.prefix"),
        ({"keys": ("pk", "sk"), "prefix": 1}, "Meta.prefix"),
        ({"keys": ("pk", "sk"), "prefix": "x" * 512 + "#"}, "Meta.prefix"),
        ({"keys": ("pk", "lock"), "prefix": "locks#"}, "'lock'"),
        ({"keys": ("pk", "lease_ends"), "prefix": "locks#"}, "'lease_ends'"),
        ({"keys": ("ttl", "sk"), "prefix": "locks#", "ttl_attribute": "ttl"}, "'ttl'"),
        ({"ttl_attribute": 1}, "ttl_attribute"),
    ],
)
def test_what_cannot_work_is_refused_when_the_class_is_made(declared: dict[str, Any], says: str) -> None:
    """With the name of what is wrong."""
    with pytest.raises(ConfigurationError, match=says):
        declare("Wrong", NamedLock, **declared)


@pytest.mark.parametrize("name", ["priority", "content", "beat", "state", "expires_s"])
def test_a_key_is_no_attribute_of_a_header(name: str) -> None:
    """Also of those that the class does not declare."""
    with pytest.raises(ConfigurationError, match=name):
        declare("Wrong", TransactionTable, keys=("pk", name), prefix="tx#")


def test_a_class_derived_from_a_shared_one() -> None:
    """Has its Meta, or says where it is itself."""

    class Locks(NamedLock):
        Meta = meta("app", keys=("pk", "sk"), prefix="locks#")

    class More(Locks):
        note = UnicodeAttribute(null=True)

    assert More._own_keys == Locks._own_keys == OwnKeys("pk", "sk", "locks#", "lock")
    assert [each.attr_name for each in (More.name, More._range_key_attribute())] == ["pk", "sk"]
    with pytest.raises(ConfigurationError, match="repeat keys and prefix"):

        class Apart(Locks):
            Meta = meta("apart")


def test_a_name_of_another_type() -> None:
    """A prefix needs a string."""
    with pytest.raises(ConfigurationError, match="UnicodeAttribute"):

        class Numbers(NamedLock):
            Meta = meta("app", keys=("pk", "sk"), prefix="locks#")

            name = NumberAttribute(hash_key=True)
