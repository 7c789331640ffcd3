"""Group commit: transactions of one process that want the same items commit together (`transactional(combine=True)`).

The story of one commit is `Member.commit`. A transaction joins a group when its function has ended. It must have read
what the transactions before it in this process leave behind; if not, its function runs again, with these items in place
of reads. One native transaction then commits the group. While that is under way, the next group forms on what it will
leave. A transaction whose items nobody else has in use is a group of one, which is sent at once, as without groups.
What a group leaves is kept for a moment, if its items were in demand, since its callers want them again.

Nobody relies on a guess. A group is sent only after the groups it builds on were committed, and DynamoDB commits it on
condition that each item is stored as the group's first reader of it has read it, by version and write id. What its
later transactions have read is what those before them write, and is written by all or by none. A function that ends
without a commit after it has read of a group, by an error or a rollback, or although its own commit was refused, may
have seen what is never committed. So it runs once more, alone: on what is stored once these groups are over.

A group waits only for older ones, so no two wait for each other. Nobody waits longer than his own transaction may,
unless his group is being sent. Whatever is not plain goes alone.

Rejected: to run the functions in the thread of one caller, since a function may block, and belongs to its own task; to
wait a while for others before a group is sent, since those that come meanwhile form the next one.

Ideas of group commit (DeWitt et al.: SIGMOD 1984), and of early lock release (Graefe et al.: SIGMOD 2013).
"""

from __future__ import annotations

import copy
import itertools
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import PynamoDBException, TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.values import canonical_item, item_size
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import endpoint_of
from pynamo_locking._items import effects, versions
from pynamo_locking._locks.context import holds_nothing
from pynamo_locking._models.tables import OwnRows
from pynamo_locking._transactions.commit import CommitRun
from pynamo_locking._transactions.plan import changes
from pynamo_locking._writes.write import DELETE, SAVE, Write
from pynamo_locking.exceptions import OutcomeUnknown, StaleVersion, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._io.model_doors import Endpoint
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.keys import ItemKey
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem


#: After so many runs of its function a call goes on alone: it was overtaken again and again.
MOST_RUNS: Final = 100

#: For so many seconds what a group has left is read in place of the table, if several callers wanted its items: they,
#: or others, want them again at once. If another process has changed one since, the next commit is refused.
KEPT_S: Final = 0.1

#: So large may the items of a group be together, in bytes: far from where a native transaction is too large.
_MOST_BYTES: Final = dynamodb.MOST_BYTES // 2

#: Who waits looks again after so many seconds, whoever may have been interrupted before he could wake him.
_LOOK_AFTER_S: Final = 1.0


class _Leaves(NamedTuple):
    """An item that a transaction uses, and what it leaves there, with its size: None if the item is absent then."""

    item: TransactionItem
    image: Image | None
    size: int


class Again(TransactionConflict):
    """The function has to run again, which is no attempt: another caller was faster, or what it read is not stored."""


def _again() -> Exception:
    return also(Again, TransactWriteError)(
        "other transactions of this process were faster; nothing was written, and a retry is safe."
    )


def check_combined(options: Mapping[str, Any], *, combine: bool) -> None:
    """Refuse options that transactions which commit together cannot have each for itself."""
    alone = [name for name in ("idempotency_key", "record", "read_only") if options.get(name)]
    if options.get("isolation", "serializable") not in ("serializable", "read_committed"):  # it may be anything
        alone.append("isolation")
    if combine and alone:
        raise ConfigurationError(
            f"combine=True lets callers commit in one transaction, which cannot have the {alone[0]} of one of them: "
            f"leave out combine, or {alone[0]}={options[alone[0]]!r:.80}."
        )


class _Content(NamedTuple):
    """The commits of a group's transactions, each as it would be alone; and what the last of them leave."""

    runs: tuple[CommitRun, ...] = ()
    leaves: Mapping[ItemKey, _Leaves] = {}


_numbers = itertools.count()


