"""Each transaction's fate can be read, by its id or its key, and an unknown one can be settled for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactionTable, atransaction, atransactional, transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, OutcomeUnknown
from pynamo_locking.transactions import AsyncTransaction, Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.models import declare
from tests.support.poisoned import header, put
from tests.support.transaction_models import Plain, Purse, Transactions, purses
from tests.support.wire import ALL, count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

DAY_S = 24 * 3600

#: What a transaction of two new items leaves by which its fate is known.
ROWS = [pytest.param({"record": True}, id="record"), pytest.param({"idempotency_key": "k"}, id="key")]


@pytest.fixture(autouse=True)
def _tables(request: pytest.FixtureRequest, database: Engine) -> Iterator[None]:
    """The tables, and virtual time while requests get lost."""
    database.bind(Plain)
    if "clock" in request.fixturenames:
        yield
        return
    with VirtualClock():
        yield


def created(n: int, **options: Any) -> Transaction:
    """Nothing but its row keeps a late copy of it out: it creates its items."""
    tx = Transaction(Transactions, **options)
    for name in "ab":
        tx.save(Plain(name, value=n))
    return tx


def unknown(tx: Transaction) -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown) as caught:
        tx.commit()
    return caught.value


def value(name: str = "a") -> int | None:
    found = [item.value for item in Plain.scan(consistent_read=True) if item.plain_id == name]
    return int(found[0]) if found else None


def test_a_record_tells_of_a_small_transaction(memory: Engine) -> None:
    """Committed or rolled back, alone with its item or with others; without a record nothing is known."""
    with transaction(Transactions, record=True) as tx:
        tx.save(Plain("a"))
        assert tx.plan().path == "native"
    assert Transactions.outcome(tx.id) == "finished"
    assert Transactions.recover(tx.id) == "finished"
    with transaction(Transactions) as tx:
        tx.save(Plain("b"))
    assert Transactions.outcome(tx.id) is None


def test_a_key_tells_of_a_transaction_of_any_size(engine: Engine, few: None) -> None:
    for number, count in enumerate((1, 6)):
        assert Transactions.outcome(idempotency_key=f"k{number}") is None
        with transaction(Transactions, idempotency_key=f"k{number}", record=True) as tx:
            for name in range(count):
                tx.save(Purse(f"{number}-{name}"))
        assert Transactions.outcome(idempotency_key=f"k{number}") == "committed"
        assert Transactions.outcome(tx.id) == "finished"


@pytest.mark.parametrize("names", [{}, {"id": "i", "idempotency_key": "k"}])
def test_one_name_is_asked_for(names: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="name one of them"):
        Transactions.outcome(**names)


@pytest.mark.parametrize("options", ROWS)
def test_a_lost_answer_is_looked_up_in_the_row(memory: Engine, options: dict[str, Any]) -> None:
    """The commit finds its own row, and is a success."""
    with on("TransactWriteItems", times=99).lose_response():
        created(1, **options).commit()
    assert value() == 1


@pytest.mark.parametrize("options", ROWS)
def test_an_applied_transaction_is_applied(memory: Engine, options: dict[str, Any]) -> None:
    """One write, which is refused."""
    with on("TransactWriteItems", times=99).lose_response(), silent_table():
        error = unknown(created(1, **options))
    with count_requests() as counted:
        assert error.resolve() == "applied"
    assert counted.total == 1
    assert value() == 1


@pytest.mark.parametrize("options", ROWS)
def test_a_lost_transaction_is_kept_out_for_good(engine: Engine, options: dict[str, Any]) -> None:
    """One write takes the place of its row; another attempt is free to do the work, and late copies are not."""
    attempts = []
    for n in (1, 2):
        with on("TransactWriteItems", times=ALL).delay() as late:
            attempts.append((unknown(created(n, **options)), list(late)))
        with count_requests() as counted:
            assert attempts[-1][0].resolve() == "not applied"
        assert counted.total == 1
    arrive(attempts)
    assert value() is None

    created(3, **options).commit()
    arrive(attempts)
    assert value() == 3
    for name in "ab":
        Plain.get(name).delete()
    arrive(attempts)
    assert value() is None
    assert {error.resolve() for error, _ in attempts} == {"not applied"}


def arrive(attempts: list[tuple[OutcomeUnknown, list[Any]]]) -> None:
    for _, late in attempts:
        for land in late:
            land()


@pytest.mark.parametrize("options", ROWS)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_row_that_has_expired_proves_nothing(
    memory: Engine, clock: VirtualClock, options: dict[str, Any], *, is_kept: bool
) -> None:
    """DynamoDB removes it after a day; then there is none although the transaction was applied."""
    with on("TransactWriteItems", times=99).lose_response(), silent_table():
        error = unknown(created(1, **options))
    clock.jump(DAY_S * 0.6)
    if not is_kept:
        for row in Transactions.scan():
            row.delete()
    assert error.resolve() == ("applied" if is_kept else "unknown")


def test_a_record_tells_that_it_was_given_up(memory: Engine) -> None:
    """`outcome` says so, a sweep has nothing to do, and its id is the one that the error names."""
    with on("TransactWriteItems", times=99).lose_request():
        error = unknown(created(1, record=True))
    assert Transactions.outcome(str(error.write_id)) is None
    assert error.resolve() == "not applied"
    assert Transactions.outcome(str(error.write_id)) == "aborted"
    assert Transactions.sweep().examined == 0
    assert all(row.expires for row in Transactions.scan()), "what is left of it is never removed"


def test_a_key_that_an_earlier_transaction_has_stored(memory: Engine) -> None:
    """The later one was not applied, and the earlier one is not disturbed."""
    with on("TransactWriteItems", times=99).lose_request():
        error = unknown(created(2, idempotency_key="k"))
    created(1, idempotency_key="k").commit()
    assert error.resolve() == "not applied"
    assert Transactions.outcome(idempotency_key="k") == "committed"
    again = created(2, idempotency_key="k")
    again.commit()
    assert again.is_repeated


def test_a_key_that_was_given_up_is_not_known(memory: Engine) -> None:
    with on("TransactWriteItems", times=99).lose_request():
        error = unknown(created(1, idempotency_key="k"))
    assert error.resolve() == "not applied"
    assert Transactions.outcome(idempotency_key="k") is None


def test_a_key_that_has_expired_and_is_given_up_is_free(memory: Engine, clock: VirtualClock) -> None:
    """The transaction that had stored it long ago is not taken for one of now."""
    created(1, idempotency_key="k").commit()
    for name in "ab":
        Plain.get(name).delete()
    clock.jump(DAY_S + 1)
    with on("TransactWriteItems", times=99).lose_request():
        error = unknown(created(2, idempotency_key="k"))
    assert error.resolve() == "not applied"
    assert Transactions.outcome(idempotency_key="k") is None
    created(3, idempotency_key="k").commit()
    assert value() == 3


@pytest.mark.parametrize("arrives", [False, True])
def test_a_long_transaction_is_settled_by_its_header(engine: Engine, few: None, *, arrives: bool) -> None:
    """The header cannot be reached after the decision was sent; later it can."""
    tx = raising_six()
    with on("TransactWriteItems", times=ALL).delay() as late, lost_requests_after(late):
        error = unknown(tx)
    if arrives:
        late[0]()
    assert error.resolve() == ("applied" if arrives else "not applied")
    for land in late:
        land()
    assert Transactions.sweep().failed == {}
    assert {Purse.get(f"p{n}", consistent_read=True).balance for n in range(6)} == ({101} if arrives else {100})


def raising_six() -> Transaction:
    """A long transaction that updates what there is."""
    purses(6)
    tx = Transaction(Transactions)
    for item in list(Purse.scan()):
        tx.update(item, [Purse.balance.add(1)])
    return tx


def lost_requests_after(sent: list[Any], number: int = 0) -> Any:
    """No update arrives once so many decisions, and another one, were sent."""
    return on("UpdateItem", times=ALL, where=lambda body: len(sent) > number).lose_request()


def silent_table() -> Any:
    """No read of the table of transactions is answered."""
    return on("GetItem", to=Transactions, times=ALL).lose_request()


def test_a_header_that_has_expired_proves_nothing(memory: Engine, few: None) -> None:
    """DynamoDB removes it a day after the end; so that it is gone does not say that nothing was written."""
    tx = raising_six()
    decision = on("TransactWriteItems", times=ALL).lose_response()
    with decision as sent, lost_requests_after(sent.bodies):
        error = unknown(tx)
    assert Transactions.sweep().finished == 1
    Transactions(tx.id).delete(add_version_condition=False)
    assert error.resolve() == "unknown"
    assert {purse.balance for purse in Purse.scan(consistent_read=True)} == {101}


async def test_a_task_asks_too() -> None:
    with on("TransactWriteItems", times=99).lose_request(), pytest.raises(OutcomeUnknown) as unknown:
        async with atransaction(Transactions, record=True) as tx:
            await tx.save(Plain("a"))
    assert await unknown.value.aresolve() == "not applied"


def test_a_repeated_function_leaves_a_record(memory: Engine) -> None:
    seen = []

    @transactional(table=Transactions, record=True)
    def work(tx: Transaction) -> None:
        seen.append(tx.id)
        tx.save(Plain("a"))

    work()
    assert Transactions.outcome(seen[-1]) == "finished"


def test_the_rows_cannot_be_asked_for_what_writes_nothing(memory: Engine) -> None:
    with pytest.raises(ConfigurationError, match="a record is written"):
        Transaction(Transactions, read_only=True, record=True)


# How long rows are kept, and which a sweep looks at


Patient = declare("Patient", TransactionTable, keep_finished_s=2 * DAY_S, keep_keys_s=7 * DAY_S, keep_rows_s=60 * DAY_S)


@pytest.mark.parametrize("name", ["keep_finished_s", "keep_keys_s", "keep_rows_s"])
@pytest.mark.parametrize("bad", [DAY_S - 1, 1e9, "7 days", True, None])
def test_times_that_cannot_work_are_refused_at_once(name: str, bad: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"Meta\.{name} is {bad!r}: it must be a whole number of seconds"):
        declare("Wrong", TransactionTable, **{name: bad})


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_key_is_known_for_as_long_as_the_table_says(memory: Engine, clock: VirtualClock, *, is_kept: bool) -> None:
    """Longer than the record of its transaction: the work is not done a second time before."""
    memory.bind(Patient)
    with transaction(Patient, idempotency_key="k") as first:
        first.save(Plain("a"))
    clock.jump((6 if is_kept else 7) * DAY_S)
    with transaction(Patient, idempotency_key="k") as second:
        second.save(Plain("b"))
    assert second.is_repeated is is_kept
    assert (value("b") is None) is is_kept


def test_a_record_proves_nothing_once_it_may_have_expired(memory: Engine, clock: VirtualClock) -> None:
    """After the time for which records are kept, not keys: that the row is gone does not say that it never was."""
    memory.bind(Patient)
    tx = Transaction(Patient, record=True)
    for name in "ab":
        tx.save(Plain(name))
    silent = on("GetItem", to=Patient, times=ALL).lose_request()
    with on("TransactWriteItems", times=ALL).lose_response(), silent:
        error = unknown(tx)
    clock.jump(3 * DAY_S)
    Patient(tx.id).delete(add_version_condition=False)
    assert error.resolve() == "unknown"


def test_a_record_is_an_action_too(memory: Engine) -> None:
    """A hundred items have no room for it in a native transaction."""
    with transaction(Transactions, record=True) as tx:
        for i in range(100):
            tx.save(Purse(f"p{i}"))
        assert tx.plan().path == "long"
    assert Transactions.outcome(tx.id) == "finished"
    assert Purse.count() == 100


def test_rows_are_kept_as_long_as_the_table_says(
    memory: Engine, clock: VirtualClock, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers, records, keys, and what helps to find marks."""
    memory.bind(Patient)
    monkeypatch.setattr(Purse.Meta, "transaction_table", Patient)
    with transaction(Patient, record=True, idempotency_key="k") as small:
        small.save(Plain("a"))
    with transaction(Patient) as long:
        for n in range(6):
            long.save(Purse(f"p{n}"))
    now = clock.time_ms() / 1000
    kept = {row.id: round((row.expires.timestamp() - now) / DAY_S) for row in Patient.scan() if row.expires}
    assert kept == {small.id: 2, "key#k": 7, long.id: 2, f"{long.id}#0000": 60}


