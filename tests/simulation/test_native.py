"""DynamoDB's own transactions go step by step: what others can see of that.

Each test looks at every order of steps, in runs of raw requests without the library.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.steps import LONGEST_S
from tests.simulation.bench import FALSE, Bench, addition, code, every, place

if TYPE_CHECKING:
    from collections.abc import Callable


def _writer_and(*requests: Callable[[Bench], Any]) -> Callable[[Bench], None]:
    """Let one client add to `a` and `b` in a transaction while another one sends requests."""

    def build(bench: Bench) -> None:
        bench.spawn("writer", lambda: bench.add("a", "b", token="t"))
        bench.spawn("other", *(partial(request, bench) for request in requests), process=1)

    return build


def _read_both(bench: Bench) -> tuple[int, int]:
    return bench.get("a"), bench.get("b")


def test_plain_reads_see_a_transaction_half_applied() -> None:
    """Either item may be the new one first; in one step it would never be so that the second read is the older one."""
    seen = {
        steps: {run.heard["other"][0] for run in every(_writer_and(_read_both), steps=steps)} for steps in (False, True)
    }
    backwards = {run.heard["other"][0] for run in every(_writer_and(lambda bench: _read_both(bench)[::-1]))}
    assert seen[False] == {(0, 0), (0, 1), (1, 1)}
    assert seen[True] == backwards == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_plain_read_between_decision_and_application_sees_the_old_item() -> None:
    """That is why a plain read validates nothing: the transaction can no longer be stopped."""
    decided_before = set[tuple[bool, int]]()

    def build(bench: Bench) -> None:
        decided = list[Any]()
        bench.network.on_decided.append(decided.append)
        _writer_and(lambda bench: bench.get("c"), lambda bench: (bool(decided), bench.get("a")))(bench)

    for run in every(build):
        decided_before.add(run.heard["other"][1])
        assert (run.count("a"), run.count("b")) == (1, 1)
    assert decided_before == {(False, 0), (False, 1), (True, 0), (True, 1)}


@pytest.mark.parametrize(
    ("other", "adds", "refusal"),
    [
        (lambda bench: bench.add_one("b"), 1, "TransactionConflictException"),
        (lambda bench: bench.add("b"), 1, ("TransactionConflict",)),
        (lambda bench: bench.add("c", "b"), 2, ("None", "TransactionConflict")),
        (lambda bench: bool(bench.get_all("c", "b")), 0, ("None", "TransactionConflict")),
        (lambda bench: bench.get("b"), 0, None),
        (lambda bench: bench.add("c"), 1, None),
    ],
    ids=["write", "single", "transaction", "reading", "plain read", "other item"],
)
def test_what_touches_a_pending_item_is_refused(other: Callable[[Bench], Any], adds: int, refusal: Any) -> None:
    """Writes and transactions are refused in some schedules, plain reads in none; what is refused has no effect."""
    refusals = set()
    for run in every(_writer_and(other)):
        [heard], [written] = run.heard["other"], run.heard["writer"]
        assert sum(run.count(key) for key in "abc") == 2 * (written == "done") + adds * (heard == "done")
        assert not any(run.network.is_pending(place(key)) for key in "abc")
        if heard == "done" or isinstance(heard, int):
            continue
        refusals.add(heard)
        assert written == "done"
    assert refusals == (set() if refusal is None else {refusal})


def test_a_transaction_is_refused_as_a_whole() -> None:
    """There is a reason for each action, with the item where it was asked for; nothing stays pending."""
    for run in every(
        lambda bench: bench.spawn("client", lambda: bench.add("a", "b", "c", but="b"), lambda: bench.add("a", "c"))
    ):
        assert run.heard["client"] == [("None", "ConditionalCheckFailed", "None"), "done"]
        assert (run.count("a"), run.count("b"), run.count("c")) == (1, 0, 1)


def test_a_refusal_shows_the_items() -> None:
    """ReturnValuesOnConditionCheckFailure works in steps as without them, also for actions that come later."""
    for steps in (False, True):
        bench, errors = Bench(steps=steps), list[Any]()

        def failing(bench: Bench = bench, errors: list[Any] = errors) -> None:
            try:
                bench.send("TransactWriteItems", TransactItems=[{"Update": addition(key, 1) | FALSE} for key in "ab"])
            except ClientError as error:
                errors.append(error)

        bench.spawn("client", lambda bench=bench: bench.add("a", "b"), failing)  # type: ignore[misc]
        bench.play()
        response: Any = errors[0].response
        assert [each["Item"]["n"]["N"] for each in response["CancellationReasons"]] == ["1", "1"]


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.FAILED_AFTER, Fault.LOST_RESPONSE, Fault.LATE])
def test_a_transaction_goes_on_without_its_caller(fault: Fault) -> None:
    """Whether the caller died or gave up: others see the transaction half done, and in the end it is done."""
    seen = set()
    for run in every(_writer_and(_read_both), fault):
        seen.add(run.heard["other"][0])
        assert (run.count("a"), run.count("b")) == (1, 1)
        assert run.heard["writer"] == {Fault.CRASH_AFTER: [], Fault.FAILED_AFTER: ["InternalServerError"]}.get(
            fault, ["ReadTimeoutError"]
        )
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.PAUSE_BEFORE])
def test_a_transaction_goes_on_while_another_thread_stops_its_process(fault: Fault) -> None:
    """What happens to the process in the middle is nothing to DynamoDB; a process that only stood still hears of it."""
    halves, ends = set(), set()

    def build(bench: Bench) -> None:
        bench.faults.operation = "GetItem"
        bench.spawn("writer", lambda: bench.add("a", "b"))
        bench.spawn("twin", lambda: bench.get("c"))
        bench.spawn("other", lambda: bench.get_all("a", "b"), process=1)

    for run in every(build, fault):
        halves.add(run.heard["other"][0])
        ends.add((*run.heard["writer"], run.count("a"), run.count("b")))
    assert halves >= {("TransactionConflict", "None"), ("None", "TransactionConflict")}
    assert ends == ({("done", 1, 1)} | ({(0, 0), (1, 1)} if fault is Fault.CRASH_BEFORE else set()))


def test_a_process_stands_still_in_the_middle_of_its_transaction() -> None:
    """Time passes meanwhile, for DynamoDB and for others; then the caller hears the answer."""
    seen = set()

    def build(bench: Bench) -> None:
        _writer_and(lambda bench: bench.sleep(3.0), _read_both)(bench)

    for run in every(build, Fault.PAUSE_AFTER):
        seen.add(run.heard["other"][1])
        assert run.heard["writer"] == ["done"]
        assert run.scheduler.now >= 9.0
        assert run.on_the_way == []
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_dynamodb_leaves_nothing_half_done_for_long() -> None:
    """However the scheduler chooses, a transaction that no caller waits for is finished a few seconds later."""
    for run in every(_writer_and(lambda bench: bench.sleep(LONGEST_S + 1.1), _read_both), Fault.LOST_RESPONSE):
        assert run.heard["other"][1] == (1, 1)


# Tokens


def _twice(bench: Bench, by: int = 1, after_s: float = 0.0) -> None:
    bench.spawn("first", lambda: bench.add("a", "b", token="t"))
    bench.spawn("second", lambda: bench.sleep(after_s), lambda: bench.add("a", "b", token="t", by=by), process=1)


def test_a_copy_of_a_transaction_has_no_effect() -> None:
    """While the first one runs the copy is told so; afterwards it is a success. Neither adds anything."""
    seen = set()
    for run in every(_twice):
        seen.add((run.heard["first"][0], run.heard["second"][1]))
        assert (run.count("a"), run.count("b")) == (1, 1)
    assert seen == {
        ("done", "done"),
        ("done", "TransactionInProgressException"),
        ("TransactionInProgressException", "done"),
    }


def test_another_transaction_with_the_same_token_is_refused() -> None:
    """Also while the first one is running."""
    for run in every(lambda bench: _twice(bench, by=7)):
        refused = "IdempotentParameterMismatchException"
        assert {run.heard["first"][0], run.heard["second"][1]} == {"done", refused}


@pytest.mark.parametrize(("after_s", "times"), [(599.0, 1), (601.0, 2)])
def test_a_token_is_forgotten_after_ten_minutes(after_s: float, times: int) -> None:
    """Of DynamoDB's time, after the transaction."""
    bench = Bench()
    _twice(bench, after_s=after_s)
    bench.play()
    assert bench.heard["second"][1] == "done"
    assert bench.count("a") == times


