"""The in-memory DynamoDB as an application's tests meet it; what it answers is in tests/contract."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from botocore.exceptions import ClientError
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError
from pynamodb.models import Model

from pynamo_locking._locks import context
from pynamo_locking_testing import MemoryClient, MemoryDynamoDB
from tests.support.models import declare

Stock = declare("Stock", Model, table_name="stock", hash_key="pk", numbers="n")
Lockable = declare("Lockable", hash_key="pk", lock=True)


@pytest.fixture
def database():
    """A database in use."""
    with MemoryDynamoDB() as database:
        yield database


def test_each_is_empty():
    """A model that was used with one finds no table in the next."""
    for n in (1, 2):
        with MemoryDynamoDB():
            assert not Stock.exists()
            Stock.create_table()
            Stock("a", n=n).save()
            assert [item.n for item in Stock.scan()] == [n]


def test_it_can_be_used_again():
    """It keeps what it has."""
    database = MemoryDynamoDB()
    with database:
        Stock.create_table()
        Stock("a").save()
    with database:
        assert Stock.count() == 1


def test_there_are_no_other_methods(database):
    """A misspelt operation is an AttributeError, as with boto3."""
    with pytest.raises(AttributeError):
        database.client().put_items  # noqa: B018


def test_errors_are_botocores(database):
    """By code, from the client's exceptions, and wrapped by PynamoDB as ever."""
    Stock.create_table()
    Stock("a").save()
    client = database.client()
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as refusal:
        client.put_item(TableName="stock", Item={"pk": {"S": "a"}}, ConditionExpression="attribute_not_exists(pk)")
    assert isinstance(refusal.value, ClientError)
    with pytest.raises(PutError) as error:
        Stock("a").save(Stock.pk.does_not_exist())
    assert error.value.cause_response_code == "ConditionalCheckFailedException"


def test_clients_can_be_told_apart():
    """`client_for` gives each connection its own."""

    class Two(MemoryDynamoDB):
        def client_for(self, connection):
            return other if connection is second else super().client_for(connection)

    first, second = Connection(region="us-east-1"), Connection(region="us-east-1")
    with Two() as database:
        other = MemoryClient(database)
        assert first.client is database.client()
        assert second.client is other


def test_locks_stay_within_its_block():
    """A lock that a test forgot guards nothing in the next database, nor a lock from before in this one."""
    before = context.held_by_context.get()
    for _ in range(2):
        with MemoryDynamoDB():
            Lockable.create_table()
            Lockable("a").save()
            Lockable.locked("a", heartbeat=False).acquire()
            forgotten = context.held_by_context.get()
        assert context.held_by_context.get() == before
    context.held_by_context.set(forgotten)
    try:
        with MemoryDynamoDB():
            Lockable.create_table()
            Lockable("a").save()
            assert not Lockable.lock_state("a").holders
        assert context.held_by_context.get() == forgotten
    finally:
        context.held_by_context.set(before)


def test_locks_that_outlive_its_block_are_ended():
    """With a warning that names those with a heartbeat, which would ask AWS from now on."""
    locks = [Lockable.locked("a", heartbeat=False), Lockable.locked("b")]
    with pytest.warns(ResourceWarning) as warned, MemoryDynamoDB():  # noqa: PT031
        Lockable.create_table()
        for lock in locks:
            Lockable(lock.name.rpartition("/")[2]).save()
            lock.acquire()
    assert [("/b" in str(each.message), "/a" in str(each.message)) for each in warned] == [(True, False)]
    for lock in locks:
        assert not lock.is_held
        lock.release()  # without a request


FORK = """
import os, signal, threading
from pynamo_locking import NamedLock
from pynamo_locking_testing import MemoryDynamoDB, memory

class Locks(NamedLock):
    class Meta:
        table_name = "locks"

with MemoryDynamoDB() as database:
    Locks.create_table()
    inside, forking = threading.Event(), threading.Event()

    served, *arguments = memory._OPERATIONS["GetItem"]

    def serve(store, kwargs):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            forking.wait(60)
        return served(store, kwargs)

    memory._OPERATIONS["GetItem"] = (serve, *arguments)
    os.register_at_fork(before=forking.set)  # runs before those that were registered earlier
    threading.Thread(target=Locks.lock_state, args=("a",), daemon=True).start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # if the database is locked for ever
        Locks.lock_state("b")
        os._exit(0)
    print("child", os.waitpid(child, 0)[1])
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process forks here")
def test_a_child_has_a_database_of_its_own() -> None:
    """Also if it is forked while another thread is in the middle of a request, whose mutex it would inherit."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert result.stdout == "child 0\n"
