"""What an application is promised in each framework: ETags, errors as responses, and forgotten locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import ConfigurationError, LockLost, LockTimeout, OutcomeUnknown, StaleVersion
from tests.integration.contrib.frameworks import FRAMEWORKS, PROBLEM, Application, Web
from tests.support.models import declare
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER: Final = "Ada Lovelace"
Account: Any = declare("Account", numbers="balance", texts="owner", lock=True, version=True)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, shop: object, memory: Any) -> type[Application]:
    memory.bind(Account)
    return FRAMEWORKS[request.param]


def shown(web: Web, account: Any) -> Any:
    return web.conditional({"owner": account.owner, "balance": int(account.balance)}, account)


def create(web: Web) -> Any:
    account = Account("a-1", owner=OWNER, balance=100)
    account.save()
    return shown(web, account)


def show(web: Web) -> Any:
    return shown(web, Account.get("a-1", consistent_read=True))


def rename(web: Web) -> Any:
    account = web.if_match(Account, "a-1")
    account.update([Account.owner.set(web.body["owner"])])
    return shown(web, account)


def deposit(_web: Web) -> Any:
    with Account.edit("a-1") as account:
        account.balance += 5
    return {"balance": int(account.balance)}


def overtaken(web: Web, compare: Callable[[Web, Any], Any]) -> None:
    account = Account.get("a-1", consistent_read=True)
    compare(web, account)
    Account.modify("a-1", lambda other: setattr(other, "balance", other.balance + 1))
    account.owner = "Eve"
    account.save()


@pytest.fixture
def bank(framework: type[Application]) -> Application:
    """An application with one account."""
    views = {
        ("POST", "/account"): create,
        ("PUT", "/new-account"): create,
        ("GET", "/account"): show,
        ("PUT", "/account"): rename,
        ("POST", "/deposits"): deposit,
        ("PUT", "/compared"): lambda web: overtaken(web, lambda web, account: web.if_match(account)),
        ("PUT", "/not-compared"): lambda web: overtaken(web, lambda *_: None),
    }
    return framework(views, [Account])


def opened(bank: Application) -> str:
    """Open the account; return its ETag."""
    answer = bank.send("POST", "/account")
    assert (answer.status, answer.json) == (200, {"owner": OWNER, "balance": 100})
    return answer.headers["ETag"]


# ETags


def test_an_account_is_read_changed_and_read_again(bank: Application) -> None:
    """Each write has an ETag of its own, which a fresh read shows as well; a change is one request, which compares."""
    first = opened(bank)
    read = bank.send("GET", "/account")
    assert (read.status, read.headers["ETag"]) == (200, first)
    for known in (first, f'"x", W/{first}', "*"):
        unchanged = bank.send("GET", "/account", If_None_Match=known)
        assert (unchanged.status, unchanged.text, unchanged.headers["ETag"]) == (304, "", first)
    assert bank.send("GET", "/account", If_None_Match='"x"').status == 200

    missing = bank.send("PUT", "/account", {"owner": "Grace"})
    assert missing.problem == (428, "precondition-required")
    with count_requests() as requests:
        changed = bank.send("PUT", "/account", {"owner": "Grace"}, If_Match=first)
    assert dict(requests.by_operation) == {"UpdateItem": 1}
    assert (changed.status, changed.json["owner"]) == (200, "Grace")
    assert bank.send("GET", "/account", If_None_Match=first).headers["ETag"] == changed.headers["ETag"] != first

    stale = bank.send("PUT", "/account", {"owner": "Eve"}, If_Match=first)
    assert (*stale.problem, stale.headers["Content-Type"]) == (412, "stale-version", PROBLEM)
    assert (stale.json["expected"], stale.json["actual"]) == (1, 2)
    assert Account.get("a-1").owner == "Grace"


def test_an_account_that_was_opened_again_is_another_one(bank: Application) -> None:
    """Its version is 1 again, and its ETag is not."""
    first = opened(bank)
    Account.get("a-1").delete()
    assert opened(bank) != first
    answer = bank.send("PUT", "/account", {"owner": "Eve"}, If_Match=first)
    assert (answer.status, answer.json["expected"], answer.json["actual"]) == (412, 1, 1)


def test_of_many_that_name_one_etag_one_writes(bank: Application) -> None:
    """The others get a 412."""
    tag = opened(bank)
    answers = bank.at_once(*(("PUT", "/account", {"owner": f"n{i}"}, {"If_Match": tag}) for i in range(4)))
    assert sorted(each.status for each in answers) == [200, 412, 412, 412]
    assert Account.get("a-1").version == 2


@pytest.mark.parametrize(("path", "status"), [("/compared", 412), ("/not-compared", 409)])
def test_a_write_between_the_look_and_the_write(bank: Application, path: str, status: int) -> None:
    """A view that has compared the ETag with what it read gets a 412 all the same; one that has not, a 409."""
    tag = opened(bank)
    assert bank.send("PUT", path, If_Match=tag).problem == (status, "stale-version")
    assert (Account.get("a-1").balance, Account.get("a-1").owner) == (101, OWNER)


def test_any_version_will_do(bank: Application) -> None:
    """``If-Match: *``, or several tags: the item is read, and still written only as it was read."""
    tag = opened(bank)
    for header, status in (("*", 200), (f'"9", {tag}', 412), ("1", 400)):
        assert bank.send("PUT", "/account", {"owner": "Grace"}, If_Match=header).status == status
    now = bank.send("GET", "/account").headers["ETag"]
    assert bank.send("PUT", "/account", {"owner": "Eve"}, If_Match=f'"9", {now}').status == 200
    Account.get("a-1").delete()
    for header in ("*", '"1-a", "2-b"', '"1"'):
        assert bank.send("PUT", "/account", {"owner": "Eve"}, If_Match=header).status == 412


# Errors


def test_an_account_is_opened_twice(bank: Application) -> None:
    """409, in the form of RFC 9457, with nothing of what is stored; 412 for ``If-None-Match: *``."""
    opened(bank)
    answer = bank.send("POST", "/account")
    assert (answer.status, answer.headers["Content-Type"]) == (409, PROBLEM)
    assert answer.json["type"] == "urn:pynamo-locking:problem:stale-version"
    assert not any(secret in answer.text for secret in (OWNER, "a-1", Account.Meta.table_name, "100"))
    for method, path in (("POST", "/account"), ("PUT", "/new-account")):
        assert bank.send(method, path, If_None_Match="*").problem == (412, "stale-version")


@pytest.mark.parametrize(("method", "path"), [("POST", "/account"), ("PUT", "/new-account")])
def test_an_account_that_is_to_be_created_or_nothing(bank: Application, method: str, path: str) -> None:
    """It is shown: ``If-None-Match: *`` spares a body only of who reads."""
    created = bank.send(method, path, If_None_Match="*")
    assert (created.status, created.json) == (200, {"owner": OWNER, "balance": 100})
    assert bank.send("GET", "/account", If_None_Match="*").status == 304


def test_an_account_that_is_locked(bank: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """423 with the holder's ticket: for a write, and for who waits in vain. No client is told who holds it."""
    monkeypatch.setattr(Account.Meta, "lock_settings", LockSettings(wait=0))
    tag = opened(bank)
    with held_elsewhere(Account.locked("a-1", owner="host-17")) as lock:
        refused = bank.send("PUT", "/account", {"owner": "Eve"}, If_Match=tag)
        in_vain = bank.send("POST", "/deposits")
        ticket = lock.ticket
    for answer, code in ((refused, "item-locked"), (in_vain, "lock-timeout")):
        assert (*answer.problem, answer.json["ticket"]) == (423, code, ticket)
        assert answer.headers["Retry-After"] == "1"  # it is alive, and tells no client when it will be done
        assert "host-17" not in answer.text
    assert bank.send("POST", "/deposits").json == {"balance": 105}