def test_a_cancelled_transaction_may_come_again() -> None:
    """Its token is forgotten: the same request is evaluated anew."""
    bench = Bench()
    check = {"TableName": "table", "Key": {"key": {"S": "b"}}, "ConditionExpression": "attribute_exists(n)"}
    actions = [{"Update": addition("a", 1)}, {"ConditionCheck": check}]

    def attempt() -> str:
        bench.send("TransactWriteItems", TransactItems=actions, ClientRequestToken="t")
        return "done"

    bench.spawn("client", attempt, lambda: bench.add_one("b"), attempt, attempt)
    bench.play()
    assert bench.heard["client"] == [("None", "ConditionalCheckFailed"), "done", "done", "done"]
    assert bench.count("a") == 1


def test_a_late_copy_is_refused_when_its_signature_is_too_old() -> None:
    """So it outlives neither its token nor what is kept of transactions for so long."""
    counts = set()
    for run in every(_writer_and(lambda bench: bench.sleep(301.0), lambda bench: bench.get("a")), Fault.LATE):
        counts.add((run.heard["other"][1], run.count("a"), run.count("b")))
    assert counts == {(1, 1, 1), (0, 0, 0)}


def test_the_client_waits_for_a_transaction_that_is_in_progress() -> None:
    """As botocore does: after a lost response it hears that the transaction is in progress, waits, and comes again."""
    ends = set()

    def build(bench: Bench) -> None:
        connection: Any = SimpleNamespace(
            _retry_configuration="LEGACY", _read_timeout_seconds=0.01, _max_retry_attempts_exception=2
        )
        client = bench.network.client_for(connection)
        actions = [{"Update": addition(key, 1)} for key in "ab"]
        told: list[Any] = bench.heard.setdefault("told", [])
        bench.network.on_request.append(
            lambda _, fault, answer: told.append(code(answer)) if isinstance(answer, ClientError) else None
        )
        bench.spawn("client", lambda: client.transact_write_items(TransactItems=actions) and "done")

    for run in every(build, Fault.LOST_RESPONSE):
        waits = len(run.heard["told"])
        ends.add((run.heard["client"][0], waits))
        assert set(run.heard["told"]) <= {"TransactionInProgressException"}
        assert (run.scheduler.now > 0.05) is (waits > 0)
        assert (run.count("a"), run.count("b")) == (1, 1)
    assert ends == {("done", 0), ("done", 1), ("TransactionInProgressException", 2)}


