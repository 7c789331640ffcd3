"""What the extension for Django has of its own, and the shop of the documentation; the rest is in `test_frameworks`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import django
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core import checks, management
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, TestCase, override_settings
from django.urls import path
from pynamodb.attributes import BinaryAttribute, NumberAttribute
from pynamodb.exceptions import TableError
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, LockableModel, LockSettings, TTLAttribute
from pynamo_locking.contrib.django.http import if_match
from pynamo_locking.contrib.django.sql import lock_in_transaction, locked_atomic
from pynamo_locking.exceptions import ConfigurationError, LockLost, OutcomeUnknown, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support import wire
from tests.support.models import declare, meta

PROBLEM: Final = "application/problem+json"
PRODUCT: Final = "a book about locks"


@pytest.fixture
def stock(shop, memory):
    """The model of the stock with an empty table, and no orders."""
    shop.Order.objects.all().delete()
    return memory.bind(shop.Stock)


@pytest.fixture
def client(stock):
    """Sends requests to the shop, which has five of one product."""
    stock(PRODUCT, received=5).save()
    return Client()


def order(client, quantity, product=PRODUCT):
    return client.post("/orders", {"product": product, "quantity": quantity}, content_type="application/json")


def entries(model, key=PRODUCT):
    return model.lock_state(key).entries


# The shop


def test_orders(client, shop):
    """201 while there is enough, 409 after that; SQL and DynamoDB agree."""
    assert [order(client, quantity).status_code for quantity in (2, 2, 2, 1)] == [201, 201, 409, 201]
    assert order(client, 1, "nothing").status_code == 404
    assert order(client, 0).status_code == 400
    assert sorted(shop.Order.objects.values_list("quantity", flat=True)) == [1, 2, 2]
    assert shop.Stock.get(PRODUCT).sold == 5
    assert entries(shop.Stock) == ()


def test_nothing_is_sold_twice(client, shop):
    """Of eight orders at once for five things, five are taken."""

    def buy(_):
        try:
            return order(Client(), 1).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as clients:
        assert sorted(clients.map(buy, range(8))) == [*[201] * 5, *[409] * 3]
    assert shop.Order.objects.count() == 5
    assert shop.Stock.get(PRODUCT, consistent_read=True).sold == 5


def test_a_refused_write_takes_the_order_back(client, shop, monkeypatch):
    """The lock is broken while the order is written: DynamoDB refuses the stock, and SQL rolls back."""
    create = shop.Order.objects.create

    def create_slowly(**values):
        [holder] = entries(shop.Stock)
        shop.Stock.break_lock(PRODUCT, ticket=holder.ticket)
        return create(**values)

    monkeypatch.setattr(shop.Order.objects, "create", create_slowly)
    answer = order(client, 1)
    assert (answer.status_code, answer.json()["code"]) == (500, "lock-lost")
    assert shop.Order.objects.count() == 0
    assert shop.Stock.get(PRODUCT).sold == 0


def test_what_a_crash_between_the_two_commits_leaves(client, shop, capsys):
    """Less in the stock than there is, never more; `reconcile` counts again."""
    order(client, 2)
    shop.Stock.modify(PRODUCT, lambda stock: setattr(stock, "sold", 4))
    management.call_command("reconcile")
    assert "4 were counted as sold, and 2 are ordered" in capsys.readouterr().out
    assert shop.Stock.get(PRODUCT).sold == 2


# ETags


def test_a_product(client):
    """It is shown and changed with ETags, which a HEAD has as well."""
    url = f"/products/{PRODUCT}"
    put = partial(client.put, url, {"received": 9}, content_type="application/json")
    first = client.get(url).headers["ETag"]
    assert client.get(url, headers={"If-None-Match": first}).status_code == 304
    assert put().status_code == 428
    changed = put(headers={"If-Match": first})
    assert (changed.status_code, changed.json()["left"]) == (200, 9)
    assert client.get(url).headers["ETag"] == client.head(url).headers["ETag"] == changed.headers["ETag"] != first
    assert put(headers={"If-Match": first}).status_code == 412
    assert client.get("/products/none").status_code == 404


class Wrapper:
    """A request of Django REST framework: it reads from Django's, and keeps what it is given to itself."""

    def __init__(self, request):
        self._request = request

    def __getattr__(self, name):
        return getattr(self._request, name)


