"""An engine that throttles hot keys, as DynamoDB does: a proxy before it, in a process of its own.

with throttled(engine_url, units=1000) as (url, refusals):
    ...
    refusals()
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pynamo_locking_simulator._engine.partitions import Partitions
from tests.support.crew import process
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection


@contextmanager
def throttled(url: str, units: float, burst_s: float = 1.0) -> Iterator[tuple[str, Callable[[], int]]]:
    """Put the proxy before a server.

    Args:
        url: of the server, with a port.
        units: write units of one hash key in a second; three times as many read units.
        burst_s: for how many seconds what is not used is kept.

    Yields:
        The URL of the proxy, and what tells how many requests it has refused so far.
    """
    with process(_serve, url, units, burst_s) as pipe:
        there = pipe.recv()

        def refusals() -> int:
            pipe.send("how many?")
            count: int = pipe.recv()
            return count

        yield there, refusals


def _serve(pipe: Connection, url: str, units: float, burst_s: float) -> None:
    with Proxy(url, Partitions(units, 3 * units, burst_s)) as proxy:
        pipe.send(proxy.url)
        while pipe.recv():
            pipe.send(proxy.throttled.total())
