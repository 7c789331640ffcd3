"""Wake-ups in a directory of a test's own, for this process and the workers that it starts."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pynamo_locking._io import runtime, wakeups
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def own_wakeups() -> Iterator[Path]:
    """Let processes wake each other in a new place; yield the directory, which is not there yet."""
    # Not below pytest's directories: the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="wakeups") as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place, f"pynamo_locking-{os.getuid()}")
        patch.setenv("TMPDIR", place)
        patch.setattr(wakeups, "folder", lambda: folder)
        patch.setattr(wakeups, "_IDLE_S", 0.02)
        patch.setattr(wakeups, "listener", wakeups.WakeupListener())
        patch.setattr(runtime.Runtime, "has_wakeups", True)
        yield folder
        until(lambda: wakeups.listener._socket is None, "the end of the thread that listens")


def mailboxes() -> list[list[wakeups.Mailbox]]:
    """Return where the waiters of this process sleep, for each lock that has or had any."""
    return list(wakeups._mailboxes.values())


def names(folder: Path) -> list[str]:
    """Return the names of the processes that listen."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def throw(path: Path, datagram: bytes) -> None:
    """Send anything to a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, str(path))