def change_wrapped(request):
    from shop.stock import Stock

    if_match(Wrapper(request), Stock, PRODUCT).delete()


def test_if_match_with_a_request_that_is_wrapped(ours, client):
    """412 all the same."""
    answer = client.put("/wrapped", headers={"If-Match": '"7"'})
    assert (answer.status_code, answer.json()["expected"]) == (412, 7)


# The middleware, with views of our own


def fail(_request, what):
    raise {"stale": StaleVersion("", expected=1), "unknown": OutcomeUnknown(""), "own": ZeroDivisionError()}[what]


async def fail_later(request, what):
    fail(request, what)


LOCKS: Final = []


def leave(_request, what):
    from shop.stock import Stock

    LOCKS.append(Stock.locked(PRODUCT).acquire())
    if what == "error":
        raise ZeroDivisionError
    return HttpResponse("done")


def hold_and_end(_request, what):
    from shop.models import Order
    from shop.stock import Stock

    lock = Stock.locked(PRODUCT)
    LOCKS.append(lock)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        lock_in_transaction(lock)
        Order.objects.create(product=PRODUCT, quantity=1)
        if what == "back":
            raise ZeroDivisionError
    return HttpResponse(str(lock.is_held))


def order_and_fail(_request):
    from shop.models import Order
    from shop.stock import Stock

    LOCKS.append(lock_in_transaction(Stock.locked(PRODUCT)))
    Order.objects.create(product=PRODUCT, quantity=1)
    raise StaleVersion("")


VIEW_IS_THERE: Final = threading.Event()
CLIENT_IS_GONE: Final = threading.Event()


def hold_and_roll_back(_request):
    from shop.stock import Stock

    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        VIEW_IS_THERE.set()
        assert CLIENT_IS_GONE.wait(60)
        LOCKS.append(lock_in_transaction(Stock.locked(PRODUCT)))
        raise ZeroDivisionError


def inner(get_response):
    """Middleware inside of ours: it tells the view of a disconnect when ours has been told."""
    assert iscoroutinefunction(get_response)

    async def answer(request):
        try:
            return await get_response(request)
        finally:
            asyncio.get_running_loop().call_soon(CLIENT_IS_GONE.set)

    return markcoroutinefunction(answer)


inner.async_capable, inner.sync_capable = True, False


async def leave_later(_request, what):
    from shop.stock import Stock

    LOCKS.append(Stock.locked(PRODUCT).acquire())
    return HttpResponse(what)


def handled(request, error):
    return HttpResponse(f"{request.path}: {type(error).__name__}", status=418)


urlpatterns = [
    path("fail/<what>", fail),
    path("fail-later/<what>", fail_later),
    path("leave/<what>", leave),
    path("leave-later/<what>", leave_later),
    path("hold/<what>", hold_and_end),
    path("order-and-fail", order_and_fail),
    path("wrapped", change_wrapped),
    path("hold-and-roll-back", hold_and_roll_back),
]


@pytest.fixture
def ours(shop):
    """Django with the views of this file."""
    LOCKS.clear()
    with override_settings(ROOT_URLCONF=sys.modules[__name__]):
        yield


def get(url):
    """Ask under WSGI and ASGI; both answer alike."""
    sync = Client(raise_request_exception=False).get(url)
    later = asyncio.run(AsyncClient(raise_request_exception=False).get(url))
    assert (sync.status_code, sync.content) == (later.status_code, later.content)
    return later


