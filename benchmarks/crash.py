"""After a crash: how long the dead keep a lock, or the items of a transaction, from the living. In leases."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient

from benchmarks.contenders import Place, variants
from benchmarks.transactions import Record, Transactions
from pynamo_locking import transaction
from pynamo_locking.transactions import Transaction
from tests.support import crew
from tests.support.bank_audit import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender, Variant
    from benchmarks.harness import Bench
    from tests.engines.engine import Engine

#: The lease of every lock, of which ours renews at a third; and how long it has been over when the latecomer arrives:
#: more than clocks are allowed to differ.
TIMES_S: Final = (3.0, 11.0)


def measure(bench: Bench) -> None:
    """Measure locks, and then transactions."""
    times_s = bench.size(TIMES_S, (1.5, 0.1))
    with bench.url() as url, ExitStack() as stack:
        turns = {}
        for variant in bench.wanted(variants()):
            if variant.kind.has_lock:
                contender = variant.build(Place(url, f"crash-{variant.slug}-"), times_s[0])
                stack.callback(contender.close)
                keys = [f"{moment}-{i}" for i in range(bench.rounds) for moment in ("early", "late")]
                contender.create(keys)
                turns[variant.name] = partial(_turn, contender, variant, iter(keys), *times_s)
        bench.in_turns("a lock", turns)
    with bench.engine() as engine:
        engine.bind(Transactions, Record)
        chooser = random.Random(1)  # noqa: S311 - moments that can be had again
        bench.in_turns(
            "a transaction",
            {case: partial(_unblock, engine, case, chooser) for case in bench.size([*CASES], [*CASES][:1])},
        )


# Locks


def _turn(
    contender: Contender, variant: Variant, keys: Iterator[str], lease_s: float, late_s: float
) -> dict[str, float]:
    """Kill a process that holds two locks: one is waited for already, one is asked for later."""
    early, late = next(keys), next(keys)
    with ThreadPoolExecutor(1) as pool:
        with crew.process(_hold_for_ever, variant, contender.place, lease_s, early, late) as victim:
            victim.recv()
            waiting = pool.submit(_granted, contender, early)
            time.sleep(1.0)
        killed = time.monotonic()
        waited = waiting.result() - killed
    time.sleep(max(0.0, killed + lease_s + late_s - time.monotonic()))
    arrived = time.monotonic()
    came_late = _granted(contender, late) - arrived
    return {"who waits already": waited / lease_s, f"who comes {late_s:g} s later": came_late / lease_s}


def _granted(contender: Contender, key: str) -> float:
    with contender.hold(key):
        return time.monotonic()


def _hold_for_ever(pipe: Connection, variant: Variant, place: Place, lease_s: float, *keys: str) -> None:
    contender = variant.build(place, lease_s)
    with ExitStack() as stack:
        for key in keys:
            stack.enter_context(contender.hold(key))
        pipe.send("holding")
        threading.Event().wait()


# Transactions

#: Items of the transaction; 51 of them get a mark, in three requests.
ITEMS: Final = 150
MARKING: Final = 3
TX_LEASE_S: Final = 3.0
#: Beyond the lease and the clock skew that is allowed for (10 s), so that the stored end of the lease is believed.
TX_LATE_S: Final = TX_LEASE_S + 12.0


def _plain_write(_: Transaction, key: str) -> None:
    Record(key).update([Record.total.add(100)], add_version_condition=False)


def _younger(_: Transaction, key: str) -> None:
    with transaction(wait=60.0) as tx:
        tx.update(tx.get(Record, key), [Record.total.add(100)])
        tx.update(tx.get(Record, f"free-{key}"), [Record.total.add(100)])


def _older(begun: Transaction, key: str) -> None:
    begun.update(begun.get(Record, key), [Record.total.add(100)])
    begun.update(begun.get(Record, f"free-{key}"), [Record.total.add(100)])
    begun.commit()


#: Who waits; how long after the kill he comes; whether the killed one had decided.
CASES: Final[dict[str, tuple[Callable[[Transaction, str], None], float, bool]]] = {
    "a single write, at once": (_plain_write, 0.0, False),
    "a younger transaction, at once": (_younger, 0.0, False),
    "an older transaction, at once": (_older, 0.0, False),
    f"a single write, {TX_LATE_S:g} s later": (_plain_write, TX_LATE_S, False),
    "a single write, after the decision": (_plain_write, 0.0, True),
}


def _unblock(engine: Engine, case: str, chooser: random.Random) -> dict[str, float]:
    """Kill a process at a random request of its commit, and write one of the items with a mark."""
    write, late_s, is_decided = CASES[case]
    name = f"{'-'.join(case.split())}-{time.monotonic_ns()}"
    for start in range(0, ITEMS, 75):
        with transaction(Transactions) as tx:
            for number in range(start, start + 75):
                tx.save(Record(f"{name}-{number:04}"))
    begun = Transaction(wait=120.0)  # older than the one that is killed
    # Undecided: after the first mark, or later, and before the decision. Decided: at least one mark is left.
    before = 1 + 1 + MARKING
    first, last = (before + 1, before + MARKING) if is_decided else (3, before)
    with crew.Child(
        _coordinate, crew.places_of(engine, (Transactions, Record)), name, chooser.randint(first, last)
    ) as child:
        if child.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the coordinator was to be killed: {child.said()}")
    time.sleep(late_s)
    key = str(chooser.choice([key for image in marked(Record) if (key := image["key"]["S"]).startswith(name)]))
    Record(f"free-{key}").save()
    start_s = time.monotonic()
    write(begun, key)
    return {"who waits already": (time.monotonic() - start_s) / TX_LEASE_S}


def _coordinate(_pipe: object, places: crew.Places, name: str, request: int) -> None:
    """Write many items in one transaction, and be killed at its k-th request."""
    crew.use(places)
    with transaction(lease=TX_LEASE_S, workers=1) as tx:  # one request at a time, so that it is known what was done
        for number in range(ITEMS):
            tx.update(tx.get(Record, f"{name}-{number:04}"), [Record.total.add(1)])
        client: Any = BaseClient
        call, left = client._make_api_call, [request]

        def counting(self: Any, operation: str, kwargs: dict[str, Any]) -> Any:
            left[0] -= 1
            if left[0] < 0:
                signal.raise_signal(signal.SIGKILL)
            return call(self, operation, kwargs)

        client._make_api_call = counting
