"""Pages whose examples need a process of their own: what runs around their `py` blocks, and is not shown there."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from flask import Flask
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pynamodb.attributes import DynamicMapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, NamedLock, VersionAttribute
from pynamo_locking.contrib.flask import PynamoLocking
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, LockLost
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.unique import UniqueTable
from pynamo_locking_testing import (
    MemoryDynamoDB,
    VirtualClock,
    concurrent_write,
    held_by_other,
    lose_lock,
    throttled,
)
from tests.support.parties import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

ROOT: Final = Path(__file__).parents[2]
GUIDES: Final = ROOT / "docs" / "how-to"

BEFORE_DJANGO: Final = """
import sys, types
from django.conf import settings
from pynamo_locking_testing import MemoryDynamoDB

MemoryDynamoDB().__enter__()
project = types.ModuleType("bank_models")
sys.modules["bank_models"] = project
"""
SET_UP_DJANGO: Final = """
import django
from django.core.management import call_command
from django.db import connection

settings.configure(
    INSTALLED_APPS=INSTALLED_APPS, MIDDLEWARE=MIDDLEWARE, PYNAMO_LOCKING=PYNAMO_LOCKING,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF=project, USE_TZ=True, SECRET_KEY="-",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
call_command("dynamodb_tables", "create", verbosity=0)
assert Account.Meta.table_name == "test-accounts"
Account("a-1", owner="Ada").save()
"""
CHECK_DJANGO: Final = """
from django.test import Client
from tests.support.pages import check_etags

client = Client()
options = {"content_type": "application/json"}
check_etags(lambda method, path, tags, body: client.generic(method, path, body, headers=tags, **options))
assert client.get("/health").json() == {"status": "ok", "failing": []}
"""
BEFORE_GEVENT: Final = """
from gevent import monkey
monkey.patch_all()
from pynamo_locking_testing import MemoryDynamoDB
MemoryDynamoDB().__enter__()
"""
MORE_GEVENT: Final = """
from pynamo_locking import transactional

@transactional(wait=10)
def move(tx, source, target, amount):
    giver, taker = tx.get(Account, source), tx.get(Account, target)
    giver.balance -= amount
    taker.balance += amount
    tx.save(giver)
    tx.save(taker)

gevent.joinall([gevent.spawn(move, "a-1", "a-2", 1) for _ in range(5)], raise_error=True)
assert [Account.get(key).balance for key in ("a-1", "a-2")] == [115, 5]
"""


def run_django_page() -> None:
    """Django can be set up only once in a process, so the blocks of the page have one of their own."""
    model, settings, views, *others = blocks_of("use-with-django")
    assert len(others) > 1
    model, views = f"{model}\nproject.Account = Account", f"{views}\nproject.urlpatterns = urlpatterns"
    run(BEFORE_DJANGO, model, settings, SET_UP_DJANGO, views, CHECK_DJANGO, *others)


def send_to(app: Any) -> Callable[..., httpx.Response]:
    """Return a client of an ASGI application, such as `check_etags` takes."""

    def send(method: str, path: str, tags: Mapping[str, str] = MappingProxyType({}), body: str = "") -> httpx.Response:
        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bank") as client:
                headers = {"Content-Type": "application/json", **tags}
                return await client.request(method, path, headers=headers, content=body)

        return asyncio.run(answer())

    return send


def check_etags(send: Callable[[str, str, Mapping[str, str], str], Any]) -> None:
    """What the page of the frameworks says of each application, and what stands in the last response."""
    path, body = "/accounts/a-1", json.dumps({"owner": "Grace"})
    tag = send("GET", path, {}, "").headers["ETag"]
    tags = {"If-Match": tag}
    assert send("GET", path, {"If-None-Match": tag}, "").status_code == 304
    assert send("PUT", path, {}, body).status_code == 428
    assert send("PUT", path, tags, body).status_code == 200
    answer = send("PUT", path, tags, body)
    problem = json.loads(answer.text)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status_code, problem["code"]) == (412, "stale-version")
    assert (problem["expected"], problem["actual"]) == (1, 2)


def check_problem() -> None:
    """An error that a view does not catch: its status, code and form; nothing of the item."""
    Item.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    app = Flask("items")
    extension = PynamoLocking(models=[Item])
    extension.init_app(app)

    @app.post("/items/<name>")
    def create(name: str) -> dict[str, str]:
        Item(name).save()
        return {}

    client = app.test_client()
    assert client.post("/items/a-1").status_code == 200
    answer = client.post("/items/a-1")
    assert (answer.status_code, answer.json and answer.json["code"]) == (409, "stale-version")
    assert answer.content_type == "application/problem+json"
    assert "a-1" not in answer.text
    extension.reset()


def run_gevent_blocks() -> None:
    """The blocks about gevent, with the model of the page, in a process whose threads are replaced."""
    model = first_model("use-with-asyncio", "^async def pay")
    [shown] = blocks_of("use-with-asyncio")
    run(BEFORE_GEVENT, model, shown, MORE_GEVENT, options=("-W", "error"))


class Item(LockableModel):
    class Meta:
        table_name = "items"

    name = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


def check_global_tables(
    locks: type[NamedLock],
    delete_idle: Callable[[], list[str]],
    reset_locks: Callable[[], None],
    remove_lock: Callable[[Any, str, Any], None],
) -> None:
    """What the functions of the page do, in a DynamoDB in memory."""
    with MemoryDynamoDB() as database, VirtualClock() as clock:
        locks.create_table()
        with locks.locked("old"):
            pass
        clock.jump(32 * 24 * 3600)
        with locks.locked("new"):
            pass
        assert delete_idle() == ["old"]
        assert [row.name for row in locks.scan()] == ["new"]

        lock = locks.locked("again")
        with lock:
            before = lock.ticket
        reset_locks()
        assert list(locks.scan()) == []
        clock.jump(1)
        with lock:
            assert lock.ticket > before

        Item.create_table()
        Item("a").save()
        of_item = Item.locked("a")
        key = {"name": {"S": "a"}}
        with of_item:
            before = of_item.ticket
            with pytest.raises(database.exceptions.ConditionalCheckFailedException):
                remove_lock(database.client(), "items", key)
        remove_lock(database.client(), "items", key)
        clock.jump(1)
        with of_item:
            assert of_item.ticket > before


def check_changes(change: Callable[[Any], Any]) -> None:
    intent = {"M": {"op": {"S": "save"}, "ghost": {"BOOL": True}}}
    in_lock = {"M": {"tx": {"M": {"id": {"S": "…"}, "intent": intent}}}}
    placeholder = {"id": {"S": "x"}, "lock": in_lock}
    placed = {"dynamodb": {"NewImage": placeholder}}
    assert change(placed) is None
    stored = {"id": {"S": "x"}, "n": {"N": "1"}, "lock": {"M": {}}}
    finished = {"dynamodb": {"OldImage": placeholder, "NewImage": stored}}
    assert change(finished) == (None, {"id": {"S": "x"}, "n": {"N": "1"}})


class Context:
    aws_request_id = "8b8a4b5e-6d6c-4b3f-a1f4-0f6f4b0f3a5e"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def check_lambda(account: Any, handler: Callable[[Any, Any], Any]) -> None:
    account.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    account("a-1", balance=100).save()
    assert handler({"account": "a-1", "amount": 5}, Context()) == {"status": 200}
    assert account.get("a-1").balance == 105


def providers() -> tuple[InMemorySpanExporter, TracerProvider, MeterProvider]:
    """Return what exports spans, and the providers that the page takes for the user's."""
    spans = InMemorySpanExporter()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    return spans, tracers, MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


#: The fixtures of plugins that the page asks for.
_INSTALLED: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "memory_dynamodb": MemoryDynamoDB,
    "virtual_clock": VirtualClock,
    "monkeypatch": pytest.MonkeyPatch.context,
}


