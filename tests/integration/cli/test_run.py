"""``pynamo-locking run``: real programs, real signals, and nothing that is left running without its lock."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.cli import run as command
from pynamo_locking.cli.run import Child, Signals, Turn
from pynamo_locking.cli.terminal import Problem
from pynamo_locking.exceptions import LockLost
from tests.engines.servers import TRAMPOLINE
from tests.support.models import APART, Locks
from tests.support.parties import in_thread, shifted_clock
from tests.support.shell import running
from tests.support.wire import on
from tests.support.workers import PATIENCE, until, until_queued

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

pytestmark = [
    pytest.mark.processes,
    pytest.mark.waits,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups"),
]

#: The program of most tests and a program that it starts; both say who they are, and do not stop when they are told to.
STUBBORN = """
trap '' TERM; exec 3>"$0"
sh -c 'trap "" TERM; echo up $$ >&3; sleep 1000' &
echo up $$ >&3; wait
"""
#: One that stops when it is told to, with an exit code of its own, and leaves something running.
POLITE = """
trap 'echo told >&3; exit 7' TERM; exec 3>"$0"
sleep 1000 &
echo up $$ >&3; wait
"""


class Ear:
    """A named pipe by which programs are heard; it ends when all of them are gone, whichever process reaps them."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._readable = selectors.DefaultSelector()
        self._readable.register(self._descriptor, selectors.EVENT_READ)
        self._heard = b""
        self._is_over = False

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            got = os.read(self._descriptor, 4096)
            self._is_over = not got
            self._heard += got

    def lines(self, count: int) -> list[str]:
        """Wait for so many lines; return all so far."""

        def are_there() -> bool:
            self._listen()
            return self._heard.count(b"\n") >= count

        until(are_there, f"{count} lines")
        return self._heard.decode().splitlines()

    def until_over(self) -> None:
        """Wait until no program is left that could say something."""
        assert self._heard, "no program was there yet"
        self._is_over = False
        while not self._is_over:
            assert self._readable.select(PATIENCE), "a program is still there"
            self._listen()

    def close(self) -> None:
        """Kill every program that was heard."""
        for line in self._heard.decode().splitlines():
            if line.startswith("up "):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(line.split()[1]), signal.SIGKILL)
        self._readable.close()
        os.close(self._descriptor)


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """Hears what the programs say."""
    with contextlib.closing(Ear(tmp_path / "ear")) as made:
        yield made


