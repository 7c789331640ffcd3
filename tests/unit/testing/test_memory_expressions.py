"""The expression language of the in-memory DynamoDB, alone and beside an emulator."""

from __future__ import annotations

import re
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pynamo_locking._core.values import Refusal, canonical_item, copy_of
from pynamo_locking_testing import MemoryDynamoDB
from pynamo_locking_testing._expressions import Expressions

N, S, B, BOOL, L, M, SS, NS, BS = ("N", "S", "B", "BOOL", "L", "M", "SS", "NS", "BS")


def n(number: float | str) -> dict[str, str]:
    return {"N": str(number)}


def s(text: str) -> dict[str, str]:
    return {"S": text}


NULL = {"NULL": True}

#: What the tables below are about.
ITEM = canonical_item(
    {
        "num": n("12.50"),
        "big": n("9" * 38),
        "word": s("hello"),
        "smile": s("é😀"),
        "octets": {"B": b"\x00abc"},
        "yes": {"BOOL": True},
        "nil": NULL,
        "texts": {"SS": ["b", "a"]},
        "nums": {"NS": ["10", "9"]},
        "items": {"L": [n(1), s("two"), {"M": {"three": n(3)}}]},
        "doc": {"M": {"a": n(1), "deep": {"M": {"b": s("x")}}, "hollow": {"M": {}}, "tags": {"SS": ["x"]}}},
    }
)
VALUES: dict[str, Any] = {
    ":zero": n(0),
    ":one": n(1),
    ":num": n("1.25E1"),
    ":twelve": n(12),
    ":thirteen": n(13),
    ":half": n("0.5"),
    ":word": s("hello"),
    ":prefix": s("he"),
    ":middle": s("ell"),
    ":x": s("x"),
    ":type_n": s("N"),
    ":type_m": s("M"),
    ":nonsense": s("Q"),
    ":raw": {"B": b"abc"},
    ":yes": {"BOOL": True},
    ":nil": NULL,
    ":texts": {"SS": ["a", "b"]},
    ":letters": {"SS": ["b", "c"]},
    ":nums": {"NS": ["9.0", "1e1"]},
    ":list": {"L": [n(4)]},
    ":map": {"M": {"three": n("3.0")}},
}
NAMES = {"#n": "num", "#size": "size", "#d": "doc", "#a": "a", "#deep": "deep", "#items": "items"}


def expressions(kind: str, text: str) -> Expressions:
    """The request with this expression, and with those names and values that it uses."""
    used = set(re.findall(r"[#:]\w+", text))
    request: dict[str, Any] = {kind: text}
    if names := {key: name for key, name in NAMES.items() if key in used}:
        request["ExpressionAttributeNames"] = names
    if values := {key: value for key, value in VALUES.items() if key in used}:
        request["ExpressionAttributeValues"] = values
    return Expressions(request, kind)


def holds(text: str, item: dict[str, Any] | None = None) -> bool:
    bound = expressions("ConditionExpression", text)
    condition = bound.condition()
    bound.check_all_used()
    assert condition is not None
    return condition.holds(ITEM if item is None else item)


def updated(text: str) -> dict[str, Any]:
    """What differs in the item after an update; None where something is gone."""
    before = copy_of(ITEM)
    update = expressions("UpdateExpression", text).update()
    assert update is not None
    after = update.apply(ITEM)
    assert before == ITEM, "a stored item is never changed"
    return {name: after.get(name) for name in {*ITEM, *after} if after.get(name) != ITEM.get(name)}


def projected(text: str) -> dict[str, Any]:
    projection = expressions("ProjectionExpression", text).projection()
    assert projection is not None
    return projection.of(ITEM)


