"""Processes with stock PynamoDB on the same table, items from before, and going back: what stays, what is weaker."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager

import botocore.endpoint
import pytest
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.exceptions import DeleteError, PutError, TransactWriteError, UpdateError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite, VersionAttribute, VersionedMixin, transaction
from pynamo_locking.exceptions import ItemLocked, LockLost, OutcomeUnknown, StaleVersion
from tests.support.models import declare, meta
from tests.support.parties import held_elsewhere, without_pauses
from tests.support.wire import on

REFUSED = (PutError, UpdateError, DeleteError, TransactWriteError)


class Ours(VersionedMixin, Model):
    Meta = meta("fleet")

    pk = UnicodeAttribute(hash_key=True)
    n = NumberAttribute(default=0)
    tags = ListAttribute(default=list)
    version = VersionAttribute()


class Stock(Model):
    """The same model as it was before."""

    Meta = meta("fleet")

    pk = UnicodeAttribute(hash_key=True)
    n = NumberAttribute(default=0)
    tags = ListAttribute(default=list)
    version = StockVersionAttribute()


OursLocked = declare("OursLocked", table_name="locked_fleet", hash_key="pk", lock=True, numbers="n")
StockLocked = declare("StockLocked", Model, table_name="locked_fleet", hash_key="pk", numbers="n")
OursCounting = declare(
    "OursCounting", VersionedMixin, table_name="counting_fleet", hash_key="pk", numbers="n", write_id="w"
)
StockCounting = declare("StockCounting", Model, table_name="counting_fleet", hash_key="pk", numbers="n")


def share(engine, monkeypatch, ours, stock):
    """Put both models on one table."""
    engine.bind(ours)
    for name in ("table_name", "host", "region", "aws_access_key_id", "aws_secret_access_key"):
        if hasattr(ours.Meta, name):
            monkeypatch.setattr(stock.Meta, name, getattr(ours.Meta, name), raising=False)
    monkeypatch.setattr(stock, "_connection", None)


@pytest.fixture(autouse=True)
def _no_pauses():
    with without_pauses():
        yield


@pytest.fixture
def fleet(engine, monkeypatch):
    """Both models on one table."""
    share(engine, monkeypatch, Ours, Stock)
    return engine


def image(engine, model=Ours, pk="a"):
    """The stored item, past both."""
    found = engine.client().get_item(TableName=model.Meta.table_name, Key={"pk": {"S": pk}}, ConsistentRead=True)
    return found.get("Item")


def write_id(engine):
    return image(engine).get("version_write_id", {}).get("S")


def ours():
    return Ours.get("a", consistent_read=True)


def stock():
    return Stock.get("a", consistent_read=True)


def by_put(item):
    item.n += 100
    item.save()


def by_update(item):
    item.update([type(item).n.add(100)])


def by_delete(item):
    item.delete()


def by_transaction(item):
    item.n += 100
    with StockTransactWrite(connection=type(item)._get_connection().connection) as transaction:
        transaction.save(item)


def by_our_transaction(item):
    with TransactWrite(connection=type(item)._get_connection().connection) as transaction:
        transaction.update(item, [type(item).n.add(100)])


CHANGES = [by_put, by_update, by_transaction]
WRITES = [*CHANGES, by_delete]


def refused_as_stale(write, item):
    """The error of a refused write of ours; None for PynamoDB's own transaction, which knows no such error."""
    with pytest.raises(REFUSED) as caught:
        write(item)
    if write is by_transaction:
        assert [reason.code for reason in caught.value.cancellation_reasons] == ["ConditionalCheckFailed"]
        return None
    assert isinstance(caught.value, StaleVersion)
    return caught.value


# What stays safe: a writer that read an older version is refused


@pytest.mark.parametrize("born", [Ours, Stock])
def test_stock_writes_and_our_old_copy_is_refused(fleet, born):
    """Whether or not the item has a write id, before or after, and in every pair of ways to write."""
    for his, mine in itertools.product(CHANGES, [*WRITES, by_our_transaction]):
        born("a").save()
        copy = ours()
        his(stock())
        error = refused_as_stale(mine, copy)
        assert error is None or (error.expected, error.actual, error.current.n) == (1, 2, 100), (his, mine)
        assert stock().n == 100
        stock().delete()


