"""What DynamoDB would refuse to store: each limit at the last value that fits and the first that does not.

tests/contract/test_images.py puts the same items into the engines.
"""

from __future__ import annotations

import copy

import pytest

from pynamo_locking._core.dynamodb import KeyRule, problems
from tests.support.boundaries import ITEMS, KEY, REFUSED, RULES, STORED, nested, number, text

TOO_LONG = "the attribute '{}' cannot be stored: Attribute name is too large, must be less than 65536 bytes"


@pytest.mark.parametrize("name", STORED)
def test_what_just_fits(name):
    """No problem is found where DynamoDB has none."""
    assert problems(ITEMS[name], RULES) == []


@pytest.mark.parametrize("name", [name for name in ITEMS if name not in STORED])
def test_what_just_does_not_fit(name):
    """A problem is found, and the item is as it was."""
    before = copy.deepcopy(ITEMS[name])

    assert problems(ITEMS[name], RULES)
    assert before == ITEMS[name]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"h": text(2049)}, ["the hash key 'h' has 2,049 bytes, and may have 2,048"]),
        ({"h": text(0)}, ["the hash key 'h' is empty"]),
        ({"r": number("1")}, ["the range key 'r' is a number, and must be a string"]),
        ({"gr": {"B": b""}}, ["the range key 'gr' of the index 'global' is empty"]),
        ({"gh": {"NULL": True}}, ["the hash key 'gh' of the index 'global' is null, and must be a string"]),
        ({"num": {"L": []}}, ["the hash key 'num' of the index 'numbers' is a list, and must be a number"]),
        (
            {"a": number("1" * 39)},
            ["the attribute 'a' cannot be stored: Attempting to store more than 38 significant digits in a Number"],
        ),
        (
            {"a": nested(32, text(1))},
            ["the attribute 'a' cannot be stored: Nesting Levels have exceeded supported limits"],
        ),
        (
            {"f": text(400 * 1024)},
            ["the item has 409,605 bytes, and DynamoDB stores at most 409,600"],
        ),
        ({"n" * 65_535: text(1)}, []),
        ({"n" * 65_536: text(1)}, [TOO_LONG.format("n" * 40)]),
        ({"é" * 32_768: text(1)}, [TOO_LONG.format("é" * 40)]),
        ({"🔒" * 16_384: text(1)}, [TOO_LONG.format("🔒" * 40)]),
    ],
)
def test_the_words(attributes, expected):
    """A problem says which attribute, of which index, and what is allowed."""
    rules = [rule for rule in RULES if rule.index != "inverted"]

    assert problems({**KEY, **attributes}, rules) == expected


def test_all_problems_are_told():
    """Not only the first: attributes, then keys, then the size."""
    item = {"h": text(0), "a": {"SS": []}, "num": text(1), "b": number("x"), "f": text(400 * 1024)}

    assert [problem.split(" cannot ")[0] for problem in problems(item, RULES)] == [
        "the attribute 'a'",
        "the attribute 'b'",
        "the hash key 'h' is empty",
        "the range key 'r' is missing",
        "the hash key 'num' of the index 'numbers' is a string, and must be a number",
        "the range key 'h' of the index 'inverted' is empty",
        "the item has 409,606 bytes, and DynamoDB stores at most 409,600",
    ]


def test_a_key_that_cannot_be_stored_is_not_missing():
    """It is one problem, not two."""
    assert len(problems({"n": number("x")}, [KeyRule("n", "N", "hash")])) == 1


def test_an_attribute_of_several_keys_has_the_limits_of_each():
    """As hash key it may have 2,048 bytes, as range key 1,024."""
    rules = [KeyRule("a", "S", "hash"), KeyRule("a", "S", "range", "turned")]

    assert problems({"a": text(1024)}, rules) == []
    assert problems({"a": text(1025)}, rules) == [
        "the range key 'a' of the index 'turned' has 1,025 bytes, and may have 1,024"
    ]


def test_a_problem_of_several_indexes_is_told_once():
    """Of the first of them: a local index has the hash key of its table."""
    rules = [KeyRule("a", "S", "hash"), KeyRule("a", "S", "hash", "one"), KeyRule("a", "S", "hash", "two")]

    assert problems({"a": text(0)}, rules) == ["the hash key 'a' is empty"]
    assert problems({"a": text(0)}, rules[1:]) == ["the hash key 'a' of the index 'one' is empty"]


def test_the_names_of_the_cases_differ():
    """None hides another."""
    assert len(ITEMS) == len(STORED) + len(REFUSED) + 2
