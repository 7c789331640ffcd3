"""A lock that outlives its mock of AWS: nothing of it is sent to AWS."""

from __future__ import annotations

from typing import Any

import pytest
from moto import mock_aws

from tests.support.models import declare
from tests.support.wire import count_requests
from tests.support.workers import Plain

Item: Any = declare("Mocked", lock=True, version=True)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(Item, "_connection", None)
    monkeypatch.setattr(Item.Meta, "region", "eu-west-1", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


def test_a_lock_that_outlives_its_mock(caplog):
    """It is over: neither its heartbeat nor a release sends a request, and the log says why."""
    with mock_aws():
        Item.create_table(billing_mode="PAY_PER_REQUEST")
        Item("a").save()
        lock = Item.locked("a").acquire()
        assert lock.is_held
    held = lock._handle.entry
    with count_requests() as requests:
        assert not held.is_allowed()  # what the heartbeat asks before it renews
        lock.release()
    assert requests.total == 0
    assert "when its mock of AWS ended" in caplog.text
    with mock_aws():
        Item.create_table(billing_mode="PAY_PER_REQUEST")
        Item("a").save()
        Item.get("a").save()


def test_the_end_of_a_block_that_outlives_its_mock():
    """The release sends nothing to AWS, even if the heartbeat has not come meanwhile."""
    with mock_aws():
        Item.create_table(billing_mode="PAY_PER_REQUEST")
        Item("a").save()
        lock = Item.locked("a").acquire()
    with count_requests() as requests:
        lock.release()
    assert requests.total == 0


def test_a_mock_that_begins_in_a_block(memory):
    """It is of another service, perhaps: a lock of a table on another host stays."""
    memory.bind(Plain)
    Plain("a").save()
    with Plain.locked("a") as lock:
        with mock_aws():
            lock.renew()  # it asks what the heartbeat asks
            assert lock.is_held
        assert lock.is_held
