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
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from pynamodb.attributes import BinaryAttribute
from pynamodb.exceptions import TableError
from pynamodb.models import Model

from pynamo_locking import NamedLock
from pynamo_locking.cli import locks, main, tables
from pynamo_locking.cli import terminal as terminal_module
from pynamo_locking.cli.run import Signals
from pynamo_locking.cli.terminal import Ending, Stopped
from pynamo_locking.exceptions import OutcomeUnknown
from pynamo_locking_testing import VirtualClock
from tests.engines.servers import TRAMPOLINE
from tests.support.models import Account, Locks, declare
from tests.support.shell import MODELS, Shell, changed, denied, described, name_of, prepared
from tests.support.transaction_models import Transactions
from tests.support.wire import on
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engines.engine import Engine

PROGRAM = (sys.executable, "-m", "pynamo_locking.cli")
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


@pytest.fixture
def table(memory: Engine) -> tuple[str, str]:
    """The option that names an empty table of locks, in memory."""
    memory.bind(Locks)
    return "--table", name_of(Locks)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the standard streams be a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True, raising=False)


class Terminal:
    """The program on a terminal of its own, in a process of its own."""

    def __init__(self, folder: Path, columns: int, *arguments: str, **environment: str) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAMPOLINE, str(os.getpid()), *PROGRAM, *arguments],
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


def test_nothing_is_cut_into_pieces_in_a_pipe(shell, table):
    """A name and an owner of the longest stand in one line, so that `grep` and `awk` find them."""
    name, owner = "n" * 1500, "o" * 256
    with Locks.locked(name, owner=owner):
        out = shell.run("locks", "list", *table)[1]

    (line,) = [line for line in out.splitlines() if name in line]
    assert owner in line


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_narrow_windows(columns, shell, monkeypatch, table):
    """The ticket, which `break` wants, stands in one piece, and so does all else that has no blanks."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with Locks.locked("nightly-report", owner="web-1:[red]") as lock:
        lines = shell.run("locks", "list", *table)[1].splitlines()

    assert f"ticket: {lock.ticket}"[:columns] in lines or str(lock.ticket) in lines
    assert {"holds", "owner: web-1:[red]", "mode: exclusive"} <= set(lines)
    assert max(map(len, lines)) <= columns


def test_the_encoding_of_stdout_does_not_have_it(monkeypatch, table):
    """Then it is escaped; the stream is as it was afterwards."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with Locks.locked("Zürich", owner="日本"):
        code = main(["locks", "list", *table])

    assert (code, stream.errors) == (0, "strict")
    assert all(each in raw.getvalue() for each in (b"Z\\xfcrich", b"\\u65e5\\u672c", b"holds"))


def test_closed_streams(shell, monkeypatch, table):
    """As under some services: nothing is printed, and no user is asked."""
    with Locks.locked("job") as lock:
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert main(["locks", "show", "job", *table]) == 0
        assert main(["locks", "break", "job", *table, "--ticket", str(lock.ticket)]) == 2
        for name in ("stdin", "stdout", "stderr"):
            getattr(sys, name).close()


def test_json_that_is_meant_for_the_program(shell, table):
    """Without the two dashes, too: our errors are for people unless we were asked for JSON ourselves."""
    code, _, err = shell.run("run", *table, "--lock", "job", "/no/such/program", "--json")

    assert (code, err) == (127, "pynamo-locking: there is no program /no/such/program.\n")


# On a terminal


class Hands:
    """A standard input at which the user presses Ctrl-C."""

    def readline(self, *_: int) -> str:
        """No line is typed."""
        raise KeyboardInterrupt


def test_ctrl_c_at_a_question(shell, monkeypatch, table):
    """Is Ctrl-C, and not a question that no user was there to answer."""
    monkeypatch.setattr("sys.stdin", Hands())
    with Locks.locked("job") as lock:
        code, _, err = shell.run("locks", "break", "job", "--ticket", str(lock.ticket), *table)
        assert len(Locks.lock_state("job").holders) == 1

    assert code == 128 + signal.SIGINT
    assert "Break it?" in err
    assert err.endswith("pynamo-locking: interrupted\n")