# What listeners hear, and the costs


def test_listeners_hear_of_the_decision_and_of_each_item() -> None:
    """First that it is decided, then each change when it is made, in any order of the items."""
    orders = set()

    def build(bench: Bench) -> None:
        told: list[str] = bench.heard.setdefault("told", [])
        bench.network.on_decided.append(lambda request: told.append(f"decided {len(request.places)}"))
        bench.network.on_changes.append(lambda _, changes: told.extend(change.place.key[0] for change in changes))
        bench.spawn("client", lambda: bench.add("a", "b", token="t"), lambda: bench.add("a", "b", token="t"))

    for run in every(build):
        orders.add(tuple(run.heard["told"]))
    assert orders == {("decided 2", "a", "b"), ("decided 2", "b", "a")}


def test_without_steps_listeners_hear_of_the_decision_too() -> None:
    """Once, before the changes; not of a repetition."""
    bench = Bench(steps=False)
    told = list[Any]()
    bench.network.on_decided.append(lambda request: told.append(request.operation))
    bench.network.on_changes.append(lambda _, changes: told.append(len(changes)))
    bench.spawn("client", lambda: bench.add("a", "b", token="t"), lambda: bench.add("a", "b", token="t"))
    bench.play()
    assert told == ["TransactWriteItems", 2, 0]


@pytest.mark.parametrize(("items", "steps"), [(1, 0), (2, 3), (4, 7), (50, 7)])
def test_a_transaction_of_many_items_goes_in_few_steps(items: int, steps: int) -> None:
    """So that a search stays small: one item in one step, and never more than four times two."""
    bench = Bench()
    bench.spawn("client", lambda: bench.add(*(f"k{number}" for number in range(items))))
    bench.play()
    assert sum(bench.count(f"k{number}") for number in range(items)) == items
    assert bench.scheduler.steps == 2 + steps


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"prepares": 1}, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ({"applies": 1}, {(0, 0), (0, 1), (1, 1)}),
        ({"prepares": 1, "applies": 1}, {(0, 0), (0, 1), (1, 1)}),
    ],
)
def test_fewer_steps_make_fewer_schedules(options: dict[str, Any], seen: set[Any]) -> None:
    """Prepared at once, a transaction is still seen half applied; applied at once, it is not."""
    runs = list(every(_writer_and(_read_both), **options))
    assert len(runs) < len(list(every(_writer_and(_read_both))))
    assert {run.heard["other"][0] for run in runs} == seen
