"""The extension for Flask and the bank of the documentation, with Flask's test client on a real engine."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from flask import Flask, abort

from pynamo_locking import LockSettings
from pynamo_locking.contrib.flask import PynamoLocking, conditional, etag, if_match
from pynamo_locking.exceptions import ConfigurationError, LockLost, OutcomeUnknown, StaleVersion
from tests.support import wire

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
PROBLEM: Final = "application/problem+json"
OWNER: Final = "Ada Lovelace"


def loaded() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import flask_bank
    finally:
        sys.path.remove(str(EXAMPLES))
    return flask_bank


bank: Final[Any] = loaded()
Account: Final[Any] = bank.Account


@pytest.fixture
def app(dynoxide):
    """The bank, with an empty table."""
    app = bank.create_app({"TESTING": True})
    dynoxide.bind(Account)
    return app


@pytest.fixture
def client(app):
    """Sends requests to the bank."""
    return app.test_client()


@pytest.fixture
def elsewhere():
    """Runs a function in another thread, which holds other locks than this one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments, **options: pool.submit(function, *arguments, **options).result(60)


def opened(client, account_id="a-1", balance=100):
    answer = client.post("/accounts", json={"id": account_id, "owner": OWNER, "balance": balance})
    assert answer.status_code == 201
    return answer.headers["ETag"]


def balance(account_id):
    return Account.get(account_id, consistent_read=True).balance


# ETags


def test_an_account_is_read_changed_and_read_again(client):
    """201, 200, 304; then 428, 200, 412: each write has an ETag of its own, which a fresh read shows as well."""
    first = opened(client)
    shown = client.get("/accounts/a-1")
    assert (shown.status_code, shown.headers["ETag"]) == (200, first)
    assert shown.json == {"id": "a-1", "owner": OWNER, "balance": 100}
    unchanged = client.get("/accounts/a-1", headers={"If-None-Match": first})
    assert (unchanged.status_code, unchanged.data) == (304, b"")

    change = {"owner": "Grace"}
    missing = client.put("/accounts/a-1", json=change)
    assert (missing.status_code, missing.json["code"]) == (428, "precondition-required")
    changed = client.put("/accounts/a-1", json=change, headers={"If-Match": first})
    assert (changed.status_code, changed.json["owner"]) == (200, "Grace")
    second = changed.headers["ETag"]
    assert second != first
    assert client.get("/accounts/a-1", headers={"If-None-Match": first}).headers["ETag"] == second

    stale = client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": first})
    assert (stale.status_code, stale.content_type) == (412, PROBLEM)
    assert (stale.json["expected"], stale.json["actual"]) == (1, 2)
    assert Account.get("a-1").owner == "Grace"


def test_a_change_is_one_request(client):
    """The write itself compares: nothing is read before it, so no other writer can come between."""
    tag = opened(client)
    with wire.count_requests() as requests:
        client.put("/accounts/a-1", json={"owner": "Grace"}, headers={"If-Match": tag})
    assert dict(requests.by_operation) == {"UpdateItem": 1}


def test_an_account_that_was_opened_again_is_another_one(client):
    """Its version is 1 again, and its ETag is not."""
    first = opened(client)
    Account.get("a-1").delete()
    second = opened(client)
    assert first != second
    answer = client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": first})
    assert (answer.status_code, answer.json["expected"], answer.json["actual"]) == (412, 1, 1)


def test_many_write_what_they_have_read_and_one_does(client, app):
    """Of eight changes at once that name the same ETag one is made."""
    tag = opened(client)

    def change(name):
        headers = {"If-Match": tag}
        return app.test_client().put("/accounts/a-1", json={"owner": f"n{name}"}, headers=headers).status_code

    with ThreadPoolExecutor(8) as clients:
        assert sorted(clients.map(change, range(8))) == [200, *[412] * 7]
    assert Account.get("a-1", consistent_read=True).version == 2


def test_a_write_between_the_look_and_the_write(dynoxide, app, client):
    """A view that has compared the ETag with what it read gets a 412 all the same; one that has not, a 409."""
    checker = Flask("checker")
    PynamoLocking(models=[Account]).init_app(checker)

    @checker.put("/<int:is_checked>")
    def write(is_checked):
        account = Account.get("a-1", consistent_read=True)
        if is_checked:
            if_match(account)
        Account.modify("a-1", lambda other: setattr(other, "balance", other.balance + 1))
        account.owner = "Eve"
        account.save()

    opened(client)
    for is_checked, status in ((1, 412), (0, 409)):
        tag = client.get("/accounts/a-1").headers["ETag"]
        answer = checker.test_client().put(f"/{is_checked}", headers={"If-Match": tag})
        assert (answer.status_code, answer.json["code"]) == (status, "stale-version")
    assert (balance("a-1"), Account.get("a-1").owner) == (102, OWNER)