def test_a_sweep_leaves_the_young_alone(clock: VirtualClock) -> None:
    """It counts from the last renewal, which is what `tx list` shows, however long the lease is."""
    for name, age_s, lease_s in (("young", 50, 10), ("old", 70, 10), ("patient", 70, 60)):
        until_ms = clock.time_ms() + 1000 * (lease_s - age_s)
        put(
            Transactions,
            header(name, "pending", lease_ms={"N": str(lease_s * 1000)}, until_ms={"N": str(until_ms)}, rows=None),
        )
    with count_requests() as counted:
        report = Transactions.sweep(older_than=60)
    assert (report.examined, report.aborted) == (2, 2)
    assert counted.by_operation["Scan"] == 1
    assert [Transactions.outcome(name) for name in ("young", "old", "patient")] == ["pending", "aborted", "aborted"]
    assert Transactions.sweep().aborted == 1
    assert Transactions.outcome("young") == "aborted"


# What all attempts of one call have in common


class TooPoorError(Exception):
    """The function's own."""


@pytest.mark.parametrize("options", [{}, {"record": True}], ids=["key", "key and record"])
def test_a_repeated_function_is_asked_for_as_a_whole(memory: Engine, options: dict[str, Any]) -> None:
    """The error is that of the last attempt, and its answer keeps out the copies of all earlier ones as well."""

    @transactional(attempts=3, table=Transactions, idempotency_key="k", **options)
    def work(tx: Transaction) -> None:
        tx.save(Plain("a", value=1))

    with on("TransactWriteItems", times=ALL).delay() as late, pytest.raises(OutcomeUnknown) as caught:
        work()
    assert caught.value.resolve() == "not applied"
    for land in late:
        land()
    assert value() is None, "a late copy of an attempt was applied after it was said that it never is"


