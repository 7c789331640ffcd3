"""Models whose items expire, beside PynamoDB's."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pynamodb.exceptions import TableError

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import StaleVersion
from tests.support.versioned_models import EVERYBODY, OURS, connection_of, saved, session


@pytest.mark.parametrize("bases", EVERYBODY.values(), ids=EVERYBODY.keys())
def test_second_create_table_with_a_time_of_expiry(engine, bases):
    """PynamoDB's option for engines that refuse to enable TTL twice works for all; DynamoDB Local is one."""
    model = engine.bind(session(bases))
    if engine.name == "dynamodb-local":  # where `bind` leaves it off
        model.create_table(billing_mode="PAY_PER_REQUEST")
        with pytest.raises(TableError):
            model.create_table(billing_mode="PAY_PER_REQUEST")
    model.create_table(billing_mode="PAY_PER_REQUEST", ignore_update_ttl_errors=True)


@pytest.mark.parametrize("bases", OURS.values(), ids=OURS.keys())
def test_ours_expired_item_counts_as_absent(engine, bases):
    """It is not read, and a create replaces it, by save and in a transaction; an old copy does not."""
    model = engine.bind(session(bases))
    for pk, create in (("a", lambda item: item.save()), ("b", transacted)):
        old = saved(model, pk, total=1, expires=timedelta(seconds=-100))
        with pytest.raises(model.DoesNotExist):
            model.get(pk)
        assert model.get(pk, include_expired=True).total == 1
        with pytest.raises(StaleVersion):
            old.save()
        create(model(pk, total=2))
        found = model.get(pk)
        assert (found.total, found.version, found.expires) == (2, 1, None)
        with pytest.raises(StaleVersion):
            old.save()


def transacted(item):
    """Save an item in a transaction."""
    with TransactWrite(connection=connection_of(type(item))) as transaction:
        transaction.save(item)
