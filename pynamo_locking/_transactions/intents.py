"""Works out what a marked item will be before the transaction is decided: after that DynamoDB must not refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.update import RemoveAction

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.limits import problems
from pynamo_locking._expressions import refusals
from pynamo_locking._items import clauses, images, versions
from pynamo_locking._transactions.member_writes import Unread
from pynamo_locking._writes.write import DELETE, SAVE

if TYPE_CHECKING:
    from pynamo_locking._io.stored import Image
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._writes.write import Write

#: With more changed attributes in a mark, the expression that finishes it could exceed DynamoDB's 4 KB.
MOST_CHANGES: Final = 240


def intent_of(member: Member) -> tuple[str, Image, list[str]]:
    """Return what a mark must say so that any process can finish the write: its operation, its sets, its removals.

    Raises:
        TransactWriteError, ConfigurationError: DynamoDB would refuse the write.
        StaleVersion: the stored item had to be read, and is not in the known version.
    """
    assert member.write is not None  # noqa: S101 - only writes are marked
    write = member.final()
    if write.operation is DELETE:
        return "delete", {}, []
    if isinstance(member.base, Unread) and write.operation is not SAVE:
        member.look()
    is_known = not isinstance(member.base, Unread)
    base = member.base if not isinstance(member.base, Unread) else _least_base(member)
    try:
        after = images.updated(base, write.kwargs())
    except refusals.Refusal as refusal:
        raise TransactWriteError(f"Failed to write {write.label}: {refusal}", refusal) from refusal
    set_, removed = images.difference(base, after, keys=member.key)
    if not is_known:
        removed = [clauses.path_of(each)[0] for each in write.actions if isinstance(each, RemoveAction)]
    _check(member, write, after, len(set_) + len(removed))
    return "save", set_, removed


def _least_base(member: Member) -> Image | None:
    """Return the part of the stored item that the expression of a save needs: its version."""
    if member.before.version is None:
        return None
    attribute = versions.shape_of(member.model).attribute
    assert attribute is not None  # noqa: S101 - it has a version
    return {**member.key, attribute.attr_name: {"N": str(member.before.version)}}


def _check(member: Member, write: Write, after: Image, changes: int) -> None:
    """Refuse an item that DynamoDB would refuse only after the decision."""
    found = problems(after, images.key_rules(member.model))
    if changes > MOST_CHANGES:
        found = [*found, f"it changes {changes} attributes, and {MOST_CHANGES} fit into a mark"]
    if found:
        raise ConfigurationError(f"{write.label} cannot be stored: {'; '.join(found)}. Nothing was written.")
