"""What versions offer beyond PynamoDB's: `modify`, `touch`, `TransactWrite.check`, `StaleVersion`, write ids."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import BooleanAttribute, ListAttribute
from pynamodb.exceptions import DeleteError, PutError, TransactWriteError, UpdateError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite, VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import BatchError, ConfigurationError, Conflict, ItemLocked, OutcomeUnknown, StaleVersion
from tests.support import runtime
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere, in_thread
from tests.support.versioned_models import connection_of, item_of
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable


Doc = declare(
    "Doc",
    VersionedMixin,
    hash_key="pk",
    texts="body",
    numbers="n",
    on_call=BooleanAttribute(default=True),
    version=True,
)


Page = declare(
    "Page", VersionedMixin, hash_key="book", range_key="number", numbers="n", revision=VersionAttribute(attr_name="v")
)
Plain = declare("Plain", VersionedMixin, hash_key="pk", numbers="n")
Ledger = declare("Ledger", hash_key="pk", lock=True, version=True, numbers="n")
Machine = declare("Machine", hash_key="pk", version=True, numbers="n", lock_table=Locks)


class Sleepless(runtime.Runtime):
    """The real world, where pauses are noted and not made, and jitter is what the test says."""

    def __init__(self, share: float | None = None) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.share = share

    def jitter(self) -> float:
        return super().jitter() if self.share is None else self.share

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def world():
    with runtime.installed(Sleepless()) as sleepless:
        yield sleepless


def together(model: type[Any] = Doc) -> TransactWrite:
    return TransactWrite(connection=connection_of(model))


def add_one(item: Any) -> None:
    item.n += 1


def write_over(pk: str) -> None:
    """Be the other writer, which is faster."""
    Doc(pk).update([Doc.n.add(100)], add_version_condition=False)


# modify


def test_modify_is_one_read_and_one_write(engine):
    """It returns the item as saved."""
    engine.bind(Doc)
    Doc("a", n=1).save()
    with count_requests() as counted:
        item = Doc.modify("a", change=add_one)
    assert counted.by_operation == {"GetItem": 1, "PutItem": 1}
    assert counted.bodies[0][1]["ConsistentRead"] is True
    assert (item.n, item.version) == (2, 2)
    assert item.to_simple_dict() == Doc.get("a").to_simple_dict()


def test_modify_takes_the_stored_item_from_the_refusal(cheap, world):
    """The second attempt is without a read, as the refusal brings the item; later ones read again. Nothing is lost."""
    cheap.bind(Doc)
    Doc("a").save()
    calls = []

    def change(item: Any) -> None:
        calls.append(item)
        if len(calls) < 4:
            write_over("a")
        item.n += 1

    with count_requests() as counted:
        item = Doc.modify("a", change=change)
    assert counted.by_operation == {"GetItem": 3, "PutItem": 4, "UpdateItem": 3}
    assert len(world.pauses) == 2
    assert len({id(each) for each in calls}) == 4
    assert (item.n, item.version, Doc.get("a").n) == (301, 5, 301)


def test_modify_gives_up_with_the_last_conflict(cheap, world):
    """After as many attempts, and with a pause before all but the first two."""
    cheap.bind(Doc)
    Doc("a").save()
    with count_requests() as counted, pytest.raises(StaleVersion) as caught:
        Doc.modify("a", change=lambda item: write_over("a"), attempts=3)
    assert counted.by_operation == {"GetItem": 2, "PutItem": 3, "UpdateItem": 3}
    reads = [body for operation, body in counted.bodies if operation == "GetItem"]
    assert [read.get("ConsistentRead") for read in reads] == [True, True], "a replica may show what was refused"
    assert (caught.value.expected, caught.value.actual, caught.value.current.n) == (3, 4, 300)
    assert isinstance(caught.value, PutError)
    for found in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(found).startswith("modify() gave up after attempt 3 of 3: the save of Doc('a') was refused")
        assert found.msg == str(found)
    assert len(world.pauses) == 1
    with pytest.raises(StaleVersion):
        Doc.modify("a", change=lambda item: write_over("a"), attempts=1)
    assert len(world.pauses) == 1


def test_modify_pauses_with_full_jitter(memory, world):
    """Between 0 and 0.1 s, doubled each time, at most 2 s."""
    memory.bind(Doc)
    Doc("a").save()
    for share, limits in ((1.0, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]), (0.5, [0.05, 0.1, 0.2]), (0.0, [0.0, 0.0])):
        world.share, world.pauses = share, []
        with pytest.raises(StaleVersion):
            Doc.modify("a", change=lambda item: write_over("a"), attempts=len(limits) + 2)
        assert world.pauses == pytest.approx(limits)


def test_modify_writes_nothing_if_the_function_raises(cheap):
    """What it raises comes out; what it returns is ignored."""
    cheap.bind(Doc)
    Doc("a").save()
    with count_requests() as counted, pytest.raises(ZeroDivisionError):
        Doc.modify("a", lambda item: 1 / 0)
    assert counted.by_operation == {"GetItem": 1}
    assert Doc.modify("a", lambda item: Doc("b")).pk == "a"


def test_modify_of_an_absent_item(cheap, world):
    """An error, unless `create` says to begin with a new one."""
    cheap.bind(Doc)
    with pytest.raises(Doc.DoesNotExist):
        Doc.modify("a", add_one)
    with count_requests() as counted:
        item = Doc.modify("a", add_one, create=True)
    assert counted.by_operation == {"GetItem": 1, "PutItem": 1}
    assert (item.n, item.version, Doc.get("a").n) == (1, 1, 1)


def test_modify_that_creates_beside_another_creator(cheap, world):
    """The second creator goes on from the item of the first."""
    cheap.bind(Doc)
    calls = []

    def change(item: Any) -> None:
        calls.append(item.version)
        if len(calls) == 1:
            Doc("a", n=10).save()
        item.n += 1

    with count_requests() as counted:
        item = Doc.modify("a", change, create=True)
    assert calls == [None, 1]
    assert counted.by_operation == {"GetItem": 1, "PutItem": 3}
    assert (item.n, item.version) == (11, 2)


@pytest.mark.parametrize("create", [False, True])
def test_modify_of_an_item_that_is_deleted_meanwhile(cheap, world, create):
    """It is read again: absent, or made anew where the caller allows it."""
    cheap.bind(Doc)
    Doc("a", n=5).save()
    calls = []

    def change(item: Any) -> None:
        calls.append(item.n)
        if len(calls) == 1:
            Doc.get("a").delete()
        item.n += 1

    with nullcontext() if create else pytest.raises(Doc.DoesNotExist):
        assert Doc.modify("a", change, create=create).n == 1
    assert calls == ([5, 0] if create else [5])


def test_modify_with_a_condition_is_not_repeated_when_that_fails(cheap, world):
    """It is no conflict of versions, so another attempt would change nothing."""
    cheap.bind(Doc)
    Doc("a", n=5).save()
    with count_requests() as counted, pytest.raises(Conflict) as caught:
        Doc.modify("a", add_one, condition=Doc.n > 100)
    assert not isinstance(caught.value, StaleVersion)
    assert counted.by_operation == {"GetItem": 1, "PutItem": 1}
    assert Doc.modify("a", add_one, condition=Doc.n == 5).n == 6
    assert world.pauses == []


def test_modify_with_a_range_key(cheap):
    """The function is the third argument then, or named."""
    cheap.bind(Page)
    Page("b", 1).save()
    Page("b", 2, n=7).save()
    assert Page.modify("b", 1, add_one).n == 1
    assert Page.modify("b", range_key=2, change=add_one).n == 8
    made = Page.modify("b", 3, add_one, create=True)
    assert (made.number, made.n, made.revision) == (3, 1, 1)


def test_modify_refuses_what_cannot_work_before_it_sends_anything(memory):
    """No version, no function, no attempts, no time."""
    memory.bind(Doc, Plain)
    with count_requests() as counted:
        with pytest.raises(ConfigurationError, match="has no version"):
            Plain.modify("a", add_one)
        for change in (None, 5, "x"):
            with pytest.raises(ConfigurationError, match="needs a function"):
                Doc.modify("a", change=change)
        for attempts in (0, -1):
            with pytest.raises(ConfigurationError, match="at least one attempt"):
                Doc.modify("a", add_one, attempts=attempts)
        with pytest.raises(ConfigurationError, match="wait must not be negative"):
            Doc.modify("a", add_one, wait=-1)
        with pytest.raises(ConfigurationError, match="has no version"):
            Plain("a").touch()
    assert counted.total == 0


def test_modify_of_an_item_that_another_party_has_locked(cheap, world):
    """With wait=0 it does not wait."""
    cheap.bind(Ledger)
    Ledger("a").save()
    with held_elsewhere(Ledger.locked("a", owner="other", heartbeat=False)):
        with count_requests() as counted, pytest.raises(ItemLocked, match="when its `wait` was over") as caught:
            Ledger.modify("a", add_one, wait=0)
        assert counted.by_operation == {"GetItem": 1, "UpdateItem": 1}
    assert caught.value.holder == "other"
    assert Ledger.modify("a", add_one).n == 1


@pytest.mark.parametrize("model", [Ledger, Machine])
def test_modify_inside_the_lock(cheap, model):
    """It is a guarded write like any other; the copy of the lock is old afterwards."""
    cheap.bind(Locks, Ledger, Machine)
    model("a").save()
    with model.locked("a") as lock:
        before = lock.item
        assert model.modify("a", add_one).n == 1
        with pytest.raises(StaleVersion):
            before.save()
    assert model.get("a").version == 2


def test_modify_whose_answer_is_lost_changes_once(cheap, world):
    """The save is known by its id; with no answer at all the outcome is unknown, and it is not repeated."""
    cheap.bind(Doc)
    Doc("a").save()
    with on("PutItem").lose_response():
        assert Doc.modify("a", add_one).n == 1
    with on("PutItem", times=99).lose_request(), pytest.raises(OutcomeUnknown):
        Doc.modify("a", add_one)
    assert Doc.get("a").n == 1


# touch


def test_touch_counts_the_version_up_and_changes_nothing_else(engine):
    """In one write; a writer that has read the item before is refused."""
    engine.bind(Doc)
    Doc("a", body="x").save()
    item, other = Doc.get("a"), Doc.get("a")
    before = item_of(engine, Doc) or {}
    with count_requests() as counted:
        item.touch()
    assert counted.by_operation == {"UpdateItem": 1}
    after = item_of(engine, Doc) or {}
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"version", "version_write_id"}
    assert (item.version, item.body) == (2, "x")
    with pytest.raises(StaleVersion):
        other.save()
    with pytest.raises(StaleVersion) as caught:
        other.touch()
    assert isinstance(caught.value, UpdateError)
    other.touch(add_version_condition=False)
    assert (other.version, Doc.get("a").version) == (3, 3)
    with pytest.raises(Conflict):
        other.touch(Doc.body == "y")
    other.touch(Doc.body == "x")
    item.save(add_version_condition=False)
    assert item.version == 5


def test_touch_whose_answer_is_lost_counts_once(cheap):
    """Without the check it may be twice, which does no harm; the instance has the stored version anyway."""
    cheap.bind(Doc)
    item = Doc("a")
    item.save()
    with on("UpdateItem").lose_response():
        item.touch()
    assert (item.version, Doc.get("a").version) == (2, 2)
    with on("UpdateItem").lose_response():
        item.touch(add_version_condition=False)
    assert item.version == Doc.get("a").version
    assert item.version in (3, 4)
    item.save()


# TransactWrite.check


def _go_off_call(me: Any, other: Any, *, reads: bool) -> None:
    """Leave if the other one stays."""
    assert other.on_call
    with together() as transaction:
        if reads:
            transaction.check(other)
        me.on_call = False
        transaction.save(me)


@pytest.mark.parametrize("reads", [False, True])
def test_write_skew(engine, reads):
    """Two doctors each see the other on call and leave: both without `check`, and one with it."""
    engine.bind(Doc)
    for name in "ab":
        Doc(name).save()
    first, second = ([Doc.get(name) for name in "ab"] for _ in range(2))
    _go_off_call(first[0], first[1], reads=reads)
    with pytest.raises(StaleVersion) if reads else nullcontext() as refused:
        _go_off_call(second[1], second[0], reads=reads)
    assert not reads or refused.value.current.pk == "a"
    assert [item.pk for item in Doc.scan() if item.on_call] == (["b"] if reads else [])


def test_a_read_item_is_checked_and_not_written(engine):
    """Each in one transaction of one request; the error names the item that has changed."""
    engine.bind(Doc, Page)
    Doc("a").save()
    Page("b", 1).save()
    read, page = Doc.get("a"), Page.get("b", 1)
    with count_requests() as counted, together() as transaction:
        transaction.check(read)
        transaction.save(page)
    assert counted.by_operation == {"TransactWriteItems": 1}
    kinds = [next(iter(action)) for action in counted.bodies[0][1]["TransactItems"]]
    assert kinds == ["ConditionCheck", "Put"]
    assert (Doc.get("a").version, page.revision) == (1, 2)
    Doc.get("a").touch()
    with pytest.raises(StaleVersion) as caught, together() as transaction:
        transaction.save(page)
        transaction.check(read)
    assert (caught.value.expected, caught.value.actual, caught.value.current.pk) == (1, 2, "a")
    assert [reason and reason.code for reason in caught.value.cancellation_reasons] == [None, "ConditionalCheckFailed"]
    assert Page.get("b", 1).revision == 2
    read.refresh()
    Doc.get("a").delete()
    Doc("a").save()
    Doc.get("a").touch()
    assert Doc.get("a").version == read.version
    with pytest.raises(StaleVersion), together() as transaction:
        transaction.check(read)


def test_an_absent_item_can_be_read(cheap):
    """It is checked that it still is."""
    cheap.bind(Doc)
    with together() as transaction:
        transaction.check(Doc("a"))
        transaction.save(Doc("b"))
    assert Doc.get("b")
    Doc("a").save()
    with pytest.raises(StaleVersion) as caught, together() as transaction:
        transaction.check(Doc("a"))
        transaction.save(Doc("c"))
    assert (caught.value.expected, caught.value.actual) == (None, 1)
    with pytest.raises(Doc.DoesNotExist):
        Doc.get("c")
    gone = Doc.get("a")
    Doc.get("a").delete()
    with pytest.raises(StaleVersion) as caught, together() as transaction:
        transaction.check(gone)
    assert (caught.value.actual, caught.value.current) == (None, None)


WRITES: dict[str, Callable[..., None]] = {
    "save": lambda transaction, item, **options: transaction.save(item, **options),
    "update": lambda transaction, item, **options: transaction.update(item, [type(item).n.add(1)], **options),
    "delete": lambda transaction, item, **options: transaction.delete(item, **options),
}
ACTIONS: dict[str, Callable[..., None]] = WRITES | {"read": lambda transaction, item: transaction.check(item)}


@pytest.mark.parametrize("order", ["read first", "write first", "read twice"])
@pytest.mark.parametrize("write", WRITES)
def test_an_item_may_be_read_and_written_in_one_transaction(cheap, write, order):
    """DynamoDB allows one action for an item; a checked write checks all that a read does."""
    cheap.bind(Doc)
    Doc("a").save()
    item = Doc.get("a")
    actions = {"read first": ["read", write], "write first": [write, "read"], "read twice": ["read", "read", write]}
    with count_requests() as counted, together() as transaction:
        for action in actions[order]:
            ACTIONS[action](transaction, item)
    assert len(counted.bodies[0][1]["TransactItems"]) == 1
    assert [doc.version for doc in Doc.scan()] == ([] if write == "delete" else [2])


@pytest.mark.parametrize("write", WRITES)
def test_a_write_without_a_check_and_a_read_of_one_item_cannot_be_joined(memory, write):
    """Nothing would check the read: refused at once, in both orders."""
    memory.bind(Doc)
    Doc("a").save()
    item = Doc.get("a")
    transaction = together()
    transaction.check(item)
    with pytest.raises(ConfigurationError, match="join them"):
        WRITES[write](transaction, item, add_version_condition=False)
    transaction = together()
    WRITES[write](transaction, item, add_version_condition=False)
    with pytest.raises(ConfigurationError, match="join them"):
        transaction.check(item)


@pytest.mark.parametrize("order", [("read", "save"), ("save", "read")], ids="-".join)
def test_two_copies_of_an_item_in_one_transaction(memory, order):
    """One of them is old: refused at once, in both orders."""
    memory.bind(Doc)
    Doc("a").save()
    old = Doc.get("a")
    Doc.get("a").touch()
    copies = {order[0]: Doc.get("a"), order[1]: old}
    transaction = together()
    ACTIONS[order[0]](transaction, copies[order[0]])
    with count_requests() as counted, pytest.raises(StaleVersion, match="one of them is old"):
        ACTIONS[order[1]](transaction, copies[order[1]])
    assert counted.total == 0


Stock = declare("Stock", Model, hash_key="pk")


@pytest.mark.parametrize("model", [Plain, Stock])
def test_an_item_without_a_version_cannot_be_read(memory, model):
    """There is nothing to check it by."""
    memory.bind(model)
    with pytest.raises(ConfigurationError, match="has no version"):
        together(model).check(model("a"))


def test_an_item_that_a_transaction_updated_cannot_be_read_before_refresh(memory):
    """Its attributes are not those of its version."""
    memory.bind(Doc)
    item = Doc("a")
    item.save()
    with together() as transaction:
        transaction.update(item, [Doc.n.add(1)])
    with pytest.raises(StaleVersion, match="refresh"):
        together().check(item)
    item.refresh()
    with together() as transaction:
        transaction.check(item)


# The attribute


@pytest.mark.parametrize(("given", "version"), [(None, None), (3, 3), ("3", 3), (3.0, 3), (True, 1), (0, 0)], ids=repr)
def test_what_a_version_can_be(given, version):
    """It is an int, or None, whatever form a client sends it in."""
    item = Doc("a")
    item.version = given
    assert item.version == version
    assert item.version is None or type(item.version) is int


@pytest.mark.parametrize("wrong", [1.5, "1.5", "x", "", float("nan"), float("inf"), b"3x"], ids=repr)
def test_what_a_version_cannot_be(wrong):
    """A ValueError, and the version stays what it was."""
    item = Doc("a")
    item.version = 2
    with pytest.raises(ValueError, match=r"whole number|invalid literal|NaN"):
        item.version = wrong
    assert item.version == 2


def test_an_assigned_version_is_the_one_that_is_expected(cheap):
    """``If-Match``: a client sends the version it has seen, and an older one is refused."""
    cheap.bind(Doc)
    Doc("a").save()
    Doc.get("a").touch()
    item = Doc.get("a")
    item.version = "1"
    for write, error in (
        (item.save, PutError),
        (lambda: item.update([Doc.n.add(1)]), UpdateError),
        (item.delete, DeleteError),
    ):
        with pytest.raises(StaleVersion) as caught:
            write()
        assert isinstance(caught.value, error)
        assert (caught.value.expected, caught.value.actual) == (1, 2)
    item.version = 2
    item.save()
    assert item.version == 3
    by_hand = Doc("a", n=9, version=3)
    by_hand.save()
    assert (Doc.get("a").n, Doc.get("a").version) == (9, 4)


def test_a_version_assigned_as_it_is_keeps_what_is_known(cheap):
    """The write id too: it still notices that the item was deleted and made again."""
    cheap.bind(Doc)
    Doc("a").save()
    item, by_hand = Doc.get("a"), Doc("a", version=1)
    item.version = 1
    Doc.get("a").delete()
    Doc("a").save()
    with pytest.raises(StaleVersion, match="deleted and created again"):
        item.save()
    by_hand.save()
    assert by_hand.version == 2


#: Our attribute, and PynamoDB's base class.
Forgotten = declare("Forgotten", Model, hash_key="pk", version=True, numbers="n")


def test_a_version_on_a_model_that_does_not_guard_it_is_refused(memory):
    """Every write says so, and sends nothing."""
    memory.bind(Forgotten)
    item = Forgotten("a")

    def transact(name: str, *arguments: Any) -> None:
        with StockTransactWrite(connection=connection_of(Forgotten)) as transaction:
            getattr(transaction, name)(item, *arguments)

    def batch() -> None:
        with Forgotten.batch_write() as writer:
            writer.save(item)

    writes = [
        item.save,
        lambda: item.update([Forgotten.n.add(1)]),
        item.delete,
        lambda: transact("save"),
        lambda: transact("update", [Forgotten.n.add(1)]),
        lambda: transact("delete"),
        batch,
        lambda: item.version,
    ]
    with count_requests() as counted:
        for write in writes:
            with pytest.raises(ConfigurationError, match="derive it from VersionedMixin"):
                write()
    assert counted.total == 0


# StaleVersion


def transact(name: str) -> Callable[[Any], None]:
    def write(item: Any) -> None:
        with together(type(item)) as transaction:
            ACTIONS[name](transaction, item)

    return write


def batch(name: str, *, transactions: bool) -> Callable[[Any], None]:
    def write(item: Any) -> None:
        try:
            with type(item).guarded_batch(transactions=transactions) as writer:
                getattr(writer, name)(item)
        except BatchError as error:
            raise error.results[0].error or error from None

    return write


OPERATIONS: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "save": (lambda item: item.save(), PutError, "PutItem"),
    "update": (lambda item: item.update([type(item).n.add(1)]), UpdateError, "UpdateItem"),
    "delete": (lambda item: item.delete(), DeleteError, "DeleteItem"),
    "touch": (lambda item: item.touch(), UpdateError, "UpdateItem"),
    **{f"transaction {name}": (transact(name), TransactWriteError, "TransactWriteItems") for name in ACTIONS},
    "batch save": (batch("save", transactions=False), PutError, "PutItem"),
    "batch delete": (batch("delete", transactions=True), TransactWriteError, "TransactWriteItems"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("model", [Doc, Ledger])
def test_a_refusal_says_what_is_stored_at_no_cost(engine, model, operation):
    """One write and no read; expected, actual and current come with it, and the instance stays as it was."""
    engine.bind(model)
    model("a", n=1).save()
    stale = model.get("a")
    model.get("a").update([model.n.set(7)])
    before, (write, error, request) = stale.to_simple_dict(), OPERATIONS[operation]
    request = "UpdateItem" if model is Ledger and request == "PutItem" else request
    with count_requests() as counted, pytest.raises(StaleVersion) as caught:
        write(stale)
    assert counted.by_operation == {request: 1}
    assert stale.to_simple_dict() == before
    for found in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(found, error)
        assert (found.expected, found.actual) == (1, 2)
        assert type(found.current) is model
        assert (found.current.pk, found.current.n, found.current.version) == ("a", 7, 2)
    again = caught.value.current
    again.n += 1
    again.save()
    assert (again.version, model.get("a").n) == (3, 8)


@pytest.mark.parametrize("model", [Doc, Ledger])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_refusal_because_the_item_exists_already(cheap, model, operation):
    """An instance that was never read has no version to speak of; the caller's word for the write is used."""
    cheap.bind(Doc, Ledger)
    model("a").save()
    with pytest.raises(StaleVersion) as caught:
        OPERATIONS[operation][0](model("a"))
    assert (caught.value.expected, caught.value.actual) == (None, 1)
    message = str(caught.value)
    last = operation.split()[-1]
    call = {"touch": "update", "read": "check"}.get(last, last)
    assert f"the {call} of {model.__name__}('a') was refused and nothing changed: the item exists already" in message
    assert "version None" not in message
    assert "in version 1," in message


