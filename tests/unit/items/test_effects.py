"""Items after updates, conditions on items, and the rules of keys, worked out without a request.

tests/contract/test_images.py compares random updates and conditions with what engines make of their text.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pynamodb.attributes import (
    BinaryAttribute,
    DiscriminatorAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
    UTCDateTimeAttribute,
)
from pynamodb.expressions.condition import Comparison, Condition
from pynamodb.expressions.operand import Path, Value, _Increment
from pynamodb.expressions.update import SetAction
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex, KeysOnlyProjection, LocalSecondaryIndex
from pynamodb.models import Model

from pynamo_locking._core.dynamodb import KeyRule
from pynamo_locking._core.values import Refusal, canonical_item
from pynamo_locking._items.effects import check, difference, holds, key_rules, size_of, updated
from pynamo_locking.exceptions import ConfigurationError
from tests.support.models import declare, meta
from tests.unit.helpers import steady


class Address(MapAttribute):
    town = UnicodeAttribute(attr_name="t", null=True)


class Person(Model):
    Meta = meta("people", region="us-east-1")

    family = UnicodeAttribute(hash_key=True, attr_name="f")
    born = NumberAttribute(range_key=True)
    name = UnicodeAttribute(null=True, attr_name="n")
    age = NumberAttribute(null=True)
    tags = UnicodeSetAttribute(null=True)
    row = ListAttribute(null=True)
    raw = BinaryAttribute(null=True, legacy_encoding=False)
    address = Address(null=True, attr_name="at")


PERSON: dict[str, Any] = {
    "f": {"S": "a"},
    "born": {"N": "1"},
    "n": {"S": "Ann"},
    "age": {"N": "7.50"},
    "tags": {"SS": ["y", "x"]},
    "row": {"L": [{"N": "1"}, {"S": "two"}]},
    "raw": {"B": b"\x00\xff"},
    "at": {"M": {"t": {"S": "Rome"}}},
}
KEYS = {"f": {"S": "a"}, "born": {"N": "1"}}


@pytest.mark.parametrize("image", [None, {}])
def test_an_update_makes_an_item_of_the_key(image):
    """If there is none."""
    assert updated(image, KEYS, [Person.age.add(2)]) == {**KEYS, "age": {"N": "2"}}
    assert updated(image, {"f": {"S": "a"}, "born": {"N": "1.0"}}, []) == KEYS


def test_an_update_of_nothing():
    """Without an action the item stays as it is."""
    assert updated(PERSON, KEYS, []) == canonical_item(PERSON)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([Person.age.set(Path("gone"))], "refers to an attribute that does not exist in the item"),
        ([Person.age.set(Path("n") + 1)], "An operand in the update expression has an incorrect data type"),
        ([Person.born.set(2)], "Cannot update attribute born. This attribute is part of the key"),
        ([Person.family.remove()], "Cannot update attribute f. This attribute is part of the key"),
        ([Person.address.set(Address()), Person.address.town.remove()], "Two document paths overlap with each other"),
    ],
)
def test_updates_that_dynamodb_refuses(actions, message):
    """In its words, or nearly so."""
    with pytest.raises(Refusal) as refusal:
        updated(PERSON, KEYS, actions)
    assert refusal.value.code == "ValidationException"
    assert message in refusal.value.message


def test_an_update_that_nests_too_deeply():
    """31 maps and lists within each other are stored, also those that a path and a value make together."""
    deep: dict[str, Any] = {"S": "x"}
    for _ in range(30):
        deep = {"M": {"a": deep}}
    image = {**PERSON, "deep": deep}
    inside, further = Path(["at", "x"]), Path(["at", "x", "y"])

    assert updated(image, KEYS, [inside.set(Path("deep"))])["at"]["M"]["x"] == deep
    with pytest.raises(Refusal, match="Nesting Levels have exceeded supported limits"):
        updated({**image, "at": {"M": {"x": {"M": {}}}}}, KEYS, [further.set(Path("deep"))])


def test_nothing_is_shared_and_nothing_changed():
    """Image and actions stay as they are, whatever is done to the result, of which no two parts are one object."""
    image, value = copy.deepcopy(PERSON), {"L": [{"M": {}}]}
    actions = [
        Path("one").set(value),
        Path("two").set(value),
        Path("three").set(Path("at")),
        Path("at").set(Path("at")),
    ]

    after = updated(image, KEYS, actions)
    changed, _ = difference(None, after)
    for result in (after, changed):
        for name in ("one", "two"):
            assert result[name] == {"L": [{"M": {}}]}
            result[name]["L"][0]["M"]["x"] = {"S": name}
            result[name]["L"].append({"S": name})
        result["three"]["M"]["t"]["S"] = "Oslo"
        assert result["at"] == PERSON["at"]
        result["at"]["M"]["t"]["S"] = "Bonn"
        result["row"]["L"].clear()
        result["tags"]["SS"].clear()

    assert (image, value) == (PERSON, {"L": [{"M": {}}]})


def test_a_condition_leaves_the_image_alone():
    """Sets are compared in an order that the image need not have."""
    image = copy.deepcopy(PERSON)

    assert holds(image, Person.tags == {"x", "y"})
    assert holds(image, None)
    assert image == PERSON


class Near(Comparison):
    """A user's own: it says something else in a request than its operator does."""

    def serialize(self, placeholder_names, expression_attribute_values):
        return "NOT " + super().serialize(placeholder_names, expression_attribute_values)


