"""A proxy on the loopback that makes an engine as far away as DynamoDB is.

    with slowed(engine_url, rtt_ms=5) as url:
        ...

It runs in a process of its own, and delays what it receives, in each direction, by half of the round trip. Each chunk
is sent on when its own time has come, in order, on any number of connections at once, without a limit of bandwidth,
and with TCP_NODELAY on both sides. What a client sends first arrives one round trip later than that, because a real
connection takes one to open, while the kernel accepts this one at once. Who opens connections once and reuses them,
as botocore does, does not notice.

Linux only: epoll waits whole milliseconds, which is too coarse, so a timerfd wakes it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_NS: Final = 1_000_000_000
#: Chunks that wait for a connection to the engine, or for their time, are never held back; far beyond any request.
_BACKLOG: Final = 1024


@contextmanager
def slowed(url: str, rtt_ms: float) -> Iterator[str]:
    """Put a proxy before a server.

    The proxy dies with the thread that enters the block, at the latest; let it be the main one.

    Args:
        url: of the server, with a port.
        rtt_ms: the round trip, in milliseconds. 0: no proxy.

    Yields:
        The URL of the proxy.

    Raises:
        ValueError: if the round trip is negative.
        RuntimeError: if the proxy does not start.
    """
    if rtt_ms < 0:
        raise ValueError(f"a round trip of {rtt_ms} ms")
    if rtt_ms == 0:
        yield url
        return
    parts = urlsplit(url)
    arguments = [str(os.getpid()), str(parts.hostname), str(parts.port), str(rtt_ms / 1000)]
    with subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-I", "-S", __file__, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only its parent, which still needs it to end in order
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - for mypy
            port = process.stdout.readline().decode().strip()
            if not port:
                raise RuntimeError("the slowing proxy did not start; what it said stands above")
            yield parts._replace(netloc=f"{_LOOPBACK}:{port}").geturl()
        finally:
            process.kill()


# In the process of the proxy. It imports the standard library only.


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class _PreciseSelector(selectors.EpollSelector):
    """Waits to the microsecond: a timer is one of the files it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)  # CLOCK_MONOTONIC
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.register(self._timer, selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            seconds, nanoseconds = divmod(max(1, int(timeout * _NS)), _NS)
            first = _Timer(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
            self._libc.timerfd_settime(self._timer, 0, ctypes.byref(first), None)
            timeout = None
        ready = super().select(timeout)
        others = [each for each in ready if each[0].fd != self._timer]
        if len(others) < len(ready):
            os.read(self._timer, 8)  # or it would stay ready
        return others


class _Side(asyncio.Protocol):
    """One of the two connections of a client; sends to the other one, later, what it receives."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._not_before = 0.0
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[bytes | None] = deque()  # on their way; None: the end
        self._due = 0
        self._target: asyncio.Transport | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def deliver_to(self, target: asyncio.Transport) -> None:
        """Send to this connection from now on, also what was due before."""
        self._target = target
        due, self._due = self._due, 0
        for _ in range(due):
            self._deliver()

    def hold_until(self, when: float) -> None:
        """Deliver nothing before then."""
        self._not_before = when

    def data_received(self, data: bytes) -> None:
        self._send_later(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._send_later(None)

    def _send_later(self, chunk: bytes | None) -> None:
        self._chunks.append(chunk)
        self._loop.call_at(max(self._loop.time() + self._delay_s, self._not_before), self._deliver)

    def _deliver(self) -> None:
        """Send the oldest chunk: timers of the same instant may ring in any order."""
        if self._target is None:
            self._due += 1
            return
        chunk = self._chunks.popleft()
        if chunk is None:
            self._target.close()
        elif not self._target.is_closing():
            self._target.write(chunk)


class _Client(_Side):
    """The connection from a client; opens the one to the server."""

    def __init__(self, server: tuple[str, int], rtt_s: float) -> None:
        super().__init__(rtt_s / 2)
        self._server = server
        self._rtt_s = rtt_s
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.hold_until(self._loop.time() + 1.5 * self._rtt_s)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        assert self.transport is not None  # noqa: S101 - it is being made
        try:
            to_server, back = await self._loop.create_connection(lambda: _Side(self._rtt_s / 2), *self._server)
        except OSError:
            self.transport.abort()
            return
        back.deliver_to(self.transport)
        self.deliver_to(to_server)


async def _serve(server: tuple[str, int], rtt_s: float) -> None:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Client(server, rtt_s), _LOOPBACK, 0, backlog=_BACKLOG)
    print(listening.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - slowed() reads it
    await listening.serve_forever()


def _main() -> None:
    parent, host, port, rtt_s = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent is gone already")
    loop = asyncio.SelectorEventLoop(_PreciseSelector())
    loop.run_until_complete(_serve((host, int(port)), float(rtt_s)))


if __name__ == "__main__":
    _main()