@pytest.mark.parametrize(
    "condition",
    [
        "num = :num",
        "#n = :num",
        "num <> :one",
        "num > :twelve",
        "num >= :num",
        "num < :thirteen",
        "num <= :num",
        ":twelve < num",
        "(num) = :num",
        "num BETWEEN :twelve AND :thirteen",
        "num BETWEEN :num AND :num",
        "word between :prefix and :x",
        "num IN (:one, :num)",
        "num in (:word, num2, :num)",
        "big > :num",
        "word = :word",
        "word > :prefix",
        "octets < :raw",
        "yes = :yes",
        "nil = :nil",
        "texts = :texts",
        "nums = :nums",
        "#items[2] = :map",
        "#items[2].three > :one",
        "#d.#deep.b = :x",
        "doc.a = #items[0]",
        "attribute_exists(nil)",
        "attribute_exists(#items[2].three)",
        "attribute_not_exists(#items[3])",
        "attribute_not_exists(num.a)",
        "attribute_not_exists(#items.a)",
        "attribute_not_exists(doc[0])",
        "attribute_type(num, :type_n)",
        "attribute_type(doc.hollow, :type_m)",
        "begins_with(word, :prefix)",
        "contains(word, :middle)",
        "contains(texts, :x) OR contains(doc.tags, :x)",
        "contains(octets, :raw)",
        "contains(nums, #n) OR contains(#items, :one)",
        "contains(#items, :map)",
        "contains(:texts, doc) OR NOT contains(num, :one)",
        "size(word) > size(texts)",
        "size(doc.hollow) = :zero",
        "size(#items) BETWEEN :one AND :twelve",
        "NOT size(num) >= :zero",
        "num = :num AND NOT word = :x OR yes = :nil",
        "NOT NOT num = :num",
        "num = :one OR word = :word AND nil = :nil",
        "NOT (num = :one AND word = :word)",
        "gone <> :one",
        "gone <> gone2",
        "NOT gone = :one",
        "NOT gone < :one",
        "num <> :word",
    ],
)
def test_conditions_that_hold(condition):
    """Each of them is true of the item."""
    assert holds(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "num = :word",
        "num < :word",
        "num > :word",
        "gone = :one",
        "gone < :one",
        "gone = gone2",
        "gone IN (:one)",
        "gone BETWEEN :zero AND :one",
        "size(gone) >= :zero",
        "size(num) >= :zero",
        "size(yes) >= :zero",
        "attribute_exists(gone)",
        "attribute_exists(doc.gone.b)",
        "attribute_type(gone, :type_n)",
        "begins_with(num, :prefix)",
        "begins_with(octets, :raw)",
        "begins_with(gone, :prefix)",
        "contains(num, :one)",
        "contains(word, :one)",
        "contains(texts, :letters)",
        "contains(gone, :x)",
        "num = :num AND word = :x",
        "NOT (num = :num OR gone = :x)",
        "word < :prefix",
        "nil = :yes",
    ],
)
def test_conditions_that_do_not_hold(condition):
    """Each of them is false of the item, and no error."""
    assert not holds(condition)


def test_nothing_is_true_of_no_item_but_absence():
    """A condition on an item that does not exist sees no attribute."""
    assert holds("attribute_not_exists(num) AND gone <> :one", {})
    assert not holds("attribute_exists(num) OR num = :num", {})


def test_texts_are_ordered_by_their_bytes_and_measured_as_in_java():
    """UTF-8 puts an emoji behind every other character; its size is two."""
    after_surrogates = {"smile": s("😀"), "word": s("\uffee")}
    assert holds("smile > word", after_surrogates)
    assert not holds("size(smile) = :one", after_surrogates)
    assert holds("size(smile) > :one", after_surrogates)


