"""One item of a transaction: as it is stored, as the transaction sees it, and the one write that results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import values as values_module
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._io import responses
from pynamo_locking._io.model_doors import lock_attribute_of, lock_row_of_key
from pynamo_locking._items import conditions, effects, versions
from pynamo_locking._transactions.instances import SavedInstances, ShownInstances
from pynamo_locking._transactions.plan import (
    UNREAD,
    Basis,
    Plan,
    Unread,
    changes,
    undeclared,
)
from pynamo_locking._writes.write import DELETE, UPDATE, Write, error_of_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.keys import ItemKey
    from pynamo_locking._models.isolation import IsolatedReader
    from pynamo_locking._models.writes import GuardedMixin


class SavedItem(NamedTuple):
    """An item of a transaction at a savepoint."""

    plan: Plan
    instances: SavedInstances
    is_unread: bool


class TransactionItem:
    """One item of a transaction.

    All conditions are about the item as it is stored before the transaction: DynamoDB checks them at the commit. The
    stored item is read only when it must be known.

    An operation reads and changes a `Plan`, which is a value, and assigns it at its end: so an operation that fails
    leaves the last plan as it was. What was read meanwhile stays read.

    Args:
        instance: the one that every caller of the transaction's `get` receives.
        identity: of the item.
        key: the item's key, in DynamoDB's form.
        base: the stored item; None if there is none.
        token: of the transaction, from which the write ids are derived.

    Attributes:
        before: what is known of the stored item.
        instances: those that show the item.
        plan: what the transaction does to the item.
        is_read: whether the transaction relies on the item beyond its own write; that stays.
        extents: where its writes take place, for locks of ranges; None if the instance shows it.
        read_before: the stored item, if it was read together with others, for the one that asks for it next.
    """

    extents: Sequence[LockMode] | None = None
    read_before: Image | Unread | None = UNREAD

    def __init__(
        self,
        instance: GuardedMixin,
        identity: ItemKey,
        key: Image,
        base: Image | Unread | None,
        reader: IsolatedReader,
        token: str,
    ) -> None:
        self.identity = identity
        self.key = key
        self.base = base
        self.before: Known = versions.known_state(instance)
        self.instances: ShownInstances = ShownInstances(instance, self.before, is_read=not isinstance(base, Unread))
        self.plan: Plan = Plan(base)
        self.is_read: bool = False
        self.reader = reader
        self._token = token
        self._row: LockRow | None = None

    @property
    def _basis(self) -> Basis:
        return Basis(self.instances.present, self.key, self.base, self.before, self._token, self.extents)

    @property
    def instance(self) -> GuardedMixin:
        return self.instances.present

    @property
    def model(self) -> type[GuardedMixin]:
        return type(self.instances.present)

    @property
    def table(self) -> str:
        return self.identity.table

    @property
    def row(self) -> LockRow | None:
        """The item as one that can carry an intent, if its model has a lock attribute; with its key as it was given."""
        if self._row is None or self._row.model is not self.model:
            self._row = lock_row_of_key(self.model, self.key)
        return self._row

    @property
    def stored(self) -> Image:
        """The stored item; empty if there is none, or it was not read."""
        return self.base if isinstance(self.base, dict) else {}

    @property
    def is_absent(self) -> bool:
        """Whether the item does not exist, as far as is known."""
        return self.base is None or (isinstance(self.base, Unread) and self.before == Known())

    @property
    def is_blind_insert(self) -> bool:
        """Whether a new instance is stored that nobody has looked for: if the item exists, each commit is refused."""
        return self.is_absent and isinstance(self.base, Unread)

    @property
    def is_deleted(self) -> bool:
        return self.plan.after is None

    @property
    def is_unused(self) -> bool:
        """Whether the transaction neither writes the item nor relies on it, since the first operation failed."""
        return self.plan.write is None and not self.is_read and isinstance(self.base, Unread)

    def mark_stale(self, *, is_saved: bool) -> None:
        """Mark instances with changes of the rolled-back transaction as stale; with `is_saved` the written one too."""
        self.instances.mark_shown_stale()
        if is_saved and self.plan.write is not None:
            versions.mark_stale(self.instance)

    # The stored item

    def shown_image(self) -> Image | None:
        """Return the item as the transaction sees it, reading it if necessary; make the instance show it."""
        self.plan, image = self._shown(self.plan)
        return image

    def _shown(self, plan: Plan) -> tuple[Plan, Image | None]:
        """Return the plan with the item after it, and that item, which the instance then shows."""
        if isinstance(plan.after, Unread):
            image = self._loaded(plan)
            known = plan._replace(after=image, pending=())
            if plan.pending:
                return self._evaluated(known, plan.pending)
            if image is not None:  # the instance may have only the key, or some attributes
                self.instances.show(image, is_committed=True)
            return known, image
        if plan.after is not None and not self.instances.is_current:
            self.instances.show_again(plan.after, is_committed=not plan.has_values)
        return plan, plan.after

    def _evaluated(self, plan: Plan, actions: Sequence[Action]) -> tuple[Plan, Image]:
        """Return the plan with the item after these actions, and that item, which the instance then shows."""
        plan, current = self._shown(plan)
        try:
            after = effects.updated(current, self.key, actions)
        except values_module.Refusal as refused:
            raise TransactWriteError(f"Failed to update item: {refused}", refused) from refused
        self.instances.show(after, is_committed=False)
        return plan._replace(after=after), after

    def load(self) -> None:
        """Read the stored item; `StaleVersion` if it is not the known one and that is checked."""
        self._loaded(self.plan)

    def _loaded(self, plan: Plan) -> Image | None:
        """Return the stored item; see `load`."""
        if not isinstance(self.base, Unread):
            return self.base
        base = self._read()
        seen = versions.known_of(self.model, base or {})
        if plan.is_checked and not self.before.may_be(seen):
            raise self._refused(plan, base)
        self.base = base
        if plan.write is not None and not plan.is_checked:
            self.before = seen  # a later operation that checks the version means this one
        return base

    def _read(self) -> Image | None:
        image, self.read_before = self.read_before, UNREAD
        if isinstance(image, Unread):
            image = self.reader.read(self.model, self.key)
        return versions.shape_of(self.model).unexpired(image)

    def refused(self, image: Image | None) -> Exception:
        return self._refused(self.plan, image)

    def _refused(self, plan: Plan, image: Image | None) -> Exception:
        cause = responses.condition_failed(TransactWriteError, "the item is not the one that was read", self.table)
        write = plan.final(self._basis, is_shown=self.instances.is_current)
        return error_of_refusal(write, TransactWriteError, image, cause)

    def pin(self) -> None:
        """Turn a write without a version check into one of the item as it is stored: an intent needs a known item."""
        self.plan = self._pinned(self.plan)

    def _pinned(self, plan: Plan) -> Plan:
        is_update, was_unread = plan.write is not None and plan.write.operation is UPDATE, isinstance(self.base, Unread)
        if was_unread or not is_update:
            self.base = self._read()
        if was_unread:
            plan = plan.keeping_undeclared(self._basis)
        self.before = versions.known_of(self.model, self.stored)
        if is_update:
            plan, _ = self._shown(plan._replace(is_checked=True))
        return plan.again(self._basis)

    # Operations: each assigns the plan once, at its end

    def rely(self) -> None:
        """Rely on what was read; a write that was to overwrite any stored item now requires this one."""
        self.is_read = True
        if self.plan.write is not None and not self.plan.is_checked:
            self.pin()

    def check(self, condition: Condition | None = None) -> None:
        """Rely on the item being the one that is known, and on a condition of the caller."""
        plan = self.plan.requiring(condition)
        self.plan = plan if plan.write is None or plan.is_checked else plan.again(self._basis)
        self.is_read = True

    def note_lock(self) -> None:
        """Use the lock, acquired after the write was planned, for the write."""
        if self.plan.write is not None:
            self.plan = self.plan._replace(writer=self._basis.writer())

    def save(self, condition: Condition | None, *, checks: bool) -> None:
        """Store the instance as it is now; `StaleVersion` if that would undo changes of the transaction."""
        plan = self.plan.requiring(condition)
        if checks and plan.has_values and not self.is_deleted and not self.instances.is_current:
            why = "does not show what the transaction has done to the item: go on with the instance that its get"
            raise versions.stale(self.instance, TransactWriteError, f"{why} returns.")
        self._know_deleted(plan, checks=checks)
        extra: Image | None = None
        if plan.after is not self.base and not isinstance(self.base, Unread) and not isinstance(plan.after, Unread):
            extra = undeclared(self.model, plan.after or {})
        plan = plan._replace(is_checked=plan.is_checked or self.is_read or checks, pending=(), has_values=True)
        self.plan = self._saving(plan, extra, replaces=True)

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks: bool) -> None:
        """Apply actions to the item as the transaction sees it."""
        plan = self._required(condition, checks=checks)
        self._basis.writer().check_actions(actions)
        effects.check(*actions)
        self.plan = self._updated(plan, list(actions))._replace(has_values=True)

    def delete(self, condition: Condition | None, *, checks: bool) -> None:
        """Delete the item."""
        plan = self._required(condition, checks=checks)
        if plan.is_checked and self.is_absent:
            self._loaded(plan)  # the stored item may have no version
        plan = plan._replace(after=None)
        if self.is_absent and plan.is_checked:
            self.plan = plan._replace(write=None)  # the commit only checks that it is still absent
            self.is_read = True
        else:
            self.plan = plan.deleting(self._basis)

    def touch(self, condition: Condition | None, *, checks: bool, creates: bool = False) -> None:
        """Increment the version."""
        plan = self._required(condition, checks=checks)
        if plan.write is None and not creates:
            plan = plan.requiring(conditions.exists(self.instance))
        if plan.write is None:
            self.plan = plan.updating(self._basis, [conditions.nothing()])
        else:  # it increments the version already
            self.plan = plan if self.plan.is_checked or not plan.is_checked else plan.again(self._basis)

    def _required(self, condition: Condition | None, *, checks: bool) -> Plan:
        """Return the plan with the condition of an operation, and with a check of the version if the operation has one.

        Then the caller expects the instance to be the stored item, also if it was passed only to name the item.
        """
        if checks and self.instances.only_names:
            self.instances.compare(self.instance, self.before, is_old=True)
        plan = self.plan.requiring(condition)
        return plan._replace(is_checked=plan.is_checked or self.is_read or checks)

    def _know_deleted(self, plan: Plan, *, checks: bool) -> None:
        """Read an item deleted by this transaction if an update will write it again: no old attribute must remain."""
        if plan.after is None and (lock_attribute_of(self.model) is not None or not (checks or plan.is_checked)):
            self._loaded(plan)

    def _saving(self, plan: Plan, extra: Image | None, *, replaces: bool) -> Plan:
        plan = plan.saving(self._basis, extra, replaces=replaces)
        self.instances.note_saved()
        return plan

    def _updated(self, plan: Plan, actions: list[Action]) -> Plan:
        """Return the plan after an update: the first one is sent as it is, later ones as what they make of the item."""
        before = plan.write
        if before is None or (before.operation is UPDATE and not plan.has_values):
            if isinstance(plan.after, Unread):
                # Evaluated here only if the caller reads the item; else by DynamoDB.
                return plan._replace(pending=tuple(actions)).updating(self._basis, actions)
            return self._evaluated(plan, actions)[0].updating(self._basis, actions)
        plan, after = self._evaluated(self._with_base(plan, before, actions), actions)
        if before.operation is UPDATE:
            return plan.updating(self._basis, changes(self.stored, after, self.key))
        return self._saving(plan, undeclared(self.model, after), replaces=False)

    def _with_base(self, plan: Plan, before: Write, actions: Sequence[Action]) -> Plan:
        """Read the stored item and rely on it: the write planned next has absolute values."""
        if before.operation is UPDATE:
            return plan if plan.is_checked else self._pinned(plan)
        if before.operation is DELETE:
            self._know_deleted(plan, checks=False)
            return plan
        if before.attributes is not None or not isinstance(self.base, Unread):
            return plan
        if {conditions.changed_by(each) for each in actions} <= versions.shape_of(self.model).declared:
            return plan
        if not plan.is_checked:
            return self._pinned(plan)
        self._loaded(plan)
        return plan.keeping_undeclared(self._basis)

    def final(self) -> Write:
        """Return the write or check that DynamoDB will do, with all of its conditions."""
        return self.plan.final(self._basis, is_shown=self.instances.is_current)

    def holds(self, image: Image | None) -> bool:
        """Tell whether an image is the item that was read, by the condition of its write."""
        return effects.holds(image, self.final().whole)

    # Savepoints

    def reset(self) -> None:
        self.plan = Plan(self.base)
        self.instances.reset(self.key, self.stored or None, self.before)

    def saved(self) -> SavedItem:
        return SavedItem(self.plan, self.instances.saved(), isinstance(self.base, Unread))

    def restore(self, saved: SavedItem) -> None:
        """Go back to a state. What was read since is still relied on."""
        self.instances.restore(saved.instances)
        self.plan = saved.plan.keeping_undeclared(self._basis) if saved.is_unread else saved.plan
        if self.is_read:
            self.check()
