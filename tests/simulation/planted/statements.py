"""Bugs in batches of statements: of long transactions, which mark and finish their items by them, and of saves."""

from __future__ import annotations

from typing import Any

from pynamo_locking._io import batch_requests, runtime, write_intents
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.write_intents import Resolver
from pynamo_locking._writes import writer
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

_WRITE_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Together", "Versions", "RealTime")
_MIXED = Plan("mixed, by statements", parties=3, processes=3, rounds=2)
_BATCH = Plan("batch, by statements", parties=3, processes=3, rounds=2)
_LONG = Plan("long, by statements", rounds=2)
_GIVEN_UP = Plan("sweepers, by statements", parties=1, processes=1, preemptions=0)


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
@replaces(batch_requests, "_statement")
def a_statement_without_its_condition(made: Any, write: Any) -> Any:
    """A statement names its item and checks nothing else of it."""
    statement = made(write)
    if statement is None:
        return None
    kwargs = write.kwargs
    exists = "attribute_exists(#k)"
    names = {**kwargs["ExpressionAttributeNames"], "#k": next(iter(kwargs["Key"]))}
    changed = {**kwargs, "ConditionExpression": exists, "ExpressionAttributeNames": names}
    return made(write._replace(kwargs=changed))


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
def a_refused_statement_counts_as_applied() -> Patches:
    """Whatever came back for a statement, its write is taken for done."""
    return [(batch_requests, "_result", lambda *_: StatementResult.APPLIED)]


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
@replaces(batch_requests, "_sent")
def one_success_is_taken_for_all(sent: Any, *arguments: Any) -> list[StatementResult]:
    """If one statement of a batch was applied, all are taken for applied."""
    results = sent(*arguments)
    return [StatementResult.APPLIED] * len(results) if StatementResult.APPLIED in results else results


@plants(_MIXED.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}), *_WRITE_CHECKS, limit=2000)
@replaces(batch_requests, "_sent")
def a_lost_batch_counts_as_applied(sent: Any, *arguments: Any) -> list[StatementResult]:
    """A batch whose answer was lost is taken for applied, also those of its statements that never arrived."""
    return [StatementResult.APPLIED if each is StatementResult.UNKNOWN else each for each in sent(*arguments)]


@plants(_MIXED.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}), *_WRITE_CHECKS, limit=2000)
@replaces(batch_requests, "_sent")
def a_batch_is_repeated_without_looking(sent: Any, *arguments: Any) -> list[StatementResult]:
    """A batch whose answer was lost is sent again; what is refused then is taken for applied by the first copy."""
    results = sent(*arguments)
    return [StatementResult.APPLIED for _ in sent(*arguments)] if StatementResult.UNKNOWN in results else results


def _trusting(*codes: str) -> Patches:
    """Take statements that were refused with these codes for applied."""
    result = batch_requests._result

    def trusting(statement: dict[str, Any], response: dict[str, Any]) -> StatementResult:
        code = response.get("Error", {}).get("Code")
        return StatementResult.APPLIED if code in codes else result(statement, response)

    return [(batch_requests, "_result", trusting)]


@plants(_MIXED.but(faults={Fault.THROTTLED: 3, Fault.HOT: 2}), *_WRITE_CHECKS, limit=2000)
def a_throttled_statement_counts_as_applied() -> Patches:
    """A statement that DynamoDB was too busy for is not sent again."""
    return _trusting("ThrottlingError", "ProvisionedThroughputExceeded")


@plants(_MIXED.but(faults={Fault.CONFLICT: 3}), *_WRITE_CHECKS, limit=2000)
def a_conflict_of_a_statement_counts_as_applied() -> Patches:
    """A statement that was refused for another transaction's sake is not sent again."""
    return _trusting("TransactionConflict")


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
def answers_are_matched_to_the_wrong_statements() -> Patches:
    """The answers of a batch are read from its end."""
    sent = batch_requests._sent
    return [(batch_requests, "_sent", lambda *arguments: sent(*arguments)[::-1])]


