"""A bank over HTTP, with FastAPI: versions as ETags, a lock for deposits, a transaction for transfers.

    POST /accounts                   {"id": "a-1", "owner": "Ada", "balance": 100}
    GET  /accounts/<id>              with an ETag; 304 if the client has it
    PUT  /accounts/<id>              {"owner": "Ada L."}: needs If-Match; 428 without it, 412 if it is stale
    POST /accounts/<id>/deposits     {"amount": 5}: first come, first served; 423 if the lock cannot be had in time
    POST /transfers                  {"source": "a-1", "target": "a-2", "amount": 5}: both accounts or none
    POST /donations                  the same, as a coroutine

Any number of processes of any number of hosts may run it. Try it, with a DynamoDB that your environment points to:

    cd docs/examples
    python -c "import fastapi_bank; fastapi_bank.create_tables()"
    uvicorn fastapi_bank:app --workers 4
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute
from pynamo_locking.contrib.fastapi import atransaction_dependency, transaction_dependency
from pynamo_locking.contrib.starlette import PynamoLocking, aif_match, conditional
from pynamo_locking.transactions import AsyncTransaction, Transaction


class Account(LockableModel):
    """An account; its lock is in the item itself."""

    class Meta:
        table_name = "accounts"

    account_id = UnicodeAttribute(hash_key=True)
    owner = UnicodeAttribute()
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


def create_tables() -> None:
    """Create what is absent."""
    if not Account.exists():
        Account.create_table(wait=True, billing_mode="PAY_PER_REQUEST")


app = FastAPI()
locking = PynamoLocking(models=[Account])
locking.init_app(
    app,
    host=os.environ.get("BANK_DYNAMODB_HOST"),
    region=os.environ.get("BANK_DYNAMODB_REGION"),
    table_prefix=os.environ.get("BANK_TABLE_PREFIX"),
    lock_settings={"wait": 5},  # seconds: no client waits longer for a page
)

Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[int, Field(ge=0, le=10**12)]  # numbers of DynamoDB have 38 digits
Tx = Annotated[Transaction, transaction_dependency(wait=5)]
AsyncTx = Annotated[AsyncTransaction, atransaction_dependency(wait=5)]


class Opening(BaseModel):
    """A new account."""

    id: Text
    owner: Text
    balance: Amount = 0


class Renaming(BaseModel):
    """What may be changed of an account."""

    owner: Text


class Deposit(BaseModel):
    """Money that comes in."""

    amount: Amount


class Transfer(BaseModel):
    """Money that goes from one account to another."""

    source: Text
    target: Text
    amount: Amount


@app.post("/accounts", status_code=201)
async def create(opening: Opening, request: Request) -> Response:
    account = Account(opening.id, owner=opening.owner, balance=opening.balance)
    await account.asave()  # the version says that it is new: a second one with this id is a conflict, 409
    response = conditional(request, shown(account), account)
    response.status_code = 201
    return response


@app.get("/accounts/{account_id}")
async def show(account_id: str, request: Request) -> Response:
    account = await Account.aget(account_id)
    return conditional(request, shown(account), account)


@app.put("/accounts/{account_id}")
async def rename(account_id: str, renaming: Renaming, request: Request) -> Response:
    account = await aif_match(request, Account, account_id)  # reads nothing: the write compares
    await account.aupdate([Account.owner.set(renaming.owner)])
    return conditional(request, shown(account), account)


@app.post("/accounts/{account_id}/deposits")
async def deposit(account_id: str, deposit: Deposit) -> dict[str, Any]:
    async with Account.edit(account_id) as account:
        account.balance += deposit.amount
    return shown(account)


@app.post("/transfers", status_code=204)
def transfer(wanted: Transfer, tx: Tx) -> None:
    source, target = tx.get(Account, wanted.source), tx.get(Account, wanted.target)
    move(source, target, wanted.amount)
    tx.save(source)
    tx.save(target)


@app.post("/donations", status_code=204)
async def donate(wanted: Transfer, tx: AsyncTx) -> None:
    source, target = await tx.get_all(Account, [wanted.source, wanted.target])
    if source is None or target is None:
        raise Account.DoesNotExist
    move(source, target, wanted.amount)
    await tx.save(source)
    await tx.save(target)


def move(source: Account, target: Account, amount: int) -> None:
    if source is target:
        raise HTTPException(400, "source and target are the same account")
    if source.balance < amount:
        raise HTTPException(422, "there is not enough money")
    source.balance -= amount
    target.balance += amount


@app.exception_handler(Account.DoesNotExist)
def not_found(_request: Request, _error: Exception) -> Response:
    return Response("there is no such account", 404)


def shown(account: Account) -> dict[str, Any]:
    return {"id": account.account_id, "owner": account.owner, "balance": int(account.balance)}
