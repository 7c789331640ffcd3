"""The command line on tables: what it shows, what it changes, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, NamedLock, TransactionTable, VersionAttribute
from pynamo_locking._locks import local_queue
from pynamo_locking.cli import locks
from pynamo_locking.exceptions import LockLost
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import one_table_models
from tests.support.call_models import Calls
from tests.support.deeds import dying_at
from tests.support.models import Account, Device, Document, Locks, declare, meta
from tests.support.parties import in_thread
from tests.support.shell import MODELS, Shell, Waiter, changed, denied, described, name_of, prepared
from tests.support.transaction_models import Purse, Transactions, make_long_from, survive
from tests.support.wire import on
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


Ranked = declare(
    "Ranked", lock=True, rank=NumberAttribute(hash_key=True), raw=BinaryAttribute(range_key=True, legacy_encoding=False)
)
Seat = declare("Seat", hash_key="hall", range_key="number", lock_table=Locks)


@pytest.fixture
def shell(memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, on the database in memory."""
    return prepared(memory, capsys, monkeypatch)


@pytest.fixture
def table(memory: Engine) -> tuple[str, str]:
    """The option that names an empty table of locks, in memory."""
    memory.bind(Locks)
    return "--table", name_of(Locks)


@pytest.fixture
def anywhere(cheap: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, on each of the engines that cost little."""
    return prepared(cheap, capsys, monkeypatch)


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    """Time stands still unless a caller waits."""
    with VirtualClock() as clock:
        yield clock


# locks list, show, watch


def iso(moment):
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_the_document_of_a_lock(memory, shell, clock, table):
    """All keys, with units in their names; `show` has the same, for one lock."""
    clock.jump(0.5)
    entered, ends = clock.now, clock.now + timedelta(seconds=30)
    with Locks.locked("a job", owner="me", lease=30) as lock:
        listed = shell.answer("locks", "list", *table)
        shown = shell.answer("locks", "show", "a job", *table)

    assert listed == {
        "table": name_of(Locks),
        "locks": [
            {
                "name": "a job",
                "key": {"hash": "a job", "range": None},
                "is_free": False,
                "holders": [
                    {
                        "ticket": lock.ticket,
                        "callers": 1,
                        "is_detached": False,
                        "owner": "me",
                        "mode": "exclusive",
                        "permits": 1,
                        "range_lower": None,
                        "range_upper": None,
                        "entered_at": iso(entered),
                        "queued_s": 0.0,
                        "held_s": 0.0,
                        "lease_s": 30.0,
                        "renewals": 0,
                        "guarded_writes": 0,
                        "since_renewal_s": 0.0,
                        "lease_left_s": 30.0,
                        "lease_ends_at": iso(ends),
                    }
                ],
                "waiters": [],
                "next_ticket": lock.ticket + 1,
                "broken_tickets": [],
                "last_success": None,
                "transaction": None,
                "unreadable": None,
                "format": 1,
            }
        ],
        "unreadable": {},
    }
    assert shown == {"table": name_of(Locks), **listed["locks"][0], "item_exists": True}


def test_a_detached_lock(shell, table):
    """Nobody renews it, and it is held: the table says why."""
    with Locks.locked("job", owner="me") as lock:
        token = lock.detach()
    assert "me (detached)" in shell.run("locks", "show", "job", *table)[1]
    with Locks.attach(token, owner="me"):
        assert "(detached)" not in shell.run("locks", "show", "job", *table)[1]


def test_an_entry_of_several_callers(shell, monkeypatch, table):
    """The table and the question before a break say for how many callers of a process an entry stands."""
    monkeypatch.setattr(local_queue, "tickets_to_reserve", lambda _: 3)
    with pytest.raises(LockLost), Locks.locked("job", owner="me") as lock:
        assert shell.answer("locks", "show", "job", *table)["holders"][0]["callers"] == 3
        assert "me and 2 more" in shell.run("locks", "show", "job", *table)[1]
        asked: list[str] = []
        monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) is None)
        assert shell.run("locks", "break", "job", "--ticket", str(lock.ticket), *table)[0] == 0
        assert asked[0].endswith("2 more callers of its process lose their tickets with it. Break it?")


def test_holders_and_waiters(anywhere, cheap):
    """In the order of their tickets; free locks are left out unless asked for, others by their names."""
    cheap.bind(Locks)
    with Locks.locked("free"):
        pass
    first = Waiter(Locks, "b", owner="first")
    second = Waiter(Locks, "b", owner="second")
    other = Waiter(Locks, "a", owner="other", shared=True)
    table = ["--table", name_of(Locks)]
    try:
        listed = anywhere.answer("locks", "list", *table)["locks"]
        chosen = anywhere.answer("locks", "list", *table, "--prefix", "b")["locks"]
        all_ = anywhere.answer("locks", "list", *table, "--all")["locks"]
    finally:
        for each in (first, second, other):
            each.close()

    assert [(each["name"], owners(each, "holders"), owners(each, "waiters")) for each in listed] == [
        ("a", ["other"], []),
        ("b", ["first"], ["second"]),
    ]
    assert listed[0]["holders"][0]["mode"] == "shared"
    assert listed[1]["holders"][0]["ticket"] < listed[1]["waiters"][0]["ticket"]
    assert [each["name"] for each in chosen] == ["b"]
    assert [(each["name"], each["is_free"]) for each in all_] == [("a", False), ("b", False), ("free", True)]


def owners(lock: dict[str, Any], role: str) -> list[str]:
    """Of the holders, or of those who wait."""
    return [entry["owner"] for entry in lock[role]]


def test_locks_in_items_and_beside_them(anywhere, cheap):
    """By the model or by the name of the table; what is listed as the key is what `show` takes."""
    cheap.bind(Account, Document, Device, Locks, Ranked)
    Account("a/1").save()
    Document("f", 7).save()
    Ranked(1.5, raw=b"\x00\xff").save()
    here = f"{__name__}:Ranked"
    looked_at: list[tuple[Any, tuple[Any, ...], list[str], dict[str, str | None]]] = [
        (Account, ("a/1",), ["--model", f"{MODELS}:Account"], {"hash": "a/1", "range": None}),
        (Account, ("a/1",), ["--table", name_of(Account)], {"hash": "a/1", "range": None}),
        (Document, ("f", 7), ["--model", f"{MODELS}:Document"], {"hash": "f", "range": "7"}),
        (Document, ("f", 7), ["--table", name_of(Document), "--attribute", "lck"], {"hash": "f", "range": "7"}),
        (Device, ("d/1",), ["--model", f"{MODELS}:Device"], {"hash": "d/1", "range": None}),
        (Ranked, (1.5, b"\x00\xff"), ["--model", here], {"hash": "1.5", "range": "AP8="}),
        (Ranked, (1.5, b"\x00\xff"), ["--table", name_of(Ranked)], {"hash": "1.5", "range": "AP8="}),
    ]
    for model, key, options, text in looked_at:
        with model.locked(*key, owner="me") as lock:
            (listed,) = anywhere.answer("locks", "list", *options)["locks"]
            shown = anywhere.answer("locks", "show", *filter(None, text.values()), *options)
        assert (listed["key"], listed["name"], owners(listed, "holders")) == (text, lock.name, ["me"]), options
        assert (shown["key"], shown["name"], owners(shown, "holders")) == (text, lock.name, ["me"]), options


def test_ranges_of_a_model(memory, shell):
    """Are shown with the hash key alone, with their bounds."""
    memory.bind(Seat, Locks)
    model = ["--model", f"{__name__}:Seat"]
    with Seat.locked_range("main hall", 10, 20, owner="group"), Seat.locked("main hall", 5):
        listed = shell.answer("locks", "list", *model)["locks"]
        shown = shell.answer("locks", "show", "main hall", *model)
        people = shell.run("locks", "show", "main hall", *model)[1]

    assert [each["key"] for each in listed] == [
        {"hash": "main hall", "range": None},
        {"hash": "main hall", "range": "5"},
    ]
    assert [(each["range_lower"], each["range_upper"]) for each in shown["holders"]] == [("10", "20")]
    assert "exclusive [10, 20)" in people


def test_without_its_range_key_no_item_is_told_to_be_free(memory, shell):
    """A locked item of a model with a table of locks: only its ranges are looked at, and none is locked."""
    memory.bind(Seat, Locks)
    model = ["--model", f"{__name__}:Seat"]
    with Seat.locked("main hall", 5, owner="me"):
        for command in (["show"], ["break", "--ticket", "1", "--yes"]):
            error = shell.error("locks", command[0], "main hall", *model, *command[1:])
            assert error["kind"] == "usage"
            assert error["message"] == (
                "no range of 'main hall' is locked. For the lock of an item, name its range key after the KEY."
            )
        assert owners(shell.answer("locks", "show", "main hall", "5", *model), "holders") == ["me"]


def test_a_range_key_that_is_missing_or_too_much(memory, shell):
    """Is said before any look."""
    memory.bind(Document, Account)
    wrong = shell.error("locks", "show", "f", "--model", f"{MODELS}:Document")
    assert wrong["message"] == f"the items of {name_of(Document)} have a range key: name it after the KEY."
    assert "no range key" in shell.error("locks", "show", "a", "b", "--model", f"{MODELS}:Account")["message"]
    error = shell.error("locks", "show", "f", "x", "--model", f"{MODELS}:Document")
    assert "'x' is no sk (NumberAttribute): " in error["message"]
    assert shell.error("locks", "list", "--prefix", "1", "--model", f"{__name__}:Ranked")["kind"] == "usage"


def test_a_scan_of_several_pages(memory, shell):
    """DynamoDB reads 1 MB a page, before it filters."""
    memory.bind(Account)
    for number in range(4):
        Account(f"a-{number}", note="x" * 390_000).save()
    with Account.locked("a-0"), Account.locked("a-1"), Account.locked("a-2"), Account.locked("a-3"):
        listed = shell.answer("locks", "list", "--table", name_of(Account))["locks"]

    assert [each["key"]["hash"] for each in listed] == ["a-0", "a-1", "a-2", "a-3"]


def test_the_table_for_people(shell, table):
    """Nothing of an owner's label is obeyed by the terminal, or by rich."""
    with Locks.locked("job", owner="\x1b[31m[bold]x", lease=60):
        code, text, _ = shell.run("locks", "list", *table)
    free = shell.run("locks", "list", *table)[1]
    alone = shell.run("locks", "show", "job", *table)[1]

    assert code == 0
    assert "\\x1b[31m[bold]x" in text
    assert "\x1b" not in text
    assert all(word in text for word in ("job", "holds", "exclusive", "1 min", "lease ends"))
    assert free == f"{name_of(Locks)}: no lock is held.\n"
    assert "free" in alone


def test_watch(shell, monkeypatch, table):
    """Looks again and again, one line of JSON a look, until Ctrl-C; with ``--once`` it is `list`."""
    pauses: list[float] = []
    taken: list[Any] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        taken.append(Locks.locked("job", owner="me").acquire())

    monkeypatch.setattr(locks, "_sleep", sleep)
    code, out, err = shell.run("locks", "watch", *table, "--every", "5", "--json")
    looks = [json.loads(line) for line in out.splitlines()]
    once = shell.answer("locks", "watch", "--once", *table)
    taken[0].release()
    pauses.clear()
    people = shell.run("locks", "watch", *table)[1]
    taken[1].release()

    assert (code, err, pauses[:1]) == (0, "", [2.0])
    assert [[owners(each, "holders") for each in look["locks"]] for look in looks] == [[], [["me"]]]
    assert [owners(each, "holders") for each in once["locks"]] == [["me"]]
    assert people.startswith(f"{name_of(Locks)}: no lock is held.\n")


def test_watch_on_a_terminal(shell, monkeypatch, table):
    """Draws in place, on the terminal's second screen, and gives that back."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(locks, "_sleep", sleep)
    with Locks.locked("job", owner="me"):
        code, out, _ = shell.run("locks", "watch", *table)

    assert code == 0
    assert out.count("job") == 2
    assert out.index("\x1b[?1049h") < out.index("job") < out.index("\x1b[?1049l")


# locks break


def test_break(anywhere, cheap, tmp_path):
    """The entry is gone, who comes next has the lock, and the log says who did it to whom."""
    cheap.bind(Locks)
    log = tmp_path / "log"
    holder = Locks.locked("job", owner="holder", heartbeat=False).acquire()
    next_ = Waiter(Locks, "job", owner="next")
    table, ticket = ["--table", name_of(Locks)], str(holder.ticket)
    code, out, err = anywhere.run(
        "locks", "break", "job", *table, "--ticket", ticket, "--yes", "--json", "--log-file", str(log)
    )
    document = json.loads(out)
    who = document.pop("broken_by")
    until(lambda: [entry.owner for entry in Locks.lock_state("job").holders] == ["next"])
    again = anywhere.error("locks", "break", "job", *table, "--ticket", ticket, "--yes")
    after = anywhere.answer("locks", "show", "job", *table)
    next_.close()

    assert code == 0
    assert document == {
        "table": name_of(Locks),
        "name": "job",
        "key": {"hash": "job", "range": None},
        "ticket": holder.ticket,
        "owner": "holder",
        "callers": 1,
        "was": "held it",
        "broken": True,
    }
    said = f"ticket {ticket} of job in {name_of(Locks)} was broken by {who}; it was that of holder, which held it"
    assert {"log": {"level": "warning", "message": said}} in [json.loads(line) for line in err.splitlines()]
    assert said in log.read_text()
    assert (again["kind"], again["exit_code"], again["ticket"]) == ("no_such_ticket", 1, holder.ticket)
    assert after["broken_tickets"] == [holder.ticket]


def test_break_an_item_or_who_waits(memory, shell):
    """By the model, with its key; a ticket of the queue may be meant as well."""
    memory.bind(Document)
    Document("f", 7).save()
    model = ["--model", f"{MODELS}:Document"]
    holder = Document.locked("f", 7, owner="holder", heartbeat=False).acquire()
    document = shell.answer("locks", "break", "f", "7", *model, "--ticket", str(holder.ticket), "--yes")

    assert (document["key"], document["was"]) == ({"hash": "f", "range": "7"}, "held it")
    assert Document.lock_state("f", 7).entries == ()
    Document("g", 7).save()
    with Document.locked("g", 7):
        waiter = Waiter(Document, "g", 7, owner="next")
        ticket = Document.lock_state("g", 7).waiters[0].ticket
        waits = shell.answer("locks", "break", "g", "7", *model, "--ticket", str(ticket), "--yes")
    waiter.close()
    assert (waits["was"], waits["owner"]) == ("waited", "next")


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("y\n", 0, "Ticket {ticket} of job is gone."),
        ("n\n", 1, "pynamo-locking: nothing was changed."),
        ("", 2, "pynamo-locking: there was no answer, so nothing was changed; without a terminal say --yes."),
    ],
)
def test_break_asks(answer, code, message, shell, monkeypatch, tmp_path, table):
    """It says whose entry that is; without a yes nothing happens."""
    typed = tmp_path / "typed"
    typed.write_text(answer)
    holder = Locks.locked("job", owner="holder", heartbeat=False).acquire()
    with typed.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        result = shell.run("locks", "break", "job", *table, "--ticket", str(holder.ticket))

    assert result[0] == code
    assert message.format(ticket=holder.ticket) in result[1] + result[2]
    assert re.search(rf"job: ticket {holder.ticket} of holder, which held it for \d\.\d s, was renewed", result[2])
    assert len(Locks.lock_state("job").entries) == (0 if code == 0 else 1)


def test_break_needs_the_right_ticket_and_a_yes(shell, table):
    """Nothing is changed otherwise; the error names the tickets that are there."""
    empty = shell.error("locks", "break", "job", *table, "--ticket", "1", "--yes")
    with Locks.locked("job") as lock:
        wrong = shell.error("locks", "break", "job", *table, "--ticket", str(lock.ticket + 1), "--yes")
        unasked = shell.error("locks", "break", "job", *table, "--ticket", str(lock.ticket))

    assert (empty["kind"], empty["tickets"]) == ("no_such_ticket", [])
    assert (wrong["kind"], wrong["exit_code"], wrong["tickets"]) == ("no_such_ticket", 1, [lock.ticket])
    assert (unasked["kind"], "--yes" in unasked["message"]) == ("usage", True)


def test_break_of_who_leaves_meanwhile(shell, monkeypatch, table):
    """While the question was thought about: nothing is broken, and the log does not say so."""
    holder = Locks.locked("job", owner="holder").acquire()
    monkeypatch.setattr("typer.confirm", lambda *_, **__: holder.release() is None)
    code, out, err = shell.run("locks", "break", "job", *table, "--ticket", str(holder.ticket))

    assert (code, out) == (1, "")
    assert "it has left meanwhile; the queue is empty." in err
    assert "broken by" not in err


def test_a_table_that_is_missing(anywhere, cheap):
    """Every command that needs one says so, with the same kind and exit code."""
    table = ["--table", cheap.new_name("nowhere")]
    for command in (
        ["locks", "list", *table],
        ["locks", "show", "a", *table],
        ["tx", "list", *table],
        ["tx", "show", "a", *table],
        ["tx", "recover", "a", *table],
        ["run", "--lock", "a", *table, "--json", "--", sys.executable],
    ):
        code, out, err = anywhere.run(*command, *(() if command[0] == "run" else ("--json",)))
        error = json.loads(err.splitlines()[-1])["error"]
        assert (code, out, error["kind"], error["exit_code"]) == (78, "", "table_missing", 78), command


def test_settings_say_where(memory, shell, tmp_path, monkeypatch):
    """The table comes from the file that is named, and that is said; the option wins."""
    memory.bind(Locks)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pyproject.toml"
    path.write_text(f'[tool.pynamo-locking]\ntable = "{name_of(Locks)}"\n')
    named = ("--config", path.name)

    assert shell.answer("locks", "list", *named) == {"table": name_of(Locks), "locks": [], "unreadable": {}}
    other = ("--table", memory.new_name("other"))
    assert shell.error("locks", "list", *named, *other)["kind"] == "table_missing"
    assert shell.run("locks", "list", *named)[2] == f"pynamo-locking: settings from {path}\n"


def test_the_directory_of_somebody_else(memory, shell, tmp_path, monkeypatch):
    """A file that nobody has named says nothing: no module of it is imported, no log of it is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pynamo-locking]\ntable = "evil:Locks"\nendpoint = "http://localhost:1"\nlog-file = "log"\n'
    )

    assert "--config" in shell.error("locks", "list")["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.py", "pyproject.toml"]