@pytest.fixture
def start(dynoxide: Engine, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the program ``pynamo-locking`` in a process of its own, which dies with this one."""
    dynoxide.bind(Locks)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        assert dynoxide.host is not None
        table = ["--table", Locks.Meta.table_name, "--endpoint", dynoxide.host, "--region", dynoxide.region]
        run = [sys.executable, "-m", "pynamo_locking.cli", "run", "--json", *table, *arguments]
        process = subprocess.Popen(
            [sys.executable, "-c", TRAMPOLINE, str(os.getpid()), *run],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()


def end_of(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for the exit code, and the last document on stderr."""
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, json.loads(err.splitlines()[-1]) if err else {}


# In processes of their own


def test_a_lost_lock_kills_the_whole_tree(start, ear):
    """The lock is broken: a program that ignores SIGTERM, and one that it has started, are gone; exit code 70."""
    lock = ("--lock", "job", "--lease", "6", "--grace", "0.2", "--owner", "the job")
    process = start(*lock, "--", "sh", "-c", STUBBORN, ear.path)
    ear.lines(2)
    (entry,) = Locks.lock_state("job").holders
    assert Locks.break_lock("job", ticket=entry.ticket)
    code, document = end_of(process)
    ear.until_over()

    error = document["error"]
    assert (code, error["exit_code"], error["kind"]) == (70, 70, "lock_lost")
    assert (error["ticket"], error["name"], error["program_exit_code"]) == (entry.ticket, "job", 128 + signal.SIGKILL)
    assert error["was_ended"] is True
    assert "an operator broke it" in error["message"]
    assert (entry.owner, entry.lease) == ("the job", 6)


def test_sigterm_is_forwarded(start, ear):
    """The program ends as it wants to; its exit code is passed on, what it has left running is ended."""
    process = start("--lock", "job", "--", "sh", "-c", POLITE, ear.path)
    ear.lines(1)
    process.send_signal(signal.SIGTERM)
    code, document = end_of(process)
    ear.until_over()

    assert (code, document["exit_code"], document["program_exit_code"]) == (7, 7, 7)
    assert ear.lines(2)[1] == "told"
    assert Locks.lock_state("job").entries == ()


#: Says who it is, and in which term it leads.
LEADER = 'echo up $$ $PYNAMO_LOCKING_TICKET > "$0"; exec sleep 1000'


def test_a_leader(start, ear):
    """A machine whose lock is lost ends its program and waits again; one that is told to stop lets the next lead."""
    options = ("--lock", "job", "--lead", "--lease", "6", "--", "sh", "-c", LEADER, ear.path)
    first = start(*options)
    ear.lines(1)
    second = start(*options)
    ticket, _ = until_queued(Locks, "job", 2)
    Locks.break_lock("job", ticket=ticket)
    ear.lines(2)
    until_queued(Locks, "job", 2)
    second.terminate()
    assert end_of(second)[0] == 128 + signal.SIGTERM
    terms = [int(line.split()[2]) for line in ear.lines(3)]
    first.terminate()
    _, said = first.communicate(timeout=PATIENCE)

    assert first.returncode == 128 + signal.SIGTERM
    assert '"lock_lost"' in said
    assert terms == sorted(set(terms))
    assert terms[0] == ticket
    assert not Locks.lock_state("job").entries


def test_interrupted_while_it_waits(start):
    """The program is not started, the exit code tells the signal, and no entry is left in the queue."""
    with Locks.locked("job") as lock:
        process = start("--lock", "job", "--", "echo", "never")
        until_queued(Locks, "job", 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        left = Locks.lock_state("job").entries

    assert (process.returncode, out) == (128 + signal.SIGINT, "")
    assert json.loads(err.splitlines()[-1])["error"]["kind"] == "interrupted"
    assert [entry.ticket for entry in left] == [lock.ticket]


@pytest.mark.parametrize("period", [None, {"period": 3600}])
def test_interrupted_at_the_last_moment(period, memory):
    """A signal between the grant and the start: the lock is given back, and no run counts."""
    memory.bind(Locks)
    signals: Any = SimpleNamespace(keep=lambda: signal.raise_signal(signal.SIGTERM))
    with Signals(), pytest.raises(Problem, match="interrupted") as caught:
        command._acquire(Turn(Locks, "job", {}, period), signals)

    state = Locks.lock_state("job")
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert state.next_ticket > 0
    assert (state.success, state.entries) == (None, ())


# In this process


@pytest.fixture
def run(memory: Engine, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command here; exit code, standard output and standard error, of the program as well."""
    return running(memory, capfd)


def test_the_exit_code_and_the_ticket(run):
    """The program's own exit code; it knows its ticket, and the lock is free afterwards."""
    code, out, err = run("--lock", "a job", "--json", "--", "sh", "-c", "env | grep ^PYNAMO_LOCKING_; exit 3")
    document = json.loads(err)
    ticket = document["ticket"]

    assert code == 3
    assert sorted(out.splitlines()) == ["PYNAMO_LOCKING_NAME=a job", f"PYNAMO_LOCKING_TICKET={ticket}"]
    assert document.pop("waited_s") >= 0
    assert document.pop("held_s") > 0
    assert document == {
        "table": Locks.Meta.table_name,
        "name": "a job",
        "ticket": ticket,
        "exit_code": 3,
        "program_exit_code": 3,
    }
    assert Locks.lock_state("a job").next_ticket == ticket + 1
    assert Locks.lock_state("a job").entries == ()


def test_the_program_has_the_environment_of_its_caller(run, monkeypatch):
    """A profile that was named for the lock is not the program's."""
    monkeypatch.setenv("AWS_PROFILE", "its own")
    show = 'echo "$AWS_PROFILE" "$AWS_ACCESS_KEY_ID"'

    assert run("--lock", "job", "--profile", "ours", "--", "sh", "-c", show)[1] == "its own dummy\n"


def test_a_lock_is_not_once(run):
    """Two runs, the second of which asks when the first has ended: both run, as the pages say."""
    tickets = [run("--lock", "job", "--wait", "0", "--", "sh", "-c", "echo $PYNAMO_LOCKING_TICKET") for _ in range(2)]

    assert [(code, err) for code, _, err in tickets] == [(0, ""), (0, "")]
    assert int(tickets[0][1]) < int(tickets[1][1])


def test_options_of_the_program_are_its_own(run):
    """Also without the two dashes; and without --json nothing is added to what it prints."""
    assert run("--lock", "job", "sh", "-c", 'echo "$@"', "sh", "--json", "--wait") == (0, "--json --wait\n", "")


@pytest.mark.parametrize("name", ["KILL", "PIPE"])
def test_a_program_that_a_signal_kills(run, name):
    """128 and the number, as in a shell; also those that Python ignores."""
    assert run("--lock", "job", "--", "sh", "-c", f"kill -{name} $$")[0] == 128 + signal.Signals[f"SIG{name}"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_program_gets_no_files_of_ours(run):
    """Only its standard streams are inherited."""
    look = "for n in 0 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do readlink /proc/$$/fd/$n; done; true"
    _, out, _ = run("--lock", "job", "--", "sh", "-c", look)

    assert len(out.splitlines()) == 1, out


@pytest.mark.parametrize("options", [(), ("--once-per", "1d")])
def test_a_program_that_cannot_be_started(options, run, tmp_path):
    """Exit code 126, and the lock is given back; the run does not count, as if it had failed."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    code, _, err = run("--lock", "job", *options, "--", str(broken))
    state = Locks.lock_state("job")

    assert code == 126
    assert "cannot be started" in err
    assert state.next_ticket > 0
    assert (state.success, state.entries) == (None, ())


class Meanwhile(threading.Thread):
    """Something that is done while the program runs in the main thread; its error is the test's."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001 - raised below
            self._error = error

    def result(self) -> None:
        """Wait for its end."""
        self.join(PATIENCE)
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def meanwhile(ear: Ear, action: Callable[[], None]) -> Iterator[None]:
    """Do something as soon as `WAITING` is heard, and then let it end."""

    def act() -> None:
        try:
            ear.lines(1)
            action()
        finally:
            Path(f"{ear.path}.go").touch()

    thread = Meanwhile(act)
    yield
    thread.result()


#: Says that it is there, and ends when it is told to by a file.
WAITING = 'echo up $$ > "$0"; while [ ! -e "$0.go" ]; do sleep 0.02; done'


@pytest.mark.parametrize(("program", "code"), [(0, 70), (3, 3)])
def test_a_loss_that_only_the_release_notices(run, ear, program, code):
    """The program ended by itself after the lock was broken: its exit code, or 70 where that would say all is well."""

    def break_it() -> None:
        (entry,) = Locks.lock_state("job").holders
        assert Locks.break_lock("job", ticket=entry.ticket)

    with meanwhile(ear, break_it):
        got, _, err = run("--lock", "job", "--json", "--", "sh", "-c", f"{WAITING}; exit {program}", ear.path)
    error = json.loads(err.splitlines()[-1])["error"]

    assert (got, error["exit_code"], error["program_exit_code"]) == (code, code, program)
    assert (error["kind"], error["was_ended"]) == ("lock_lost", False)
    assert error["message"].startswith(f"sh ended by itself with exit code {program}, but the lock job had been lost")
    assert "an operator broke it, or no renewal arrived" in error["message"]
    assert "`with`" not in error["message"]


def test_a_release_that_is_refused_hides_no_exit_code(run):
    """As with credentials that have expired meanwhile: the program has ended, and its exit code is what counts."""
    release = on("UpdateItem", where=lambda body: "REMOVE" in body["UpdateExpression"])
    with release.answer("ExpiredTokenException", always=True):
        code, _, err = run("--lock", "job", "--", "sh", "-c", "exit 3")

    assert code == 3
    assert "cannot release job" in err
    assert "ExpiredTokenException" in err


def test_a_lease_that_ended_for_a_while(run, monkeypatch):
    """Also when the release gets through in the end, the command cannot say that the program was alone."""
    monkeypatch.setattr(command, "_watch", lambda *_: "no renewal was answered.")
    code, _, err = run("--lock", "job", "--", "sh", "-c", "sleep 60; exit 3")

    assert code == 70
    assert err == "pynamo-locking: the lock job was lost while sh ran, which was ended: no renewal was answered.\n"


def test_a_program_that_ends_while_its_lock_is_given_up(run, monkeypatch):
    """It ended by itself before it could be told to, within the lease: its exit code, and nothing else to say."""

    def watch(_lock: Any, child: Child, *_: Any) -> str:
        assert child.exit_code == 3
        return "no renewal was answered."

    monkeypatch.setattr(command, "_watch", watch)

    assert run("--lock", "job", "--", "sh", "-c", "exit 3") == (3, "", "")


def test_the_options_of_the_lock(run, ear):
    """They reach the queue."""
    found: list[Any] = []
    options = ("--permits", "3", "--lease", "30", "--owner", "me")
    with meanwhile(ear, lambda: found.extend(Locks.lock_state("job").holders)):
        code = run("--lock", "job", *options, "--", "sh", "-c", WAITING, ear.path)[0]

    assert code == 0
    assert [(entry.lock_mode.permits, entry.lease, entry.owner) for entry in found] == [(3, 30, "me")]


def child_of(program: str, ear: Ear, heard: int, news: Any = None) -> Child:
    """Start a program as the command does, and wait until it was heard."""
    on_end = (news or threading.Event()).set
    child = Child(["sh", "-c", program, ear.path], "/bin/sh", dict(os.environ), on_end)
    ear.lines(heard)
    return child


class Ending:
    """A lock whose renewals are not answered."""

    def __init__(self, remaining: float) -> None:
        self._ends = time.monotonic() + remaining
        self.lost = threading.Event()

    @property
    def remaining(self) -> float:
        """Until the lease ends."""
        return max(0.0, self._ends - time.monotonic())

    def ensure_remaining(self, _: float) -> None:
        """No loss is proven."""


@pytest.mark.parametrize(
    ("program", "heard", "grace", "code"), [(STUBBORN, 2, 0.3, 128 + signal.SIGKILL), (POLITE, 1, PATIENCE, 7)]
)
def test_a_lease_that_is_not_renewed(program, heard, grace, code, ear):
    """The program is told before the lease ends, and dead when it ends, although no loss is proven."""
    news = threading.Event()
    lock: Any = Ending(2 * PATIENCE)

    def start_program() -> Child:
        child = child_of(program, ear, heard, news=news)
        lock._ends = time.monotonic() + 0.3 + grace
        return child

    with Signals() as signals:
        why, got = command._run_under(lock, signals, start_program, news, grace)
    ear.until_over()

    assert "no renewal was answered" in (why or "")
    assert got == code


def test_a_program_that_takes_too_long(ear, memory):
    """With a longest hold the program is ended while the lease still runs, and the next party can have the lock."""
    memory.bind(Locks)
    news = threading.Event()
    lock = Locks.locked("job", lease=100, max_hold=150, heartbeat=False, on_lost=lambda _: news.set())

    def start_program() -> Child:
        child = child_of(POLITE, ear, 1, news)
        world.shift += 80
        lock.renew()
        world.shift += 80
        return child

    with shifted_clock() as world, Signals() as signals:
        lock.acquire()
        why, code = command._run_under(lock, signals, start_program, news, 10)
    with pytest.raises(LockLost):
        lock.release()
    ear.until_over()

    assert (why, code) == ("it was held for as long as --max-hold allows.", 7)
    assert not Locks.lock_state("job").entries


@pytest.mark.parametrize("is_succeeded", [True, False])
def test_a_lease_that_has_ended_while_this_process_stood_still(ear, memory, is_succeeded):
    """A renewal tells whether another party has had the lock: the program is ended, or goes on."""
    memory.bind(Locks)
    news = threading.Event()
    lock = Locks.locked("job", lease=100, heartbeat=False, settings=APART)

    def start_program() -> Child:
        child = child_of(WAITING, ear, 1, news)
        world.shift += 250
        if is_succeeded:
            in_thread(Locks.locked("job", wait=0, heartbeat=False, settings=APART).acquire)
        return child

    renewed = on("UpdateItem", where=lambda body: "job" in str(body["Key"])).before(Path(f"{ear.path}.go").touch)
    with shifted_clock() as world, Signals() as signals:
        lock.acquire()
        with contextlib.nullcontext() if is_succeeded else renewed:
            why, code = command._run_under(lock, signals, start_program, news, 10)
        with pytest.raises(LockLost) if is_succeeded else contextlib.nullcontext():
            lock.release()
    ear.until_over()

    if is_succeeded:
        assert (why, code) == ("an operator broke it, or no renewal arrived for a whole lease.", 128 + signal.SIGTERM)
    else:
        assert (why, code) == (None, 0)


def test_who_does_not_stop_is_killed(ear):
    """With all that it has started."""
    child = child_of(STUBBORN, ear, 2)
    child.end(0.1)
    ear.until_over()

    assert child.exit_code == 128 + signal.SIGKILL
    child.close()


def test_signals_before_the_program_runs_are_kept_for_it(ear):
    """Between the grant and the start nothing gets lost."""
    news = threading.Event()
    lock: Any = Ending(PATIENCE)
    with Signals() as signals:
        signals.keep()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTSTP)
        why, code = command._run_under(lock, signals, lambda: child_of(POLITE, ear, 1, news=news), news, 1)
    ear.until_over()

    assert (why, code) == (None, 7)