def test_numbers_have_38_digits_exactly():
    """The last one counts, where a float would lose it."""
    item = canonical_item({"big": n("1" + "0" * 36 + "1"), "num": n("1" + "0" * 36 + "2")})
    assert holds("big < num", item)
    assert not holds("big = num", item)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ("SET num = :one", {"num": n(1)}),
        ("SET num = num + :half", {"num": n(13)}),
        ("SET num = :one - num", {"num": n("-11.5")}),
        ("SET num = (num - :half)", {"num": n(12)}),
        ("SET fresh = num, num = :one", {"fresh": n("12.5"), "num": n(1)}),
        ("SET num = doc.a, doc.a = num", {"num": n(1), "doc": {**ITEM["doc"]["M"], "a": n("12.5")}}),
        ("SET doc.fresh = :x", {"doc": {**ITEM["doc"]["M"], "fresh": s("x")}}),
        ("SET doc.#deep.b = :one", {"doc": {**ITEM["doc"]["M"], "deep": {"M": {"b": n(1)}}}}),
        ("SET #items[0] = :x", {"items": [s("x"), *ITEM["items"]["L"][1:]]}),
        ("SET #items[9] = :x, #items[7] = :one", {"items": [*ITEM["items"]["L"], n(1), s("x")]}),
        ("SET fresh = if_not_exists(num, :one)", {"fresh": n("12.5")}),
        ("SET fresh = if_not_exists(fresh, :one)", {"fresh": n(1)}),
        ("SET fresh = if_not_exists(gone, :zero) + :one", {"fresh": n(1)}),
        ("SET #items = list_append(#items, :list)", {"items": [*ITEM["items"]["L"], n(4)]}),
        ("SET #items = list_append(:list, #items)", {"items": [n(4), *ITEM["items"]["L"]]}),
        ("SET l2 = list_append(if_not_exists(l2, :list), :list)", {"l2": [n(4), n(4)]}),
        ("REMOVE num, word", {"num": None, "word": None}),
        ("REMOVE gone, doc.gone, #items[9]", {}),
        ("REMOVE #items[0], #items[1]", {"items": ITEM["items"]["L"][2:]}),
        ("REMOVE #items[2].three", {"items": [*ITEM["items"]["L"][:2], {"M": {}}]}),
        ("REMOVE doc.a, doc.#deep", {"doc": {name: ITEM["doc"]["M"][name] for name in ("hollow", "tags")}}),
        ("SET #items[2] = :one REMOVE #items[0]", {"items": [s("two"), n(1)]}),
        ("ADD num :half", {"num": n(13)}),
        ("ADD fresh :one", {"fresh": n(1)}),
        ("ADD doc.fresh :one", {"doc": {**ITEM["doc"]["M"], "fresh": n(1)}}),
        ("ADD texts :letters", {"texts": {"SS": ["a", "b", "c"]}}),
        ("ADD fresh :letters", {"fresh": {"SS": ["b", "c"]}}),
        ("DELETE texts :letters", {"texts": {"SS": ["a"]}}),
        ("DELETE texts :texts", {"texts": None}),
        ("DELETE nums :nums", {"nums": None}),
        ("DELETE gone :texts, doc.gone :texts", {}),
        ("ADD num :one DELETE texts :letters SET word = :x REMOVE yes", None),
        ("set num = :one remove word", {"num": n(1), "word": None}),
    ],
)
def test_updates(update, expected):
    """What each of them changes; all operands are as before the update."""
    if expected is None:
        expected = {"num": n("13.5"), "texts": {"SS": ["a"]}, "word": s("x"), "yes": None}
    kinds = {dict: "M", list: "L"}
    wrapped = {
        name: {kinds[type(value)]: value} if name in {"doc", "items", "l2"} else value
        for name, value in expected.items()
    }
    assert updated(update) == wrapped


@pytest.mark.parametrize(
    ("projection", "expected"),
    [
        ("num", {"num": n("12.5")}),
        ("num, gone", {"num": n("12.5")}),
        ("doc.a, #d.#deep.b", {"doc": {"M": {"a": n(1), "deep": {"M": {"b": s("x")}}}}}),
        ("#items[2].three, #items[0], #items[8]", {"items": {"L": [n(1), {"M": {"three": n(3)}}]}}),
        ("doc.gone, num.a, word[0]", {}),
    ],
)
def test_projections(projection, expected):
    """The named parts, in their places."""
    assert projected(projection) == expected