@pytest.mark.parametrize("born", [Ours, Stock])
def test_we_write_and_their_old_copy_is_refused(fleet, born):
    """PynamoDB's own condition on the version holds against everything that we write."""
    for his, mine in itertools.product([*CHANGES, by_our_transaction], WRITES):
        born("a").save()
        copy = stock()
        his(ours())
        with pytest.raises(REFUSED) as caught:
            mine(copy)
        assert not isinstance(caught.value, StaleVersion)
        assert ours().n == 100
        ours().delete()


@pytest.mark.parametrize("second", [Ours, Stock])
@pytest.mark.parametrize("first", [Ours, Stock])
def test_only_one_creates(fleet, first, second):
    """A create meets the other one's item."""
    first("a", n=1).save()
    with pytest.raises(PutError):
        second("a", n=2).save()
    assert ours().n == 1


def test_writing_in_turn(fleet):
    """Each reads what the other wrote, and the version goes up by one each time."""
    Stock("a").save()
    for turn, write in enumerate([by_put, by_update, by_put, by_transaction, by_update, by_put, by_update], start=2):
        write(ours() if turn % 2 else stock())
        assert (ours().version, ours().n) == (turn, 100 * (turn - 1))


def test_an_unchecked_write_of_ours_refuses_theirs(fleet):
    """It counts the version up, so a copy that they read before is old."""
    Stock("a").save()
    for write in (
        lambda: Ours("a", n=5).save(add_version_condition=False),
        lambda: Ours("a").update([Ours.n.add(1)], add_version_condition=False),
        lambda: ours().touch(),
    ):
        copy = stock()
        write()
        assert ours().version == copy.version + 1
        with pytest.raises(PutError):
            copy.save()


def count_up(model, mark, *, by_update):
    """Read, change and write until it is accepted; returns why it was not."""
    refusals = []
    while True:
        item = model.get("a", consistent_read=True)
        try:
            if by_update:
                item.update([model.n.add(1), model.tags.set(model.tags.append([mark]))])
            else:
                item.n += 1
                item.tags.append(mark)
                item.save()
        except (PutError, UpdateError) as error:
            refusals.append(error.cause_response_code)
        else:
            return refusals


