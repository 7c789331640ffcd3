"""`modify(combine=True)`: callers of one process share a read and a write, and each hears how its own change ended."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import ListAttribute, UnicodeAttribute
from pynamodb.exceptions import AttributeNullError, GetError, PutError

from pynamo_locking import VersionedMixin
from pynamo_locking._models import edit
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, OutcomeUnknown, StaleVersion
from tests.integration.locks.test_interrupts import LET_BE, Injected
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable


def declare_board(name: str, *bases: type[Any], **parts: Any) -> Any:
    """Return a model to whose `log` callers append, so the order and the number of their changes show."""
    return declare(name, *bases, hash_key="pk", version=True, log=ListAttribute(default=list), **parts)


Board = declare_board("Board", VersionedMixin, numbers="n", title=UnicodeAttribute(default=""))


Inside = declare_board("Inside", lock=True)
Beside = declare_board("Beside", lock_table=Locks)


@pytest.fixture(autouse=True)
def _no_line_is_left(monkeypatch):
    monkeypatch.setattr(edit, "_POLL_S", 100.0)  # callers in line are woken
    yield
    assert edit._lines == {}


@pytest.fixture
def boards(cheap):
    cheap.bind(Board)
    Board("a").save()


@pytest.fixture
def board(memory):
    """One in memory."""
    memory.bind(Board)
    Board("a").save()


def note(mark: Any) -> Callable[[Any], None]:
    def change(board: Any) -> None:
        board.log = [*board.log, mark]

    return change


def raising(error: BaseException) -> Callable[[Any], None]:
    """Change the instance, and raise."""

    def change(board: Any) -> None:
        note("never")(board)
        raise error

    return change


def log_of(model: Any = Board) -> list[Any]:
    return model.get("a", consistent_read=True).log


def line_of(model: Any) -> Any:
    return next((line for (of, _), line in edit._lines.items() if of is model), None)


def until_in_line(model: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(getattr(line_of(model), "waiting", ())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def together(
    *changes: Callable[[Any], object], model: Any = Board, options: dict[int, dict[str, Any]] | None = None
) -> list[Any]:
    """Make changes in threads, all in one attempt, in this order; return an instance or an error for each.

    They line up behind a caller whose function, which changes nothing, ends when the last of them is there.
    """
    results: list[Any] = [None] * len(changes)

    def run(i: int) -> None:
        try:
            results[i] = model.modify("a", changes[i], combine=True, **(options or {}).get(i, {}))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            results[i] = error

    def gate(_: Any) -> None:
        for i, thread in enumerate(threads):
            thread.start()
            until_in_line(model, i + 2)
        raise LookupError

    # Callers of their own, also where a thread inherits the context that starts it.
    threads = [threading.Thread(target=Context().run, args=(run, i)) for i in range(len(changes))]
    with pytest.raises(LookupError):
        model.modify("a", gate, combine=True, create=True)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("model", [Board, Inside, Beside])
def test_many_changes_are_one_write(cheap, model):
    """In the order in which the callers came; the version counts one."""
    cheap.bind(Locks, model)
    model("a").save()
    with count_requests() as counted:
        results = together(*(note(i) for i in range(20)), model=model)
    assert {**counted.by_operation, "GetItem": 0} == {"GetItem": 0, ("UpdateItem" if model is Inside else "PutItem"): 1}
    assert counted.by_operation["GetItem"] == 2  # one of them before the gate
    assert log_of(model) == list(range(20))
    assert {result.version for result in results} == {2}


def test_each_caller_has_an_instance_of_its_own(boards):
    """After all changes of the write, and as good for a save as any other."""
    first, second = together(note(1), note(2))
    assert first is not second
    assert first.log == second.log == [1, 2]
    first.log.append("mine")
    assert second.log == [1, 2]
    second.save()
    with pytest.raises(StaleVersion):
        first.save()


def test_a_function_that_raises_leaves_no_trace(boards):
    """Its caller alone hears of it."""
    kept: list[Any] = []

    def keep(board: Any) -> None:
        kept.append(board)
        note(3)(board)

    def change_what_was_kept(_: Any) -> None:
        kept[0].log.append("late")
        raise leave

    error, leave = ZeroDivisionError("mine"), SystemExit(3)
    results = together(note(1), raising(error), keep, change_what_was_kept, note(4))
    assert results[1] is error
    assert results[3] is leave
    assert [results[i].log for i in (0, 2, 4)] == [[1, 3, 4]] * 3
    assert log_of() == [1, 3, 4]


def test_if_all_raise_nothing_is_written(boards):
    """As with `modify` alone."""
    with count_requests() as counted:
        results = together(raising(KeyError(1)), raising(KeyError(2)))
    assert [result.args for result in results] == [(1,), (2,)]
    assert counted.by_operation == {"GetItem": 2}


def grow(board: Any) -> None:
    board.title = "x" * 410_000


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda board: setattr(board, "n", object()), TypeError),
        (lambda board: setattr(board, "n", "five"), PutError),
        (lambda board: setattr(board, "title", None), AttributeNullError),
        (grow, PutError),
    ],
    ids=["no number", "not DynamoDB's number", "nothing", "too much"],
)
def test_a_value_that_cannot_be_stored(boards, bad, error):
    """Its caller hears what it would hear alone; the changes of the others are saved."""
    with pytest.raises(error) as alone:
        Board.modify("a", bad)
    results = together(note(0), bad, *(note(i) for i in range(2, 9)))
    assert type(results[1]) is type(alone.value)
    assert log_of() == [0, *range(2, 9)]
    assert Board.get("a", consistent_read=True).version == 3  # the callers after it shared a write again
    assert all(isinstance(result, Board) for i, result in enumerate(results) if i != 1)


@pytest.mark.parametrize(
    "bad",
    [
        lambda board: setattr(board, "pk", "b"),
        lambda board: setattr(board, "version", 7),
        lambda board: board.touch(),
        lambda board: Board.modify("a", note("inner"), combine=True),
    ],
    ids=["key", "version", "saves", "modifies"],
)
def test_a_function_may_change_its_instance_only(boards, bad):
    """The others go on."""
    results = together(note(1), bad, note(2))
    assert isinstance(results[1], ConfigurationError)
    assert log_of() == [1, 2]
    with pytest.raises(Board.DoesNotExist):
        Board.get("b")


def test_the_context_of_the_caller(boards):
    """A function has its caller's context variables, in whatever thread it runs."""
    user = contextvars.ContextVar("user", default="")

    def sign(board: Any) -> None:
        note(user.get())(board)

    def change(name: str) -> None:
        user.set(name)
        Board.modify("a", sign, combine=True)

    def gate(_: Any) -> None:
        for i, name in enumerate(("ada", "bob")):
            pool.submit(change, name)
            until_in_line(Board, i + 2)

    with ThreadPoolExecutor(2) as pool:
        Board.modify("a", gate, combine=True)
    assert log_of() == ["ada", "bob"]