@pytest.mark.parametrize("view", ["fail", "fail-later"])
def test_errors_are_answered(ours, caplog, view):
    """By problem details, from views of both kinds under servers of both kinds; others are Django's."""
    answer = get(f"/{view}/stale")
    assert (answer.status_code, answer.headers["Content-Type"]) == (409, PROBLEM)
    assert json.loads(answer.content)["expected"] == 1
    assert get(f"/{view}/unknown").status_code == 500
    assert f"GET /{view}/unknown" in caplog.text
    assert "text/html" in get(f"/{view}/own").headers["Content-Type"]


def test_a_project_may_answer_itself(ours, settings_of):
    """By a function that it names, for each status."""
    with settings_of(HANDLER409=f"{__name__}.handled", PROBLEM_TYPE="https://example.com/"):
        answer = get("/fail/stale")
        assert (answer.status_code, answer.content) == (418, b"/fail/stale: StaleVersion")
        assert json.loads(get("/fail/unknown").content)["type"] == "https://example.com/outcome-unknown"


@pytest.fixture
def settings_of(shop):
    """Changes keys of PYNAMO_LOCKING."""
    return lambda **changes: override_settings(PYNAMO_LOCKING={**settings.PYNAMO_LOCKING, **changes})


@pytest.mark.parametrize("url", ["/leave/plain", "/leave/error", "/leave-later/plain"])
def test_a_forgotten_lock_is_released(ours, client, shop, caplog, url):
    """At the end of the request, under WSGI and ASGI, and the log says so."""
    get(url)
    assert len(LOCKS) == 2
    assert not any(lock.is_held for lock in LOCKS)
    assert entries(shop.Stock) == ()
    assert caplog.text.count(f"was still held at the end of GET {url}") == 2


def test_held_until_sql_has_ended(ours, client, shop, caplog):
    """Given back right after a commit, and at the end of the request after a roll back, without a word."""
    assert get("/hold/commit").content == b"False"
    assert shop.Order.objects.count() == 2
    assert get("/hold/back").content == b"True"
    assert shop.Order.objects.count() == 2
    assert len(LOCKS) == 4
    assert not any(lock.is_held for lock in LOCKS)
    assert entries(shop.Stock) == ()
    assert "still held" not in caplog.text


@pytest.mark.skipif(django.VERSION < (5, 0), reason="Django 4 does not listen for disconnects")
def test_a_client_that_goes_away(ours, client, shop):
    """Django cancels the request, and a synchronous view runs on: what it holds is given back when it has ended."""
    VIEW_IS_THERE.clear(), CLIENT_IS_GONE.clear()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/hold-and-roll-back",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    messages = [{"type": "http.request", "body": b""}]

    async def receive():
        if not messages:
            assert await asyncio.to_thread(VIEW_IS_THERE.wait, 60)
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError(message)

    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, f"{__name__}.inner"]):
        asyncio.run(get_asgi_application()(scope, receive, send))
    assert [lock.is_held for lock in LOCKS] == [False]
    assert entries(shop.Stock) == ()


