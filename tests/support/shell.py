"""The command line in this process, and what its tests put beside it."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pynamo_locking.cli import main
from tests.support.models import APART, Locks
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.engines.engine import Engine


MODELS = "tests.support.models"
VARIABLES = ("REGION", "PROFILE", "ENDPOINT", "TABLE", "TRANSACTION_TABLE", "CALL_TABLE", "LOG_FILE")


class Shell:
    """Runs the program in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], engine: Engine) -> None:
        self._capsys = capsys
        self._reach = [] if engine.host is None else ["--endpoint", engine.host, "--region", engine.region]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._capsys.readouterr()
        words = 1 if arguments[0] == "run" else 2
        code = main([*arguments[:words], *self._reach, *arguments[words:]])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def answer(self, *arguments: str, code: int = 0) -> Any:
        """The JSON document."""
        got, out, err = self.run(*arguments, "--json")
        assert got == code, f"{' '.join(arguments)} has ended with {got}, and not with {code}: {err or out}"
        return json.loads(out)

    def error(self, *arguments: str) -> dict[str, Any]:
        """The error's JSON document, which has the exit code in it; nothing else is printed."""
        code, out, err = self.run(*arguments, "--json")
        asked = " ".join(arguments)
        assert code, f"{asked} was to end with an error, and has answered: {out}"
        document: dict[str, Any] = json.loads(err)["error"]
        assert (code, out) == (document["exit_code"], ""), f"{asked}: the exit code, or the output, is not what it says"
        return document


def prepared(engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, with nothing set."""
    for name in VARIABLES:
        monkeypatch.delenv(f"PYNAMO_LOCKING_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("pynamodb.connection.base.get_session", lambda: engine._session)  # a new one takes 0.1 s
    return Shell(capsys, engine)


def running(memory: Engine, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """What runs `run` on a table of locks; exit code, standard output and standard error, of the program as well."""
    memory.bind(Locks)

    def run(*arguments: str) -> tuple[int, str, str]:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)}
        code = main(["run", "--table", name_of(Locks), *arguments])
        assert {number: signal.getsignal(number) for number in before} == before
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


class Waiter:
    """A party of another process, as it seems, that waits for a lock or holds it, on a thread of its own."""

    def __init__(self, model: Any, *key: Any, **options: Any) -> None:
        self._lock = model.locked(*key, **{"wait": PATIENCE, "settings": APART, **options})
        self._may_leave = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        before = len(model.lock_state(*key).entries)
        self._thread.start()
        until(lambda: len(model.lock_state(*key).entries) > before)

    def _run(self) -> None:
        with self._lock:
            self._may_leave.wait(PATIENCE)

    def close(self) -> None:
        """Let go, once it has it."""
        self._may_leave.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"{self._lock.name}: this party did not get the lock, or did not let go"


def name_of(model: Any) -> str:
    """The table of a model."""
    name: str = model.Meta.table_name
    return name


def changed(
    memory: Engine, monkeypatch: pytest.MonkeyPatch, operation: str, change: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """Let the database give another answer to an operation; return the requests, as they come in."""
    database, asked_for = memory._memory, list[dict[str, Any]]()
    assert database is not None, "only the answers of the engine in memory can be changed"
    original = database.handle

    def handle(asked: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        if asked == operation:
            asked_for.append(kwargs)
        answer = original(asked, kwargs)
        return change(answer) if asked == operation else answer

    monkeypatch.setattr(database, "handle", handle)
    return asked_for


def described(**facts: Any) -> Callable[[Any], Any]:
    """Add to a table's description."""
    return lambda answer: {**answer, "Table": {**answer["Table"], **facts}}


def denied(_answer: Any) -> Any:
    """Refuse, as IAM does."""
    error = {"Code": "AccessDeniedException", "Message": "User is not authorized to perform this"}
    answer: Any = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}
    raise ClientError(answer, "X")
