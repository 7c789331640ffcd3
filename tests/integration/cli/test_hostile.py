"""The command line where nothing is as it should be: narrow windows, closed streams, foreign items, no answers."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from pynamodb.attributes import BinaryAttribute
from pynamodb.exceptions import TableError
from pynamodb.models import Model

from pynamo_locking import NamedLock, OutcomeUnknown
from pynamo_locking._io import runtime
from pynamo_locking.cli import app, guardian, locks, main, session, tables
from pynamo_locking.cli import terminal as terminal_module
from pynamo_locking.cli.run import Child, Signals
from pynamo_locking.cli.terminal import Ending, Problem, Stopped
from tests.engines.servers import TRAMPOLINE
from tests.support.models import Account, Locks, declare
from tests.support.shell import MODELS, Shell, changed, denied, described, name_of, prepared
from tests.support.transaction_models import Transactions
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

HERE = "tests.integration.cli.test_hostile"

Photo = declare("Photo", lock_table=Locks, digest=BinaryAttribute(hash_key=True, legacy_encoding=True))
Film = declare("Film", lock=True, digest=BinaryAttribute(hash_key=True, legacy_encoding=True))
#: Has no locks, and a table that another process creates at the same time.
Thing = declare("Thing", Model, hash_key="name")


@pytest.fixture
def shell(memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, on the database in memory, as in a pipe."""
    made = prepared(memory, capsys, monkeypatch)
    monkeypatch.delenv("COLUMNS")
    return made


