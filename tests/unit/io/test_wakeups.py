"""Wake-ups between processes of one machine: the socket, its directory, and whom a process wakes."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking._core.lock_modes import SHARED, LockMode
from pynamo_locking._io import lock_record, runtime, wakeups
from tests.support.local_wakeups import names, own_wakeups, throw
from tests.support.runtime import no_thread_starts
from tests.support.workers import PATIENCE, until
from tests.unit.helpers import opened, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no process wakes another one there")

LISTENS = """
import os, sys
from pynamo_locking._io import wakeups

wakeups.listener.listen("parent", print, lambda: True)
assert os.listdir(wakeups.folder()) == ["parent"]
if not os.fork():
    assert wakeups.listener._socket is None
    assert wakeups.other_listeners() == {"parent"}
    sys.exit(0)
assert os.wait()[1] == 0
if not os.fork():
    wakeups.listener.listen("killed", print, lambda: True)
    os._exit(0)
os.wait()
assert wakeups.other_listeners() == {"killed"}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_wakeups() as folder:
        yield folder


class Listener:
    """What this process hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.is_needed = True

    def listen(self) -> None:
        wakeups.listener.listen("me", self.heard.append, lambda: self.is_needed)


@pytest.fixture
def listener(folder: Path) -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.is_needed = False


@contextmanager
def another(folder: Path, name: str) -> Iterator[socket.socket]:
    """Listen as another process does."""
    folder.mkdir(0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.settimeout(PATIENCE)
        other.bind(str(folder / name))
        yield other


def is_silent(other: socket.socket) -> bool:
    other.settimeout(0)
    with pytest.raises(BlockingIOError):
        other.recv(100)
    return True


def test_what_is_heard(folder: Path, listener: Listener) -> None:
    listener.listen()
    listener.listen()
    assert names(folder) == ["me"]
    assert folder.stat().st_mode & 0o777 == 0o700
    throw(folder / "me", b"first")
    throw(folder / "me", b"\xff" * 1000)
    throw(folder / "me", b"")
    until(lambda: len(listener.heard) == 3)
    assert listener.heard == [b"first", b"\xff" * 1000, b""]


def test_listens_only_while_a_caller_waits(folder: Path, listener: Listener) -> None:
    listener.listen()
    until(lambda: any(thread.name == "pynamo-locking-wakeups" for thread in threading.enumerate()))
    listener.is_needed = False
    until(lambda: names(folder) == [])
    until(lambda: not any(thread.name == "pynamo-locking-wakeups" for thread in threading.enumerate()))
    listener.is_needed = True
    listener.listen()
    assert names(folder) == ["me"]


def test_rings_for_other_processes_that_listen(folder: Path, listener: Listener) -> None:
    """Whose name is the beginning of the ids of their entries."""
    listener.listen()
    assert wakeups.other_listeners() == frozenset()
    with another(folder, "1234") as you, another(folder, "abcd") as she:
        assert wakeups.other_listeners() == {"1234", "abcd"}
        wakeups.send_wakeup(["1234-1", "me", "nobody-3", "../other-4", "\0-5", "-6", "1234-7"])
        assert [you.recv(100), you.recv(100)] == [b"1234-1", b"1234-7"]
        assert is_silent(she)
    assert listener.heard == []


def test_who_listens(folder: Path, listener: Listener) -> None:
    """The processes of all these entries have to, this process among them."""
    with another(folder, "1234"), another(folder, "abcd"):
        assert wakeups.are_listening(["1234-1", "abcd-1", "1234-2"])
        assert not wakeups.are_listening(["1234-1", "5678-1"])


def test_no_entry_is_read_if_no_process_listens(folder: Path) -> None:
    wakeups.send_wakeup(pytest.fail("read") for _ in range(1))  # type: ignore[arg-type]
    assert not folder.exists()


def test_a_full_socket_does_not_hold_up_a_release(folder: Path) -> None:
    with another(folder, "1234") as stopped:
        wakeups.send_wakeup(["1234-1"] * 2000)
        assert stopped.recv(100) == b"1234-1"


@pytest.mark.parametrize("is_found_by", ["sending", "listening"])
def test_a_dead_process_is_forgotten(folder: Path, listener: Listener, is_found_by: str) -> None:
    with another(folder, "1234"):
        pass
    assert names(folder) == ["1234"]
    if is_found_by == "sending":
        wakeups.send_wakeup(["1234-1"])
        assert names(folder) == []
    else:
        listener.listen()
        assert names(folder) == ["me"]


@pytest.mark.processes
def test_the_end_of_a_process(folder: Path) -> None:
    """A forked child leaves the socket to its parent, which removes it when it exits. One that is killed cannot."""
    done = subprocess.run([sys.executable, "-c", LISTENS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert names(folder) == ["killed"]


@pytest.mark.parametrize("kind", ["open to others", "a file", "a link", "no place", "a long path"])
def test_no_bells_in_a_directory_that_is_not_ours_alone(
    folder: Path, listener: Listener, kind: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pynamo_locking")
    elsewhere = folder.parent / "elsewhere"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o750)
    elif kind == "a file":
        folder.touch(0o600)
    elif kind == "a link":
        elsewhere.mkdir(0o700)
        folder.symlink_to(elsewhere)
    elif kind == "no place":
        monkeypatch.setattr(wakeups, "folder", lambda: folder / "none" / "none")
    else:
        monkeypatch.setattr(wakeups, "folder", lambda: folder.parent / ("x" * 100))
    for _ in range(3):
        listener.listen()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "no wake-ups of other processes are received, so waiters poll"
    ]
    assert wakeups.listener._socket is None
    assert wakeups.other_listeners() == frozenset()


def test_a_directory_of_another_user(folder: Path, listener: Listener, monkeypatch: Any) -> None:
    with another(folder, "you"):
        assert wakeups.other_listeners() == {"you"}
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        assert wakeups.other_listeners() == frozenset()
        listener.listen()
        assert wakeups.listener._socket is None


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_is_not_started_leaves_nothing_behind(
    folder: Path, listener: Listener, error: BaseException
) -> None:
    """Without a thread waiters poll; an interrupt goes on, and the next caller tries again."""
    raised = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with no_thread_starts(error), raised:
        listener.listen()
    assert names(folder) == []
    listener.listen()
    assert names(folder) == (["me"] if isinstance(error, KeyboardInterrupt) else [])


@pytest.mark.parametrize(("given", "expected"), [("/var/tmp", "/var/tmp"), ("", "/tmp"), (None, "/tmp")])
def test_where_sockets_are(monkeypatch: Any, given: str | None, expected: str) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if given is not None:
        monkeypatch.setenv("TMPDIR", given)
    assert str(wakeups.folder.__wrapped__().parent) == expected


def test_a_world_without_bells(folder: Path, listener: Listener, monkeypatch: Any) -> None:
    monkeypatch.setattr(runtime.Runtime, "has_wakeups", False)
    listener.listen()
    assert not folder.exists()
    with another(folder, "1234") as you:
        assert wakeups.other_listeners() == frozenset()
        wakeups.send_wakeup(["1234-1"])
        assert is_silent(you)


# Whom a wake-up of another process wakes, and whom this process wakes


def test_a_bell_wakes_the_waiter_that_it_names() -> None:
    waiters = [opened(row(key)) for key in ("a-1", "a-1", "a-2")]
    for i, waiter in enumerate(waiters):
        waiter.entry_id = f"entry-{i}"
    wakeups.wake(b"entry-1")
    wakeups.wake(b"entry")
    wakeups.wake(b"")
    assert [waiter._must_read for waiter in waiters] == [False, True, False]
    for key, waiter in zip(("a-1", "a-1", "a-2"), waiters, strict=True):
        wakeups.close_mailbox(row(key), waiter)


ITEM: Any = {
    "account_id": {"S": "a-1 \n\u2028 é"},
    "none": {"NULL": True},
    "binary": {"B": b"\xff\0"},
    "binaries": {"BS": [b"", b"\n"]},
    "map": {"M": {"base64": {"S": "AA=="}, "list": {"L": [{"B": b"deep"}, {"N": "1.5"}, {"BOOL": False}]}}},
}


def sent(folder: Path, key: str, image: Any) -> bytes:
    """Return the wake-up of the entry "1234-1" that waits for the lock of an account."""
    with another(folder, "1234") as you:
        wakeups.send_wakeup(["1234-1"], row(key), image)
        message = you.recv(2**20)
        assert is_silent(you)
    (folder / "1234").unlink()
    return message


def woken(key: str, message: bytes) -> tuple[Any, bool]:
    """Return the item with which that wake-up wakes the entry "1234-1" of the lock of an account, and whether it does.

    The name of the process is part of the id of an entry.
    """
    waiter = opened(row(key))
    waiter.entry_id = "1234-1"
    try:
        wakeups.wake(message)
        was_woken = waiter._is_woken
        return waiter.wait(0), was_woken
    finally:
        wakeups.close_mailbox(row(key), waiter)


def test_a_wakeup_carries_the_item(folder: Path) -> None:
    """It counts for its lock only: after a restore from a backup another table has entries of those who wait."""
    assert woken("a-1", sent(folder, "a-1", ITEM)) == (ITEM, True)
    assert woken("a-1", sent(folder, "a-2", ITEM)) == (None, True)


def test_an_item_that_is_too_large_to_send(folder: Path) -> None:
    large = {**ITEM, "large": {"S": "x" * 70_000}}
    assert sent(folder, "a-1", large) == b"1234-1"


@pytest.mark.parametrize("rest", [b"", b"\n", b"\n[", b"\n1", b"\n[1]", b"\n[1, 2]", b'\n{"a": 1, "b": 2}', b"\n\xff"])
def test_a_wakeup_that_cannot_be_read_lets_the_waiter_poll(rest: bytes) -> None:
    assert woken("a-1", b"1234-1" + rest) == (None, True)


def test_a_call_wakes_who_may_be_next(folder: Path) -> None:
    """The first in line for that lock, and one that has no ticket yet: they look, as nobody knows who is next."""
    first, second, new, other = (opened(row(key)) for key in ("a-1", "a-1", "a-1", "a-2"))
    for waiter, ticket in ((second, 8), (first, 7), (other, 7)):
        waiter.ticket, waiter.entry_id = ticket, "1234-1"
    with another(folder, "1234") as you:
        wakeups.call_next(row("a-1"))
        wakeups.wake(you.recv(2**16))
        assert is_silent(you)
    assert [waiter._must_read for waiter in (first, second, new, other)] == [True, False, True, False]
    assert first.wait(0) is None
    for key, waiter in (("a-1", first), ("a-1", second), ("a-1", new), ("a-2", other)):
        wakeups.close_mailbox(row(key), waiter)


def image(*claims: LockMode) -> dict[str, Any]:
    """An item whose lock has these claims, each under the next ticket; the last one comes first in the map."""
    stored = [lock_record.new_entry("owner", claim, 60, 0, ticket=99 + i) for i, claim in enumerate(claims)]
    document = lock_record.new_document("0", stored[0], 99, len(claims))["M"]
    queue = {str(i): entry for i, entry in reversed(tuple(enumerate(stored)))}
    return {"lock": {"M": {**document, lock_record.QUEUE: {"M": queue}}}}


ALONE, READER, SEAT = LockMode(), LockMode(SHARED), LockMode(permits=2)


@pytest.mark.parametrize(
    ("claims", "holders"),
    [
        ([ALONE, ALONE, READER], ["0"]),
        ([READER, READER, ALONE, READER], ["0", "1"]),
        ([SEAT, SEAT, SEAT], ["0", "1"]),
        ([LockMode(upper=("N", "5")), LockMode(lower=("N", "5")), LockMode(lower=("N", "9"))], ["0", "1"]),
    ],
)
def test_who_is_next(monkeypatch: Any, claims: list[LockMode], holders: list[str]) -> None:
    woken: list[str] = []
    monkeypatch.setattr(wakeups, "send_wakeup", lambda entry_ids, *_: woken.extend(entry_ids))
    wakeups.tell_waiters(row(), image(*claims))
    assert woken == holders
    assert [entry.id for entry in lock_record.state_in(image(*claims), "lock").holders] == holders


@pytest.mark.parametrize(
    "broken", [{}, {"lock": {"NULL": True}}, {"lock": {"M": {}}}, {"lock": {"M": {"queue": {"M": {"a": {}}}}}}]
)
def test_a_broken_document_names_no_holder(broken: dict[str, Any]) -> None:
    assert list(lock_record.holders_in(broken, "lock")) == []
