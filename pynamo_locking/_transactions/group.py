"""Group commit: transactions of one process that want the same items commit together (`transactional(combine=True)`).

A transaction joins a group when its function has ended. It must have read what the transactions before it in this
process leave behind; if not, its function runs again, with these items in place of reads. One native transaction then
commits the group. While that is under way, the next group forms on what it will leave.

Nobody relies on a guess. A group is sent only after the groups it builds on were committed, and DynamoDB commits it on
condition that each item is stored as the group's first reader of it has read it, by version and write id. What its
later transactions have read is what those before them write, and is written by all or by none. A function that raises
after it has read what was not committed then is believed once a check has told that it was, and that it is current.

A transaction whose items nobody else has in use is a group of one, which is sent at once, as without groups. What a
group of several callers leaves is kept for a moment, since they want the same items again: that only saves reads, and
an attempt that is refused after it has read of it is not counted.

A group waits only for older ones, so no two wait for each other. Nobody waits longer than his own transaction may,
unless his group is being sent. Whatever is not plain goes alone.

Rejected: to run the functions in the thread of one caller, as `modify(combine=True)` does: a function may block, and
belongs to its own task; to wait a while for others before a group is sent: those that come meanwhile form the next one.

Ideas of group commit (DeWitt et al.: SIGMOD 1984), and of early lock release (Graefe et al.: SIGMOD 2013).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import PynamoDBException, TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import Deadline
from pynamo_locking._core.values import canonical_item, item_size
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import endpoint_of
from pynamo_locking._items import effects, versions
from pynamo_locking._locks.context import holds_nothing
from pynamo_locking._models.tables import OwnRows
from pynamo_locking._pynamodb import key_values_of, new_item
from pynamo_locking._transactions.commit import CommitRun, needs_table
from pynamo_locking._transactions.item import TransactionItem
from pynamo_locking._transactions.plan import Basis, Plan, Unread, changes
from pynamo_locking._writes.native_transaction import note_applied
from pynamo_locking._writes.write import DELETE, SAVE, Sent, Write, outcome_query_of
from pynamo_locking.exceptions import ItemLocked, OutcomeUnknown, StaleVersion, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pynamo_locking._io.model_doors import Endpoint
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.keys import ItemKey
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.options import TransactionOptions


#: After so many attempts a call goes on alone: it was overtaken again and again, and has to count its refusals.
MOST_ATTEMPTS: Final = 100

#: For so long after a group of several callers what it has left is read in place of the table, in seconds: they, or
#: others, want the same items again at once. If another process has changed one since, the next commit is refused.
KEPT_S: Final = 0.1

#: So large may the items of a group be together, in bytes: far from where a native transaction is too large.
_MOST_BYTES: Final = dynamodb.MOST_BYTES // 2

#: Who waits looks again after so many seconds, whoever may have been interrupted before he could wake him.
_LOOK_AFTER_S: Final = 1.0

#: Refusals that other writers have caused.
_BY_OTHERS: Final = (StaleVersion, ItemLocked, TransactionConflict)

#: What a transaction does to its items, each with what it leaves.
_Steps = list[tuple[TransactionItem, "Image | None"]]


class Overtaken(TransactionConflict):
    """Others of this process have changed what the transaction has read, or what it has read was not committed."""


def _overtaken() -> Exception:
    return also(Overtaken, TransactWriteError)(
        "other transactions of this process were faster; nothing was written, and a retry is safe."
    )


def check_combined(options: Mapping[str, Any], *, combine: bool) -> None:
    """Refuse options that transactions which commit together cannot have each for itself."""
    alone = [name for name in ("idempotency_key", "record", "read_only") if options.get(name)]
    if options.get("isolation", "serializable") not in {"serializable", "read_committed"}:
        alone.append("isolation")
    if combine and alone:
        raise ConfigurationError(
            f"combine=True lets callers commit in one transaction, which cannot have the {alone[0]} of one of them: "
            f"leave out combine, or {alone[0]}={options[alone[0]]!r:.80}."
        )


# A group


class _Content(NamedTuple):
    """The commits of a group's transactions, each with its options and what it does; and what they leave."""

    parts: tuple[tuple[CommitRun, TransactionOptions, _Steps], ...] = ()
    left: Mapping[ItemKey, tuple[TransactionItem, Image | None]] = {}


_numbers = itertools.count()