class Group:
    """Transactions that commit together.

    Attributes:
        number: of the order in which groups have begun.
        content: replaced as a whole, so that an interrupt leaves no half of a transaction in it.
        before: the older groups that use its items, for which it waits.
        is_open: whether others may join.
        run: its commit, from the moment it is sent: that of its only transaction, or a new one.
        is_left: whether its first transaction, which sends it, has ended, perhaps by an interrupt.
        is_over: whether it is known to be committed, or not to be because of an `error`.
        kept_until: until when what it has left is read in place of the table, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.content = _Content()
        self.before: set[Group] = set()
        self.is_open = True
        self.run: CommitRun | None = None
        self.is_left = False
        self.is_over = False
        self.error: BaseException | None = None
        self.kept_until = 0.0
        self._forks = runtime.forks
        self._ended = runtime.current.condition()

    def admits(self, new: Mapping[ItemKey, _Leaves]) -> bool:
        """Tell whether one more transaction may join.

        It must fit. What several of them do to one item is sent as an update. So none of them begins its life, since
        each copy of that has another write id, none deletes it, and none has another class for it, with other versions.
        """
        leaves = self.content.leaves
        for key in new.keys() & leaves.keys():
            last, one = leaves[key], new[key]
            if last.item.model is not one.item.model or _is_behind(one.item, self):
                return False
            writes = last.item.plan.write is not None or one.item.plan.write is not None
            if writes and None in (last.item.before.write_id, last.image, one.image):
                return False
        return _fits({**leaves, **new})

    def send(self, deadline: Deadline) -> None:
        """Commit the group: its first transaction does, in its own thread."""
        # It builds on what earlier groups leave. As long as one of them is under way, others may join.
        while self.is_open:
            with _mutex:
                earlier = next((each for each in self.before if not each.is_over), None)
                self.is_open = earlier is not None and not self.is_over
            if earlier is not None and not earlier.wait(deadline):
                self.finish(_again())
        if self.is_over or any(each.error is not None for each in self.before):
            self.finish(_again())
            return
        # After an error of another kind nobody knows whether it was applied.
        try:
            self.run = _together(self.content)
            self.run.send()
        except (LockingError, PynamoDBException) as error:
            self.finish(error)
        else:
            self.finish(None)

    def finish(self, error: BaseException | None, *, unless_closed: bool = False) -> None:
        """Tell all who wait what became of the group; what was told before stays."""
        with _mutex:
            if unless_closed and not self.is_open:
                return
            self.is_open = False
            now = runtime.current.monotonic()
            if not self.is_over and error is None and (self.before or len(self.content.runs) > 1):
                self.kept_until = now + KEPT_S
            if not self.is_over:
                self.error, self.is_over = error, True
            for each in list(each for each, group in under_way.items() if group.is_over and group.kept_until <= now):
                del under_way[each]
            self.before.clear()  # who keeps this group keeps no others
        if self._forks == runtime.forks:  # no thread that waits lives in a child
            with self._ended:
                self._ended.notify_all()

    def leave(self) -> None:
        """Finish the group, if it is not over, for its first transaction, which was interrupted."""
        self.is_left = True
        if self.is_over:
            return
        if self.run is None:
            self.finish(_again())
        else:
            self.finish(None if self.run.is_decided else self.run.doubt())

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until it is over; return False if it is not by the deadline."""
        while not self.is_over:
            if self.is_left:  # a second interrupt kept the first transaction from finishing it
                self.leave()
            left = _LOOK_AFTER_S if deadline is None else deadline.at - runtime.current.monotonic()
            if left <= 0:
                return self.is_over
            with self._ended:
                if not self.is_over:
                    runtime.current.wait(self._ended, min(left, _LOOK_AFTER_S))
        return True


def _together(content: _Content) -> CommitRun:
    """Return the one commit of all transactions of a group."""
    first, *others = content.runs
    if not others:
        return first
    chains: dict[ItemKey, list[TransactionItem]] = {}
    for run in content.runs:
        for item in run.items:
            chains.setdefault(item.identity, []).append(item)
    # It may wait for other transactions as long as the most patient of its callers.
    last = max((run.options.deadline for run in content.runs), key=lambda deadline: deadline.at)
    items = [_one_of(chain, content.leaves[key].image) for key, chain in chains.items()]
    return CommitRun(items, replace(first.options, deadline=last))


def _one_of(chain: Sequence[TransactionItem], image: Image | None) -> TransactionItem:
    """Return an item with the one write, or check, that does what several transactions do, one after the other."""
    writing = [item for item in chain if item.plan.write is not None]
    if not writing[1:]:
        return [*writing, *chain][0]
    # The condition is that of the first write; what is stored then is what the last one leaves, with its write id. What
    # they leave alone, such as a lock, may have changed since it was read.
    one, write, last = copy.copy(writing[0]), writing[0].plan.write, writing[-1].plan.write
    assert write is not None and last is not None  # noqa: S101, PT018 - both write
    part = copy.copy(write.part)
    part.write_ids = list(last.part.write_ids)
    actions = changes(one.stored, image or {}, one.key)
    one.plan = one.plan._replace(write=Write(write.item, SAVE, part, write.condition, actions))
    return one


