"""Where the models of an application are: what Flask and Django set in their Meta."""

from __future__ import annotations

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, LockSettings, NamedLock, TransactionTable, VersionAttribute
from pynamo_locking.contrib import _frameworks
from pynamo_locking.exceptions import ConfigurationError


def models():
    """A model with tables of locks and of transactions, made anew for each test."""

    class Locks(NamedLock):
        class Meta:
            table_name = "locks"

    class Transactions(TransactionTable):
        class Meta:
            table_name = "transactions"

    class Item(LockableModel):
        class Meta:
            table_name = "items"
            lock_table = Locks
            transaction_table = Transactions

        key = UnicodeAttribute(hash_key=True)
        value = NumberAttribute(default=0)
        version = VersionAttribute()

    return Item, Locks, Transactions


def test_a_configuration_reaches_the_tables_that_models_name():
    """Place, timeouts, prefix and settings, each model once."""
    item, locks, transactions = models()
    settings = {"HOST": "http://h", "REGION": "eu-west-1", "TABLE_PREFIX": "t-", "READ_TIMEOUT": 7, "MAX_RETRIES": None}
    _frameworks.configure([item, item], settings | {"LOCK_SETTINGS": {"wait": 5}})

    assert [model.Meta.table_name for model in (item, locks, transactions)] == ["t-items", "t-locks", "t-transactions"]
    for model in (item, locks, transactions):
        assert (model.Meta.host, model.Meta.region, model.Meta.read_timeout_seconds) == ("http://h", "eu-west-1", 7)
        assert model.Meta.lock_settings == LockSettings(wait=5)
        connection = model._get_connection()
        assert (connection.table_name, connection.connection.host) == (model.Meta.table_name, "http://h")
    assert item.Meta.max_retry_attempts == 3


def test_the_same_again_changes_nothing():
    """Several applications of one process agree, and the prefix is put before the name once."""
    item, _, _ = models()
    for _ in range(3):
        _frameworks.configure([item], {"TABLE_PREFIX": "t-"})
    assert item.Meta.table_name == "t-items"


def test_another_place_is_refused():
    """For a model class cannot be in two places at once; after `reset` it is where its class says."""
    item, locks, _ = models()
    _frameworks.configure([item], {"TABLE_PREFIX": "t-", "LOCK_SETTINGS": {"wait": 5}})
    _frameworks.configure([item], {"TABLE_PREFIX": "t-"})  # says nothing of the settings
    for other in ({"TABLE_PREFIX": "u-"}, {}, {"TABLE_PREFIX": "t-", "LOCK_SETTINGS": {"wait": 6}}):
        with pytest.raises(ConfigurationError, match="configured otherwise"):
            _frameworks.configure([item], other)
    assert (item.Meta.table_name, item.lock_settings().wait) == ("t-items", 5)
    _frameworks.reset([item])
    assert (item.Meta.table_name, locks.Meta.table_name, item.lock_settings()) == ("items", "locks", LockSettings())
    _frameworks.configure([item], {"TABLE_PREFIX": "u-"})
    assert item.Meta.table_name == "u-items"


def test_a_model_in_use_is_not_moved():
    """It may hold locks where it was."""
    item, _, _ = models()
    item._get_connection()
    for other in ({"TABLE_PREFIX": "t-"}, {"HOST": "http://h"}):
        with pytest.raises(ConfigurationError, match="was used before"):
            _frameworks.configure([item], other)
    assert (item.Meta.table_name, item.Meta.host) == ("items", None)
    _frameworks.configure([item], {"LOCK_SETTINGS": {"wait": 5}})  # this moves nothing
    assert item.lock_settings().wait == 5


def test_a_model_that_was_used_is_moved_after_a_reset():
    """Its requests go to the new place: a connection to the old one is forgotten."""
    item, _, _ = models()
    for host in ("http://one", "http://other"):
        _frameworks.configure([item], {"HOST": host})
        assert item._get_connection().connection.host == host
        _frameworks.reset([item])


def test_settings_of_a_model_are_its_own():
    """The configuration fills a gap."""

    class Quick(LockableModel):
        class Meta:
            table_name = "quick"
            lock_settings = LockSettings(wait=1)

        key = UnicodeAttribute(hash_key=True)
        version = VersionAttribute()
        lock = LockAttribute()

    _frameworks.configure([Quick], {"LOCK_SETTINGS": {"wait": 5}})
    assert Quick.lock_settings().wait == 1
    with pytest.raises(ConfigurationError, match="LOCK_SETTINGS"):
        _frameworks.configure([models()[0]], {"LOCK_SETTINGS": {"weight": 5}})
