"""Unique tasks of Celery: who has the claim, when it ends, and what becomes of a message that has none."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import celery
import pytest
from celery import signals
from celery.exceptions import Ignore, Reject
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking.contrib.celery import TaskClaims, UniqueTask
from pynamo_locking.exceptions import ConfigurationError, LockTimeout
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock
from tests.support.models import declare

Claims = declare("Claims", TaskClaims, table_name="locks")
Product = declare("Product", Model, table_name="shop", hash_key="pk", sk=UnicodeAttribute(range_key=True))
AmongOthers = declare("AmongOthers", TaskClaims, table_name="shop", keys=("pk", "sk"), prefix="locks#")


class Sent:
    """An app whose messages are kept here, and delivered by hand."""

    def __init__(self, claims):
        self.claims = claims
        self.app = celery.Celery("shop", set_as_current=False)
        self.messages = []
        self.runs = []
        self.body = lambda task, *args: None

    def task(self, **options):
        def work(task, shop, full=False):
            self.runs.append((task.request.id, task.lock.ticket if task.unique_until == "done" else None))
            return self.body(task, shop)

        options = {"base": UniqueTask, "claims": self.claims, "bind": True, "name": "work", **options}
        task = self.app.task(**options)(work)
        task.backend  # noqa: B018 - makes the task
        return task

    def deliver(self, task, message):
        """Run a message as a worker does; return the state of the task."""
        args, kwargs, options = message
        return task.apply(args, kwargs, task_id=options["task_id"], headers=options["headers"]).status


@pytest.fixture
def sent(request, monkeypatch):
    sent = Sent(getattr(request, "param", Claims))

    def apply_async(task, args, kwargs, task_id, *_, **options):
        sent.messages.append((args, kwargs, {"task_id": task_id, "headers": options["headers"]}))
        return task.AsyncResult(task_id)

    monkeypatch.setattr(celery.Task, "apply_async", apply_async)
    with MemoryDynamoDB() as sent.database:
        Product.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        sent.claims.create_table()
        yield sent


WHERE = pytest.mark.parametrize("sent", [Claims, AmongOthers], ids=["own table", "table of others"], indirect=True)


@WHERE
def test_calls_with_the_same_arguments_send_one_message(sent):
    """However they are written; others are others. After the run the next call sends one."""
    task = sent.task()
    first = task.delay("a")

    assert task.delay(shop="a", full=False).id == task.apply_async(("a",), {"full": False}).id == first.id
    assert task.delay("b").id != first.id
    assert len(sent.messages) == 2

    assert sent.deliver(task, sent.messages[0]) == "SUCCESS"
    assert task.delay("a").id != first.id
    assert len(sent.messages) == 3


def test_a_claim_is_kept_for_as_long_as_it_counts(sent):
    """DynamoDB's TTL leaves the row of a message that waits for a week, whether or not an earlier one has run."""
    task = sent.task(unique_for=7 * 86_400)
    for _ in range(2):
        task.delay("a")
        [row] = sent.claims.scan()
        assert row.expires, "the row of a claim never expires"
        assert row.expires.timestamp() * 1000 >= row.until_ms
        sent.deliver(task, sent.messages[-1])


def test_a_claim_of_a_task_that_runs_ends_with_its_lease(sent):
    """Or a worker that dies would keep others out for as long as a message that waits."""
    stored, task = [], sent.task()
    sent.body = lambda *_: stored.extend(row.until_ms for row in sent.claims.scan(consistent_read=True))
    task.delay("a")
    assert sent.deliver(task, sent.messages[0]) == "SUCCESS"
    assert stored == [0]


def test_who_has_the_claim_is_read_consistently(sent, monkeypatch):
    """A replica may still name the message before it, whose result the caller would get."""
    task = sent.task()
    first = task.delay("a")
    handle, reads = sent.database.handle, []
    monkeypatch.setattr(sent.database, "handle", lambda *request: reads.append(request) or handle(*request))
    assert task.delay("a").id == first.id
    assert [kwargs["ConsistentRead"] for operation, kwargs in reads if operation == "GetItem"] == [True]


@pytest.mark.parametrize(("options", "is_other"), [({}, True), ({"unique_on": ("shop",)}, False)])
def test_the_arguments_that_count(sent, options, is_other):
    task = sent.task(**options)

    assert (task.delay("a", full=True).id != task.delay("a").id) is is_other


def test_arguments_are_those_of_the_message(sent):
    """A worker gets lists for tuples, and text for the keys of dictionaries."""
    task = sent.task()
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)

    assert task.delay((1, moment)).id == task.delay([1, moment]).id
    assert task.delay({1: 2}).id == task.delay({"1": 2}).id
    assert len(sent.messages) == 2


