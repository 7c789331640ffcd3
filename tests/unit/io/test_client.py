"""Clients of connections: who makes them, and what a forked child does with those of its parent."""

from __future__ import annotations

import copy
from unittest.mock import MagicMock, Mock

import botocore.session
import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from pynamodb.connection import Connection
from pynamodb.models import Model

from pynamo_locking._io import client as client_module
from pynamo_locking._io import runtime
from pynamo_locking._models.batch_writes import TransactWrite
from tests.support.models import declare


class Fresh:
    """A connection that makes its client when it is first asked for it, as PynamoDB's does."""

    def __init__(self):
        self._client = None
        self.made_alone = []

    @property
    def client(self):
        if self._client is None:
            self.made_alone.append(client_module._mutex._is_owned())
            self._client = object()
        return self._client


def test_a_client_is_made_by_one_thread_at_a_time():
    """Under the mutex, so that threads which come at the same time get the first one's; and once."""
    connection = Fresh()

    assert client_module.client_of(connection) is client_module.client_of(connection)
    assert connection.made_alone == [True]


@pytest.fixture
def used():
    """A connection that has made requests."""
    connection = Connection(region="us-east-1")
    connection._client, connection._local.session = object(), botocore.session.Session()
    return connection


def test_a_child_lets_go_of_every_connection(used):
    """Of those that were noted, and of their twins; one that only PynamoDB uses is not ours."""
    other = Connection(region="us-east-1")
    other._client = client = object()
    twins = [client_module.single_attempt(used), client_module.lock_connection(used, 1.0)]
    for twin in twins:
        twin._client = object()

    client_module._forget_after_fork()

    assert [each._client for each in (used, *twins)] == [None] * 3
    assert other._client is client


def test_a_restored_process_keeps_its_clients(used):
    """They take long to make. Their sockets are closed, those of twins as well: the other end has forgotten them."""
    twins = [client_module.single_attempt(used), client_module.lock_connection(used, 1.0)]
    clients = [Mock() for _ in range(2)]
    for each, client in zip((used, twins[0]), clients, strict=True):
        each._client = client

    client_module._close_after_restore()

    assert [each._client for each in (used, *twins)] == [*clients, None]
    assert all(client.close.called for client in clients)


@pytest.mark.parametrize(("forks", "is_kept"), [(0, True), (1, False)])
def test_a_connection_that_is_handed_in(used, monkeypatch, forks, is_kept):
    """One that is new to us may have been used before the fork. It is let go of once, and only in a child."""
    client = used._client
    monkeypatch.setattr(runtime, "forks", forks)

    TransactWrite(connection=used)
    assert (used._client is client) is is_kept

    used._client = again = object()
    TransactWrite(connection=used)
    assert used._client is again


@pytest.mark.parametrize(("forks", "is_kept"), [(0, True), (1, False)])
def test_the_connection_of_a_plain_model(monkeypatch, forks, is_kept):
    """That of the first model is taken as one that is handed in."""
    plain = declare("Plain", Model, region="us-east-1")
    connection, transaction = plain._get_connection().connection, TransactWrite()
    connection._client = client = Mock()
    monkeypatch.setattr(runtime, "forks", forks)

    transaction.condition_check(plain, "a", condition=plain.key.exists())
    transaction._leave()
    assert (connection._client is client) is is_kept


@pytest.mark.parametrize("stand_in", [None, object(), MagicMock(), Mock(spec=Connection)])
def test_a_stand_in_for_a_connection(stand_in, monkeypatch):
    """A test of an application may hand in anything, also in a forked child."""
    TransactWrite(connection=stand_in)
    client_module._close_after_restore()
    client_module._forget_after_fork()
    monkeypatch.setattr(runtime, "forks", 1)
    TransactWrite(connection=Mock(spec=Connection))


def refreshed():
    return RefreshableCredentials("key", "secret", "token", None, dict, "made-up")


@pytest.mark.parametrize(("credentials", "is_kept"), [(Credentials("key", "secret"), True), (refreshed(), False)])
def test_a_child_keeps_a_session(used, credentials, is_kept):
    """Reading it again takes long. But credentials that botocore fetches bring a mutex and sockets of the parent."""
    session, twin = used._local.session, client_module.single_attempt(used)
    session._credentials = credentials

    client_module._forget_after_fork()

    assert (getattr(used._local, "session", None) is session) is is_kept
    assert twin._local is used._local


def test_the_classes_of_pynamodb_are_as_they_were():
    """A connection is seen by its own class; the test in `tests/integration/whole` compares all of them."""
    assert Connection.dispatch.__module__ == Connection.__init__.__module__ == "pynamodb.connection.base"
    assert copy.copy(Connection(region="here")).region == "here"


def test_a_connection_is_one_of_ours_once_it_is_noted(used):
    """Another class of the application keeps its own."""

    class Mine(Connection):
        pass

    mine = Mine(region="us-east-1")
    for each in (used, mine):
        client_module.note(each)

    assert (type(used), type(mine)) == (client_module.SeenConnection, Mine)
    assert isinstance(client_module.single_attempt(used), client_module.SeenConnection)
