"""All items of one transaction: each is read once, locked on request, and has one instance.

A guard may show a transaction whose items no query finds yet: see `batch_requests.settle`. Each transaction names
its items in a separate attribute. A transaction that has settled the items that earlier transactions named can
therefore remove their attributes without a condition: a removed attribute never comes back.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamodb.exceptions import PynamoDBException, TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.row_keys import brief, guard_name
from pynamo_locking._core.values import copy_of
from pynamo_locking._io import batch_requests, runtime
from pynamo_locking._io.model_doors import lock_target_by_name, own_keys_of, refuse_apart
from pynamo_locking._io.responses import foreign_row_error
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place, Stored, StoredRow
from pynamo_locking._items import conditions, effects, unique_values, versions
from pynamo_locking._items.classes import class_made, shared_as
from pynamo_locking._items.keys import ItemKey, key_of, label_of, stored_keys
from pynamo_locking._locks.context import holds_nothing
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._locks.locked_all import in_order
from pynamo_locking._models.isolation import stored_pages, stored_rows
from pynamo_locking._models.mixins import LockableMixin
from pynamo_locking._models.writes import Participation
from pynamo_locking._pynamodb import hash_attribute_of, is_of, key_values_of, new_item, range_name_of
from pynamo_locking._transactions.item import TransactionItem
from pynamo_locking._transactions.options import check_model, is_guarding, is_guarding_table
from pynamo_locking._transactions.plan import UNREAD, Unread
from pynamo_locking._writes.unique_rows import UniqueRows, merged, not_unique
from pynamo_locking.exceptions import ItemNotFound, LockLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._models.isolation import IsolatedReader
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.group import Member
    from pynamo_locking._transactions.transaction_table import TransactionTable


_M = TypeVar("_M", bound="GuardedMixin")

# The guard of a hash key names the items that transactions have created and deleted under it.


#: The names of these attributes: this prefix, and the id of the transaction.
_NAMED: Final = "touched#"

#: With more named transactions than this, the next one settles and removes their names.
_MOST_NAMED: Final = 8

#: The size limit of the names of one transaction, and of all earlier ones, in bytes: a guard must fit into 400 KB.
_MOST_BYTES: Final = 120_000

#: What to do about a broken guard.
ADVICE: Final = "Remove that attribute when no process writes under its hash key."


@dataclass
class Counted:
    """The items, of one model and hash key, that a transaction has counted in their guard; keys by identity."""

    model: type[GuardedMixin]
    hash_key: Image
    keys: dict[Any, Image] = field(default_factory=dict)

    def names(self, chosen: Container[Any] | None) -> dict[str, Any]:
        """Return, as it is stored, the keys of these items without their hash key; of all unless some are chosen."""
        keys = [key for identity, key in self.keys.items() if chosen is None or identity in chosen]
        rests = [{name: value for name, value in key.items() if name not in self.hash_key} for key in keys]
        return {"L": [{"M": rest} for rest in rests]}

    @staticmethod
    def has_room(names: dict[str, Any]) -> bool:
        return effects.size_of({_NAMED: names}) <= _MOST_BYTES


def named_in(guard: TransactionItem) -> dict[str, list[Image]]:
    """Return the item keys that transactions have named in a guard, by attribute; `CorruptRow` if it is broken."""
    what = f"the guard {brief(guard.key)} in {guard.table!r}"
    row, stored = StoredRow(what, guard.table, guard.key, ADVICE), _attributes(guard.stored)
    return {name: row.read(stored, name, lambda named: [each["M"] for each in named["L"]]) for name in stored}


def _attributes(guard: Image) -> Image:
    return {name: value for name, value in guard.items() if name.startswith(_NAMED)}


def is_full(guard: Image) -> bool:
    """Tell whether a transaction must remove what earlier transactions have named."""
    others = _attributes(guard)
    return len(others) > _MOST_NAMED or (bool(others) and effects.size_of(others) > _MOST_BYTES)


def too_many() -> ConfigurationError:
    """Return the error for more keys than a guard has room for."""
    return ConfigurationError(
        f"the keys of the items that this transaction creates and deletes under one hash key of a model with "
        f"Meta.guard_queries take more than the {_MOST_BYTES // 1000} KB that its guard has for them: write fewer at "
        f"once."
    )


def _is_counter(item: TransactionItem) -> Condition:
    """Return the condition that a guard has a version or is absent: another program may have stored a row since."""
    version = versions.shape_of(item.model).version
    assert version is not None  # noqa: S101 - it counts
    condition: Condition = Place(next(iter(item.key))).does_not_exist() | version.exists()
    return condition


class QueryGuards:
    """What one transaction does to guards, which are among its items."""

    def __init__(self, transaction_id: str, items: Mapping[ItemKey, TransactionItem]) -> None:
        self._name = _NAMED + transaction_id
        self._items = items
        self._counted: dict[ItemKey, Counted] = {}
        self._settled: set[tuple[ItemKey, str]] = set()

    def count(self, item: TransactionItem, hash_key: Image, guard: TransactionItem) -> None:
        """Increment the guard, so that transactions that queried the hash key notice the created or deleted item."""
        guard.touch(_is_counter(guard) if guard.plan.write is None else None, checks=False, creates=True)
        self._counted.setdefault(guard.identity, Counted(item.model, hash_key)).keys[item.identity] = item.key

    def name_items(self, direct: Callable[[], Collection[TransactionItem]]) -> None:
        """Name the created and deleted items in their guards, before the commit.

        Args:
            direct: returns the items that the deciding transaction writes itself. A query sees the intents of all other
                items, so the guard names these only if there is room; it must have room for the direct ones.
        """
        chosen: set[Any] | None = None
        for identity, counted in self._counted.items():
            guard = self._items.get(identity)
            if guard is None or guard.plan.write is None:  # a savepoint rolled it back
                continue
            names = counted.names(None)
            if not counted.has_room(names):
                chosen = chosen or {item.identity for item in direct()}
                names = counted.names(chosen)
            if not counted.has_room(names):
                raise too_many()
            actions: list[Action] = [Place(self._name).set(Stored(names))]
            if is_full(guard.stored):
                self.settle(counted.model, counted.hash_key, guard)
                actions += [Place(name).remove() for name in _attributes(guard.stored)]
            guard.update(actions, None, checks=False)
        if chosen is not None and not {item.identity for item in direct()} <= chosen:
            raise too_many()  # the size of the names has changed which items are direct

    def settle(self, model: type[GuardedMixin], hash_key: Image, guard: TransactionItem) -> None:
        """Settle the items that a guard named when it was read; the commit checks that it still does."""
        place = guard.identity
        new = {name: keys for name, keys in named_in(guard).items() if (place, name) not in self._settled}
        batch_requests.settle(model, [key | hash_key for keys in new.values() for key in keys])
        self._settled |= {(place, name) for name in new}


# The queue locks of items that a transaction reads with ``for_update`` or ``for_share``, absent ones included.


@dataclass(frozen=True)
class Locking:
    """How a transaction locks what it reads; `shared` among readers.

    It `refuses_absent` items that cannot be locked if the caller would take them for locked.
    """

    shared: bool
    refuses_absent: bool

    def __str__(self) -> str:
        return "for_share=True" if self.shared else "for_update=True"


def locking(*, for_update: bool, for_share: bool, refuses_absent: bool = True) -> Locking | None:
    """Return how to lock, None for not at all."""
    if for_update and for_share:
        raise ConfigurationError("for_update=True and for_share=True exclude each other: to write, use for_update.")
    return Locking(for_share, refuses_absent) if for_update or for_share else None


def lock_of_name(lock: Lock[Any]) -> Lock[Any] | None:
    """Return the lock of the name of an item, for the time in which there is no item to keep the lock in.

    None if the lock is kept elsewhere anyway, or if the model has no table for it.
    """
    target, options = handle_of(lock).target, handle_of(lock).options
    model: type[LockableMixin] = target.model
    if target.is_elsewhere or target.row.may_create or getattr(model.Meta, "lock_table", None) is None:
        return None
    return Lock(lock_target_by_name(model, target.row.key, options.settings, target.read), options, None)


def shared_item(item: GuardedMixin) -> ConfigurationError:
    """Return the error for a write of an item that was locked with ``for_share``."""
    return ConfigurationError(
        f"{label_of(type(item), key_values_of(item))} was read with for_share=True, so others may share its "
        f"lock, and nothing may be written under it. There is no upgrade, since two transactions that tried would wait "
        f"for each other for ever: use for_update=True from the start."
    )


def _give_back(lock: Lock[Any]) -> None:
    handle = handle_of(lock)
    try:
        if handle.depth:
            handle.end_block()
    except LockLost as error:
        logger.warning("the lock %s was lost before its transaction released it: %s", handle.target.row.label, error)
    except (LockingError, PynamoDBException) as error:
        logger.warning("the lock %s is left to expire after its transaction: %s", handle.target.row.label, error)


class HeldLocks:
    """The locks that a transaction holds until its end. It waits for them until the deadline, by the monotonic clock.

    Attributes:
        held: the locks, in the order in which they were acquired.
        shared: the items that others may share, so that the transaction must not write them.
    """

    def __init__(self, deadline: Deadline, items: Mapping[ItemKey, TransactionItem], checked: set[ItemKey]) -> None:
        self._deadline = deadline
        self._items = items
        self._checked = checked  # the items that the commit checks under every isolation: shared ones too
        self.held: list[Lock[Any]] = []
        self.shared: set[ItemKey] = set()

    def left(self) -> float:
        """Return for how many seconds to wait for a lock."""
        return max(0.0, self._deadline.at - runtime.current.monotonic())

    def missing(
        self, model: type[GuardedMixin], values: Iterable[tuple[Any, Any]], locking: Locking
    ) -> Iterator[Lock[Any]]:
        """Yield the locks that the transaction has to acquire for some items, in one canonical order.

        The caller acquires each before it asks for the next one. An item that does not exist has no lock in it:
        then that of its name follows, and the item's again, which another process may have created meanwhile.
        """
        if not issubclass(model, LockableMixin):
            raise ConfigurationError(f"{model.__name__} has no lock for {locking}: derive it from LockableModel.")
        table = model.Meta.table_name
        locks = {model.locked(*each, shared=locking.shared): ItemKey.of(table, key_of(model, *each)) for each in values}
        self._checked.update(locks.values() if locking.shared else ())
        for lock in in_order(locks):
            name = lock_of_name(lock)
            if self._holds(lock) or self._holds(name):
                continue
            yield lock
            if not handle_of(lock).depth and name is not None:
                yield name
                yield lock
            elif not handle_of(lock).depth and locking.refuses_absent:
                raise ConfigurationError(
                    f"there is no item {handle_of(lock).target.row.label}, and {locking} cannot lock it, since its "
                    f"lock would be in the item: name a subclass of NamedLock in Meta.lock_table of {model.__name__}, "
                    f"where the name of an absent item is locked."
                )
            handles = [handle_of(each) for each in (lock, name) if each is not None]
            if any(not each.held_entry().entry.lock_mode.may_write for each in handles if each.depth):
                self._share(locks[lock])

    def _share(self, identity: ItemKey) -> None:
        item = self._items.get(identity)
        if item is not None and item.plan.write is not None:
            raise shared_item(item.instance)
        self.shared.add(identity)

    def _holds(self, lock: Lock[Any] | None) -> bool:
        if lock is None:
            return False
        wanted, handles = handle_of(lock), map(handle_of, self.held)
        same = [each for each in handles if each.target.row.identity == wanted.target.row.identity]
        return any(each.options.lock_mode.covers(wanted.options.lock_mode) for each in same)

    def hold_if_there(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Hold the lock of an item. If there is none, the read finds it absent, and the commit checks that."""
        with suppress(ItemNotFound):
            self.hold(lock, share=share)

    def hold(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Acquire a lock, waiting for a share of what is left of `wait`; hold it until the end of the transaction."""
        handle_of(lock).begin_block(share * self.left())
        self.held.append(lock)

    def take_last(self) -> list[HeldEntry]:
        """Return the entries that the commit may remove with its writes: no outer block needs them afterwards.

        They are held by this thread from now on. A task that has acquired one does not acquire it again, although it
        is noted until it is released: after an unknown outcome it may be gone.
        """
        ours = Counter(handle.held_entry() for handle in map(handle_of, self.held) if handle.depth)
        last: list[HeldEntry] = []
        for held, times in ours.items():
            with held.counting:
                if held.depth == times:
                    held.thread_or_task = runtime.current.thread_or_task()
                    last.append(held)
        return last

    def give_back(self) -> None:
        """Release what is held after the end of the transaction. Errors are logged: its outcome depends on none."""
        with ExitStack() as last_first:
            for lock in self.held:
                last_first.callback(_give_back, lock)


# The items of one transaction: each is read once, locked on request, and has one instance.


@dataclass(eq=False)
class TransactionItems:
    """The items of one transaction, and the locks that it holds until its end.

    It waits for locks until the deadline, by the monotonic clock. The caller may have named `_table`, of the records.
    """

    _id: str
    _table: type[TransactionTable] | None
    reader: IsolatedReader
    deadline: InitVar[Deadline]
    by_key: dict[ItemKey, TransactionItem] = field(default_factory=dict, init=False)
    locks: HeldLocks = field(init=False)
    guards: QueryGuards = field(init=False)
    gone: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # what a `TransactWrite` deletes beside it
    undo: list[Callable[[], None]] = field(default_factory=list, init=False)  # of what a savepoint goes back on
    refused: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # as a refusal of the last attempt has them
    member: Member | None = field(default=None, init=False)  # if it commits together with others
    _models: dict[type[GuardedMixin], None] = field(default_factory=dict, init=False)  # all in one place
    _checked: set[ItemKey] = field(default_factory=set, init=False)  # under every isolation
    _unique_rows: list[TransactionItem] = field(default_factory=list, init=False)  # since `take_values`

    def __post_init__(self, deadline: Deadline) -> None:
        self.locks = HeldLocks(deadline, self.by_key, self._checked)
        self.guards = QueryGuards(self._id, self.by_key)
        self.participation: Participation = Participation(self)

    def read_all(
        self, model: type[GuardedMixin], values: Sequence[tuple[Any, Any]], locking: Locking | None = None
    ) -> list[TransactionItem]:
        """Return the items of some keys, given as the values of hash key and range key, reading each the first time.

        The transaction relies on them from now on.
        """
        items = self.find_all(model, values, locking)
        for item in items:
            if self.reader.checks_reads or item.identity in self._checked:
                item.rely()
        return items

    def find_all(
        self, model: type[GuardedMixin], values: Sequence[tuple[Any, Any]], locking: Locking | None = None
    ) -> list[TransactionItem]:
        """Return the items of some keys as `read_all` does, without relying on them."""
        self.join(model)
        if locking is not None:
            for lock in self.locks.missing(model, values, locking):
                self.locks.hold_if_there(lock)
        identities = list[ItemKey]()
        new, keys = dict[ItemKey, Any](), dict[ItemKey, Any]()  # the same key twice is read once
        for each in values:
            key = key_of(model, *each)
            identity = ItemKey.of(model.Meta.table_name, key)
            identities.append(identity)
            item = self._known(identity)
            if item is None:
                new[identity], keys[identity] = each, key
            elif self.locks.held:
                item.note_lock()
        for (identity, each), stored in zip(new.items(), self._images(model, keys), strict=True):
            image = versions.shape_of(model).unexpired(stored)
            instance = new_item(model, *each) if image is None else model.from_raw_data(copy_of(image))
            self._add(instance, identity, keys[identity], image, is_ours=True)
        return [self.by_key[identity] for identity in identities]

    def join(self, model: type[GuardedMixin]) -> None:
        """Refuse a model that cannot take part, or has its table in another place than the first one."""
        if model not in self._models:
            check_model(model)
            if self._models:
                refuse_apart(next(iter(self._models)), model)
            self._models[model] = None

    def joined(self) -> list[type[GuardedMixin]]:
        """Return the models that take part."""
        return list(self._models)

    def rejoin(self, models: Iterable[type[GuardedMixin]]) -> None:
        """Let those models take part, and those of the items that are left, but no others any more."""
        self._models = dict.fromkeys([*models, *(item.model for item in self.by_key.values())])

    def _images(self, model: type[GuardedMixin], keys: Mapping[ItemKey, Image]) -> Iterator[Image | None]:
        """Yield the committed items of some keys, and read those that came neither with a lock nor with a refusal."""
        if self.refused and (self.locks.held or not holds_nothing()):
            self.refused.clear()  # what is read under a lock is read after the grant
        known: dict[ItemKey, Image | None] = {**self.refused}
        if self.member is not None and not self.locks.held and holds_nothing():
            known |= self.member.left(model, keys)
        self._checked.update(keys.keys() & known.keys())  # older than this attempt perhaps, or not committed yet
        known |= self._granted()
        read = iter(self.reader.stored(model, [key for identity, key in keys.items() if identity not in known]))
        found = [(key, known[identity] if identity in known else next(read)) for identity, key in keys.items()]
        return self.reader.committed(model, found)

    def _granted(self) -> dict[ItemKey, Image]:
        """Return the items that came with the grants of their locks, and that were not written since."""
        found: dict[ItemKey, Image] = {}
        for handle in map(handle_of, self.locks.held):
            row = handle.target.row
            if handle.depth and handle.is_outermost and not row.may_create:
                held = handle.held_entry()
                image = held.item.image  # a write in another thread forgets it
                if image is not None and held.remaining:
                    found[ItemKey.of(row.table, row.key)] = image
        return found

    def _add(
        self,
        instance: GuardedMixin,
        identity: ItemKey,
        key: Image,
        base: Image | Unread | None,
        *,
        is_ours: bool = False,
    ) -> TransactionItem:
        item = self.by_key[identity] = TransactionItem(instance, identity, key, base, self.reader, self._id)
        item.instances.is_ours = is_ours
        versions.note(instance, self.participation)
        return item

    def hand_out(self, item: TransactionItem, model: type[_M]) -> _M | None:
        """Return the one instance of an item to a caller who asks for it in a class; None if there is no such item.

        Raises:
            ValueError, ConfigurationError: as `shared_as`.
        """
        image = item.shown_image()
        if image is None:
            return None
        is_free = item.instances.is_ours and item.plan.write is None  # no caller has it: a filter has left it out
        if is_free and type(item.instance) is not class_made(model, item.instance):
            item.instances.make(model, image)
            versions.note(item.instance, self.participation)
        item.instances.is_ours = False
        return shared_as(model, item.instance, "by this transaction", "read it with one class in this transaction")

    def _known(self, identity: ItemKey) -> TransactionItem | None:
        item = self.by_key.get(identity)
        return None if item is None or item.is_unused else item

    def written(self, instance: GuardedMixin) -> TransactionItem | None:
        item = self._known(identity_of(instance))
        return None if item is None or item.plan.write is None else item

    def found(self, model: type[GuardedMixin], pages: Iterable[list[Image]]) -> Iterator[TransactionItem]:
        """Yield the items that a consistent query has found; the transaction relies on each that was yielded."""
        self.join(model)
        table, names = model.Meta.table_name, [attribute.attr_name for attribute in stored_keys(model)]
        resolver = self.reader.resolver()
        for page in pages:
            keys = [{name: image[name] for name in names} for image in page]
            identities = [ItemKey.of(table, key) for key in keys]
            known = [self._known(identity) for identity in identities]
            new = [(key, image) for key, image, item in zip(keys, page, known, strict=True) if item is None]
            committed = self.reader.committed(model, new, resolver)
            for identity, key, old in zip(identities, keys, known, strict=True):
                current = None if old is not None else versions.shape_of(model).unexpired(next(committed))
                if current is not None and not is_of(model, current):
                    continue
                item = old
                if item is None:
                    instance = model.from_raw_data(copy_of(current or key))
                    item = self._add(instance, identity, key, current, is_ours=True)
                if self.reader.checks_reads:
                    item.rely()
                yield item

    def query(
        self,
        model: type[GuardedMixin],
        hash_key: Any,
        range_key_condition: Condition | None,
        filter_condition: Condition | None,
        options: dict[str, Any],
    ) -> list[Any]:
        """Return the items of a hash key as the transaction sees them, in the order of their range keys."""
        effects.check(range_key_condition, filter_condition)
        if is_guarding(model):
            self.rely_on_guard(model, hash_key)
        limit, backwards = options.get("limit"), options.get("scan_index_forward") is False
        items = list[TransactionItem]()
        shown = 0
        for item in self.found(model, _pages(model, hash_key, range_key_condition, options)):
            items.append(item)
            shown += _is_shown(item, model, filter_condition)
            if shown == limit:  # further rows come after the result, and the transaction does not rely on them
                break
        key_condition = conditions.both(hash_attribute_of(model) == hash_key, range_key_condition)
        shown_items = self._shown(model, items, key_condition, filter_condition)
        if range_name_of(model) is not None:
            shown_items.sort(key=lambda each: key_values_of(each.instance)[1], reverse=backwards)
        return [self.hand_out(item, model) for item in shown_items[:limit]]

    def scan(self, model: type[GuardedMixin], filter_condition: Condition | None, at_most: int) -> list[Any]:
        """Return the items of a table as the transaction sees them, in no order."""
        effects.check(filter_condition)
        if is_guarding_table(model):
            self.rely_on_guard(model)
        items = list(self.found(model, [stored_rows(model, at_most)]))
        return [self.hand_out(item, model) for item in self._shown(model, items, None, filter_condition)]

    def _shown(
        self,
        model: type[GuardedMixin],
        found: list[TransactionItem],
        key_condition: Condition | None,
        filter_condition: Condition | None,
    ) -> list[TransactionItem]:
        """Return the items among what was found and what the transaction has created."""
        known = {id(item) for item in found}
        table = model.Meta.table_name
        others = [item for item in self.by_key.values() if item.table == table and id(item) not in known]
        created = [item for item in others if _is_shown(item, model, key_condition)]
        return [item for item in (*found, *created) if _is_shown(item, model, filter_condition)]

    def of(self, instance: GuardedMixin, *, is_write: bool, replaces: bool) -> TransactionItem:
        """Return the item of an instance that the caller passes to write or check it."""
        self.join(type(instance))
        key = key_of(type(instance), *key_values_of(instance))
        identity = ItemKey.of(instance.Meta.table_name, key)
        item = self._known(identity)
        if is_write and identity in self.locks.shared:
            raise shared_item(instance)
        if item is None:
            versions.check_current(instance, TransactWriteError)
            item = self._add(instance, identity, key, UNREAD)
        elif instance is not item.instances.present:
            versions.note(instance, self.participation)
        if is_write:
            item.instances.take(instance, item.before, item.plan, replaces=replaces)
        else:
            item.instances.compare(instance, item.before)
        return item

    def _guard(self, model: type[GuardedMixin], hash_key: Image) -> TransactionItem:
        """Return the guard, whose version every transaction increments that creates or deletes items of a hash key."""
        values = [next(iter(stored.items())) for stored in hash_key.values()]
        table = self.table(model)
        longest = own_keys_of(table).longest_name
        return self.counter(table, guard_name(model.Meta.table_name, *values, longest=longest))

    def rely_on_guard(self, model: type[GuardedMixin], hash_key: Any = None) -> None:
        """Settle the items that the guard of a hash key names, and rely on its version if the isolation does."""
        attribute, stored = hash_attribute_of(model), dict[str, Any]()
        if not is_guarding_table(model):
            stored = {attribute.attr_name: {attribute.attr_type: attribute.serialize(hash_key)}}
        guard = self._guard(model, stored)
        if self.reader.checks_reads:
            guard.rely()
        self.guards.settle(model, stored, guard)

    def count_in_guard(self, item: TransactionItem) -> None:
        hash_key = {} if is_guarding_table(item.model) else dict([next(iter(item.key.items()))])
        self.guards.count(item, hash_key, self._guard(item.model, hash_key))

    def counter(self, model: type[GuardedMixin], name: str) -> TransactionItem:
        """Return a guard; refuse a row that another program has stored under its name."""
        [item] = self.find_all(model, [(name, None)])
        if item.stored and versions.known_of(model, item.stored).version is None:
            raise foreign_row_error(
                f"writes cannot be counted in the row {name!r}", model.Meta.table_name, "no version"
            )
        return item

    def take_values(self, *, is_final: bool = True) -> None:
        """Add the rows of the unique values that the writes change, before the commit.

        If that is final, refuse a value of which the row was read and says that another item has it.
        """
        unique_rows = [its for item in list(self.by_key.values()) if (its := _unique_rows_of(item)) is not None]
        if not unique_rows:
            return
        rows = merged(unique_rows)
        used = [item for item in self.by_key.values() if item.plan.write is not None or item.is_read]
        if len(used) + len(rows) > dynamodb.MOST_ACTIONS:  # only rows that were read can have an intent
            for table in {row.table for row in rows}:
                self.find_all(table, [(row.name, None) for row in rows if row.table is table])
        for row in rows:
            key = key_of(row.table, row.name, None)
            identity = ItemKey.of(row.table.Meta.table_name, key)
            item = self._known(identity) or self._add(row.table(row.name), identity, key, UNREAD)
            self._unique_rows.append(item)
            row.fill(item.instance)
            is_taken = bool(item.stored) and unique_values.holder_of(item.stored) not in row.holders()
            if row.to is not None:
                item.save(row.condition(), checks=not isinstance(item.base, Unread))
                if is_taken and is_final:
                    raise not_unique(item.plan.write, item.stored, TransactWriteError, None)
            if row.to is not None or is_taken:
                continue
            item.delete(row.condition(), checks=bool(item.stored))
            if item.plan.write is not None:
                item.plan = item.plan._replace(write=item.plan.write.but(is_optional=True))

    def relied_on(self) -> list[TransactionItem]:
        """Return the items that must be the ones that are known, but for the rows of unique values."""
        others = [item for item in self.by_key.values() if item not in self._unique_rows]
        return [item for item in others if item.plan.write is None or item.plan.is_checked]

    def forget_values(self) -> None:
        """Take back `take_values`: what the items will be may change until the commit."""
        for item in self._unique_rows:
            item.reset()
            if item.is_unused:
                del self.by_key[item.identity]
        self._unique_rows.clear()

    def undo_from(self, start: int) -> None:
        """Restore the moved instances, back to the first `start` moves."""
        while len(self.undo) > start:
            self.undo.pop()()

    def warn_of_unsaved(self) -> None:
        """Warn of each instance that was read and changed, and that no call has said to save."""
        for item in self.by_key.values():
            names = item.instances.changed() if item.plan.write is None and item.stored else []
            if names:
                warnings.warn(
                    f"{label_of(item.model, key_values_of(item.instance))} was changed in a transaction "
                    f"({', '.join(names)}) and not saved: the commit does not store that. Call tx.save(item), or "
                    f"change a copy of the instance.",
                    UserWarning,
                    stacklevel=2,
                )

    def note_locks(self) -> None:
        """Let all planned writes use the locks that were acquired since."""
        for item in self.by_key.values() if self.locks.held else ():
            item.note_lock()

    def table(self, model: type[GuardedMixin] | None = None) -> type[TransactionTable]:
        """Return the table of records: the caller's, or the first that a model names."""
        found = self.table_if_known(model)
        if found is None:
            raise ConfigurationError(
                "no TransactionTable is known: pass one to transaction(), or name it in Meta.transaction_table."
            )
        return found

    def table_if_known(self, model: type[GuardedMixin] | None = None) -> type[TransactionTable] | None:
        """Return the same; None if there is no such table."""
        if self._table is not None:
            return self._table
        models = [type(item.instances.present) for item in self.by_key.values()]
        for each in dict.fromkeys(models if model is None else [model, *models]):
            found: type[TransactionTable] | None = getattr(each.Meta, "transaction_table", None)
            if found is not None:
                return found
        return None


def identity_of(instance: GuardedMixin) -> ItemKey:
    return ItemKey.of(instance.Meta.table_name, key_of(type(instance), *key_values_of(instance)))


def _unique_rows_of(item: TransactionItem) -> UniqueRows | None:
    """Return what the write of an item does to the rows of its unique values; read it if its values are not known."""
    if item.plan.write is None or item.plan.write.unique_rows is None:
        return None
    known, old = versions.values_of(item.instance)
    if isinstance(item.base, Unread) and not item.is_absent and not (known.write_id and known == item.before):
        item.load()
    after = item.shown_image() if isinstance(item.plan.after, Unread) else item.plan.after  # which may read the item
    is_unread = isinstance(item.base, Unread) and not item.is_absent
    if not is_unread:
        old = unique_values.watched(item.model, item.stored)
    rows = UniqueRows(item.instance, TransactWriteError, old, unique_values.watched(item.model, after))
    item.plan = item.plan._replace(expected=rows.condition() if is_unread else None)
    return rows


def _is_shown(item: TransactionItem, model: type[GuardedMixin], condition: Condition | None) -> bool:
    """Tell whether a query of that model shows an item, in whichever class the transaction has it."""
    image = item.shown_image()
    return image is not None and is_of(model, image) and effects.holds(image, condition)


def _pages(
    model: type[GuardedMixin], hash_key: Any, range_key_condition: Condition | None, options: dict[str, Any]
) -> Iterator[list[Image]]:
    """Query without the filters of models: a placeholder, which has no class yet, may be a committed item."""
    limit, page_size = options.get("limit"), options.get("page_size")
    return stored_pages(
        model,
        hash_key,
        grows=limit is not None and page_size is None,
        rate_limit=options.get("rate_limit"),
        limit=page_size if page_size is not None or limit is None else max(1, limit),
        range_key_condition=range_key_condition,
        scan_index_forward=options.get("scan_index_forward"),
    )