@plants(_MIXED.but(faults={Fault.THROTTLED: 3}), *_WRITE_CHECKS, limit=1000)
@replaces(batch_requests, "_sent")
def only_the_first_refusal_of_a_batch_is_seen(sent: Any, *arguments: Any) -> list[StatementResult]:
    """After a refused statement the others of its batch are taken for applied."""
    results = sent(*arguments)
    refused = [i for i, result in enumerate(results) if result in (StatementResult.NOT_APPLIED, StatementResult.BUSY)]
    seen = refused[0] + 1 if refused else len(results)
    return [*results[:seen], *[StatementResult.APPLIED] * (len(results) - seen)]


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
@replaces(batch_requests, "_sent")
def half_of_a_batch_is_dropped(sent: Any, first: Any, batch: list[Any]) -> list[StatementResult]:
    """The second half of a batch is never sent, and is taken for applied."""
    kept = (len(batch) + 1) // 2
    return [*sent(first, batch[:kept]), *[StatementResult.APPLIED] * (len(batch) - kept)]


@plants(_LONG.but(faults={Fault.PAUSE_BEFORE: 2}), *_WRITE_CHECKS, limit=600, first_seed=3000)
@replaces(write_intents, "finishing")
def a_finish_in_a_batch_does_not_name_its_transaction(finishing: Any, *arguments: Any) -> Any:
    """A finish is applied to whatever mark the item has."""
    write = finishing(*arguments)
    if write is None:
        return None
    return write._replace(kwargs={**write.kwargs, "ConditionExpression": "attribute_exists(#l.#tx.#id)"})


@plants(_GIVEN_UP.but(faults={Fault.LATE: 1}), "NothingLeft", limit=100, exhaustive=True)
@replaces(batch_requests, "_sent")
def a_lost_batch_counts_as_not_applied(sent: Any, *arguments: Any) -> list[StatementResult]:
    """A batch whose answer was lost is taken for lost on its way, and its marks arrive after a sweep."""
    return [StatementResult.NOT_APPLIED if each is StatementResult.UNKNOWN else each for each in sent(*arguments)]


@plants(
    _MIXED.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}),
    *_WRITE_CHECKS,
    "NothingLeft",
    limit=2000,
    first_seed=85,
)
@replaces(write_intents, "_sent_together")
def a_refused_finish_counts_as_applied(together: Any, intents: Any, writes: Any) -> Any:
    """Of a batch of marks that are removed none is removed alone, whatever the answer was."""
    left = together(intents, writes)
    return left if len(intents) == 1 else []


@plants(_MIXED, *_WRITE_CHECKS, limit=1000, first_seed=10)
@replaces(Resolver, "record")
def one_header_is_taken_for_all_marks(read: Any, self: Any, row: Any, intent: Any) -> Any:
    """A header that was read for one mark decides about those of other transactions as well."""
    return next(iter(self._decided.values())) if self._decided else read(self, row, intent)


@plants(_BATCH, *_WRITE_CHECKS, limit=1000)
def a_save_in_a_batch_without_its_version() -> Patches:
    """An UPDATE names its item and checks nothing else of it."""
    return a_statement_without_its_condition()


@plants(_BATCH, *_WRITE_CHECKS, limit=1000)
def one_save_of_a_batch_stands_for_all() -> Patches:
    """If one write of a batch was applied, all are told as applied."""
    send = writer.send_batch
    return [(writer, "send_batch", lambda batch: [any(send(batch))] * len(batch))]


@plants(_BATCH, *_WRITE_CHECKS, limit=1000)
@replaces(writer, "send_batch")
def one_refusal_in_a_batch_stands_for_all(send: Any, batch: Any) -> Any:
    """If one write of a batch was refused, all are taken for refused, and begun anew."""
    applied = send(batch)
    if not all(applied):
        applied = [False] * len(batch)
        for each in batch:
            each.write.part.write_ids.clear()
            each.write.part.renew(runtime.current.token())
    return applied


@plants(_BATCH.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}), *_WRITE_CHECKS, limit=1000)
def saves_of_a_lost_batch_count_as_applied() -> Patches:
    """A batch whose answer was lost is taken for applied."""
    return a_lost_batch_counts_as_applied()


@plants(_BATCH.but(faults={Fault.LOST_RESPONSE: 3, Fault.FAILED_AFTER: 3}), *_WRITE_CHECKS, limit=2000)
def saves_of_a_lost_batch_count_as_refused() -> Patches:
    """A batch whose answer was lost is taken for lost on its way."""
    return a_lost_batch_counts_as_not_applied()