class Terminal:
    """The program on a terminal of its own, in a process of its own."""

    def __init__(self, folder: Path, columns: int, *arguments: str, **environment: str) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                TRAMPOLINE,
                str(os.getpid()),
                sys.executable,
                "-m",
                "pynamo_locking.cli",
                *arguments,
            ],
            cwd=folder,
            env={**os.environ, "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def read(self) -> bool:
        """Read what there is; return whether there will be more."""
        with contextlib.suppress(OSError):  # all others have closed it
            got = os.read(self._fd, 65536)
            self.text += got.decode(errors="replace")
            return bool(got)
        return False

    def until(self, text: str) -> None:
        """Wait for a text."""
        until(lambda: text in self.text or not self.read() or text in self.text, text)
        assert text in self.text, self.text

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the exit code."""
        while self.read():
            pass
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(dynoxide: Engine, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts the program on a terminal."""
    dynoxide.bind(Locks)
    with contextlib.ExitStack() as ends:

        def start(columns: int, *arguments: str, **environment: str) -> Terminal:
            assert dynoxide.host is not None
            reach = ["--endpoint", dynoxide.host, "--region", dynoxide.region]
            made = Terminal(tmp_path, columns, *arguments, "--table", name_of(Locks), *reach, **environment)
            ends.callback(made.close)
            return made

        yield start


# What is shown


def test_nothing_is_cut_into_pieces_in_a_pipe(memory, shell):
    """A name and an owner of the longest stand in one line, so that `grep` and `awk` find them."""
    memory.bind(Locks)
    name, owner = "n" * 1500, "o" * 256
    with Locks.locked(name, owner=owner):
        out = shell.run("locks", "list", "--table", name_of(Locks))[1]

    (line,) = [line for line in out.splitlines() if name in line]
    assert owner in line


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_narrow_windows(columns, memory, shell, monkeypatch):
    """The ticket, which `break` wants, stands in one piece, and so does all else that has no blanks."""
    memory.bind(Locks)
    monkeypatch.setenv("COLUMNS", str(columns))
    with Locks.locked("nightly-report", owner="web-1:[red]") as lock:
        lines = shell.run("locks", "list", "--table", name_of(Locks))[1].splitlines()

    assert f"ticket: {lock.ticket}"[:columns] in lines or str(lock.ticket) in lines
    assert {"holds", "owner: web-1:[red]", "mode: exclusive"} <= set(lines)
    assert max(map(len, lines)) <= columns


def test_the_encoding_of_stdout_does_not_have_it(memory, monkeypatch):
    """Then it is escaped; the stream is as it was afterwards."""
    memory.bind(Locks)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with Locks.locked("Zürich", owner="日本"):
        code = main(["locks", "list", "--table", name_of(Locks)])

    assert (code, stream.errors) == (0, "strict")
    assert all(each in raw.getvalue() for each in (b"Z\\xfcrich", b"\\u65e5\\u672c", b"holds"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_answer_that_cannot_be_written(options):
    """Exit code 74, which no other problem has, and one sentence."""
    command = [sys.executable, "-m", "pynamo_locking.cli", "version", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 74
    assert "the answer cannot be written: No space left on device." in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_closed_streams(shell, memory, monkeypatch):
    """As under some services: nothing is printed, and no user is asked."""
    memory.bind(Locks)
    with Locks.locked("job") as lock:
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert main(["locks", "show", "job", "--table", name_of(Locks)]) == 0
        assert main(["locks", "break", "job", "--table", name_of(Locks), "--ticket", str(lock.ticket)]) == 2
        for name in ("stdin", "stdout", "stderr"):
            getattr(sys, name).close()


def test_json_that_is_meant_for_the_program(memory, shell):
    """Without the two dashes, too: our errors are for people unless we were asked for JSON ourselves."""
    memory.bind(Locks)
    code, _, err = shell.run("run", "--table", name_of(Locks), "--lock", "job", "/no/such/program", "--json")

    assert (code, err) == (127, "pynamo-locking: there is no program /no/such/program.\n")


# On a terminal


class Hands:
    """A standard input at which the user presses Ctrl-C."""

    def readline(self, *_: int) -> str:
        """No line is typed."""
        raise KeyboardInterrupt


def test_ctrl_c_at_a_question(memory, shell, monkeypatch):
    """Is Ctrl-C, and not a question that no user was there to answer."""
    memory.bind(Locks)
    monkeypatch.setattr("sys.stdin", Hands())
    with Locks.locked("job") as lock:
        code, _, err = shell.run("locks", "break", "job", "--ticket", str(lock.ticket), "--table", name_of(Locks))
        assert len(Locks.lock_state("job").holders) == 1

    assert code == 128 + signal.SIGINT
    assert "Break it?" in err
    assert err.endswith("pynamo-locking: interrupted\n")


def test_a_watch_that_is_ended_from_outside(terminal):
    """The terminal is as before: its first screen, with a cursor; the exit code names the signal."""
    shown = terminal(80, "locks", "watch")
    shown.until("no lock is held")
    shown.send(signal.SIGTERM)

    assert shown.end() == 128 + signal.SIGTERM
    assert shown.text.index("\x1b[?1049h") < shown.text.index("no lock is held") < shown.text.index("\x1b[?1049l")
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")


def test_a_terminal_that_cannot_draw(terminal):
    """Shows each look all the same."""
    shown = terminal(80, "locks", "watch", TERM="dumb")
    shown.until("no lock is held")
    shown.send(signal.SIGINT)

    assert shown.end() == 0
    assert "\x1b" not in shown.text


def test_markup_in_the_id_of_a_transaction(memory, shell, monkeypatch):
    """Is not obeyed by the line that shows the progress."""
    memory.bind(Transactions)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    code, _, err = shell.run("tx", "recover", "[/]", "--table", name_of(Transactions))

    assert code == 1
    assert "nothing is known of the transaction [/]" in err


def test_more_than_fits(memory, shell, monkeypatch):
    """A watch says how much it does not show."""
    memory.bind(Locks)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "160", "LINES": "12"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(locks, "_sleep", interrupt)
    with contextlib.ExitStack() as held:
        for i in range(9):
            held.enter_context(Locks.locked(f"job-{i}"))
        out = shell.run("locks", "watch", "--table", name_of(Locks))[1]

    assert "job-5" in out
    assert "job-6" not in out
    assert "... 4 more lines: make the window higher, or name a --prefix" in out


def interrupt(_seconds: float) -> None:
    """Be Ctrl-C."""
    raise KeyboardInterrupt


# No answers


class Outage:
    """The pauses of a watch: in the first the database goes away, in the third it comes back, in the last is Ctrl-C."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self._patch = monkeypatch
        self._error = error
        self._database: Any = engine._memory
        self._handle = self._database.handle
        self.pauses = 0

    def sleep(self, _seconds: float) -> None:
        """Between two looks."""
        self.pauses += 1
        if self.pauses == 1:
            self._patch.setattr(self._database, "handle", self._fail)
        elif self.pauses == 3:
            self._patch.setattr(self._database, "handle", self._handle)
        elif self.pauses == 4:
            raise KeyboardInterrupt

    def _fail(self, *_: Any) -> Any:
        raise self._error


_META: Any = {"ResponseMetadata": {"HTTPStatusCode": 400}}


def refused(code: str) -> ClientError:
    """What DynamoDB answers."""
    return ClientError({"Error": {"Code": code, "Message": "said the database"}, **_META}, "Scan")


GONE = EndpointConnectionError(endpoint_url="http://nowhere")


@pytest.mark.parametrize("error", [GONE, refused("ThrottlingException")], ids=["gone", "throttled"])
def test_a_watch_goes_on_when_the_database_comes_back(error, memory, shell, monkeypatch):
    """An operator who watches at night wants to see that; there is one warning for each time that it goes away."""
    memory.bind(Locks)
    outage = Outage(memory, monkeypatch, error)
    monkeypatch.setattr(locks, "_sleep", outage.sleep)
    code, out, err = shell.run("locks", "watch", "--table", name_of(Locks), "--json")

    assert (code, outage.pauses) == (0, 4)
    assert len(out.splitlines()) == 2
    (warning,) = err.splitlines()
    assert "Looking again every 2 s." in json.loads(warning)["log"]["message"]


def test_a_watch_that_is_drawn_says_how_old_it_is(memory, shell, monkeypatch):
    """What was seen last stays, and the reason why there is nothing newer stands above it."""
    memory.bind(Locks)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    outage = Outage(memory, monkeypatch, GONE)
    monkeypatch.setattr(locks, "_sleep", outage.sleep)
    with Locks.locked("job"):
        code, out, err = shell.run("locks", "watch", "--table", name_of(Locks))

    assert (code, err, outage.pauses) == (0, "", 4)
    assert out.count("nothing newer: no answer from DynamoDB") == 2
    assert out.count("job") == 4


def test_a_watch_ends_when_nothing_can_come_back(memory, shell, monkeypatch):
    """As when the credentials have expired."""
    memory.bind(Locks)
    outage = Outage(memory, monkeypatch, refused("ExpiredTokenException"))
    monkeypatch.setattr(locks, "_sleep", outage.sleep)
    code, _, err = shell.run("locks", "watch", "--table", name_of(Locks), "--json")

    assert (code, outage.pauses) == (77, 1)
    assert json.loads(err)["error"]["kind"] == "bad_credentials"


def test_ctrl_c_with_json(memory, shell, monkeypatch):
    """Is told as any other end."""
    memory.bind(Locks)
    monkeypatch.setattr(memory._memory, "handle", lambda *_: interrupt(0))

    assert shell.error("locks", "list", "--table", name_of(Locks)) == {
        "kind": "interrupted",
        "message": "interrupted",
        "exit_code": 128 + signal.SIGINT,
    }


# Items that are none of ours


def put(engine: Engine, name: str, lock: dict[str, Any]) -> None:
    """Write what this library would not."""
    Locks._get_connection().connection.dispatch(
        "PutItem", {"TableName": name_of(Locks), "Item": {"name": {"S": name}, "lock": lock}}
    )


#: A lock with an entry of which a part is missing.
BROKEN = {
    "M": {"next": {"L": [{"N": "2"}]}, "queue": {"M": {"e": {"L": [{"N": "1"}, {"M": {"o": {"S": "x"}}}]}}}},
}


def test_items_that_are_no_locks(memory, shell):
    """The list says which are broken, and has all others; a command that asks for one is told."""
    memory.bind(Locks)
    put(memory, "broken", BROKEN)
    put(memory, "text", {"S": "no lock"})
    with Locks.locked("job"):
        code, out, err = shell.run("locks", "list", "--table", name_of(Locks), "--json")
    asked, shown, _ = shell.run("locks", "show", "broken", "--table", name_of(Locks), "--json")

    assert (code, err) == (1, "")
    assert [each["name"] for each in json.loads(out)["locks"]] == ["job"]
    assert json.loads(out)["unreadable"] == {"broken": "queue.e.1.e is missing"}
    assert (asked, json.loads(shown)["unreadable"]) == (1, "queue.e.1.e is missing")


def test_a_watch_that_has_seen_broken_locks_ends_with_1(memory, shell, monkeypatch):
    """As `locks list` does: its last look is its answer."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    memory.bind(Locks)
    put(memory, "broken", BROKEN)
    monkeypatch.setattr(locks, "_sleep", interrupt)
    code, out, _ = shell.run("locks", "watch", "--table", name_of(Locks))
    assert (code, "queue.e.1.e is missing" in out) == (1, True)


def test_a_time_that_no_calendar_has(memory, shell):
    """A program that can write to the table cannot hide all locks in it from people."""
    memory.bind(Locks)
    with Locks.locked("job"):
        stored = Locks._get_connection().get_item("job")["Item"]["lock"]
        (entry,) = stored["M"]["queue"]["M"].values()
        entry["L"][1]["M"]["e"] = {"N": "9" * 20}
        put(memory, "far", stored)
        far, job = shell.answer("locks", "list", "--table", name_of(Locks))["locks"]

    assert (far["name"], far["holders"][0]["lease_ends_at"]) == ("far", None)
    assert (job["name"], job["holders"][0]["lease_ends_at"][-1]) == ("job", "Z")


def test_a_row_that_is_no_transaction(memory, shell):
    """Is listed with what is wrong with it, after all others, and the exit code says so."""
    memory.bind(Transactions)
    for row in (
        {"id": {"S": "a"}, "state": {"S": "finished"}},
        {"id": {"S": "odd"}, "state": {"S": "confused"}},
        {"id": {"S": "\x1bz"}, "state": {"S": "pending"}, "beat": {"N": "1.5"}},
    ):
        Transactions._get_connection().connection.dispatch("PutItem", {"TableName": name_of(Transactions), "Item": row})
    document = shell.answer("tx", "list", "--table", name_of(Transactions), code=1)
    code, out, _ = shell.run("tx", "list", "--table", name_of(Transactions))

    assert [each["id"] for each in document["transactions"]] == ["a"]
    assert list(document["unreadable"]) == ["\x1bz", "odd"]
    assert "confused" in document["unreadable"]["odd"]
    assert code == 1
    assert "confused" in out
    assert "\x1b" not in out


def test_a_transaction_that_names_rows_of_others(memory, shell):
    """It is shown, and not completed; the other one keeps its header, and is."""
    memory.bind(Transactions)
    table = ["--table", name_of(Transactions)]
    forged = {"table": {"S": "x"}, "key": {"M": {"id": {"S": "k"}}}, "lock": {"S": "lock"}, "spill": {"S": "other"}}
    for row in (
        {"id": {"S": "other"}, "state": {"S": "pending"}},
        {"id": {"S": "forged"}, "state": {"S": "aborted"}, "rows": {"N": "1"}},
        {"id": {"S": "forged#0000"}, "content": {"M": {"items": {"L": [{"M": forged}]}}}},
    ):
        Transactions._get_connection().connection.dispatch("PutItem", {"TableName": name_of(Transactions), "Item": row})

    assert shell.answer("tx", "show", "forged", *table)["participants"][0]["table"] == "x"
    assert "no row of its own" in shell.error("tx", "recover", "forged", *table)["message"]
    swept = shell.answer("tx", "sweep", *table, code=1)
    assert (swept["aborted"], list(swept["failed"])) == (1, ["forged"])
    assert Transactions.get("other").state == "aborted"


def test_a_program_runs_under_a_lock_that_an_aborted_transaction_has_marked(memory, shell, monkeypatch):
    """The settings name the table of transactions, as the class of the application does that marked the row."""
    memory.bind(Locks, Transactions)
    header = {"id": {"S": "T"}, "state": {"S": "aborted"}}
    mark = {"id": {"S": "T"}, "table": {"S": name_of(Transactions)}, "intent": {"M": {"op": {"S": "save"}}}}
    row = {"name": {"S": "job"}, "lock": {"M": {"tx": {"M": mark}}}}
    for model, item in ((Transactions, header), (Locks, row)):
        model._get_connection().connection.dispatch("PutItem", {"TableName": name_of(model), "Item": item})
    command = ["run", "--table", name_of(Locks), "--lock", "job", "--", "true"]

    code, _, err = shell.run(*command)
    assert (code, "declares no table of transactions" in " ".join(err.split())) == (69, True)
    monkeypatch.setenv("PYNAMO_LOCKING_TRANSACTION_TABLE", name_of(Transactions))
    assert shell.run(*command)[0] == 0


@pytest.mark.parametrize("model", [Photo, Film])
def test_keys_that_are_stored_in_base_64(model, memory, shell):
    """What is listed as the key is what `show` takes, wherever the lock is."""
    memory.bind(model, *([Locks] if model is Photo else []))
    model(b"\xff").save()
    spec = ["--model", f"{HERE}:{model.__name__}"]
    with model.locked(b"\xff", owner="me"):
        (listed,) = shell.answer("locks", "list", *spec)["locks"]
        shown = shell.answer("locks", "show", listed["key"]["hash"], *spec)

    assert listed["key"]["hash"] == "/w=="
    assert [entry["owner"] for entry in shown["holders"]] == ["me"]


@pytest.mark.parametrize("key", ["", "x" * 2049, "\udcff"])
def test_a_name_that_cannot_be(key, memory, shell):
    """Is used wrongly, like all arguments that cannot be."""
    memory.bind(Locks)

    assert shell.error("locks", "show", key, "--table", name_of(Locks))["kind"] == "usage"


# Breaking


def test_a_trace_that_an_application_would_suppress(memory, shell, tmp_path):
    """Its module switches loggers off when it is imported; who broke the lock is written down all the same."""
    memory.bind(Account)
    Account("a").save()
    lock = Account.locked("a", heartbeat=False).acquire()
    log = tmp_path / "log"
    logger = logging.getLogger("pynamo_locking")
    level = logger.level
    logger.disabled = True
    logger.setLevel(logging.CRITICAL)
    try:
        arguments = ["--ticket", str(lock.ticket), "--yes", "--model", f"{MODELS}:Account", "--log-file", str(log)]
        code, _, err = shell.run("locks", "break", "a", *arguments)
    finally:
        logger.disabled = False
        logger.setLevel(level)

    assert code == 0
    assert "was broken by" in err
    assert "was broken by" in log.read_text()


def test_a_break_whose_outcome_is_not_known(memory, shell, monkeypatch, tmp_path):
    """Leaves its trace as well."""
    memory.bind(Locks)

    def unknown(*_: Any, **__: Any) -> bool:
        raise OutcomeUnknown("no answer")

    log = tmp_path / "log"
    with Locks.locked("job") as lock:
        monkeypatch.setattr(NamedLock, "break_lock", unknown)
        table = ["--table", name_of(Locks), "--log-file", str(log)]
        code = shell.run("locks", "break", "job", *table, "--ticket", str(lock.ticket), "--yes")[0]

    assert code == 69
    assert f"ticket {lock.ticket} of job in {name_of(Locks)} may have been broken by" in log.read_text()


def test_the_tickets_that_are_there_now(memory, shell, monkeypatch):
    """Not those that were there before the question was answered."""
    memory.bind(Locks)
    lock = Locks.locked("job").acquire()

    def answered(*_: Any) -> None:
        lock.release()

    monkeypatch.setattr(locks, "_ask", answered)
    code, _, err = shell.run("locks", "break", "job", "--table", name_of(Locks), "--ticket", str(lock.ticket))

    assert code == 1
    assert "it has left meanwhile; the queue is empty." in err


# Creating


def test_another_process_creates_the_table(memory, shell, monkeypatch):
    """At the same time: it is waited for, and that is no problem."""
    memory.bind(Thing)
    Thing.delete_table()
    create, slept = Thing.create_table, list[float]()
    being_made = described(TableStatus="CREATING")

    def late(**options: Any) -> None:
        create(**options)
        changed(memory, monkeypatch, "DescribeTable", lambda answer: being_made(answer) if len(slept) < 2 else answer)
        raise TableError("exists", refused("ResourceInUseException"))

    monkeypatch.setattr(Thing, "create_table", late)
    monkeypatch.setattr(runtime.current, "sleep", slept.append)
    document = shell.answer("tables", "create", f"{HERE}:Thing")

    assert (document["ok"], document["tables"][0]["created"], len(slept)) == (True, False, 2)


def test_a_table_that_cannot_be_created(memory, shell, monkeypatch):
    """Is told, with what DynamoDB said."""
    memory.bind(Thing)
    Thing.delete_table()

    def create(**_: Any) -> None:
        raise TableError("not allowed", refused("AccessDeniedException"))

    monkeypatch.setattr(Thing, "create_table", create)

    assert shell.error("tables", "create", f"{HERE}:Thing")["kind"] == "access_denied"


def test_a_table_that_cannot_be_described(memory, shell, monkeypatch):
    """Is not waited for."""
    memory.bind(Thing)
    monkeypatch.setattr(tables, "exists", lambda _: True)
    changed(memory, monkeypatch, "DescribeTable", denied)
    (table,) = shell.answer("tables", "create", f"{HERE}:Thing")["tables"]

    assert (table["created"], table["findings"][0]["level"]) == (False, "warning")


def test_ttl_that_another_program_has_enabled(memory, shell, monkeypatch):
    """Between our look and our request."""
    memory.bind(Locks)
    lacking = iter([True, False])
    monkeypatch.setattr(tables, "_lacks_ttl", lambda _: next(lacking))

    def refuse(**_: Any) -> None:
        raise TableError("TimeToLive is being changed")

    monkeypatch.setattr("pynamo_locking._models.tables.OwnTable.update_ttl", refuse)

    assert shell.run("tables", "create", "--table", name_of(Locks))[0] == 0


# Settings


@pytest.mark.parametrize(
    "url",
    ["http://", "https://", "http://a b", "http://localhost:99999", "http://localhost:x", "ftp://host", "http://a_b"],
)
def test_endpoints_that_botocore_would_not_take(url):
    """It would raise a ValueError."""
    with pytest.raises(Problem, match="is no URL"):
        session.load_settings({"endpoint": url})


@pytest.mark.parametrize("url", ["http://localhost:8000", "https://h.example/", "http://[::1]:1", "http://10.0.0.1"])
def test_endpoints(url):
    """That are taken."""
    assert session.load_settings({"endpoint": url}).endpoint == url


@pytest.mark.parametrize(
    "text",
    [
        '[tool]\npynamo-locking = {table = "t"}',
        '[tool."pynamo-locking"]\ntable = "t"',
        '[ tool . pynamo-locking ]\ntable = "t"',
        'tool.pynamo-locking.table = "t"',
        '[tool]\npynamo-locking.table = "t"',
    ],
)
def test_all_forms_of_the_section(text, tmp_path):
    """That TOML has: none of them is overlooked."""
    (tmp_path / "pyproject.toml").write_text(text)

    assert session.load_settings({}, tmp_path).table == "t"


@pytest.mark.parametrize("text", ["tool.pynamo-locking = 3", "[[tool.pynamo-locking]]"])
def test_a_section_that_is_none(text, tmp_path):
    """Is said, rather than to fail with an error of Python's."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(Problem, match="must be a table of settings"):
        session.load_settings({}, tmp_path)


def test_a_tool_that_is_none(tmp_path):
    """Is not ours."""
    (tmp_path / "pyproject.toml").write_text("tool = 3\n[x]\npynamo-locking = 1")

    assert session.load_settings({}, tmp_path) == session.Settings()


def test_a_dependency_is_no_section(tmp_path):
    """A file that only depends on this package is not read."""
    (tmp_path / "pyproject.toml").write_text('dependencies = [\n"pynamo-locking[cli]",\nbroken')

    assert session.load_settings({}, tmp_path) == session.Settings()


def test_a_file_that_cannot_be_read(tmp_path):
    """Is said."""
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(Problem, match="cannot be read"):
        session.load_settings({}, tmp_path)


def test_modules_of_this_directory_are_for_models_only(memory, shell, monkeypatch, tmp_path):
    """A file with the name of one of Python's modules does no harm to commands that need no model."""
    memory.bind(Locks)
    monkeypatch.chdir(tmp_path)
    seen: list[list[str]] = []
    monkeypatch.setattr(terminal_module, "dump", lambda *_, **__: seen.append(list(sys.path)) or "{}")
    assert shell.run("locks", "list", "--table", name_of(Locks), "--json")[0] == 0

    assert len(seen) == 1
    assert "" not in seen[0]


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e10", "0"])
def test_pauses_that_cannot_be_made(seconds, shell):
    """Are refused, rather than to fail after the first look."""
    assert shell.error("locks", "watch", "--table", "t", "--every", seconds)["kind"] == "usage"


@pytest.mark.parametrize(
    ("lease", "message"),
    [
        ("nan", "lease"),
        ("-5", "lease"),
        ("inf", "lease must be finite"),
        ("86401", "lease (86401.0 s) is longer than max_lease (86400.0 s)"),
    ],
)
def test_a_lease_that_cannot_be(lease, message, memory, shell):
    """It is the lease that is blamed, and not the grace, which the user has not named."""
    memory.bind(Locks)
    code, _, err = shell.run("run", "--table", name_of(Locks), "--lock", "job", "--lease", lease, "--", "true")

    assert code == 2
    assert err.startswith(f"pynamo-locking: {message}")


def test_an_owner_that_is_no_text(memory, shell):
    """Bytes that are not UTF-8: DynamoDB would refuse the request without a reason."""
    memory.bind(Locks)
    code, _, err = shell.run("run", "--table", name_of(Locks), "--lock", "job", "--owner", "\udcff", "--", "true")

    assert code == 2
    assert err.startswith("pynamo-locking: owner is no text: ")


def test_an_owner_that_is_too_long(memory, shell):
    """Every party that meets the lock would read it."""
    memory.bind(Locks)
    code, _, err = shell.run("run", "--table", name_of(Locks), "--lock", "job", "--owner", "o" * 257, "--", "true")

    assert code == 2
    assert err.startswith("pynamo-locking: owner must have at most 256 bytes in UTF-8, not 257: ")


# Signals


def test_signals_outside_of_the_main_thread():
    """Change nothing: Python allows no handlers there."""
    before = signal.getsignal(signal.SIGTERM)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["version", "--json"])))
    thread.start()
    thread.join(PATIENCE)

    assert codes == [0]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_others_do_with_a_signal_stays(monkeypatch):
    """A handler of the program that calls us, or that it is ignored, as `nohup` wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Ending():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_leaves_the_queue_is_not_disturbed():
    """Only the first signal is raised; one who presses Ctrl-C twice would leave an entry behind, and a traceback."""
    left = threading.Event()
    with Signals(), pytest.raises(Stopped):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            left.set()

    assert left.is_set()


def test_a_signal_at_an_unexpected_moment(monkeypatch, capsys):
    """Ends with its exit code, and no traceback."""

    def stopped(*_: Any, **__: Any) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(app, "make_app", stopped)

    assert main(["version"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "pynamo-locking: interrupted\n"


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_a_guardian_stays_when_all_of_a_service_are_told_to_go(tmp_path):
    """The program may take a while to stop, and its holder may die meanwhile."""
    script = Path(guardian.__file__)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as program:
        watcher = subprocess.Popen([sys.executable, "-I", "-S", str(script)], stdin=subprocess.PIPE)
        assert watcher.stdin is not None
        try:
            watcher.stdin.write(f"{program.pid} {PATIENCE}\n".encode())
            watcher.stdin.flush()
            status = Path(f"/proc/{watcher.pid}/status")
            if status.exists():
                until(lambda: is_ignored(status, signal.SIGTERM), "the guardian ignores SIGTERM")
            watcher.send_signal(signal.SIGTERM)
            watcher.stdin.close()
            assert program.wait(PATIENCE) == -signal.SIGTERM
            assert watcher.wait(PATIENCE) == 0
        finally:
            program.kill()
            watcher.kill()
            watcher.wait()


def is_ignored(status: Path, number: int) -> bool:
    """Whether a process ignores a signal."""
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("SigIgn:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_a_guardian_that_reads_nothing():
    """It is stopped: the command does not wait until it reads again, or it would look at the lock no more."""
    child = Child(["sleep", "1000"], "/bin/sleep", dict(os.environ), 3600.0, lambda: None)
    try:
        child._guardian.send_signal(signal.SIGSTOP)
        for _ in range(8000):  # more than a pipe holds
            child.is_guarded_for(3600.0)
    finally:
        child._guardian.send_signal(signal.SIGCONT)
        child.close()
