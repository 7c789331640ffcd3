"""What the extension for Flask has of its own; what all frameworks share is in `test_frameworks`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask, abort, request

from pynamo_locking.contrib.flask import PynamoLocking, conditional, etag, if_match
from pynamo_locking.exceptions import ConfigurationError
from tests.support.models import declare

Account: Any = declare("Account", lock=True, version=True)


@pytest.fixture
def app(memory):
    """An application; there is one account."""
    memory.bind(Account)
    Account("a-1").save()
    app = Flask("app")
    PynamoLocking(models=[Account]).init_app(app)
    return app


@pytest.fixture
def client(app):
    """Sends requests to it."""
    return app.test_client()


def test_a_form_that_sends_its_version_back(app, client):
    """As the page on Flask says; without a version it is refused, too."""

    @app.post("/accounts/<account_id>")
    def rename(account_id):
        account = Account.get(account_id)
        account.version = request.form.get("version", type=int)
        account.save()
        return "saved"

    forms: list[dict[str, Any]] = [{"version": 1}, {"version": 1}, {"version": ""}, {}, {"version": 2}]
    statuses = [client.post("/accounts/a-1", data=form).status_code for form in forms]
    assert statuses == [200, 409, 409, 409, 200]


# What a request leaves locked


def test_a_lock_that_a_command_leaves(app):
    """Is released at the end of its application context."""
    with app.app_context():
        Account.locked("a-1").acquire()
    assert Account.lock_state("a-1").entries == ()


def test_a_lock_object_that_requests_leave_locked(app, client):
    """The next request acquires the lock with it anew."""
    lock = Account.locked("a-1")

    @app.get("/")
    def leave():
        assert not lock.is_held
        return str(lock.acquire().ticket)

    tickets = [int(client.get("/").text) for _ in range(2)]
    assert tickets[0] < tickets[1]
    assert not lock.is_held
    assert Account.lock_state("a-1").entries == ()


def test_a_block_that_a_request_leaves_open_inside_of_another_one(app, client):
    """Its late end leaves the lock to the outer block, which holds it by another object."""
    opened = []

    @app.get("/")
    def leave():
        opened.append(lines())
        return next(opened[0])

    def lines():
        with Account.locked("a-1"):
            yield "one"
            yield "two"

    with Account.locked("a-1") as outer:
        assert client.get("/").text == "one"
        opened.pop().close()
        assert outer.is_held
        assert [entry.ticket for entry in Account.lock_state("a-1").entries] == [outer.ticket]
    assert Account.lock_state("a-1").entries == ()


def test_a_forgotten_acquisition_beside_others_of_the_test(app, client):
    """What Lock objects outside have acquired before stays theirs, whichever of them the request has used."""
    one, other = Account.locked("a-1"), Account.locked("a-1")

    @app.get("/")
    def leave():
        one.acquire()
        return "left"

    with one, other:
        assert client.get("/").text == "left"
        other.release()
        assert one.is_held
        other.acquire()
    assert Account.lock_state("a-1").entries == ()


def test_a_lock_of_a_request_that_aborts(app, client, caplog):
    """Is released too."""

    @app.get("/")
    def leave():
        Account.locked("a-1").acquire()
        abort(403)

    assert client.get("/").status_code == 403
    assert Account.lock_state("a-1").entries == ()
    assert "was still held at the end of GET /" in caplog.text


def test_requests_in_an_application_context_of_the_test(app, client):
    """They are apart all the same: If-Match is about one request, and what is held before it is not its own."""

    @app.put("/")
    def change():
        return conditional({}, if_match(Account.get("a-1")))

    @app.post("/")
    def create():
        Account("a-1").save()

    with app.app_context():
        assert client.put("/", headers={"If-Match": f'"{etag(Account.get("a-1"))}"'}).status_code == 200
        assert client.post("/").status_code == 409
        with Account.locked("a-1") as lock:
            client.post("/")
            assert lock.is_held
        Account.locked("a-1").acquire()
    assert Account.lock_state("a-1").entries == ()


def test_a_lost_lock_does_not_break_the_answer(app, client, caplog):
    """The answer is made already; the loss is logged."""

    @app.get("/")
    def leave():
        Account.locked("a-1").acquire()
        return "done"

    @app.teardown_request  # before the end of the application context
    def lose(_error):
        [entry] = Account.lock_state("a-1").entries
        Account.break_lock("a-1", ticket=entry.ticket)

    assert client.get("/").data == b"done"
    assert "the release of" in caplog.text


# The command line


@pytest.fixture
def run(app):
    """Runs ``flask locks ...``."""
    runner = app.test_cli_runner()
    return lambda *arguments, **options: runner.invoke(args=["locks", *arguments], **options)


def test_the_command_line(run, caplog):
    """list and show name holders and waiters, as a table or JSON; break asks, and leaves a trace."""
    Account("a-2").save()
    assert json.loads(run("list", "--json").output) == []
    lock = Account.locked("a-1", owner="clerk", heartbeat=False)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lock.acquire).result()
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


# Configuration


def test_an_unknown_key_is_refused():
    """A slip would send the writes somewhere else."""
    app = Flask("typo")
    app.config["PYNAMO_LOCKING_TABLE_PREFFIX"] = "t-"
    with pytest.raises(ConfigurationError, match="TABLE_PREFFIX is no key"):
        PynamoLocking(models=[]).init_app(app)


def test_several_applications(monkeypatch):
    """Those that agree can share the models; another place is refused until `reset`."""
    account = declare("Account", version=True)
    locking = PynamoLocking(models=[account])

    def configured():
        app = Flask("app")
        app.config.from_prefixed_env()
        locking.init_app(app)
        return app

    monkeypatch.setenv("FLASK_PYNAMO_LOCKING_TABLE_PREFIX", "t-")
    assert [configured().extensions["pynamo_locking"] for _ in range(2)] == [locking] * 2
    assert account.Meta.table_name == "t-Account"
    monkeypatch.setenv("FLASK_PYNAMO_LOCKING_TABLE_PREFIX", "u-")
    with pytest.raises(ConfigurationError, match="configured otherwise"):
        configured()
    locking.reset()
    assert account.Meta.table_name == "Account"


def test_two_extensions_for_one_application():
    """Are refused: the commands of one would hide those of the other."""
    app = Flask("two")
    PynamoLocking(models=[]).init_app(app)
    with pytest.raises(ConfigurationError, match="already"):
        PynamoLocking(models=[]).init_app(app)


def test_helpers_outside_of_a_view(app):
    """`etag` is without quotes, and `conditional` takes whatever a view may return."""
    account = Account.get("a-1")
    with app.test_request_context(headers={"If-None-Match": f'"{etag(account)}"'}):
        assert conditional(("text", 200), account).status_code == 304
