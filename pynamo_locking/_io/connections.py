"""Copies of a model's connection for requests of this package, and what a fork does to connections."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any, Final

from botocore.credentials import RefreshableCredentials
from pynamodb.connection import Connection

from pynamo_locking._io import runtime

_lock_connections: weakref.WeakKeyDictionary[Connection, dict[float, Connection]] = weakref.WeakKeyDictionary()
_mutex = runtime.current.mutex()

#: Stands for the timeout of the twin that keeps the model's own.
_ONCE: Final = 0.0

#: PynamoDB keeps ten connections; a process with many waiters needs more, and would open them again and again.
_POOL_SIZE: Final = 50


def lock_connection(connection: Connection, request_timeout: float) -> Connection:
    """Return a twin of a model's connection for lock requests: short timeouts, no hidden retries.

    The package repeats its own requests, each of which recognises its earlier attempt. With PynamoDB's defaults, a
    retry inside botocore would delay a heartbeat for minutes.
    """
    return _twin(connection, request_timeout)


def single_attempt(connection: Connection) -> Connection:
    """Return a twin of a model's connection without hidden retries, for writes that must not be sent twice."""
    return _twin(connection, _ONCE)


def client_of(connection: Connection) -> Any:
    """Return a connection's client. PynamoDB would make one for each thread that comes before the first is made."""
    if getattr(connection, "_client", None) is None:  # a test's substitute may have none
        with _mutex:
            return connection.client
    return connection.client


def _twin(connection: Connection, timeout: float) -> Connection:
    with _mutex:
        twins = _lock_connections.setdefault(connection, {})
        if timeout not in twins:
            twin = copy.copy(connection)
            twin._client = None
            twin._retry_configuration = {"total_max_attempts": 1, "mode": "standard"}
            if timeout != _ONCE:
                twin._connect_timeout_seconds = twin._read_timeout_seconds = timeout
                twin._max_pool_connections = max(_POOL_SIZE, connection._max_pool_connections)
            twins[timeout] = twin
        return twins[timeout]


# A connection that was used before a fork shares its sockets with the parent and all of its children, so a process
# could read another's answers. PynamoDB has no hook for new connections, so its constructor is wrapped. That also finds
# the connections that an application makes and gives to PynamoDB's own classes.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


_make = Connection.__init__


@functools.wraps(_make)
def _make_and_note(self: Connection, *args: Any, **kwargs: Any) -> None:
    _make(self, *args, **kwargs)
    _connections.add(self)


Connection.__init__ = _make_and_note  # type: ignore[method-assign]


def note(connection: object) -> None:
    """Note a connection from an application, if it is one: it may be older than the import of this package."""
    with _mutex:
        if isinstance(connection, Connection) and connection not in _connections:
            _connections.add(connection)
            if runtime.forks:
                _begin_anew(connection)


def _begin_anew(connection: Connection) -> None:
    """Let a connection and its twins open their own sockets for the next request."""
    local: Any = getattr(connection, "_local", None)
    # Credentials that botocore fetches have a mutex and sockets as well.
    if isinstance(getattr(getattr(local, "session", None), "_credentials", None), RefreshableCredentials):
        local = type(local)()
    for each in (connection, *_lock_connections.get(connection, {}).values()):
        each._client = None
        each._local = local


def _forget_after_fork() -> None:
    """Stop using the parent's mutex and sockets in a child process, also in locks made before the fork."""
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    for connection in [*_connections, *_lock_connections]:
        _begin_anew(connection)


def _close_after_restore() -> None:
    """Close the sockets of a restored process, whose peers have forgotten them; clients open new ones.

    The clients stay: a snapshot is taken to spare a process the making of them.
    """
    for connection in [*_connections, *_lock_connections]:
        for each in (connection, *_lock_connections.get(connection, {}).values()):
            if client := getattr(each, "_client", None):  # a test's substitute may have none
                client.close()


runtime.after_fork(_forget_after_fork, restored=_close_after_restore)
