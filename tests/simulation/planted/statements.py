"""Bugs in batches of statements, by which long transactions mark and finish their items."""

from __future__ import annotations

from typing import Any

from pynamo_locking._io import mark_requests, statements
from pynamo_locking._io.resolver import Resolver
from pynamo_locking._io.statements import Result
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants

_WRITE_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Together", "Versions", "RealTime")
_MIXED = Plan("mixed, by statements", parties=3, processes=3, rounds=2)
_GIVEN_UP = Plan("sweepers, by statements", parties=1, processes=1, preemptions=0)


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
def a_statement_without_its_condition() -> Patches:
    """A statement names its item and checks nothing else of it."""
    made = statements._statement

    def bare(write: Any) -> Any:
        statement = made(write)
        if statement is None:
            return None
        kwargs = write.kwargs
        exists = "attribute_exists(#k)"
        names = {**kwargs["ExpressionAttributeNames"], "#k": next(iter(kwargs["Key"]))}
        changed = {**kwargs, "ConditionExpression": exists, "ExpressionAttributeNames": names}
        return made(write._replace(kwargs=changed))

    return [(statements, "_statement", bare)]


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
def a_refused_statement_counts_as_applied() -> Patches:
    """Whatever came back for a statement, its write is taken for done."""
    return [(statements, "_result", lambda _: Result.APPLIED)]


@plants(_MIXED, *_WRITE_CHECKS, limit=1000)
def one_success_is_taken_for_all() -> Patches:
    """If one statement of a batch was applied, all are taken for applied."""
    sent = statements._sent

    def together(*arguments: Any) -> list[Result]:
        results = sent(*arguments)
        return [Result.APPLIED] * len(results) if Result.APPLIED in results else results

    return [(statements, "_sent", together)]


@plants(_MIXED.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}), *_WRITE_CHECKS, limit=2000)
def a_lost_batch_counts_as_applied() -> Patches:
    """A batch whose answer was lost is taken for applied, also those of its statements that never arrived."""
    sent = statements._sent

    def trusting(*arguments: Any) -> list[Result]:
        return [Result.APPLIED if each is Result.UNKNOWN else each for each in sent(*arguments)]

    return [(statements, "_sent", trusting)]


@plants(_GIVEN_UP.but(faults={Fault.LATE: 1}), "NothingLeft", limit=100, exhaustive=True)
def a_lost_batch_counts_as_not_applied() -> Patches:
    """A batch whose answer was lost is taken for lost on its way, and its marks arrive after a sweep."""
    sent = statements._sent

    def sure(*arguments: Any) -> list[Result]:
        return [Result.NOT_APPLIED if each is Result.UNKNOWN else each for each in sent(*arguments)]

    return [(statements, "_sent", sure)]


@plants(
    _MIXED.but(faults={Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}),
    *_WRITE_CHECKS,
    "NothingLeft",
    limit=2000,
    first_seed=85,
)
def a_refused_finish_counts_as_applied() -> Patches:
    """Of a batch of marks that are removed none is removed alone, whatever the answer was."""
    together = mark_requests._sent_together

    def believed(marked: Any, writes: Any) -> Any:
        left = together(marked, writes)
        return left if len(marked) == 1 else []

    return [(mark_requests, "_sent_together", believed)]


@plants(_MIXED, *_WRITE_CHECKS, limit=1000, first_seed=10)
def one_header_is_taken_for_all_marks() -> Patches:
    """A header that was read for one mark decides about those of other transactions as well."""
    read = Resolver.header

    def first(self: Any, row: Any, mark: Any) -> Any:
        return next(iter(self._decided.values())) if self._decided else read(self, row, mark)

    return [(Resolver, "header", first)]