def test_a_module_beside_the_file(memory, shell, tmp_path, monkeypatch):
    """What the file names is found beside it, and not in the working directory."""
    memory.bind(Locks)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other" / "beside_the_file.py").write_text("raise SystemExit('imported')")
    (tmp_path / "beside_the_file.py").write_text(f"from {MODELS} import Locks\n")
    (tmp_path / "settings.toml").write_text('[tool.pynamo-locking]\ntable = "beside_the_file:Locks"\n')

    listed = shell.answer("locks", "list", "--config", "../settings.toml")
    assert listed == {"table": name_of(Locks), "locks": [], "unreadable": {}}


def test_the_settings_are_those_of_named_models_as_well(memory, shell):
    """A model that was meant for AWS is looked at where the options say; afterwards it is as it was."""
    memory.bind(Locks)
    before, seen = (Locks.Meta.host, Locks.Meta.region), list[Any]()
    where = ("--endpoint", "http://localhost:8000", "--region", "eu-west-9")
    with on("Scan").before(lambda: seen.append((Locks.Meta.host, Locks.Meta.region))):
        listed = shell.answer("locks", "list", "--model", f"{MODELS}:Locks", *where)

    assert listed == {"table": name_of(Locks), "locks": [], "unreadable": {}}
    assert seen == [("http://localhost:8000", "eu-west-9")]
    assert (Locks.Meta.host, Locks.Meta.region) == before


