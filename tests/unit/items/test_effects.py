"""Items after updates, conditions on items, and the rules of keys, worked out without a request."""

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
from pynamodb.constants import KEY
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex, KeysOnlyProjection, LocalSecondaryIndex
from pynamodb.models import Model

from pynamo_locking._core.dynamodb import KeyRule
from pynamo_locking._expressions.values import Refusal, canonical_item
from pynamo_locking._items.effects import difference, holds, key_rules, size_of, updated
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


def request(*actions: Any, condition: Any = None) -> dict[str, Any]:
    """An UpdateItem as PynamoDB sends it."""
    kwargs: dict[str, Any] = Person._get_connection().get_operation_kwargs(
        "a", "1", key=KEY, actions=actions or None, condition=condition
    )
    return kwargs


def raw(update: str, **values: Any) -> dict[str, Any]:
    """An UpdateItem that PynamoDB would not make."""
    kwargs = {"TableName": "people", "Key": KEYS, "UpdateExpression": update}
    return kwargs | ({"ExpressionAttributeValues": {f":{k}": v for k, v in values.items()}} if values else {})


@pytest.mark.parametrize(
    ("action", "changed", "removed"),
    [
        (Person.name.set("Bob"), {"n": {"S": "Bob"}}, []),
        (Person.age.set(Person.age + 1), {"age": {"N": "8.5"}}, []),
        (Person.age.set(7.5), {}, []),
        (Person.age.add(-8), {"age": {"N": "-0.5"}}, []),
        (Person.age.set(Person.row[0] | 3), {"age": {"N": "1"}}, []),
        (Person.name.remove(), {}, ["n"]),
        (Person.tags.add({"z", "x"}), {"tags": {"SS": ["x", "y", "z"]}}, []),
        (Person.tags.delete({"y", "z"}), {"tags": {"SS": ["x"]}}, []),
        (Person.tags.delete({"y", "x"}), {}, ["tags"]),
        (Person.row.set(Person.row.append([True])), {"row": {"L": [*PERSON["row"]["L"], {"BOOL": True}]}}, []),
        (Person.row[0].remove(), {"row": {"L": [{"S": "two"}]}}, []),
        (Person.row[7].set("end"), {"row": {"L": [*PERSON["row"]["L"], {"S": "end"}]}}, []),
        (Person.address.town.set("Oslo"), {"at": {"M": {"t": {"S": "Oslo"}}}}, []),
        (Person.address.town.remove(), {"at": {"M": {}}}, []),
        (Person.raw.set(b"\x01"), {"raw": {"B": b"\x01"}}, []),
    ],
)
def test_what_an_update_changes(action, changed, removed):
    """Each of PynamoDB's actions, on an attribute and inside one; everything else stays."""
    assert difference(PERSON, updated(PERSON, request(action))) == (changed, removed)


def test_several_actions_see_the_item_as_it_was():
    """What one sets, the others do not see."""
    after = updated(PERSON, request(Person.age.set(Person.row[0] | 0), Person.row[0].set(Person.age + 0)))

    assert after["age"] == {"N": "1"}
    assert after["row"]["L"][0] == {"N": "7.5"}


@pytest.mark.parametrize("image", [None, {}])
def test_an_update_makes_an_item_of_the_key(image):
    """If there is none."""
    assert updated(image, request(Person.age.add(2))) == {**KEYS, "age": {"N": "2"}}
    assert updated(image, {"Key": {"f": {"S": "a"}, "born": {"N": "1.0"}}}) == KEYS


