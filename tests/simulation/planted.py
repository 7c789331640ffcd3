"""Bugs on purpose: small mutations of the library, each of which the simulator has to find.

What finds none of these finds nothing. Each bug names the workload and the faults under which it shows, and the
checkers that have to notice it, so that no checker is there for decoration.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import PutError
from pynamodb.expressions.operand import Path

from pynamo_locking import contexts
from pynamo_locking._core import queue
from pynamo_locking._core.outcome import Kind, Outcome, judge, judge_by_id
from pynamo_locking._core.queue import LockState
from pynamo_locking._io import expiry, guards, inspection, locked, records, requests, runtime, unlocked, waiting, writes
from pynamo_locking._io.commit import Commit
from pynamo_locking._io.heartbeat import Heart
from pynamo_locking._io.items import EmbeddedItem, action_of
from pynamo_locking._io.own import OwnEntry
from pynamo_locking._io.requests import NewEntry
from pynamo_locking._io.versions import VersionPart
from pynamo_locking._io.waiting import Acquisition
from pynamo_locking.exceptions import OutcomeUnknown
from pynamo_locking.transactions import TransactWrite
from tests.simulation.checkers import Violation
from tests.simulation.engine.choices import Choices, Seeded, every_branch
from tests.simulation.engine.faults import Fault
from tests.simulation.engine.strategies import STRATEGIES
from tests.simulation.plans import Plan
from tests.simulation.run import Result, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: What is replaced: an attribute of a module or a class, by what.
Patches = list[tuple[Any, str, Any]]

#: How likely a fault is at each request that it can hit: plans for bugs have few kinds, and few of each.
_RATE: Final = 0.25


@dataclass(frozen=True, eq=False)
class Bug:
    """A mutation of the library, and where it is to be found.

    Attributes:
        name: what it is called.
        breaks: one sentence on what it breaks.
        plan: workload and options of the runs in which it shows.
        found_by: the checkers of which one has to notice it first.
        limit: after so many runs it must have been found.
        is_exhaustive: whether all runs of the plan are made, one after the other, instead of random ones.
        patches: what is replaced in the library.
    """

    name: str
    breaks: str
    plan: Plan
    found_by: tuple[str, ...]
    limit: int
    is_exhaustive: bool
    patches: Patches

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug in the library for a while."""
        with contextlib.ExitStack() as undo:
            for target, name, value in self.patches:
                if name in vars(target):
                    undo.callback(setattr, target, name, vars(target)[name])
                else:
                    undo.callback(delattr, target, name)
                setattr(target, name, value)
            yield


BUGS: Final[list[Bug]] = []

#: Bugs that nothing notices yet, since a checker or a fault for them is missing; they have no `found_by`.
OPEN: Final[list[Bug]] = []


def _plants(
    plan: Plan, *found_by: str, limit: int = 100, exhaustive: bool = False
) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Make a bug of a function: it returns the patches, its name is the bug's, its docstring says what breaks."""

    def add(function: Callable[[], Patches]) -> Callable[[], Patches]:
        name = function.__name__.replace("_", " ").strip()
        bug = Bug(name, function.__doc__ or "", plan, found_by, limit, exhaustive, function())
        (BUGS if found_by else OPEN).append(bug)
        return function

    return add


# Searching


def choices_of(plan: Plan, seed: int) -> Choices:
    """Return the choices that follow from a plan and a seed; the strategies take turns."""
    chance = random.Random(f"planned {plan.workload} {seed}")
    strategy = tuple(STRATEGIES.values())[seed % len(STRATEGIES)](chance)
    return Seeded(chance, strategy, {"fault": _RATE})


def search(bug: Bug, first_seed: int, limit: int) -> tuple[int, Result | None]:
    """Make the runs in which a bug is to be found, until one fails; return how many there were, and that one.

    With one seed after the other, or all there are if the bug is to be found exhaustively.
    """
    seeds = range(first_seed, first_seed + limit)
    all_choices = every_branch() if bug.is_exhaustive else (choices_of(bug.plan, seed) for seed in seeds)
    made = 0
    for choices in itertools.islice(all_choices, limit):
        made += 1
        result = Run(bug.plan, choices).execute()
        if result.error is not None:
            return made, result
    return made, None