def test_views_in_transactions(ours, client, shop, monkeypatch):
    """With ATOMIC_REQUESTS an error is answered after SQL has rolled back, and what is held is given back then."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert Client().get("/order-and-fail").status_code == 409
    assert shop.Order.objects.count() == 0
    assert (len(LOCKS), entries(shop.Stock)) == (1, ())


# Locks around SQL


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_lock_is_around_the_transaction(client, shop, monkeypatch, end):
    """It is taken before SQL begins, and still there when SQL has committed or rolled back."""
    seen, end_it = [], getattr(connection, end)

    def end_and_look():
        end_it()
        seen.append(len(entries(shop.Stock)))

    def sell():
        with locked_atomic(shop.Stock.locked(PRODUCT)) as [lock]:
            assert (lock.is_held, connection.in_atomic_block) == (True, True)
            shop.Order.objects.create(product=PRODUCT, quantity=1)
            if end == "rollback":
                raise ZeroDivisionError

    monkeypatch.setattr(connection, end, end_and_look)
    with contextlib.suppress(ZeroDivisionError):
        sell()
    assert seen == [1]
    assert entries(shop.Stock) == ()
    assert shop.Order.objects.count() == (end == "commit")


def test_a_lock_that_a_block_further_out_has_taken(client, shop):
    """With a lease of its own, which is what can be asked of it before the commit."""
    with shop.Stock.locked(PRODUCT, lease=10) as outer, locked_atomic(shop.Stock.locked(PRODUCT)) as [lock]:
        assert lock.ticket == outer.ticket
    assert entries(shop.Stock) == ()


def test_a_lost_lock_keeps_sql_from_committing(client, shop):
    """It is looked at right before the commit, also if it was taken by `hold`."""
    for taken_by in ("block", "hold"):
        locks = [shop.Stock.locked(PRODUCT)] if taken_by == "block" else []
        with pytest.raises(LockLost), locked_atomic(*locks):
            lock = locks[0] if locks else lock_in_transaction(shop.Stock.locked(PRODUCT))
            shop.Order.objects.create(product=PRODUCT, quantity=1)
            shop.Stock.break_lock(PRODUCT, ticket=lock.ticket)
            with pytest.raises(LockLost):
                lock.renew()
    assert shop.Order.objects.count() == 0


def test_a_lock_that_is_lost_while_sql_commits(client, shop, monkeypatch, caplog):
    """SQL has committed: an error would say otherwise, so it goes to the log."""
    commit = connection.commit

    def commit_slowly():
        [holder] = entries(shop.Stock)
        shop.Stock.break_lock(PRODUCT, ticket=holder.ticket)
        commit()

    monkeypatch.setattr(connection, "commit", commit_slowly)
    with locked_atomic(shop.Stock.locked(PRODUCT)):
        shop.Order.objects.create(product=PRODUCT, quantity=1)
    assert shop.Order.objects.count() == 1
    assert "while SQL committed" in caplog.text


def test_outside_of_the_block(client, shop):
    """Each helper says where it belongs, before it takes anything."""
    lock = shop.Stock.locked(PRODUCT)
    with transaction.atomic(), pytest.raises(ConfigurationError, match="commit after the locks are released"):
        locked_atomic(lock).__enter__()
    with transaction.atomic(), pytest.raises(ConfigurationError, match="needs LocksMiddleware or a locked_atomic"):
        lock_in_transaction(lock)
    with locked_atomic(), pytest.raises(ConfigurationError, match="inside of atomic"):
        connection.in_atomic_block, was = False, connection.in_atomic_block
        try:
            lock_in_transaction(lock)
        finally:
            connection.in_atomic_block = was
    assert entries(shop.Stock) == ()


def test_a_savepoint_that_rolls_back(client, shop):
    """Takes the hook for the commit with it: what was taken in it is kept to the end of the block."""
    with locked_atomic():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            lock = lock_in_transaction(shop.Stock.locked(PRODUCT))
            raise ZeroDivisionError
        transaction.on_commit(lambda: seen.append(lock.is_held))
        seen = [lock.is_held]
    assert (seen, lock.is_held, entries(shop.Stock)) == ([True, True], False, ())


def test_several_locks_of_a_savepoint_that_rolls_back(client, shop):
    """All of them are given back at the end of the block."""
    shop.Stock("another").save()
    with locked_atomic(), contextlib.suppress(ZeroDivisionError), transaction.atomic():
        for product in (PRODUCT, "another"):
            lock_in_transaction(shop.Stock.locked(product))
        raise ZeroDivisionError
    assert (entries(shop.Stock), entries(shop.Stock, "another")) == ((), ())


@pytest.mark.parametrize(("passed", "renewals"), [(29, 0), (31, 1)])
def test_a_lease_that_is_half_over_is_renewed_before_the_commit(client, shop, passed, renewals):
    """So that the commit has half a lease of time."""
    renewal = wire.on("UpdateItem", where=lambda body: ":beat" in body.get("ExpressionAttributeValues", {}))
    lock = shop.Stock.locked(PRODUCT, lease=60, heartbeat=False)
    with VirtualClock() as clock, renewal.watch() as sent, locked_atomic(lock):
        clock.jump(passed)
    assert sent.hits == renewals


def test_in_a_test_case(client, shop):
    """Django's TestCase wraps each test in `atomic`; that is no outer block."""

    class Case(TestCase):
        def test_it(self):
            with locked_atomic(shop.Stock.locked(PRODUCT)) as [lock]:
                lock_in_transaction(shop.Stock.locked(PRODUCT))
                assert (lock.is_held, len(connection.atomic_blocks)) == (True, 3)
            assert entries(shop.Stock) == ()

    result = unittest.TestResult()
    unittest.TestSuite([Case("test_it")]).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


