"""What the extension for Starlette and FastAPI has of its own; what all frameworks share is in `test_frameworks`."""

import asyncio
from contextlib import contextmanager
from functools import partialmethod
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

from pynamo_locking import transaction
from pynamo_locking.contrib import fastapi
from pynamo_locking.contrib.starlette import PynamoLocking, aif_match, conditional, etag, if_match
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from pynamo_locking.transactions import AsyncTransaction, Transaction, current_transaction
from tests.integration.contrib.frameworks import PROBLEM
from tests.support.models import declare
from tests.support.wire import on

Account: Any = declare("Account", numbers="balance", lock=True, version=True)
Tx = Annotated[Transaction, fastapi.transaction_dependency(wait=2)]
AsyncTx = Annotated[AsyncTransaction, fastapi.atransaction_dependency(wait=2)]


class Client:
    """Sends requests to an application, each in an event loop of its own. Errors that it does not answer are raised."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def send(self, method: str, path: str, headers: Any = None) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://bank", timeout=60) as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(sent())

    get, put = partialmethod(send, "GET"), partialmethod(send, "PUT")


@pytest.fixture
def account(memory):
    """The table, with one account."""
    memory.bind(Account)
    Account("a-1", balance=100).save()


def balance(account_id="a-1"):
    return Account.get(account_id, consistent_read=True).balance


def client_of(app, **options):
    PynamoLocking(models=[Account]).init_app(app, **options)
    return Client(app)


def test_a_mounted_application(account):
    """It answers its own errors: 412 after `if_match`, else 409; `aif_match` does what `if_match` does."""

    def write(request):
        account = Account.get("a-1", consistent_read=True)
        if request.query_params.get("checked"):
            if_match(request, account)
        Account.modify("a-1", lambda other: setattr(other, "balance", other.balance + 1))
        account.save()

    async def look(request):
        account = await aif_match(request, await Account.aget("a-1"))
        return conditional(request, PlainTextResponse("x" * 9), account)

    routes = [Route("/write", write, methods=["PUT"]), Route("/look", look)]
    inner = client_of(Starlette(routes=routes)).app  # which answers its own errors
    starlette = client_of(Starlette(routes=[Mount("/inner", inner), *routes]))
    tag = etag(Account.get("a-1"))
    answer = starlette.get("/look", headers={"If-Match": tag, "If-None-Match": tag})
    assert (answer.status_code, answer.headers["ETag"], answer.content) == (304, tag, b"")
    assert "Content-Length" not in answer.headers
    assert starlette.get("/look", headers={"If-Match": tag}).text == "x" * 9
    assert starlette.get("/look", headers=[("If-Match", '"9"'), ("If-Match", tag)]).text == "x" * 9
    for prefix in ("", "/inner"):
        for query, status in (("?checked=1", 412), ("", 409)):
            tag = etag(Account.get("a-1"))
            answer = starlette.put(f"{prefix}/write{query}", headers={"If-Match": tag})
            assert (answer.status_code, answer.json()["code"]) == (status, "stale-version")


def test_an_error_in_a_web_socket_is_the_applications():
    """There is no status to answer with."""

    async def fail(websocket: WebSocket):
        raise StaleVersion("stale")

    app = Starlette(routes=[WebSocketRoute("/", fail)])
    client_of(app)
    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "root_path": ""}

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(StaleVersion):
        asyncio.run(app(scope, nothing, nothing))


def test_several_applications():
    """Those that agree can share the models; another place is refused until `reset`."""
    account = declare("Account", version=True)
    locking = PynamoLocking(models=[account])
    for _ in range(2):
        locking.init_app(FastAPI(), table_prefix="t-", lock_settings={"wait": 1})
    assert account.Meta.table_name == "t-Account"
    with pytest.raises(ConfigurationError, match="configured otherwise"):
        locking.init_app(FastAPI(), table_prefix="u-")
    locking.reset()
    assert account.Meta.table_name == "Account"


# Transactions


class Log(list[str]):
    """What was done, in order; also what was sent."""

    def wrap(self, app: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            async def noted(message: Any) -> None:
                self.append(message["type"].removeprefix("http.response."))
                await send(message)

            await app(scope, receive, noted)

        return wrapped


@pytest.fixture(params=["def", "async def"])
def app(request, account):  # noqa: C901 - small functions
    """An application whose endpoint changes an account in a transaction, in both forms; and what it does."""
    app, log = FastAPI(), Log()

    def read(how: str, tx: Tx) -> Any:
        return tx.get(Account, "a-1", for_update=how == "locked")

    async def aread(how: str, tx: AsyncTx) -> Any:
        return await tx.get(Account, "a-1", for_update=how == "locked")

    def change(how: str, account: Any, tx: Any, tasks: BackgroundTasks) -> Any:
        assert current_transaction() is getattr(tx, "_transaction", tx)
        tx.after_commit(lambda: log.append("commit"))
        tx.after_rollback(lambda: log.append("rollback"))
        tasks.add_task(log.append, "task")
        account.balance += 1

    def answer(how: str) -> Any:
        if how == "http":
            raise HTTPException(418)
        if how == "error":
            raise ZeroDivisionError
        if how == "conflict":
            Account.get("a-1").update([Account.balance.set(7)])
        if how == "stream":
            return StreamingResponse(iter([str(current_transaction()).encode()]))
        if how == "bad":
            return {"number": how}
        return {"number": 1}

    if request.param == "def":

        @app.get("/{how}")
        def view(how: str, tx: Tx, account: Annotated[Any, Depends(read)], tasks: BackgroundTasks) -> dict[str, int]:
            change(how, account, tx, tasks)
            tx.save(account)
            return answer(how)

    else:

        @app.get("/{how}")
        async def view(
            how: str, tx: AsyncTx, account: Annotated[Any, Depends(aread)], tasks: BackgroundTasks
        ) -> dict[str, int]:
            change(how, account, tx, tasks)
            await tx.save(account)
            return await asyncio.to_thread(answer, how)

    client = client_of(app)
    client.app = log.wrap(app)
    client.log = log
    return client


@pytest.mark.parametrize("how", ["plain", "locked"])
def test_the_commit_is_before_the_answer(app, how):
    """And is shared by the dependencies of the endpoint; its locks are given back with it."""
    assert app.get(f"/{how}").json() == {"number": 1}
    assert app.log == ["commit", "start", "body", "task"]
    assert (balance(), Account.lock_state("a-1").entries) == (101, ())


@pytest.mark.parametrize(("how", "status"), [("http", 418), ("conflict", 409)])
def test_an_error_rolls_back(app, how, status):
    """What the endpoint raises, and a commit that fails, are answered as ever."""
    answer = app.get(f"/{how}")
    assert answer.status_code == status
    assert "commit" not in app.log
    assert balance() == (7 if how == "conflict" else 100)
    if how == "conflict":
        assert (answer.headers["Content-Type"], answer.json()["code"]) == (PROBLEM, "stale-version")


def test_other_errors_roll_back(app):
    """Those that no handler answers, and a result that is not what the endpoint promises."""
    with pytest.raises(ZeroDivisionError):
        app.get("/error")
    with pytest.raises(Exception, match="validation error"):
        app.get("/bad")
    assert app.log.count("rollback") == 2
    assert balance() == 100


def test_a_commit_without_an_answer(app):
    """500 that says so, and not the result of the endpoint: it may have been done, and was."""
    with (
        on("UpdateItem", times=99).lose_response() as writes,
        on("GetItem", times=99, where=lambda _: writes.hits > 0).lose_request(),
    ):
        answer = app.get("/plain")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome-unknown")
    assert balance() == 101


def test_one_key_for_all_requests_is_refused():
    """The second request would be taken for the first one sent again."""
    for make in (fastapi.transaction_dependency, fastapi.atransaction_dependency):
        with pytest.raises(ConfigurationError, match="all requests"):
            make(idempotency_key="k")


def test_two_dependencies_in_one_request(account):
    """Two transactions would not be atomic together: refused, unless the inner one joins."""
    app = FastAPI()
    inner = Annotated[Transaction, fastapi.transaction_dependency(join=True)]
    other = Annotated[Transaction, fastapi.transaction_dependency()]

    @app.get("/joined")
    def joined(tx: Tx, same: inner) -> bool:
        return tx is same

    @app.get("/apart")
    def apart(tx: Tx, another: other) -> None:
        raise AssertionError

    client = client_of(app)
    assert client.get("/joined").json() is True
    with pytest.raises(ConfigurationError, match="join"):
        client.get("/apart")


# Locks in dependencies


def test_a_lock_of_a_synchronous_dependency(account):
    """It would be held, and not be seen by the endpoint, whose thread has another copy of the context: refused."""

    def held():
        with Account.locked("a-1", wait=0) as lock:
            yield lock

    def begun():
        with transaction() as tx:
            yield tx

    def never(_given: Any) -> None:
        raise AssertionError

    app = FastAPI()
    for path, dependency in (("/held", held), ("/begun", begun)):
        app.get(path)(lambda given=Depends(dependency): never(given))  # noqa: B008 - FastAPI's way
    client = client_of(app)
    for path in ("/held", "/begun"):
        with pytest.raises(ConfigurationError, match="synchronous dependency"):
            client.get(path)
    assert Account.lock_state("a-1").entries == ()


def test_a_lock_of_an_awaited_dependency(account):
    """Endpoints of both forms hold it; and one that takes it in its own block, in a context manager of its own."""

    @contextmanager
    def own():
        with Account.locked("a-1", wait=0):
            yield

    async def held():
        async with Account.locked("a-1", wait=0) as lock:
            yield lock

    def deposit(**_given: Any) -> dict[str, int]:
        item = Account.get("a-1")
        item.update([Account.balance.add(1)])
        return {"balance": int(item.balance)}

    def alone() -> dict[str, int]:
        with own():
            return deposit()

    app = FastAPI()
    app.put("/plain")(lambda given=Depends(held): deposit(given=given))  # noqa: B008 - FastAPI's way
    app.put("/alone")(alone)
    client = client_of(app)
    assert [client.put(path).json() for path in ("/plain", "/alone")] == [{"balance": 101}, {"balance": 102}]
    assert Account.lock_state("a-1").entries == ()