CONDITION, UPDATE, PROJECTION = "ConditionExpression", "UpdateExpression", "ProjectionExpression"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (CONDITION, "", "The expression can not be empty;"),
        (CONDITION, "num", 'Syntax error; token: "<EOF>", near: "num"'),
        (CONDITION, "num = ", 'Syntax error; token: "<EOF>"'),
        (CONDITION, "num == :one", 'Syntax error; token: "=", near: "== :one"'),
        (CONDITION, "num = :one $", 'Syntax error; token: "$", near: ":one $"'),
        (CONDITION, "num = :one word = :x", 'Syntax error; token: "word", near: ":one word ="'),
        (CONDITION, "NOT num", "Syntax error"),
        (CONDITION, "num AND word", "Syntax error"),
        (CONDITION, "num[a] = :one", "Syntax error"),
        (CONDITION, "(num = :one", "Syntax error"),
        (CONDITION, "_num = :one", "Syntax error"),
        (CONDITION, "((num = :one))", "The expression has redundant parentheses;"),
        (CONDITION, "size = :one", "Attribute name is a reserved keyword; reserved keyword: size"),
        (CONDITION, "doc.Name = :one", "Attribute name is a reserved keyword; reserved keyword: Name"),
        (CONDITION, "foo(num)", "Invalid function name; function: foo"),
        (CONDITION, "if_not_exists(num, :one)", "not allowed in a condition expression; function: if_not_exists"),
        (CONDITION, "attribute_exists(num, word)", "Incorrect number of operands for operator or function"),
        (CONDITION, "attribute_exists(:one)", "Operator or function requires a document path"),
        (CONDITION, "num = :gone", "An expression attribute value used in expression is not defined"),
        (CONDITION, "#gone = :one", "An expression attribute name used in the document path is not defined"),
        (CONDITION, "num < :map", "Incorrect operand type for operator or function; operator or function: <"),
        (CONDITION, "begins_with(word, :one)", "operator or function: begins_with, operand type: N"),
        (CONDITION, "size(:one) > :one", "operator or function: size, operand type: N"),
        (CONDITION, "attribute_type(num, :nonsense)", "Invalid attribute type name found; type: Q"),
        (CONDITION, "num BETWEEN :one AND :zero", "requires upper bound to be greater than or equal to lower bound"),
        (CONDITION, "num BETWEEN :one AND :x", "requires same data type for lower and upper bounds"),
        (CONDITION, "num = #n", "The first operand must be distinct from the remaining operands"),
        (CONDITION, "num IN (" + ",".join([":one"] * 101) + ")", "The IN operator is provided with too many operands"),
        (CONDITION, " AND ".join(["num=:one"] * 151), "too many operators; operator count: 301"),
        (CONDITION, "attribute_exists(" + "a" * 4096 + ")", "Expression size has exceeded the maximum allowed size"),
        (UPDATE, " ", 'Syntax error; token: "<EOF>"'),
        (UPDATE, "num = :one", 'Syntax error; token: "num"'),
        (UPDATE, "SET num :one", 'Syntax error; token: ":one", near: "num :one"'),
        (UPDATE, "SET num = :one,", 'Syntax error; token: "<EOF>"'),
        (UPDATE, "SET num = :one SET word = :x", 'The "SET" section can only be used once'),
        (UPDATE, "SET num = num + :one + :one", 'Syntax error; token: "+"'),
        (UPDATE, "SET num = num + :x", "operator or function: +, operand type: S"),
        (UPDATE, "SET num = size(word)", "not allowed in an update expression; function: size"),
        (UPDATE, "SET num = foo(word)", "Invalid function name; function: foo"),
        (UPDATE, "SET num = if_not_exists(:one, :one)", "Operator or function requires a document path"),
        (UPDATE, "SET #items = list_append(#items, :one)", "list_append, operand type: N"),
        (UPDATE, "ADD num word", "Syntax error"),
        (UPDATE, "ADD num :x", "operator: ADD, operand type: STRING, typeSet: ALLOWED_FOR_ADD_OPERAND"),
        (UPDATE, "DELETE texts :one", "operator: DELETE, operand type: NUMBER, typeSet: ALLOWED_FOR_DELETE_OPERAND"),
        (UPDATE, "SET num = :one, #n = :one", "Two document paths overlap with each other"),
        (UPDATE, "SET doc = :map REMOVE doc.deep.b", "path one: [doc], path two: [doc, deep, b]"),
        (UPDATE, "SET doc.a = :one REMOVE doc.ab, doc[1]", "Two document paths conflict with each other"),
        (PROJECTION, "num,", "Syntax error"),
        (PROJECTION, "doc, doc.a", "Two document paths overlap with each other"),
    ],
)
def test_expressions_that_are_refused(kind, text, message):
    """Whatever the item: with the words that DynamoDB has for it."""
    with pytest.raises(Refusal) as refusal:
        bound = expressions(kind, text)
        {CONDITION: bound.condition, UPDATE: bound.update, PROJECTION: bound.projection}[kind]()
    assert refusal.value.code == "ValidationException"
    assert refusal.value.message.startswith(f"Invalid {kind}: ")
    assert message in refusal.value.message


