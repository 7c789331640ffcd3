"""Twins of a model's connection for requests of this package, and what a fork does to connections."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any, Final

from botocore.credentials import RefreshableCredentials
from pynamodb.connection import Connection

from pynamo_locking._io import runtime

_lock_connections: weakref.WeakKeyDictionary[Connection, dict[float, Connection]] = weakref.WeakKeyDictionary()


_guard = runtime.current.mutex()


#: In the place of a timeout: the twin that has the model's own.
_ONCE: Final = 0.0


#: PynamoDB keeps ten connections; a process with many waiters would throw the others away again.
_POOL_SIZE: Final = 50


def lock_connection(connection: Connection, request_timeout: float) -> Connection:
    """Return a twin of a model's connection for lock requests: short timeouts, no hidden retries.

    The library repeats its own requests, each of which recognises its earlier attempt. A retry inside
    botocore would hold up a heartbeat for minutes with PynamoDB's defaults.
    """
    with _guard:
        twins = _lock_connections.setdefault(connection, {})
        if request_timeout not in twins:
            twins[request_timeout] = _twin(connection, request_timeout)
        return twins[request_timeout]


def single_attempt(connection: Connection) -> Connection:
    """Return a twin of a model's connection without hidden retries, for writes that must not be sent twice."""
    with _guard:
        twins = _lock_connections.setdefault(connection, {})
        if _ONCE not in twins:
            twins[_ONCE] = _without_retries(connection)
        return twins[_ONCE]


def client_of(connection: Connection) -> Any:
    """Return a connection's client. PynamoDB would make one in each thread that comes first, for 30 ms each."""
    if getattr(connection, "_client", None) is None:  # a stand-in of a test may have none
        with _guard:
            return connection.client
    return connection.client


def _twin(connection: Connection, request_timeout: float) -> Connection:
    twin = _without_retries(connection)
    twin._connect_timeout_seconds = request_timeout
    twin._read_timeout_seconds = request_timeout
    twin._max_pool_connections = max(_POOL_SIZE, connection._max_pool_connections)
    return twin


def _without_retries(connection: Connection) -> Connection:
    twin = copy.copy(connection)
    twin._client = None
    twin._retry_configuration = {"total_max_attempts": 1, "mode": "standard"}
    return twin


# A connection that was used before a fork shares its sockets with the parent and all of its children, and each reads
# the answers of the others. PynamoDB has no place to hear of new connections, so its constructor is wrapped: that costs
# nothing later, and also finds those that an application makes and hands to PynamoDB's own classes.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _note_connections() -> None:
    make = Connection.__init__

    @functools.wraps(make)
    def make_and_note(self: Connection, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _connections.add(self)

    Connection.__init__ = make_and_note  # type: ignore[method-assign]


def note(connection: object) -> None:
    """Note a connection that an application hands in, if it is one: it may be older than the import of this package."""
    with _guard:
        if isinstance(connection, Connection) and connection not in _connections:
            _connections.add(connection)
            if runtime.forks:
                _begin_anew(connection)


def _begin_anew(connection: Connection) -> None:
    """Make a connection and its twins open sockets of their own with their next request."""
    local: Any = getattr(connection, "_local", None)
    # Credentials that botocore fetches have a mutex and sockets as well.
    if isinstance(getattr(getattr(local, "session", None), "_credentials", None), RefreshableCredentials):
        local = type(local)()
    for each in (connection, *_lock_connections.get(connection, {}).values()):
        each._client = None
        each._local = local


def _forget_after_fork() -> None:
    """Leave the parent's mutex and sockets alone in a child process, also in locks made before the fork."""
    global _guard  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _guard = runtime.current.mutex()
    for connection in [*_connections, *_lock_connections]:
        _begin_anew(connection)


_note_connections()


runtime.after_fork(_forget_after_fork)