class Now(Value):
    pass


class Elsewhere(Path):
    pass


class Sum(_Increment):
    pass


class Never(SetAction):
    pass


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Near("=", Path("n"), Value("Ann")), "Near"),
        (Person.age.exists() & ~Near("=", Path("n"), Value("Ann")), "Near"),
        (Path("n") == Now("Ann"), "Now"),
        (Elsewhere("n").exists(), "Elsewhere"),
        (Condition("~", Path("n")), "pynamodb.expressions.condition.Condition"),
    ],
)
def test_conditions_of_unknown_classes_are_refused(made, name):
    """By their names: what they say is in a text that is not read here."""
    for refused in (lambda: check(made), lambda: holds(PERSON, made)):
        with pytest.raises(ConfigurationError, match=rf"{name}, which is no class of PynamoDB's that is known here"):
            refused()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Person.age.set(Sum(Path("age"), Value(1))), "Sum"),
        (Person.name.set(Now("Bob")), "Now"),
        (Never(Path("n"), Value("Bob")), "Never"),
    ],
)
def test_actions_of_unknown_classes_are_refused(made, name):
    """As conditions are."""
    for refused in (lambda: check(made), lambda: updated(PERSON, KEYS, [made])):
        with pytest.raises(ConfigurationError, match=rf"{name}, which is no class of PynamoDB's that is known here"):
            refused()


def test_the_spelling_is_no_difference():
    """Numbers by their value, sets by their elements; a list by its order."""
    again = copy.deepcopy(PERSON) | {"age": {"N": "0.75E+1"}, "tags": {"SS": ["x", "y"]}}
    assert difference(PERSON, again) == ({}, [])
    again["row"]["L"].reverse()
    assert difference(PERSON, again) == ({"row": again["row"]}, [])


def test_the_difference_of_another_type():
    """1 is not "1"."""
    assert difference({"a": {"N": "1"}}, {"a": {"S": "1"}}) == ({"a": {"S": "1"}}, [])


def test_keys_are_no_difference():
    """A new item differs in everything but its key, where that is named."""
    assert difference(None, {**KEYS, "n": {"S": "x"}}, keys=KEYS) == ({"n": {"S": "x"}}, [])
    assert difference({**KEYS, "n": {"S": "x"}}, {}, keys=["f", "born"]) == ({}, ["n"])
    assert difference({}, KEYS) == (KEYS, [])


def test_what_goes_is_in_order():
    """The names are sorted, so that the request is always the same."""
    assert difference({"c": {"N": "1"}, "a": {"N": "1"}, "b": {"N": "1"}}, {"b": {"N": "1"}}) == ({}, ["a", "c"])


values = st.recursive(
    st.sampled_from([{"N": "1"}, {"N": "1.0"}, {"S": "1"}, {"NULL": True}, {"SS": ["b", "a"]}, {"B": b"1"}]),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda found: {"L": found})
        | st.dictionaries(st.sampled_from("xy"), inner, max_size=2).map(lambda found: {"M": found})
    ),
    max_leaves=4,
)
images = st.dictionaries(st.sampled_from(["n", "one", "two", "three"]), values).map(lambda found: {**KEYS, **found})


