"""Options and idempotency keys do what they promise, and what cannot work is refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path
from pynamodb.models import Model

from pynamo_locking import transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, OutcomeUnknown, StaleVersion
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.models import declare
from tests.support.transaction_helpers import WRITES, add_fillers
from tests.support.transaction_models import Plain, Purse, Transactions, purses, stored
from tests.support.wire import on

if TYPE_CHECKING:
    from tests.engines.engine import Engine


# Options


@pytest.mark.parametrize("options", [{"read_only": True}, {"isolation": "snapshot"}])
def test_read_only(engine: Engine, options: dict[str, Any]) -> None:
    """Nothing can be written, everything that is read is checked."""
    purses(2)
    with transaction(**options) as tx:
        item = tx.get(Purse, "p0")
        tx.check(item)
        for write in WRITES:
            with pytest.raises(ConfigurationError, match="read only"):
                write(tx, item)
    with pytest.raises(StaleVersion), transaction(**options) as tx:
        assert tx.get(Purse, "p0").balance + tx.get(Purse, "p1").balance == 200
        Purse.get("p0").update([Purse.balance.add(1)])


def test_read_committed_checks_only_what_it_writes(engine: Engine) -> None:
    """What is only read may change; what is written may not."""
    purses(3)
    with transaction(isolation="read_committed") as tx:
        seen, written = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        Purse.get("p0").update([Purse.balance.add(1)])
        written.balance = seen.balance + 1
        tx.save(written)
        assert tx.plan().path == "single"
    assert Purse.get("p1").balance == 101
    with pytest.raises(StaleVersion), transaction(isolation="read_committed") as tx:
        written = tx.get(Purse, "p1")
        Purse.get("p1").touch()
        tx.save(written)


def test_check_counts_whatever_the_isolation(cheap: Engine) -> None:
    """An item given to check() is checked with read_committed too."""
    purses(2)
    with pytest.raises(StaleVersion), transaction(isolation="read_committed") as tx:
        tx.check(tx.get(Purse, "p0"))
        Purse.get("p0").touch()
        tx.save(tx.get(Purse, "p1"))


def test_bad_options(memory: Engine) -> None:
    """Every option that cannot work is refused at once, with what is wrong."""
    memory.bind(Plain)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"isolation": "chaos"}, "isolation must be one of serializable, snapshot"),
        ({"table": Purse}, "subclass of TransactionTable"),
        ({"wait": -1}, "wait"),
        ({"wait": "soon"}, "wait"),
        ({"lease": 1}, "at least 3"),
        ({"lease": float("inf")}, "at most a day"),
        ({"lease": 86_401}, "at most a day"),
        ({"owner": 7}, "owner must be a string"),
        ({"owner": "x" * 257}, "at most 256 bytes"),
        ({"idempotency_key": ""}, "idempotency key is a text"),
        ({"idempotency_key": "x" * 2001}, "2,000 bytes"),
        ({"idempotency_key": 3}, "idempotency key is a text"),
        ({"workers": 0}, "workers must be"),
        ({"workers": 1.5}, "workers must be"),
    ]
    for options, message in bad:
        with pytest.raises((ConfigurationError, InvalidInput), match=message):
            Transaction(**options)
        with pytest.raises((ConfigurationError, InvalidInput), match=message), transaction(**options):
            pass
    with pytest.raises(ConfigurationError, match="at least one attempt"):
        transactional(attempts=0)


Unversioned = declare("Unversioned", Model, region="us-east-1", id=Purse.purse_id)


def test_models_that_cannot_take_part(memory: Engine) -> None:
    """A model without a version is refused at once."""
    with transaction() as tx:
        for call in (
            lambda: tx.get(Unversioned, "a"),  # type: ignore[type-var]
            lambda: tx.save(Unversioned("a")),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigurationError, match="VersionedMixin"):
                call()
        with pytest.raises(ConfigurationError):
            tx.update(Purse("a"), [Purse.lock.remove()])
        with pytest.raises(TypeError, match="non-empty"):
            tx.update(Purse("a"), [])


def test_actions_that_do_not_fit(engine: Engine) -> None:
    """An action that the item cannot take is refused: at once if the item was read, else at the commit."""
    purses(1, note="text")
    with transaction() as tx:
        item = tx.get(Purse, "p0")
        with pytest.raises(TransactWriteError):
            tx.update(item, [Path("balance").set(Path("note") + 5)])
    with pytest.raises(TransactWriteError), transaction() as tx:
        tx.update(Purse.get("p0"), [Path("balance").set(Path("note") + 5)])
        tx.save(Purse("other"))
    assert stored(Purse, "other") is None


def test_no_table_of_transactions(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long transactions and idempotency keys need a table, and say so before anything is written."""
    monkeypatch.delattr(Purse.Meta, "transaction_table")
    items = purses(6)

    def purse(i: int) -> Purse:
        return items[i]

    def new(i: int) -> Purse:
        return Purse(f"n{i}")

    with pytest.raises(ConfigurationError, match="TransactionTable"), transaction() as tx:
        for item in items:
            tx.touch(item)
    with pytest.raises(ConfigurationError, match="TransactionTable"), transaction(idempotency_key="k") as tx:
        tx.touch(items[0])
    for made in (purse, new):
        with pytest.raises(ConfigurationError, match=r"Meta\.transaction_table"), transaction(Transactions) as tx:
            for i in range(6):
                tx.save(made(i))  # a model without the table could not tell what their marks mean
    assert {(item.purse_id[0], item.version) for item in Purse.scan(consistent_read=True)} == {("p", 1)}