# tables


def levels(table: dict[str, Any]) -> dict[str, str]:
    """How each check went."""
    return {each["check"]: each["level"] for each in table["findings"]}


def test_create_and_check(anywhere, cheap, monkeypatch):
    """Creates what is missing, with TTL, once; checks find nothing to say but what cannot be seen."""
    lock_table, transaction_table, items = (cheap.new_name(name) for name in ("locks", "transactions", "items"))

    class Beside(NamedLock):
        Meta = meta(lock_table, host=cheap.host)

    class Items(LockableModel):
        Meta = meta(items, host=cheap.host, lock_table=Beside)

        name = UnicodeAttribute(hash_key=True)
        version = VersionAttribute()

    monkeypatch.setattr(f"{__name__}.Seat", Items)
    everything = ["--table", lock_table, "--transaction-table", transaction_table, f"{__name__}:Seat"]
    before = anywhere.answer("tables", "check", *everything, code=1)
    created = anywhere.answer("tables", "create", *everything)
    again = anywhere.answer("tables", "create", *everything)
    after = anywhere.answer("tables", "check", *everything, "--strict")

    assert [each["findings"][0]["level"] for each in before["tables"]] == ["problem"] * 3
    assert [(each["table"], each["role"], each["created"]) for each in created["tables"]] == [
        (lock_table, "locks", True),
        (transaction_table, "transactions", True),
        (items, "items", True),
    ]
    assert [each["created"] for each in again["tables"]] == [False] * 3
    assert after["ok"] is created["ok"] is again["ok"] is True
    usual = {
        **dict.fromkeys(["exists", "keys", "regions", "billing", "encryption", "ttl"], "ok"),
        "permission_GetItem": "ok",
        "permission_Scan": "ok",
        "permission_writes": "note",
    }
    own = {**usual, "rows": "ok"}
    assert [levels(each) for each in after["tables"]] == [own, own, {**usual, "locks": "ok"}]
    details = {each["check"]: each["detail"] for each in after["tables"][0]["findings"]}
    assert (details["keys"], details["ttl"], details["billing"]) == ("name (S)", "by expires_s", "on demand")