@pytest.mark.processes
def test_a_watch_that_is_ended_from_outside(terminal):
    """The terminal is as before: its first screen, with a cursor; the exit code names the signal."""
    shown = terminal(80, "locks", "watch")
    shown.until("no lock is held")
    shown.send(signal.SIGTERM)

    assert shown.end() == 128 + signal.SIGTERM
    assert shown.text.index("\x1b[?1049h") < shown.text.index("no lock is held") < shown.text.index("\x1b[?1049l")
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")


@pytest.mark.processes
def test_a_terminal_that_cannot_draw(terminal):
    """Shows each look all the same."""
    shown = terminal(80, "locks", "watch", TERM="dumb")
    shown.until("no lock is held")
    shown.send(signal.SIGINT)

    assert shown.end() == 0
    assert "\x1b" not in shown.text


def test_markup_in_the_id_of_a_transaction(memory, shell, monkeypatch):
    """Is not obeyed by the line that shows the progress."""
    on_terminal(monkeypatch)
    memory.bind(Transactions)
    code, _, err = shell.run("tx", "recover", "[/]", "--table", name_of(Transactions))

    assert code == 1
    assert "nothing is known of the transaction [/]" in err


def test_more_than_fits(shell, monkeypatch, table):
    """A watch says how much it does not show."""
    on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setattr(locks, "_sleep", interrupt)
    with contextlib.ExitStack() as held:
        for i in range(9):
            held.enter_context(Locks.locked(f"job-{i}"))
        out = shell.run("locks", "watch", *table)[1]

    assert "job-5" in out
    assert "job-6" not in out
    assert "... 4 more lines: make the window higher, or name a --prefix" in out


def interrupt(_seconds: float) -> None:
    """Be Ctrl-C."""
    raise KeyboardInterrupt


# No answers


