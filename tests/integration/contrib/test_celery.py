"""Celery's prefork workers, with a broker of files: the tasks of docs/how-to/use-with-celery.md, and tasks that die."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from celery import Celery, Task

from pynamo_locking.contrib.celery import TaskClaims, UniqueTask
from pynamo_locking.recipes import IdempotencyTable
from tests.support.crew import ROOT
from tests.support.models import declare
from tests.support.wire import count_requests
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

PAGE: Final = Path(ROOT, "docs/how-to/use-with-celery.md")
WORKERS: Final = 2

#: After the tasks of the page. A task writes a line as it begins, and as it ends.
MORE: Final = """
import builtins, io, json, os, time
from pathlib import Path
from celery.backends.filesystem import FilesystemBackend
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_init
from kombu.transport import filesystem
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamo_locking import LockableModel, VersionAttribute, transactional
from pynamo_locking.contrib.messages import celery_key
from pynamo_locking.recipes import IdempotencyTable, idempotent

class Calls(IdempotencyTable):
    class Meta:
        table_name = "calls"

class Receipt(LockableModel):
    class Meta:
        table_name = "receipts"

    order = UnicodeAttribute(hash_key=True)
    times = NumberAttribute(default=0)
    version = VersionAttribute()

@transactional(wait=10)
@idempotent(Calls, key="message_id", key_prefix="charge")
def charge_once(tx, message_id, order):
    receipt = tx.get_or_none(Receipt, order) or Receipt(order)
    receipt.times += 1
    tx.save(receipt)
    return order

@app.task(bind=True, acks_late=True)
def charge(self, order):
    return charge_once(celery_key(self), order)

class Whole(io.FileIO):
    # Files of messages and results appear when they are written: others could read them before.
    def __init__(self, path):
        self.path = os.fsdecode(path)
        super().__init__(f"{self.path}.part", "w")

    def close(self):
        if not self.closed:
            super().close()
            os.replace(f"{self.path}.part", self.path)

def store(backend, key, value):
    with Whole(backend._filename(key)) as file:
        file.write(value if isinstance(value, bytes) else value.encode())

filesystem.open = lambda path, mode, **_: Whole(path) if mode == "wb" else builtins.open(path, mode)
FilesystemBackend.set = store

folder = Path(os.environ["FOLDER"])
paths = {"data_folder_in": str(folder / "queue"), "data_folder_out": str(folder / "queue")}
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={**paths, "control_folder": str(folder / "control"), "polling_interval": 0.05},
    result_backend=f"file://{folder / 'results'}",
    task_default_retry_delay=0.2,
    worker_prefetch_multiplier=1,
)
for model, meta in zip([Locks, Claims, Calls, Receipt], json.loads(os.environ["META"]), strict=True):
    for name, value in meta.items():
        setattr(model.Meta, name, value)
Locks.Meta.lock_settings = Claims.Meta.lock_settings = LockSettings(
    lease=2, request_timeout=0.3, poll_interval=0.02, max_clock_skew=0.5
)
import_prices.retry_kwargs["countdown"] = 0.2  # Celery has kept this dict
nightly_report.default_retry_delay = 0.2

@worker_init.connect
def warm_up(**_):
    Locks.lock_state("warm up")  # a client, and its connection, before the workers are forked

def note(what, key, ticket):
    with (folder / "log").open("a") as log:
        log.write(f"{what} {key} {ticket} {os.getpid()}\\n")

