"""Clients of connections: who makes them."""

from __future__ import annotations

from pynamo_locking._io import transport


class Fresh:
    """A connection that makes its client when it is first asked for it, as PynamoDB's does."""

    def __init__(self):
        self._client = None
        self.made_alone = []

    @property
    def client(self):
        if self._client is None:
            self.made_alone.append(transport._guard._is_owned())
            self._client = object()
        return self._client


def test_a_client_is_made_by_one_thread_at_a_time():
    """Under the guard, so that threads which come at the same time get the first one's; and once."""
    connection = Fresh()

    assert transport.client_of(connection) is transport.client_of(connection)
    assert connection.made_alone == [True]