def test_an_earlier_attempt_of_a_repeated_function_was_applied(memory: Engine) -> None:
    """So the work was, whichever attempt the error is of."""

    @transactional(attempts=2, table=Transactions, idempotency_key="k")
    def work(tx: Transaction) -> None:
        tx.save(Plain("a"))

    with on("TransactWriteItems", times=ALL).delay() as late, pytest.raises(OutcomeUnknown) as caught:
        work()
    late[0]()
    assert caught.value.resolve() == "applied"


def test_a_long_attempt_after_a_small_one(few: None) -> None:
    """Its header says nothing of the small one; the key does."""
    purses(6)
    sizes = [1, 6]

    @transactional(attempts=2, table=Transactions, idempotency_key="k")
    def work(tx: Transaction) -> None:
        small.append(len(late))
        tx.save(Plain("a"))
        for i in range(sizes.pop(0)):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1)])

    small = list[int]()
    with on("TransactWriteItems", times=ALL).delay() as late:
        is_second = on("UpdateItem", times=ALL, where=lambda body: len(late) > small[-1] > 0).lose_request()
        with is_second, pytest.raises(OutcomeUnknown) as caught:
            work()
    assert caught.value.resolve() == "not applied"
    for land in late:
        land()
    assert value() is None
    assert {purse.balance for purse in Purse.scan(consistent_read=True)} == {100}


