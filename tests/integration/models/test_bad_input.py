"""Whatever cannot work says so clearly, in an error of this package, and leaves nothing behind."""

from __future__ import annotations

import pytest

from pynamo_locking import LockSettings, NamedLock, transactional
from pynamo_locking.exceptions import ConfigurationError, ItemNotFound, LockingError, LockTimeout
from pynamo_locking.transactions import Transaction
from tests.support.models import Account, Device, Document, Locks, declare, meta
from tests.support.transaction_models import Purse, Transactions


def test_a_missing_item(cheap):
    """Locking an item that does not exist: PynamoDB's DoesNotExist, and no item is made."""
    cheap.bind(Account)
    for take in (Account.locked("no").acquire, Account.edit("no").__enter__):
        with pytest.raises(Account.DoesNotExist, match="no such item") as caught:
            take()
        assert isinstance(caught.value, ItemNotFound)
    assert list(Account.scan()) == []


def test_a_missing_table(cheap):
    """The error names the table and what to do."""
    cheap.bind(Account, Locks)
    for model in (Account, Locks):
        model.delete_table()
        for call in (model.locked("a").acquire, lambda model=model: model.lock_state("a")):
            with pytest.raises(ConfigurationError, match=r"there is no table .*create_table") as caught:
                call()
            assert caught.value.cause_response_code == "ResourceNotFoundException"


def test_a_missing_lock_table(cheap):
    """The same for the table of locks, while the item is left as it was."""
    cheap.bind(Locks, Device)
    Device("d", state="on").save()
    Locks.delete_table()
    with pytest.raises(ConfigurationError, match="there is no table"):
        Device.edit("d").__enter__()
    assert Device.get("d").version == 1


def test_an_item_with_no_room_for_an_entry(engine):
    """An item near 400 KB cannot take an entry: the error says why and what to do, the item stays as it is."""
    engine.bind(Account)
    limit = 405_000 if engine.is_moto else 400 * 1024
    Account("a", note="x" * (limit - 160)).save()
    with pytest.raises(ConfigurationError, match=r"400 KB.*lock_table"):
        Account.locked("a").acquire()
    assert Account.lock_state("a").entries == ()
    assert not Account.lock_state("a").exists


def many_attributes(count):
    """Make a model with an embedded lock and so many attributes."""
    return declare("Wide", hash_key="pk", lock=True, texts=" ".join(f"a{n}" for n in range(count)))


def test_a_model_with_more_attributes_than_an_update_holds(concurrent_engine):
    """300 attributes fit into one update, 400 do not: refused before the request, the lock given back."""
    fits = concurrent_engine.bind(many_attributes(300))
    fits("k", **{f"a{n}": "v" for n in range(300)}).save()
    with fits.edit("k") as item:
        item.a7 = "new"
    assert fits.get("k").a7 == "new"
    wide = concurrent_engine.bind(many_attributes(400))
    with pytest.raises(ConfigurationError, match="4096"):
        wide("k", **{f"a{n}": "v" for n in range(400)}).save()
    with wide.batch_write(unguarded=True) as batch:
        batch.save(wide("k"))
    with pytest.raises(ConfigurationError, match="attributes"), wide.edit("k") as item:
        for n in range(400):
            setattr(item, f"a{n}", "x")
    assert wide.lock_state("k").entries == ()


def test_an_endpoint_that_is_not_there():
    """Without a server there is an end to trying, and the error says what was tried."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    lost = declare("Lost", NamedLock, region="us-east-1", host="http://127.0.0.1:9", **keys)
    with pytest.raises(LockTimeout, match="no answer from DynamoDB"):
        lost.locked("a", wait=0.05).acquire()
    with pytest.raises(LockingError, match="no answer"):
        lost.lock_state("a")


def test_a_lock_table_elsewhere_is_refused(cheap):
    """No transaction could include both tables."""
    cheap.bind(Locks, Document)

    class Far(Document):
        Meta = meta(
            "far", region="eu-central-1", host="http://127.0.0.1:9", lock_settings=LockSettings(), lock_table=Locks
        )

        mutex = None

    with pytest.raises(ConfigurationError, match=r"same Meta\.region"):
        Far.locked("f", 1)


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, None])
def test_numbers_of_things_are_checked(memory, number):
    """Bad input is a ConfigurationError, before anything is sent."""
    memory.bind(Purse, Transactions)
    for call in (
        lambda: Purse.modify("p0", lambda purse: None, attempts=number),
        lambda: Purse.guarded_batch(workers=number),
        lambda: transactional(attempts=number)(lambda tx: None),
        lambda: Transactions.sweep(segments=number),
        lambda: Transaction(workers=number),
    ):
        with pytest.raises(ConfigurationError, match="not "):
            call()
