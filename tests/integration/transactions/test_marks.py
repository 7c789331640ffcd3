"""What a process leaves behind that dies inside a long commit, and everybody who meets it: all or nothing."""

from __future__ import annotations

import bisect
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from botocore.exceptions import ClientError

from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking.exceptions import Conflict, LockingError, StaleVersion, TransactionAborted, TransactionConflict
from pynamo_locking.transactions import Transaction
from tests.support.deeds import die_at, dying_at
from tests.support.parties import in_thread
from tests.support.poisoned import put
from tests.support.transaction_models import (
    Purse,
    Transactions,
    dying_after,
    empty,
    existing,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    survive,
)
from tests.support.wire import ALL, Send, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("few")]


#: All are written by the transaction that dies. The decision itself writes three, new ones first; the last two of
#: the new ones get placeholders. So eight items are marked.
OLD, NEW, GONE = ([f"{kind}{i}" for i in range(count)] for kind, count in (("old", 3), ("new", 5), ("gone", 3)))
KEYS = [*OLD, *NEW, *GONE]


def write_all(**options: Any) -> Transaction:
    """Update some items, create some, delete some, in one long transaction."""
    tx = Transaction(workers=1, **options)
    for key in OLD:
        item = tx.get(Purse, key)
        item.balance = 200
        tx.save(item)
    for key in NEW:
        tx.save(Purse(key, balance=200))
    for key in GONE:
        tx.delete(tx.get(Purse, key))
    return tx


class Left(NamedTuple):
    """What the dead process has left behind."""

    tx: Transaction
    state: str | None
    sent: int

    @property
    def is_committed(self) -> bool:
        """Whether everybody has to see it in the end."""
        return self.state in ("committed", "finished")


def start_over() -> None:
    """Store what the transaction finds."""
    empty(Purse, Transactions)
    for key in (*OLD, *GONE):
        Purse(key, balance=100).save()


def leave(monkeypatch: pytest.MonkeyPatch, at: int | str | None) -> Left:
    """Commit, and die after so many requests, or at the first one that does this; see `deeds`."""
    start_over()
    tx = write_all()
    dying = dying_at(monkeypatch, at) if isinstance(at, str) else dying_after(monkeypatch, at)
    with dying as process:
        in_thread(lambda: survive(tx.commit))
    return Left(tx, Transactions.outcome(tx.id), len(process.sent))


def steps() -> range:
    """After how many requests the process may die, of all that a commit sends."""
    with pytest.MonkeyPatch.context() as patch:
        return range(leave(patch, None).sent)


#: The process dies with some marks, with all of them, decided, and with some finished.
MOMENTS = [f"mark {NEW[-1]}", "decision", f"finish {OLD[0]}", f"finish {GONE[-1]}"]


def balances(*, is_committed: bool) -> dict[str, int]:
    """What everybody has to see."""
    if is_committed:
        return dict.fromkeys((*OLD, *NEW), 200)
    return dict.fromkeys((*OLD, *GONE), 100)


def read_one_by_one(**options: Any) -> dict[str, int]:
    found = {}
    for key in KEYS:
        with suppress(Purse.DoesNotExist):
            found[key] = int(Purse.get(key, **(options or {"consistent_read": True})).balance)
    return found


def assert_clean(left: Left) -> None:
    """All or nothing, and no trace of the transaction on any item."""
    assert marked_rows(Purse) == []
    found = {row["purse_id"]["S"]: int(row.get("balance", {"N": "-1"})["N"]) for row in rows_of(Purse)}
    assert found == balances(is_committed=left.is_committed), left


def is_placeholder(row: dict[str, Any]) -> bool:
    return "ghost" in row["lock"]["M"]["tx"]["M"]["intent"]["M"]


