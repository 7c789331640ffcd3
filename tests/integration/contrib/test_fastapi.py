"""The extension for Starlette and FastAPI and the bank of the documentation, over ASGI on a real engine."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

from pynamo_locking import LockSettings
from pynamo_locking.contrib import fastapi
from pynamo_locking.contrib.starlette import PynamoLocking, aif_match, conditional, etag, if_match
from pynamo_locking.exceptions import ConfigurationError, LockLost, OutcomeUnknown, StaleVersion
from pynamo_locking.transactions import AsyncTransaction, Transaction, current_transaction
from tests.support import wire
from tests.support.parties import held_elsewhere
from tests.support.wire import on

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
PROBLEM: Final = "application/problem+json"
OWNER: Final = "Ada Lovelace"


def loaded() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import fastapi_bank
    finally:
        sys.path.remove(str(EXAMPLES))
    return fastapi_bank


bank: Final[Any] = loaded()
Account: Final[Any] = bank.Account
Tx = Annotated[Transaction, fastapi.transaction_dependency(wait=2)]
AsyncTx = Annotated[AsyncTransaction, fastapi.atransaction_dependency(wait=2)]


class Client:
    """Sends requests to an application, each in an event loop of its own unless several are sent at once."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def send(self, method: str, path: str, json: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.at_once([(method, path, json, headers)])[0]

    def at_once(self, requests: list[tuple[Any, ...]]) -> list[httpx.Response]:
        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://bank", timeout=60) as client:
                sent = [client.request(*each[:2], json=each[2], headers=each[3]) for each in requests]
                return await asyncio.gather(*sent)

        return asyncio.run(all_of_them())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.send("GET", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.send("PUT", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.send("POST", path, **options)


@pytest.fixture
def client(dynoxide):
    """Sends requests to the bank, which has an empty table."""
    dynoxide.bind(Account)
    return Client(bank.app)


def opened(client, account_id="a-1", balance=100):
    answer = client.post("/accounts", json={"id": account_id, "owner": OWNER, "balance": balance})
    assert answer.status_code == 201
    return answer.headers["ETag"]


def balance(account_id="a-1"):
    return Account.get(account_id, consistent_read=True).balance


def client_of(app, **options):
    PynamoLocking(models=[Account]).init_app(app, **options)
    return Client(app)


# ETags


def test_an_account_is_read_changed_and_read_again(client):
    """201, 200, 304; then 428, 200, 412: each write has an ETag of its own, which a fresh read shows as well."""
    first = opened(client)
    shown = client.get("/accounts/a-1")
    assert (shown.status_code, shown.headers["ETag"]) == (200, first)
    assert shown.json() == {"id": "a-1", "owner": OWNER, "balance": 100}
    for known in (first, f'"x", W/{first}', "*"):
        unchanged = client.get("/accounts/a-1", headers={"If-None-Match": known})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["ETag"]) == (304, b"", first)
    for other in ('"x"', first.strip('"'), ""):
        assert client.get("/accounts/a-1", headers={"If-None-Match": other}).status_code == 200

    change = {"owner": "Grace"}
    missing = client.put("/accounts/a-1", json=change)
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition-required")
    with wire.count_requests() as requests:
        changed = client.put("/accounts/a-1", json=change, headers={"If-Match": first})
    assert dict(requests.by_operation) == {"UpdateItem": 1}  # the write itself compares
    assert (changed.status_code, changed.json()["owner"]) == (200, "Grace")
    assert changed.headers["ETag"] != first

    stale = client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": first})
    assert (stale.status_code, stale.headers["Content-Type"]) == (412, PROBLEM)
    assert (stale.json()["expected"], stale.json()["actual"]) == (1, 2)
    assert Account.get("a-1").owner == "Grace"


def test_any_version_will_do(client):
    """``If-Match: *``, or several tags, also in several lines: the item is read, and still written as it was read."""
    tag = opened(client)
    for header, status in (("*", 200), (f'"9", {tag}', 412), ("1", 400)):
        answer = client.put("/accounts/a-1", json={"owner": "Grace"}, headers={"If-Match": header})
        assert answer.status_code == status
    now = client.get("/accounts/a-1").headers["ETag"]
    lines = [("If-Match", '"9"'), ("If-Match", now)]
    assert client.put("/accounts/a-1", json={"owner": "Eve"}, headers=lines).status_code == 200
    assert client.put("/accounts/none", json={"owner": "x"}, headers={"If-Match": "*"}).status_code == 412


def test_of_many_that_name_one_etag_one_writes(client):
    """Eight at once: the others get a 412."""
    headers = {"If-Match": opened(client)}
    sent = [("PUT", "/accounts/a-1", {"owner": f"n{number}"}, headers) for number in range(8)]
    assert sorted(answer.status_code for answer in client.at_once(sent)) == [200, *[412] * 7]
    assert Account.get("a-1", consistent_read=True).version == 2


def test_starlette_alone(client):
    """The same of an application without FastAPI, also of a mounted one: 412 after `if_match`, else 409."""

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
    tag = opened(client)
    answer = starlette.get("/look", headers={"If-Match": tag, "If-None-Match": tag})
    assert (answer.status_code, answer.headers["ETag"], answer.content) == (304, tag, b"")
    assert "Content-Length" not in answer.headers
    assert starlette.get("/look", headers={"If-Match": tag}).text == "x" * 9
    for prefix in ("", "/inner"):
        for query, status in (("?checked=1", 412), ("", 409)):
            tag = etag(Account.get("a-1"))
            answer = starlette.put(f"{prefix}/write{query}", headers={"If-Match": tag})
            assert (answer.status_code, answer.json()["code"]) == (status, "stale-version")


# Errors


def test_an_account_is_opened_twice(client):
    """409, in the form of RFC 9457, with nothing of what is stored; 412 for ``If-None-Match: *``."""
    opened(client)
    body = {"id": "a-1", "owner": "Eve", "balance": 0}
    answer = client.post("/accounts", json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (409, PROBLEM)
    assert answer.json()["type"] == "urn:pynamo-locking:problem:stale-version"
    for secret in (OWNER, "a-1", Account.Meta.table_name, "100"):
        assert secret not in answer.text
    assert client.post("/accounts", json=body, headers={"If-None-Match": "*"}).status_code == 412
    assert client.get("/accounts/none").status_code == 404


def test_an_account_that_another_party_has_locked(client, monkeypatch):
    """423 with the holder's ticket: for a write, and for a request that waits in vain."""
    monkeypatch.setattr(Account.Meta, "lock_settings", LockSettings(wait=0))
    tag = opened(client)
    with held_elsewhere(Account.locked("a-1", owner="host-17")) as lock:
        refused = client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": tag})
        in_vain = client.post("/accounts/a-1/deposits", json={"amount": 5})
        ticket = lock.ticket
    for answer, code in ((refused, "item-locked"), (in_vain, "lock-timeout")):
        assert (answer.status_code, answer.json()["code"], answer.json()["ticket"]) == (423, code, ticket)
        assert "host-17" not in answer.text
    assert client.post("/accounts/a-1/deposits", json={"amount": 5}).json()["balance"] == 105


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutcomeUnknown("no answer", write_id="w-1"), "outcome-unknown"), (LockLost("gone", ticket=7), "lock-lost")],
)
def test_errors_after_which_something_may_have_happened(caplog, error, code):
    """500, which no proxy sends again by itself, and the error is in the log."""
    app = FastAPI()

    @app.post("/deposits")
    def fail():
        raise error

    answer = client_of(app).post("/deposits")
    assert (answer.status_code, answer.json()["code"]) == (500, code)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[1] is error
    assert "POST /deposits" in record.message


