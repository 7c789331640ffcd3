"""What Flask and Django share: problem details, entity tags, and where the models are."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import VersionedMixin
from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import QueueEntry
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._io import client, lock_record
from pynamo_locking._items import versions
from pynamo_locking.contrib import _frameworks
from pynamo_locking.exceptions import (
    CallAbandoned,
    ConfigurationError,
    Conflict,
    InvalidInput,
    ItemLocked,
    LockLost,
    LockTimeout,
    NotUnique,
    OutcomeUnknown,
    OverlapError,
    PayloadMismatch,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)
from pynamo_locking.inspection import LockState
from tests.support.models import declare

SECRET = "do not tell"

Versioned = declare("Versioned", VersionedMixin, version=True, secret=UnicodeAttribute(default=SECRET))
Locked = declare("Locked", lock=True)
Bare = declare("Bare", VersionedMixin)


def queue(*ages_s, lease_s=60):
    """A lock whose holder's last renewal was so many seconds ago, and others who wait."""
    now_ms = 1_800_000_000_000
    entries = [
        QueueEntry(f"e-{i}", 100 + i, SECRET, WHOLE, lease_s * 1000, 0, int(now_ms + (lease_s - age) * 1000), 0, now_ms)
        for i, age in enumerate(ages_s)
    ]
    return LockState(tuple(entries), next_ticket=200)


ERRORS = [
    (_frameworks.PreconditionRequired(SECRET), 428, "precondition-required", {}),
    (StaleVersion(SECRET, expected=3, actual=5), 409, "stale-version", {"expected": 3, "actual": 5}),
    (ItemLocked(SECRET, holder=SECRET, ticket=7), 423, "item-locked", {"ticket": 7}),
    (LockTimeout(SECRET, queue=queue(1)), 423, "lock-timeout", {"ticket": 100}),
    (LockTimeout(SECRET), 503, "no-answer", {}),
    (TransactionAborted(SECRET, reason="preempted"), 409, "transaction-aborted", {"reason": "preempted"}),
    (TransactionConflict(SECRET, reasons=("TransactionConflict", None)), 409, "transaction-conflict", {}),
    (NotUnique(SECRET, fields=("f",), values=(SECRET,), holder={"id": SECRET}), 409, "not-unique", {"fields": ("f",)}),
    (InvalidInput(SECRET), 422, "invalid-input", {}),
    (CallAbandoned(SECRET, key=SECRET, owner=SECRET), 409, "call-abandoned", {}),
    (PayloadMismatch(SECRET, key=SECRET), 422, "payload-mismatch", {}),
    (OverlapError(SECRET, found=((Versioned, {"key": {"S": SECRET}}),)), 409, "overlap", {}),
    (Conflict(SECRET, stored=(Versioned, {"key": {"S": SECRET}})), 409, "conflict", {}),
    (LockLost(SECRET, reason="evicted", ticket=9), 500, "lock-lost", {"reason": "evicted", "ticket": 9}),
    (OutcomeUnknown(SECRET, write_id="w-1"), 500, "outcome-unknown", {"write_id": "w-1"}),
]


@pytest.mark.parametrize(("error", "status", "code", "facts"), ERRORS, ids=lambda value: getattr(value, "code", None))
def test_each_error_has_its_answer(error, status, code, facts):
    """Status, type, code and facts; and nothing of what is stored, or of the error's own text."""
    answer = _frameworks.problem(error, is_conditional=False)

    assert (answer.status, answer.body["status"], answer.body["code"]) == (status, status, code)
    assert answer.body["type"] == f"urn:pynamo-locking:problem:{code}"
    assert {name: answer.body[name] for name in facts} == facts
    assert answer.body.keys() - facts.keys() == {"type", "title", "status", "detail", "code"}
    assert SECRET not in json.dumps([answer.body, answer.headers])
    assert isinstance(error, _frameworks.answered(not_found=False))
    assert status in _frameworks.STATUSES


def test_errors_of_writes_and_from_other_processes_have_the_same_answer():
    """Those that are PynamoDB's errors as well, and those that were pickled."""
    error = StaleVersion("stale", expected=1, actual=2)
    assert _frameworks.problem(pickle.loads(pickle.dumps(error)), is_conditional=False).body["actual"] == 2


def test_a_stale_version_is_412_if_the_request_said_what_it_expects():
    """And only then; other conflicts stay what they are."""
    assert _frameworks.problem(StaleVersion("stale"), is_conditional=True).status == 412
    assert _frameworks.problem(Conflict("no"), is_conditional=True).status == 409
    assert _frameworks.problem(ItemLocked("no"), is_conditional=True).status == 423


def test_what_a_stale_version_is_depends_on_what_was_named():
    """Who has named no version is not told that it was changed."""
    told = lambda is_conditional, **versions: _frameworks.problem(  # noqa: E731
        StaleVersion("stale", **versions), is_conditional=is_conditional
    ).body["detail"]
    for is_conditional in (False, True):
        assert "changed" in told(is_conditional, expected=1, actual=2)
        assert "changed" in told(is_conditional, expected=1)
        assert "changed" not in told(is_conditional, actual=2)
        assert "already" in told(is_conditional, actual=2)


def test_the_type_can_lead_to_pages_of_ones_own():
    """The code is appended to what the configuration says."""
    answer = _frameworks.problem(Conflict("no"), is_conditional=False, base="https://example.com/problems/")
    assert answer.body["type"] == "https://example.com/problems/conflict"