class Group:
    """Transactions that commit together, after the groups `before` it.

    Attributes:
        content: replaced as a whole, so that an interrupt leaves no half of a transaction in it.
        is_open: whether others may join.
        is_over: whether it is known to be committed, or why it is not: its `error`.
        until: until when what it has left may be read after it is over.
        follower: the newest group that was to wait for it.
        run: its commit, once that has begun: that of its only transaction, or a new one.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.before: set[Group] = set()
        self.content = _Content()
        self.is_open = True
        self.is_over = False
        self.error: BaseException | None = None
        self.until = 0.0
        self.follower: Group | None = None
        self.run: CommitRun | None = None
        self._is_told = False
        self._forks = runtime.forks
        self._ended = runtime.current.condition()

    def has_room(self, steps: _Steps) -> bool:
        every = [*(step for *_, its in self.content.parts for step in its), *steps]
        return len({item.identity for item, _ in every}) <= dynamodb.MOST_ACTIONS and _size(every) <= _MOST_BYTES

    def add(self, place: Endpoint, own: CommitRun, options: TransactionOptions, steps: _Steps) -> None:
        """Add a transaction, which has read what those before it leave; the mutex is held."""
        left = {item.identity: (item, image) for item, image in steps}
        under_way.update({(place, identity): self for identity in left})
        self.content = _Content((*self.content.parts, (own, options, steps)), {**self.content.left, **left})

    def lead(self, deadline: Deadline) -> None:
        """Commit the group: its first transaction does, in its own thread."""
        # It builds on what earlier groups leave. As long as one of them is under way, others may join.
        while (earlier := self._close()) is not None and earlier.wait(deadline):
            pass
        if earlier is not None or self.is_over or any(each.error is not None for each in self.before):
            self.end(_overtaken())
            return
        # Whatever cannot be put together is sent by each alone, which hears what is wrong with its own.
        try:
            self.run = _run_of(self.content)
        except Exception as error:  # noqa: BLE001 - the same
            self.end(error)
            return
        # After another error nobody knows whether it was applied: see `abandon`.
        try:
            self.run.send()
        except (LockingError, PynamoDBException) as error:
            self.end(error)
        else:
            self.end(None)

    def _close(self) -> Group | None:
        """Let no other transaction in, unless a group before this one is still under way: return that one."""
        with _mutex:
            earlier = next((each for each in self.before if not each.is_over), None)
            self.is_open = self.is_open and earlier is not None
            return earlier

    def end(self, error: BaseException | None, *, unless_closed: bool = False) -> None:
        """Tell all who wait what became of the group; what was told before stays."""
        now = runtime.current.monotonic()
        with _mutex:
            if unless_closed and not self.is_open:
                return
            self.is_open = False
            if not self.is_over:
                is_wanted = len(self.content.parts) > 1 or bool(self.before)
                self.until = now + KEPT_S if error is None and is_wanted else 0.0
                self.error, self.is_over = error, True
            for place, group in [*under_way.items()]:
                if group.is_over and group.until <= now:
                    del under_way[place]
            self.before.clear()
            self.content = self.content._replace(parts=())
        if self._forks == runtime.forks:  # no thread that waits lives in a child
            with self._ended:
                self._ended.notify_all()
        self._is_told = True

    def abandon(self) -> None:
        """End it if its caller that leads was interrupted: once it was being sent, its outcome is unknown."""
        if not self._is_told:
            self.end(_overtaken() if self.run is None else _interrupted(self.run.items))

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until it is over; return False if it is not by the deadline."""
        with self._ended:
            while not self.is_over:
                left = _LOOK_AFTER_S if deadline is None else deadline.at - runtime.current.monotonic()
                if left <= 0:
                    return False
                runtime.current.wait(self._ended, min(left, _LOOK_AFTER_S))
        return True


def _size(steps: _Steps) -> int:
    return sum(item_size(left or {}) for _, left in steps)


def _run_of(content: _Content) -> CommitRun:
    """Return the one commit of all transactions of a group."""
    every = [options for _, options, _ in content.parts]
    if len(every) == 1:
        return content.parts[0][0]
    chains: dict[ItemKey, list[TransactionItem]] = {}
    for _, _, steps in content.parts:
        for item, _ in steps:
            chains.setdefault(item.identity, []).append(item)
    together = replace(
        every[0],
        id=runtime.current.token(),
        priority=min(each.priority for each in every),
        deadline=Deadline(max(each.deadline.at for each in every)),
    )
    return CommitRun([_whole(chain, content.left[key][1]) for key, chain in chains.items()], together)