def test_another_writer_was_faster(boards):
    """All functions are called again with the stored item; a caller without attempts gives up alone."""
    calls = []

    def beaten(board: Any) -> None:
        calls.append(board.version)
        if len(calls) == 1:
            Board("a").update([Board.n.add(100)], add_version_condition=False)
        note(2)(board)

    with count_requests() as counted:
        results = together(note(1), beaten, note(3), options={0: {"attempts": 1}})
    assert calls == [1, 2]
    assert counted.by_operation == {"GetItem": 2, "UpdateItem": 1, "PutItem": 2}
    assert isinstance(results[0], StaleVersion)
    assert str(results[0]).startswith("modify() gave up after attempt 1 of 1: the save of Board('a') was refused")
    assert (results[1].log, results[1].n, results[1].version) == ([2, 3], 100, 3)
    assert log_of() == [2, 3]


def test_after_a_refusal_the_item_is_read_consistently(board):
    """Also if the first read need not be: a replica that lags behind would get the save refused again and again."""
    calls = []

    def beaten(board: Any) -> None:
        calls.append(board.version)
        if len(calls) < 3:
            Board("a").update([Board.n.add(100)], add_version_condition=False)
        note(1)(board)

    with count_requests() as counted:
        Board.modify("a", beaten, combine=True, consistent_read=False)
    are_consistent = [body.get("ConsistentRead", False) for name, body in counted.bodies if name == "GetItem"]
    assert calls == [1, 2, 3]  # as it was read, as it came with the refusal, as it was read again
    assert are_consistent == [False, True], "what is read after a refusal must be at least as new as what refused"


def test_after_a_lock_in_the_way_the_item_is_read_consistently(memory, no_pauses):
    """The holder may have written it, and its refusal brings no item."""
    memory.bind(Inside)
    Inside("a").save()
    with held_elsewhere(Inside.locked("a", heartbeat=False)), count_requests() as counted, pytest.raises(ItemLocked):
        Inside.modify("a", note(1), attempts=2, combine=True, consistent_read=False)
    reads = [body.get("ConsistentRead", False) for name, body in counted.bodies if name == "GetItem"]
    assert reads == [False, True]


