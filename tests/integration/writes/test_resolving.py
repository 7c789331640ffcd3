"""`OutcomeUnknown.resolve()` is right whether the request was applied, is lost, or arrives after the answer."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from pynamodb.exceptions import UpdateError

from pynamo_locking import TransactWrite, VersionedMixin
from pynamo_locking.exceptions import OutcomeUnknown, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere
from tests.support.wire import ALL, count_requests, on

Note = declare("Note", VersionedMixin, version=True, numbers="n", max_retry_attempts=0)
Page = declare("Page", lock=True, version=True, numbers="n", max_retry_attempts=0)
Beside = declare("Beside", version=True, numbers="n", max_retry_attempts=0, lock_table=Locks)


@pytest.fixture(autouse=True)
def _tables(request):
    """The tables, and virtual time while requests get lost."""
    engine = request.getfixturevalue("engine" if "engine" in request.fixturenames else "memory")
    engine.bind(Note, Page, Locks, Beside)
    for model in (Note, Page):
        model("k").save()
    with VirtualClock():
        yield


def stored(model, key="k"):
    return model.get(key, consistent_read=True).n


def saves(model):
    item = model.get("k", consistent_read=True)
    item.n = 1
    item.save()


def updates(model):
    model.get("k", consistent_read=True).update([model.n.set(1)])


def saves_under_the_lock(model):
    with model.locked("k") as lock:
        lock.item.n = 1
        lock.item.save()


def saves_in_a_transaction(model):
    item = model.get("k", consistent_read=True)
    item.n = 1
    with TransactWrite(connection=model._get_connection().connection) as transaction:
        transaction.save(item)
        transaction.save(Note("another"))


#: A model, how it is written, and the operation of that request.
WRITES = [
    (Note, saves, "PutItem"),
    (Note, updates, "UpdateItem"),
    (Page, saves, "UpdateItem"),
    (Beside, saves_under_the_lock, "TransactWriteItems"),
    (Note, saves_in_a_transaction, "TransactWriteItems"),
]


def writes():
    """Each of them, with the items as they were."""
    for case in WRITES:
        for model in (Note, Page, Beside):
            for item in model.scan(consistent_read=True):
                item.delete()
            model("k").save()
        yield case


def is_refused_late(write):
    """Whether a copy that arrives when the lock was given back finds no entry."""
    return write is saves_under_the_lock


def unknown(write, model):
    with pytest.raises(OutcomeUnknown) as caught:
        write(model)
    return caught.value


def test_an_applied_write_is_applied(memory):
    """One read tells, and nothing is written."""
    for model, write, operation in writes():
        with on(operation, times=99).lose_response():
            error = unknown(write, model)
        with count_requests() as counted:
            assert error.resolve() == "applied"
            assert error.resolve() == "applied"  # without a request

        assert counted.by_operation == {"GetItem": 1}
        assert stored(model) == 1


@pytest.mark.parametrize(
    "ask", [OutcomeUnknown.resolve, lambda error: asyncio.run(error.aresolve())], ids=["a thread", "a task"]
)
def test_a_lost_write_is_not_applied_and_can_be_done_again(memory, ask):
    """One read and one write."""
    for model, write, operation in writes():
        with on(operation, times=99).lose_request():
            error = unknown(write, model)
        with count_requests() as counted:
            assert ask(error) == "not applied"

        assert counted.by_operation == {"GetItem": 1, "UpdateItem": 1}
        assert stored(model) == 0
        write(model)
        assert stored(model) == 1


def test_not_applied_stays_true_when_the_request_arrives(engine):
    """Every copy of the request, also after the item was written again."""
    for model, write, operation in writes():
        with on(operation, times=ALL).delay() as late:
            error = unknown(write, model)
        assert error.resolve() == "not applied"
        for land in late:
            land()
        assert stored(model) == 0
        write(model)
        model.get("k", consistent_read=True).update([model.n.set(7)])
        for land in late:
            land()
        assert (stored(model), error.resolve()) == (7, "not applied")


def test_a_request_that_arrives_before_the_answer_is_applied(memory):
    for model, write, operation in writes():
        with on(operation, times=ALL).delay() as late:
            error = unknown(write, model)
        late[-1]()
        assert error.resolve() == ("not applied" if is_refused_late(write) else "applied")


def test_a_request_that_arrives_between_the_read_and_the_write_is_applied(engine):
    """The write that would keep it out is refused, and the next read finds it."""
    for model, write, operation in writes():
        with on(operation, times=ALL).delay() as late:
            error = unknown(write, model)
        with on("UpdateItem").before(late[0]):
            assert error.resolve() == ("not applied" if is_refused_late(write) else "applied")


def test_after_one_other_write_it_was_not_applied(memory):
    """The id that the request names is gone for good, and the next version is by another writer: one read."""
    for model, write, operation in writes():
        with on(operation, times=ALL).delay() as late:
            error = unknown(write, model)
        model.get("k", consistent_read=True).update([model.n.set(7)])
        with count_requests() as counted:
            assert error.resolve() == "not applied"
        assert counted.by_operation == {"GetItem": 1}
        for land in late:
            land()
        assert stored(model) == 7


def test_after_several_other_writes_it_is_not_to_be_known(memory):
    for model, write, operation in writes():
        with on(operation, times=99).lose_response():
            error = unknown(write, model)
        for n in (7, 8):
            model.get("k", consistent_read=True).update([model.n.set(n)])
        assert error.resolve() == ("applied" if write is saves_in_a_transaction else "unknown")  # by the other item


def test_an_unanswered_question_can_be_asked_again(memory):
    """ "unknown" is no definite answer while no response comes."""
    with on("PutItem", times=99).lose_response():
        error = unknown(saves, Note)
    with on("GetItem", times=99).lose_request():
        assert error.resolve() == "unknown"
    assert error.resolve() == "applied"


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "AccessDeniedException"])
def test_the_write_that_keeps_it_out_is_refused(memory, code):
    """A busy table gives no answer yet. A missing permission is an error, and no answer about the write."""
    with on("PutItem", times=99).lose_request():
        error = unknown(saves, Note)

    with on("UpdateItem").answer(code, always=True):
        if code == "AccessDeniedException":
            with pytest.raises(UpdateError, match=code):
                error.resolve()
        else:
            assert error.resolve() == "unknown"
    assert error.resolve() == "not applied"


def test_a_lost_answer_to_the_write_that_keeps_it_out_changes_nothing(memory):
    with on("PutItem", times=ALL).delay() as late:
        error = unknown(saves, Note)
    with on("UpdateItem", times=99).lose_response():
        assert error.resolve() == "not applied"
    late[0]()
    assert stored(Note) == 0


def test_while_the_item_is_locked_it_is_not_to_be_known(engine):
    """The request may arrive when the lock is free, and the write that would prevent it has to wait as well."""
    with on("UpdateItem", times=ALL).delay() as late:
        error = unknown(saves, Page)
    with held_elsewhere(Page.locked("k")):
        assert error.resolve() == "unknown"
    late[0]()
    assert error.resolve() == "applied"


def saves_at_the_end_of_an_edit(model):
    with model.edit("k") as item:
        item.n = 1


def is_save(body):
    """Whether a request stores `n`; to take the lock, to renew it and to give it back do not."""
    return "n" in body.get("ExpressionAttributeNames", {}).values()


@pytest.mark.parametrize("write", [saves_under_the_lock, saves_at_the_end_of_an_edit])
def test_writes_under_a_lock_in_the_item(memory, write):
    """They name the entry as well, which is gone when the lock was given back."""
    with on("UpdateItem", times=99, where=is_save).lose_response():
        error = unknown(write, Page)
    assert error.resolve() == "applied"
    Page.get("k").update([Page.n.set(0)])
    with on("UpdateItem", times=ALL, where=is_save).delay() as late:
        error = unknown(write, Page)
    assert error.resolve() == "not applied"
    for land in late:
        land()
    assert stored(Page) == 0
    write(Page)
    assert stored(Page) == 1


def test_a_created_item_is_known_by_its_life(memory):
    """Also after others have written it several times; while it is absent nothing keeps a late copy out."""
    with on("PutItem", times=ALL).delay() as late:
        error = unknown(lambda model: model("new", n=1).save(), Note)
    assert error.resolve() == "unknown"
    late[0]()
    assert stored(Note, "new") == 1
    for n in (2, 3):
        Note.get("new", consistent_read=True).update([Note.n.set(n)])
    assert error.resolve() == "applied"


def test_a_deleted_item_is_deleted(memory):
    with on("DeleteItem", times=99).lose_response():
        error = unknown(lambda model: model.get("k").delete(), Note)
    assert error.resolve() == "applied"


def test_a_delete_that_was_lost_is_not_applied(memory):
    with on("DeleteItem", times=ALL).delay() as late:
        error = unknown(lambda model: model.get("k").delete(), Note)
    assert error.resolve() == "not applied"
    late[0]()
    assert stored(Note) == 0


def test_an_absent_item_proves_nothing_of_a_transaction(memory):
    """Another writer may have deleted it."""
    note = Note.get("k")

    def deletes(model):
        with TransactWrite(connection=model._get_connection().connection) as transaction:
            transaction.delete(note)
            transaction.save(Note("another"))

    with on("TransactWriteItems", times=ALL).delay():
        error = unknown(deletes, Note)
    Note.get("k").delete()
    assert error.resolve() == "unknown"


def test_an_unchecked_write_cannot_be_kept_out(memory):
    note = Note("k", n=1)
    with on("UpdateItem", times=ALL).delay() as late:
        error = unknown(lambda _: note.save(add_version_condition=False), Note)
    assert error.resolve() == "unknown"
    late[0]()
    assert error.resolve() == "applied"


def test_an_instance_that_was_changed_since_is_not_asked_about(memory):
    """The question is about the item that was written, whatever the caller did to the instance."""
    note = Note.get("k", consistent_read=True)
    note.n = 1
    with on("PutItem", times=99).lose_response():
        error = unknown(lambda _: note.save(), Note)
    note.key = "other"
    assert error.resolve() == "applied"


def test_the_holder_reads_again_after_the_answer(memory):
    """The write that keeps late copies out is one under the lock of the caller, whose copy is then stale."""
    with Page.locked("k") as lock:
        lock.item.n = 1
        with on("UpdateItem", times=99).lose_request():
            error = unknown(lambda _: lock.item.save(), Page)
        assert error.resolve() == "not applied"
        with pytest.raises(StaleVersion):
            lock.item.save()
        lock.item.refresh()
        lock.item.n = 2
        lock.item.save()
    assert stored(Page) == 2


def test_a_pickled_error_does_not_know(memory):
    with on("PutItem", times=99).lose_response():
        error = unknown(saves, Note)
    pickled = pickle.loads(pickle.dumps(error))
    assert (pickled.resolve(), pickled.write_id, str(pickled)) == ("unknown", error.write_id, str(error))
    # Callers whose changes were saved together get a copy each.
    assert copy.copy(error).resolve() == "applied"