def _whole(chain: Sequence[TransactionItem], left: Image | None) -> TransactionItem:
    """Return an item with the one write, or check, that does what several transactions do, one after the other."""
    writing = [item for item in chain if item.plan.write is not None]
    if not writing:
        return chain[0]
    first, last = writing[0], writing[-1]
    if first is last:
        return first
    write, last_write = first.plan.write, last.plan.write
    assert write is not None and last_write is not None  # noqa: S101, PT018 - both write
    # No caller may see what becomes of this instance, so it is a new one.
    instance = new_item(first.model, *key_values_of(first.instance))
    versions.set_known(instance, first.before)
    whole = TransactionItem(instance, first.identity, first.key, first.base, first.reader, "")
    if left is None and first.is_absent:  # created and deleted again: it must still be absent
        whole.plan, whole.is_read = Plan(first.base, condition=first.plan.condition), True
        return whole
    # The condition is that of the first write; what is stored then shows the id of the last one.
    part = copy.copy(write.part)
    part.write_ids = list(last_write.part.write_ids)
    one = Write(instance, SAVE, part, write.condition, is_repeatable=not part.begins_life)
    if left is None:
        one = one.but(operation=DELETE, kind=EntryEffect.DELETE, is_repeatable=True)
    elif first.is_absent and write.attributes is not None:
        one = one.but(attributes={name: value for name, value in left.items() if name not in first.key})
    else:  # what they leave alone, such as a lock, may have changed since it was read
        one = one.but(actions=changes(first.stored, left, first.key))
    writer = Basis(instance, first.key, first.base, first.before, "", None).writer()
    whole.plan = Plan(left, write=one, writer=writer, is_checked=True, has_values=True)
    return whole


def _interrupted(items: Sequence[TransactionItem]) -> OutcomeUnknown:
    """Return the error for those whose group was being sent by a caller that was interrupted."""
    writes = [(item, item.plan.write) for item in items if item.plan.write is not None]
    is_delete = len(items) == 1 and writes[0][1].operation is DELETE if writes else False
    sent = [Sent(item.model, item.table, item.key, write.part, is_delete) for item, write in writes]
    return also(OutcomeUnknown, TransactWriteError)(
        "the transaction may or may not have been applied: the caller that committed it together with others was "
        "interrupted. Read its items again before you decide what to do.",
        question=outcome_query_of(sent),
    )


# The groups of a process


#: The last group that uses an item, as long as what it leaves may be read.
under_way: dict[tuple[Endpoint, ItemKey], Group] = {}
_mutex = runtime.current.mutex()


class _Leading(runtime.ThreadLocal):
    """Whether this thread commits a group: a subscriber that it calls must not wait for that group."""

    is_true = False


_leading = _Leading()


def _forget_after_fork() -> None:
    global _mutex, _leading, under_way  # the parent's threads, which hold and fill them, do not live here
    _mutex, _leading, under_way = runtime.current.mutex(), _Leading(), {}


runtime.after_fork(_forget_after_fork)


# The part of a call in groups


def member() -> Member | None:
    """Return the part of a call in groups; None if it has to commit alone."""
    return None if _leading.is_true else Member()