def run_tests(page: dict[str, Any]) -> None:
    """Run the tests of the page with its fixtures, and those of what it says without a block."""

    def nothing_is_paid_without_the_lock(accounts: None) -> None:
        lost = concurrent_write(page["Account"], "a-1", by=lambda _: lose_lock(page["Account"], "a-1"))
        with lost, pytest.raises(LockLost):
            page["pay_in"]("a-1", 30)

    def throttling_is_told(accounts: None) -> None:
        with throttled(page["Account"]), pytest.raises(PynamoDBException):
            page["pay_in_without_a_lock"]("a-1", 30)

    def the_next_caller_gets_the_lock_of_a_dead_holder(accounts: None, virtual_clock: VirtualClock) -> None:
        account = page["Account"]
        dead_holder = held_by_other(account.locked("a-1", heartbeat=False, lease=60))
        with dead_holder as dead, account.locked("a-1", wait=300) as lock:
            assert lock.ticket > dead.ticket
        assert virtual_clock.elapsed >= 60

    tests = [test for name, test in sorted(page.items()) if name.startswith("test_")]
    assert len(tests) > 6
    said = [
        nothing_is_paid_without_the_lock,
        throttling_is_told,
        the_next_caller_gets_the_lock_of_a_dead_holder,
    ]
    for test in [*tests, *said]:
        with ExitStack() as until_its_end:
            test(**_fixtures(test, page, until_its_end))