def test_any_version_will_do(client):
    """``If-Match: *``, or several tags: the item is read, and still written only as it was read."""
    tag = opened(client)
    for header in ("*", f'"9", {tag}'):
        answer = client.put("/accounts/a-1", json={"owner": "Grace"}, headers={"If-Match": header})
        assert answer.status_code == (200 if header == "*" else 412)
    for header in ("*", '"1-a", "2-b"', '"1"'):
        missing = client.put("/accounts/none", json={"owner": "Grace"}, headers={"If-Match": header})
        assert missing.status_code == 412
    assert client.put("/accounts/a-1", json={"owner": "Grace"}, headers={"If-Match": "1"}).status_code == 400


def test_no_such_account(client):
    """404; and 412 where the request says that there is one."""
    assert client.get("/accounts/none").status_code == 404
    assert client.post("/accounts/none/deposits", json={"amount": 1}).status_code == 404
    assert client.put("/accounts/none", json={"owner": "x"}, headers={"If-Match": '"1"'}).status_code == 412


# Errors


def test_an_account_is_opened_twice(client):
    """409, in the form of RFC 9457, and nothing of what is stored."""
    opened(client)
    answer = client.post("/accounts", json={"id": "a-1", "owner": "Eve", "balance": 0})
    assert (answer.status_code, answer.content_type) == (409, PROBLEM)
    assert answer.json["type"] == "urn:pynamo-locking:problem:stale-version"
    for secret in (OWNER, "a-1", Account.Meta.table_name, "100"):
        assert secret not in answer.text


def test_an_account_is_to_be_created_or_nothing(client):
    """``If-None-Match: *`` makes the 409 of a second one a 412, as RFC 9110 asks."""
    body = {"id": "a-1", "owner": OWNER, "balance": 0}
    created, refused = (client.post("/accounts", json=body, headers={"If-None-Match": "*"}) for _ in range(2))
    assert (created.status_code, refused.status_code) == (201, 412)


def test_an_account_that_is_locked(client, elsewhere, monkeypatch):
    """423 with the holder's ticket: for a write, and for who waits in vain. No client is told who holds it."""
    monkeypatch.setattr(Account.Meta, "lock_settings", LockSettings(wait=0))
    tag = opened(client)
    lock = Account.locked("a-1", owner="host-17")
    elsewhere(lock.acquire)
    refused = client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": tag})
    in_vain = client.post("/accounts/a-1/deposits", json={"amount": 5})
    elsewhere(lock.release)

    for answer, code in ((refused, "item-locked"), (in_vain, "lock-timeout")):
        assert (answer.status_code, answer.json["code"], answer.json["ticket"]) == (423, code, lock.ticket)
        assert "Retry-After" not in answer.headers  # it is alive, and tells no client when it will be done
        assert "host-17" not in answer.text
    assert client.post("/accounts/a-1/deposits", json={"amount": 5}).json["balance"] == 105


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutcomeUnknown("no answer", write_id="w-1"), "outcome-unknown"), (LockLost("gone", ticket=7), "lock-lost")],
)
def test_errors_after_which_something_may_have_happened(client, monkeypatch, caplog, error, code):
    """500, which no client sends again of its own accord, and the error is in the log."""

    def fail(*_, **__):
        raise error

    opened(client)
    monkeypatch.setattr(Account, "edit", fail)
    answer = client.post("/accounts/a-1/deposits", json={"amount": 5})
    assert (answer.status_code, answer.json["code"]) == (500, code)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[1] is error
    assert "POST /accounts/a-1/deposits" in record.message


def test_an_application_may_answer_itself(dynoxide, app):
    """Its own handler counts, for the same class or a more special one; other errors are not touched."""
    other = Flask("other")
    other.config["PYNAMO_LOCKING_PROBLEM_TYPE"] = "https://example.com/"
    PynamoLocking(models=[Account]).init_app(other)
    other.register_error_handler(LockLost, lambda error: ("mine", 503))

    @other.get("/<what>")
    def fail(what):
        raise {"lost": LockLost(""), "stale": StaleVersion(""), "config": ConfigurationError("")}[what]

    assert other.test_client().get("/lost").status_code == 503
    assert other.test_client().get("/stale").json["type"] == "https://example.com/stale-version"
    assert other.test_client().get("/config").mimetype == "text/html"


