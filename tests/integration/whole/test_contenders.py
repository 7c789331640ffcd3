"""The contenders of the benchmarks do what they are said to do, and the slowing proxy is slow."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.contenders import CONTENDERS, Place
from benchmarks.latency import slowed

#: In seconds; for what takes no time worth mentioning.
DEADLINE = 60
KEY = "k"
POSTGRESQL = "PostgreSQL FOR UPDATE"
#: PostgreSQL takes seconds to start.
SAFE = [name for name, kind in CONTENDERS.items() if kind.is_safe and name != POSTGRESQL]
#: Locks of others, whose leases this file watches; ours have tests of their own.
LEASES = ["ticket scheme (2020)", "AWS lock client's algorithm", "python-dynamodb-lock 0.9.1"]
ROOT = Path(__file__).resolve().parents[3]


#: Sockets, and moments that pass.
SLOWLY = pytest.mark.waits


@pytest.fixture
def place(dynoxide):
    """Where the contenders of one test have their tables."""
    if dynoxide.host is None:
        pytest.skip("the contenders take the URL of an engine")
    place = Place(dynoxide.host, f"{dynoxide.new_name('bench')}-")
    yield place
    client = dynoxide.client()
    for page in client.get_paginator("list_tables").paginate():
        for name in page["TableNames"]:
            if name.startswith(place.prefix):
                client.delete_table(TableName=name)


@pytest.fixture
def contend(place):
    """Return contenders by name, all closed in the end."""
    with contextlib.ExitStack() as stack:

        def contend(name, poll_s=0.01, place=place, **options):
            kind = CONTENDERS[name]
            if reason := kind.unavailable():
                pytest.skip(reason)
            contender = kind(place, poll_s=poll_s if kind.poll_s else None, **options)
            stack.callback(contender.close)
            return contender

        yield contend


def in_threads(act, threads=4, times=5):
    """Call it so often in so many threads; errors come out."""

    def work():
        for _ in range(times):
            act()

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work) for _ in range(threads)]:
            future.result(DEADLINE)


def is_over(condition):
    """Return whether it comes true before the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# The contenders


@pytest.mark.parametrize("name", SAFE)
def test_no_update_is_lost(contend, name):
    """Four threads count up the same item, and all of it is there."""
    contender = contend(name)
    contender.create([KEY, "another"])
    contender.add("another")  # makes the clients, which four threads would do four times
    in_threads(lambda: contender.add(KEY))
    assert (contender.total(KEY), contender.total("another")) == (20, 1)


def test_unprotected_loses_updates(contend, monkeypatch):
    """Two who have both read before either writes: one of the two updates is gone."""
    contender = contend("unprotected")
    contender.create([KEY])
    both_have_read, save = threading.Barrier(2), contender.counters.save

    def save_together(counter):
        both_have_read.wait(DEADLINE)
        return save(counter)

    monkeypatch.setattr(contender.counters, "save", save_together)
    in_threads(lambda: contender.add(KEY), threads=2, times=1)
    assert contender.total(KEY) == 1


def test_ticket_scheme_lets_two_in(contend):
    """The order of requests in docs/explanation/alternatives.md, on the scheme as it is measured."""
    scheme = contend("ticket scheme (2020)")
    scheme.create([KEY])
    first, second = scheme.take_number(), scheme.take_number()
    row_of_second = scheme.enter(KEY, second)
    assert scheme._is_first(KEY, row_of_second)
    row_of_first = scheme.enter(KEY, first)
    assert scheme._is_first(KEY, row_of_first)


@pytest.mark.parametrize("name", LEASES)
def test_a_lock_of_the_dead_is_taken_over(contend, name):
    """Who holds it and renews it no more loses it after its lease."""
    dead, other = (contend(name, lease_s=0.5) for _ in range(2))
    dead.create([KEY])
    with contextlib.ExitStack() as stack:
        stack.enter_context(dead.hold(KEY))
        dead.close()  # ends its renewals
        in_threads(lambda: other.add(KEY), threads=1, times=1)
    assert other.total(KEY) == 1


# The proxy


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it receives."""

    def handle(self):
        while data := self.request.recv(65_536):
            self.request.sendall(data)
        self.server.hung_up.release()


@pytest.fixture
def hung_up():
    """Counts the clients that have ended their connections to the server."""
    return threading.Semaphore(0)


@pytest.fixture
def echo(hung_up):
    """The URL of a server that sends back what it receives."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        server.hung_up = hung_up
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/path"
        server.shutdown()
        thread.join()


def connect(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), DEADLINE)


def is_closed(url):
    try:
        connect(url).close()
    except OSError:
        return True
    return False


def ask(connection, data=b"?"):
    """Send it and return what comes back, as much."""
    answer = b""
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    while len(answer) < len(data):
        answer += connection.recv(65_536)
    sender.join()
    return answer


def first_line_of_the_killed(script, *arguments):
    """Run a script in another process, kill it once it has printed a line, and return the line."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            return process.stdout.readline().decode().strip()
        finally:
            process.send_signal(signal.SIGKILL)


@SLOWLY
def test_proxy_delays(echo):
    """An answer takes the round trip at least, and the first one that of the connection as well."""
    with slowed(echo, 20) as url:
        moments = [time.monotonic()]  # each time begins before what it measures: a busy machine only makes it longer
        with connect(url) as connection:
            for _ in range(5):
                ask(connection)
                moments.append(time.monotonic())
    first, *others = [after - before for before, after in itertools.pairwise(moments)]
    assert first >= 0.04
    assert min(others) >= 0.02


@SLOWLY
def test_proxy_keeps_bytes_in_order(echo):
    """What is large comes back as it was, on several connections at once."""
    with slowed(echo, 2) as url, contextlib.ExitStack() as stack:

        def send():
            data = os.urandom(300_000)
            assert ask(stack.enter_context(connect(url)), data) == data

        in_threads(send, times=2)


@SLOWLY
def test_proxy_passes_the_end_on(echo, hung_up):
    """Who hangs up ends the server's connection, and no client waits for a server that is gone."""
    with slowed(echo, 2) as url:
        with connect(url) as connection:
            ask(connection)
        assert hung_up.acquire(timeout=DEADLINE)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with slowed(gone, 2) as url, connect(url) as connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.processes
def test_no_proxy_without_delay(echo):
    """Nothing is put between for a round trip of 0; below that is an error; the rest of the URL stays."""
    with slowed(echo, 0) as url:
        assert url == echo
    with pytest.raises(ValueError, match="-1 ms"), slowed(echo, -1):
        pass
    with slowed(echo, 1) as url:
        assert url != echo
        assert url.endswith("/path")
    assert is_closed(url)


SLOW = """
import sys, time
from benchmarks.latency import slowed
with slowed(sys.argv[1], 1) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_proxy_ends_with_its_process(echo):
    """A killed process takes its proxy along."""
    url = first_line_of_the_killed(SLOW, echo)
    assert url
    assert is_over(lambda: is_closed(url))
