"""What the command line does to streams and processes, seen in this process; `integration/cli` sees it from outside."""

from __future__ import annotations

import contextlib
import errno
import getpass
import io
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.cli import terminal
from pynamo_locking.cli.run import Signals
from pynamo_locking.cli.terminal import Ending, Exit, Problem, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.mark.processes
@pytest.mark.parametrize("handlers", [contextlib.nullcontext, Signals])
def test_a_second_signal_does_not_disturb_the_end(handlers: Callable[[], AbstractContextManager[object]]) -> None:
    """It comes while the command tells of the first one, whichever handler has raised that."""
    for _ in range(2):  # a command after it hears signals again
        with Ending():
            with pytest.raises(Stopped) as stopped, handlers():
                signal.raise_signal(signal.SIGTERM)
            assert stopped.value.number == signal.SIGTERM
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_operator_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have no entry for its user."""

    def missing() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", missing)
    assert terminal.operator() == f"uid {os.getuid()}@{socket.gethostname()}"
    monkeypatch.delattr(os, "getuid")
    assert terminal.operator() == f"unknown@{socket.gethostname()}"


class Full(io.TextIOWrapper):
    """A stream on a full disk."""

    error: OSError = OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise self.error


def test_an_answer_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is printed after it is discarded; a closed pipe stays one."""
    path = tmp_path / "answer"
    stream: Any = Full(path.open("wb", buffering=0), write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(Problem, match="cannot be written: No space left on device") as told, terminal.written():
        print("before", end="")  # noqa: T201
    assert told.value.exit_code == Exit.NOT_WRITTEN
    print("after")  # noqa: T201
    assert path.read_text() == "before"
    stream.error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(BrokenPipeError) as broken, terminal.written():
        pass
    assert broken.value.errno is None
    with pytest.raises(BrokenPipeError):
        terminal._Console().on_broken_pipe()
