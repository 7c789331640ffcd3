"""What a guard says of the items that transactions have created and deleted under its hash key.

A guard may show a transaction whose items no query finds yet: see `together.settle`. Each transaction names its items
in an attribute of its own. A transaction that has settled what others have named can therefore remove their attributes,
without a condition; one that was removed never comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.expressions.operand import Path

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.naming import plain
from pynamo_locking._io import flaws
from pynamo_locking._io.stored import Stored
from pynamo_locking._items.images import size_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from pynamodb.expressions.update import Action

    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.writing import GuardedMixin
    from pynamo_locking._transactions.member import Member

#: The attributes begin like this, and end in the id of the transaction.
_NAMED: Final = "touched#"

#: So many transactions may have named something before it is settled and removed.
_MOST_NAMED: Final = 8

#: So much may be named by one transaction, and by all before it is removed, in bytes: a guard has to fit into 400 KB.
_MOST_BYTES: Final = 120_000

#: What to do about a broken guard.
ADVICE: Final = "Remove that attribute when no process writes under its hash key."


@dataclass
class Counted:
    """What a guard was told of.

    Attributes:
        model: of the items.
        hash_key: of the items.
        keys: of the items, by their identity.
    """

    model: type[GuardedMixin]
    hash_key: Image
    keys: dict[Any, Image] = field(default_factory=dict)

    def names(self, chosen: Container[Any] | None) -> list[Image]:
        """Return what is left of the keys of those items without the hash key; of all unless some are chosen."""
        keys = [key for identity, key in self.keys.items() if chosen is None or identity in chosen]
        return [{name: value for name, value in key.items() if name not in self.hash_key} for key in keys]


def named_in(guard: Member) -> dict[str, list[Image]]:
    """Return what transactions have named in a guard, by attribute.

    Raises:
        CorruptRow: it is broken.
    """
    what, advice = f"the guard {plain(guard.key)} in {guard.table!r}", ADVICE
    return flaws.read(_named, _attributes(guard.stored), what, table=guard.table, key=guard.key, advice=advice)


def _named(stored: Mapping[str, Any]) -> dict[str, list[Image]]:
    return {name: [each["M"] for each in value["L"]] for name, value in stored.items()}


def _attributes(guard: Image) -> Image:
    return {name: value for name, value in guard.items() if name.startswith(_NAMED)}


def is_full(guard: Image) -> bool:
    """Tell whether what others have named has to be removed."""
    others = _attributes(guard)
    return len(others) > _MOST_NAMED or (bool(others) and size_of(others) > _MOST_BYTES)


def has_room(names: Sequence[Image]) -> bool:
    """Tell whether one transaction may name so much."""
    return size_of({_NAMED: _stored(names)}) <= _MOST_BYTES


def _stored(names: Sequence[Image]) -> dict[str, Any]:
    return {"L": [{"M": dict(key)} for key in names]}


def naming(transaction_id: str, names: Sequence[Image]) -> Action:
    """Return the action by which a transaction names its items.

    Raises:
        ConfigurationError: they are too many.
    """
    if not has_room(names):
        raise too_many()
    action: Action = Path([_NAMED + transaction_id]).set(Stored(_stored(names)))
    return action


def forgetting(guard: Image) -> list[Action]:
    """Return the actions that remove what others have named, once it is settled."""
    return [Path([name]).remove() for name in _attributes(guard)]


def too_many() -> ConfigurationError:
    """Return the error for more keys than a guard has room for."""
    return ConfigurationError(
        f"the keys of the items that this transaction creates and deletes under one hash key of a model with "
        f"Meta.guard_queries take more than the {_MOST_BYTES // 1000} KB that its guard has for them: write fewer at "
        f"once."
    )