def pay(*, attempts: int = 3) -> None:
    """Pay once: only the first request of the commit gets no answer, and the purse is too empty to pay twice."""

    @transactional(attempts=attempts, table=Transactions, idempotency_key="k")
    def work(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        if purse.balance < 60:
            raise TooPoorError
        purse.balance -= 60
        tx.save(purse)

    work()


async def pay_in_a_task() -> None:
    async with atransaction(Transactions) as tx:
        assert await tx.get(Purse, "p0")

    @atransactional(attempts=3, table=Transactions, idempotency_key="k")
    async def work(tx: AsyncTransaction) -> None:
        purse = await tx.get(Purse, "p0")
        if purse.balance < 60:
            raise TooPoorError
        purse.balance -= 60
        await tx.save(purse)

    await work()


@pytest.mark.parametrize("way", [pay, lambda: asyncio.run(pay_in_a_task())], ids=["threads", "tasks"])
def test_an_error_of_a_later_attempt_does_not_hide_that_the_first_was_applied(
    memory: Engine, way: Callable[[], None]
) -> None:
    """It was paid, the second attempt finds too little money, and the caller must not be told that nothing was paid."""
    purses(1)
    with on("TransactWriteItems", times=99).lose_response(), silent_table(), pytest.raises(OutcomeUnknown) as caught:
        way()
    assert isinstance(caught.value.__cause__, TooPoorError)
    assert caught.value.resolve() == "applied"
    assert Purse.get("p0", consistent_read=True).balance == 40


def test_an_error_of_a_later_attempt_is_true(memory: Engine) -> None:
    """It says that nothing was written. So a copy of the first attempt that arrives later is kept out before."""
    purses(1)

    @transactional(table=Transactions, idempotency_key="k")
    def work(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        if late:
            raise TooPoorError
        tx.update(purse, [Purse.balance.add(-60)])

    with on("TransactWriteItems", times=ALL).delay() as late, pytest.raises(TooPoorError):
        work()
    late[0]()
    assert Purse.get("p0", consistent_read=True).balance == 100


def test_whether_an_earlier_attempt_was_applied_cannot_be_found_out(memory: Engine) -> None:
    """The request for it is denied: then the error says so."""
    purses(1)

    @transactional(table=Transactions, idempotency_key="k")
    def work(tx: Transaction) -> None:
        if late:
            raise TooPoorError
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(-60)])

    denied = on("UpdateItem", to=Transactions).answer("AccessDeniedException", always=True)
    with on("TransactWriteItems", times=ALL).delay() as late, denied as asked, pytest.raises(OutcomeUnknown):
        work()
    assert asked