def test_all_states_are_reached(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No header; pending and committed, each with no mark, some, and all, placeholders among them; the end."""
    seen = set()
    for k in steps():
        left = leave(monkeypatch, k)
        marked = marked_rows(Purse)
        some = {0: "none", 8: "all"}.get(len(marked), "some")
        seen.add((left.state, some, any(map(is_placeholder, marked))))
    assert leave(monkeypatch, None).state == "finished"
    states = {(state, some) for state, some, _ in seen}
    assert states == {(None, "none"), *itertools.product(("pending", "committed"), ("none", "some", "all"))}
    for state, ghosts in (("pending", {False}), ("committed", {False, True})):  # both placeholders come at once, last
        assert {are_ghosts for each, some, are_ghosts in seen if (each, some) == (state, "some")} == ghosts
        assert (state, "all", True) in seen


# Everybody who only reads


def test_plain_reads_see_committed_values_only(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """get, batch_get, query, scan, count and refresh show old or new values, never a placeholder or an intent."""
    before = balances(is_committed=False)
    for k in steps():
        left = leave(monkeypatch, k)
        allowed = [before, balances(is_committed=True)] if left.is_committed else [before]
        reads: list[dict[str, int]] = [
            read_one_by_one(),
            {item.purse_id: int(item.balance) for item in Purse.scan(consistent_read=True)},
            {item.purse_id: int(item.balance) for item in Purse.batch_get(KEYS, consistent_read=True)},
            {key: int(item.balance) for key in KEYS for item in Purse.query(key, consistent_read=True)},
            {
                item.purse_id: int(item.balance)
                for item in Purse.batch_get(KEYS, consistent_read=True, attributes_to_get=["purse_id", "balance"])
            },
        ]
        for read in reads:
            for key in KEYS:
                assert read.get(key) in [one.get(key) for one in allowed], (k, key)
        assert {key for key in KEYS if Purse.count(key, consistent_read=True)} == set(reads[0])
        for key in NEW:
            item = Purse(key)
            if key in reads[0]:
                item.refresh(consistent_read=True)
            else:
                with pytest.raises(Purse.DoesNotExist):
                    item.refresh(consistent_read=True)


def test_projections_do_not_show_placeholders(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A get of some attributes finds no placeholder either."""
    for k in MOMENTS:
        left = leave(monkeypatch, k)
        for key in NEW:
            with suppress(Purse.DoesNotExist):
                assert Purse.get(key, consistent_read=True, attributes_to_get=["balance"]).balance == 200
                assert left.is_committed


def test_transactions_read_what_is_committed(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """get and get_all see all or nothing of a dead transaction: they finish it, wait for its lease, or look past it."""
    for isolation in ("serializable", "snapshot", "read_committed"):
        for k, at in enumerate(MOMENTS):
            make_long_from(monkeypatch)
            left = leave(monkeypatch, at)
            make_long_from(monkeypatch, 100)  # it reads more absent items than would fit
            with transaction(isolation=isolation) as tx:
                together = tx.get_all(Purse, KEYS) if (k + len(isolation)) % 2 else None
                found = dict(zip(KEYS, together or [tx.get_or_none(Purse, key) for key in KEYS], strict=True))
                seen = {key: int(item.balance) for key, item in found.items() if item is not None}
                assert seen == balances(is_committed=left.is_committed), (isolation, k)
            if isolation == "serializable" or (isolation == "snapshot" and left.is_committed):
                assert_clean(left)


# Everybody who writes


def single_save(key: str) -> None:
    item = Purse(key)
    with suppress(Purse.DoesNotExist):
        item = Purse.get(key, consistent_read=True)
    item.balance = 1
    item.save()


def blind_save(key: str) -> None:
    Purse(key, balance=1).save(add_version_condition=False)


def single_update(key: str) -> None:
    Purse(key).update([Purse.balance.set(1)], add_version_condition=False)


def single_delete(key: str) -> None:
    Purse(key).delete(add_version_condition=False)


def native(key: str) -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        write.save(Purse(key, balance=1), add_version_condition=False)


def locked(key: str) -> None:
    try:
        with Purse.locked(key, wait=60) as lock:
            lock.item.update([Purse.balance.set(1)])
    except Purse.DoesNotExist:
        blind_save(key)


def edited(key: str) -> None:
    try:
        with Purse.edit(key, wait=60) as item:
            item.balance = 1
    except Purse.DoesNotExist:
        blind_save(key)


def batched(key: str) -> None:
    with Purse.guarded_batch() as batch:
        batch.save(Purse(key, balance=1), add_version_condition=False)


def modified(key: str) -> None:
    def change(item: Purse) -> None:
        item.balance = 1

    Purse.modify(key, change=change, create=True)


def in_transaction(key: str) -> None:
    with transaction() as tx:
        item = tx.get_or_none(Purse, key) or Purse(key)
        item.balance = 1
        tx.save(item)


def in_blind_transaction(key: str) -> None:
    with transaction() as tx:
        tx.save(Purse(key, balance=1), add_version_condition=False)
        tx.save(Purse("another", balance=1), add_version_condition=False)


def in_long_transaction(key: str) -> None:
    with transaction() as tx:
        tx.save(Purse(key, balance=1), add_version_condition=False)
        for i in range(5):
            tx.save(Purse(f"another{i}", balance=1), add_version_condition=False)


WRITERS = [
    *(single_save, blind_save, single_update, single_delete, native, locked, edited, batched, modified),
    *(in_transaction, in_blind_transaction, in_long_transaction),
]


def again(write: Callable[[str], None], key: str) -> None:
    """Write; once more if what was read has become old by the completion of the transaction."""
    try:
        write(key)
    except StaleVersion:
        write(key)


@pytest.mark.parametrize("write", WRITERS)
def test_a_writer_gets_through(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], None]
) -> None:
    """Every kind of write takes the mark of the dead off, is applied after it, and the others converge as well."""
    for k in MOMENTS[1:]:
        left = leave(monkeypatch, k)
        victims = [OLD[1], NEW[1], NEW[-1], GONE[1]]
        for key in victims:
            again(write, key)
        if write is not single_delete:
            assert existing(Purse, OLD[1])["version"]["N"] == ("3" if left.is_committed else "2")
        expected = balances(is_committed=left.is_committed)
        for key in victims:
            expected.pop(key, None)
            if write is not single_delete:
                expected[key] = 1
        Transactions.recover(left.tx.id)
        assert marked_rows(Purse) == []
        found = {row["purse_id"]["S"]: int(row["balance"]["N"]) for row in rows_of(Purse)}
        assert {key: value for key, value in found.items() if not key.startswith("another")} == expected, (k, left)


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_holder_does_not_write_past_a_mark(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """Any process may still finish what is left of its long commit, so its plain writes are refused until then."""
    purses(8)
    tx = Transaction(Transactions, workers=1)
    for i in range(8):
        item = Purse.locked(f"p{i}", lease=600, heartbeat=False).acquire().item
        item.balance = 200
        tx.save(item)
    with dying_at(monkeypatch, "decision", is_answer_lost=is_committed):
        assert not survive(tx.commit)
    marked = [row["purse_id"]["S"] for row in marked_rows(Purse)]
    assert len(marked) == 5
    clock.sleep(60)  # its lease ends; those of the locks do not
    for key in marked:
        item = Purse.get(key, consistent_read=True)
        item.balance = 7
        with pytest.raises(Conflict):
            item.save()
    Transactions.sweep()
    assert marked_rows(Purse) == []
    found = {(row["balance"]["N"], row["version"]["N"]) for row in rows_of(Purse) if row["purse_id"]["S"] in marked}
    assert found == {("200", "2") if is_committed else ("100", "1")}


def test_a_new_item_can_be_saved_on_a_placeholder(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain save of a new item: created if the transaction was aborted, StaleVersion if it was committed."""
    for k in MOMENTS:
        left = leave(monkeypatch, k)
        for key in NEW:
            item = Purse(key, balance=7)
            if left.is_committed:
                with pytest.raises(StaleVersion):
                    item.save()
            else:
                item.save()
                assert item.version == 1
            assert Purse.get(key, consistent_read=True).balance == (200 if left.is_committed else 7)


def test_a_mark_that_leaves_no_room_for_an_entry_is_resolved(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is almost as large as DynamoDB allows, with the mark of a dead transaction in it."""
    start_over()
    with Purse.locked(OLD[0]):  # makes the document
        pass
    die_at(monkeypatch, "decision", write_all().commit)
    row = existing(Purse, OLD[0])

    def is_refused(length: int) -> bool:
        try:
            put(Purse, {**row, "note": {"S": "n" * length}})
        except ClientError:
            return True
        return False

    largest = bisect.bisect_left(range(400 * 1024), True, key=is_refused) - 1
    room = largest - 250  # an entry needs more, and finds it without the intent
    put(Purse, {**row, "note": {"S": "n" * room}})
    with Purse.locked(OLD[0], wait=60) as lock:
        assert len(lock.item.note) == room


def test_an_item_that_is_locked_by_its_copy(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that was loaded with a mark can be saved when the transaction was aborted."""
    for k in MOMENTS:
        left = leave(monkeypatch, k)
        for key in OLD:
            item = Purse.get(key, consistent_read=True)
            if left.is_committed and item.balance == 100:
                with pytest.raises(Conflict):
                    item.save()
                continue
            item.note = "by a copy with a mark"
            item.save()
            assert Purse.get(key, consistent_read=True).note == "by a copy with a mark"


# Recovery


@pytest.mark.parametrize("force", [False, True])
def test_recover(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, force: bool) -> None:
    """recover() brings every state to all or nothing; by force it needs no time; again it changes nothing."""
    for k in MOMENTS if force else (*steps(), None):
        left = leave(monkeypatch, k)
        before = clock.elapsed
        result = Transactions.recover(left.tx.id, force=force)
        assert result in (("finished",) if left.is_committed else (None, "aborted"))
        assert not force or clock.elapsed == before
        assert_clean(left)
        rows = rows_of(Purse)
        assert Transactions.recover(left.tx.id) == result
        assert rows_of(Purse) == rows


def test_sweep(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """sweep() does the same for all; a dry run changes nothing and reports the same; a second one finds nothing."""
    for k, segments in zip((*steps(), None), itertools.cycle((1, 3))):
        left = leave(monkeypatch, k)
        items, headers = rows_of(Purse), rows_of(Transactions)
        planned = Transactions.sweep(segments=segments, dry_run=True)
        assert (rows_of(Purse), rows_of(Transactions)) == (items, headers)
        done = Transactions.sweep(segments=segments)
        assert planned == done
        assert done.failed == {}
        assert done.examined == done.aborted + done.finished
        assert (done.aborted, done.finished) == {
            None: (0, 0),
            "pending": (1, 0),
            "committed": (0, 1),
            "finished": (0, 0),
        }[left.state]
        assert_clean(left)
        assert [Transactions.sweep(segments=segments, dry_run=dry).examined for dry in (True, False)] == [0, 0]


def test_sweep_leaves_the_living_alone(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction whose beats move is counted as pending, and not touched."""
    left, beats = leave(monkeypatch, "decision"), itertools.count(1)
    record = existing(Transactions, left.tx.id)

    def beat() -> None:
        put(Transactions, {**record, "beat": {"N": str(next(beats))}})

    with on("GetItem", nth=2, times=ALL).before(beat):  # the first read shows no sign of life yet
        report = Transactions.sweep()
    assert (report.examined, report.pending, report.aborted) == (1, 1, 0)
    assert Transactions.outcome(left.tx.id) == "pending"


# Wound-wait


def pending(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Left:
    """A transaction with all its marks, not decided. One that began before is older, one that begins now is younger."""
    clock.jump(0.01)
    left = leave(monkeypatch, "decision")
    clock.jump(0.01)
    assert left.state == "pending"
    assert marked_rows(Purse)
    return left


def aborted_by(left: Left) -> dict[str, Any]:
    assert Transactions.outcome(left.tx.id) == "aborted"
    return existing(Transactions, left.tx.id)["by"]


def write_marked(tx: Transaction) -> None:
    for row in marked_rows(Purse):
        tx.save(Purse(row["purse_id"]["S"], balance=5), add_version_condition=False)


def test_an_older_transaction_wounds(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one aborts the pending one after the grace, long before the lease; it hears "wounded"."""
    older, left = Transaction(), pending(clock, monkeypatch)
    write_marked(older)
    before = clock.elapsed
    older.commit()
    assert clock.elapsed - before < 5
    assert aborted_by(left) == {"S": "wounded"}


def test_a_younger_transaction_waits(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A younger one waits until the lease of the pending one is over; a plain write as well."""
    for write in (lambda: commit(Transaction()), lambda: single_update(NEW[0]) or single_update(OLD[0])):
        left, before = pending(clock, monkeypatch), clock.elapsed
        write()
        for row in marked_rows(Purse):
            single_update(row["purse_id"]["S"])
        assert clock.elapsed - before >= 9
        assert aborted_by(left) == {"S": "expired"}


def test_later_attempts_read_with_the_age_of_the_first(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt wounds, when it reads, who is younger than the first one."""
    attempts: list[float] = []

    @transactional()
    def twice(tx: Transaction) -> None:
        attempts.append(clock.elapsed)
        if len(attempts) == 1:
            pending(clock, monkeypatch)
            raise TransactionConflict("made up")
        make_long_from(monkeypatch, 100)  # so many of them may be absent
        for key in KEYS:
            tx.get_or_none(Purse, key)
        assert clock.elapsed - attempts[-1] < 5, "it waits for a younger one, as if it were the younger one"

    twice()
    assert len(attempts) == 2


def commit(tx: Transaction) -> None:
    write_marked(tx)
    tx.commit()


def test_the_wounded_one_hears_of_it(clock: VirtualClock) -> None:
    """A transaction that was aborted by recover(force=True) before its decision gets TransactionAborted, by "asked"."""
    start_over()
    tx = write_all()
    forced: list[str | None] = []

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation == "TransactWriteItems" and not forced and "state" in str(kwargs):
            forced.append(None)
            forced[0] = in_thread(lambda: Transactions.recover(tx.id, force=True))
        return send()

    with intercepted(answer), pytest.raises(TransactionAborted) as caught:
        tx.commit()
    assert caught.value.reason == "requested"
    assert forced == ["aborted"]
    assert isinstance(caught.value, LockingError)
    assert marked_rows(Purse) == []
    assert read_one_by_one() == balances(is_committed=False)


def test_real_engines_hide_placeholders(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every engine a pending transaction is invisible, and recover() completes it."""
    for at in MOMENTS:
        left = leave(monkeypatch, at)
        before = balances(is_committed=False)
        if not left.is_committed:
            assert {item.purse_id: item.balance for item in Purse.scan(consistent_read=True)} == before
            assert read_one_by_one() == before
        assert Transactions.recover(left.tx.id, force=True) == ("finished" if left.is_committed else "aborted")
        assert_clean(left)
    assert len(purses(1)) == 1
