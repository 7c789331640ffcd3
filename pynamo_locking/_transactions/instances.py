"""The instances of one item in a transaction: which one shows what the transaction sees, and which ones are stale."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.values import copy_of
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._items import versions
from pynamo_locking._items.keys import key_of
from pynamo_locking._pynamodb import key_values_of, version_name_of

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.plan import Plan


def values_of(instance: Model, image: Image) -> dict[str, Any]:
    """Return the values of an image, but with the version of the instance: it changes at the commit."""
    fresh: dict[str, Any] = type(instance).from_raw_data(copy_of(image)).attribute_values
    name = str(version_name_of(instance))
    fresh.pop(name, None)
    if name in instance.attribute_values:
        fresh[name] = instance.attribute_values[name]
    return fresh


class SavedInstances(NamedTuple):
    """The instances at a savepoint; `values` and `seen` are those of the present one, now and as they were read."""

    present: GuardedMixin
    first: GuardedMixin
    version: int | None
    only_names: bool
    values: dict[str, Any]
    seen: dict[str, Any]
    is_current: bool
    is_shown: bool
    is_ours: bool


class ShownInstances:
    """The instances of one item that a transaction was given or has made.

    Attributes:
        present: the one that every caller of the transaction's `get` receives, and that is written.
        only_names: whether the caller passed the last instance only to name the item.
        is_ours: whether the transaction has made the first one, and no caller has it yet.
    """

    def __init__(self, first: GuardedMixin, known: Known, *, is_read: bool) -> None:
        self.present: GuardedMixin = first
        self.only_names: bool = False
        self.is_ours: bool = False
        self._first, self._given = first, known  # at the beginning
        self._version: int | None = known.version  # of the present one when the caller passed it
        # The values of the present one, while it shows what the transaction sees and what its user has changed since.
        self._values: dict[str, Any] | None = first.attribute_values if is_read else None
        self._seen = dict(first.attribute_values)  # the same before its user has changed any
        # Instances that show uncommitted values, which a save of the instance alone would write. `refresh` replaces the
        # dict of values, so an instance with another dict shows nothing of it. All savepoints share this list.
        self._shown: list[tuple[GuardedMixin, dict[str, Any]]] = []

    @property
    def is_current(self) -> bool:
        """Whether the present one shows what the transaction sees, apart from changes by its user."""
        return self.present.attribute_values is self._values

    def take(self, instance: GuardedMixin, before: Known, plan: Plan, *, replaces: bool) -> None:
        """Use the instance that the caller passes, which must be a copy of the stored item that is known as `before`.

        If another instance shows changes of the transaction, that instance is written, unless this one `replaces` it.

        Raises:
            StaleVersion: it is a copy of another state of the item, or the caller has assigned another version.
        """
        known, is_other = versions.known_state(instance), instance is not self.present
        is_made_anew = plan.after is None and known == Known()
        if not is_other and not is_made_anew and known.version != self._version:
            known_here = f"the transaction knows the item in version {before.version}"
            why = f"was given version {known.version}, and {known_here}."
            raise versions.stale(instance, TransactWriteError, why, before)
        self.only_names = is_other and known in (Known(), self._given) and known != before
        if self.only_names and not (is_made_anew or replaces):
            return  # an operation that checks its version refuses it
        if is_other and not is_made_anew:
            self.compare(instance, before, is_old=replaces and plan.write is not None)
        if is_made_anew or not plan.has_values or plan.after is None:
            self.present, self._version, self.only_names = instance, known.version, False

    def compare(self, instance: GuardedMixin, before: Known, *, is_old: bool = False) -> None:
        """Raise `StaleVersion` for an instance of another state of the item than the transaction knows."""
        if is_old or versions.known_state(instance) != before:
            why = "is in the transaction already, as another copy that differs: one of them is old."
            raise versions.stale(instance, TransactWriteError, why)

    def make(self, model: type[GuardedMixin], image: Image) -> None:
        """Make the present one, which no caller has, again: as an instance of the class that is asked for."""
        self.present = self._first = model.from_raw_data(copy_of(image))
        self._values = self.present.attribute_values
        self._seen = dict(self._values)

    def replace(self, instance: GuardedMixin) -> None:
        self.present = instance

    def show(self, image: Image, *, is_committed: bool) -> None:
        """Make the present one show an image; its version changes at the commit."""
        self._values = self.present.attribute_values = values_of(self.present, image)
        versions.read_in_part(self.present, None)
        self._seen = dict(self._values)
        if not is_committed:
            self._note_shown()

    def show_again(self, image: Image, *, is_committed: bool) -> None:
        """As `show`, for the present one that was replaced or refreshed since it was taken.

        With another version, old values could be saved under it.
        """
        if versions.known_state(self.present).version == self._version:
            self.show(image, is_committed=is_committed)

    def note_saved(self) -> None:
        """Note that the transaction sees the item as the present one shows it."""
        self._values = self.present.attribute_values

    def changed(self) -> list[str]:
        """Return which attributes of the present one its user has assigned, since it was read or a call saved it."""
        now, seen = self.present.attribute_values, self._seen
        if not self.is_current or now == seen:
            return []
        return sorted(name for name in {*now, *seen} if now.get(name) != seen.get(name))

    def _note_shown(self) -> None:
        now = self.present
        self._shown[:] = [each for each in self._shown if each[0] is not now] + [(now, now.attribute_values)]

    def mark_shown_stale(self, *, but: GuardedMixin | None = None) -> None:
        """Mark the instances that show uncommitted values as stale, so that saving them is refused."""
        for instance, values in self._shown:
            if instance is not but and instance.attribute_values is values:
                versions.mark_stale(instance)

    # Savepoints

    def reset(self, key: Image, base: Image | None, before: Known) -> None:
        """Go back to the first instance, as it was read: with the values of `base`, if there are any."""
        self.mark_shown_stale(but=None if base is None else self._first)
        self.present = self._first
        model = type(self.present)
        if base is not None:
            self.show(base, is_committed=True)
            versions.set_known(self.present, before)
        elif key_of(model, *key_values_of(self.present)) != key:  # a row that was here before it moved on
            self.present = self._first = model.from_raw_data(copy.deepcopy(key))
        self._version = versions.known_state(self.present).version

    def saved(self) -> SavedInstances:
        """Return the present state."""
        now = self.present
        values, seen = copy.deepcopy((now.attribute_values, self._seen))
        is_shown = any(each is now and now.attribute_values is shown for each, shown in self._shown)
        return SavedInstances(
            now, self._first, self._version, self.only_names, values, seen, self.is_current, is_shown, self.is_ours
        )

    def restore(self, saved: SavedInstances) -> None:
        """Go back to a state; instances that show what was done since are stale."""
        now = self.present = saved.present
        self._first, self._version, self.only_names = saved.first, saved.version, saved.only_names
        self.is_ours = saved.is_ours
        now.attribute_values, self._seen = copy.deepcopy((saved.values, saved.seen))
        self._values = now.attribute_values if saved.is_current else None
        if saved.is_shown:
            self._note_shown()
        self.mark_shown_stale(but=now)
