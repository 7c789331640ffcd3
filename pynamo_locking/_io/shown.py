"""The instances of one item that a transaction has been handed, or has handed out."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import versions

if TYPE_CHECKING:
    from pynamo_locking._io.requests import Image
    from pynamo_locking.guarded import GuardedMixin


class Shown:
    """The instances that show what is not committed: to save one by itself would write that.

    An instance shows it as long as it has the very values that were put there. Whoever refreshes it replaces them.
    """

    def __init__(self) -> None:
        self._shown: list[tuple[GuardedMixin, dict[str, Any]]] = []

    def note(self, item: GuardedMixin) -> None:
        """Note that an instance shows what is not committed."""
        self._shown = [each for each in self._shown if each[0] is not item]
        self._shown.append((item, item.attribute_values))

    def has(self, item: GuardedMixin) -> bool:
        """Tell whether an instance shows what is not committed."""
        return any(each is item and item.attribute_values is values for each, values in self._shown)

    def mark_old(self, *, but: GuardedMixin | None = None) -> None:
        """Note that what the instances show does not happen, except one of them."""
        for item, values in self._shown:
            if item is not but and item.attribute_values is values:
                versions.mark_old(item)


def show(item: GuardedMixin, image: Image) -> None:
    """Make an instance show an image, without a new version: it gets that when the transaction is committed."""
    fresh = type(item).from_raw_data(copy.deepcopy(image)).attribute_values
    name = str(item._version_attribute_name)
    fresh.pop(name, None)
    if name in item.attribute_values:
        fresh[name] = item.attribute_values[name]
    item.attribute_values = fresh
