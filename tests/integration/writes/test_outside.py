"""Writes from outside of a lock, and transactions that meet a lock's own requests."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import OutcomeUnknown
from tests.support.parties import in_thread
from tests.support.wire import between_attempts, is_save, on

pytestmark = pytest.mark.core


def test_an_item_that_got_another_key_is_another_item(account):
    """It is written from outside; the lock of the first key stays what it is."""
    with account.locked("a") as lock:
        lock.item.account_id = "b"
        lock.item.save()
        assert not lock.lost.is_set()
        assert account.lock_state("a").holders[0].writes == 0
    assert account.get("b").balance == 100


def test_transactions_survive_a_conflict(account):
    """A heartbeat that touches an item at the same moment does not fail the transaction."""
    original = account._get_connection().connection.dispatch
    refusals = []

    def dispatch(operation, kwargs):
        if operation == "TransactWriteItems" and not refusals:
            refusals.append(kwargs["ClientRequestToken"])
            response = {
                "Error": {"Code": "TransactionCanceledException", "Message": "conflict"},
                "CancellationReasons": [{"Code": "TransactionConflict"}],
            }
            raise ClientError(response, operation)
        return original(operation, kwargs)

    connection = account._get_connection().connection
    with account.locked("a") as lock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "dispatch", dispatch)
        with TransactWrite(connection=connection) as write:
            write.update(lock.item, [account.balance.add(1)])
        assert write._client_request_token != refusals[0]
        refusals.clear()
        with TransactWrite(connection=connection, client_request_token=f"mine-{account.Meta.table_name}") as write:
            write.update(account.get("a"), [account.balance.add(1)])
        assert write._client_request_token == refusals[0], "a caller's own token is kept"
    assert account.get("a").balance == 102


def test_a_write_from_outside_that_was_repeated_is_not_called_refused(account):
    """Applied, answer lost, another party locks, the repetition is refused: the outcome is unknown."""
    item = account.get("a")
    item.balance = 77
    lock = account.locked("a")
    comes = between_attempts(lambda: in_thread(lock.acquire))
    with comes, on("UpdateItem", where=is_save).lose_response(), pytest.raises(OutcomeUnknown):
        item.save()
    assert account.get("a").balance == 77
    lock.release()
