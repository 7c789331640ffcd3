"""What a transaction knows of one item, and what it is going to do to it: several operations, one write."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.outcome import Known
from pynamo_locking._io import guards, transport, versions
from pynamo_locking._io.items import check_actions
from pynamo_locking._io.planned import UNREAD, Unread
from pynamo_locking._io.seen import Seen
from pynamo_locking._io.writes import DELETE, UPDATE
from pynamo_locking.exceptions import StaleVersion, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.requests import Image
    from pynamo_locking._io.writes import Write
    from pynamo_locking.guarded import GuardedMixin

__all__ = ["UNREAD", "Entry", "Unread"]

#: What an operation that fails leaves as it was. What was read stays read.
_UNDONE: Final = ("condition", "is_checked", "write", "writer", "after", "_pending", "_is_changed")


class Entry(Seen):
    """One item of a transaction.

    All conditions are about the item as it is stored before the transaction, whatever was done to it in the
    meantime: DynamoDB checks them when the transaction is committed.

    It is made as `Seen` is.
    """

    _is_key = False  # whether the last instance was handed in only to say which item is meant

    @property
    def is_unused(self) -> bool:
        """Whether the transaction neither does anything to the item nor relies on it: the first operation failed."""
        return self.write is None and not self.is_read and isinstance(self.base, Unread)

    def take(self, item: GuardedMixin, *, replaces: bool) -> None:
        """Go on with the instance that somebody hands in, which has to be of the same stored item.

        What was done to it is in another instance then, or in none: that one stays the one that is written, unless
        all of it is replaced.

        Args:
            item: the instance.
            replaces: whether all of its values are going to be stored, over what was done to another instance.

        Raises:
            StaleVersion: it is another copy, and one of them is old; or the caller has given it another version.
        """
        known = versions.known(item)
        is_made_anew = self.is_deleted and known == Known()
        if item is self.item and not is_made_anew and known.version != self._version:
            why = "the item is not in the version that was assigned"
            raise also(StaleVersion, TransactWriteError)(
                f"this {self.model.__name__} was given version {known.version}, and the transaction knows the item in "
                f"version {self.before.version}.",
                expected=known.version,
                actual=self.before.version,
                cause=transport.condition_failed(TransactWriteError, why, self.table),
            )
        self._is_key = item is not self.item and known in (Known(), self._given) and known != self.before
        if self._is_key and not (is_made_anew or replaces):
            return  # it only says which item; `_admit` refuses it where it says more
        if item is not self.item and not is_made_anew:
            self.compare(item, is_old=replaces and self.write is not None)
        if is_made_anew or not self._is_changed or self.is_deleted:
            self.item, self._version, self._is_key = item, known.version, False

    def _admit(self, *, checks: bool) -> None:
        """Refuse an operation that expects what was handed in to be stored, if the transaction knows better."""
        if checks and self._is_key:
            why = "is in the transaction already, as another copy that differs: one of them is old."
            raise versions.stale(self.item, TransactWriteError, why)

    def compare(self, item: GuardedMixin, *, is_old: bool = False) -> None:
        """Refuse an instance of another state of the item than the transaction knows.

        Raises:
            StaleVersion: it is.
        """
        if is_old or versions.known(item) != self.before:
            why = "is in the transaction already, as another copy that differs: one of them is old."
            raise versions.stale(item, TransactWriteError, why)

    def check(self) -> None:
        """Rely on the item being the one that is known."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.is_checked = True
            self._plan_again()

    def rely(self) -> None:
        """Rely on what was read; a write that was to happen whatever is stored is one of that item from now on."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.pin()

    def mark_old(self, *, is_saved: bool) -> None:
        """Note that what was done here does not happen, so that no instance that shows it is saved.

        Args:
            is_saved: whether that is meant for what the caller has put into the instance himself as well.
        """
        self._shown.mark_old()
        if is_saved and self.write is not None:
            versions.mark_old(self.item)

    def require(self, condition: Condition | None) -> None:
        """Note a condition of the caller's."""
        self.condition = guards.both(self.condition, condition)

    # Operations

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Take back what an operation has noted when it fails."""
        before = {name: vars(self)[name] for name in _UNDONE}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def save(self, condition: Condition | None, *, checks: bool) -> None:
        """Store the instance as it is now.

        Raises:
            StaleVersion: it does not show what the transaction has done to the item, and would take it back.
        """
        if checks and self._is_changed and not self.is_deleted and not self.is_current:
            why = (
                "does not show what the transaction has done to the item: go on with the instance that its get returns."
            )
            raise versions.stale(self.item, TransactWriteError, why)
        with self._all_or_nothing():
            self.require(condition)
            self._know_deleted(checks=checks)
            extra: Image | None = None
            if not isinstance(self.base, Unread) and not isinstance(self.after, Unread):
                extra = self.undeclared(self.after or {})
            self._plan_save(checks=checks, extra=extra, replaces=True)
            self._pending, self._is_changed = [], True

    def _know_deleted(self, *, checks: bool) -> None:
        """Read what was deleted here, if it is written over without a Put: nothing of it must be left."""
        if self.is_deleted and (self.model._lock_attribute() is not None or not (checks or self.is_checked)):
            self.load()

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks: bool) -> None:
        """Apply actions to the item as the transaction sees it.

        A second update without a check is made of what was read for it, so that is relied on.
        """
        self._admit(checks=checks)
        with self._all_or_nothing():
            self.require(condition)
            check_actions(self.item, self._new_writer().protected, actions)
            self.is_checked = self.is_checked or self.is_read or checks
            self._update(actions)
            self._is_changed = True

    def _update(self, actions: Sequence[Action]) -> None:
        before = self.write
        is_first = before is None or (before.operation is UPDATE and not self._is_changed)
        if is_first and isinstance(self.after, Unread):
            self._pending = list(actions)  # evaluated if anybody asks; DynamoDB does it otherwise
            self._plan_update(self._pending)
            return
        if before is not None and not is_first:
            self._know_base(before, actions)
        self._evaluate(actions)
        if is_first:
            self._plan_update(list(actions))
        elif before is not None and before.operation is UPDATE:
            self._plan_update(self._changes())
        else:
            assert isinstance(self.after, dict)  # noqa: S101 - evaluated
            self._plan_save(checks=self.is_checked, extra=self.undeclared(self.after), replaces=False)

    def _know_base(self, before: Write, actions: Sequence[Action]) -> None:
        """Read what the item will be made of, and rely on it: what is planned now is absolute."""
        if before.operation is UPDATE:
            if not self.is_checked:
                self.pin()
        elif before.operation is DELETE:
            self._know_deleted(checks=False)
        elif before.attributes is None and isinstance(self.base, Unread) and self._are_undeclared(actions):
            if self.is_checked:
                self._read_for_save(anew=False)
            else:
                self.pin()

    def _are_undeclared(self, actions: Sequence[Action]) -> bool:
        declared = {attribute.attr_name for attribute in self.item.get_attributes().values()}
        return any(guards.path_of(action)[0] not in declared for action in actions)

    def delete(self, condition: Condition | None, *, checks: bool) -> None:
        """Delete the item."""
        self._admit(checks=checks)
        with self._all_or_nothing():
            self.require(condition)
            self.is_checked = self.is_checked or self.is_read or checks
            if self.is_checked and self.is_absent:
                self.load()  # it may have been written without a version
            self.after = None
            if self.is_absent and self.is_checked:
                self.write, self.is_read = None, True  # it only has to be absent still
            else:
                self._plan_delete()

    def touch(self, condition: Condition | None, *, checks: bool, creates: bool = False) -> None:
        """Count the version up."""
        self._admit(checks=checks)
        with self._all_or_nothing():
            self.require(condition)
            if not creates and self.write is None:
                self.require(self.item.get_attributes()[str(self.item._hash_keyname)].exists())
            self.is_checked = self.is_checked or self.is_read or checks
            if self.write is None:
                self._plan_update([guards.nothing()])

    # Savepoints

    def reset(self) -> None:
        """Forget all operations but the read."""
        is_stored = isinstance(self.base, dict)
        self._shown.mark_old(but=self._first if is_stored else None)
        self.write = self.writer = self.condition = None
        self.after, self._pending, self.is_checked, self._is_changed = self.base, [], False, False
        self.item = self._first
        if isinstance(self.base, dict):
            self._show(self.base)
            versions.assume(self.item, self.before)
        self._version = versions.known(self.item).version

    def saved(self) -> Saved:
        """Return the present state, to go back to."""
        return Saved(
            copy.copy(self), copy.deepcopy(self.item.attribute_values), self.is_current, self._shown.has(self.item)
        )

    def gone_back(self, saved: Saved) -> Entry:
        """Return what was saved, with the instance as it was; and with what was read since, which is relied on."""
        entry = copy.copy(saved.entry)
        entry.is_read = entry.is_read or self.is_read
        was_unread = isinstance(entry.base, Unread)
        entry.base, entry.before = self.base, self.before
        if was_unread:
            entry._keep_undeclared()
        if entry.is_read and entry.write is not None and not entry.is_checked:
            entry.is_checked = True
            entry._plan_again()
        item = entry.item
        item.attribute_values = copy.deepcopy(saved.values)
        entry._values = item.attribute_values if saved.is_current else None
        if saved.is_shown:
            self._shown.note(item)
        self._shown.mark_old(but=item)
        return entry


@dataclass(frozen=True)
class Saved:
    """A state of an item to go back to.

    Attributes:
        entry: a copy of it.
        values: those of its instance.
        is_current: whether the instance showed what the transaction saw.
        is_shown: whether it showed what is not committed.
    """

    entry: Entry
    values: dict[str, Any]
    is_current: bool
    is_shown: bool
