"""Five consumers get each message three times, while they are killed and answers are lost: each effect happens once.

Messages come from a queue, a stream, durable steps, states of Step Functions and Celery. A delivery is acknowledged
after it was handled, so that a consumer that is killed in between leaves it to another one; two may have it at a time.
Consumers are killed at random, and of each fourth message right after its commit.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockSettings, transactional
from pynamo_locking.contrib.messages import (
    celery_key,
    durable_key,
    partial_batch,
    sqs_key,
    step_functions_key,
    stream_key,
)
from pynamo_locking.exceptions import LockingError
from pynamo_locking.recipes import IdempotencyTable, idempotent
from tests.support.crew import LIMIT_S, Crew, places_of
from tests.support.models import declare
from tests.support.proxy import Fault, Proxy, Storm
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.alone, pytest.mark.processes]

CONSUMERS: Final = 5
DELIVERIES: Final = 3
MESSAGES: Final = 100
SETTINGS: Final = LockSettings(request_timeout=0.25, poll_interval=0.02)
#: What an answer that is lost on the way looks like, and requests that come twice or late.
FAULTS: Final = (Fault.LOST_RESPONSE, Fault.CUT_RESPONSE, Fault.RESET_AFTER, Fault.LATE, Fault.DUPLICATED)

Calls = declare("Calls", IdempotencyTable, lock_settings=SETTINGS)
#: How often the message of this name was applied; and what all have added to an account, by its name.
Effect = declare("Effect", version=True, numbers="times", lock_settings=SETTINGS)
MODELS: Final = (Calls, Effect)


#: What a consumer does after the commit of a message.
after_commit: list[Callable[[], object]] = []


def account_of(name: str) -> str:
    return f"account {int(name[2:]) % 3}"


@transactional(attempts=30, wait=20)
@idempotent(Calls, key="key", payload="name", key_prefix="apply")
def apply(tx: Any, key: str, name: str) -> None:
    """Change two items: one of this message, and one that many messages change."""
    for each in (name, account_of(name)):
        effect = tx.get_or_none(Effect, each) or Effect(each)
        effect.times += 1
        tx.save(effect)
        if each == name and effect.times == 1 and int(name[2:]) % 4 == 0:
            tx.after_commit(after_commit[0])


def from_queue(name: str) -> dict[str, Any]:
    return {"messageId": name, "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders", "body": name}


def from_stream(name: str) -> dict[str, Any]:
    return {"eventID": name, "dynamodb": {"SequenceNumber": name, "Keys": {"name": {"S": name}}}}


def step_of(name: str) -> str:
    return durable_key(SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:d")), "apply", name)


def state_of(name: str) -> str:
    return step_functions_key({"Execution": {"Id": name}, "State": {"Name": "Apply"}})


def task_of(name: str) -> str:
    return celery_key(SimpleNamespace(request=SimpleNamespace(id=name)))


def handle(source: int, names: list[str]) -> set[str]:
    """Consume messages of a source; return the names of those that are to be delivered again."""
    if source == 0:
        batch = partial_batch({"Records": list(map(from_queue, names))}, lambda r: apply(sqs_key(r), r["body"]))
    elif source == 1:
        batch = partial_batch({"Records": list(map(from_stream, names))}, lambda r: apply(stream_key(r), r["eventID"]))
        if batch["batchItemFailures"]:
            first = names.index(batch["batchItemFailures"][0]["itemIdentifier"])
            return set(names[first:])
    else:
        for name in names:
            apply((step_of, state_of, task_of)[source - 2](name), name)
        return set()
    return {each["itemIdentifier"] for each in batch["batchItemFailures"]}


def wait_for_the_end(path: Path) -> None:
    """Let the test kill this consumer here."""
    path.touch()
    time.sleep(LIMIT_S)


def consume(number: int, folder: Path) -> None:
    """Take deliveries that nobody has acknowledged until there are none."""
    chooser = random.Random(number)
    after_commit[:] = [lambda: wait_for_the_end(folder / f"{number}.end")]
    with (folder / f"{number}.log").open("a", buffering=1) as log:
        while left := sorted({path.name for path in folder.glob("*~*")}):
            source = int(chooser.choice(left).partition("-")[0])
            some = [each for each in left if each.startswith(f"{source}-")]
            taken = chooser.sample(some, min(3, len(some)))
            names = [each.partition("~")[0] for each in taken]
            try:
                again = handle(source, names)
            except (LockingError, PynamoDBException) as error:
                log.write(f"{type(error).__name__}\n")
                continue
            for delivery, name in zip(taken, names, strict=True):
                if name not in again:
                    (folder / delivery).unlink(missing_ok=True)
            log.write(f"handled {len(names) - len(again)} of {taken}\n")


def disturb(crew: Crew, folder: Path) -> int:
    """Kill consumers while they have work; each has a successor. Return how many were killed after a commit."""
    chooser, after, wanted = random.Random(7), 0, 0

    def is_next() -> bool:
        return any(folder.glob("*.end")) or crew.written() >= wanted or not any(folder.glob("*~*"))

    while any(folder.glob("*~*")):
        until(is_next, "the next messages")
        ready = [path.stem for path in folder.glob("*.end")]
        numbers = [int(each) for each in ready]
        if not numbers and (awake := crew.awake()):
            numbers, wanted = [chooser.choice(awake)], crew.written() + chooser.randint(500, 1_000)
        for number in crew.members.keys() & numbers:
            crew.kill_number(number)
            crew.start()
        for each in ready:
            (folder / f"{each}.end").unlink()
        after += len(ready)
    crew.finish()
    return after


@pytest.mark.timeout(120 + MESSAGES)
def test_each_message_is_applied_once(real_engine: Engine, tmp_path: Path) -> None:
    """Whoever gets it, however often, and whatever became of the answers."""
    real_engine.bind(*MODELS)
    names = [f"{number % 5}-{number}" for number in range(MESSAGES)]
    for name in names:
        for delivery in range(DELIVERIES):
            (tmp_path / f"{name}~{delivery}").touch()
    with Proxy(str(real_engine.host)) as proxy:
        proxy.plan, proxy.late_after = Storm(3, 0.1, FAULTS), 50
        places = places_of(real_engine, MODELS, host=proxy.url)
        with Crew(places, tmp_path, CONSUMERS, consume, tmp_path) as crew:
            assert disturb(crew, tmp_path)
        assert proxy.injected.total()
    found = {effect.key: effect.times for effect in Effect.scan(consistent_read=True)}
    accounts = Counter(map(account_of, names))
    assert found == dict.fromkeys(names, 1) | accounts