def test_each_write_of_a_line_begins_anew(boards, monkeypatch):
    """After a write that was refused and made again, the next one reads the item, and takes what its refusal shows."""
    monkeypatch.setattr(edit, "MOST", 2)
    beaten: list[int] = []

    def once(change: Callable[[Any], None]) -> Callable[[Any], None]:
        def beaten_once(board: Any) -> None:
            if change not in beaten:
                beaten.append(change)
                Board("a").update([Board.n.add(100)], add_version_condition=False)
            change(board)

        return beaten_once

    with count_requests() as counted:
        results = together(once(note(0)), note(1), once(note(2)), note(3))
    assert [result.n for result in results] == [100, 100, 200, 200]
    assert log_of() == [0, 1, 2, 3]
    assert counted.by_operation == {"GetItem": 3, "UpdateItem": 2, "PutItem": 4}


def test_attempts_are_those_of_each_caller(memory):
    """A locked item is tried again after pauses, and each caller has an error of its own."""
    memory.bind(Inside)
    Inside("a").save()
    with held_elsewhere(Inside.locked("a", owner="other", heartbeat=False)):
        attempts = [1, 2, 2, 3]
        options = {i: {"attempts": most} for i, most in enumerate(attempts)}
        results = together(*(note(i) for i in range(4)), model=Inside, options=options)
    assert [type(result).__mro__[1] for result in results] == [ItemLocked] * 4
    assert [f"attempt {i} of {i}:" in str(each) for i, each in zip(attempts, results, strict=True)] == [True] * 4
    assert [str(result).count("gave up") for result in results] == [1] * 4
    assert [result.holder for result in results] == ["other"] * 4
    assert log_of(Inside) == []


def test_an_absent_item(cheap):
    """Callers that may create it do; those before them hear that it does not exist."""
    cheap.bind(Board)
    results = together(note(1), note(2), note(3), options={1: {"create": True}})
    assert isinstance(results[0], Board.DoesNotExist)
    assert (results[1].log, results[2].log, results[1].version) == ([2, 3], [2, 3], 1)


def test_an_unknown_outcome_is_told_to_all(boards):
    """Each with an error of its own, and nothing is repeated."""
    with on("PutItem", times=99).lose_request():
        results = together(note(1), raising(KeyError()), note(2))
    assert [isinstance(result, OutcomeUnknown) for result in results] == [True, False, True]
    assert str(results[0]) == str(results[2])
    assert results[0] is not results[2]
    assert results[0].write_id
    assert log_of() == []


def test_a_lost_answer_is_no_conflict(boards):
    """The write is known by its id, also by instances of several callers."""
    with on("PutItem").lose_response():
        first, second = together(note(1), note(2))
    assert log_of() == [1, 2]
    with on("PutItem").lose_response():
        second.save()
    assert second.version == first.version + 1


def test_what_cannot_be_shared_is_refused(memory):
    """Before any request."""
    memory.bind(Board, Locks, Inside, Beside)
    with pytest.raises(ConfigurationError, match="takes no condition"):
        Board.modify("a", note(1), condition=Board.n == 0, combine=True)
    with pytest.raises(ConfigurationError, match="needs a function"):
        Board.modify("a", combine=True)
    for model in (Inside, Beside):
        model("a").save()
        with model.locked("a"), pytest.raises(ConfigurationError, match="is held here"):
            model.modify("a", note(1), combine=True)


def test_an_error_of_the_read(boards):
    """As `modify` raises it."""
    with on("GetItem").answer("AccessDeniedException"), pytest.raises(GetError, match="AccessDenied"):
        Board.modify("a", note(1), combine=True)


# Interrupts, tasks, forks