class Member:
    """The part of one attempt of a call in groups: what it has read of those under way, and its commit with others."""

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self._forks = runtime.forks
        self._asked: set[ItemKey] = set()  # what the function has read by its key
        self._seen: dict[ItemKey, Group] = {}  # what came from a group
        self._has_kept = False  # whether one of these was over then
        self._goes_alone = False
        self._led: Group | None = None  # noted before others can join it: an interrupt may come at any moment

    def again(self) -> Member | None:
        """Return the part of the next attempt; None if it has to commit alone."""
        return None if self._goes_alone or self._number >= MOST_ATTEMPTS else Member(self._number + 1)

    def left(self, model: type[GuardedMixin], keys: Collection[ItemKey]) -> dict[ItemKey, Image | None]:
        """Return those of some items that groups under way will leave, for the transaction to read.

        The first attempt also reads what was kept of groups that are over. If it fails, that may have been the reason.
        """
        self._asked.update(keys)
        if not under_way:
            return {}
        found: dict[ItemKey, Image | None] = {}
        place, now = endpoint_of(model), runtime.current.monotonic()
        with _mutex:
            for key in keys:
                group = under_way.get((place, key))
                if group is None or key not in group.content.left:
                    continue
                is_kept = group.is_over and self._number == 1 and now < group.until
                if is_kept or not group.is_over:
                    self._has_kept = self._has_kept or is_kept
                    found[key], self._seen[key] = group.content.left[key][1], group
        return found

    def read_itself(self, items: Mapping[ItemKey, TransactionItem]) -> dict[ItemKey, Image]:
        """Return what the attempt has read of the table, with which the next one goes on; guards are read again."""
        read = ((key, item) for key, item in items.items() if item.stored and key not in self._seen)
        return {key: item.stored for key, item in read if not issubclass(item.model, OwnRows)}

    def confirm(self, items: Mapping[ItemKey, TransactionItem], options: TransactionOptions) -> None:
        """Raise if what a function has read before it raised was never committed, or is not current.

        Cost: none if it has read nothing of groups; else 1 transactional read for each hundred items.
        """
        if not self._seen or self._forks != runtime.forks:  # no thread of the parent lives in a child
            return
        with self._overtaken_at_first(options):
            self._settle(options)
            read = [copy.copy(item) for item in items.values() if not isinstance(item.base, Unread)]
            if sum(item.is_absent for item in read) > dynamodb.MOST_ACTIONS:  # more than can be checked
                self._goes_alone = True
                raise _overtaken()
            for item in read:
                item.plan, item.is_read = Plan(item.base), True
            CommitRun(read, options).check_reads()

    def commit(self, own: CommitRun, options: TransactionOptions) -> bool:
        """Commit a transaction, with others if it can be; `own` is its commit alone, and has the result in any case.

        Returns:
            What `CommitRun.run` returns.

        Raises:
            Overtaken: the function has to run again.
            LockingError, PynamoDBException: as `CommitRun.run`.
        """
        with self._overtaken_at_first(options):
            steps = _steps_of(own, options) if self._forks == runtime.forks else None
            is_shared = self._send(own, options, steps)
        # It is committed, whatever happens from here on: each calls the methods of its own models.
        if steps is None or not is_shared:
            own.note()
            return False
        for item, _ in steps:
            if item.plan.write is not None:
                note_applied(item.final())
        return False

    @contextlib.contextmanager
    def _overtaken_at_first(self, options: TransactionOptions) -> Iterator[None]:
        """Let the function run again if what was kept may be why it is refused; alone if it has waited long enough."""
        try:
            yield
        except Overtaken:
            self._goes_alone = self._goes_alone or _is_past(options.deadline)
            raise
        except StaleVersion as error:
            if not self._has_kept:
                raise
            raise _overtaken() from error

    def _send(self, own: CommitRun, options: TransactionOptions, steps: _Steps | None) -> bool:
        """Send a transaction; tell whether others were sent with it."""
        # The first one of a group sends it. Others wait; who has waited long enough breaks off what is not sent yet.
        try:
            group = None if steps is None else self._joined(own, options, steps)
            if group is None or steps is None:
                self._settle(options)
                return own.send()
            if group is self._led:
                _leading.is_true = True
                group.lead(options.deadline)
            elif not group.wait(options.deadline):
                group.end(_overtaken(), unless_closed=True)
                group.wait(None)
        finally:
            _leading.is_true = False
            if self._led is not None:
                self._led.abandon()
        return self._is_shared(group, own, options, steps)

    def _is_shared(self, group: Group, own: CommitRun, options: TransactionOptions, steps: _Steps) -> bool:
        """Tell whether the transaction was committed by a group with others; raise what its caller has to hear."""
        error, run = group.error, group.run
        if run is own:  # a group of one
            if error is not None:
                raise error
            return False
        why = None if error is None else _why_refused(group, steps)
        if run is not None and (why is not None or error is None):
            own.take_over(run)
        if why is not None:
            raise why from error
        if error is None:
            return True
        # One of the transactions cannot be committed: each goes alone, so that it alone hears of it.
        if group in self._seen.values():
            self._goes_alone = True
            raise _overtaken()
        self._settle(options)
        return own.send()

    def _joined(self, own: CommitRun, options: TransactionOptions, steps: _Steps) -> Group | None:
        """Return the group that the transaction has joined; None if it has to go alone."""
        place = endpoint_of(steps[0][0].model)
        with _mutex:
            if self._is_misled():
                raise _overtaken()
            used = {
                item.identity: group
                for item, _ in steps
                if (group := under_way.get((place, item.identity))) is not None
                and not group.is_over
                and item.identity in group.content.left
            }
            # An instance from outside of the function, or the row of a query, may be old: DynamoDB tells.
            behind = [item for item, _ in steps if item.identity in used and _is_behind(item, used[item.identity])]
            if behind and all(item.identity in self._asked for item in behind):
                raise _overtaken()  # the next attempt reads what is left
            # What it has read of a group has to be committed before it, also what it does not rely on.
            before = {*used.values(), *(group for group in self._seen.values() if not group.is_over)}
            is_apart = any(_is_apart(item, used[item.identity]) for item, _ in steps if item.identity in used)
            if behind or is_apart or (before and _is_past(options.deadline)):
                return None
            # It joins one of these groups, or one that waits for one of them, if that is the newest.
            open_ = {each for group in before for each in (group, group.follower) if each is not None and each.is_open}
            group = max(before | open_, key=lambda each: each.number, default=None)
            if group is None or group not in open_ or not group.has_room(steps):
                group = self._led = Group()
            group.before |= before - {group}
            for each in group.before:
                each.follower = group
            group.add(place, own, options, steps)
            return group

    def _settle(self, options: TransactionOptions) -> None:
        """Wait for the groups of which the transaction has read; raise if one of them was not committed."""
        if self._forks != runtime.forks:
            return
        if not all(group.wait(options.deadline) for group in self._seen.values()) or self._is_misled():
            raise _overtaken()

    def _is_misled(self) -> bool:
        return any(group.error is not None for group in self._seen.values())


