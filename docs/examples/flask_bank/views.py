"""What the bank does over HTTP. No view handles a conflict: the extension answers those."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from flask_bank.accounts import Account, NotEnoughMoneyError, transfer
from pynamo_locking.contrib.flask import conditional, if_match

bank = Blueprint("bank", __name__)

MOST = 10**12  # in one request: numbers of DynamoDB have 38 digits


@bank.post("/accounts")
def create() -> tuple[Response, int]:
    account = Account(text("id"), owner=text("owner"), balance=amount("balance"))
    account.save()  # the version says that it is new: a second one with this id is a conflict, 409
    return conditional(shown(account), account), 201


@bank.get("/accounts/<account_id>")
def show(account_id: str) -> Response:
    account = Account.get(account_id)
    return conditional(shown(account), account)


@bank.put("/accounts/<account_id>")
def rename(account_id: str) -> Response:
    account = if_match(Account, account_id)  # reads nothing: the write compares
    account.update([Account.owner.set(text("owner"))])
    return conditional(shown(account), account)


@bank.post("/accounts/<account_id>/deposits")
def deposit(account_id: str) -> Response:
    added = amount("amount")
    with Account.edit(account_id) as account:
        account.balance += added
    return jsonify(shown(account))


@bank.post("/transfers")
def move() -> tuple[str, int]:
    source, target = text("from"), text("to")
    if source == target:
        raise BadRequestError("from and to are the same account")
    transfer(source, target, amount("amount"))
    return "", 204


class BadRequestError(Exception):
    """The client sent something that cannot be."""


@bank.errorhandler(BadRequestError)
def bad_request(error: BadRequestError) -> tuple[Response, int]:
    return jsonify({"error": str(error)}), 400


@bank.errorhandler(Account.DoesNotExist)
def not_found(_error: Exception) -> tuple[Response, int]:
    return jsonify({"error": "there is no such account"}), 404


@bank.errorhandler(NotEnoughMoneyError)
def not_enough(_error: Exception) -> tuple[Response, int]:
    return jsonify({"error": "there is not enough money"}), 422


def shown(account: Account) -> dict[str, Any]:
    return {"id": account.account_id, "owner": account.owner, "balance": int(account.balance)}


def text(name: str) -> str:
    value = field(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name!r} is needed, as a string")
    return value


def amount(name: str) -> int:
    value = field(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadRequestError(f"{name!r} is needed, as a whole number from 0 to {MOST}")
    return value


def field(name: str) -> Any:
    body = request.get_json()
    return body.get(name) if isinstance(body, dict) else None
