"""The example application of the documentation: the schedule of devices, over HTTP, in both of its forms."""

from __future__ import annotations

import importlib.util
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockTimeout, OutcomeUnknown, TransactionConflict
from pynamo_locking.intervals import Intervals
from pynamo_locking_testing import VirtualClock
from tests.support import wire
from tests.support.workers import in_line

if TYPE_CHECKING:
    from types import ModuleType

FILE: Final = Path(__file__).parents[3] / "docs" / "examples" / "device_schedule.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_schedule", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


schedule: Final[Any] = loaded()
schedule.Entry.Meta.lock_settings = LockSettings(poll_interval=0.01, max_poll_interval=0.05)


@pytest.fixture(params=[False, True], ids=["optimistic", "pessimistic"])
def app(request, memory):
    """The application in one of its forms, with empty tables."""
    memory.bind(schedule.Entry, schedule.Locks)
    return schedule.create_app(pessimistic=request.param, wait=20)


@pytest.fixture
def client(app):
    """Sends requests to the application."""
    return app.test_client()


def hour(number, day=1):
    return f"2026-01-{day:02}T{number:02}:00:00Z"


def entry(device, begin, end):
    return {"deviceId": device, "begin": hour(begin), "end": hour(end)}


def stored(device):
    return [(row.begin.hour, row.end.hour) for row in schedule.Entry.query(device, consistent_read=True)]


def test_entries_are_stored_all_or_none(client):
    """201 with what was stored; 409 with what is in the way, and nothing stored; adjacent is no overlap."""
    first = [entry("100", 12, 15), entry("100", 18, 21), entry("101", 12, 15)]
    answer = client.post("/schedule", json=first)
    assert (answer.status_code, answer.json) == (201, first)

    answer = client.post("/schedule", json=[entry("101", 15, 16), entry("100", 19, 20)])
    assert answer.status_code == 409
    assert answer.json["requested"] == entry("100", 19, 20)
    assert answer.json["inTheWay"] == [entry("100", 18, 21)]

    assert client.post("/schedule", json=[entry("100", 15, 18)]).status_code == 201
    assert (stored("100"), stored("101")) == ([(12, 15), (15, 18), (18, 21)], [(12, 15)])


def test_what_is_there_and_what_is_free(client):
    """The entries that have a part of the time, and the gaps between them."""
    client.post("/schedule", json=[entry("100", 12, 15), entry("100", 18, 21)])
    window = {"begin": hour(14), "end": hour(19)}
    assert client.get("/devices/100/schedule", query_string=window).json == [entry("100", 12, 15), entry("100", 18, 21)]
    assert client.get("/devices/100/free", query_string=window).json == [{"begin": hour(15), "end": hour(18)}]
    assert client.get("/devices/100/free", query_string={"begin": hour(20)}).json == [{"begin": hour(21), "end": None}]
    assert client.get("/devices/999/schedule").json == []


def test_an_entry_is_moved(client):
    """To where nothing is; 409 and unchanged otherwise; 404 if there is none."""
    client.post("/schedule", json=[entry("100", 12, 15), entry("100", 18, 21)])
    change = {"begin": hour(14), "end": hour(17)}
    answer = client.patch(f"/devices/100/schedule/{hour(12)}", json=change)
    assert (answer.status_code, answer.json) == (200, entry("100", 14, 17))
    answer = client.patch(f"/devices/100/schedule/{hour(14)}", json={"begin": hour(17), "end": hour(19)})
    assert (answer.status_code, answer.json["inTheWay"]) == (409, [entry("100", 18, 21)])
    assert stored("100") == [(14, 17), (18, 21)]
    assert client.patch(f"/devices/100/schedule/{hour(1)}", json=change).status_code == 404