MISSING_OPERAND = "The provided expression refers to an attribute that does not exist in the item"
WRONG_OPERAND = "An operand in the update expression has an incorrect data type"
WRONG_PATH = "The document path provided in the update expression is invalid for update"


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("SET num = gone", MISSING_OPERAND),
        ("SET num = gone + :one", MISSING_OPERAND),
        ("SET num = if_not_exists(num, gone)", MISSING_OPERAND),
        ("SET num = word + :one", WRONG_OPERAND),
        ("SET fresh = list_append(num, :list)", WRONG_OPERAND),
        ("ADD word :one", WRONG_OPERAND),
        ("ADD nums :texts", WRONG_OPERAND),
        ("DELETE nums :texts", WRONG_OPERAND),
        ("SET gone.a = :one", WRONG_PATH),
        ("SET num.a = :one", WRONG_PATH),
        ("SET doc[0] = :one", WRONG_PATH),
        ("SET #items.a = :one", WRONG_PATH),
        ("REMOVE gone.a", WRONG_PATH),
        ("REMOVE doc[0]", WRONG_PATH),
        ("DELETE doc.gone.a :texts", WRONG_PATH),
        ("SET big = big + :half", "Attempting to store more than 38 significant digits in a Number"),
    ],
)
def test_updates_that_the_item_does_not_allow(update, message):
    """Missing operands, wrong types and paths that lead nowhere."""
    with pytest.raises(Refusal) as refusal:
        updated(update)
    assert refusal.value.message == message


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"ExpressionAttributeNames": {"#a": "a"}},
            "ExpressionAttributeNames can only be specified when using expressions",
        ),
        (
            {"ExpressionAttributeValues": {":a": n(1)}},
            "ExpressionAttributeValues can only be specified when using expressions: ConditionExpression is null",
        ),
        (
            {CONDITION: "a = b", "ExpressionAttributeNames": {"#b": "b", "#a": "a"}},
            "Value provided in ExpressionAttributeNames unused in expressions: keys: {#a, #b}",
        ),
        (
            {CONDITION: "a = :a", "ExpressionAttributeValues": {":a": n(1), ":b": n(1)}},
            "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}",
        ),
        (
            {CONDITION: "a = :a", "ExpressionAttributeValues": {":a": n(1), "b": n(1)}},
            'ExpressionAttributeValues contains invalid key: Syntax error; key: "b"',
        ),
        ({CONDITION: "a = b", "ExpressionAttributeNames": {}}, "ExpressionAttributeNames must not be empty"),
        (
            {CONDITION: "a = :a", "ExpressionAttributeValues": {":a": {"SS": []}}},
            (
                "ExpressionAttributeValues contains invalid value: One or more parameter values were invalid: "
                "An string set  may not be empty for key :a"
            ),
        ),
        (
            {CONDITION: "a = :a", "ExpressionAttributeValues": {":a": n("abc")}},
            (
                "ExpressionAttributeValues contains invalid value: "
                "The parameter cannot be converted to a numeric value: abc for key :a"
            ),
        ),
    ],
)
def test_names_and_values_that_are_refused(request_, message):
    """Unused, missing, empty or malformed ones."""
    with pytest.raises(Refusal) as refusal:
        bound = Expressions(request_, CONDITION)
        bound.condition()
        bound.check_all_used()
    assert refusal.value.message == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "Supplied AttributeValue is empty"),
        ({"S": "a", "N": "1"}, "Supplied AttributeValue has more than one datatypes set"),
        ({"Q": "a"}, "Supplied AttributeValue is empty"),
        (n("1E126"), "Number overflow"),
        (n("1E+9999999"), "Number overflow"),
        (n("1E-9999999"), "Number underflow"),
        (n("1E-131"), "Number underflow"),
        (n("1" * 39), "more than 38 significant digits"),
        (n("NaN"), "cannot be converted to a numeric value"),
        (n("1_0"), "cannot be converted to a numeric value"),
        ({"NS": ["1", "1.0"]}, "Input collection contains duplicates"),
        ({"SS": ["a", "a"]}, "Input collection [a, a] contains duplicates"),
        ({"NULL": False}, "Null attribute value types must have the value of true"),
    ],
)
def test_values_that_are_refused(value, message):
    """What DynamoDB does not store."""
    with pytest.raises(Refusal, match=message.replace("[", r"\[").replace("]", r"\]")):
        canonical_item({"a": value})


