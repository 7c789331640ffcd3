"""All items of one transaction: each is read once, locked on request, and has one instance.

A guard may show a transaction whose items no query finds yet: see `batch_requests.settle`. Each transaction names
its items in a separate attribute. A transaction that has settled the items that earlier transactions named can
therefore remove their attributes without a condition: a removed attribute never comes back.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import brief, guard_name
from pynamo_locking._core.values import copy_of
from pynamo_locking._io import runtime
from pynamo_locking._io.batch_requests import settle
from pynamo_locking._io.model_doors import lock_target_by_name, own_keys_of
from pynamo_locking._io.responses import foreign_row_error
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place, Stored, StoredRow
from pynamo_locking._items import conditions, effects, unique_values, versions
from pynamo_locking._items.expiry import unexpired
from pynamo_locking._items.keys import ItemKey, key_attributes, key_of, label_of
from pynamo_locking._locks.held_lock import holds_nothing
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._locks.locked_all import in_order
from pynamo_locking._models.isolation import stored_pages, stored_rows
from pynamo_locking._models.mixins import LockableMixin
from pynamo_locking._models.writes import Participation
from pynamo_locking._pynamodb import connection_of, hash_attribute_of, key_values_of, range_name_of
from pynamo_locking._transactions.item import UNREAD, TransactionItem, Unread
from pynamo_locking._transactions.options import check_model, is_guarding, is_guarding_table
from pynamo_locking._writes.unique_rows import UniqueRows, merged, not_unique
from pynamo_locking.exceptions import ItemNotFound, LockLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.isolation import IsolatedReader
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.transaction_table import TransactionTable


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
        """Tell whether one transaction may name so much."""
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


# The items of one transaction: each is read once, locked on request, and has one instance.


@dataclass(eq=False)
class TransactionItems:
    """The items of one transaction, and the locks that it holds until its end.

    It waits for locks until `_deadline`, by the monotonic clock. `_relies_on_reads` says whether the commit checks
    every item that was read. The caller may have named the `_table` of the records.
    """

    _id: str
    _table: type[TransactionTable] | None
    reader: IsolatedReader
    _deadline: Deadline
    _relies_on_reads: bool
    by_key: dict[ItemKey, TransactionItem] = field(default_factory=dict, init=False)
    locks: list[Lock[Any]] = field(default_factory=list, init=False)
    gone: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # what a `TransactWrite` deletes beside it
    undo: list[Callable[[], None]] = field(default_factory=list, init=False)  # of what a savepoint goes back on
    refused: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # as a refusal of the last attempt has them
    _checked: set[ItemKey] = field(default_factory=set, init=False)  # under every isolation
    _shared: set[ItemKey] = field(default_factory=set, init=False)
    _counted: dict[Any, Counted] = field(default_factory=dict, init=False)
    _settled: set[tuple[Any, str]] = field(default_factory=set, init=False)
    _claiming: list[TransactionItem] = field(default_factory=list, init=False)  # the rows of unique values

    def __post_init__(self) -> None:
        self.participation: Participation = Participation(self)

    def read_all(
        self, model: type[GuardedMixin], values: Sequence[tuple[Any, Any]], locking: Locking | None = None
    ) -> list[TransactionItem]:
        """Return the items of some keys, given as the values of hash key and range key, reading each the first time.

        The transaction relies on them from now on.
        """
        members = self._find(model, values, locking)
        for member in members:
            if self._relies_on_reads or member.identity in self._checked:
                member.rely()
        return members

    def _find(
        self, model: type[GuardedMixin], values: Sequence[tuple[Any, Any]], locking: Locking | None = None
    ) -> list[TransactionItem]:
        check_model(model)
        keys = [key_of(model, *each) for each in values]
        if locking is not None:
            for lock in self.locks_for(model, values, locking):
                self.hold_if_there(lock)
        known = [self._known(model, key) for key in keys]
        for member in known if self.locks else ():
            if member is not None:
                member.note_lock()
        table = connection_of(model).table_name
        identities = [ItemKey.of(table, key) for key in keys]
        new = {
            identity: (key, each)
            for identity, key, each, member in zip(identities, keys, values, known, strict=True)
            if member is None
        }
        images = self._images(model, {identity: key for identity, (key, _) in new.items()})
        for (key, each), stored in zip(new.values(), images, strict=True):
            image = unexpired(model, stored)
            item = model(*each) if image is None else model.from_raw_data(copy_of(image))
            self._add(item, key, image)
        return [self.by_key[identity] for identity in identities]

    def _images(self, model: type[GuardedMixin], keys: Mapping[ItemKey, Image]) -> Iterator[Image | None]:
        """Yield the committed items of some keys, and read those that came neither with a lock nor with a refusal."""
        if self.refused and (self.locks or not holds_nothing()):
            self.refused.clear()  # what is read under a lock is read after the grant
        self._checked.update(keys.keys() & self.refused.keys())  # they may be older than this attempt
        known = {**self.refused, **self._granted()}
        read = iter(self.reader.stored(model, [key for identity, key in keys.items() if identity not in known]))
        found = [(key, known[identity] if identity in known else next(read)) for identity, key in keys.items()]
        return self.reader.committed(model, found, self.reader.resolver())

    def _granted(self) -> dict[ItemKey, Image]:
        """Return the items that came with the grants of their locks, and that were not written since."""
        found: dict[ItemKey, Image] = {}
        for handle in map(handle_of, self.locks):
            row = handle.target.row
            if handle.depth and handle.is_outermost and not row.may_create:
                held = handle.held_entry()
                image = held.image  # a write in another thread forgets it
                if image is not None and held.remaining:
                    found[ItemKey.of(row.table, row.key)] = image
        return found

    def _add(self, item: GuardedMixin, key: Image, base: Image | Unread | None) -> TransactionItem:
        member = TransactionItem(item, key, base, self.reader, self._id)
        self.by_key[member.identity] = member
        versions.note(item, self.participation)
        return member

    def _known(self, model: type[GuardedMixin], key: Image) -> TransactionItem | None:
        member = self.by_key.get(ItemKey.of(connection_of(model).table_name, key))
        return None if member is None or member.is_unused else member

    def written(self, item: GuardedMixin) -> TransactionItem | None:
        """Return the member of an instance, if the transaction writes it."""
        member = self._known(type(item), key_of(type(item), *key_values_of(item)))
        return None if member is None or member.write is None else member

    def found(self, model: type[GuardedMixin], pages: Iterable[list[Image]]) -> Iterator[TransactionItem]:
        """Yield the items that a consistent query has found; the transaction relies on each that was yielded."""
        names = [attribute.attr_name for attribute in key_attributes(model)]
        resolver = self.reader.resolver()
        for page in pages:
            keys = [{name: image[name] for name in names} for image in page]
            known = [self._known(model, key) for key in keys]
            new = [(key, image) for key, image, member in zip(keys, page, known, strict=True) if member is None]
            committed = self.reader.committed(model, new, resolver)
            for key, image, old in zip(keys, page, known, strict=True):
                current = None if old is not None else unexpired(model, next(committed))
                member = old or self._add(model.from_raw_data(copy_of(current or image)), key, current)
                if self._relies_on_reads:
                    member.rely()
                yield member

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
        members = list[TransactionItem]()
        shown = 0
        for member in self.found(model, _pages(model, hash_key, range_key_condition, options)):
            members.append(member)
            shown += _is_shown(member, model, filter_condition)
            if shown == limit:  # further rows come after the result, and the transaction does not rely on them
                break
        key_condition = conditions.both(hash_attribute_of(model) == hash_key, range_key_condition)
        items = self._shown(model, members, key_condition, filter_condition)
        if range_name_of(model) is not None:
            items.sort(key=lambda item: key_values_of(item)[1], reverse=backwards)
        return items[:limit]

    def scan(self, model: type[GuardedMixin], filter_condition: Condition | None, at_most: int) -> list[Any]:
        """Return the items of a table as the transaction sees them, in no order."""
        effects.check(filter_condition)
        if is_guarding_table(model):
            self.rely_on_guard(model)
        members = list(self.found(model, [stored_rows(model, at_most)]))
        return self._shown(model, members, None, filter_condition)

    def _shown(
        self,
        model: type[GuardedMixin],
        found: list[TransactionItem],
        key_condition: Condition | None,
        filter_condition: Condition | None,
    ) -> list[Any]:
        """Return the items among what was found and what the transaction has created."""
        known = {id(member) for member in found}
        created = [
            member
            for member in self.by_key.values()
            if id(member) not in known and issubclass(member.model, model) and member.shows(key_condition)
        ]
        return [member.item for member in (*found, *created) if _is_shown(member, model, filter_condition)]

    def of(self, item: GuardedMixin, *, is_write: bool, replaces: bool) -> TransactionItem:
        """Return the member of an instance that the caller passes to write or check it."""
        check_model(type(item))
        key = key_of(type(item), *key_values_of(item))
        member = self._known(type(item), key)
        if is_write and self._shared and ItemKey.of(connection_of(item).table_name, key) in self._shared:
            raise shared_item(item)
        if member is None:
            versions.check_current(item, TransactWriteError)
            member = self._add(item, key, UNREAD)
        elif item is not member.item:
            versions.note(item, self.participation)
        if is_write:
            member.take(item, replaces=replaces)
        else:
            member.compare(item)
        return member

    def _guard(self, model: type[GuardedMixin], hash_key: Image) -> TransactionItem:
        """Return the guard, whose version every transaction increments that creates or deletes items of a hash key."""
        values = [next(iter(stored.items())) for stored in hash_key.values()]
        table = self.table(model)
        longest = own_keys_of(table).longest_name
        return self.counter(table, guard_name(model.Meta.table_name, *values, longest=longest))

    def counter(self, model: type[GuardedMixin], name: str) -> TransactionItem:
        """Return a guard; refuse a row that another program has stored under its name."""
        [member] = self._find(model, [(name, None)])
        if member.stored and versions.known_of(model, member.stored).version is None:
            raise foreign_row_error(
                f"writes cannot be counted in the row {name!r}", model.Meta.table_name, "no version"
            )
        return member

    def rely_on_guard(self, model: type[GuardedMixin], hash_key: Any = None) -> None:
        """Settle the items that the guard of a hash key names, and rely on its version if the isolation does."""
        attribute, stored = hash_attribute_of(model), dict[str, Any]()
        if not is_guarding_table(model):
            stored = {attribute.attr_name: {attribute.attr_type: attribute.serialize(hash_key)}}
        guard = self._guard(model, stored)
        if self._relies_on_reads:
            guard.rely()
        self._settle(model, stored, guard)

    def count_in_guard(self, member: TransactionItem) -> None:
        """Increment the guard, so that transactions that queried the hash key notice the created or deleted item."""
        hash_key = {} if is_guarding_table(member.model) else dict([next(iter(member.key.items()))])
        guard = self._guard(member.model, hash_key)
        guard.touch(_is_counter(guard) if guard.write is None else None, checks=False, creates=True)
        self._counted.setdefault(guard.identity, Counted(member.model, hash_key)).keys[member.identity] = member.key

    def take_values(self, *, is_final: bool = True) -> None:
        """Add the rows of the unique values that the writes change, before the commit.

        If that is final, refuse a value of which the row was read and says that another item has it.
        """
        claims = [claim for member in list(self.by_key.values()) if (claim := _claims_of(member)) is not None]
        rows = merged(claims)
        used = sum(member.write is not None or member.is_read for member in self.by_key.values())
        if used + len(rows) > dynamodb.MOST_ACTIONS:  # only rows that were read can have an intent
            for table in {row.table for row in rows}:
                self._find(table, [(row.name, None) for row in rows if row.table is table])
        for row in rows:
            key = key_of(row.table, row.name, None)
            member = self._known(row.table, key) or self._add(row.table(row.name), key, UNREAD)
            self._claiming.append(member)
            row.fill(member.item)
            is_taken = bool(member.stored) and unique_values.holder_of(member.stored) not in row.holders()
            if row.to is not None:
                member.save(row.condition(), checks=not isinstance(member.base, Unread))
                if is_taken and is_final:
                    raise not_unique(member.write, member.stored, TransactWriteError, None)
            if row.to is not None or is_taken:
                continue
            member.delete(row.condition(), checks=bool(member.stored))
            member.make_optional()

    def relied_on(self) -> list[TransactionItem]:
        """Return the items that must be the ones that are known, but for the rows of unique values."""
        own = [member for member in self.by_key.values() if member not in self._claiming]
        return [member for member in own if member.write is None or member.is_checked]

    def forget_values(self) -> None:
        """Take back `take_values`: what the items will be may change until the commit."""
        for member in self._claiming:
            member.reset()
            if member.is_unused:
                del self.by_key[member.identity]
        self._claiming.clear()

    def name_in_guards(self, direct: Callable[[], Collection[TransactionItem]]) -> None:
        """Name the created and deleted items in their guards, before the commit.

        Args:
            direct: returns the items that the deciding transaction writes itself. A query sees the intents of all other
                items, so the guard names these only if there is room; it must have room for the direct ones.
        """
        chosen: set[Any] | None = None
        for identity, counted in self._counted.items():
            guard = self.by_key.get(identity)
            if guard is None or guard.write is None:  # a savepoint rolled it back
                continue
            names = counted.names(None)
            if not counted.has_room(names):
                chosen = chosen or {member.identity for member in direct()}
                names = counted.names(chosen)
            if not counted.has_room(names):
                raise too_many()
            actions: list[Action] = [Place(_NAMED + self._id).set(Stored(names))]
            if is_full(guard.stored):
                self._settle(counted.model, counted.hash_key, guard)
                actions += [Place(name).remove() for name in _attributes(guard.stored)]
            guard.update(actions, None, checks=False)
        if chosen is not None and not {member.identity for member in direct()} <= chosen:
            raise too_many()  # the size of the names has changed which items are direct

    def _settle(self, model: type[GuardedMixin], hash_key: Image, guard: TransactionItem) -> None:
        """Settle the items that a guard named when it was read; the commit checks that it still does."""
        place = guard.identity
        new = {name: keys for name, keys in named_in(guard).items() if (place, name) not in self._settled}
        settle(model, [key | hash_key for keys in new.values() for key in keys])
        self._settled |= {(place, name) for name in new}

    def undo_from(self, start: int) -> None:
        """Restore the moved instances, back to the first `start` moves."""
        while len(self.undo) > start:
            self.undo.pop()()

    @property
    def asked_s(self) -> float:
        """The `wait` of the transaction, for errors."""
        return self._deadline.asked_s

    def left(self) -> float:
        """Return for how many seconds to wait for a lock."""
        return max(0.0, self._deadline.at - runtime.current.monotonic())

    def locks_for(
        self, model: type[GuardedMixin], values: Iterable[tuple[Any, Any]], locking: Locking
    ) -> Iterator[Lock[Any]]:
        """Yield the locks that the transaction has to acquire for some items, in one canonical order.

        The caller acquires each before it asks for the next one. An item that does not exist has no lock in it:
        then that of its name follows, and the item's again, which another process may have created meanwhile.
        """
        if not issubclass(model, LockableMixin):
            raise ConfigurationError(f"{model.__name__} has no lock for {locking}: derive it from LockableModel.")
        table = connection_of(model).table_name
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
        member = self.by_key.get(identity)
        if member is not None and member.write is not None:
            raise shared_item(member.item)
        self._shared.add(identity)

    def _holds(self, lock: Lock[Any] | None) -> bool:
        if lock is None:
            return False
        wanted, handles = handle_of(lock), map(handle_of, self.locks)
        same = [each for each in handles if each.target.row.identity == wanted.target.row.identity]
        return any(each.options.lock_mode.covers(wanted.options.lock_mode) for each in same)

    def hold_if_there(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Hold the lock of an item. If there is none, the read finds it absent, and the commit checks that."""
        with suppress(ItemNotFound):
            self.hold(lock, share=share)

    def hold(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Acquire a lock, waiting for a share of what is left of `wait`; hold it until the end of the transaction."""
        handle_of(lock).begin_block(share * self.left(), share * self.asked_s)
        self.locks.append(lock)

    def give_back(self) -> None:
        """Release what is held after the end of the transaction, whose outcome no longer depends on it."""
        with ExitStack() as last_first:
            for lock in self.locks:
                last_first.callback(_give_back, lock)

    def warn_of_unsaved(self) -> None:
        """Warn of each instance that was read and changed, and that no call has said to save."""
        for member in self.by_key.values():
            names = member.unsaved()
            if names:
                warnings.warn(
                    f"{label_of(member.model, key_values_of(member.item))} was changed in a transaction "
                    f"({', '.join(names)}) and not saved: the commit does not store that. Call tx.save(item), or "
                    f"change a copy of the instance.",
                    UserWarning,
                    stacklevel=2,
                )

    def note_locks(self) -> None:
        """Let all planned writes use the locks that were acquired since."""
        for member in self.by_key.values() if self.locks else ():
            member.note_lock()

    def table(self, model: type[GuardedMixin] | None = None) -> type[TransactionTable]:
        """Return the table of records: the caller's, or the first that a model names."""
        models = [*([] if model is None else [model]), *(member.model for member in self.by_key.values())]
        candidates = [self._table, *(getattr(each.Meta, "transaction_table", None) for each in models)]
        found = next((table for table in candidates if table is not None), None)
        if found is None:
            raise ConfigurationError(
                "no TransactionTable is known: pass one to transaction(), or name it in Meta.transaction_table."
            )
        return found


def _claims_of(member: TransactionItem) -> UniqueRows | None:
    """Return what the write of an item does to the rows of its unique values; read it if its values are not known."""
    if member.write is None or member.write.claims is None:
        return None
    known, old = versions.values_of(member.item)
    if isinstance(member.base, Unread) and not member.is_absent and not (known.write_id and known == member.before):
        member.load()
    after = member.shown_image() if isinstance(member.after, Unread) else member.after  # which may read the item
    is_unread = isinstance(member.base, Unread) and not member.is_absent
    if not is_unread:
        old = unique_values.watched(member.model, member.stored)
    claims = UniqueRows(member.item, TransactWriteError, old, unique_values.watched(member.model, after))
    member.expected = claims.condition() if is_unread else None
    return claims


def _is_counter(member: TransactionItem) -> Condition:
    """Return the condition that a guard has a version or is absent: another program may have stored a row since."""
    version = versions.shape_of(member.model).version
    assert version is not None  # noqa: S101 - it counts
    condition: Condition = Place(next(iter(member.key))).does_not_exist() | version.exists()
    return condition


def _is_shown(member: TransactionItem, model: type[GuardedMixin], condition: Condition | None) -> bool:
    """Tell whether a query of that model shows an item."""
    return issubclass(member.model, model) and member.shown_image() is not None and member.shows(condition)


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