@settings(steady, max_examples=100)
@given(before=images, after=images)
def test_a_difference_makes_one_item_of_the_other(before, after):
    """As SET and REMOVE in one update."""
    changed, removed = difference(before, after)
    actions = [*(Path(name).set(value) for name, value in changed.items()), *(Path(name).remove() for name in removed)]

    assert updated(before, KEYS, actions) == canonical_item(after)


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ({}, 0),
        ({"ab": {"S": "xyz"}}, 5),
        ({"é": {"S": "€😀"}}, 9),
        ({"a": {"B": b"\x00\xff"}}, 3),
        ({"a": {"N": "0"}}, 2),
        ({"a": {"N": "1"}}, 3),
        ({"a": {"N": "12"}}, 3),
        ({"a": {"N": "123"}}, 4),
        ({"a": {"N": "-123"}}, 5),
        ({"a": {"N": "1E+20"}}, 3),
        ({"a": {"BOOL": False}}, 2),
        ({"a": {"NULL": True}}, 2),
        ({"a": {"SS": ["x", "yz"]}}, 4),
        ({"a": {"NS": ["1", "12"]}}, 5),
        ({"a": {"BS": [b"x"]}}, 2),
        ({"a": {"L": []}}, 4),
        ({"a": {"L": [{"S": "xy"}]}}, 7),
        ({"a": {"M": {"bc": {"S": "xy"}}}}, 9),
    ],
)
def test_sizes(attributes, size):
    """Texts in UTF-8; a number half a byte a digit and one more; three bytes a list or map, one an element."""
    assert size_of(attributes) == size


# Keys


class ByName(GlobalSecondaryIndex):
    class Meta:
        index_name = "by-name"
        projection = AllProjection()

    name = UnicodeAttribute(hash_key=True, attr_name="n")
    born = NumberAttribute(range_key=True)


class ByAge(LocalSecondaryIndex):
    class Meta:
        projection = KeysOnlyProjection()

    family = UnicodeAttribute(hash_key=True, attr_name="f")
    age = NumberAttribute(range_key=True, attr_name="years")


class ByRaw(GlobalSecondaryIndex):
    class Meta:
        projection = KeysOnlyProjection()

    raw = BinaryAttribute(hash_key=True, legacy_encoding=False)


class Indexed(Model):
    Meta = meta("indexed")

    family = UnicodeAttribute(hash_key=True, attr_name="f")
    born = UTCDateTimeAttribute(range_key=True)
    by_name = ByName()
    by_age = ByAge()


class Child(Indexed):
    Meta = meta("child")

    by_raw = ByRaw()


Animal = declare("Animal", Model, hash_key="pk", kind=DiscriminatorAttribute())


class Dog(Animal, discriminator="dog"):
    by_raw = ByRaw()


class Cat(Animal, discriminator="cat"):
    pass


OWN = {KeyRule("f", "S", "hash"), KeyRule("born", "S", "range")}
OF_INDEXES = {
    KeyRule("n", "S", "hash", "by-name"),
    KeyRule("born", "N", "range", "by-name"),
    KeyRule("f", "S", "hash", "by_age"),
    KeyRule("years", "N", "range", "by_age"),
}
RAW = KeyRule("raw", "B", "hash", "by_raw")


def test_the_rules_of_a_table():
    """Its own key, by the stored names."""
    assert key_rules(Person) == (KeyRule("f", "S", "hash"), KeyRule("born", "N", "range"))
    assert key_rules(Cat)[:1] == (KeyRule("pk", "S", "hash"),)


def test_the_rules_of_indexes():
    """Global and local ones, with their names, of Meta or of the model's attribute, and the types they declare."""
    rules = key_rules(Indexed)
    assert len(rules) == len(set(rules)) == 6
    assert set(rules) == OWN | OF_INDEXES


def test_the_rules_of_inherited_indexes():
    """A child has its parent's and its own."""
    assert set(key_rules(Child)) == OWN | OF_INDEXES | {RAW}


@pytest.mark.parametrize("model", [Animal, Dog, Cat])
def test_the_rules_of_one_table_with_several_classes(model):
    """An index of one class holds for all items of the table."""
    assert set(key_rules(model)) == {KeyRule("pk", "S", "hash"), RAW}
