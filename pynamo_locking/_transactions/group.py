"""Group commit: transactions of one process that want the same items commit together (`transactional(combine=True)`).

A transaction joins a group when its function has ended. It must have read what the transactions before it in this
process leave behind; if not, its function runs again, with these items in place of reads. One native transaction then
commits the group. While that is under way, the next group forms on what it will leave.

Nobody relies on a guess. A group is sent only after the groups it builds on were committed, and DynamoDB commits it on
condition that each item is stored as the group's first reader of it has read it, by version and write id. What its
later transactions have read is what those before them write, and is written by all or by none. A function that raises
after it has read what was not committed then is believed once a check has told that it was, and that it is current.

A transaction whose items nobody else has in use is a group of one, which is sent at once, as without groups. What a
group of several callers leaves is kept for a moment, since they want the same items again: that only saves reads.

Rejected: to run the functions in the thread of one caller, as `modify(combine=True)` does: a function may block, and
belongs to its own task; to wait a while for others before a group is sent: those that come meanwhile form the next one.

Ideas of group commit (DeWitt et al.: SIGMOD 1984), and of early lock release (Graefe et al.: SIGMOD 2013).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.values import canonical_item, item_size
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import endpoint_of
from pynamo_locking._items import effects, versions
from pynamo_locking._locks.context import holds_nothing
from pynamo_locking._pynamodb import key_values_of, new_item
from pynamo_locking._transactions.commit import CommitRun, is_own_row, needs_table
from pynamo_locking._transactions.item import TransactionItem
from pynamo_locking._transactions.plan import Basis, Plan, Unread, changes
from pynamo_locking._writes.native_transaction import note_applied
from pynamo_locking._writes.write import DELETE, SAVE, Sent, Write, outcome_query_of
from pynamo_locking.exceptions import ItemLocked, OutcomeUnknown, StaleVersion, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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


class Chain:
    """One item in a group: what its transactions do to it one after the other.

    Attributes:
        used: the item as the first of them has it, perhaps only to check it.
        first: the first one that writes it; None if none does.
        last: the last one that writes it.
        left: the item after all of them; None if there is none.
    """

    def __init__(self, used: TransactionItem) -> None:
        self.used = used
        self.first: TransactionItem | None = None
        self.last: TransactionItem | None = None
        self.left: Image | None = None

    def add(self, item: TransactionItem, left: Image | None) -> None:
        self.left = left
        if item.plan.write is not None:
            self.first, self.last = self.first or item, item

    def whole(self) -> TransactionItem:
        """Return the item with the one write, or check, that does what all of them do."""
        first, last = self.first, self.last
        if first is None or last is None:
            return self.used
        if first is last:
            return first
        write, last_write = first.plan.write, last.plan.write
        assert write is not None and last_write is not None  # noqa: S101, PT018 - both write
        # No caller may see what becomes of this instance, so it is a new one.
        instance = new_item(first.model, *key_values_of(first.instance))
        versions.set_known(instance, first.before)
        whole = TransactionItem(instance, first.identity, first.key, first.base, first.reader, "")
        if self.left is None and first.is_absent:  # created and deleted again: it must still be absent
            whole.plan, whole.is_read = Plan(first.base, condition=first.plan.condition), True
            return whole
        # The condition is that of the first write; what is stored then shows the id of the last one.
        part = copy.copy(write.part)
        part.write_ids = list(last_write.part.write_ids)
        one = Write(instance, SAVE, part, write.condition, is_repeatable=not part.begins_life)
        if self.left is None:
            one = one.but(operation=DELETE, kind=EntryEffect.DELETE, is_repeatable=True)
        elif first.is_absent and write.attributes is not None:
            one = one.but(attributes={name: value for name, value in self.left.items() if name not in first.key})
        else:  # what they leave alone, such as a lock, may have changed since it was read
            one = one.but(actions=changes(first.stored, self.left, first.key))
        writer = Basis(instance, first.key, first.base, first.before, "", None).writer()
        whole.plan = Plan(self.left, write=one, writer=writer, is_checked=True, has_values=True)
        return whole


class Group:
    """Transactions that commit together, after the groups `before` it.

    Attributes:
        chains: what it does to each item.
        is_over: whether it is known to be committed, or why it is not: its `error`.
        run: its commit, once that has begun.
    """

    def __init__(self, place: Endpoint) -> None:
        self.place = place
        self.before: set[Group] = set()
        self.chains: dict[ItemKey, Chain] = {}
        self.is_over = False
        self.error: BaseException | None = None
        self.run: CommitRun | None = None
        self._alone: CommitRun | None = None  # the commit of its only transaction
        self._options: TransactionOptions | None = None  # of the first one
        self._count = 0
        self._bytes = 0
        self._ended = runtime.current.condition()

    @property
    def is_shared(self) -> bool:
        return self._count > 1

    def has_room(self, steps: _Steps) -> bool:
        new = sum(item.identity not in self.chains for item, _ in steps)
        return len(self.chains) + new <= dynamodb.MOST_ACTIONS and self._bytes + _size(steps) <= _MOST_BYTES

    def add(self, own: CommitRun, options: TransactionOptions, steps: _Steps) -> None:
        """Add a transaction, which has read what those before it leave; the mutex is held."""
        self._count, self._bytes = self._count + 1, self._bytes + _size(steps)
        self._alone, self._options = None if self.is_shared else own, self._options or options
        for item, left in steps:
            self.chains.setdefault(item.identity, Chain(item)).add(item, left)
            under_way.last[self.place, item.identity] = self

    def lead(self) -> None:
        """Commit the group, after those before it: its first transaction does, in its own thread."""
        while (earlier := self._close()) is not None:
            earlier.wait()
        if any(each.error is not None for each in self.before):
            self.end(_overtaken())
            return
        assert self._options is not None  # noqa: S101 - it has a transaction
        self.run = self._alone or CommitRun([chain.whole() for chain in self.chains.values()], self._options)
        self.end(_error_of(self.run))

    def _close(self) -> Group | None:
        """Let no other transaction in, unless a group before this one is still under way: return that one."""
        with _mutex:
            earlier = next((each for each in self.before if not each.is_over), None)
            if earlier is None and under_way.open.get(self.place) is self:
                del under_way.open[self.place]
            return earlier

    def end(self, error: BaseException | None) -> None:
        """Tell all who wait what became of the group; leave nothing behind."""
        with _mutex:
            self.error, self.is_over = error, True
            if under_way.open.get(self.place) is self:
                del under_way.open[self.place]
            for identity in self.chains:
                if under_way.last.get((self.place, identity)) is self:
                    del under_way.last[self.place, identity]
            under_way.forget(self)
            if error is None and (self.is_shared or self.before):
                under_way.keep(self)
            self.before.clear()
        with self._ended:
            self._ended.notify_all()

    def abandon(self) -> None:
        """End it after an interrupt of the caller that leads: once it was being sent, its outcome is unknown."""
        if not self.is_over:
            self.end(_overtaken() if self.run is None else _interrupted(self.run.items))

    def wait(self) -> None:
        with self._ended:
            while not self.is_over:
                runtime.current.wait(self._ended, None)


def _size(steps: _Steps) -> int:
    return sum(item_size(left or {}) for _, left in steps)


def _error_of(run: CommitRun) -> Exception | None:
    try:
        run.run()
    except Exception as error:  # noqa: BLE001 - raised again in the callers
        return error
    return None


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


class Kept(NamedTuple):
    """An item as a group has left it, which is over by now."""

    left: Image | None
    group: Group
    until: float


class UnderWay:
    """The groups of this process that are not over.

    Attributes:
        last: the last one that uses an item.
        open: the one of a place that others may join.
        kept: the items that the callers of groups wanted which are over.
    """

    def __init__(self) -> None:
        self.last: dict[tuple[Endpoint, ItemKey], Group] = {}
        self.open: dict[Endpoint, Group] = {}
        self.kept: dict[tuple[Endpoint, ItemKey], Kept] = {}

    def forget(self, group: Group) -> None:
        """Keep nothing that is too old, or that a group has changed or has found to be changed."""
        now = runtime.current.monotonic()
        old = {place for place, kept in self.kept.items() if kept.until <= now}
        for place in old | {(group.place, identity) for identity in group.chains}:
            self.kept.pop(place, None)

    def keep(self, group: Group) -> None:
        """Keep what a group has left for those who want it next."""
        until = runtime.current.monotonic() + KEPT_S
        for identity, chain in group.chains.items():
            self.kept[group.place, identity] = Kept(chain.left, group, until)


under_way = UnderWay()
_mutex = runtime.current.mutex()


class _Leading(runtime.ThreadLocal):
    """Whether this thread commits a group: a subscriber that it calls must not wait for that group."""

    is_true = False


_leading = _Leading()


def member() -> Member | None:
    """Return the part of a call in groups; None if it has to commit alone."""
    return None if _leading.is_true else Member()


class Member:
    """The part of one attempt of a call in groups: what it has read of those under way, and its commit with others."""

    def __init__(self, number: int = 1, *, trusts_kept: bool = True) -> None:
        self._number = number
        self._trusts_kept = trusts_kept
        self._forks = runtime.forks
        self._asked: set[ItemKey] = set()  # what the function has read by its key
        self._seen: dict[ItemKey, Group] = {}  # what came from a group
        self._goes_alone = False
        self._led: Group | None = None  # noted before others can join it: an interrupt may come at any moment

    def again(self) -> Member | None:
        """Return the part of the next attempt; None if it has to commit alone."""
        if self._goes_alone or self._number >= MOST_ATTEMPTS:
            return None
        return Member(self._number + 1, trusts_kept=self._trusts_kept)

    def left(self, model: type[GuardedMixin], keys: Collection[ItemKey]) -> dict[ItemKey, Image | None]:
        """Return those of some items that groups under way will leave, for the transaction to read."""
        self._asked.update(keys)
        if not (under_way.last or under_way.kept):
            return {}
        found: dict[ItemKey, Image | None] = {}
        place, now = endpoint_of(model), runtime.current.monotonic()
        with _mutex:
            for key in keys:
                group, kept = under_way.last.get((place, key)), under_way.kept.get((place, key))
                if group is not None:
                    found[key], self._seen[key] = group.chains[key].left, group
                elif kept is not None and now < kept.until and self._trusts_kept:
                    found[key], self._seen[key] = kept.left, kept.group
        return found

    def read_itself(self, items: Mapping[ItemKey, TransactionItem]) -> dict[ItemKey, Image]:
        """Return what the attempt has read of the table, with which the next one goes on; guards are read again."""
        read = ((key, item) for key, item in items.items() if item.stored and key not in self._seen)
        return {key: item.stored for key, item in read if not is_own_row(item)}

    def confirm(self, items: Mapping[ItemKey, TransactionItem], options: TransactionOptions) -> None:
        """Raise if what a function has read before it raised was never committed, or is not current.

        Cost: none if it has read nothing of groups; else 1 transactional read for each hundred items.
        """
        if not self._seen or self._forks != runtime.forks:  # no thread of the parent lives in a child
            return
        self._trusts_kept = False  # if that is the reason, the next attempt must not read it again
        self._settle()
        read = [copy.copy(item) for item in items.values() if not isinstance(item.base, Unread)]
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
        steps = _steps_of(own, options)
        if steps is None:
            return self._commit_alone(own)
        try:
            group = self._joined(own, options, steps)
            if group is None:
                return self._commit_alone(own)
            if group is self._led:
                _leading.is_true = True
                group.lead()
            else:
                group.wait()
        finally:
            _leading.is_true = False
            if self._led is not None:
                self._led.abandon()
        return self._result(group, own, steps)

    def _joined(self, own: CommitRun, options: TransactionOptions, steps: _Steps) -> Group | None:
        """Return the group that the transaction has joined; None if it has to go alone."""
        place = endpoint_of(steps[0][0].model)
        while True:
            with _mutex:
                if self._is_misled():
                    raise _overtaken()
                in_use = {
                    item.identity: group
                    for item, _ in steps
                    if (group := under_way.last.get((place, item.identity))) is not None
                }
                behind = [item for item, _ in steps if item.identity in in_use and _is_behind(item, in_use)]
                if behind and all(item.identity in self._asked for item in behind):
                    raise _overtaken()  # the next attempt reads what is left
                # What it has read of a group has to be committed before it, also what it does not rely on.
                before = {*in_use.values(), *(group for group in self._seen.values() if not group.is_over)}
                group = under_way.open.get(place) if before else None
                if not behind and (group is None or group.has_room(steps)):
                    if group is None:
                        group = self._led = Group(place)
                        if before:
                            under_way.open[place] = group
                    group.add(own, options, steps)
                    group.before |= before - {group}
                    return group
                in_the_way = in_use[behind[0].identity] if behind else group
            if in_the_way is not None:
                in_the_way.wait()
            if behind:  # an instance from outside of the function, or the row of a query: DynamoDB tells if it is old
                return None

    def _commit_alone(self, own: CommitRun) -> bool:
        self._trusts_kept = False
        self._settle()
        return own.run()

    def _settle(self) -> None:
        """Wait for the groups of which the transaction has read; raise if one of them was not committed."""
        for group in self._seen.values():
            group.wait()
        if self._is_misled():
            raise _overtaken()

    def _is_misled(self) -> bool:
        return any(group.error is not None for group in self._seen.values())

    def _result(self, group: Group, own: CommitRun, steps: _Steps) -> bool:
        """Let the transaction hear what became of its group."""
        if not group.is_shared:
            if group.error is not None:
                raise group.error
            return False
        why = None if group.error is None else _why_refused(group, steps)
        if group.run is not None and (why is not None or group.error is None):
            own.take_over(group.run)
        if why is not None:
            raise why from group.error
        if group.error is None:
            for item, _ in steps:
                if item.plan.write is not None:
                    note_applied(item.final())
            return False
        # One of the transactions cannot be committed: each goes alone, so that it alone hears of it.
        if group in self._seen.values():
            self._goes_alone = True
            raise _overtaken()
        return self._commit_alone(own)


def _why_refused(group: Group, steps: _Steps) -> BaseException | None:
    """Return the error for one of several transactions of a group; None if one of them may be the reason by itself."""
    error, run = group.error, group.run
    if run is None or isinstance(error, Overtaken):
        return _overtaken()
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


def _is_behind(item: TransactionItem, in_use: Mapping[ItemKey, Group]) -> bool:
    """Tell whether a transaction knows another state of an item than the group leaves that uses it last."""
    left = in_use[item.identity].chains[item.identity].left
    return versions.known_of(item.model, left or {}) != item.before


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
    if is_own_row(item) or shape.expires is not None or shape.write_id is None:
        return False
    if not item.is_absent and (isinstance(item.base, Unread) or item.before.write_id is None):
        return False
    if not item.holds(item.base if isinstance(item.base, dict) else None):  # a condition of the caller
        return False
    if plan.write is None or plan.writer is None:
        return True
    if isinstance(item.base, Unread) and plan.write.attributes is None:  # it may keep what nobody has read
        return False
    is_plain = not (plan.write.is_optional or plan.writer.held_entries or plan.writer.separate)
    return plan.is_checked and is_plain


def _left_by(item: TransactionItem) -> Image | None:
    """Return an item as its write leaves it, exactly as DynamoDB stores it."""
    write = item.plan.write
    if write is None:
        return item.base if isinstance(item.base, dict) else None
    if write.operation is DELETE:
        return None
    if write.attributes is not None:
        return canonical_item({**item.key, **write.attributes})
    return effects.updated(item.stored or None, item.key, write.actions)


def _forget_after_fork() -> None:
    global _mutex, under_way  # the parent's threads, which hold and fill them, do not live here
    _mutex, under_way = runtime.current.mutex(), UnderWay()


runtime.after_fork(_forget_after_fork)
