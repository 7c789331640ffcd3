"""Processes that are forked from one which has imported everything: it forks, kills and awaits them, as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.support.nursery import ROOT, die_with, ending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.engines.engine import Engine

_OPTIONS: Final = ("table_name", "host", "region", "connect_timeout_seconds", "read_timeout_seconds")


def meta_of(models: Mapping[str, Any], engine: Engine) -> dict[str, dict[str, Any]]:
    """Return where models are stored, for another process."""
    options = (*_OPTIONS, *engine.credentials)
    return {
        name: {option: getattr(model.Meta, option) for option in options if hasattr(model.Meta, option)}
        for name, model in models.items()
    }


def use(models: Mapping[str, Any], meta: dict[str, dict[str, Any]]) -> None:
    """Store models where another process said."""
    for name, options in meta.items():
        for option, value in options.items():
            setattr(models[name].Meta, option, value)


def serve(parent: int, live: Callable[[int], None]) -> None:
    """Be the process of a `Forks`: fork, kill and await as the lines of standard input say.

    Args:
        parent: the process that has started this one, and whose end ends all.
        live: what a forked process does with its number.
    """
    die_with(parent)
    for line in sys.stdin:
        command, number = line.split()
        if command == "start":
            answer = _fork(live, int(number))
        else:
            if command == "kill":
                os.kill(int(number), signal.SIGKILL)
            answer = os.waitpid(int(number), 0)[1]
        print(answer, flush=True)  # noqa: T201 - the answer


def _fork(live: Callable[[int], None], number: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    with ending():
        die_with(parent)
        live(number)
    raise AssertionError


class Forks:
    """A process that forks others.

    Args:
        said: the file for what all of them write to standard error.
        code: of the process. It ends in `serve`, or does the same.
        arguments: of the code.
        options: of `subprocess.Popen`.
    """

    def __init__(self, said: Path, code: str, *arguments: str, **options: Any) -> None:
        self._said = said
        with said.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **{"cwd": ROOT, **options},
            )

    def start(self, number: int = 0) -> int:
        """Fork a process with this number; return its process id."""
        return self._ask("start", number)

    def kill(self, pid: int) -> None:
        """Kill a process, whatever it is doing."""
        status = self._ask("kill", pid)
        assert status == signal.SIGKILL, self.said()

    def wait(self, pid: int) -> None:
        """Wait until a process has ended as it should."""
        status = self._ask("wait", pid)
        assert status == 0, self.said()

    def said(self) -> str:
        """Return the end of what they have written to standard error."""
        return self._said.read_text()[-4000:]

    def close(self) -> None:
        """End all of them: they die with the process that they were forked from."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str, number: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(command, number, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self.said()
        return int(answer)
