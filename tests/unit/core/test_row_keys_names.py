"""One name for each key, and one spelling for each number."""

from __future__ import annotations

import decimal
import os
import socket
import string
import threading
from decimal import Decimal
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pynamo_locking._core.dynamodb import LARGEST_KEYS
from pynamo_locking._core.row_keys import LONGEST_OWNER, canonical_number, checked_owner, cut, row_name
from pynamo_locking._io import runtime
from pynamo_locking._items.keys import ItemKey
from pynamo_locking.exceptions import ConfigurationError, InvalidInput
from tests.unit.helpers import steady

#: Characters that could be taken for separators, escapes or digests, and some that need several bytes.
NASTY = st.sampled_from(["/", "%", "%2F", "#", "a", ".", "..", "~", " ", "\x00", "ä", "日", "🔒", "1", "-"])
ANY = (st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF)).map(chr)
TEXTS = st.lists(NASTY | ANY, max_size=6).map("".join)
LONG = st.tuples(TEXTS, st.sampled_from(["/", "x", "ä", "%"]), st.integers(600, 2100)).map(
    lambda parts: parts[0] + parts[1] * parts[2]
)
KEYS = {
    "S": TEXTS | LONG,
    "B": st.binary(max_size=20) | TEXTS.map(str.encode),
    "N": st.integers(-(10**18), 10**18).map(str),
}
TABLES = st.lists(st.sampled_from(string.ascii_letters + "._-/:%"), min_size=1, max_size=12).map("".join)


@st.composite
def two_items(draw):
    """The names and keys of two items, in tables of the same key schema."""
    kinds = draw(st.sampled_from(["S", "B", "N", "SS", "SN", "NB", "BS"]))

    def item():
        return draw(TABLES), tuple((kind, draw(KEYS[kind])) for kind in kinds)

    return item(), item()


@steady
@given(two_items())
def test_two_items_never_share_a_name(items):
    """Names are equal only if table and key are, whatever characters are in them and however long they are."""
    one, other = items

    assert (row_name(*one) == row_name(*other)) == (one == other)


@pytest.mark.parametrize(
    ("table", "key", "name"),
    [
        ("accounts", (("S", "a-1"),), "accounts/a-1"),
        ("accounts", (("S", "a/1"), ("N", "1.50")), "accounts/a%2F1/1.5"),
        ("accounts", (("B", b"\x00\xff"),), "accounts/%00%FF"),
        ("accounts", (("S", "100%"),), "accounts/100%25"),
        ("accounts", (("S", "#"),), "accounts/%23"),
        ("accounts", (("S", "é"),), "accounts/%C3%A9"),
        ("arn:aws:dynamodb:eu-west-1:1:table/t", (("S", "x"),), "arn%3Aaws%3Adynamodb%3Aeu-west-1%3A1%3Atable%2Ft/x"),
    ],
)
def test_names_are_readable(table, key, name):
    """And they stay as they are: another version of the package must find the same rows."""
    assert row_name(table, key) == name


@steady
@given(TABLES, LONG, LONG)
@example("t", "x" * 2044, "x")
@example("t", "x" * 2045, "x")
def test_names_fit_into_a_key(table, left, right):
    """However long the key is; a digest begins with a character that nothing else contains."""
    name = row_name(table, (("S", left), ("S", right)))

    assert len(name.encode()) <= LARGEST_KEYS["hash"]
    assert name.isascii()
    assert ("#" in name) == (len(quote(table, safe="") + quote(left, safe="") + quote(right, safe="")) + 2 > 2048)


@pytest.mark.parametrize("length", [2040, 2048, 5000])
def test_long_names_differ_wherever_the_keys_do(length):
    """The digest is of the whole name, not of its beginning or end."""
    names = {row_name("t", (("S", key),)) for key in ("x" * length, "y" + "x" * (length - 1), "x" * (length - 1) + "y")}

    assert len(names) == 3


# Numbers


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1e0", "1"),
        ("+1", "1"),
        ("01", "1"),
        ("1E+2", "100"),
        ("100", "100"),
        ("1.50", "1.5"),
        ("-1.50", "-1.5"),
        ("1e-3", "0.001"),
        (".5", "0.5"),
        ("0", "0"),
        ("-0", "0"),
        ("0.000", "0"),
        ("0E+10", "0"),
        ("-0.0", "0"),
    ],
)
def test_one_spelling_of_each_number(spelling, canonical):
    """DynamoDB takes all of them for the same key, so their name is the same."""
    assert canonical_number(spelling) == canonical


@steady
@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-50, 50))
@example(10**38 - 1, 0)
def test_a_number_keeps_its_value(digits, exponent):
    """DynamoDB's numbers have up to 38 digits, and all of them count."""
    spelling = f"{digits}E{exponent}"

    assert Decimal(canonical_number(spelling)) == Decimal(spelling)