def test_an_interrupt_of_the_save_is_an_unknown_outcome(boards):
    """For the others of the write. Who comes later goes on."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with on("PutItem").after(interrupt):
        results = together(note(1), note(2))
    assert sorted(type(result).__mro__[1].__name__ for result in results) == ["BaseException", "OutcomeUnknown"]
    assert log_of() == [1, 2]
    assert Board.modify("a", note(3), combine=True).log == [1, 2, 3]


def test_an_interrupt_in_a_function_leaves_the_others_to_the_next(boards):
    """Nothing was sent, so nothing is in doubt."""
    interrupts = [KeyboardInterrupt()]

    def interrupted(board: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        note(2)(board)

    results = together(note(1), interrupted, note(3))
    assert isinstance(results[0], KeyboardInterrupt)  # it led
    assert results[1].log == results[2].log == log_of() == [2, 3]


@pytest.mark.interrupts
def test_interrupts_anywhere(memory):
    """A caller is interrupted at one place after another: a second one in line learns what became of its change."""
    memory.bind(Board)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100_000)  # see `test_interrupts`
    place, was_raised, ends = 1, True, set()
    while was_raised:
        key = f"a-{place}"
        Board(key).save()
        mine, other = (change_of(key, name) for name in ("mine", "other"))
        other.line_up()
        with Injected(place, LET_BE | {"_profile"}) as injected:
            edit.combined(mine)
        was_raised, place = injected.was_raised, place + 3
        Board.modify(key, note("third"), combine=True)
        end = end_of(other)
        ends.add(end)
        log = Board.get(key, consistent_read=True).log
        assert log.count("mine") <= 1, injected.where
        assert log.count("other") == 1 or end == "unknown", injected.where
    sys.setrecursionlimit(before + 50_000)
    assert ends == {"done", "unknown"}


def change_of(key: str, mark: str) -> edit.QueuedChange[Any]:
    return edit.QueuedChange(Board, (key, None), note(mark), attempts=9, create=False, consistent_read=True)


def end_of(change: edit.QueuedChange[Any]) -> str:
    """Let a caller in line lead, if there is no leader, until it knows how its change ended."""
    for _ in range(5):
        if not change.is_told and change.leads():
            change.line.attempt()
    change.leave()
    try:
        change.result()
    except OutcomeUnknown:
        return "unknown"
    except AssertionError:
        return "never"
    return "done"


def test_tasks(board):
    """Many wait without a thread, and each has its own result."""

    def gate(_: Any) -> None:
        until_in_line(Board, 101)
        raise LookupError

    async def change() -> list[Any]:
        changes = [raising(KeyError(i)) if i % 10 == 5 else note(i) for i in range(100)]
        tasks = [asyncio.ensure_future(Board.amodify("a", each, combine=True)) for each in (gate, *changes)]
        while len(getattr(line_of(Board), "waiting", ())) < len(tasks):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        assert sum(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate()) < len(tasks) / 2
        return await asyncio.gather(*tasks, return_exceptions=True)

    with count_requests() as counted:
        first, *results = asyncio.run(change())
    assert type(first) is LookupError
    assert log_of() == [i for i in range(100) if i % 10 != 5]
    assert [type(result) for result in results] == [KeyError if i % 10 == 5 else Board for i in range(100)]
    assert counted.by_operation == {"GetItem": 2, "PutItem": 1}  # one get before the gate


def test_a_task_without_combining(board):
    """`amodify` is `modify` in a thread, the condition included."""
    changed = asyncio.run(Board.amodify("a", note(1), condition=Board.n == 0))
    assert changed.log == log_of() == [1]
    with pytest.raises(ConfigurationError, match="needs a function"):
        asyncio.run(Board.amodify("a"))


def test_tasks_that_are_cancelled(board):
    """One in line changes nothing. The one that makes the write ends it, and the others have their results."""
    is_under_way, go_on = threading.Event(), threading.Event()

    def slow(board: Any) -> None:
        is_under_way.set()
        go_on.wait(60)
        note("slow")(board)

    async def change() -> list[Any]:
        leader = asyncio.create_task(Board.amodify("a", slow, combine=True))
        await asyncio.to_thread(is_under_way.wait, 60)
        tasks = [asyncio.create_task(Board.amodify("a", note(i), combine=True)) for i in range(3)]
        await asyncio.sleep(0)
        leader.cancel()
        tasks[1].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[1]
        go_on.set()
        return await asyncio.gather(leader, *tasks, return_exceptions=True)

    results = asyncio.run(change())
    assert [type(result) for result in results] == [asyncio.CancelledError, Board, asyncio.CancelledError, Board]
    assert log_of() == ["slow", 0, 2]


def test_a_leader_whose_event_loop_is_closed(board):
    """Its thread ends the attempt; the next leader waits for that, and makes no change a second time."""
    is_under_way, go_on = threading.Event(), threading.Event()
    leader, other = change_of("a", "leader"), change_of("a", "other")
    append = leader.function

    def slow(board: Any) -> None:
        is_under_way.set()
        go_on.wait(60)
        append(board)

    leader.function = slow
    leader.line_up()
    other.line_up()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(leader.line.attempt)
        assert is_under_way.wait(60)
        leader.leave()
        pool.submit(end_of, other)
        time.sleep(0.05)
        go_on.set()
    assert log_of() == ["leader", "other"]
    assert other.result().version == 2


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_function_that_forks(board):
    """The child makes no change of the parent's callers; it can make its own."""
    children: list[int] = []

    def fork(board: Any) -> None:
        children.append(os.fork())
        note("fork")(board)

    is_refused = False
    try:
        Board.modify("a", fork, combine=True)
    except ConfigurationError as error:
        is_refused = "has forked" in str(error)
    if not children[0]:
        code = 1
        try:
            code = 0 if is_refused and Board.modify("a", note("child"), combine=True).log == ["child"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert not is_refused
    assert log_of() == ["fork"]