# The groups of a process


#: The last group that uses an item, until it is over and is not kept.
under_way: dict[tuple[Endpoint, ItemKey], Group] = {}
_mutex = runtime.current.mutex()

#: Whether this context sends a group, after so many forks: a subscriber that it calls must not wait for that group.
_sends: ContextVar[int | None] = ContextVar("pynamo_locking_sends_group", default=None)


def _forget_after_fork() -> None:
    global _mutex, under_way  # the parent's threads, which hold and fill them, do not live here
    _mutex, under_way = runtime.current.mutex(), {}


runtime.after_fork(_forget_after_fork)


def _last_of(place: Endpoint, key: ItemKey) -> Group | None:
    """Return the group that uses an item last, if it is under way or kept; the mutex is held."""
    group = under_way.get((place, key))
    if group is None or (group.is_over and group.kept_until <= runtime.current.monotonic()):
        return None
    return group


class Member:
    """The part of one run of a function in groups: what it has read of those under way, and its commit with others.

    A function that runs alone reads of none, and commits by itself, `after` some groups are over.
    """

    def __init__(
        self, deadline: Deadline, number: int = 1, *, is_alone: bool = False, after: Collection[Group] = ()
    ) -> None:
        self.is_refused: bool = False  # its commit, as far as is known
        self._is_alone = is_alone or _sends.get() == runtime.forks
        self._next_is_alone = number >= MOST_RUNS
        self._deadline = deadline
        self._number = number
        self._after = after
        self._forks = runtime.forks
        self._asked: set[ItemKey] = set()  # plain items that the function has read by their keys
        self._seen: dict[ItemKey, Group] = {}  # what came from a group
        self._led: Group | None = None  # noted before others can join it: an interrupt may come at any moment

    def again(self, deadline: Deadline) -> Member:
        """Return the part of the next run."""
        return Member(deadline, self._number + 1, is_alone=self._next_is_alone, after={*self._seen.values()})

    # While the function runs

    def left(self, model: type[GuardedMixin], keys: Collection[ItemKey]) -> dict[ItemKey, Image | None]:
        """Return those of some items that groups under way will leave, for the transaction to read."""
        if self._is_alone:
            for group in self._after:
                group.wait(self._deadline)
            self._after = ()
            return {}
        # A query shows no row that is not committed, so it does not go with a guard that is not.
        if versions.shape_of(model).expires is not None or issubclass(model, OwnRows):
            return {}
        self._asked.update(keys)
        found: dict[ItemKey, Image | None] = {}
        place = endpoint_of(model)
        with _mutex:
            groups = dict((key, last) for key in keys if (last := _last_of(place, key)) is not None)
            for key, last in groups.items():
                found[key], self._seen[key] = last.content.leaves[key].image, last
        return found

    @property
    def has_seen(self) -> bool:
        """Whether it has read of a group. In a child its transaction can do nothing more."""
        return bool(self._seen) and self._forks == runtime.forks

    # When it has ended

    def commit(self, own: CommitRun) -> bool:
        """Commit a transaction, with others if it can be; `own` is its commit alone, and has the result in any case.

        Returns:
            What `CommitRun.run` returns.

        Raises:
            Again: the function has to run again.
            LockingError, PynamoDBException: as `CommitRun.run`.
        """
        try:
            # What is not exact goes alone. If its function has read of a group, that may not even be committed.
            leaves = None if self._is_alone else self._leaves_of(own)
            if not leaves and self.has_seen:
                raise self.go_alone()
            if not leaves:
                return own.run()
            # Its first transaction sends a group. The others wait; who has waited long enough breaks off what is not
            # sent. What became of the group became of each transaction in it.
            group = self._join(own, leaves)
            if group is self._led:
                _sends.set(runtime.forks)
                group.send(self._deadline)
            elif not group.wait(self._deadline):
                group.finish(_again(), unless_closed=True)
                group.wait(None)
            self._raise_unless_committed(group, own)
        except (LockingError, PynamoDBException) as error:
            self.is_refused = not isinstance(error, OutcomeUnknown)
            raise
        finally:
            _sends.set(None)
            if self._led is not None:
                self._led.leave()
        # Each calls the methods of its own models.
        own.note()
        return False

    def _leaves_of(self, own: CommitRun) -> dict[ItemKey, _Leaves] | None:
        """Return what a transaction leaves of its items, for others to go on with; None if it has to commit alone."""
        try:
            is_plain = holds_nothing() and all(item.identity in self._asked and _is_plain(item) for item in own.items)
            images = [(item, _image_after(item)) for item in own.items] if is_plain else []
            leaves = {item.identity: _Leaves(item, image, item_size(image or {})) for item, image in images}
        except Exception:  # noqa: BLE001 - its own commit tells what is wrong with it
            return None
        return leaves if _fits(leaves) else None

    def _join(self, own: CommitRun, leaves: dict[ItemKey, _Leaves]) -> Group:
        """Return the group that the transaction has joined: one that uses its items, or a new one."""
        place = endpoint_of(next(iter(leaves.values())).item.model)
        with _mutex:
            used = dict((key, group) for key in leaves if (group := _last_of(place, key)) is not None)
            self._check_read(leaves, used)
            before = set(group for group in used.values() if not group.is_over)
            if before and self._deadline.at <= runtime.current.monotonic():
                raise self.go_alone()
            # A group waits only for older ones. So it joins the newest of them, or forms a new one.
            group = max(before, key=lambda each: each.number, default=None)
            if group is None or not group.is_open or not group.admits(leaves):
                group = self._led = Group()
            group.before |= before - {group}
            # In this order: an interrupt between the two leaves no item with a group that does not know it.
            group.content = _Content((*group.content.runs, own), {**group.content.leaves, **leaves})
            under_way.update(((place, key), group) for key in leaves)
            return group

    def _check_read(self, leaves: dict[ItemKey, _Leaves], used: dict[ItemKey, Group]) -> None:
        """Let the function run again, unless it has read what those before it leave, or what is stored by now."""
        if any(_is_behind(leaves[key].item, group) for key, group in used.items()):
            raise _again()
        if any(group.error is not None for group in self._seen.values()):
            raise _again()

    def _raise_unless_committed(self, group: Group, own: CommitRun) -> None:
        """Raise what the caller has to hear, unless the group was committed."""
        error, run = group.error, group.run
        if run is None:  # it was not sent
            raise _again()
        if error is None:
            if run is not own:
                own.take_over(run)
            return
        # Other writers were faster than its group, or than what was kept of one: that is no attempt of its own.
        if isinstance(error, (StaleVersion, TransactionConflict)) and (run is not own or self._seen):
            raise _again()
        if run is own:  # it was alone in its group
            raise error
        if isinstance(error, OutcomeUnknown):  # who has not written anything is in no doubt
            writes = any(item.plan.write is not None for item in own.items)
            raise copy.copy(error) if writes else _again()
        # One of the transactions cannot be committed: perhaps it alone writes an item that another owner has locked.
        # Each goes alone, so that its caller alone hears of it.
        raise self.go_alone()

    def go_alone(self) -> Exception:
        """Return the error for a run that does not count; the next one is alone."""
        self._next_is_alone = True
        return _again()


def _is_behind(item: TransactionItem, group: Group) -> bool:
    """Tell whether a transaction knows another state of an item than the group leaves that uses it last."""
    return versions.known_of(item.model, group.content.leaves[item.identity].image or {}) != item.before


def _is_plain(item: TransactionItem) -> bool:
    """Tell whether a transaction checks that an item is as it knows it, and no other row for that."""
    plan = item.plan
    is_free = plan.writer is None or not plan.writer.foreign_checks
    return is_free and (plan.write is None or plan.is_checked) and item.holds(item.stored or None)


def _image_after(item: TransactionItem) -> Image | None:
    """Return an item as its write leaves it, exactly as DynamoDB stores it."""
    write = item.plan.write
    if write is None:
        return item.stored or None
    if write.operation is DELETE:
        return None
    if write.attributes is not None:
        return canonical_item({**item.key, **write.attributes})
    return effects.updated(item.stored or None, item.key, write.actions)


def _fits(leaves: Mapping[ItemKey, _Leaves]) -> bool:
    """Tell whether a native transaction has room for so many items, which are so large."""
    return len(leaves) <= dynamodb.MOST_ACTIONS and sum(each.size for each in leaves.values()) <= _MOST_BYTES
