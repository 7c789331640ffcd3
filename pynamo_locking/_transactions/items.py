"""All items of one transaction: each is read once, locked on request, and has one instance."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import guard_name
from pynamo_locking._core.values import copy_of
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._io.responses import foreign_row_error
from pynamo_locking._items import conditions, effects, unique_values, versions
from pynamo_locking._items.expiry import unexpired
from pynamo_locking._items.keys import ItemKey, key_attributes, key_of, label_of
from pynamo_locking._locks.held_lock import holds_nothing
from pynamo_locking._locks.lock import handle_of
from pynamo_locking._models.isolation import stored_pages, stored_rows
from pynamo_locking._models.writes import Participation
from pynamo_locking._pynamodb import connection_of, hash_attribute_of, key_values_of, range_name_of
from pynamo_locking._transactions.guards import QueryGuards
from pynamo_locking._transactions.item import TransactionItem
from pynamo_locking._transactions.locks import HeldLocks, Locking, shared_item
from pynamo_locking._transactions.options import check_model, is_guarding, is_guarding_table
from pynamo_locking._transactions.plan import UNREAD, Unread
from pynamo_locking._writes.unique_rows import UniqueRows, merged, not_unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.isolation import IsolatedReader
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.transaction_table import TransactionTable


@dataclass(eq=False)
class TransactionItems:
    """The items of one transaction, and the locks that it holds until its end.

    It waits for locks until the deadline, by the monotonic clock. `_relies_on_reads` says whether the commit checks
    every item that was read. The caller may have named the `_table` of the records.
    """

    _id: str
    _table: type[TransactionTable] | None
    reader: IsolatedReader
    deadline: InitVar[Deadline]
    _relies_on_reads: bool
    by_key: dict[ItemKey, TransactionItem] = field(default_factory=dict, init=False)
    locks: HeldLocks = field(init=False)
    guards: QueryGuards = field(init=False)
    gone: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # what a `TransactWrite` deletes beside it
    undo: list[Callable[[], None]] = field(default_factory=list, init=False)  # of what a savepoint goes back on
    refused: dict[ItemKey, Image] = field(default_factory=dict, init=False)  # as a refusal of the last attempt has them
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
        items = self._find(model, values, locking)
        for item in items:
            if self._relies_on_reads or item.identity in self._checked:
                item.rely()
        return items

    def _find(
        self, model: type[GuardedMixin], values: Sequence[tuple[Any, Any]], locking: Locking | None = None
    ) -> list[TransactionItem]:
        table = connection_of(model).table_name
        keys = [key_of(model, *each) for each in values]
        identities = [ItemKey.of(table, key) for key in keys]
        if locking is not None:
            for lock in self.locks.missing(model, values, locking):
                self.locks.hold_if_there(lock)
        # Keys that are asked for twice are read once.
        new = {each: (key, value) for each, key, value in zip(identities, keys, values, strict=True)}
        for identity in identities:
            item = self._known(identity)
            if item is not None:
                new.pop(identity, None)
                if self.locks.held:
                    item.note_lock()
        images = self._images(model, {identity: key for identity, (key, _) in new.items()})
        for (identity, (key, each)), stored in zip(new.items(), images, strict=True):
            image = unexpired(model, stored)
            instance = model(*each) if image is None else model.from_raw_data(copy_of(image))
            self._add(instance, identity, key, image)
        return [self.by_key[identity] for identity in identities]

    def _images(self, model: type[GuardedMixin], keys: Mapping[ItemKey, Image]) -> Iterator[Image | None]:
        """Yield the committed items of some keys, and read those that came neither with a lock nor with a refusal."""
        if self.refused and (self.locks.held or not holds_nothing()):
            self.refused.clear()  # what is read under a lock is read after the grant
        self._checked.update(keys.keys() & self.refused.keys())  # they may be older than this attempt
        known = {**self.refused, **self._granted()}
        read = iter(self.reader.stored(model, [key for identity, key in keys.items() if identity not in known]))
        found = [(key, known[identity] if identity in known else next(read)) for identity, key in keys.items()]
        return self.reader.committed(model, found, self.reader.resolver())

    def _granted(self) -> dict[ItemKey, Image]:
        """Return the items that came with the grants of their locks, and that were not written since."""
        found: dict[ItemKey, Image] = {}
        for handle in map(handle_of, self.locks.held):
            row = handle.target.row
            if handle.depth and handle.is_outermost and not row.may_create:
                held = handle.held_entry()
                image = held.image  # a write in another thread forgets it
                if image is not None and held.remaining:
                    found[ItemKey.of(row.table, row.key)] = image
        return found

    def _add(
        self, instance: GuardedMixin, identity: ItemKey, key: Image, base: Image | Unread | None
    ) -> TransactionItem:
        item = self.by_key[identity] = TransactionItem(instance, identity, key, base, self.reader, self._id)
        versions.note(instance, self.participation)
        return item

    def _known(self, identity: ItemKey) -> TransactionItem | None:
        item = self.by_key.get(identity)
        return None if item is None or item.is_unused else item

    def written(self, instance: GuardedMixin) -> TransactionItem | None:
        """Return the item of an instance, if the transaction writes it."""
        item = self._known(identity_of(instance))
        return None if item is None or item.plan.write is None else item

    def found(self, model: type[GuardedMixin], pages: Iterable[list[Image]]) -> Iterator[TransactionItem]:
        """Yield the items that a consistent query has found; the transaction relies on each that was yielded."""
        table, names = connection_of(model).table_name, [attribute.attr_name for attribute in key_attributes(model)]
        resolver = self.reader.resolver()
        for page in pages:
            keys = [{name: image[name] for name in names} for image in page]
            identities = [ItemKey.of(table, key) for key in keys]
            known = [self._known(identity) for identity in identities]
            new = [(key, image) for key, image, item in zip(keys, page, known, strict=True) if item is None]
            committed = self.reader.committed(model, new, resolver)
            for identity, key, image, old in zip(identities, keys, page, known, strict=True):
                current = None if old is not None else unexpired(model, next(committed))
                item = old or self._add(model.from_raw_data(copy_of(current or image)), identity, key, current)
                if self._relies_on_reads:
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
            shown_items.sort(key=lambda each: key_values_of(each)[1], reverse=backwards)
        return shown_items[:limit]

    def scan(self, model: type[GuardedMixin], filter_condition: Condition | None, at_most: int) -> list[Any]:
        """Return the items of a table as the transaction sees them, in no order."""
        effects.check(filter_condition)
        if is_guarding_table(model):
            self.rely_on_guard(model)
        items = list(self.found(model, [stored_rows(model, at_most)]))
        return self._shown(model, items, None, filter_condition)

    def _shown(
        self,
        model: type[GuardedMixin],
        found: list[TransactionItem],
        key_condition: Condition | None,
        filter_condition: Condition | None,
    ) -> list[Any]:
        """Return the items among what was found and what the transaction has created."""
        known = {id(item) for item in found}
        created = [
            item
            for item in self.by_key.values()
            if id(item) not in known and issubclass(item.model, model) and item.shows(key_condition)
        ]
        return [item.instance for item in (*found, *created) if _is_shown(item, model, filter_condition)]

    def of(self, instance: GuardedMixin, *, is_write: bool, replaces: bool) -> TransactionItem:
        """Return the item of an instance that the caller passes to write or check it."""
        key = key_of(type(instance), *key_values_of(instance))
        identity = ItemKey.of(connection_of(instance).table_name, key)
        item = self._known(identity)
        if is_write and identity in self.locks.shared:
            raise shared_item(instance)
        if item is None:
            check_model(type(instance))
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
        if self._relies_on_reads:
            guard.rely()
        self.guards.settle(model, stored, guard)

    def count_in_guard(self, item: TransactionItem) -> None:
        """Count a created or deleted item in the guard of its hash key."""
        hash_key = {} if is_guarding_table(item.model) else dict([next(iter(item.key.items()))])
        self.guards.count(item, hash_key, self._guard(item.model, hash_key))

    def counter(self, model: type[GuardedMixin], name: str) -> TransactionItem:
        """Return a guard; refuse a row that another program has stored under its name."""
        [item] = self._find(model, [(name, None)])
        if item.stored and versions.known_of(model, item.stored).version is None:
            raise foreign_row_error(
                f"writes cannot be counted in the row {name!r}", model.Meta.table_name, "no version"
            )
        return item

    def take_values(self, *, is_final: bool = True) -> None:
        """Add the rows of the unique values that the writes change, before the commit.

        If that is final, refuse a value of which the row was read and says that another item has it.
        """
        rows = merged([its for item in list(self.by_key.values()) if (its := _unique_rows_of(item)) is not None])
        used = sum(item.plan.write is not None or item.is_read for item in self.by_key.values())
        if used + len(rows) > dynamodb.MOST_ACTIONS:  # only rows that were read can have an intent
            for table in {row.table for row in rows}:
                self._find(table, [(row.name, None) for row in rows if row.table is table])
        for row in rows:
            key = key_of(row.table, row.name, None)
            identity = ItemKey.of(connection_of(row.table).table_name, key)
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
            item.make_optional()

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
            names = item.unsaved()
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
    """Return the identity of the item that an instance shows."""
    return ItemKey.of(connection_of(instance).table_name, key_of(type(instance), *key_values_of(instance)))


def _unique_rows_of(item: TransactionItem) -> UniqueRows | None:
    """Return what the write of an item does to the rows of its unique values; read it if its values are not known."""
    if item.plan.write is None or item.plan.write.claims is None:
        return None
    known, old = versions.values_of(item.instance)
    if isinstance(item.base, Unread) and not item.is_absent and not (known.write_id and known == item.before):
        item.load()
    after = item.shown_image() if isinstance(item.plan.after, Unread) else item.plan.after  # which may read the item
    is_unread = isinstance(item.base, Unread) and not item.is_absent
    if not is_unread:
        old = unique_values.watched(item.model, item.stored)
    rows = UniqueRows(item.instance, TransactWriteError, old, unique_values.watched(item.model, after))
    item.expect(rows.condition() if is_unread else None)
    return rows


def _is_shown(item: TransactionItem, model: type[GuardedMixin], condition: Condition | None) -> bool:
    """Tell whether a query of that model shows an item."""
    return issubclass(item.model, model) and item.shown_image() is not None and item.shows(condition)


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
