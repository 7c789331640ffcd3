"""The item as a transaction sees it: what is stored, and what was done to it, worked out here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._io import images, transport, versions
from pynamo_locking._io.planned import Planned, Unread
from pynamo_locking._io.shown import Shown, show
from pynamo_locking._io.writes import SAVE, UPDATE, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from pynamodb.expressions.update import Action

    from pynamo_locking._io.requests import Image
    from pynamo_locking.guarded import GuardedMixin


class Seen(Planned):
    """One item of a transaction, whose stored item is read if it has to be known.

    Args:
        item: the instance that everybody who asks the transaction gets.
        key: the item's key, in DynamoDB's form.
        base: the stored item; None if there is none.
        read: reads the stored item.
        token: of the transaction; the write ids come from it.
    """

    def __init__(
        self,
        item: GuardedMixin,
        key: Image,
        base: Image | Unread | None,
        read: Callable[[Any], Image | None],
        token: str,
    ) -> None:
        super().__init__(item, key, base, token)
        self._first, self._given = item, self.before  # as it began
        self._version: int | None = self.before.version  # that the instance had when it was handed in
        self._is_changed = False  # whether values of the item were
        self._shown = Shown()
        self._read = read

    def _evaluate(self, actions: Sequence[Action]) -> None:
        """Make the instance, and `after`, what they are after some actions."""
        current = self.look()
        keys = self.item._get_hash_range_key_serialized_values()
        kwargs = self.item._get_connection().get_operation_kwargs(keys[0], range_key=keys[1], actions=list(actions))
        try:
            after = images.updated(current, {**kwargs, "Key": self.key})
        except images.Refusal as refusal:
            raise TransactWriteError(f"Failed to update item: {refusal}", refusal) from refusal
        self.after = after
        self._show(after)
        self._shown.note(self.item)

    def look(self) -> Image | None:
        """Return the item as the transaction sees it, reading the stored one if need be; the instance shows it."""
        if isinstance(self.after, Unread):
            self.load()
            self.after = self.base
            pending, self._pending = self._pending, []
            if pending:
                self._evaluate(pending)
            elif isinstance(self.after, dict):
                self._show(self.after)  # the instance may be a key, or a part
        elif isinstance(self.after, dict) and not self.is_current and self._has_its_version():
            self._show(self.after)  # it is another one, or was refreshed
            if self._is_changed:
                self._shown.note(self.item)
        assert not isinstance(self.after, Unread)  # noqa: S101 - loaded
        return self.after

    def _has_its_version(self) -> bool:
        """Whether nobody has given the instance another version: old values under a new one could be saved."""
        return versions.known(self.item).version == self._version

    def load(self) -> None:
        """Read the stored item, which has to be the one that is known."""
        if isinstance(self.base, Unread):
            base = self._read(self)
            seen = versions.known_of(self.model, base or {})
            if self.is_checked and not self.before.may_be(seen):
                cause = transport.condition_failed(
                    TransactWriteError, "the item is not the one that was read", self.table
                )
                raise refusal(self.final(), TransactWriteError, base, cause)
            self.base = base
            if self.write is not None and not self.is_checked:
                self.before = seen  # a later operation that checks means what was read here

    def _show(self, image: Image) -> None:
        show(self.item, image)
        self._values = self.item.attribute_values

    def pin(self) -> None:
        """Make a write without a check one of the item as it is stored, which is all that a mark can say."""
        assert self.write is not None  # noqa: S101 - only writes are pinned
        if isinstance(self.base, Unread) or self.write.operation is not UPDATE:
            self._read_for_save(anew=True)
        assert not isinstance(self.base, Unread)  # noqa: S101 - read
        self.before = versions.known_of(self.model, self.base or {})
        self.is_checked = True
        if self.write.operation is UPDATE:
            self.look()
        self._plan_again()

    def _read_for_save(self, *, anew: bool) -> None:
        """Read the stored item, of which a save that is an update keeps what is not declared."""
        was_unread = isinstance(self.base, Unread)
        if anew:
            self.base = self._read(self)
        else:
            self.load()
        if was_unread:
            self._keep_undeclared()

    def _keep_undeclared(self) -> None:
        is_update = self.write is not None and self.write.operation is SAVE and self.write.attributes is None
        if is_update and isinstance(self.base, dict) and isinstance(self.after, dict):
            self.after = self.undeclared(self.base) | self.after