# Idempotency keys


def test_idempotency_key(engine: Engine, path: str) -> None:
    """A second transaction with the same key writes nothing, and says so; another key writes."""
    purses(1)
    repeated = []
    for key in ("k", "k", "other"):
        with transaction(idempotency_key=key) as tx:
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
            add_fillers(tx, path)
        repeated.append(tx.is_repeated)
    assert repeated == [False, True, False]
    assert Purse.get("p0", consistent_read=True).balance == 102


def test_idempotency_key_where_items_have_changed(engine: Engine, path: str) -> None:
    """A repetition by an old copy, whose version does not fit any more, is a repetition all the same."""
    purses(1)
    copies = [Purse.get("p0", consistent_read=True) for _ in range(2)]
    for expected, copy in zip((False, True), copies, strict=True):
        copy.balance += 1
        with transaction(idempotency_key="k") as tx:
            tx.save(copy)
            add_fillers(tx, path)
        assert tx.is_repeated is expected
    assert Purse.get("p0", consistent_read=True).balance == 101


def test_idempotency_key_where_the_answer_was_lost(engine: Engine, path: str) -> None:
    """When the answer of the first one is lost for good, the second one finds that it was committed."""
    if engine.is_moto:
        pytest.skip("moto ignores ClientRequestToken")
    purses(1)
    results = []
    for _ in range(3):
        try:
            with transaction(idempotency_key="k") as tx, on("TransactWriteItems", times=1).lose_response():
                tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
                add_fillers(tx, path)
                tx.commit()
            results.append(tx.is_repeated)
        except OutcomeUnknown:
            results.append(None)
    assert results[1:] == [True, True]
    assert Purse.get("p0", consistent_read=True).balance == 101


def test_an_idempotency_key_lives_for_a_day() -> None:
    """After a day the key is free again, also while DynamoDB still keeps its row, and a conflict is no repetition."""
    with VirtualClock() as clock:
        [old] = purses(1)
        with transaction(idempotency_key="k") as tx:
            tx.save(old)
        clock.jump(24 * 3600)
        stale = Purse.get("p0")
        Purse.get("p0").touch()
        with pytest.raises(StaleVersion), transaction(idempotency_key="k") as tx:
            tx.save(stale)
        with transaction(idempotency_key="k") as tx:
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        assert not tx.is_repeated
        assert Purse.get("p0").balance == 101


def test_an_instance_does_not_carry_out_what_was_done_before() -> None:
    """It shows what a repeated transaction did not write: to save it would do the work a second time."""
    purse, other = purses(2)
    with transaction(idempotency_key="k") as tx:
        tx.touch(other)
    with transaction(idempotency_key="k") as tx:
        purse.balance = 7
        tx.save(purse)
    assert tx.is_repeated
    with pytest.raises(StaleVersion):
        purse.save()
    assert Purse.get("p0").balance == 100


def test_an_idempotency_key_of_nothing(cheap: Engine) -> None:
    """A transaction with a key and without writes is committed, once."""
    purses(1)
    repeated = []
    for _ in range(2):
        with transaction(Transactions, idempotency_key="k") as tx:
            pass
        repeated.append(tx.is_repeated)
        with transaction(Transactions, idempotency_key="of reads") as tx:
            tx.get(Purse, "p0")
        repeated.append(tx.is_repeated)
    assert repeated == [False, False, True, True]