def test_an_entry_is_deleted(client):
    """And its time is free again."""
    client.post("/schedule", json=[entry("100", 12, 15)])
    assert client.delete(f"/devices/100/schedule/{hour(12)}").status_code == 204
    assert client.delete(f"/devices/100/schedule/{hour(12)}").status_code == 404
    assert client.post("/schedule", json=[entry("100", 13, 14)]).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        ["100"],
        [{"deviceId": "100", "begin": hour(1)}],
        [{"deviceId": 100, "begin": hour(1), "end": hour(2)}],
        [entry("100", 15, 12)],
        [entry("100", 12, 12)],
        [entry("", 12, 13)],
        [entry("100", 12, 13) | {"end": "tomorrow"}],
        [entry("100", 12, 13) | {"end": "2026-01-01T13:00:00"}],
        [entry(str(device), 12, 13) for device in range(51)],
    ],
)
def test_what_cannot_be(client, body):
    """400 that says why, and no request to the table."""
    with wire.count_requests() as requests:
        answer = client.post("/schedule", json=body)
    assert (answer.status_code, requests.total) == (400, 0)
    assert answer.json["error"]


@pytest.mark.parametrize("begin", [12, 13])
def test_entries_of_one_request_that_overlap_each_other(client, begin):
    """409 with the first of them, whether they have one key or two, and no request to the table."""
    with wire.count_requests() as requests:
        answer = client.post("/schedule", json=[entry("100", 12, 14), entry("100", begin, 15)])
    assert (answer.status_code, requests.total) == (409, 0)
    assert answer.json["error"]
    assert begin == 12 or answer.json["inTheWay"] == [entry("100", 12, 14)]


def race(app, *wanted):
    """Send one request for each entry, all at once."""
    with ThreadPoolExecutor(len(wanted)) as clients:
        sent = [clients.submit(app.test_client().post, "/schedule", json=[each]) for each in wanted]
        return [each.result() for each in sent]


@contextmanager
def both_have_looked():
    """Let the first commit wait until there is a second one, or until a request queues behind it."""
    commits, begun = [0], threading.Condition()

    def second_comes():
        return commits[0] > 1 or len(schedule.Entry.lock_state("100").waiters) > 0 or in_line(schedule.Entry, "100")

    def tap(endpoint, request, operation, forward):
        if operation == "TransactWriteItems":
            with begun:
                commits[0] += 1
                is_first = commits[0] == 1
                begun.notify_all()
                while is_first and not second_comes():
                    begun.wait(0.01)  # a queue does not notify
        return forward()

    with wire.tapped(tap):
        yield commits


def test_two_requests_race_for_the_same_time(app):
    """Both have looked, or one of them queues, before the other writes: one is stored, one is told what is there."""
    with both_have_looked():
        answers = race(app, entry("100", 15, 17), entry("100", 16, 18))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    [winner] = [answer.json for answer in answers if answer.status_code == 201]
    [loser] = [answer.json for answer in answers if answer.status_code == 409]
    assert loser["inTheWay"] == winner
    assert len(stored("100")) == 1


def test_two_requests_race_for_different_times(app):
    """Both have looked before either writes, and both are stored in the end."""
    with both_have_looked() as commits:
        answers = race(app, entry("100", 15, 17), entry("100", 17, 18))
    assert [answer.status_code for answer in answers] == [201, 201]
    assert commits[0] == 3  # one of them had to look again
    assert stored("100") == [(15, 17), (17, 18)]


def test_answers_that_are_lost(client):
    """The application asks again with the same entries, and finds them stored."""
    wanted = [entry("100", 15, 17)]
    with VirtualClock(), wire.on("TransactWriteItems", times=wire.ALL).lose_response() as sent:
        answer = client.post("/schedule", json=wanted)
    assert (answer.status_code, answer.json) == (201, wanted)
    assert sent.hits > 1
    assert len({body["ClientRequestToken"] for body in sent.bodies}) == 1
    assert stored("100") == [(15, 17)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(TransactionConflict("busy"), 503), (LockTimeout("busy"), 503), (OutcomeUnknown("no answer", write_id="-"), 504)],
)
def test_errors_without_a_culprit(client, monkeypatch, error, status):
    """Each has the status that tells a client what to do."""

    def insert(*_, **__):
        raise error

    monkeypatch.setattr(Intervals, "insert_disjoint", insert)
    assert client.post("/schedule", json=[entry("100", 15, 17)]).status_code == status
