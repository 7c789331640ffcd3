"""What is worked out here without a request is what DynamoDB does: updates, conditions, limits of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pynamodb.attributes import (
    BinaryAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    NumberSetAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
)
from pynamodb.constants import KEY
from pynamodb.expressions.condition import size
from pynamodb.expressions.operand import Path, _IfNotExists
from pynamodb.expressions.update import RemoveAction
from pynamodb.models import Model

from pynamo_locking._core.dynamodb import problems
from pynamo_locking._core.values import Refusal, canonical_item
from pynamo_locking._items.effects import difference, holds, updated
from tests.contract.helpers import INVALID, REFUSED
from tests.support import boundaries
from tests.support.models import meta

if TYPE_CHECKING:
    from tests.engines.engine import Engine

#: Where an engine stores what another one, or DynamoDB's documentation, says is not stored.
DEVIATIONS = {
    "memory": set[str](),
    "dynoxide": {
        "31 lists around an empty map",
        "empty name",
        "empty name in a map",
        "hash key that is too long for another index",
        "index hash key of 2,049 bytes",
        "index range key of 1,025 bytes",
        "index range key of 1,025 bytes, alone",
        "index range key of 1,025 bytes, local",
    },
    "dynamodb-local": set[str](),
    "aws": set[str](),
}


def test_items_that_are_stored_and_items_that_are_not(concurrent_engine: Engine) -> None:
    """Each item at a limit is stored, or refused as invalid, as `problems` says of it.

    Not on moto, which knows few of the limits, and crashes on some of the items.
    """
    engine = concurrent_engine
    client, table = engine.client(), boundaries.create_table(engine.client(), engine.new_name())
    engine.await_table(table)

    said = {name: not problems(item, boundaries.RULES) for name, item in boundaries.ITEMS.items()}
    done = {name: is_stored(client, table, item) for name, item in boundaries.ITEMS.items()}

    assert {name for name in said if said[name] is not done[name]} == DEVIATIONS[engine.name]


def is_stored(client: Any, table: str, item: dict[str, Any]) -> bool:
    try:
        client.put_item(TableName=table, Item=item)
    except ClientError as error:
        if error.response["Error"]["Code"] != INVALID:
            raise
        return False
    return True


class Part(MapAttribute):
    num = NumberAttribute(null=True)
    word = UnicodeAttribute(attr_name="w", null=True)
    row = ListAttribute(null=True)


class Whole(Part):
    part = Part(null=True, attr_name="p")


class Thing(Model):
    Meta = meta("thing")

    pk = UnicodeAttribute(hash_key=True, attr_name="key")
    num = NumberAttribute(null=True, attr_name="n")
    other = NumberAttribute(null=True)
    word = UnicodeAttribute(null=True)
    raw = BinaryAttribute(null=True, legacy_encoding=False)
    tags = UnicodeSetAttribute(null=True)
    nums = NumberSetAttribute(null=True)
    row = ListAttribute(null=True)
    doc = Whole(null=True)


KEYS = {"key": {"S": "a"}}

numbers = st.sampled_from([0, 1, -1, 1.5, 0.1, 10**37, 9e125])
few = st.sampled_from([0, 1, 1.5])
words = st.sampled_from(["", "a", "ab", "é", "😀"])
raws = st.sampled_from([b"", b"a", b"\xff\x00"])
tag_sets = st.sets(st.sampled_from("abc"), min_size=1)
number_sets = st.sets(st.sampled_from([1, 2, 2.5]), min_size=1)
rows = st.lists(numbers | words | st.booleans(), max_size=2)


def some(kind: type[MapAttribute], **more: Any) -> Any:
    return st.fixed_dictionaries({}, optional={"num": numbers, "word": words, "row": rows, **more}).map(
        lambda found: kind(**found)
    )


parts = some(Part)
wholes = some(Whole, part=parts)
things = st.fixed_dictionaries(
    {"row": st.lists(numbers | words, min_size=2, max_size=3), "doc": some(Whole, part=parts)},
    optional={"num": numbers, "other": numbers, "word": words, "raw": raws, "tags": tag_sets, "nums": number_sets},
).map(lambda found: Thing("a", **found))

NUMBERS = [Thing.num, Thing.other, Thing.doc.num, Thing.doc.part.num]
WORDS = [Thing.word, Thing.doc.word, Thing.doc.part.word]
ROWS = [Thing.row, Thing.doc.row, Thing.doc.part.row]
ELEMENTS = [Thing.row[0], Thing.row[1], Thing.row[2], Thing.row[9], Thing.doc.row[0]]
SIZED = [*WORDS, *ROWS, Thing.row[0], Thing.tags, Thing.nums, Thing.raw, Thing.doc]
EVERYTHING = [*NUMBERS, *WORDS, *ROWS, *ELEMENTS, Thing.tags, Thing.nums, Thing.raw, Thing.doc, Thing.doc.part]


def on(paths: list[Any], make: Any, *operands: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Actions, or conditions, of one form: of a path, and of operands."""
    return st.tuples(st.integers(0, len(paths) - 1), *operands).map(lambda drawn: make(paths[drawn[0]], *drawn[1:]))