def test_a_number_keeps_its_value_in_any_decimal_context():
    """The caller's decimal context does not round keys."""
    with decimal.localcontext() as context:
        context.prec = 4
        canonical = canonical_number("1234567")

    assert canonical == "1234567"


@pytest.mark.parametrize("value", ["", "one", "1,5", "0x10", "--1", '"1"', "{}"])
def test_what_is_no_number_is_refused(value):
    """With the value in the message."""
    with pytest.raises(InvalidInput, match=r"^a number key must be a number, not ") as caught:
        canonical_number(value)

    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity", "-Infinity", "inf"])
def test_numbers_are_finite(value):
    """DynamoDB has no NaN and no infinity."""
    with pytest.raises(InvalidInput, match=r"^a number key must be finite, not "):
        canonical_number(value)


@pytest.mark.parametrize(
    "value", ["1E+126", "-1E+126", "1E+9999999", "1E-9999999", "1E+99999999999", "1E-99999999999", "1" * 39]
)
def test_numbers_are_within_the_range_of_dynamodb(value):
    """Beyond 38 digits and 1E+126 no key exists; a huge exponent must not be written out in zeros."""
    with pytest.raises(InvalidInput, match="number key"):
        canonical_number(value)


@pytest.mark.parametrize("owner", ["", "web-1", "x" * 256, "ä" * 128, "🔒" * 64])
def test_labels_that_fit(owner):
    """The length counts in bytes: that is what the item has to hold."""
    assert checked_owner(owner) == owner


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (7, "owner must be a string, the label for people, not 7"),
        (b"web-1", "owner must be a string"),
        (["x" * 1000], r"owner must be a string.{,150}$"),
        ("x" * 257, "owner must have at most 256 bytes in UTF-8, not 257: 'x{40}'"),
        ("ä" * 129, "not 258"),
        ("\udcff", "owner is no text: "),
    ],
)
def test_labels_that_do_not(owner, message):
    """They are refused with what is wrong, and without all of a long one."""
    with pytest.raises(ConfigurationError, match=message):
        checked_owner(owner)


def test_long_labels_of_others_are_cut():
    """None that can be asked for is."""
    assert cut("🔒" * 256) == "🔒" * 256
    assert cut("x" * 100_000) == "x" * 256 + "..."


def label_in_thread(name):
    labels = []
    thread = threading.Thread(target=lambda: labels.append(runtime.Runtime().owner()), name=name)
    thread.start()
    thread.join()
    return labels[0]


@pytest.mark.parametrize(
    ("host", "thread", "label"),
    [
        ("ip-10-0-12-34.eu-west-1.compute.internal", None, "ip-10-0-12-34:7"),
        ("ip-10-0-12-34", "ThreadPoolExecutor-0_12", "ip-10-0-12-34:7:pool-0_12"),
        ("laptop", "Thread-3 (worker)", "laptop:7:Thread-3"),
        ("169.254.76.1", None, "169.254.76.1:7"),
    ],
)
def test_labels_are_short(host, thread, label, monkeypatch):
    """Each waiter stores one. It tells which process waits, and which of its threads."""
    runtime._label.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    expected = label.replace(":7", f":{os.getpid()}")
    assert (runtime.Runtime().owner() if thread is None else label_in_thread(thread)) == expected
    runtime._label.cache_clear()


@pytest.mark.parametrize("name", ["x" * 1000, "日本" * 100, "\udcff" * 300, "web-1"])
def test_the_label_of_a_process_always_fits(name, monkeypatch):
    """Of host and thread, as much as fits is in it; what is no text is replaced."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    owner = label_in_thread(name)

    assert checked_owner(owner) == owner
    assert len(owner.encode()) <= LONGEST_OWNER
    host, _, thread = owner.split(":")
    assert host == thread
    assert name.startswith(host.replace("?", "\udcff"))


def test_keys_that_are_one_to_dynamodb_are_one_item_key() -> None:
    """However a number is written, and in whatever order the parts of the key come."""
    key = ItemKey.of("seats", {"row": {"N": "2"}, "name": {"S": "a"}})

    assert key == ItemKey.of("seats", {"name": {"S": "a"}, "row": {"N": "2.0"}})
    assert len({key, ItemKey.of("seats", {"name": {"S": "a"}, "row": {"N": "3"}}), key._replace(table="rows")}) == 3
    assert str(key) == "seats('a', '2')"


def test_the_ids_of_entries():
    """None comes twice, also in a copy of the process. All of a process begin alike."""
    world = runtime.Runtime()
    ids = [world.entry_id() for _ in range(1000)]

    assert len({*ids}) == len({each[4:] for each in ids}) == 1000
    assert {len(each) for each in ids} == {14}
    assert {runtime.process_of(each) for each in ids} == {world.process_part()}