def test_an_application_may_answer_itself():
    """Its own handler counts; other errors are not touched; the type begins as the application says."""
    app = FastAPI()

    @app.get("/{what}")
    def fail(what: str):
        raise {"lost": LockLost(""), "stale": StaleVersion(""), "config": ConfigurationError("")}[what]

    client = client_of(app, problem_type="https://example.com/")
    app.add_exception_handler(LockLost, lambda request, error: PlainTextResponse("mine", 503))
    assert client.get("/lost").status_code == 503
    assert client.get("/stale").json()["type"] == "https://example.com/stale-version"
    with pytest.raises(ConfigurationError):
        client.get("/config")


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
    locking = PynamoLocking(models=[Account])
    bank.locking.reset()
    try:
        for _ in range(2):
            locking.init_app(FastAPI(), table_prefix="t-", lock_settings={"wait": 1})
        assert Account.Meta.table_name == "t-accounts"
        with pytest.raises(ConfigurationError, match="configured otherwise"):
            locking.init_app(FastAPI(), table_prefix="u-")
    finally:
        locking.reset()
    assert Account.Meta.table_name == "accounts"


# Transactions

BOTH: Final = pytest.mark.parametrize("path", ["/transfers", "/donations"])


@BOTH
def test_transfers(client, path):
    """204 and both accounts change; after an error of the endpoint neither does."""
    opened(client)
    opened(client, "a-2", 0)

    def send(amount, target="a-2"):
        return client.post(path, json={"source": "a-1", "target": target, "amount": amount}).status_code

    assert (send(30), send(300), send(1, "none"), send(1, "a-1")) == (204, 422, 404, 400)
    assert (balance("a-1"), balance("a-2")) == (70, 30)
    assert Account.lock_state("a-1").entries == ()


