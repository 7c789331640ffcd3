"""A proxy on the loopback that makes an engine as far away as DynamoDB is.

    with slowed(engine_url, rtt_ms=5) as url:
        ...

It runs in a process of its own, and delays what it receives, in each direction, by half of the round trip. Each chunk
is sent on when its own time has come, in order, on any number of connections at once, without a limit of bandwidth,
and with TCP_NODELAY on both sides. What a client sends first arrives one round trip later than that, because a real
connection takes one to open, while the kernel accepts this one at once. Who opens connections once and reuses them,
as botocore does, does not notice.

Linux only. It waits by `select`, as epoll waits whole milliseconds, which is too coarse: some 500 connections at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import selectors
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
#: Chunks that wait for a connection to the engine, or for their time, are never held back; far beyond any request.
_BACKLOG: Final = 1024
_CHUNK: Final = 65_536


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


async def _serve(server: tuple[str, int], rtt_s: float) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected = asyncio.get_running_loop().time() + 1.5 * rtt_s
        try:
            answers, to_server = await asyncio.open_connection(*server)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(
            _carry(reader, to_server, rtt_s / 2, not_before=connected), _carry(answers, writer, rtt_s / 2)
        )

    listening = await asyncio.start_server(forward, _LOOPBACK, 0, backlog=_BACKLOG)
    print(listening.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - slowed() reads it
    await listening.serve_forever()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, *, not_before: float = 0.0
) -> None:
    """Send on what arrives, each chunk when its own time has come, and at last the end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        data = b"?"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            chunks.put_nowait((max(loop.time() + delay_s, not_before), data))

    receiving = loop.create_task(receive())
    while not receiving.done() or not chunks.empty():
        due, data = await chunks.get()
        await asyncio.sleep(due - loop.time())
        if data and not writer.is_closing():
            writer.write(data)
    writer.close()


def _main() -> None:
    parent, host, port, rtt_s = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent is gone already")
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve((host, int(port)), float(rtt_s)))


if __name__ == "__main__":
    _main()