def path_of(paths: list[Any]) -> st.SearchStrategy[Any]:
    return on(paths, lambda path: path)


of_elements = st.one_of(
    on(ELEMENTS, lambda path, value: path.set(value), numbers | words),
    on(ELEMENTS, lambda path, value: path.add(value), numbers),
    on(ELEMENTS, lambda path: path.remove()),
)
actions = st.one_of(
    on(NUMBERS, lambda path, value: path.set(value), numbers),
    on(NUMBERS, lambda path, other, value: path.set(other + value), path_of(NUMBERS), numbers),
    on(NUMBERS, lambda path, other, value: path.set(other - value), path_of(NUMBERS), numbers),
    on(NUMBERS, lambda path, other, value: path.set(other + value), path_of(ELEMENTS), numbers),
    on(NUMBERS, lambda path, value, more: path.set((path | value) + more), numbers, numbers),
    on(NUMBERS, lambda path, others: path.set(others[0] | others[1]), st.permutations(NUMBERS)),
    on(NUMBERS, lambda path, value: path.add(value), numbers),
    on(WORDS, lambda path, value: path.set(value), words),
    on([Thing.word], lambda path, value: path.set(Thing.doc.word | value), words),
    on(ROWS, lambda path, value: path.set(value), rows),
    on(ROWS, lambda path, other, value: path.set(other.append(value)), path_of(ROWS), rows),
    on(ROWS, lambda path, value: path.set(path.prepend(value)), rows),
    on(ROWS, lambda path, value, more: path.set((path | value).append(more)), rows, rows),
    of_elements,
    on([Thing.doc.part], lambda path, value: path.set(value), parts),
    on([Thing.doc], lambda path, value: path.set(value), wholes),
    on([Thing.tags], lambda path, value: path.set(value), tag_sets),
    on([Thing.tags], lambda path, value: path.add(value), tag_sets),
    on([Thing.tags], lambda path, value: path.delete(value), tag_sets),
    on([Thing.nums], lambda path, value: path.add(value), number_sets),
    on([Thing.nums], lambda path, value: path.delete(value), number_sets),
    on([Thing.raw], lambda path, value: path.set(value), raws),
    on(EVERYTHING, lambda path: path.remove()),
)
comparisons = st.one_of(
    on(NUMBERS, lambda path, value: path == value, numbers),
    on(NUMBERS, lambda path, value: path != value, numbers),
    on(NUMBERS, lambda path, value: path < value, numbers),
    on(NUMBERS, lambda path, other: path >= other, path_of([Thing.row[0], Thing.row[1]])),
    on([*NUMBERS, *ELEMENTS], lambda path, low, more: path.between(low, low + more), few, few),
    on(NUMBERS, lambda path, one, two: path.is_in(one, two), numbers, numbers),
    on(WORDS, lambda path, value: path.startswith(value), words),
    on(ELEMENTS, lambda path, value: path < value, numbers | words),
    on(ELEMENTS, lambda path, choices: path.is_in(*choices), st.lists(numbers | words, min_size=2, max_size=6)),
    on(SIZED, lambda path, value: size(path) > value, st.integers(0, 3)),
    on([*WORDS, Thing.tags, Thing.row], lambda path, value: path.contains(value), st.sampled_from(["a", "ab"])),
    on([Thing.doc], lambda path, value: path == value, wholes),
    on([Thing.raw], lambda path, value: path > value, raws),
    on(EVERYTHING, lambda path: path.exists()),
    on(EVERYTHING, lambda path: path.does_not_exist()),
    on([*NUMBERS, *WORDS, *ROWS, Thing.tags, Thing.doc], lambda path: path.is_type()),
)
conditions = st.recursive(
    comparisons, lambda inner: st.tuples(inner, inner).map(lambda two: two[0] & two[1]) | inner.map(lambda one: ~one)
)