def test_a_condition_that_is_not_met_names_the_save(cheap):
    """Also where the save goes out as an UpdateItem."""
    cheap.bind(Doc, Ledger)
    for model in (Doc, Ledger):
        model("a").save()
        with pytest.raises(Conflict, match=rf"save of {model.__name__}\('a'\) was refused .* condition was not met"):
            model.get("a").save(model.n == 7)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_refusal_because_the_item_is_gone(engine, operation):
    """There is no current one; the code is the one that PynamoDB's users look for."""
    engine.bind(Doc)
    Doc("a").save()
    stale = Doc.get("a")
    Doc.get("a").delete()
    with pytest.raises(StaleVersion) as caught:
        OPERATIONS[operation][0](stale)
    assert (caught.value.expected, caught.value.actual, caught.value.current) == (1, None, None)
    is_transaction = isinstance(caught.value, TransactWriteError)
    code = "TransactionCanceledException" if is_transaction else "ConditionalCheckFailedException"
    assert caught.value.cause_response_code == code


# Never back, also where the lock is elsewhere


@pytest.mark.parametrize("place", ["outside", "inside"])
@pytest.mark.parametrize("model", [Machine, Ledger])
def test_writes_without_a_check_never_move_the_version_back(engine, model, place):
    """An old copy, and an object made by hand: the stored version counts on, and the instance has it."""
    engine.bind(Locks, Ledger, Machine)
    model("a").save()
    with nullcontext() if place == "outside" else model.locked("a"):
        old = model.get("a")
        for _ in range(4):
            in_thread(lambda: model.get("a").touch()) if place == "outside" else model.get("a").touch()
        hand_made = model("a", n=5)
        writes = [
            lambda: old.save(add_version_condition=False),
            lambda: hand_made.save(add_version_condition=False),
            lambda: model("a").update([model.n.add(1)], add_version_condition=False),
            lambda: model("a").touch(add_version_condition=False),
        ]
        for expected, write in enumerate(writes, start=6):
            write()
            assert model.get("a", consistent_read=True).version == expected
        assert (old.version, hand_made.version) == (6, 7)
        assert model.get("a").n == 6


def test_what_an_unguarded_batch_has_stored_can_be_saved(memory):
    """It has no write id then, and the instance knows of none."""
    memory.bind(Doc)
    Doc("a").save()
    item = Doc.get("a")
    with Doc.batch_write(unguarded=True) as batch:
        batch.save(item)
    assert "version_write_id" not in (item_of(memory, Doc) or {})
    item.n = 5
    item.save()
    assert (Doc.get("a").n, item.version) == (5, 2)


Queue = declare("Queue", VersionedMixin, hash_key="pk", parts=ListAttribute(default=list), version=True)


@pytest.mark.parametrize("change", [Queue.parts[0].remove(), Queue.parts[9].set("x")])
def test_an_update_of_an_element_whose_answer_is_lost_is_sent_once(memory, change):
    """A second copy would remove the next element too, or append another one."""
    memory.bind(Queue)
    item = Queue("a", parts=["a", "b", "c"])
    item.save()
    with on("UpdateItem").lose_response() as lost, count_requests() as counted:
        item.update([change], add_version_condition=False)
    assert (lost.hits, counted.by_operation["UpdateItem"]) == (1, 1)
    assert Queue.get("a").parts in (["b", "c"], ["a", "b", "c", "x"])
