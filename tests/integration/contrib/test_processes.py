"""The banks and the shop of the documentation in several worker processes, of gunicorn and of uvicorn."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.engines.servers import TRAMPOLINE
from tests.support.workers import PATIENCE, until, until_next_beat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.alone, pytest.mark.processes]

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
SHOP: Final = EXAMPLES / "django_shop"
WORKERS: Final = 3
CLIENTS: Final = 6
SETTINGS: Final = {"wait": 60, "lease": 3, "request_timeout": 0.5, "poll_interval": 0.02}

GUNICORN: Final = ("gunicorn", "--bind", "fd://{fd}", "--timeout", "120", "--workers")
PRELOADED: Final = (*GUNICORN, str(WORKERS), "--preload")
GEVENT: Final = (*GUNICORN, "2", "--worker-class", "gevent")
UVICORN: Final = ("uvicorn", "--fd", "{fd}", "--log-level", "warning", "--workers", "2")

#: What the server loads before it forks: the application, and a lock that stays with the master process.
BANK: Final = """
import os
from flask_bank import Account, create_app

app = create_app()
lock = Account.locked("leader").acquire()

@app.get("/leader")
def leader():
    return {"pid": os.getpid(), "ticket": lock.ticket, "is_held": lock.is_held, "is_lost": lock.lost.is_set()}

@app.put("/leader")
def write():
    lock.item.save()

@app.delete("/leader")
def leave():
    lock.release()

@app.after_request
def sign(response):
    response.headers["X-Pid"] = os.getpid()
    return response
"""
GREENLET_BANK: Final = """
import os
import gevent.monkey
from flask_bank import create_app

app = create_app()

@app.after_request
def sign(response):
    assert gevent.monkey.is_module_patched("threading")
    response.headers["X-Pid"] = os.getpid()
    return response
"""
ASYNC_BANK: Final = """
import json, os
import fastapi_bank
from pynamo_locking import LockSettings

app = fastapi_bank.app
fastapi_bank.Account.Meta.lock_settings = LockSettings(**json.loads(os.environ["LOCK_SETTINGS"]))

@app.middleware("http")
async def sign(request, call_next):
    response = await call_next(request)
    response.headers["X-Pid"] = str(os.getpid())
    return response
"""
SHOP_SERVED: Final = """
import json, os
from shop import settings
settings.PYNAMO_LOCKING["LOCK_SETTINGS"] = json.loads(os.environ["LOCK_SETTINGS"])
from shop.wsgi import application
from django.core.management import call_command
from django.db import connections
from shop.stock import Stock

call_command("migrate", run_syncdb=True, verbosity=0)
connections.close_all()  # SQLite's connections do not survive a fork
lock = Stock.locked("leader").acquire()

def app(environ, start_response):
    def sign(status, headers, *rest):
        return start_response(status, [*headers, ("X-Pid", str(os.getpid()))], *rest)
    if environ["PATH_INFO"] == "/leader":
        sign("200 OK", [])
        facts = {"pid": os.getpid(), "ticket": lock.ticket, "is_held": lock.is_held, "is_lost": lock.lost.is_set()}
        return [json.dumps(facts).encode()]
    return application(environ, sign)
"""


def send(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
    """Send one request; return status, JSON and the process that answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None, answer.headers["X-Pid"]


@contextlib.contextmanager
def served(
    source: str, folder: Path, environment: dict[str, str], server: tuple[str, ...] = PRELOADED
) -> Iterator[int]:
    """Run a program under a server, gunicorn that loads it before its workers are forked unless told; yield its port.

    Requests wait in the socket, which is bound before the server starts, until there are workers. All processes are
    killed at the end, and the kernel kills the master if this process dies.
    """
    (folder / "served.py").write_text(source)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", *(part.format(fd=listener.fileno()) for part in server), "served:app"]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", TRAMPOLINE, str(os.getpid()), *command],
            cwd=folder,
            env={**os.environ, **environment},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        port = listener.getsockname()[1]
        listener.close()  # if the server dies, requests fail at once
        try:
            yield port
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-8000:].decode(errors="replace"))
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def all_at_once(work: Any) -> list[Any]:
    """Call a function in as many threads as there are clients; return what they return, in one list."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        return [each for several in clients.map(work, range(CLIENTS)) for each in several]


def leaders(port: int) -> dict[int, Any]:
    """Return what two workers, at least, know of the lock that the master holds."""
    found: dict[int, Any] = {}

    def ask(_: int) -> list[None]:
        _, facts, _ = send(port, "GET", "/leader")
        found[facts["pid"]] = facts
        return []

    def two_have_answered() -> bool:
        all_at_once(ask)
        return len(found) > 1

    until(two_have_answered, "an answer of a second worker")
    return found


def assert_master_holds(port: int, model: Any) -> None:
    """The lock that was taken before the fork is the master's: renewed by it, and lost to all its workers."""
    [holder] = model.lock_state("leader").entries
    for facts in leaders(port).values():
        assert (facts["ticket"], facts["is_held"], facts["is_lost"]) == (holder.ticket, False, True)
    until_next_beat(model, "leader", holder.ticket)