examples = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture
def bound(concurrent_engine: Engine) -> Any:
    """The model with a table, and a client; on all engines but moto, which evaluates otherwise in many ways."""
    return concurrent_engine.bind(Thing), concurrent_engine


def sent(engine: Engine, before: dict[str, Any] | None, changes: list[Any], condition: Any = None) -> Any:
    """The item that DynamoDB has after a request on another one, or on none; or the code with which it refuses."""
    client = engine.client()
    kwargs = Thing._get_connection().get_operation_kwargs("a", key=KEY, actions=changes, condition=condition)
    if before is None:
        client.delete_item(TableName=kwargs["TableName"], Key=KEYS)
    else:
        client.put_item(TableName=kwargs["TableName"], Item=before)
    try:
        answer = client.update_item(**kwargs, ReturnValues="ALL_NEW")
    except ClientError as error:
        return error.response["Error"]["Code"]
    return canonical_item(answer["Attributes"])


def expected(before: dict[str, Any] | None, changes: list[Any], condition: Any = None) -> Any:
    """The same, worked out from the trees, of which the request has the text."""
    try:
        return updated(before, KEYS, changes) if holds(before, condition) else REFUSED
    except Refusal as refusal:
        return refusal.code


def dynoxide_differs(before: dict[str, Any], changes: list[Any]) -> bool:
    """Tell whether an update has something that dynoxide does otherwise than DynamoDB.

    It makes the map that a path lacks, fills a list up to the place of a new element, and loses the places of
    the others when an element goes. Of `if_not_exists` it does not evaluate what it does not need.
    """
    needless = any(
        isinstance(of, _IfNotExists) and isinstance(of.values[1], Path) for each in changes for of in each.values
    )
    return needless or any(
        (path[:2] == ["doc", "p"] and len(path) > 2 and "p" not in before["doc"]["M"])
        or (path[-1].endswith("]") and (isinstance(change, RemoveAction) or not has_element(before, path)))
        for change, path in ((change, change.values[0].path) for change in changes)
    )


def has_element(before: dict[str, Any], path: list[str]) -> bool:
    for name in path[:-1]:
        before = before.get(name, {}).get("M", {})
    name, _, place = path[-1].rstrip("]").partition("[")
    return int(place) < len(before.get(name, {}).get("L", ()))


def stored(**values: Any) -> Thing:
    """An item for an example that chance seldom makes."""
    return Thing("a", doc=Whole(), **values)


@examples
@example(stored(row=[1, 2, 3]), [Thing.row[0].remove(), Thing.row[1].remove()])
@example(stored(tags={"a"}), [Thing.tags.delete({"a"})])
@example(stored(tags={"a", "b"}), [Thing.tags.delete({"a"})])
@example(stored(num=1), [Thing.num.set(Thing.num | Thing.other)])
@example(stored(num=1), [Thing.doc.num.set(1), Path("doc")[0].set(1)])
@given(thing=things, changes=st.lists(of_elements | actions, min_size=1, max_size=4))
def test_random_updates(bound: Any, thing: Thing, changes: list[Any]) -> None:
    """The item afterwards is the same, or both refuse; what differs, done as an update, gives it again."""
    _, engine = bound
    before = thing.serialize()
    assume(engine.name != "dynoxide" or not dynoxide_differs(before, changes))

    after = sent(engine, before, changes)

    assert after == expected(before, changes), changes
    if isinstance(after, dict):
        changed, removed = difference(before, after)
        assert {name: value for name, value in canonical_item(before).items() if name not in removed} | changed == after


@examples
@example(stored(num=1), Thing.num.between(1, 2))
@example(stored(num=1), Thing.num.between(0, 1))
@example(stored(num=1), Path("n").is_type("S"))
@given(thing=st.none() | things, condition=conditions)
def test_random_conditions(bound: Any, thing: Thing | None, condition: Any) -> None:
    """A condition lets an update through where it holds, of an item or of none."""
    _, engine = bound
    before, changes = thing and thing.serialize(), [Thing.other.set(5)]

    assert sent(engine, before, changes, condition) == expected(before, changes, condition), condition