# Money


def test_transfers(client):
    """204 and both accounts change; otherwise neither does."""
    opened(client, "a-1", 100)
    opened(client, "a-2", 0)

    def send(amount, target="a-2"):
        body = {"from": "a-1", "to": target, "amount": amount}
        return client.post("/transfers", json=body).status_code

    assert (send(30), send(300), send(1, "none"), send(1, "a-1")) == (204, 422, 404, 400)
    assert (balance("a-1"), balance("a-2")) == (70, 30)


def test_no_money_is_made_or_lost(app, client):
    """Deposits under the lock and transfers in transactions, from four clients at once."""
    opened(client, "a-1", 100)
    opened(client, "a-2", 100)

    def work(number):
        mine = app.test_client()
        source, target = ("a-1", "a-2") if number % 2 else ("a-2", "a-1")
        sent = [mine.post("/transfers", json={"from": source, "to": target, "amount": 1}) for _ in range(3)]
        sent += [mine.post("/accounts/a-1/deposits", json={"amount": 10}) for _ in range(2)]
        return [answer.status_code for answer in sent]

    with ThreadPoolExecutor(4) as clients:
        codes = [code for codes in clients.map(work, range(4)) for code in codes]
    assert {*codes} <= {204, 200, 409, 423}  # a transfer may give up; then it has changed nothing
    assert balance("a-1") + balance("a-2") == 200 + 10 * codes.count(200)


def test_what_cannot_be(client):
    """400 that says why, and no request to the table."""
    with wire.count_requests() as requests:
        for body in ({}, [], {"id": 1}, *({"id": "a", "owner": "x", "balance": money} for money in (-1, 10**40))):
            assert client.post("/accounts", json=body).status_code == 400
    assert requests.total == 0


# What a request leaves locked


@pytest.fixture
def leaver(app):
    """An application with a view that takes a lock and leaves it, in several ways."""
    leaver = Flask("leaver")
    PynamoLocking(models=[Account]).init_app(leaver)
    locks = []

    @leaver.get("/<how>")
    def leave(how):
        locks.append(Account.locked("a-1").acquire())
        if how == "twice":
            Account.locked("a-1").acquire()
        if how == "saved":
            locks[-1].item.balance += 1
        if how == "error":
            raise ZeroDivisionError
        if how == "abort":
            abort(403)
        return "done"

    leaver.locks = locks
    return leaver


def test_a_forgotten_lock_is_released(client, leaver, caplog):
    """At the end of the request, whatever became of it; nothing is saved then, and the log says so."""
    opened(client)
    for how in ("plain", "twice", "saved", "error", "abort"):
        leaver.test_client().get(f"/{how}")
        assert Account.lock_state("a-1").entries == ()
        assert not leaver.locks[-1].is_held
        assert f"was still held at the end of GET /{how}" in caplog.text
    assert balance("a-1") == 100
    with Account.locked("a-1", wait=0) as lock:  # nothing of them is left in this thread
        assert lock not in leaver.locks


def test_a_lock_that_a_command_leaves(client, leaver):
    """Is released at the end of its application context."""
    opened(client)
    with leaver.app_context():
        Account.locked("a-1").acquire()
    assert Account.lock_state("a-1").entries == ()


def test_a_lock_from_before_the_request_stays(client, app, leaver):
    """It is not the request's to release, even where the request has taken it once more."""
    opened(client)
    with Account.locked("a-1") as lock:
        assert client.get("/accounts/a-1").status_code == 200
        leaver.test_client().get("/plain")
        assert lock.is_held
        assert [entry.ticket for entry in Account.lock_state("a-1").entries] == [lock.ticket]
    assert Account.lock_state("a-1").entries == ()  # no take of the request is left


def test_requests_in_an_application_context_of_the_test(client, app):
    """They are apart all the same: If-Match is about one request, and what is held before it is not its own."""
    tag = opened(client)
    with app.app_context():
        assert client.put("/accounts/a-1", json={"owner": "Eve"}, headers={"If-Match": tag}).status_code == 200
        assert client.post("/accounts", json={"id": "a-1", "owner": "Eve", "balance": 0}).status_code == 409
        with Account.locked("a-1") as lock:
            client.get("/accounts/a-1")
            assert lock.is_held
        Account.locked("a-1").acquire()
    assert Account.lock_state("a-1").entries == ()


