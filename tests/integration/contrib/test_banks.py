"""The banks of the documentation, for Flask and for FastAPI, do what they say that they do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.integration.contrib.frameworks import Answer, OfFlask, OfStarlette
from tests.support import wire

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(EXAMPLES))
    import fastapi_bank
    import flask_bank

OWNER: Final = "Ada Lovelace"


class Bank(NamedTuple):
    """One of them, and what a transfer is in it."""

    Account: Any
    application: Any
    transfers: str
    ends: tuple[str, str]

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        answer: Answer = self.application.send(method, path, body, **headers)
        return answer

    def opened(self, account_id: str, balance: int) -> str:
        answer = self.send("POST", "/accounts", {"id": account_id, "owner": OWNER, "balance": balance})
        assert answer.status == 201
        return answer.headers["ETag"]

    def transfer(self, source: str, target: str, amount: int) -> int:
        body = {self.ends[0]: source, self.ends[1]: target, "amount": amount}
        return self.send("POST", self.transfers, body).status

    def balances(self) -> list[int]:
        return [self.Account.get(key, consistent_read=True).balance for key in ("a-1", "a-2")]


@pytest.fixture(params=["flask", "fastapi", "fastapi with coroutines"])
def bank(request: pytest.FixtureRequest, memory: Any) -> Bank:
    """A bank with an empty table."""
    application: Any
    if request.param == "flask":
        application, account = OfFlask({}), flask_bank.Account
        application.app = flask_bank.create_app({"TESTING": True})
        memory.bind(account)
        return Bank(account, application, "/transfers", ("from", "to"))
    application, account = OfStarlette({}), fastapi_bank.Account
    application.app = fastapi_bank.app
    memory.bind(account)
    return Bank(
        account, application, "/transfers" if request.param == "fastapi" else "/donations", ("source", "target")
    )


def test_an_account(bank: Bank) -> None:
    """It is opened, shown, renamed, and paid into."""
    tag = bank.opened("a-1", 100)
    assert bank.send("GET", "/accounts/a-1").json == {"id": "a-1", "owner": OWNER, "balance": 100}
    assert bank.send("GET", "/accounts/a-1", If_None_Match=tag).status == 304
    assert bank.send("PUT", "/accounts/a-1", {"owner": "Grace"}).status == 428
    assert bank.send("PUT", "/accounts/a-1", {"owner": "Grace"}, If_Match=tag).json["owner"] == "Grace"
    assert bank.send("PUT", "/accounts/a-1", {"owner": "Eve"}, If_Match=tag).status == 412
    assert bank.send("POST", "/accounts/a-1/deposits", {"amount": 5}).json["balance"] == 105


def test_no_such_account(bank: Bank) -> None:
    """404; and 412 where the request says that there is one."""
    assert bank.send("GET", "/accounts/none").status == 404
    assert bank.send("POST", "/accounts/none/deposits", {"amount": 1}).status == 404
    assert bank.send("PUT", "/accounts/none", {"owner": "x"}, If_Match='"1"').status == 412


def test_what_cannot_be(bank: Bank) -> None:
    """It is refused, and no request goes to the table."""
    with wire.count_requests() as requests:
        for body in ({}, [], {"id": 1}, *({"id": "a", "owner": "x", "balance": money} for money in (-1, 10**40))):
            assert bank.send("POST", "/accounts", body).status in (400, 422)
    assert requests.total == 0


def test_transfers(bank: Bank) -> None:
    """204 and both accounts change; otherwise neither does, and nothing stays locked."""
    bank.opened("a-1", 100)
    bank.opened("a-2", 0)
    transfers = [("a-2", 30), ("a-2", 300), ("none", 1), ("a-1", 1)]
    assert [bank.transfer("a-1", *each) for each in transfers] == [204, 422, 404, 400]
    assert bank.balances() == [70, 30]
    assert bank.Account.lock_state("a-1").entries == ()


def test_no_money_is_made_or_lost(bank: Bank) -> None:
    """Deposits under the lock and transfers in transactions, from four clients at once."""
    bank.opened("a-1", 100)
    bank.opened("a-2", 100)

    def work(number: int) -> list[int]:
        source, target = ("a-1", "a-2") if number % 2 else ("a-2", "a-1")
        sent = [bank.transfer(source, target, 1) for _ in range(2)]
        return [*sent, bank.send("POST", "/accounts/a-1/deposits", {"amount": 10}).status]

    with ThreadPoolExecutor(4) as clients:
        codes = [code for codes in clients.map(work, range(4)) for code in codes]
    assert {*codes} <= {204, 200, 409, 423}  # a transfer may give up; then it has changed nothing
    assert sum(bank.balances()) == 200 + 10 * codes.count(200)


def test_the_command_that_creates_the_tables(memory: Any) -> None:
    """Creates what is absent, and does nothing otherwise."""
    runner = flask_bank.create_app().test_cli_runner()
    memory.bind(flask_bank.Account)
    assert runner.invoke(args=["create-tables"]).exit_code == 0
    flask_bank.Account.delete_table()
    assert runner.invoke(args=["create-tables"]).exit_code == 0
    assert flask_bank.Account.exists()