@pytest.mark.parametrize(
    ("ages", "header"),
    [
        ((1,), {"Retry-After": "1"}),  # renewed a moment ago: alive, for an unknown time
        ((29.5,), {"Retry-After": "1"}),  # one renewal is late, which can be
        ((30.5,), {"Retry-After": "30"}),
        ((45.5,), {"Retry-After": "15"}),  # two renewals are missing: it ends with its lease
        ((45.5, 1), {"Retry-After": "15"}),  # who waits does not matter
        ((600,), {"Retry-After": "1"}),
        ((), {"Retry-After": "1"}),
    ],
)
def test_when_to_try_again(ages, header):
    """When the lease ends, where the holder has stopped to renew it; else soon."""
    assert _frameworks.problem(LockTimeout("busy", queue=queue(*ages)), is_conditional=False).headers == header


def test_a_lease_that_is_not_believed():
    """A stored lease of years does not keep clients away for years."""
    entry = replace(queue(600).entries[0], lease_ms=10**30, until_ms=10**29)
    error = LockTimeout("busy", queue=LockState(entries=(entry,), next_ticket=9))
    assert _frameworks.problem(error, is_conditional=False).headers == {"Retry-After": "1"}


def test_when_to_try_again_after_a_refused_write():
    """The refusal brings the lock as it is stored."""
    attribute = Locked._lock_attribute()
    entry = lock_record.new_entry(SECRET, WHOLE, lease=60.0, now_ms=1000, ticket=7)
    lock = {
        "next": {"L": [{"N": "8"}]},
        "since": {"N": "1"},
        "evicted": {"M": {}},
        "queue": {"M": {"e": entry}},
    }
    image = {"key": {"S": "k"}, attribute.attr_name: {"M": lock}}
    answer = _frameworks.problem(ItemLocked("no", ticket=7, stored=(Locked, image)), is_conditional=False)
    assert (answer.body["ticket"], answer.headers) == (7, {"Retry-After": "1"})
    assert SECRET not in json.dumps(answer.body)


# Entity tags


def stored(version, write_id=None):
    item = Versioned("k")
    versions.set_known(item, Known(version, write_id))
    return item


def test_a_tag_names_the_write():
    """The version, and the id of the write if it is known."""
    assert versions.etag_of(stored(3, "a-b")) == "3-a-b"
    assert versions.etag_of(stored(3)) == "3"


def test_what_is_not_stored_has_no_tag():
    """Nor has an item without a version."""
    for item in (Versioned("k"), Locked("k")):
        with pytest.raises(ConfigurationError, match="no version"):
            versions.etag_of(item)


@pytest.mark.parametrize(
    "header",
    ['"3-a-b"', '"1", "3-a-b"', 'W/"9" , "3-a-b"', '"x,y","3-a-b"', "*", ' "3-a-b" ', '"3-a-b",', ',\t,"3-a-b"'],
)
def test_a_tag_that_matches(header):
    """One of several is enough, and empty elements of the list are none."""
    item = stored(3, "a-b")
    assert _frameworks.matched(header, item) is item


@pytest.mark.parametrize(
    "header",
    [
        *('"2-a-b"', '"3-a-c"', 'W/"3-a-b"', '""', "", '"three"', '"-3"', f'"{"9" * 5000}"', '"\xb3-a-b"'),
        *('"03-a-b"', '"3"', '"3-"', '"3","3-a","3-b"', '"3-a-b-"'),
    ],
)
def test_a_tag_that_does_not_match(header):
    """Other versions, other writes, weak tags, and tags that no item has: compared as they are, sign by sign."""
    with pytest.raises(StaleVersion) as refused:
        _frameworks.matched(header, stored(3, "a-b"))
    assert refused.value.actual == 3


@pytest.mark.parametrize(
    "header",
    [
        "3-a-b",
        '"3-a-b',
        '/ éW"3-a-b"\\',
        'w/"3-a-b"',
        '"٣-a-b"',
        '"3-a-b" "4"',
        '*, "3-a-b"',
        '"3 a"',
        'W/ "3-a-b"',
        "**",
    ],
)
def test_what_is_no_list_of_tags(header):
    """Is refused as such, and with a status of its own; nothing is read."""
    for found in (stored(3, "a-b"), Versioned):
        with pytest.raises(_frameworks.MalformedPrecondition) as refused:
            _frameworks.matched(header, found, "k")
        answer = _frameworks.problem(refused.value, is_conditional=True)
        assert (answer.status, answer.body["code"]) == (400, "malformed-if-match")


def test_an_id_that_was_not_read_is_left_to_the_write():
    """If one tag names it. Of several that do, none can be chosen."""
    item = stored(3)
    assert versions.known_state(_frameworks.matched('"2-x", "3-a-b"', item)) == Known(3, "a-b")
    with pytest.raises(StaleVersion):
        _frameworks.matched('"3-a", "3-b"', stored(3))


def test_no_if_match():
    """Is another error."""
    with pytest.raises(_frameworks.PreconditionRequired):
        _frameworks.matched(None, stored(3))


def test_one_tag_and_a_key_need_no_request():
    """The item has its key and what the client knows of it."""
    item = _frameworks.matched('"3-a-b"', Versioned, "k")
    assert (item.key, item.version, versions.known_state(item)) == ("k", 3, Known(3, "a-b"))


def test_without_a_version_nothing_is_compared():
    """So it is refused: the write would be unconditional."""
    for found in (Bare, Bare("k")):
        with pytest.raises(ConfigurationError, match="no version"):
            _frameworks.matched('"3"', found, "k")


# Where the models are


def test_connections_are_left_to_the_parent_after_a_fork():
    """Also of models that have only read: a server may load the application before it forks its workers."""
    _frameworks.configure([Versioned], {})
    connection = Versioned._get_connection().connection
    connection._client = object()
    client._forget_after_fork()
    assert connection._client is None
