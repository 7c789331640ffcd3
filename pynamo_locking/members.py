"""The items of one transaction: read once, locked if asked for, one instance each."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path

from pynamo_locking._core.naming import guard_name
from pynamo_locking._io import runtime, versions
from pynamo_locking._io.denials import foreign
from pynamo_locking._io.expiry import is_expired
from pynamo_locking._io.guard_names import Counted, forgetting, has_room, is_full, named_in, naming, too_many
from pynamo_locking._io.rows import key_of
from pynamo_locking._io.together import settle
from pynamo_locking._io.unit import UNREAD, Entry
from pynamo_locking.exceptions import ConfigurationError, ItemNotFound, LockLost
from pynamo_locking.models import LockableMixin
from pynamo_locking.terms import check_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._io.reading import Reader
    from pynamo_locking._io.requests import Image
    from pynamo_locking.guarded import GuardedMixin
    from pynamo_locking.locks import Lock
    from pynamo_locking.transaction_table import TransactionTable

logger: logging.Logger = logging.getLogger("pynamo_locking")


class Members:
    """What a transaction has to do with which items.

    Args:
        transaction_id: of the transaction.
        table: of its headers, if the caller has named one.
        reader: reads items.
        deadline: until when to wait for locks, by the monotonic clock.
        relies_on_reads: whether everything that is read has to be so still at the commit.

    Attributes:
        entries: the items, by table and key.
        locks: those that are held until the end.
        reader: reads items.
    """

    def __init__(
        self,
        transaction_id: str,
        table: type[TransactionTable] | None,
        reader: Reader,
        deadline: float,
        *,
        relies_on_reads: bool,
    ) -> None:
        self.entries: dict[Any, Entry] = {}
        self.locks: list[Lock[Any]] = []
        self._id = transaction_id
        self._table = table
        self.reader = reader
        self._deadline = deadline
        self._relies_on_reads = relies_on_reads
        self._counted: dict[Any, Counted] = {}
        self._settled = set[tuple[Any, str]]()

    def read(self, model: type[Any], hash_key: Any, range_key: Any = None, *, for_update: bool = False) -> Entry:
        """Return an item that the transaction from now on relies on, reading it if it has not."""
        entry = self._find(model, hash_key, range_key, for_update=for_update)
        if self._relies_on_reads:
            entry.rely()
        return entry

    def _find(self, model: type[Any], hash_key: Any, range_key: Any = None, *, for_update: bool = False) -> Entry:
        check_model(model)
        key = key_of(model, hash_key, range_key)
        identity = _identity(model, key)
        if for_update:
            self._lock(model, hash_key, range_key)
        entry = self._entry(identity)
        if entry is not None and for_update:
            entry.note_lock()
        if entry is None:
            image = self._image(model, key)
            item = model(hash_key, range_key) if image is None else model.from_raw_data(copy.deepcopy(image))
            entry = self.entries[identity] = Entry(item, key, image, self._read_again, self._id)
        return entry

    def _entry(self, identity: Any) -> Entry | None:
        entry = self.entries.get(identity)
        return None if entry is None or entry.is_unused else entry

    def found(self, model: type[Any], image: Image) -> Entry:
        """Return an item that a consistent query has found, and that the transaction from now on relies on."""
        names = [
            model.get_attributes()[str(name)].attr_name for name in (model._hash_keyname, model._range_keyname) if name
        ]
        key = {name: image[name] for name in names}
        identity, row = _identity(model, key), model._row_of_key(key)
        entry = self._entry(identity)
        if entry is None:
            is_marked = row is not None and row.state(image).mark is not None
            current = self._image(model, key) if is_marked else (None if is_expired(model, image) else image)
            item = model.from_raw_data(copy.deepcopy(current or image))
            entry = self.entries[identity] = Entry(item, key, current, self._read_again, self._id)
        if self._relies_on_reads:
            entry.rely()
        return entry

    def of(self, item: GuardedMixin, *, is_write: bool, replaces: bool) -> Entry:
        """Return what the transaction knows of an instance that somebody hands in, to write it or to check it."""
        check_model(type(item))
        key = key_of(type(item), *item._key_values())
        identity = _identity(type(item), key)
        entry = self._entry(identity)
        if entry is None:
            versions.check_current(item, TransactWriteError)
            entry = self.entries[identity] = Entry(item, key, UNREAD, self._read_again, self._id)
        if is_write:
            entry.take(item, replaces=replaces)
        else:
            entry.compare(item)
        return entry

    def guard(self, model: type[GuardedMixin], hash_key: Any) -> Entry:
        """Return the row that counts who creates and deletes items of a hash key."""
        [stored] = _hash_key(model, hash_key).values()
        return self.counter(self.table(model), guard_name(model.Meta.table_name, next(iter(stored.items()))))

    def counter(self, model: type[Any], name: str) -> Entry:
        """Return a row of ours that counts who writes under a hash key.

        Raises:
            ConfigurationError: another program has stored what is there.
        """
        entry = self._find(model, name)
        if isinstance(entry.base, dict) and versions.known_of(model, entry.base).version is None:
            raise foreign(f"writes cannot be counted in the row {name!r}", model.Meta.table_name, "no version")
        return entry

    def rely_on_guard(self, model: type[GuardedMixin], hash_key: Any) -> None:
        """Rely on nobody creating or deleting items of a hash key, so that it can be queried.

        DynamoDB applies a native transaction item by item: the guard may show one already whose items a query does
        not. So those that are named in the guard are settled first.
        """
        guard = self.guard(model, hash_key)
        guard.rely()
        self._settle(model, _hash_key(model, hash_key), guard)

    def count_in_guard(self, entry: Entry) -> None:
        """Tell those who query the hash key of an item that it is created or deleted."""
        hash_key = getattr(entry.item, str(entry.model._hash_keyname))
        guard = self.guard(entry.model, hash_key)
        guard.touch(_is_counter(guard) if guard.write is None else None, checks=False, creates=True)
        counted = Counted(entry.model, _hash_key(entry.model, hash_key))
        keys = self._counted.setdefault(_identity(guard.model, guard.key), counted).keys
        keys[_identity(entry.model, entry.key)] = entry.key

    def name_in_guards(self, direct: Callable[[], Collection[Entry]]) -> None:
        """Name in the guards what was counted there; before the commit.

        Args:
            direct: which items the deciding transaction writes itself. The others show their marks to whoever queries,
                so they are named only where there is room.

        Raises:
            ConfigurationError: there is no room for the keys of the direct ones.
        """
        chosen: set[Any] | None = None
        for identity, counted in self._counted.items():
            guard = self.entries.get(identity)
            if guard is None or guard.write is None:  # it was all taken back
                continue
            names = counted.names(None)
            if not has_room(names):
                chosen = chosen or _identities(direct())
                names = counted.names(chosen)
            if is_full(guard.base):
                self._settle(counted.model, counted.hash_key, guard)
                guard.update([naming(self._id, names), *forgetting(guard.base)], None, checks=False)
            else:
                guard.update([naming(self._id, names)], None, checks=False)
        if chosen is not None and not _identities(direct()) <= chosen:
            raise too_many()  # the names themselves have changed what goes where

    def _settle(self, model: type[GuardedMixin], hash_key: Image, guard: Entry) -> None:
        """Settle what a guard names, as it was when it was read, which is checked."""
        place = _identity(guard.model, guard.key)
        new = {name: keys for name, keys in named_in(guard).items() if (place, name) not in self._settled}
        settle(model, [key | hash_key for keys in new.values() for key in keys])
        self._settled |= {(place, name) for name in new}

    def _image(self, model: type[Any], key: Image) -> Image | None:
        image = self.reader.read(model, key)
        return None if image is None or is_expired(model, image) else image

    def _read_again(self, entry: Entry) -> Image | None:
        return self._image(entry.model, entry.key)

    def _lock(self, model: type[Any], hash_key: Any, range_key: Any) -> None:
        if not issubclass(model, LockableMixin):
            raise ConfigurationError(f"{model.__name__} has no lock for for_update=True: derive it from LockableModel.")
        lock = model.locked(hash_key, range_key)
        if any(held._target.row.identity == lock._target.row.identity for held in self.locks):
            return
        try:
            lock._enter(max(0.0, self._deadline - runtime.current.monotonic()))
        except ItemNotFound:
            return  # that it is absent will be found, and checked at the commit
        self.locks.append(lock)

    def table(self, model: type[Any] | None = None) -> type[TransactionTable]:
        """Return the table of headers: the caller's, or that of a model.

        Raises:
            ConfigurationError: none is known.
        """
        candidates = [self._table, *(getattr(each.Meta, "transaction_table", None) for each in self._models(model))]
        found = next((table for table in candidates if table is not None), None)
        if found is None:
            raise ConfigurationError(
                "no TransactionTable is known: pass one to transaction(), or name it in Meta.transaction_table."
            )
        return found

    def _models(self, model: type[Any] | None) -> Iterator[type[Any]]:
        if model is not None:
            yield model
        for entry in self.entries.values():
            yield entry.model


def _is_counter(entry: Entry) -> Condition:
    """Return the condition that a row counts, or is not there: another program may have stored it since it was read."""
    version = versions.shape_of(entry.model).version
    assert version is not None  # noqa: S101 - it counts
    condition: Condition = Path([next(iter(entry.key))]).does_not_exist() | version.exists()
    return condition


def give_back(lock: Lock[Any]) -> None:
    """Release a lock at the end of a transaction, whose outcome does not depend on it any more."""
    try:
        lock.release()
    except LockLost as error:
        logger.warning("the lock %s was lost before its transaction gave it back: %s", lock._target.row.label, error)


def _hash_key(model: type[Any], hash_key: Any) -> Image:
    attribute = model._hash_key_attribute()
    return {attribute.attr_name: {attribute.attr_type: attribute.serialize(hash_key)}}


def _identities(entries: Collection[Entry]) -> set[Any]:
    return {_identity(entry.model, entry.key) for entry in entries}


def _identity(model: type[Any], key: Image) -> Any:
    return (model._get_connection().table_name, *sorted((name, *value.items()) for name, value in key.items()))