def test_concurrent_read_modify_writes(concurrent_engine, monkeypatch):
    """Two threads of each kind count one item up, by saves and by updates: no update is lost."""
    share(concurrent_engine, monkeypatch, Ours, Stock)
    Stock("a").save()
    done, conflicts, errors, each = [], [], [], 12

    def run(model, number):
        try:
            start.wait()
            for turn in range(each):
                mark = f"{model.__name__}{number}-{turn}"
                conflicts.extend(count_up(model, mark, by_update=turn % 2))
                done.append(mark)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    start = threading.Barrier(4)
    threads = [threading.Thread(target=run, args=(model, number)) for model in (Ours, Stock) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    item = ours()
    assert sorted(item.tags) == sorted(done)
    assert item.n == len(done) == 4 * each
    assert item.version == 1 + 4 * each
    assert set(conflicts) == {"ConditionalCheckFailedException"}


# What a stock process does to the write id, and what is weaker for it


def test_a_stock_put_drops_the_write_id(fleet):
    """PutItem writes only what its model declares; our next write begins a new life."""
    Ours("a").save()
    first = write_id(fleet)
    by_put(stock())
    assert write_id(fleet) is None
    by_put(ours())
    assert write_id(fleet).partition("-")[0] != first.partition("-")[0]


@pytest.mark.parametrize("mine", WRITES)
def test_a_stock_update_keeps_an_old_write_id(fleet, mine):
    """The id is not that of the last write then, but the version tells; who reads afterwards can write."""
    Ours("a").save()
    old, copy = write_id(fleet), ours()
    by_update(stock())
    assert write_id(fleet) == old
    refused_as_stale(mine, copy)
    mine(ours())
    assert image(fleet) is None or write_id(fleet) != old or mine is by_delete


@pytest.mark.parametrize("mine", WRITES)
def test_stock_deletes_and_creates_what_we_know_by_its_id(fleet, mine):
    """Our copy has a write id and the new item has none: told apart, although the version is the same."""
    Ours("a", n=1).save()
    copy = ours()
    stock().delete()
    Stock("a", n=2).save()
    error = refused_as_stale(mine, copy)
    assert error is None or (error.expected, error.actual, error.current.n) == (1, 1, 2)
    assert stock().n == 2


@pytest.mark.parametrize("back", [Stock, Ours])
def test_weaker_delete_and_create_of_an_item_without_an_id(fleet, back):
    """Our copy of what stock wrote knows only the version: the new item passes for the old one, as in PynamoDB."""
    Stock("a", n=1).save()
    copy = ours()
    stock().delete()
    back("a", n=2).save()
    copy.save()
    assert (ours().n, ours().version) == (1, 2)


def test_weaker_their_copy_does_not_notice_a_delete_and_create_of_ours(fleet):
    """Stock PynamoDB compares the version alone, whatever we store beside it."""
    Ours("a", n=1).save()
    copy = stock()
    ours().delete()
    Ours("a", n=2).save()
    copy.save()
    assert (ours().n, ours().version) == (1, 2)


def test_weaker_their_reset_of_the_version(fleet):
    """A key-only update of stock sets the version to 1 and keeps the id: at 1, our old copy passes for current."""
    Ours("a", n=1).save()
    copy = ours()
    Stock("a").update([Stock.n.add(100)], add_version_condition=False)
    assert ours().version == 1
    copy.save()
    assert ours().n == 1


def test_their_reset_of_a_higher_version_is_noticed(fleet):
    """From any other version, the copy is refused: the version moved."""
    Ours("a", n=1).save()
    by_put(ours())
    copy = ours()
    Stock("a").update([Stock.n.add(100)], add_version_condition=False)
    with pytest.raises(StaleVersion) as caught:
        copy.save()
    assert (caught.value.expected, caught.value.actual) == (2, 1)


# Lost answers beside stock processes


def test_a_lost_answer_with_a_stock_update_on_top_is_still_known(fleet, monkeypatch):
    """The update keeps our id, so our repetition finds it."""
    Ours("a").save()
    copy = ours()
    with in_between(monkeypatch, lambda: by_update(stock())), on("PutItem").lose_response():
        by_put(copy)
    assert ours().n == 200


def test_weaker_a_lost_answer_with_a_stock_put_on_top(fleet, monkeypatch):
    """The Put drops our id: unknown, but neither a conflict nor written again."""
    Ours("a").save()
    copy = ours()
    with (
        in_between(monkeypatch, lambda: by_put(stock())),
        on("UpdateItem").lose_response(),
        pytest.raises(OutcomeUnknown),
    ):
        by_update(copy)
    assert (ours().n, ours().version) == (200, 3)


@pytest.mark.parametrize(("his", "error"), [(by_update, StaleVersion), (by_put, OutcomeUnknown)])
def test_weaker_a_lost_request_after_a_stock_write(fleet, his, error):
    """Stock wrote first. An update leaves enough to say so; a Put leaves no id, so it is unknown."""
    Ours("a").save()
    copy = ours()
    his(stock())
    with on("PutItem").lose_request(), pytest.raises(error):
        by_put(copy)
    assert (ours().n, ours().version) == (100, 2)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(("mine", "request_name"), [(by_put, "PutItem"), (by_update, "UpdateItem")])
def test_a_lost_answer_on_an_old_item(fleet, mine, request_name, times):
    """An item without an id is enough to know our own write: the id is in the write."""
    Stock("a").save()
    with on(request_name, times=times).lose_response():
        mine(ours())
    assert (ours().n, ours().version) == (100, 2)


def test_stock_batches(fleet):
    """Their batch_write overwrites anything, as it always did; what it wrote has no id, and goes on from there."""
    Ours("a", n=1).save()
    by_put(ours())
    copy, old = ours(), Stock("a", n=7, version=2)
    with Stock.batch_write() as batch:
        batch.save(old)
    assert write_id(fleet) is None
    with pytest.raises(StaleVersion):
        copy.save()  # the same version, but the id that we read is gone
    by_put(ours())
    assert (ours().n, ours().version) == (107, 3)
    with Stock.batch_write() as batch:
        batch.delete(stock())
    with pytest.raises(StaleVersion) as caught:
        Ours("a", version=3).save()
    assert caught.value.current is None


# Items from before


def put(engine, model=Ours, **attributes):
    engine.client().put_item(TableName=model.Meta.table_name, Item={"pk": {"S": "a"}, **attributes})


@pytest.mark.parametrize("mine", WRITES)
def test_an_item_without_a_version(fleet, mine):
    """It was written before there were versions: the first write gives it one, and its other readers are refused."""
    put(fleet, n={"N": "5"})
    copy, other = ours(), ours()
    assert copy.version is None
    mine(copy)
    if mine is by_delete:
        assert image(fleet) is None
    else:
        assert (ours().version, ours().n) == (1, 105)
        with pytest.raises(StaleVersion) as caught:
            other.save()
        assert (caught.value.expected, caught.value.actual) == (None, 1)


def test_two_of_different_kind_give_an_item_its_version(fleet):
    """The first writer wins, of whichever kind it is."""
    for first, second in ((ours, stock), (stock, ours)):
        put(fleet, n={"N": "5"})
        one, two = first(), second()
        by_update(one)
        with pytest.raises(UpdateError):
            by_update(two)
        assert (ours().version, ours().n) == (1, 105)


@pytest.mark.parametrize("mine", WRITES)
def test_an_item_without_a_write_id(fleet, mine):
    """It is written by its version, and has an id afterwards that protects who reads it then."""
    put(fleet, n={"N": "5"}, version={"N": "7"})
    mine(ours())
    if mine is by_delete:
        assert image(fleet) is None
        return
    assert (ours().version, ours().n) == (8, 105)
    assert write_id(fleet)
    copy = ours()
    put(fleet, n={"N": "0"}, version={"N": "8"})  # deleted, and created again up to the same version
    with pytest.raises(StaleVersion):
        copy.save()


def test_modify_touch_and_batches_on_old_items(fleet):
    """The rest of the interface needs no migration either."""
    put(fleet, n={"N": "5"})
    assert Ours.modify("a", lambda item: setattr(item, "n", 6)).version == 1
    put(fleet, n={"N": "5"})
    ours().touch()
    assert ours().version == 1
    put(fleet, n={"N": "5"}, version={"N": "3"})
    with Ours.guarded_batch() as batch:
        batch.save(ours())
    assert ours().version == 4
    put(fleet, n={"N": "5"})
    Ours("a").update([Ours.n.add(1)], add_version_condition=False)
    assert (ours().version, ours().n) == (1, 6)


# Unversioned models with write ids


def test_unversioned_beside_stock(engine, monkeypatch):
    """Stock counts without ids; ours counts once all the same, or says that it does not know."""
    share(engine, monkeypatch, OursCounting, StockCounting)
    StockCounting("a", n=1).save()
    with on("UpdateItem").lose_response():
        OursCounting("a").update([OursCounting.n.add(1)])
    assert OursCounting.get("a").n == 2

    StockCounting("a").update([StockCounting.n.add(1)])  # keeps the id
    with on("UpdateItem").lose_request(), pytest.raises(OutcomeUnknown):
        OursCounting("a").update([OursCounting.n.add(1)])
    StockCounting("a", n=3).save()  # drops it
    with on("UpdateItem").lose_response():
        OursCounting("a").update([OursCounting.n.add(1)])
    assert StockCounting.get("a").n == 4


# Going back


@pytest.mark.parametrize("write", WRITES)
def test_going_back(fleet, write):
    """Stock PynamoDB reads, changes and deletes what we wrote, in every way."""
    Ours("a", n=5, tags=["x"]).save()
    by_update(ours())
    item = stock()
    assert (item.n, item.tags, item.version) == (105, ["x"], 2)
    assert [each.pk for each in Stock.scan()] == [each.pk for each in Stock.query("a")] == ["a"]
    write(item)
    if write is by_delete:
        assert image(fleet) is None
    else:
        assert (stock().n, stock().version) == (205, 3)
        by_put(stock())
        assert set(image(fleet)) == {"pk", "n", "tags", "version"}


def test_and_forth_again(fleet):
    """What stock left behind, old ids among it, is no obstacle to a return."""
    Ours("a").save()
    by_update(stock())
    by_update(stock())
    by_put(ours())
    assert (ours().n, ours().version) == (300, 4)


# Locks in the item


@pytest.fixture
def locked_fleet(engine, monkeypatch):
    share(engine, monkeypatch, OursLocked, StockLocked)
    OursLocked("a", n=1).save()
    return engine


def in_an_edit():
    with OursLocked.edit("a") as item:
        save_by_stock()
        item.n = 2


def in_a_block():
    with OursLocked.locked("a", heartbeat=False):
        save_by_stock()


def in_a_renewal():
    lock = OursLocked.locked("a", heartbeat=False).acquire()
    save_by_stock()
    lock.renew()


def in_a_transaction():
    with transaction() as tx:
        item = tx.get(OursLocked, "a", for_update=True)
        item.n = 2
        tx.save(item)
        save_by_stock()


def save_by_stock():
    item = StockLocked.get("a")
    item.n = 50
    item.save()


@pytest.mark.parametrize("way", [in_an_edit, in_a_block, in_a_renewal, in_a_transaction])
def test_a_holder_hears_that_the_item_was_replaced_without_this_package(locked_fleet, way):
    told = "another writer has replaced the item, and the new one has no lock. .* docs/reference/compatibility.md"
    with pytest.raises(LockLost, match=told) as caught:
        way()
    assert caught.value.reason == "replaced"
    assert OursLocked.get("a").n == 50


def test_who_attaches_hears_that_the_item_was_replaced(locked_fleet):
    token = OursLocked.locked("a").acquire().detach()
    save_by_stock()
    with pytest.raises(LockLost) as caught:
        OursLocked.attach(token).acquire()
    assert caught.value.reason == "replaced"


def test_a_holder_hears_that_the_item_was_deleted(locked_fleet):
    with pytest.raises(LockLost, match="the item that carries it is gone") as caught, OursLocked.edit("a"):
        StockLocked.get("a").delete()
    assert caught.value.reason == "deleted"


@pytest.mark.parametrize("write", [by_put, by_update, by_delete])
def test_a_stock_put_wipes_the_lock_and_the_holder_notices(locked_fleet, write):
    """The lock document is gone with the Put: the holder's next write is refused, and nothing of his is stored."""
    with pytest.raises(LockLost), OursLocked.locked("a", heartbeat=False) as lock:
        item = StockLocked.get("a")
        item.n = 50
        item.save()
        assert "lock" not in image(locked_fleet, OursLocked)
        write(lock.item)
    assert lock.lost.is_set()
    assert OursLocked.get("a").n == 50
    with OursLocked.edit("a", wait=0) as again:
        again.n += 1
    assert OursLocked.get("a").n == 51


def test_weaker_stock_updates_do_not_see_the_lock(locked_fleet):
    """They go through while it is held, keep the lock as it is, and without a version the holder does not notice."""
    with OursLocked.locked("a", heartbeat=False) as lock:
        StockLocked("a").update([StockLocked.n.set(50)])
        lock.item.n += 1
        lock.item.save()
    assert OursLocked.get("a").n == 2


def test_our_writers_outside_see_the_lock(locked_fleet):
    """In the same fleet, those of this package are kept out."""
    copy = OursLocked.get("a")
    with held_elsewhere(OursLocked.locked("a")), pytest.raises(ItemLocked):
        copy.save()


def in_between(monkeypatch, call):
    """Run a call once, before botocore repeats a request."""
    calls = []

    class Time:
        @staticmethod
        def sleep(_seconds):
            if not calls:
                calls.append(call)
                call()

    @contextmanager
    def patched():
        with monkeypatch.context() as patch:
            patch.setattr(botocore.endpoint, "time", Time)
            yield
        assert calls

    return patched()