# Beside an emulator


HASH = {"pk": s("a")}
numbers = st.sampled_from(["0", "1", "-1", "1.5", "10", "1e1", "0.10"]).map(n)
texts = st.sampled_from(["", "a", "ab", "b", "é", "\uffee", "😀"]).map(s)
raws = st.sampled_from([b"", b"a", b"ab", b"\xff"]).map(lambda raw: {"B": raw})
scalars = numbers | texts | raws
text_sets = st.sets(st.sampled_from("ab"), min_size=1).map(lambda found: {"SS": sorted(found)})
number_sets = st.sets(st.sampled_from("12"), min_size=1).map(lambda found: {"NS": sorted(found)})
flat = scalars | text_sets | number_sets | st.booleans().map(lambda flag: {"BOOL": flag}) | st.just(NULL)
values = flat | st.lists(flat, max_size=2).map(lambda found: {"L": found})
maps = st.dictionaries(st.sampled_from(["x", "y"]), flat, max_size=2).map(lambda found: {"M": found})
#: ``doc`` is always a map and ``row`` a list of two: dynoxide makes what a path lacks, DynamoDB does not.
item_strategy = st.fixed_dictionaries(
    {"doc": maps, "row": st.lists(flat, min_size=2, max_size=2).map(lambda found: {"L": found})},
    optional={"one": values | maps, "two": values, "tags": text_sets, "sum": numbers},
)
path_strategy = st.sampled_from(["one", "two", "tags", "sum", "doc", "row", "doc.x", "doc.y", "row[0]", "row[1]"])