def test_a_message_that_is_delivered_again(sent):
    """It is skipped once it has succeeded; if its run failed, it runs again, until another message has the claim."""
    task = sent.task()
    sent.body = lambda *_: 1 / 0
    task.delay("a")
    assert [sent.deliver(task, sent.messages[0]) for _ in range(2)] == ["FAILURE"] * 2

    sent.body = lambda *_: None
    task.delay("a")
    assert [sent.deliver(task, sent.messages[0]) for _ in range(2)] == ["IGNORED"] * 2
    assert [sent.deliver(task, sent.messages[1]) for _ in range(2)] == ["SUCCESS", "IGNORED"]
    assert len(sent.runs) == 3
    assert [ticket for _, ticket in sent.runs] == sorted({ticket for _, ticket in sent.runs})


def test_a_call_during_the_run_sends_nothing(sent):
    """And gets the result of that run."""
    task = sent.task()
    called = []
    sent.body = lambda *_: called.append(task.delay("a").id)
    first = task.delay("a")

    assert sent.deliver(task, sent.messages[0]) == "SUCCESS"
    assert called == [first.id]
    assert len(sent.messages) == 1


def test_until_the_start(sent):
    """A call during the run sends another message, which runs."""
    task = sent.task(unique_until="start")
    sent.body = lambda *_: len(sent.messages) == 1 and task.delay("a")
    first = task.delay("a")

    assert [sent.deliver(task, sent.messages[i]) for i in (0, 1)] == ["SUCCESS", "SUCCESS"]
    assert [id_ for id_, _ in sent.runs] == [first.id, sent.messages[1][2]["task_id"]]
    assert sent.deliver(task, sent.messages[0]) == "IGNORED"


@pytest.mark.parametrize("until", ["start", "done"])
def test_a_message_whose_run_was_cut_off_runs_again(sent, until):
    """By a worker that was killed, or by itself, to be tried again; once it is completed it is skipped."""

    def cut_off(*_):
        raise SystemExit

    def retry(task, shop):
        task.apply_async((shop,), task_id=task.request.id, countdown=1)  # as Task.retry does
        raise ZeroDivisionError

    task = sent.task(unique_until=until)
    sent.body = cut_off
    first = task.delay("a")
    with pytest.raises(SystemExit):
        sent.deliver(task, sent.messages[0])
    sent.body = retry
    assert sent.deliver(task, sent.messages[0]) == "FAILURE"
    assert sent.messages[1][2]["task_id"] == first.id
    if until == "done":  # the retry has the claim
        assert task.delay("a").id == first.id

    sent.body = lambda *_: None
    assert [sent.deliver(task, sent.messages[i]) for i in (1, 0, 1)] == ["SUCCESS", "IGNORED", "IGNORED"]
    assert task.delay("a").id != first.id


def test_a_message_that_was_cut_off_after_its_start_gives_way(sent):
    """A later message has claimed since, and sees what the first one would have seen."""
    task = sent.task(unique_until="start")
    sent.body = lambda *_: 1 / 0
    first = task.delay("a")
    assert sent.deliver(task, sent.messages[0]) == "FAILURE"
    assert task.delay("a").id != first.id

    sent.body = lambda *_: None
    assert [sent.deliver(task, sent.messages[i]) for i in (0, 1)] == ["IGNORED", "SUCCESS"]


def elsewhere(work):
    """Do something in another thread, which has none of the locks of this one."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_message_that_comes_while_its_task_runs_elsewhere(sent):
    """It is sent again, to come later, with the same id and the claim that it has."""
    task = sent.task()
    states = []
    sent.body = lambda *_: elsewhere(lambda: states.append(sent.deliver(task, sent.messages[0])))
    first = task.delay("a")

    assert sent.deliver(task, sent.messages[0]) == "SUCCESS"
    assert states == ["IGNORED"]
    assert len(sent.runs) == 1
    again = sent.messages[1]
    assert again[2]["task_id"] == first.id
    assert sent.deliver(task, again) == "IGNORED"


@WHERE
def test_a_worker_that_dies(sent):
    """The claim ends with the lease, and its message is skipped once another one has been sent."""
    with VirtualClock() as clock:
        task = sent.task()
        first = task.delay("a")
        claims, [row] = sent.claims, sent.claims.scan()
        held = claims.locked(row.name, heartbeat=False, lease=15)
        elsewhere(lambda: [held.acquire(), row.update([claims.until_ms.set(0), claims.task_id.set(first.id)])])
        clock.jump(15)
        assert task.delay("a").id == first.id
        clock.jump(11)
        assert task.delay("a").id != first.id

        assert [sent.deliver(task, message) for message in sent.messages] == ["IGNORED", "SUCCESS"]


def test_a_message_that_is_lost(sent):
    """Its claim ends `unique_for` seconds after the moment for which it was sent."""
    with VirtualClock() as clock:
        task = sent.task(unique_for=100)
        first = task.apply_async(("a",), countdown=50)
        clock.jump(149)
        assert task.delay("a").id == first.id
        clock.jump(2)
        later = clock.now + timedelta(seconds=50)
        second = task.apply_async(("a",), eta=later)
        assert second.id != first.id
        clock.jump(149)
        assert task.apply_async(("a",), eta=later.isoformat()).id == second.id


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="a process does not change its zone on Windows")
@pytest.mark.parametrize("form", [lambda eta: eta, datetime.isoformat, lambda eta: eta.isoformat() + "Z"])
def test_a_time_without_a_zone_is_one_of_utc(sent, monkeypatch, form):
    """As Celery's worker reads it, wherever the caller lives. An hour of another zone would end the claim too soon."""
    eta = datetime(2030, 1, 1)  # noqa: DTZ001 - that is what is tested
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            sent.task(unique_for=60).apply_async(("a",), eta=form(eta))
    finally:
        time.tzset()
    (row,) = sent.claims.scan()
    assert row.until_ms == eta.replace(tzinfo=timezone.utc).timestamp() * 1000 + 60_000