class Outage:
    """The pauses of a watch: in the first the database goes away, in the third it comes back, in the last is Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        self._is_gone = contextlib.ExitStack()
        self._answer = answer
        self.pauses = 0
        monkeypatch.setattr(locks, "_sleep", self._sleep)

    def _sleep(self, _seconds: float) -> None:
        """Between two looks."""
        self.pauses += 1
        if self.pauses == 1:
            self._is_gone.enter_context(on("Scan").answer(self._answer, always=True))
        elif self.pauses == 3:
            self.close()
        elif self.pauses == 4:
            raise KeyboardInterrupt

    def close(self) -> None:
        """The database is there again."""
        self._is_gone.close()


_META: Any = {"ResponseMetadata": {"HTTPStatusCode": 400}}


def refused(code: str) -> ClientError:
    """What DynamoDB answers."""
    return ClientError({"Error": {"Code": code, "Message": "said the database"}, **_META}, "Scan")


@pytest.mark.parametrize("error", [EndpointConnectionError, "ThrottlingException"], ids=["gone", "throttled"])
def test_a_watch_goes_on_when_the_database_comes_back(error, shell, monkeypatch, table):
    """An operator who watches at night wants to see that; there is one warning for each time that it goes away."""
    outage = Outage(monkeypatch, error)
    code, out, err = shell.run("locks", "watch", *table, "--json")

    assert (code, outage.pauses) == (0, 4)
    assert len(out.splitlines()) == 2
    (warning,) = err.splitlines()
    assert "Looking again every 2 s." in json.loads(warning)["log"]["message"]


def test_a_watch_that_is_drawn_says_how_old_it_is(shell, monkeypatch, table):
    """What was seen last stays, and the reason why there is nothing newer stands above it."""
    on_terminal(monkeypatch)
    outage = Outage(monkeypatch, EndpointConnectionError)
    with Locks.locked("job"):
        code, out, err = shell.run("locks", "watch", *table)

    assert (code, err, outage.pauses) == (0, "", 4)
    assert out.count("nothing newer: no answer from DynamoDB") == 2
    assert out.count("job") == 4


def test_a_watch_ends_when_nothing_can_come_back(shell, monkeypatch, table):
    """As when the credentials have expired."""
    with contextlib.closing(Outage(monkeypatch, "ExpiredTokenException")) as outage:
        code, _, err = shell.run("locks", "watch", *table, "--json")

    assert (code, outage.pauses) == (77, 1)
    assert json.loads(err)["error"]["kind"] == "bad_credentials"


def test_ctrl_c_with_json(shell, table):
    """Is told as any other end."""
    with on("Scan").before(lambda: interrupt(0)):
        assert shell.error("locks", "list", *table) == {
            "kind": "interrupted",
            "message": "interrupted",
            "exit_code": 128 + signal.SIGINT,
        }


# Items that are none of ours


def put(model: Any, *rows: dict[str, Any]) -> None:
    """Write what this library would not."""
    for row in rows:
        model._get_connection().connection.dispatch("PutItem", {"TableName": name_of(model), "Item": row})


def put_lock(name: str, lock: dict[str, Any]) -> None:
    """Write the document of a lock."""
    put(Locks, {"name": {"S": name}, "lock": lock})


#: A lock with an entry of which a part is missing.
BROKEN = {
    "M": {"next": {"L": [{"N": "2"}]}, "queue": {"M": {"e": {"L": [{"N": "1"}, {"M": {"o": {"S": "x"}}}]}}}},
}


def test_items_that_are_no_locks(memory, shell, table):
    """The list says which are broken, and has all others; a command that asks for one is told."""
    put_lock("broken", BROKEN)
    put_lock("text", {"S": "no lock"})
    with Locks.locked("job"):
        code, out, err = shell.run("locks", "list", *table, "--json")
    asked, shown, _ = shell.run("locks", "show", "broken", *table, "--json")

    assert (code, err) == (1, "")
    assert [each["name"] for each in json.loads(out)["locks"]] == ["job"]
    assert json.loads(out)["unreadable"] == {"broken": f"queue is {BROKEN['M']['queue']}"}
    assert (asked, json.loads(shown)["unreadable"]) == (1, f"queue is {BROKEN['M']['queue']}")


def test_a_watch_that_has_seen_broken_locks_ends_with_1(memory, shell, monkeypatch, table):
    """As `locks list` does: its last look is its answer."""
    put_lock("broken", BROKEN)
    monkeypatch.setattr(locks, "_sleep", interrupt)
    code, out, _ = shell.run("locks", "watch", *table)
    assert (code, "queue is {" in out) == (1, True)


def test_a_time_that_no_calendar_has(memory, shell, table):
    """A program that can write to the table cannot hide all locks in it from people."""
    with Locks.locked("job"):
        stored = Locks._get_connection().get_item("job")["Item"]["lock"]
        (entry,) = stored["M"]["queue"]["M"].values()
        entry["L"][1]["M"]["e"] = {"N": "9" * 20}
        put_lock("far", stored)
        far, job = shell.answer("locks", "list", *table)["locks"]

    assert (far["name"], far["holders"][0]["lease_ends_at"]) == ("far", None)
    assert (job["name"], job["holders"][0]["lease_ends_at"][-1]) == ("job", "Z")


def test_a_row_that_is_no_transaction(memory, shell):
    """Is listed with what is wrong with it, after all others, and the exit code says so."""
    memory.bind(Transactions)
    put(
        Transactions,
        {"id": {"S": "a"}, "state": {"S": "finished"}},
        {"id": {"S": "odd"}, "state": {"S": "confused"}},
        {"id": {"S": "\x1bz"}, "state": {"S": "pending"}, "beat": {"N": "1.5"}},
    )
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
    put(
        Transactions,
        {"id": {"S": "other"}, "state": {"S": "pending"}},
        {"id": {"S": "forged"}, "state": {"S": "aborted"}, "rows": {"N": "1"}},
        {"id": {"S": "forged#0000"}, "content": {"M": {"items": {"L": [{"M": forged}]}}}},
    )

    assert shell.answer("tx", "show", "forged", *table)["participants"][0]["table"] == "x"
    assert "no row of its own" in shell.error("tx", "recover", "forged", *table)["message"]
    swept = shell.answer("tx", "sweep", *table, code=1)
    assert (swept["aborted"], list(swept["failed"])) == (1, ["forged"])
    assert Transactions.get("other").state == "aborted"


@pytest.mark.processes
def test_a_program_runs_under_a_lock_that_an_aborted_transaction_has_marked(memory, shell, monkeypatch):
    """The settings name the table of transactions, as the class of the application does that marked the row."""
    memory.bind(Locks, Transactions)
    header = {"id": {"S": "T"}, "state": {"S": "aborted"}}
    mark = {"id": {"S": "T"}, "table": {"S": name_of(Transactions)}, "intent": {"M": {"op": {"S": "save"}}}}
    row = {"name": {"S": "job"}, "lock": {"M": {"tx": {"M": mark}}}}
    put(Transactions, header)
    put(Locks, row)
    command = ["run", "--table", name_of(Locks), "--lock", "job", "--", sys.executable]

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


def test_a_break_whose_outcome_is_not_known(shell, monkeypatch, tmp_path, table):
    """Leaves its trace as well."""

    def unknown(*_: Any, **__: Any) -> bool:
        raise OutcomeUnknown("no answer")

    log = tmp_path / "log"
    with Locks.locked("job") as lock:
        monkeypatch.setattr(NamedLock, "break_lock", unknown)
        code = shell.run(
            "locks", "break", "job", *table, "--log-file", str(log), "--ticket", str(lock.ticket), "--yes"
        )[0]

    assert code == 69
    assert f"ticket {lock.ticket} of job in {name_of(Locks)} may have been broken by" in log.read_text()


# Creating


def test_another_process_creates_the_table(memory, shell, monkeypatch):
    """At the same time: it is waited for, and that is no problem."""
    memory.bind(Thing)
    Thing.delete_table()
    create = Thing.create_table

    def late(**options: Any) -> None:
        create(**options)
        being_made = described(TableStatus="CREATING")
        changed(memory, monkeypatch, "DescribeTable", lambda now: being_made(now) if clock.now == began else now)
        raise TableError("exists", refused("ResourceInUseException"))

    monkeypatch.setattr(Thing, "create_table", late)
    with VirtualClock() as clock:
        began = clock.now
        document = shell.answer("tables", "create", f"{HERE}:Thing")

    assert (document["ok"], document["tables"][0]["created"], clock.now > began) == (True, False, True)


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


def test_ttl_that_another_program_has_enabled(memory, shell):
    """Between our look and our request, which DynamoDB refuses."""
    name, client = memory.new_name("locks"), memory.client()
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    ttl = {"Enabled": True, "AttributeName": "expires_s"}
    request = on("UpdateTimeToLive")
    with request.before(lambda: client.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)) as sent:
        assert shell.run("tables", "create", "--table", name)[0] == 0
    assert sent.hits == 1


# Settings


def test_modules_of_this_directory_are_for_models_only(shell, monkeypatch, tmp_path, table):
    """A file with the name of one of Python's modules does no harm to commands that need no model."""
    monkeypatch.chdir(tmp_path)
    seen: list[list[str]] = []
    monkeypatch.setattr(terminal_module, "dump", lambda *_, **__: seen.append(list(sys.path)) or "{}")
    assert shell.run("locks", "list", *table, "--json")[0] == 0

    assert len(seen) == 1
    assert "" not in seen[0]


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


@pytest.mark.processes
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


@pytest.mark.processes
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

    monkeypatch.setattr("typer.main.get_command", stopped)

    assert main(["version"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "pynamo-locking: interrupted\n"