def runs_until_found(bug: Bug, first_seed: int, limit: int) -> int | None:
    """Return how many runs it takes to find a bug; None if it is not found within the limit."""
    return _runs_until_found(bug, 0 if bug.is_exhaustive else first_seed, limit)


@functools.cache
def _runs_until_found(bug: Bug, first_seed: int, limit: int) -> int | None:
    with bug.planted():
        runs, found = search(bug, first_seed, limit)
    return None if found is None else runs


def measure(seeds: int = 20, limit: int = 2000) -> dict[str, list[int | None]]:
    """Return for each bug how many runs it took from each of so many starting points."""
    return {bug.name: [runs_until_found(bug, 10_000 * seed, limit) for seed in range(seeds)] for bug in BUGS}


def checker_of(error: BaseException) -> str:
    """Return which checker raised an error: the first word of a violation; else the name of its class."""
    return str(error).partition(":")[0] if isinstance(error, Violation) else type(error).__name__


# Guards


def _always() -> Any:
    return Path(["pynamo_locking_nothing"]).does_not_exist()


@_plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def embedded_save_without_guard() -> Patches:
    """A save under an embedded lock does not name our entry."""
    guarded = locked.inside

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not Kind.KEEP:
            return guarded(own, write)
        with own.writing() as number:
            return locked._send(own, write, number, write.kwargs())

    return [(locked, "inside", inside)]


def _beside_without_guard(own: Any, number: int, kind: Kind) -> Any:
    keys = {"TableName": own.row.table, "Key": own.row.key}
    names, values = dict[str, str](), dict[str, Any]()
    condition = _always().serialize(names, values)
    names = {placeholder: name for name, placeholder in names.items()}
    return {"ConditionCheck": {**keys, "ConditionExpression": condition, "ExpressionAttributeNames": names}}


