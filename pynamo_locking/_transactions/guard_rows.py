"""The guard of a hash key names the items that transactions have created and deleted under it.

A guard may show a transaction whose items no query finds yet: see `transactional_reads.settle`. Each transaction names
its items in an attribute of its own. A transaction that has settled the items that earlier transactions named can
therefore remove their attributes without a condition: a removed attribute never comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.naming import plain
from pynamo_locking._io import flaws
from pynamo_locking._io.stored import Place, Stored
from pynamo_locking._items.images import size_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from pynamodb.expressions.update import Action

    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.writing import GuardedMixin
    from pynamo_locking._transactions.member import Member

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

    def names(self, chosen: Container[Any] | None) -> list[Image]:
        """Return the keys of these items without their hash key; of all items unless some are chosen."""
        keys = [key for identity, key in self.keys.items() if chosen is None or identity in chosen]
        return [{name: value for name, value in key.items() if name not in self.hash_key} for key in keys]


def named_in(guard: Member) -> dict[str, list[Image]]:
    """Return the item keys that transactions have named in a guard, by attribute; `CorruptRow` if it is broken."""
    what = f"the guard {plain(guard.key)} in {guard.table!r}"
    return flaws.read(_named, _attributes(guard.stored), what, table=guard.table, key=guard.key, advice=ADVICE)


def _named(stored: Mapping[str, Any]) -> dict[str, list[Image]]:
    return {name: [each["M"] for each in value["L"]] for name, value in stored.items()}


def _attributes(guard: Image) -> Image:
    return {name: value for name, value in guard.items() if name.startswith(_NAMED)}


def is_full(guard: Image) -> bool:
    """Tell whether a transaction must remove what earlier transactions have named."""
    others = _attributes(guard)
    return len(others) > _MOST_NAMED or (bool(others) and size_of(others) > _MOST_BYTES)


def has_room(names: Sequence[Image]) -> bool:
    """Tell whether one transaction may name so much."""
    return size_of({_NAMED: _stored(names)}) <= _MOST_BYTES


def _stored(names: Sequence[Image]) -> dict[str, Any]:
    return {"L": [{"M": dict(key)} for key in names]}


def naming(transaction_id: str, names: Sequence[Image]) -> Action:
    """Return the action by which a transaction names its items; `ConfigurationError` if there are too many."""
    if not has_room(names):
        raise too_many()
    action: Action = Place(_NAMED + transaction_id).set(Stored(_stored(names)))
    return action


def forgetting(guard: Image) -> list[Action]:
    """Return the actions that remove what earlier transactions have named, once it is settled."""
    return [Place(name).remove() for name in _attributes(guard)]


def too_many() -> ConfigurationError:
    """Return the error for more keys than a guard has room for."""
    return ConfigurationError(
        f"the keys of the items that this transaction creates and deletes under one hash key of a model with "
        f"Meta.guard_queries take more than the {_MOST_BYTES // 1000} KB that its guard has for them: write fewer at "
        f"once."
    )