@BOTH
def test_no_money_is_made_or_lost(client, path):
    """Deposits under the lock and transfers in transactions, twelve requests at once."""
    opened(client)
    opened(client, "a-2")
    transfers = [{"source": f"a-{1 + number % 2}", "target": f"a-{2 - number % 2}", "amount": 1} for number in range(8)]
    sent = [("POST", path, transfer, None) for transfer in transfers]
    sent += [("POST", "/accounts/a-1/deposits", {"amount": 10}, None)] * 4
    codes = [answer.status_code for answer in client.at_once(sent)]
    assert {*codes} <= {204, 200, 409, 423}  # a transfer may give up; then it has changed nothing
    assert balance("a-1") + balance("a-2") == 200 + 10 * codes.count(200)


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
def shop(request, client):  # noqa: C901 - small functions
    """An application whose endpoint changes an account in a transaction, in both forms; and what it does."""
    opened(client)
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

    shop = client_of(app)
    shop.app = log.wrap(app)
    shop.log = log
    return shop


@pytest.mark.parametrize("how", ["plain", "locked"])
def test_the_commit_is_before_the_answer(shop, how):
    """And is shared by the dependencies of the endpoint; its locks are given back with it."""
    assert shop.get(f"/{how}").json() == {"number": 1}
    assert shop.log == ["commit", "start", "body", "task"]
    assert (balance(), Account.lock_state("a-1").entries) == (101, ())


@pytest.mark.parametrize(("how", "status"), [("http", 418), ("conflict", 409)])
def test_an_error_rolls_back(shop, how, status):
    """What the endpoint raises, and a commit that fails, are answered as ever."""
    answer = shop.get(f"/{how}")
    assert answer.status_code == status
    assert "commit" not in shop.log
    assert balance() == (7 if how == "conflict" else 100)
    if how == "conflict":
        assert (answer.headers["Content-Type"], answer.json()["code"]) == (PROBLEM, "stale-version")


def test_other_errors_roll_back(shop):
    """Those that no handler answers, and a result that is not what the endpoint promises."""
    with pytest.raises(ZeroDivisionError):
        shop.get("/error")
    with pytest.raises(Exception, match="validation error"):
        shop.get("/bad")
    assert shop.log.count("rollback") == 2
    assert balance() == 100


def test_a_commit_without_an_answer(shop):
    """500 that says so, and not the result of the endpoint: it may have been done, and was."""
    with (
        on("UpdateItem", times=99).lose_response() as writes,
        on("GetItem", times=99, where=lambda _: writes.hits > 0).lose_request(),
    ):
        answer = shop.get("/plain")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome-unknown")
    assert balance() == 101


def test_one_key_for_all_requests_is_refused():
    """The second request would be taken for the first one sent again."""
    for make in (fastapi.transaction_dependency, fastapi.atransaction_dependency):
        with pytest.raises(ConfigurationError, match="all requests"):
            make(idempotency_key="k")


def test_two_dependencies_in_one_request(client):
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