def failing(framework: type[Application], error: Exception, **options: Any) -> Application:
    def fail(_web: Web) -> Any:
        raise error

    return framework({("POST", "/fail"): fail}, [Account], **options)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OutcomeUnknown("no answer", write_id="w-1"), 500, "outcome-unknown"),
        (LockLost("gone", ticket=7), 500, "lock-lost"),
        (LockTimeout("no answer"), 503, "no-answer"),
    ],
)
def test_errors_that_are_no_ordinary_conflict(
    framework: type[Application], caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    """500 if something may have happened: no client sends that again of its own accord. The error is in the log."""
    assert failing(framework, error).send("POST", "/fail").problem == (status, code)
    [record] = [record for record in caplog.records if record.name.startswith("pynamo_locking")]
    assert (record.levelname, record.exc_info and record.exc_info[1]) == ("ERROR", error)
    assert "POST /fail" in record.message


def test_an_application_may_answer_itself(framework: type[Application]) -> None:
    """Its own handler counts; other errors of the package are not its concern, nor are the program's ours."""

    def answer(error: Exception, **options: Any) -> Any:
        return failing(framework, error, problem_type="https://example.com/", **options).send("POST", "/fail")

    assert answer(LockLost(""), own=LockLost).text == "mine"
    assert answer(StaleVersion(""), own=LockLost).json["type"] == "https://example.com/stale-version"
    programs = answer(ConfigurationError(""))
    assert (programs.status, programs.json) == (500, None)


# What a request leaves locked


def leaver(framework: type[Application], locks: list[Any]) -> Application:
    """An application that takes a lock and leaves it, in several ways."""

    def leave(how: str) -> Any:
        locks.append(Account.locked("a-1").acquire())
        if how == "twice":
            Account.locked("a-1").acquire()
        if how == "saved":
            locks[-1].item.balance += 1
        if how == "error":
            raise ZeroDivisionError
        if how == "conflict":
            raise StaleVersion("")
        return {}

    ways = ("plain", "twice", "saved", "error", "conflict")
    return framework({("GET", f"/{how}"): lambda _, how=how: leave(how) for how in ways}, [Account])


#: Those in which a request has a context of its own to its end. In Starlette nothing is released.
ENDS: Final = pytest.mark.parametrize("framework", ["flask", "django"], indirect=True)


@ENDS
@pytest.mark.parametrize("how", ["plain", "twice", "saved", "error", "conflict"])
def test_a_forgotten_lock_is_released(framework: type[Application], caplog: pytest.LogCaptureFixture, how: str) -> None:
    """At the end of the request, whatever became of it; nothing is saved then, and the log says so."""
    Account("a-1", balance=100).save()
    locks: list[Any] = []
    leaver(framework, locks).send("GET", f"/{how}")
    assert Account.lock_state("a-1").entries == ()
    assert not locks[0].is_held
    assert f"was still held at the end of GET /{how}" in caplog.text
    assert Account.get("a-1").balance == 100
    with Account.locked("a-1", wait=0) as lock:  # nothing of it is left in this thread
        assert lock not in locks


@ENDS
def test_a_lock_from_before_the_request_stays(framework: type[Application]) -> None:
    """It is not the request's to release, even where the request has taken it once more."""
    Account("a-1").save()
    with Account.locked("a-1") as lock:
        leaver(framework, []).send("GET", "/plain")
        assert lock.is_held
        assert [entry.ticket for entry in Account.lock_state("a-1").entries] == [lock.ticket]
    assert Account.lock_state("a-1").entries == ()  # no take of the request is left