def test_a_lost_lock_does_not_break_the_answer(client, leaver, caplog, monkeypatch):
    """The answer is made already; the loss is logged."""
    opened(client)

    def lose(_error):
        [entry] = Account.lock_state("a-1").entries
        Account.break_lock("a-1", ticket=entry.ticket)

    leaver.teardown_request(lose)  # before the end of the application context
    assert leaver.test_client().get("/plain").data == b"done"
    assert "the release of" in caplog.text


# The command line


@pytest.fixture
def run(app):
    """Runs ``flask locks ...``."""
    runner = app.test_cli_runner()
    return lambda *arguments, **options: runner.invoke(args=["locks", *arguments], **options)


def test_the_command_line(client, elsewhere, run, caplog):
    """list and show name holders and waiters, as a table or JSON; break asks, and leaves a trace."""
    opened(client)
    opened(client, "a-2")
    assert json.loads(run("list", "--json").output) == []
    lock = Account.locked("a-1", owner="clerk", heartbeat=False)
    elsewhere(lock.acquire)
    listed = json.loads(run("list", "--json").output)
    assert [(row["model"], row["key"], row["ticket"], row["state"], row["owner"]) for row in listed] == [
        ("Account", "a-1", lock.ticket, "holds", "clerk")
    ]
    text = run("show", "Account", "a-1").output
    assert text.splitlines()[0].split()[:3] == ["model", "key", "ticket"]
    assert "clerk" in text
    assert run("show", Account.Meta.table_name, "a-2").output.count("\n") == 1

    command = ("break", "Account", "a-1", "--ticket", str(lock.ticket))
    refused = run(*command, input="n\n")
    assert refused.exit_code == 1
    assert len(Account.lock_state("a-1").holders) == 1
    assert run(*command, input="y\n").exit_code == 0
    assert Account.lock_state("a-1").entries == ()
    assert f"ticket {lock.ticket} of the lock Account a-1 was broken by hand" in caplog.text
    again = run(*command, "--yes")
    assert (again.exit_code, "not in that queue" in again.output) == (1, True)


@pytest.mark.parametrize("arguments", [("show", "Nobody", "a"), ("show", "Account", "a", "b")])
def test_wrong_names_on_the_command_line(run, arguments):
    """Are errors of usage that say what there is."""
    answer = run(*arguments)
    assert answer.exit_code == 2
    assert "Account" in answer.output


def test_a_table_that_is_absent(app, run):
    """Is said without a traceback."""
    Account.delete_table()
    for arguments in (["list"], ["show", "Account", "a"]):
        answer = run(*arguments)
        assert answer.exit_code in (1, 2)
        assert Account.Meta.table_name in answer.output


def test_the_command_for_tables(app, run):
    """Creates what is absent, and does nothing otherwise."""
    runner = app.test_cli_runner()
    assert runner.invoke(args=["create-tables"]).exit_code == 0
    Account.delete_table()
    assert runner.invoke(args=["create-tables"]).exit_code == 0
    assert Account.exists()


# Configuration


def test_an_unknown_key_is_refused():
    """A slip would send the writes somewhere else."""
    app = Flask("typo")
    app.config["PYNAMO_LOCKING_TABLE_PREFFIX"] = "t-"
    with pytest.raises(ConfigurationError, match="TABLE_PREFFIX is no key"):
        PynamoLocking(models=[]).init_app(app)


def test_several_applications(monkeypatch):
    """Those that agree can share the models; another place is refused until `reset`."""
    monkeypatch.setenv("FLASK_PYNAMO_LOCKING_TABLE_PREFIX", "t-")
    bank.locking.reset()
    try:
        bank.create_app()
        assert bank.create_app().extensions["pynamo_locking"] is bank.locking
        assert Account.Meta.table_name == "t-accounts"
        with pytest.raises(ConfigurationError, match="configured otherwise"):
            bank.create_app({"PYNAMO_LOCKING_TABLE_PREFIX": "u-"})
    finally:
        bank.locking.reset()
    assert Account.Meta.table_name == "accounts"


def test_two_extensions_for_one_application():
    """Are refused: the commands of one would hide those of the other."""
    app = Flask("two")
    PynamoLocking(models=[]).init_app(app)
    with pytest.raises(ConfigurationError, match="already"):
        PynamoLocking(models=[]).init_app(app)


def test_helpers_outside_of_a_bank(dynoxide, app, client):
    """`etag` is without quotes, and `conditional` takes whatever a view may return."""
    opened(client)
    account = Account.get("a-1")
    with app.test_request_context(headers={"If-None-Match": f'"{etag(account)}"'}):
        assert conditional(("text", 200), account).status_code == 304