def test_a_table_of_other_keys(memory, shell):
    """Is a problem that nothing can mend, also for `create`."""
    table = memory.create_table("N", "S")
    for command in ("check", "create"):
        (found,) = shell.answer("tables", command, "--table", table, code=1)["tables"]
        (finding,) = [each for each in found["findings"] if each["check"] == "keys"]
        assert finding["level"] == "problem"
        assert finding["detail"] == "the table has pk (N), sk (S), the model name (S)"


def test_a_table_of_other_keys_among_others(memory, shell, monkeypatch):
    """Nothing is created then: the mistake may be in the name."""
    memory.bind(Locks)
    absent = declare("Absent", table_name=memory.new_name("absent"))
    monkeypatch.setattr(f"{__name__}.Seat", absent)
    named = ["--table", name_of(Locks), "--transaction-table", memory.create_table("N", "S"), f"{__name__}:Seat"]
    assert not any(each["created"] for each in shell.answer("tables", "create", *named, code=1)["tables"])
    assert not absent.exists()


def test_a_table_without_ttl(memory, shell):
    """A warning, which counts with ``--strict``, and which `create` mends."""
    name = memory.new_name("locks")
    memory.client().create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        BillingMode="PROVISIONED",
        ProvisionedThroughput={"ReadCapacityUnits": 3, "WriteCapacityUnits": 4},
    )
    (before,) = shell.answer("tables", "check", "--table", name)["tables"]
    strict = shell.answer("tables", "check", "--table", name, "--strict", code=1)
    (after,) = shell.answer("tables", "create", "--table", name)["tables"]

    assert (levels(before)["ttl"], levels(before)["billing"], strict["ok"]) == ("warning", "note", False)
    assert {"check": "billing", "level": "note"}.items() <= before["findings"][3].items()
    assert before["findings"][3]["detail"] == "provisioned, 3 read and 4 write units"
    assert (after["created"], levels(after)["ttl"]) == (False, "ok")