def test_an_update_of_nothing():
    """A request without an expression leaves the item as it is."""
    assert updated(PERSON, {"Key": KEYS}) == canonical_item(PERSON)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (request(Person.name.set("x"), condition=Person.age == 0), None),
        (raw("SET age = gone"), "refers to an attribute that does not exist in the item"),
        (raw("SET born = :v", v={"N": "2"}), "Cannot update attribute born. This attribute is part of the key"),
        (raw("REMOVE f"), "Cannot update attribute f. This attribute is part of the key"),
        (raw("SET n = :v, age = :v", v={"S": "x"}, w={"S": "y"}), "unused in expressions: keys: {:w}"),
        (raw("SET n = :v", v={"S": "x"}) | {"ConditionExpression": "n >"}, "Invalid ConditionExpression: Syntax error"),
        (
            raw("SET #n = :v", v={"S": "x"}) | {"ExpressionAttributeNames": {"#n": ""}},
            "ExpressionAttributeNames contains invalid value: Empty attribute name for key #n",
        ),
    ],
)
def test_updates_that_dynamodb_refuses(kwargs, message):
    """In its words, of which tests/unit/testing/test_memory_expressions.py has more. A false condition is none."""
    if message is None:
        assert updated(PERSON, kwargs)["n"] == {"S": "x"}
        return
    with pytest.raises(Refusal) as refusal:
        updated(PERSON, kwargs)
    assert refusal.value.code == "ValidationException"
    assert message in refusal.value.message


def test_an_update_that_nests_too_deeply():
    """31 maps and lists within each other are stored, also those that a path and a value make together."""
    deep: dict[str, Any] = {"S": "x"}
    for _ in range(30):
        deep = {"M": {"a": deep}}
    image = {**PERSON, "deep": deep}

    assert updated(image, raw("SET #at.x = deep") | {"ExpressionAttributeNames": {"#at": "at"}})["at"]["M"]["x"] == deep
    with pytest.raises(Refusal, match="Nesting Levels have exceeded supported limits"):
        updated({**image, "at": {"M": {"x": {"M": {}}}}}, raw("SET at1 = deep, #at.x.y = deep") | AT)


AT = {"ExpressionAttributeNames": {"#at": "at"}}


def test_nothing_is_shared_and_nothing_changed():
    """Image and request stay as they are, whatever is done to the result, of which no two parts are one object."""
    image = copy.deepcopy(PERSON)
    kwargs = raw("SET one = :v, two = :v, three = #at, tags = tags", v={"L": [{"M": {}}]}) | AT
    asked = copy.deepcopy(kwargs)

    after = updated(image, kwargs)
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

    assert (image, kwargs) == (PERSON, asked)


@pytest.mark.parametrize(
    ("condition", "with_item", "without"),
    [
        (None, True, True),
        (Person.name == "Ann", True, False),
        (Person.age == 7.5, True, False),
        (Person.age < 7, False, False),
        (Person.name.exists(), True, False),
        (Person.family.does_not_exist(), False, True),
        (Person.name != "Ann", False, True),
        (Person.address.town.startswith("Ro") & Person.tags.contains("x"), True, False),
        ((Person.age > 8) | ~(Person.row[1] == "two"), False, True),
        (Person.raw == b"\x00\xff", True, False),
    ],
)
def test_conditions(condition, with_item, without):
    """On an item, and on none; with an update beside it or alone."""
    for kwargs in (request(condition=condition), request(Person.name.set("new"), condition=condition)):
        assert (holds(PERSON, kwargs), holds(None, kwargs)) == (with_item, without)
    put = {"Item": Person("a", 1, name="new").serialize()} | request(condition=condition)
    del put["Key"]
    assert holds(PERSON, put) is with_item


@pytest.mark.parametrize("condition", ["n >", "n = :gone", "size(:v) > :v"])
def test_conditions_that_dynamodb_refuses(condition):
    """Whatever is stored."""
    kwargs = {"Key": KEYS, "ConditionExpression": condition, "ExpressionAttributeValues": {":v": {"N": "1"}}}
    with pytest.raises(Refusal, match="Invalid ConditionExpression"):
        holds(PERSON, kwargs)


def test_a_condition_leaves_the_image_alone():
    """And the request."""
    image, kwargs = copy.deepcopy(PERSON), request(condition=Person.tags == {"x", "y"})
    asked = copy.deepcopy(kwargs)

    assert holds(image, kwargs)
    assert (image, kwargs) == (PERSON, asked)


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
    sets = ", ".join(f"{name} = :{name}" for name in changed)
    text = (f"SET {sets} " if sets else "") + (f"REMOVE {', '.join(removed)}" if removed else "")

    assert updated(before, raw(text, **changed)) == canonical_item(after)


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