def assert_master_keeps_it(port: int, model: Any) -> None:
    """Also when workers end, whose with-blocks and exit handlers know of it; the next ones work as well."""
    [holder] = model.lock_state("leader").entries
    ended = leaders(port)
    for pid in ended:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not any(_is_alive(pid) for pid in ended), "the end of the workers")
    until_next_beat(model, "leader", holder.ticket)
    assert [entry.ticket for entry in model.lock_state("leader").entries] == [holder.ticket]
    assert not leaders(port).keys() & ended.keys()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def imported(name: str, folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return __import__(name, fromlist=["*"])


def place_of(engine: Engine, prefix: str) -> dict[str, str]:
    """Return the environment in which the program finds the tables of this test."""
    return {f"{prefix}REGION": engine.region, **({f"{prefix}HOST": engine.host} if engine.host else {})}


def bank_of(engine: Engine, *names: str) -> tuple[Any, dict[str, str]]:
    """Return the model of the bank of Flask, with accounts of these names, and the environment of its servers."""
    account: Any = imported("flask_bank", EXAMPLES).Account
    engine.bind(account)
    for name in names:
        account(name, owner="Ada", balance=100).save()
    keys = "FLASK_PYNAMO_LOCKING_"
    return account, place_of(engine, keys) | {
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path]),
        f"{keys}TABLE_PREFIX": account.Meta.table_name.removesuffix("accounts"),
        f"{keys}LOCK_SETTINGS": json.dumps(SETTINGS),
    }


def assert_no_money_is_made_or_lost(
    account: Any, port: int, paths: tuple[str, ...], names: tuple[str, str] = ("from", "to")
) -> None:
    """Deposits and transfers of six clients at once, to two workers at least, come out even."""

    def work(number: int) -> list[tuple[int, str]]:
        source, target = ("a-1", "a-2") if number % 2 else ("a-2", "a-1")
        answers = []
        for path in paths:
            answers.append(send(port, "POST", "/accounts/a-1/deposits", {"amount": 10}))
            answers.append(send(port, "POST", path, {names[0]: source, names[1]: target, "amount": 1}))
        return [(status, pid) for status, _, pid in answers]

    answers = all_at_once(work)
    until(lambda: len({pid for _, pid in answers}) > 1 or answers.extend(all_at_once(work)), "a second worker")
    statuses = [status for status, _ in answers]
    assert {*statuses} <= {200, 204, 409, 423}  # a transfer may give up; then it has changed nothing
    assert 204 in statuses
    total = sum(account.get(name, consistent_read=True).balance for name in ("a-1", "a-2"))
    assert total == 200 + 10 * statuses.count(200)
    assert account.lock_state("a-1").entries == ()


def test_bank(dynoxide: Engine, tmp_path: Path) -> None:
    """Three forked workers: no money is made or lost, and a lock from before the fork stays with the master."""
    account, environment = bank_of(dynoxide, "leader", "a-1", "a-2")
    with served(BANK, tmp_path, environment) as port:
        assert_no_money_is_made_or_lost(account, port, ("/transfers",) * 4)
        assert_master_holds(port, account)
        status, refused, _ = send(port, "PUT", "/leader")
        assert (status, refused["code"], refused["reason"]) == (500, "lock-lost", "forked")
        assert send(port, "DELETE", "/leader")[0] == 500
        assert_master_keeps_it(port, account)


def test_bank_in_greenlets(dynoxide: Engine, tmp_path: Path) -> None:
    """The same in workers of gunicorn whose threads are greenlets."""
    account, environment = bank_of(dynoxide, "a-1", "a-2")
    with served(GREENLET_BANK, tmp_path, environment, GEVENT) as port:
        assert_no_money_is_made_or_lost(account, port, ("/transfers",) * 2)


def test_shop(dynoxide: Engine, tmp_path: Path) -> None:
    """Orders of six clients at once, served by three forked workers: each thing is sold once, and SQL agrees."""
    stock: Any = imported("shop.stock", SHOP).Stock
    dynoxide.bind(stock)
    stock("leader").save()
    stock("book", received=10).save()
    environment = place_of(dynoxide, "SHOP_DYNAMODB_") | {
        "PYTHONPATH": os.pathsep.join([str(SHOP), *sys.path]),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_TABLE_PREFIX": stock.Meta.table_name.removesuffix("stock"),
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "LOCK_SETTINGS": json.dumps(SETTINGS),
    }

    def buy(_: int) -> list[int]:
        return [send(port, "POST", "/orders", {"product": "book", "quantity": 1})[0] for _ in range(3)]

    with served(SHOP_SERVED, tmp_path, environment) as port:
        assert sorted(all_at_once(buy)) == [*[201] * 10, *[409] * 8]
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as database:
            assert database.execute("select count(*), sum(quantity) from shop_order").fetchone() == (10, 10)
        assert stock.get("book", consistent_read=True).sold == 10
        assert stock.lock_state("book").entries == ()

        assert_master_holds(port, stock)
        assert_master_keeps_it(port, stock)


def test_bank_of_coroutines(dynoxide: Engine, tmp_path: Path) -> None:
    """The same with FastAPI in workers of uvicorn: deposits, and transfers in threads and in tasks."""
    account: Any = imported("fastapi_bank", EXAMPLES).Account
    dynoxide.bind(account)
    for name in ("a-1", "a-2"):
        account(name, owner="Ada", balance=100).save()
    environment = place_of(dynoxide, "BANK_DYNAMODB_") | {
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path]),
        "BANK_TABLE_PREFIX": account.Meta.table_name.removesuffix("accounts"),
        "LOCK_SETTINGS": json.dumps(SETTINGS),
    }
    with served(ASYNC_BANK, tmp_path, environment, UVICORN) as port:
        assert_no_money_is_made_or_lost(account, port, ("/transfers", "/donations"), ("source", "target"))