# Commands, checks, health


def run(*arguments):
    out = io.StringIO()
    management.call_command(*arguments, stdout=out)
    return out.getvalue()


def test_the_commands_for_locks(client, shop, monkeypatch, caplog):
    """list, show and break, as for Flask."""
    assert json.loads(run("locks", "list", "--json")) == []
    lock = shop.Stock.locked(PRODUCT, owner="clerk", heartbeat=False)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lock.acquire).result()
    [row] = json.loads(run("locks", "list", "--json"))
    assert (row["model"], row["key"], row["ticket"], row["owner"]) == ("Stock", PRODUCT, lock.ticket, "clerk")
    assert "holds" in run("locks", "show", "Stock", PRODUCT)

    command = ("locks", "break", "Stock", PRODUCT, "--ticket", str(lock.ticket))
    for said in ("no\n", ""):  # nothing: no user is there to be asked
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        with pytest.raises(management.CommandError, match="Nothing was done"):
            run(*command)
    assert len(entries(shop.Stock)) == 1
    assert "is gone" in run(*command, "--yes")
    assert "was broken by hand" in caplog.text
    for arguments in ((*command, "--yes"), ("locks", "show", "Nobody", "x")):
        with pytest.raises(management.CommandError):
            run(*arguments)


def test_the_commands_for_locks_without_a_table(client, shop):
    """Say so, without a traceback."""
    shop.Stock.delete_table()
    for arguments in (["list"], ["show", "Stock", PRODUCT]):
        with pytest.raises(management.CommandError, match=shop.Stock.Meta.table_name):
            run("locks", *arguments)


def test_the_commands_for_tables(shop, stock):
    """create makes what is absent, check says what is."""
    assert run("dynamodb_tables", "check") == "All tables are there.\n"
    stock.delete_table()
    with pytest.raises(management.CommandError, match=stock.Meta.table_name):
        run("dynamodb_tables", "check")
    assert run("dynamodb_tables", "create") == f"Created: {stock.Meta.table_name}.\n"
    assert stock.exists()
    assert run("dynamodb_tables", "create") == "All tables are there.\n"


def test_the_commands_for_tables_compare_keys(stock, memory, monkeypatch):
    """A table of others is no table of the model, and nothing is made."""
    table = memory.create_table("S", "S")
    monkeypatch.setattr(stock.Meta, "table_name", table)
    for action in ("check", "create"):
        with pytest.raises(management.CommandError, match=rf"{table}.*its keys are pk \(S\), sk \(S\)"):
            run("dynamodb_tables", action)


def test_health(client, shop, caplog):
    """200 while the tables answer, then 503; one read for each."""
    with wire.count_requests() as requests:
        assert client.get("/health").json() == {"status": "ok", "failing": []}
    assert requests.by_operation == {"GetItem": 1}
    shop.Stock.delete_table()
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["failing"]) == (503, ["Stock"])
    assert "Stock does not answer" in caplog.text