def test_a_message_that_cannot_be_sent(sent, monkeypatch):
    task = sent.task()
    send = celery.Task.apply_async
    monkeypatch.setattr(celery.Task, "apply_async", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.delay("a")

    monkeypatch.setattr(celery.Task, "apply_async", send)
    task.delay("a")
    assert len(sent.messages) == 1


def test_a_message_that_was_revoked(sent):
    """It gives its claim up, unless it runs, or another one has the claim."""
    task = sent.task()
    first = task.delay("a")
    request = SimpleNamespace(args=["a"], kwargs={}, id="another")
    for id_, is_terminated, is_freed in [("another", False, False), (first.id, True, False), (first.id, False, True)]:
        request.id = id_
        signals.task_revoked.send(sender=task, request=request, terminated=is_terminated, signum=None, expired=False)
        assert (task.delay("a").id != first.id) is is_freed


@pytest.mark.parametrize(
    ("error", "again"), [(Ignore(), "IGNORED"), (Reject("no"), "IGNORED"), (Reject("later", requeue=True), "SUCCESS")]
)
def test_a_task_that_ignores_or_rejects_its_message(sent, error, again):
    """The claim is given up, unless the message is to come again."""

    def refuse(*_):
        raise error

    task = sent.task()
    sent.body = refuse
    task.delay("a")
    sent.deliver(task, sent.messages[0])
    sent.body = lambda *_: None

    assert sent.deliver(task, sent.messages[0]) == again


def test_a_lock_that_the_task_does_not_get(sent):
    """Is the task's own affair."""

    def wait(*_):
        raise LockTimeout("of another lock")

    task = sent.task()
    sent.body = wait
    task.delay("a")

    assert sent.deliver(task, sent.messages[0]) == "FAILURE"
    assert len(sent.messages) == 1


def test_a_message_of_another_sender(sent):
    """It runs if no other message has the claim."""
    task = sent.task()
    other = (("a",), {}, {"task_id": "other", "headers": {}})
    assert sent.deliver(task, other) == "SUCCESS"

    task.delay("a")
    assert sent.deliver(task, other) == "IGNORED"


def test_a_plain_call(sent):
    """It runs at once, without a lock."""
    task = sent.task()
    with pytest.raises(ConfigurationError, match="called as a function"):
        task("a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claims": None}, "needs claims="),
        ({"unique_on": ("no",)}, "names of its arguments"),
        ({"unique_on": "shop"}, "must be a tuple"),
        ({"claims": "locks"}, "needs claims="),
        ({"unique_for": 0}, "above 0"),
        ({"unique_for": timedelta(hours=1)}, "must be seconds"),
        ({"unique_for": float("inf")}, "at most a hundred years"),
        ({"unique_until": "end"}, "neither 'done' nor 'start'"),
    ],
)
def test_what_cannot_be(sent, options, message):
    with pytest.raises(ConfigurationError, match=message):
        sent.task(**options)


@pytest.mark.parametrize("options", [{"link": 1}, {"chain": [1]}, {"chord": 1}])
def test_callbacks_are_refused(sent, options):
    """A call that sends nothing would not call them."""
    with pytest.raises(ConfigurationError, match="cannot have callbacks"):
        sent.task().apply_async(("a",), **options)
    assert sent.messages == []


def test_a_run_that_died_before_it_said_of_which_message_it_is(sent):
    """Its row has a lock only. The next call waits for that, and sends its message."""
    with VirtualClock():
        task = sent.task()
        task.delay("a")
        [row] = sent.claims.scan()
        row.delete()
        held = sent.claims.locked(row.name, heartbeat=False, lease=15)
        elsewhere(held.acquire)
        task.delay("a")

        assert sent.deliver(task, sent.messages[1]) == "SUCCESS"