def _is_past(deadline: Deadline) -> bool:
    return deadline.at <= runtime.current.monotonic()


def _why_refused(group: Group, steps: _Steps) -> BaseException | None:
    """Return the error for one of several transactions of a group; None if one of them may be the reason by itself."""
    error, run = group.error, group.run
    if isinstance(error, Overtaken):
        return _overtaken()
    if run is None:
        return None
    if isinstance(error, OutcomeUnknown):
        is_in_doubt = any(item.plan.write is not None for item, _ in steps)
        return copy.copy(error) if is_in_doubt else _overtaken()
    refusals = run.refusals()
    if not all(isinstance(why, _BY_OTHERS) for why in (error, *refusals.values())):
        return None
    mine = [why for item, _ in steps if (why := refusals.get(item.identity)) is not None]
    if refusals and not mine:
        return _overtaken()
    return copy.copy(mine[0] if mine else error)


# What can share


def _is_behind(item: TransactionItem, group: Group) -> bool:
    """Tell whether a transaction knows another state of an item than the group leaves that uses it last."""
    left = group.content.left[item.identity][1]
    return versions.known_of(item.model, left or {}) != item.before


def _is_apart(item: TransactionItem, group: Group) -> bool:
    """Tell whether a transaction has the versions of an item in other attributes than those before it."""
    one, other = versions.shape_of(item.model), versions.shape_of(group.content.left[item.identity][0].model)
    names = [
        (None if each.attribute is None else each.attribute.attr_name, each.write_id_name) for each in (one, other)
    ]
    return names[0] != names[1]


def _steps_of(own: CommitRun, options: TransactionOptions) -> _Steps | None:
    """Return what a transaction does and leaves, for others to go on with; None if it has to commit alone."""
    items = own.items
    if not items or len(items) > dynamodb.MOST_ACTIONS or needs_table(options) or not holds_nothing():
        return None
    try:
        steps = [(item, _left_by(item)) for item in items if _can_share(item)]
    except Exception:  # noqa: BLE001 - its own commit tells what is wrong with it
        return None
    return steps if len(steps) == len(items) and _size(steps) <= _MOST_BYTES else None


def _can_share(item: TransactionItem) -> bool:
    """Tell whether what a transaction knows and does of an item is exact, so that another one can go on with it."""
    shape, plan = versions.shape_of(item.model), item.plan
    # A query shows no rows that are not committed, so it does not go with a guard that is not.
    if issubclass(item.model, OwnRows) or shape.expires is not None or shape.write_id is None:
        return False
    if isinstance(item.base, Unread) or (item.base is not None and item.before.write_id is None):
        return False
    if item.row is not None and item.row.state(item.base).intent is not None:  # of another transaction
        return False
    if not item.holds(item.base):  # a condition of the caller
        return False
    if plan.write is None or plan.writer is None:
        return True
    return plan.is_checked and not (plan.write.is_optional or plan.writer.held_entries or plan.writer.separate)


def _left_by(item: TransactionItem) -> Image | None:
    """Return an item as its write leaves it, exactly as DynamoDB stores it."""
    write = item.plan.write
    if write is None:
        return item.stored or None
    if write.operation is DELETE:
        return None
    if write.attributes is not None:
        return canonical_item({**item.key, **write.attributes})
    return effects.updated(item.stored or None, item.key, write.actions)