Odd = declare(
    "Odd", Model, number=NumberAttribute(hash_key=True), data=BinaryAttribute(range_key=True, legacy_encoding=False)
)


def test_health_of_any_key(client, memory, settings_of):
    """The item that is asked for has a key of the right kind."""
    memory.bind(Odd)
    with settings_of(MODELS=[f"{__name__}.Odd"]):
        assert client.get("/health").status_code == 200


class Brief(ExpiringMixin, LockableModel):
    """Its leases end while one of its requests may be under way, and its items never expire."""

    class Meta:
        table_name = "brief"
        lock_settings = LockSettings(heartbeat=False)
        max_retry_attempts = 3
        connect_timeout_seconds = 15
        read_timeout_seconds = 30


class Fine(ExpiringMixin, LockableModel):
    """Nothing is wrong with it."""

    Meta = meta("fine", lock_settings=LockSettings(heartbeat=False, lease=200))

    expires = TTLAttribute(null=True)


def found(**options):
    return [message.id for message in checks.run_checks(**options) if message.id.startswith("pynamo_locking")]


def test_the_checks(client, shop, settings_of, monkeypatch):
    """Unknown keys, handlers that are none, short leases and missing times of expiry; no request is made for them."""
    from pynamo_locking.contrib.django import apps

    with wire.count_requests() as requests:
        assert found() == []
        with settings_of(MODELLS=[]):
            assert found() == ["pynamo_locking.E001"]
        with settings_of(HANDLER409="nowhere.at_all", HANDLER412=f"{__name__}.PRODUCT", HANDLER423=handled):
            assert found() == ["pynamo_locking.E003"] * 2
        monkeypatch.setattr(apps, "models", lambda: [Brief, Fine, shop.Stock])
        assert sorted(found()) == ["pynamo_locking.W001", "pynamo_locking.W002"]
        for lease, ids in ((179, ["pynamo_locking.W001", "pynamo_locking.W002"]), (180, ["pynamo_locking.W002"])):
            monkeypatch.setattr(Brief.Meta, "lock_settings", LockSettings(heartbeat=False, lease=lease))
            assert sorted(found()) == ids  # a request and its three repetitions take 180 s at most
        monkeypatch.setattr(Brief.Meta, "lock_settings", LockSettings())  # a heartbeat renews
        assert found() == ["pynamo_locking.W002"]
    assert requests.total == 0


def test_the_check_of_tables_has_to_be_asked_for(client, shop, monkeypatch):
    """With both ``--deploy`` and ``--database``, since it costs requests; absent is not the same as forbidden."""
    deploy, database = {"include_deployment_checks": True}, {"databases": ["default"]}
    assert found(**deploy, **database) == []
    shop.Stock.delete_table()
    assert found() == found(**deploy) == found(**database) == []
    assert found(**deploy, **database) == ["pynamo_locking.E002"]

    def forbidden():
        raise TableError("not allowed to describe it")

    monkeypatch.setattr(shop.Stock, "exists", forbidden)
    assert found(**deploy, **database) == ["pynamo_locking.W003"]


@pytest.mark.parametrize("path", ["shop.stock.Nothing", "nowhere.Stock", "shop.views.order"])
def test_models_that_are_not_there(settings_of, path):
    """Are a mistake in the settings, and said so when Django starts."""
    from pynamo_locking.contrib.django import apps

    with settings_of(MODELS=[path]), pytest.raises(ImproperlyConfigured, match=path):
        apps.apply()


def test_settings_that_cannot_be(settings_of):
    """The same."""
    from pynamo_locking.contrib.django import apps

    with settings_of(TABLE_PREFIX="t-"), pytest.raises(ImproperlyConfigured, match="PYNAMO_LOCKING: Stock was"):
        apps.apply()
