"""Processes call functions of the same keys while they are killed and paused, and the network loses answers.

For each key one result is returned, by whichever process and however often it is asked for, and the effect that is
committed with it has happened once. ``CALLS=8x50x5`` makes eight processes call fifty keys five times each.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockSettings, TransactionTable, transaction, transactional
from pynamo_locking.exceptions import LockingError, LockLost, OutcomeUnknown
from pynamo_locking.recipes import IdempotencyTable, idempotent
from tests.support.crew import Crew, Log, places_of
from tests.support.models import declare
from tests.support.proxy import Fault, Proxy, Storm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.alone, pytest.mark.processes]

PROCESSES, KEYS, CALLS = 8, 50, 5
LEASE_S: Final = 1.5
SETTINGS: Final = LockSettings(lease=LEASE_S, request_timeout=0.25, poll_interval=0.02, max_clock_skew=0.5, wait=20)
#: Each that is killed has a successor.
KILLED: Final = ("killed", None)
PAUSED: Final = ("paused", (1.5 * LEASE_S, 2 * LEASE_S))
#: What an answer that is lost on the way looks like, and requests that come twice or late.
FAULTS: Final = (Fault.LOST_RESPONSE, Fault.CUT_RESPONSE, Fault.RESET_AFTER, Fault.LATE, Fault.DUPLICATED)

Calls = declare("Calls", IdempotencyTable, lock_settings=SETTINGS)
Headers = declare("Headers", TransactionTable)
#: What is done under a key: how often, and by whom.
Deed = declare("Deed", lock=True, version=True, numbers="times", lock_settings=SETTINGS, transaction_table=Headers)


MODELS: Final = (Calls, Headers, Deed)


def a_token() -> str:
    """A result that no other run of a function returns."""
    return os.urandom(6).hex()


def think() -> None:
    """Take a moment, so that many are hit in it."""
    time.sleep(random.uniform(0, 0.02))


def do(tx: Any, key: str) -> None:
    """Do it once more."""
    deed = tx.get_or_none(Deed, key) or Deed(key)
    deed.times += 1
    think()
    tx.save(deed)


@transactional(attempts=30, wait=20)
@idempotent(Calls, key="key", payload="key", key_prefix="do")
def by_commit(tx: Any, key: str) -> str:
    """The effect and the result are one commit."""
    do(tx, key)
    return a_token()


@idempotent(Calls, key="key", payload="key", key_prefix="do")
def by_lock(key: str) -> str:
    """The result alone."""
    think()
    return a_token()


def by_both(key: str) -> str:
    """A lock around, and the effect and the result in one commit."""
    with Calls.call(f"do#{key}", payload=[key]) as call:
        if not call.is_repeated:
            think()
            with transaction(wait=20) as tx:
                do(tx, key)
                call.complete(a_token())
    return str(call.result)


#: Of every fourth key. The last of them is called in two ways.
WAYS: Final[list[list[Any]]] = [[by_commit], [by_both], [by_lock], [by_commit, by_both]]


def work(number: int, folder: Path) -> None:
    """Call every key so many times, in an order of its own."""
    log = Log(folder / f"{number}.log")
    chooser = random.Random(number)
    keys = [key for key in range(KEYS) for _ in range(CALLS)]
    chooser.shuffle(keys)
    for key in keys:
        try:
            said = "result", chooser.choice(WAYS[key % len(WAYS)])(f"k-{key}")
        except (LockingError, PynamoDBException) as error:
            said = next(kind.__name__ for kind in (LockLost, OutcomeUnknown, Exception) if isinstance(error, kind)), ""
        log.note([key, *said])


@pytest.mark.timeout(120 + PROCESSES * KEYS)
def test_kills_and_lost_answers(dynoxide: Engine, tmp_path: Path) -> None:
    """One effect and one result for each key, and the result of no zombie."""
    dynoxide.bind(*MODELS)
    with Proxy(str(dynoxide.host)) as proxy:
        proxy.plan, proxy.late_after = Storm(3, 0.1, FAULTS), 50
        plan = [PAUSED, KILLED] * max(2, KEYS * CALLS // 20)
        with Crew(places_of(dynoxide, MODELS, host=proxy.url), tmp_path, PROCESSES, work, tmp_path) as crew:
            did = crew.disturb(random.Random(7), plan, (100, 400))
            notes = list(crew.notes())
        lost = proxy.injected.total()
    found, said = defaultdict[int, set[str]](set), Counter[str]()
    for key, kind, token in notes:
        said[kind] += 1
        if kind == "result":
            found[key].add(token)
    print(f"\n{dict(did)}; {lost} requests spoilt; {dict(said)}")  # noqa: T201 - with -s
    for key in range(KEYS):
        ways = WAYS[key % len(WAYS)]
        found[key].add(ways[-1](f"k-{key}"))  # what is stored in the end
        assert len(found[key]) == 1, (key, found[key])
        if by_lock not in ways:
            assert Deed.get(f"k-{key}").times == 1, f"the call k-{key} was made another time than once"
    assert did["killed"]
    assert did["paused"]
    assert said["result"] > sum(said.values()) / 2