@_plants(Plan("separate row", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def row_transaction_without_guard() -> Patches:
    """A save beside the lock's row does not check that row."""
    return [(locked, "row_guard", _beside_without_guard)]


@_plants(
    Plan("edit", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1}, preemptions=0), "Fence", limit=250, exhaustive=True
)
def last_write_of_edit_without_guard() -> Patches:
    """The write that ends an edit removes our entry without asking whether it is there."""
    guarded = locked.inside

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not Kind.FINISH:
            return guarded(own, write)
        with own.writing() as number, own.going():
            data = locked._send(own, write, number, write.kwargs(None, guards.leaving(own)))
        locked.left(own, None)
        return data

    return [(locked, "inside", inside)]


@_plants(Plan("lives", faults={Fault.PAUSE_BEFORE: 1}), "Fence", limit=150)
def delete_without_guard() -> Patches:
    """A delete under an embedded lock does not name our entry."""
    guarded = locked.inside

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not Kind.DELETE:
            return guarded(own, write)
        with own.writing() as number, own.going():
            data = locked._send(own, write, number, write.kwargs())
        locked.left(own, None)
        return data

    return [(locked, "inside", inside)]


@_plants(Plan("outsiders"), "Fence")
def outsider_without_guard() -> Patches:
    """A write from outside does not ask whether anybody is in the queue."""
    return [(guards, "unlocked", lambda _: _always())]


@_plants(Plan("locked_all", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def transaction_without_guard() -> Patches:
    """A transaction that saves a locked item does not name our entry."""
    return [(EmbeddedItem, "action", lambda self, write: action_of(write))]


@_plants(
    Plan("no heartbeat", parties=1, processes=1, faults={Fault.LATE: 1}, preemptions=0), "NothingLost", exhaustive=True
)
def writes_not_counted() -> Patches:
    """A guarded write names our entry, but a late copy of it is accepted after a later one."""
    return [(guards, "standing", lambda own, number: guards.in_queue(own))]


@_plants(Plan("embedded", processes=2, parties=3), "SoundQueue")
def put_instead_of_update() -> Patches:
    """A guarded save is a PutItem, which writes an old lock document over those who came meanwhile."""

    def plan_save(self: Any, condition: Any, *, checks_version: bool, error: Any = PutError) -> Any:
        return writes.plan_save(self.item, condition, checks_version=checks_version, error=error)

    return [(EmbeddedItem, "plan_save", plan_save)]


# Requests of the lock


def _other_condition(pattern: str, replacement: str = "") -> Patches:
    """Change the condition of the lock's requests where it matches."""
    send = requests._call

    def call(row: Any, operation: str, arguments: dict[str, Any]) -> Any:
        changed = dict(arguments)
        condition = re.sub(pattern, replacement, changed.pop("ConditionExpression", ""))
        if condition:
            changed["ConditionExpression"] = condition
        used = set(re.findall(r"[#:]\w+", f"{condition} {changed.get('UpdateExpression', '')}"))
        for part in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
            kept = {name: value for name, value in arguments.get(part, {}).items() if name in used}
            if kept:
                changed[part] = kept
            else:
                changed.pop(part, None)
        return send(row, operation, changed)

    return [(requests, "_call", call)]


@_plants(
    Plan("long work", faults={Fault.PAUSE_BEFORE: 2}, preemptions=0), "NoEarlyEviction", limit=600, exhaustive=True
)
def eviction_without_beat() -> Patches:
    """An entry is evicted although it was renewed since we looked."""
    return _other_condition(r"#l\.#q\.#e\d+\.#b = :b\d+ AND ")


@_plants(Plan("edit", parties=2, faults={Fault.LATE: 1, Fault.PAUSE_BEFORE: 2, Fault.LOST_RESPONSE: 1}))
def eviction_without_ticket() -> Patches:
    """An entry is evicted although it came back under another ticket."""
    return _other_condition(r" AND #l\.#t\.#e\d+ = :t\d+")


@_plants(Plan("edit", faults={Fault.LOST_REQUEST: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0), "Truth", exhaustive=True)
def eviction_without_trace() -> Patches:
    """An eviction leaves no trace, so that its victim takes it for its own release."""
    return [(LockState, "was_evicted", lambda self, ticket: None if self.since > ticket else False)]


@_plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}))
def release_without_condition() -> Patches:
    """A release is accepted although our entry is gone, so nobody hears that the lock was lost."""
    return _other_condition(r"^attribute_exists\(#l\.#t\.#me\)$")


@_plants(Plan("long work", parties=3, processes=3, faults={Fault.PAUSE_BEFORE: 1}), "NoEarlyEviction", "OneHolder")
def release_of_a_stranger() -> Patches:
    """A release removes whoever is first."""
    release = requests.release

    def release_first(row: Any, entry_id: str, *, want_image: bool) -> Any:
        entries = row.state(requests.look(row, consistent=True)).entries
        return release(row, entries[0].id if entries else entry_id, want_image=want_image)

    return [(requests, "release", release_first)]


@_plants(Plan("embedded"), "Quiet")
def release_forgotten() -> Patches:
    """A release sends nothing, and leaves the entry to be evicted."""
    return [(OwnEntry, "release", OwnEntry.end)]


# Tickets


@_plants(Plan("embedded", parties=3), "SoundQueue")
def ticket_read_then_written() -> Patches:
    """The next ticket is read with one request and taken with another: two can have the same."""
    enter = requests.enter

    def enter_with_known_ticket(row: Any, entry: NewEntry, capacity: int) -> Any:
        seen = row.state(requests.look(row, consistent=True)).next_ticket
        if not seen:
            return enter(row, entry, capacity)
        return requests._update(
            row,
            set_="#l.#q.#me = :entry, #l.#t.#me = :ticket, #l.#n = :next",
            condition="attribute_exists(#l.#n) AND attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max",
            names={"#n": records.NEXT, "#me": entry.id},
            values={
                ":entry": entry.stored(runtime.current.time_ms()),
                ":ticket": records.number(seen),
                ":next": records.number(seen + 1),
                ":max": records.number(capacity),
            },
        )

    return [(requests, "enter", enter_with_known_ticket)]


@_plants(Plan("embedded", parties=3), "SoundQueue", limit=170)
def ticket_taken_before_entering() -> Patches:
    """As in the seed: a counter gives the ticket, another request enters; a later ticket can be in before."""
    enter = requests.enter

    def enter_later(row: Any, entry: NewEntry, capacity: int) -> Any:
        if not row.state(requests.look(row, consistent=True)).exists:
            return enter(row, entry, capacity)
        counter = {"#n": records.NEXT}
        counted = requests._update(
            row,
            set_="#l.#n = #l.#n + :one",
            condition="attribute_exists(#l.#n)",
            names=counter,
            values={":one": records.number(1)},
            used=("#l",),
        )
        return requests._update(
            row,
            set_="#l.#q.#me = :entry, #l.#t.#me = :ticket",
            condition="attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max",
            names={"#me": entry.id},
            values={
                ":entry": entry.stored(runtime.current.time_ms()),
                ":ticket": records.number(row.state(counted).next_ticket - 1),
                ":max": records.number(capacity),
            },
        )

    return [(requests, "enter", enter_later)]


@_plants(Plan("long work", rounds=2, faults={Fault.LATE: 1}))
def id_used_twice() -> Patches:
    """A party has the same id each time it enters, so that a late release of the last time removes it."""

    def name_entry(self: Any) -> NewEntry:
        return NewEntry("of-" + self._wish.owner, self._wish.owner, self._wish.lease)

    return [(Acquisition, "_name_entry", name_entry)]


@_plants(Plan("embedded", processes=1), "Progress", "Fence")
def id_of_the_process() -> Patches:
    """All attempts of a process enter under one id, so that one party takes the entry of another for its own."""

    def name_entry(self: Any) -> NewEntry:
        return NewEntry("of-" + self._wish.owner.partition(".")[0], self._wish.owner, self._wish.lease)

    return [(Acquisition, "_name_entry", name_entry)]


# Waiting


@_plants(Plan("embedded"), "OneHolder", "Fence")
def nobody_is_ahead() -> Patches:
    """Whoever enters holds the lock."""
    return [(LockState, "ahead_of", lambda self, entry: ())]


@_plants(Plan("embedded", parties=3), "Fence", "OneHolder")
def order_of_insertion() -> Patches:
    """Whoever is first in the stored map holds the lock, and maps have no order but that of their names."""
    return [(LockState, "ahead_of", lambda self, entry: tuple(e for e in self.entries if e.id < entry.id))]


@_plants(Plan("long work", parties=3))
def waiter_not_renewed() -> Patches:
    """A waiter lets its own lease end, and loses its place."""
    return [(waiting, "next_renewal", lambda started, lease: float("inf"))]


@_plants(Plan("long work", parties=3, faults={Fault.STALE: 1}))
def absence_in_old_image() -> Patches:
    """An eventually consistent read that lacks our entry is taken for the proof that it is gone."""
    with_us = Acquisition._with_us

    def _with_us(self: Any, image: Any) -> Any:
        is_in = self._row.state(image).find(self._new.id) is not None
        return with_us(self, image) if is_in or self._entry is None else None

    return [(Acquisition, "_with_us", _with_us)]


@_plants(Plan("long work", parties=3, faults={Fault.STALE: 3}))
def old_image_without_us() -> Patches:
    """An image from before we entered decides who is ahead of us."""
    with_us = Acquisition._with_us

    def _with_us(self: Any, image: Any) -> Any:
        if self._entry is None or image is None:
            return with_us(self, image)
        self._state = self._row.state(image)
        return image

    return [(Acquisition, "_with_us", _with_us)]


@_plants(Plan("locked_all"), "Calm")
def locks_in_any_order() -> Patches:
    """Several locks are taken in the order in which they are named, so that two parties wait in a circle."""
    return [(contexts, "sorted", lambda locks, key: list(locks))]


@_plants(Plan("embedded", faults={Fault.CRASH_BEFORE: 1}), "Stuck", "Calm", "LockTimeout")
def the_dead_stay() -> Patches:
    """Nobody is ever evicted."""
    nobody = lambda *_: ()  # noqa: E731
    return [(waiting, "dead_among", nobody), (unlocked, "dead_among", nobody)]


# Leases


@_plants(Plan("embedded", faults={Fault.PAUSE_AFTER: 1}), "Fifo", "OneHolder")
def lease_from_after_the_write() -> Patches:
    """The lease counts from the answer, not from before the request."""
    renew, attempt = OwnEntry.renew, Acquisition._attempt

    def renew_late(self: Any) -> None:
        renew(self)
        self.deadline = runtime.current.monotonic() + self.entry.lease

    def attempt_late(self: Any, request: Any) -> Any:
        image = attempt(self, request)
        self._started = runtime.current.monotonic()
        return image

    return [(OwnEntry, "renew", renew_late), (Acquisition, "_attempt", attempt_late)]


@_plants(Plan("long work"), "Progress")
def no_heartbeat() -> Patches:
    """Nobody renews the lock of a holder that works for longer than its lease."""
    return [(Heart, "add", lambda self, own: None)]


@_plants(Plan("long work", skew="some"), "NoEarlyEviction", limit=120)
def hint_trusts_any_clock() -> Patches:
    """The stored end of a lease is compared with another wall clock, without any allowance."""
    return [(queue, "is_over_by_hint", lambda until_ms, now_ms, max_clock_skew: now_ms > until_ms)]


@_plants(Plan("no heartbeat", has_drift=True), "NoEarlyEviction")
def no_margin_for_drift() -> Patches:
    """A waiter whose clock is fast evicts a holder whose clock is slow before its lease is over."""
    return [(queue, "is_silent_for_too_long", lambda since, now, lease: now - since >= lease)]


@_plants(Plan("re-entry"))
def inner_release() -> Patches:
    """The first of several releases removes our entry."""
    give_back = OwnEntry.give_back
    return [(OwnEntry, "give_back", lambda self: give_back(self) or True)]


# Outcomes


@_plants(
    Plan("embedded", faults={Fault.LOST_RESPONSE: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0), "Truth", exhaustive=True
)
def unknown_guarded_write_told_as_lost() -> Patches:
    """A guarded write of which nothing is known is reported as not done."""

    def told(*arguments: Any, **options: Any) -> Outcome:
        outcome = judge(*arguments, **options)
        return Outcome.LOST if outcome is Outcome.UNKNOWN else outcome

    return [(locked, "judge", told)]


@_plants(Plan("modify", faults={Fault.LOST_RESPONSE: 1}), "Truth")
def unknown_told_as_refused() -> Patches:
    """A write of which nothing is known is reported as refused."""

    def told(*arguments: Any, **options: Any) -> Outcome:
        outcome = judge_by_id(*arguments, **options)
        return Outcome.REJECTED if outcome is Outcome.UNKNOWN else outcome

    return [(writes, "judge_by_id", told)]


@_plants(
    Plan("append", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1}, preemptions=0), "RealTime", exhaustive=True
)
def unknown_told_as_applied() -> Patches:
    """A write of which nothing is known is reported as done."""
    look = unlocked._Sending._look

    def trust(self: Any, error: Exception) -> Any:
        try:
            return look(self, error)
        except OutcomeUnknown:
            return {"Attributes": self.write.item.serialize()}

    return [(unlocked._Sending, "_look", trust)]


@_plants(Plan("modify", faults={Fault.LOST_REQUEST: 1}), "Truth")
def write_known_by_its_version() -> Patches:
    """A repeated write takes the next version for its own, whoever wrote it."""

    def told(seen: Any, before: Any, *rest: Any, repeated: bool, **options: Any) -> Outcome:
        if repeated and seen is not None and seen.version == (before.version or 0) + 1:
            return Outcome.APPLIED
        return judge_by_id(seen, before, *rest, repeated=repeated, **options)

    return [(writes, "judge_by_id", told)]


@_plants(Plan("append", faults={Fault.LOST_RESPONSE: 1}), "Truth")
def append_repeated() -> Patches:
    """An update that does something else when done twice is repeated after a lost answer."""
    return [(guards, "is_repeatable", lambda actions: True)]


@_plants(Plan("transact write", faults={Fault.LOST_RESPONSE: 2}), "Truth", limit=200)
def new_token_for_the_same_transaction() -> Patches:
    """A transaction of which nothing is known is sent again under another token."""
    return [(Commit, "token", property(lambda self: runtime.current.token(), lambda self, value: None))]


# Versions


@_plants(Plan("modify"), "NothingLost")
def version_not_checked() -> Patches:
    """A write does not ask for the version that was read."""
    return [(VersionPart, "condition", lambda self: None)]


@_plants(Plan("append"), "Versions", limit=150)
def version_set_not_counted() -> Patches:
    """A write that does not check the version sets it to the one it knows, plus one."""
    actions = VersionPart.actions

    def set_version(self: Any) -> Any:
        count = self.shape.attribute.set((self.before.version or 0) + 1)
        return [count if action is self.shape.count else action for action in actions(self)]

    return [(VersionPart, "actions", set_version)]


@_plants(Plan("lives, no lock", parties=4, processes=4), "NothingLost", limit=220)
def write_id_not_compared() -> Patches:
    """An old copy passes for an item that was deleted and made anew with the same version."""

    def condition(self: Any) -> Any:
        if not self.is_checked or self.shape.version is None:
            return None
        version = self.before.version
        return self.shape.version.does_not_exist() if version is None else self.shape.version == version

    return [(VersionPart, "condition", condition)]


# Transactions and values


@_plants(Plan("bank"), "Bank")
def transaction_in_parts() -> Patches:
    """A transaction is sent one action at a time."""
    send = Commit.send

    def send_each(self: Any) -> Any:
        data: Any = {}
        for action in self.all:
            self.all, self.token = [action], runtime.current.token()
            data = send(self)
        return data

    return [(Commit, "send", send_each)]


@_plants(Plan("lists", parties=3, processes=3), "OneOrder", limit=180)
def read_set_not_checked() -> Patches:
    """A transaction does not check what it has only read."""
    return [(TransactWrite, "read", lambda self, item: None)]


@_plants(Plan("locked register"), "Linearizable")
def item_from_before_our_turn() -> Patches:
    """The item of a lock is as it was when we entered the queue, not when our turn came."""
    enter, grant = Acquisition._enter, Acquisition._grant

    def enter_and_keep(self: Any) -> Any:
        self.first_image = enter(self)
        return self.first_image

    return [
        (Acquisition, "_enter", enter_and_keep),
        (Acquisition, "_grant", lambda self, image: grant(self, self.first_image)),
    ]


@_plants(Plan("expiring"), "Expiry")
def replaced_before_it_expires() -> Patches:
    """A new item replaces one that will only expire within the next minute."""
    for_save = expiry.for_save

    def too_early(model: Any, condition: Any) -> Any:
        name = expiry.attribute_name(model)
        if name is None or condition is None or not expiry.holds_without_item(condition):
            return for_save(model, condition)
        return condition | (Path([name]) <= expiry.now_s() + 60)

    return [(expiry, "for_save", too_early)]


@_plants(Plan("break lock"), "Breaking")
def nothing_broken() -> Patches:
    """`break_lock` says that it has broken a lock, and has not."""
    return [(inspection, "break_entry", lambda row, ticket: True)]
