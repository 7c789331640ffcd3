"""The handler of docs/how-to/use-in-lambda.md in several environments, each frozen between its invocations."""

from __future__ import annotations

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.crew import ROOT, Child, places_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tests.engines.engine import Engine

PAGE: Final = Path(ROOT, "docs/how-to/use-in-lambda.md")
ENVIRONMENTS: Final = 2
INVOCATIONS: Final = 4


def runtime(pipe: Connection[Any, Any], code: str, meta: dict[str, Any]) -> None:
    """Do what Lambda's runtime does: initialise, then one event after the other."""
    function: dict[str, Any] = {}
    exec(code, function)
    for name, value in meta.items():
        setattr(function["Account"].Meta, name, value)
    while True:
        context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000, aws_request_id="a-request")
        pipe.send(json.dumps(function["handler"](json.loads(pipe.recv()), context)))


def invoke(environment: Child, event: Any) -> Any:
    """Thaw it, hand it an event, and freeze it again as soon as it has answered."""
    environment.resume()
    environment.pipe.send(json.dumps(event))
    answer = environment.hear()
    environment.pause()
    return json.loads(answer)


@pytest.mark.processes
def test_environments_that_are_frozen_between_invocations(real_engine: Engine) -> None:
    """All want the same item at the same time. Each amount is added once, and no entry is left in the queue."""
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    account: Any = real_engine.bind(namespace["Account"])
    account("a-1", balance=100).save()
    [(_, meta)] = places_of(real_engine, [account])

    with contextlib.ExitStack() as stack:
        environments = [stack.enter_context(Child(runtime, code, meta)) for _ in range(ENVIRONMENTS)]
        events = stack.enter_context(ThreadPoolExecutor(ENVIRONMENTS))
        for _ in range(INVOCATIONS):
            event = {"account": "a-1", "amount": 1}
            answers = list(events.map(lambda environment: invoke(environment, event), environments))  # noqa: B023
            assert answers == [{"status": 200}] * ENVIRONMENTS
    assert account.get("a-1", consistent_read=True).balance == 100 + ENVIRONMENTS * INVOCATIONS
    assert account.lock_state("a-1").entries == ()
