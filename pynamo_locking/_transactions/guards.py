"""The guards of queries: of each hash key a row whose version every transaction increments that creates or deletes.

A guard may show a transaction whose items no query finds yet: see `batch_requests.settle`. Each transaction names
its items in a separate attribute. A transaction that has settled the items that earlier transactions named can
therefore remove their attributes without a condition: a removed attribute never comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import brief
from pynamo_locking._io import batch_requests
from pynamo_locking._io.stored_rows import Place, Stored, StoredRow
from pynamo_locking._items import effects, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.keys import ItemKey
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem


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