def first_run(key):
    try:
        (folder / f"{key}.first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def hang(key):
    while not (folder / f"{key}.over").exists():
        time.sleep(0.02)

@app.task(autoretry_for=(LockTimeout,), max_retries=None, retry_kwargs={"countdown": 0.2})
def locked(key):
    with Locks.locked(key, wait=0) as lock:
        note("begin", key, lock.ticket)
        time.sleep(0.02)
        note("end", key, lock.ticket)

@app.task(base=UniqueTask, claims=Claims, bind=True, acks_late=True, reject_on_worker_lost=True, default_retry_delay=1)
def unique(self, key, hangs=False):
    note("begin", key, self.lock.ticket)
    try:
        if hangs and first_run(key):
            hang(key)
    except SoftTimeLimitExceeded:
        note("stopped", key, self.lock.ticket)
        raise
    note("end", key, self.lock.ticket)
    return self.lock.ticket

@app.task(base=UniqueTask, claims=Claims, bind=True)
def retried(self, key):
    if first_run(key):
        note("begin", key, self.lock.ticket)
        raise self.retry(countdown=0.5)
    hang(key)
    note("end", key, self.lock.ticket)
"""


class Line(NamedTuple):
    """What a task has noted."""

    what: str
    key: str
    ticket: int
    pid: int


class Shop:
    """The app in this process, and what its workers have noted."""

    def __init__(self, folder: Path, names: dict[str, Any]) -> None:
        self._folder, self._log = folder, folder / "log"
        self.__dict__.update(names)

    def go_on(self, key: str) -> None:
        """Let a task that hangs go on."""
        (self._folder / f"{key}.over").touch()

    def lines(self, key: str) -> list[Line]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        found = [Line(what, of, int(ticket), int(pid)) for what, of, ticket, pid in map(str.split, lines)]
        return [line for line in found if line.key == key]

    def until_noted(self, key: str, what: str, count: int = 1) -> list[Line]:
        def noted() -> list[Line] | None:
            lines = self.lines(key)
            return lines if [line.what for line in lines].count(what) >= count else None

        return until(noted, f"{count} times {what} of {key}") or []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def tasks_of_the_page() -> str:
    """Return the definitions of the page, without what it calls."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    lines = [node for node in ast.parse(code).body if isinstance(node, kept) or ast.unparse(node).startswith("app =")]
    return "\n\n".join(map(ast.unparse, lines))


@contextlib.contextmanager
def running(engine: Engine, folder: Path) -> Iterator[Shop]:
    """Run prefork workers, and yield the app as a sender of messages."""
    claims, calls = (
        engine.bind(declare("Bound", base, table_name=name))
        for base, name in [(TaskClaims, "locks"), (IdempotencyTable, "calls")]
    )
    receipts = engine.bind(declare("Receipt", hash_key="order", numbers="times", version=True))
    names = ("table_name", "host", "region", *engine.credentials)
    meta = [
        {name: getattr(of.Meta, name) for name in names if hasattr(of.Meta, name)}
        for of in (claims, claims, calls, receipts)
    ]
    for name in ("queue", "control", "results"):
        (folder / name).mkdir()
    for exchange in ("celery", "celery.pidbox"):  # kombu makes these files, and locks them only then
        (folder / "control" / f"{exchange}.exchange").write_text("[]")
    (folder / "shop.py").write_text(tasks_of_the_page() + MORE)
    environment = {**os.environ, "FOLDER": str(folder), "META": json.dumps(meta), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "prefork", "--concurrency", "2"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        for number in range(WORKERS):
            process = subprocess.Popen(
                [*command, "--hostname", f"worker{number}@here"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        namespace: dict[str, Any] = {"__name__": "shop"}
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            exec((folder / "shop.py").read_text(), namespace)
            yield Shop(folder, namespace)
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-12000:].decode(errors="replace"))
            raise
        finally:
            os.environ.clear()
            os.environ.update(before)


@pytest.mark.processes
@pytest.mark.waits
def test_workers_that_take_locks_and_die(real_engine: Engine, tmp_path: Path) -> None:
    """Two prefork workers of two processes each; each paragraph is a promise of the page."""
    with running(real_engine, tmp_path) as shop:
        # A lock around a task: runs follow each other, and each task runs in the end.
        results = [shop.locked.delay("a") for _ in range(6)]
        page = [shop.import_prices.delay("acme") for _ in range(2)]
        killed = shop.unique.delay("killed", True)
        [line] = shop.until_noted("killed", "begin")
        os.kill(line.pid, signal.SIGKILL)
        for result in results:
            result.get(timeout=PATIENCE)
        lines = shop.lines("a")
        assert [line.what for line in lines] == ["begin", "end"] * 6
        assert [one.ticket for one in lines[::2]] == [other.ticket for other in lines[1::2]]
        assert len({each.get(timeout=PATIENCE) for each in page}) == 2

        # Once: of the messages of several beats one makes the report.
        reports = sorted(each.get(timeout=PATIENCE) for each in [shop.nightly_report.delay() for _ in range(4)])
        assert reports[:3] == ["done"] * 3
        assert reports[3].startswith("report of ")

        # A message that is delivered twice is charged once.
        twice = [shop.charge.apply_async(("o-1",), task_id=f"charge-{i // 2}") for i in range(4)]
        assert [each.get(timeout=PATIENCE) for each in twice] == ["o-1"] * 4
        until(lambda: not list((tmp_path / "queue").iterdir()), "an empty queue")
        assert shop.Receipt.get("o-1", consistent_read=True).times == 2

        # Unique: calls while it is queued or runs send nothing; a call after that does.
        first = shop.unique.delay("u", True)
        assert {shop.unique.delay("u", True).id for _ in range(5)} == {first.id}
        shop.go_on("u")
        ticket = first.get(timeout=PATIENCE)
        later = until(lambda: _other(shop.unique.delay("u", True), first.id))
        assert later.get(timeout=PATIENCE) > ticket
        assert [line.what for line in shop.lines("u")] == ["begin", "end"] * 2

        # A retry keeps the claim.
        again = shop.retried.delay("r")
        shop.until_noted("r", "begin")
        assert shop.retried.delay("r").id == again.id
        shop.go_on("r")
        again.get(timeout=PATIENCE)
        assert [line.what for line in shop.lines("r")] == ["begin", "end"]

        # The soft time limit, of which Celery tells by a signal, releases the lock.
        stopped = shop.unique.delay("s", True)
        [line] = shop.until_noted("s", "begin")
        os.kill(line.pid, signal.SIGUSR1)
        with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
            stopped.get(timeout=PATIENCE)
        until(lambda: shop.Claims.lock_state(shop.unique._name_of(("s", True), {})).entries == ())

        # A message that expires before it runs gives its claim up.
        expired = shop.unique.apply_async(("e",), expires=-1)
        until(lambda: _other(shop.unique.delay("e"), expired.id)).get(timeout=PATIENCE)
        assert [line.what for line in shop.lines("e")] == ["begin", "end"]

        # The task whose process was killed has come again, after its lease, under a larger ticket.
        killed.get(timeout=PATIENCE)
        before, *after = shop.lines("killed")
        assert [line.what for line in after] == ["begin", "end"]
        assert after[0].ticket > before.ticket
        assert after[0].pid != before.pid


def _other(result: Any, id_: str) -> Any:
    return result if result.id != id_ else None


def test_what_a_unique_task_costs(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write for a message, three for a run, and one more for the first lock of a row."""
    claims: Any = memory.bind(declare("Claims", TaskClaims))
    sent: list[str] = []
    monkeypatch.setattr(Task, "apply_async", lambda _, args, kwargs, task_id, *__, **___: sent.append(task_id))

    def work(shop: str) -> str:
        return shop

    task = Celery("shop", set_as_current=False).task(base=UniqueTask, claims=claims)(work)

    def cost(work: Any) -> list[str]:
        with count_requests() as counted:
            work()
        return [name for name, _ in counted.bodies]

    def run() -> None:
        assert task.apply(("a",), task_id=sent[-1], headers={"pynamo_locking_claimed": True}).status == "SUCCESS"

    assert cost(lambda: task.delay("a")) == ["UpdateItem"]
    assert cost(lambda: task.delay("a")) == ["UpdateItem", "GetItem"]
    assert cost(run) == ["UpdateItem"] * 4
    task.delay("a")
    assert cost(run) == ["UpdateItem"] * 3