def _fixtures(function: Callable[..., object], page: dict[str, Any], until_its_end: ExitStack) -> dict[str, Any]:
    """Return what a test or a fixture asks for by its parameters."""
    made = dict[str, Any]()
    for name in inspect.signature(function).parameters:
        if name in _INSTALLED:
            made[name] = until_its_end.enter_context(_INSTALLED[name]())
        else:
            fixture = page[name]
            set_up = getattr(fixture, "__wrapped__", None) or fixture._get_wrapped_function()
            needed = _fixtures(set_up, page, until_its_end)
            is_block = inspect.isgeneratorfunction(set_up)
            made[name] = until_its_end.enter_context(contextmanager(set_up)(**needed)) if is_block else set_up(**needed)
    return made


def first_model(guide: str, end: str) -> str:
    text = (GUIDES / f"{guide}.md").read_text()
    model = re.search(rf"^```python\n(.*?)(?:{end})", text, re.MULTILINE | re.DOTALL)
    assert model is not None
    return model[1]


def blocks_of(guide: str) -> list[str]:
    return re.findall(r"^```py\n(.*?)^```$", (GUIDES / f"{guide}.md").read_text(), re.MULTILINE | re.DOTALL)


def run(*blocks: str, options: tuple[str, ...] = ()) -> None:
    command = [sys.executable, *options, "-c", "\n".join(blocks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class Locks(NamedLock):
    class Meta:
        table_name = "locks"


class RawLock(Model):
    """The row as the console shows it."""

    class Meta:
        table_name = "locks"

    name = UnicodeAttribute(hash_key=True)
    lock: Any = DynamicMapAttribute()
    lease_ends = UnicodeAttribute()


class RawItem(Model):
    """The item as the console shows it."""

    class Meta:
        table_name = "items"

    name = UnicodeAttribute(hash_key=True)
    lock: Any = DynamicMapAttribute()


def check_emptied_locks() -> None:
    """What the page says of locks that were changed in the console."""
    Item.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    Item("a").save()
    Locks.create_table()
    pairs: list[tuple[Any, Any]] = [(Item, RawItem), (Locks, RawLock)]
    for model, raw in pairs:
        hanging = in_thread(model.locked("a", heartbeat=False).acquire)
        [(ticket, told)] = raw.get("a").lock["queue"].values()
        assert (ticket, told["o"], "e" in told) == (hanging.ticket, hanging.owner, True)
        raw("a").update([raw.lock.set(DynamicMapAttribute())])
        with model.locked("a", wait=0) as lock:
            assert lock.ticket > hanging.ticket
        with pytest.raises(LockLost):
            hanging.renew()
    assert RawLock.get("a").lease_ends.endswith("Z")
    RawLock("a").update([RawLock.lock.remove()])
    with pytest.raises(ConfigurationError):
        Locks.locked("a", wait=0).acquire()


class OldCounter(Model):
    class Meta:
        table_name = "counters"

    name = UnicodeAttribute(hash_key=True)
    visits = NumberAttribute(default=0)


def check_two_releases(
    counter: Any, visit_of_release_1: Callable[[str], object], visit_twice_of_release_2: Callable[[str], object]
) -> None:
    """An increment of plain PynamoDB beside `edit` is lost; one of the first release is not, and is refused."""

    def old_visit() -> None:
        OldCounter.get("a").update([OldCounter.visits.add(1)])

    counter.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    OldCounter("a").save()
    visit_of_release_1("a")
    with counter.edit("a") as item:
        in_thread(old_visit)
        item.visits += 1
    assert counter.get("a").visits == 2, "of three"
    with counter.edit("a"), pytest.raises(ItemLocked):
        in_thread(lambda: visit_of_release_1("a"))
    visit_twice_of_release_2("a")
    assert counter.get("a").visits == 4


class OldBooking(Model):
    class Meta:
        table_name = "bookings"

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()


class Booking(IntervalMixin, LockableModel):
    class Meta:
        table_name = "bookings"
        interval = ("begin", "end")
        lock_table = Locks

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


class OldUser(Model):
    class Meta:
        table_name = "users"

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)


class Uniques(UniqueTable):
    class Meta:
        table_name = "uniques"


class User(LockableModel):
    class Meta:
        table_name = "users"
        unique = ("email",)
        unique_table = Uniques

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    version = VersionAttribute()


def check_old_rows(touch_all: Callable[[Any], object], may_drop_own_check: Callable[[Any], bool]) -> None:
    """What the functions of the page make of rows that plain PynamoDB has stored."""
    Locks.create_table()
    models: list[type[Model]] = [Booking, Uniques, User]
    for model in models:
        model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    for begin in (1, 5):
        OldBooking("blue", begin, end=begin + 2).save()
    with pytest.raises(ConfigurationError):
        Booking.intervals.move(Booking.get("blue", 1), 3, 4)
    touch_all(Booking)
    Booking.intervals.move(Booking.get("blue", 1), 3, 4)
    for key in ("u-1", "u-2"):
        OldUser(key, email="ada@example.com").save()
    assert not may_drop_own_check(User)
    User.get("u-2").delete()
    assert may_drop_own_check(User)