def time_to_live(**facts: str) -> dict[str, Any]:
    """An answer about TTL."""
    return {"TimeToLiveDescription": facts, "ResponseMetadata": {"HTTPStatusCode": 200}}


REPLICAS = [{"RegionName": "us-east-1"}, {"RegionName": "eu-west-1"}]


def replicated(**facts: str) -> Any:
    """Let the table have replicas."""
    return described(Replicas=REPLICAS, **facts)


IS_STRONG = {"MultiRegionConsistency": "STRONG"}
CANNOT_DECRYPT = {"InaccessibleEncryptionDateTime": 1}
OWN_KEY = {"Status": "ENABLED", "SSEType": "KMS", "KMSMasterKeyArn": "arn:1"}
BY_LOCK = time_to_live(TimeToLiveStatus="ENABLED", AttributeName="lock")
LOST_KEY = "INACCESSIBLE_ENCRYPTION_CREDENTIALS"


def test_one_table_for_all_passes_the_strict_check(memory, shell):
    """Its TTL is by the attribute of the rows of ours; the models of the application have none."""
    one_table_models.make(memory, others=0)
    one_table_models.Locks.create_table(enable_ttl=True)
    order, robot, user = (f"{one_table_models.__name__}:{name}" for name in ("Order", "Robot", "User"))

    checked = shell.answer("tables", "check", order, robot, user, "--strict")

    assert checked["ok"]
    ttl = {each["detail"] for table in checked["tables"] for each in table["findings"] if each["check"] == "ttl"}
    assert ttl == {"by ttl", "by ttl, for the rows of Locks in it"}
    memory.client().update_time_to_live(
        TableName=name_of(one_table_models.Order),
        TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"},
    )
    assert not shell.answer("tables", "check", order, "--strict", code=1)["ok"]


