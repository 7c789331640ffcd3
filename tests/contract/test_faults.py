"""The fault helpers: what they lose is lost, on each engine, and nothing else is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import botocore.endpoint
import pytest
from botocore.exceptions import ConnectionClosedError
from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import PutError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from tests.contract.helpers import Table
from tests.support.models import declare
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from tests.engines.engine import Engine


Account = declare("Account", Model, hash_key="pk", version=VersionAttribute(), numbers="n")


def add_one(table: Table, pk: str = "a") -> None:
    table.update("ADD n :one", pk=pk, values={":one": 1})


def test_a_lost_response_is_of_an_applied_write(table: Table) -> None:
    """The client sees a closed connection, the table has the write, and the next request is served."""
    with on("UpdateItem").lose_response() as lost:
        with pytest.raises(ConnectionClosedError):
            add_one(table)
        assert table.get() == {"pk": "a", "n": 1}
        add_one(table)
    assert lost.hits == 1
    assert table.get() == {"pk": "a", "n": 2}


def test_a_lost_request_never_arrives(table: Table) -> None:
    """The client sees a closed connection, and nothing is written."""
    with on("UpdateItem", times=2).lose_request() as lost:
        for _ in range(2):
            with pytest.raises(ConnectionClosedError):
                add_one(table)
        assert table.get() is None
        add_one(table)
    assert lost.hits == 2
    assert table.get() == {"pk": "a", "n": 1}


def test_botocore_retries_what_was_lost(table: Table) -> None:
    """The retry is a second HTTP attempt: an unguarded ADD counts twice after a lost response, once
    after a lost request.
    """
    retrying = table.engine.client(attempts=3)
    request = table.request(update="ADD n :one", values={":one": 1})
    with on("UpdateItem").lose_response(), count_requests() as counted:
        retrying.update_item(**request)
    assert counted.by_operation == {"UpdateItem": 2}
    assert table.get() == {"pk": "a", "n": 2}
    with on("UpdateItem").lose_request(), count_requests() as counted:
        retrying.update_item(**request)
    assert counted.total == 2
    assert table.get() == {"pk": "a", "n": 3}


def test_only_the_operation_and_the_bodies_asked_for(table: Table) -> None:
    """Other operations, and bodies that do not match, pass."""
    with on("UpdateItem", where=lambda body: body["Key"] == {"pk": {"S": "b"}}).lose_request() as lost:
        add_one(table, "a")
        table.put("c")
        assert lost.hits == 0
        with pytest.raises(ConnectionClosedError):
            add_one(table, "b")
    assert [body["TableName"] for body in lost.bodies] == [table.name]


def test_counted_are_all_attempts_whatever_the_order_of_nesting(table: Table) -> None:
    """A counter sees lost requests too, also one that was opened first."""
    with count_requests() as outer, on("GetItem").lose_request(), count_requests() as inner:
        with pytest.raises(ConnectionClosedError):
            table.get()
        table.get()
        table.put()
    assert outer.by_operation == inner.by_operation == {"GetItem": 2, "PutItem": 1}
    assert [operation for operation, _ in inner.bodies] == ["GetItem", "GetItem", "PutItem"]


def test_nothing_stays_behind(table: Table) -> None:
    """Afterwards botocore is as it was, also after an exception."""
    endpoint: Any = botocore.endpoint.Endpoint
    original = endpoint._do_get_response
    with pytest.raises(ZeroDivisionError), on("UpdateItem").lose_response(), count_requests():
        raise ZeroDivisionError
    assert endpoint._do_get_response is original
    add_one(table)


def test_threads_share_the_number_of_losses(concurrent_table: Table) -> None:
    """Exactly ``times`` attempts are hit, whichever thread makes them, and each attempt is counted."""

    def attempt(number: int) -> bool:
        try:
            add_one(concurrent_table, f"k{number}")
        except ConnectionClosedError:
            return False
        return True

    with count_requests() as counted, on("UpdateItem", times=7).lose_response() as lost, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(40)))
    assert results.count(False) == lost.hits == 7
    assert counted.by_operation == {"UpdateItem": 40}


def test_a_pynamodb_save_meets_its_own_first_write(engine: Engine) -> None:
    """The flaw in section 5 of the design: a save that succeeded is reported as a conflict."""
    account_class = engine.bind(Account)
    account = account_class("a", n=1)
    with on("PutItem").lose_response(), pytest.raises(PutError) as refusal:
        account.save()
    assert refusal.value.cause_response_code == "ConditionalCheckFailedException"
    assert account_class.get("a").n == 1


def test_one_connection_only(engine: Engine) -> None:
    """With ``connection=``, other clients are left alone; a TableConnection is taken too."""
    account_class = engine.bind(Account)
    table = Table(engine)
    connection = account_class._get_connection()
    for given in (connection, connection.connection):
        with on("PutItem", to=given).lose_request() as lost, count_requests() as counted:
            table.put()
            assert lost.hits == 0
            account_class("b", n=1).save(add_version_condition=False)
        assert lost.hits == 1
        assert counted.by_operation["PutItem"] == 3


def test_a_transaction_resent_by_botocore(concurrent_engine: Engine) -> None:
    """botocore gives a transaction its token, so the second attempt is recognised by DynamoDB."""
    account_class = concurrent_engine.bind(Account)
    connection = account_class._get_connection().connection
    with (
        on("TransactWriteItems").lose_response(),
        count_requests() as counted,
        TransactWrite(connection=connection) as transaction,
    ):
        transaction.save(account_class("a", n=1))
    assert counted.by_operation == {"TransactWriteItems": 2}
    tokens = {body["ClientRequestToken"] for _, body in counted.bodies}
    assert len(tokens) == 1
    assert account_class.get("a").version == 1
