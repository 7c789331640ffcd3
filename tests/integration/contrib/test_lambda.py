"""The handler of docs/how-to/use-in-lambda.md in several environments, each frozen between its invocations."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.nursery import ROOT

if TYPE_CHECKING:
    from tests.engines.engine import Engine

PAGE: Final = Path(ROOT, "docs/how-to/use-in-lambda.md")
ENVIRONMENTS: Final = 2
INVOCATIONS: Final = 4

#: What Lambda's runtime does: initialise, then one event after the other.
RUNTIME: Final = """
import json, sys
from types import SimpleNamespace
code, meta = json.loads(sys.stdin.readline())
exec(code)
for name, value in meta.items():
    setattr(Account.Meta, name, value)
for line in sys.stdin:
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000, aws_request_id="a-request")
    print(json.dumps(handler(json.loads(line), context)), flush=True)
"""


class Environment:
    """A process that is stopped while it has no event."""

    def __init__(self, code: str, meta: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUNTIME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send([code, meta])

    def _send(self, what: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def invoke(self, event: Any) -> Any:
        """Thaw it, hand it an event, and freeze it again as soon as it has answered."""
        assert self._process.stdout
        self._process.send_signal(signal.SIGCONT)
        self._send(event)
        answer = self._process.stdout.readline()
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_environments_that_are_frozen_between_invocations(real_engine: Engine) -> None:
    """All want the same item at the same time. Each amount is added once, and no entry is left in the queue."""
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    account: Any = real_engine.bind(namespace["Account"])
    account("a-1", balance=100).save()
    names = ("table_name", "host", "region", *real_engine.credentials)
    meta = {name: getattr(account.Meta, name) for name in names if hasattr(account.Meta, name)}

    environments = [Environment(code, meta) for _ in range(ENVIRONMENTS)]
    try:
        with ThreadPoolExecutor(ENVIRONMENTS) as events:
            for _ in range(INVOCATIONS):
                event = {"account": "a-1", "amount": 1}
                answers = list(events.map(lambda environment: environment.invoke(event), environments))  # noqa: B023
                assert answers == [{"status": 200}] * ENVIRONMENTS
    finally:
        for environment in environments:
            environment.close()
    assert account.get("a-1", consistent_read=True).balance == 100 + ENVIRONMENTS * INVOCATIONS
    assert account.lock_state("a-1").entries == ()