@pytest.mark.parametrize(
    ("model", "operation", "change", "check", "level", "words"),
    [
        *(
            (model, "DescribeTable", *more)
            for model, *more in (
                (Locks, replicated(), "regions", "problem", "eu-west-1, us-east-1"),
                (Locks, replicated(MultiRegionConsistency="EVENTUAL"), "regions", "problem", "the last writer wins"),
                (Locks, replicated(**IS_STRONG), "regions", "warning", "no transactions and no TTL"),
                (Account, replicated(**IS_STRONG), "regions", "warning", "no transactions and no TTL"),
                (Device, replicated(**IS_STRONG), "regions", "problem", "need transactions: Meta.lock_table"),
                (Locks, described(TableStatus="CREATING"), "exists", "warning", "CREATING"),
                (Locks, described(TableStatus=LOST_KEY), "exists", "problem", "INACCESSIBLE"),
                (Locks, described(SSEDescription=CANNOT_DECRYPT), "encryption", "problem", "cannot use"),
                (Locks, described(SSEDescription=OWN_KEY), "encryption", "ok", "KMS arn:1"),
                (Locks, denied, "exists", "warning", "not authorized"),
            )
        ),
        (Locks, "GetItem", denied, "permission_GetItem", "problem", "AccessDeniedException"),
        (Locks, "Scan", denied, "permission_Scan", "note", "AccessDeniedException"),
        (Locks, "DescribeTimeToLive", denied, "ttl", "note", "AccessDeniedException"),
        (
            Account,
            "DescribeTimeToLive",
            lambda _: BY_LOCK,
            "ttl",
            "warning",
            "by lock, while the model has no attribute for it",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_what_a_check_sees(model, operation, change, check, level, words, memory, shell, monkeypatch):  # noqa: PLR0917
    """What can be wrong with a table on AWS, and how bad it is."""
    memory.bind(model)
    changed(memory, monkeypatch, operation, change)
    answer = shell.answer("tables", "check", f"{MODELS}:{model.__name__}", code=1 if level == "problem" else 0)
    (finding,) = [each for each in answer["tables"][0]["findings"] if each["check"] == check]

    assert (finding["level"], words in finding["detail"]) == (level, True), finding
    assert bool(finding["remedy"]) is (level != "ok")
    assert answer["ok"] is (level != "problem")
    assert answer["tables"][0]["model"] == f"{MODELS}:{model.__name__}"


def test_create_leaves_a_global_table_alone(memory, shell, monkeypatch):
    """No TTL is switched on there, and the exit code says that it cannot be used."""
    memory.bind(Locks)
    changed(memory, monkeypatch, "DescribeTable", described(Replicas=REPLICAS))
    changed(memory, monkeypatch, "DescribeTimeToLive", lambda _: time_to_live())
    updates = changed(memory, monkeypatch, "UpdateTimeToLive", denied)
    (found,) = shell.answer("tables", "create", f"{MODELS}:Locks", code=1)["tables"]

    assert (levels(found)["regions"], levels(found)["ttl"], found["created"]) == ("problem", "note", False)
    assert updates == []


def test_models_without_locks_can_be_checked(memory, shell, monkeypatch):
    """They are told so; for people there is a table."""

    class Bare(Model):
        Meta = meta(memory.new_name("plain"))

        name = UnicodeAttribute(hash_key=True)

    monkeypatch.setattr(f"{__name__}.Seat", Bare)
    code, text, _ = shell.run("tables", "create", f"{__name__}:Seat")

    assert code == 0
    assert f"{name_of(Bare)} (items), created" in text
    assert "the model has none" in text


def test_no_permission(memory, shell, monkeypatch, table):
    """Of a command: exit code 77, and what DynamoDB said."""
    changed(memory, monkeypatch, "Scan", denied)
    error = shell.error("locks", "list", *table)

    assert (error["kind"], error["exit_code"]) == ("access_denied", 77)
    assert "not authorized" in error["message"]


# tx


@pytest.fixture
def half_done(memory: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A pending transaction and a committed one, whose processes have died; their ids."""
    make_long_from(monkeypatch)
    memory.bind(Purse, Transactions)
    ids = []
    for requests, is_committed in ((6, False), (9, True)):
        tx = Transaction(workers=1, owner=f"dies after {requests}", lease=30)
        for number in range(9):
            tx.save(Purse(f"{requests}-{number}", balance=1))
        with dying_at(monkeypatch, "decision", is_answer_lost=is_committed):
            assert not survive(tx.commit)
        ids.append(tx.id)
        clock.jump(1)
    assert [Transactions.outcome(each) for each in ids] == ["pending", "committed"]
    return ids[0], ids[1]


def test_list_and_show_transactions(memory, shell, half_done):
    """By state and age, with owner and lease; `show` has the items as well."""
    table = ["--table", name_of(Transactions)]
    listed = shell.answer("tx", "list", *table)
    chosen = shell.answer("tx", "list", *table, "--state", "committed")["transactions"]
    shown = shell.answer("tx", "show", half_done[0], *table)
    first, second = listed["transactions"]
    participants = shown.pop("participants")

    assert listed["table"] == name_of(Transactions)
    assert [each["id"] for each in chosen] == [half_done[1]]
    assert {key: first[key] for key in ("id", "state", "owner", "lease_s", "abort_reason")} == {
        "id": half_done[0],
        "state": "pending",
        "owner": "dies after 6",
        "lease_s": 30.0,
        "abort_reason": None,
    }
    assert first.keys() == {
        *(
            "id",
            "state",
            "owner",
            "items_with_intents",
            "began_at",
            "age_s",
            "lease_s",
            "since_renewal_s",
            "lease_ends_at",
        ),
        *("lease_left_s", "abort_reason"),
    }
    assert first["age_s"] == 2.0
    assert second["age_s"] == 1.0
    assert first["lease_left_s"] == 28.0
    assert shown == {"table": name_of(Transactions), **first}
    assert len(participants) == first["items_with_intents"] > 0
    assert {(each["table"], each["lock_attribute"], *each["key"]) for each in participants} == {
        (name_of(Purse), "lock", "purse_id")
    }
    text = shell.run("tx", "show", half_done[0], *table)[1]
    assert f"{name_of(Purse)}" in text
    assert "pending" in shell.run("tx", "list", *table)[1]


def test_recover(memory, shell, half_done):
    """Finishes the committed one, aborts the other. The model names its table."""
    model = ["--model", "tests.support.transaction_models:Purse"]
    assert shell.answer("tx", "recover", half_done[1], *model) == {
        "table": name_of(Transactions),
        "id": half_done[1],
        "state": "finished",
    }
    assert shell.error("tx", "recover", half_done[0], "--force", *model)["kind"] == "usage"
    assert shell.answer("tx", "recover", half_done[0], "--force", "--yes", *model)["state"] == "aborted"
    assert shell.answer("tx", "show", half_done[0], *model)["abort_reason"] == "requested"
    assert shell.run("tx", "recover", half_done[1], *model)[1] == f"{half_done[1]} is finished.\n"
    assert Transactions.outcome(half_done[1]) == "finished"


def test_a_transaction_that_is_not_known(memory, shell):
    """Exit code 1, for `show` and `recover`."""
    memory.bind(Transactions)
    for command in ("show", "recover"):
        error = shell.error("tx", command, "no-such-id", "--table", name_of(Transactions))
        assert (error["kind"], error["exit_code"], error["id"]) == ("no_such_transaction", 1, "no-such-id")


def test_sweep(memory, shell, half_done):
    """A dry run only says what a sweep then does."""
    table = ["--table", name_of(Transactions)]
    nothing = {"finished": 0, "aborted": 0, "pending": 0, "failed": {}}
    found = {"table": name_of(Transactions), **nothing, "examined": 2, "finished": 1, "aborted": 1}

    assert shell.answer("tx", "sweep", "--dry-run", *table) == {**found, "dry_run": True}
    assert Transactions.outcome(half_done[1]) == "committed"
    assert shell.answer("tx", "sweep", *table) == {**found, "dry_run": False}
    assert Transactions.outcome(half_done[1]) == "finished"
    assert shell.answer("tx", "sweep", *table) == {**found, **nothing, "examined": 0, "dry_run": False}
    assert shell.run("tx", "sweep", *table)[1] == "0 examined: 0 finished, 0 aborted, 0 alive, 0 failed\n"


def test_a_sweep_of_old_transactions(memory, shell, half_done):
    """The young ones are left alone."""
    answer = shell.answer("tx", "sweep", "--older-than", "3600", "--table", name_of(Transactions))
    assert answer["examined"] == 0
    assert Transactions.outcome(half_done[1]) == "committed"


def test_a_sweep_that_could_not_complete_all(memory, shell, half_done, monkeypatch):
    """Exit code 1, and why."""
    client = memory.client()
    for number in range(10):
        client.delete_item(TableName=name_of(Transactions), Key={"id": {"S": f"{half_done[1]}#{number:04}"}})
    document = shell.answer("tx", "sweep", "--table", name_of(Transactions), code=1)

    assert list(document["failed"]) == [half_done[1]]
    assert "are gone" in document["failed"][half_done[1]]


def test_a_mark_of_a_transaction_is_shown(memory, shell, half_done):
    """On items whose lock no caller has, so that an operator knows why writes wait."""
    listed = shell.answer("locks", "list", "--model", "tests.support.transaction_models:Purse")["locks"]
    marks = {each["transaction"]["id"] for each in listed}

    assert marks == set(half_done)
    assert all(each["transaction"]["table"] == name_of(Transactions) for each in listed)
    assert all(not each["is_free"] and each["holders"] == [] for each in listed)
    text = shell.run("locks", "list", "--model", "tests.support.transaction_models:Purse")[1]
    assert f"transaction {half_done[0]}" in text


def test_an_item_that_is_absent(memory, shell):
    """Is not free: it cannot be locked. A name that nobody has locked is."""
    memory.bind(Locks, Purse, Transactions)
    Purse("there").save()
    of_items = ("--model", "tests.support.transaction_models:Purse")
    code, out, _ = shell.run("locks", "show", "absent", *of_items)
    assert (code, "no such item" in out, "free" in out) == (1, True, False)
    code, out, _ = shell.run("locks", "show", "absent", *of_items, "--json")
    assert (code, json.loads(out)["item_exists"]) == (1, False)
    for arguments in (("there", *of_items), ("a-name", "--table", name_of(Locks))):
        code, out, _ = shell.run("locks", "show", *arguments)
        assert (code, "free" in out) == (0, True)


# locks prune


def test_prune(memory, shell, clock, table):
    """Idle rows of locks alone, long after their last lease; a dry run says which, and a lock in use stays."""
    for name in ("old", "kept", "held"):
        with Locks.locked(name):
            pass
    begun = Locks.locked("held", heartbeat=False).acquire()
    clock.jump(timedelta(days=1, seconds=90).total_seconds())
    Locks.locked("kept").acquire().release()
    assert shell.answer("locks", "prune", *table, "--dry-run", "--older-than", "1h")["pruned"] == []
    assert shell.answer("locks", "prune", *table, "--dry-run")["pruned"] == ["old"]
    assert "--yes" in shell.error("locks", "prune", *table)["message"]
    assert Locks.count() == 3
    assert shell.run("locks", "prune", *table, "--yes")[1] == "old\n1 deleted.\n"
    assert shell.answer("locks", "prune", *table, "--yes")["pruned"] == []
    assert sorted(row.name for row in Locks.scan()) == ["held", "kept"]
    begun.release()


# calls list, calls settle


def test_abandoned_calls(memory, shell, clock):
    """They are listed with those in progress, and settled as done or as to be made again."""
    memory.bind(Calls)
    table = ["--table", name_of(Calls)]
    with_result = Calls.call("with its result", lease=20, heartbeat=False)
    in_thread(with_result.__enter__)
    stored = [Calls.result.set("1"), Calls.kept_until_ms.set(2**53)]  # by a commit, after which its process has died
    Calls._get_connection().update_item("with its result", actions=stored)
    begun = [Calls.call(key, lease=20, heartbeat=False, owner=key, on_abandoned="raise") for key in ("a", "b", "c")]
    for call in begun[:2]:
        in_thread(call.__enter__)
    clock.jump(40)
    in_thread(begun[2].__enter__)
    listed = shell.answer("calls", "list", *table)
    first, *_ = listed["calls"]
    assert [(each["key"], each["state"], each["owner"]) for each in listed["calls"]] == [
        ("a", "abandoned", "a"),
        ("b", "abandoned", "b"),
        ("c", "in progress", "c"),
    ]
    assert (first["held_s"], first["lease_left_s"], first["waiters"]) == (40, -20, 0)
    assert "abandoned" in shell.run("calls", "list", "--prefix", "a", "--table", f"{Calls.__module__}:Calls")[1]

    done = shell.answer("calls", "settle", "a", "--result", '{"n": 1}', "--yes", *table)
    assert (done["key"], done["settled"]) == ("a", "done")
    assert "b is settled as forgotten." in shell.run("calls", "settle", "b", "--forget", "--yes", *table)[1]
    for key in ("a", "b", "c", "d"):
        refused = shell.error("calls", "settle", key, "--forget", "--yes", *table)
        assert (refused["kind"], refused["exit_code"], refused["key"]) == ("not_settled", 1, key)
    with Calls.call("a") as call:
        assert call.result == {"n": 1}
    with Calls.call("b", wait=0) as call:
        assert not call.is_repeated
    assert [each["key"] for each in shell.answer("calls", "list", *table)["calls"]] == ["c"]
    assert "no IdempotencyTable" in shell.error("calls", "list", "--table", f"{MODELS}:Locks")["message"]


def test_for_how_long_a_result_that_was_said_counts(memory, shell, clock):
    """As long as the operator says; then the call is made again."""
    memory.bind(Calls)
    begun = Calls.call("a", lease=20, heartbeat=False, on_abandoned="raise")
    in_thread(begun.__enter__)
    clock.jump(40)
    said = ("--result", "1", "--expires-after", "60", "--yes", "--table", name_of(Calls))
    assert shell.answer("calls", "settle", "a", *said)["settled"] == "done"
    for passed, is_repeated in ((59, True), (2, False)):
        clock.jump(passed)
        with Calls.call("a", wait=0) as again:
            assert again.is_repeated is is_repeated


def test_the_names_of_the_made_up_tables():
    """They are what the documentation says: a table made by one can be used by the other."""
    assert NamedLock._hash_key_attribute().attr_name == "name"
    assert TransactionTable._hash_key_attribute().attr_name == "id"