class Placeholders:
    """Gives values a name; attribute names are written out or replaced by one, in turn."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def value(self, value: dict[str, Any]) -> str:
        key = f":v{len(self.values)}"
        self.values[key] = value
        return key

    def path(self, path: str) -> str:
        name, *rest = path.replace("[", ".[").split(".")
        self.names[f"#{name}"] = name
        self.names |= {f"#{part}": part for part in rest if part[0] != "["}
        return f"#{name}" + "".join(part if part[0] == "[" else f".#{part}" for part in rest)

    def condition(self, tree: Any) -> str:
        kind, *parts = tree
        if kind in {"AND", "OR"}:
            return f"({self.condition(parts[0])}) {kind} ({self.condition(parts[1])})"
        if kind == "NOT":
            return f"NOT ({self.condition(parts[0])})"
        path, literals = self.path(parts[0]), [self.value(value) for value in parts[1:]]
        forms = {"BETWEEN": "{} BETWEEN {} AND {}", "IN": "{} IN ({}, {})"}
        if kind in forms:
            return forms[kind].format(path, *literals)
        if kind.startswith("size"):
            return f"size({path}) {kind[4:]} {literals[0]}"
        called = f"{kind}({', '.join([path, *literals])})"
        return called if kind[0].isalpha() else f"{path} {kind} {literals[0]}"

    def update(self, actions: dict[str, Any]) -> str:
        sections = {"SET": [], "REMOVE": [], "ADD": [], "DELETE": []}
        for target, (kind, *operands) in actions.items():
            path = self.path(target)
            if kind in {"ADD", "DELETE"}:
                sections[kind].append(f"{path} {self.value(operands[0])}")
            elif kind == "REMOVE":
                sections[kind].append(path)
            else:
                sections["SET"].append(f"{path} = {self.source(kind, operands)}")
        return " ".join(f"{word} {', '.join(found)}" for word, found in sections.items() if found)

    def source(self, kind: str, operands: list[Any]) -> str:
        if kind == "value":
            return self.value(operands[0])
        path, *literal = operands
        if kind in {"+", "-"}:
            return f"{self.path(path)} {kind} {self.value(literal[0])}"
        if kind == "copy":
            return self.path(path)
        return f"{kind}({self.path(path)}, {self.value(literal[0])})"


def comparisons() -> st.SearchStrategy[tuple[Any, ...]]:
    pair = st.tuples(numbers, numbers) | st.tuples(texts, texts)
    bounds = pair.filter(lambda two: holds("low <= high", dict(zip(["low", "high"], map(stored, two), strict=True))))
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<>"]), path_strategy, values | maps),
        st.tuples(st.sampled_from(["<", "<=", ">", ">="]), path_strategy, scalars),
        st.tuples(st.sampled_from(["size=", "size<", "size>="]), path_strategy, numbers),
        st.tuples(path_strategy, bounds).map(lambda found: ("BETWEEN", found[0], *found[1])),
        st.tuples(st.just("IN"), path_strategy, values, scalars),
        st.tuples(st.sampled_from(["attribute_exists", "attribute_not_exists"]), path_strategy),
        st.tuples(st.just("attribute_type"), path_strategy, st.sampled_from(["S", "N", "L", "M", "NULL"]).map(s)),
        st.tuples(st.just("begins_with"), path_strategy, texts | raws),
        st.tuples(st.just("contains"), path_strategy, flat),
    )


def stored(value: dict[str, Any]) -> dict[str, Any]:
    return canonical_item({"value": value})["value"]


def removes_no_element(actions: dict[str, Any]) -> bool:
    """dynoxide loses the place of the other one."""
    return not any(target[0] == "r" and kind in {"REMOVE", "DELETE"} for target, (kind, *_) in actions.items())


condition_strategy = st.recursive(
    comparisons(),
    lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner) | st.tuples(st.just("NOT"), inner),
    max_leaves=4,
)
actions_strategy = st.dictionaries(
    st.sampled_from(["one", "two", "tags", "sum", "three", "doc.x", "doc.y", "row[0]", "row[1]"]),
    st.one_of(
        st.tuples(st.just("value"), values | maps),
        st.tuples(st.sampled_from(["+", "-"]), path_strategy, numbers),
        st.tuples(st.just("copy"), path_strategy),
        st.tuples(st.just("if_not_exists"), path_strategy, values),
        st.tuples(st.just("list_append"), path_strategy, st.lists(flat, max_size=2).map(lambda found: {"L": found})),
        st.tuples(st.just("ADD"), numbers | text_sets | number_sets),
        st.tuples(st.just("DELETE"), text_sets | number_sets),
        st.just(("REMOVE",)),
    ),
    min_size=1,
    max_size=4,
).filter(removes_no_element)


def outcome(client: Any, table: str, item: dict[str, Any], request: dict[str, Any]) -> Any:
    """What becomes of an item under an update: the new one, or the code of the error and the stored one."""
    client.put_item(TableName=table, Item={**HASH, **item})
    options = {"ReturnValues": "ALL_NEW", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    try:
        return canonical_item(client.update_item(TableName=table, Key=HASH, **request, **options)["Attributes"])
    except ClientError as error:
        image = error.response.get("Item")
        return error.response["Error"]["Code"], image and canonical_item(image)


few_hundred = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_same(beside: Any, item: dict[str, Any], placeholders: Placeholders, **texts: str) -> None:
    """The same item afterwards on both, or the same error with the same image."""
    (memory, other), request = beside, dict[str, Any](texts)
    request["ExpressionAttributeNames"] = placeholders.names
    if placeholders.values:
        request["ExpressionAttributeValues"] = placeholders.values
    assert outcome(*memory, item, request) == outcome(*other, item, request), request


@few_hundred
@given(item=item_strategy, conditions=st.lists(condition_strategy, min_size=1, max_size=3))
def test_random_conditions_hold_where_they_hold_elsewhere(beside, item, conditions):
    """Several conditions on one item, each alone."""
    for condition in conditions:
        placeholders = Placeholders()
        update = f"SET {placeholders.path('probe')} = {placeholders.value(NULL)}"
        text = placeholders.condition(condition)
        assert_same(beside, item, placeholders, UpdateExpression=update, ConditionExpression=text)


@few_hundred
@given(item=item_strategy, actions=actions_strategy)
def test_random_updates_do_what_they_do_elsewhere(beside, item, actions):
    """Each action alone, and all in one request."""
    for several in ([{target: action} for target, action in actions.items()], [actions]):
        for these in several:
            placeholders = Placeholders()
            update = placeholders.update(these)
            assert_same(beside, item, placeholders, UpdateExpression=update)


@pytest.fixture
def beside(dynoxide) -> Any:
    """Clients of the database in memory and of an emulator, each with a table."""
    database = MemoryDynamoDB()
    database.client().create_table(
        TableName="table",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )
    return (database.client(), "table"), (dynoxide.client(), dynoxide.create_table())
