"""Sends saves and deletes of many items as statements, 25 in a request, each with the conditions of its single write.

A save replaces the whole item. A statement can create an item, or change the attributes that it names. So a save is
said as an INSERT of a new item, and as an UPDATE of an item whose attributes are known by its write id. All that cannot
be said, or was not applied, is sent alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking._core.error_codes import Answer
from pynamo_locking._core.sending import Policy, Sending
from pynamo_locking._io import connections, retries, statements
from pynamo_locking._io.statements import Result
from pynamo_locking._io.stored import Place, Stored
from pynamo_locking._items import clauses, expiry, knowledge
from pynamo_locking._writes.write import DELETE
from pynamo_locking._writes.writers import BesideWriter, InsideWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.update import Action

    from pynamo_locking._writes.write import Write
    from pynamo_locking._writes.writers import PlainWriter


class Planned(NamedTuple):
    """A write, and the statement for it."""

    writer: PlainWriter
    write: Write
    request: statements.Write

    def done(self) -> None:
        """Update the instance after the write was applied."""
        self.writer._done(self.write, {})

    def send_alone(self) -> None:
        """Send what is not known to be applied."""
        self.writer._write(self.write)


def planned(writer: PlainWriter, write: Write) -> Planned | None:
    """Return a write of which a statement does the same; None if there is no such statement.

    Sent alone are writes that change unique values, those whose lock is held or checked in another row, those that
    store what only DynamoDB knows, and those without any condition.
    """
    if writer.own is not None or isinstance(writer, BesideWriter) or not write.part.is_checked:
        return None
    request = _deleting(writer, write) if write.operation is DELETE else _saving(writer, write)
    if request is None or (write.claims is not None and write.claims.rows):
        return None
    operation, kwargs = request
    # No hidden retries: a repeated INSERT could create again what was deleted since.
    connection = connections.single_attempt(write.item._get_connection().connection)
    return Planned(writer, write, statements.Write(connection, operation, kwargs))


def _deleting(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]]:
    return "DeleteItem", {**writer.action(write)["Delete"], "ReturnValues": "ALL_OLD"}


def _saving(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]] | None:
    if isinstance(writer, InsideWriter) and writer.row.may_create:
        return None
    if write.part.before.version is not None:
        return _updating(writer, write)
    if not expiry.holds_without_item(write.condition):
        return None
    kwargs = write.kwargs()
    key = kwargs.get("Key", {})
    return "PutItem", {"TableName": kwargs["TableName"], "Item": kwargs.get("Item") or {**key, **write.stored()}}


def _updating(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]] | None:
    """Return the update that leaves the item as the save would leave it; None if it would remove several attributes."""
    removable = knowledge.removable(write.item)
    if removable is None or write.part.before.write_id is None:
        return None
    stored, lasting = write.stored(), write.part.shape.lasting
    absent = {each.attr_name for each in write.item.get_attributes().values()} - {*stored, *lasting, *writer.surviving}
    removed = removable - stored.keys() if write.attributes is not None else removable & absent
    if len(removed) > 1:
        return None
    actions: list[Action] = [Place(name).set(Stored(value)) for name, value in stored.items()]
    actions += [Place(name).remove() for name in removed]
    still = (Place(name).does_not_exist() for name in sorted(absent - removed))
    said = replace(write, attributes=None, actions=actions, condition=reduce(clauses.both, still, write.condition))
    kwargs = writer.action(said)["Update"]
    write.second = said.second
    return "UpdateItem", kwargs


def send(batch: Sequence[Planned]) -> list[bool]:
    """Send up to 25 writes of one table, and again while DynamoDB is too busy; tell which are known to be applied."""
    for each in batch:
        each.write.is_unanswered = True
    results = statements.send([each.request for each in batch])
    sending = Sending(Policy(is_single=True))
    while Result.BUSY in results and retries.is_sent_again(sending, Answer.BUSY):
        again = [i for i, result in enumerate(results) if result is Result.BUSY]
        for i, result in zip(again, statements.send([batch[i].request for i in again]), strict=True):
            results[i] = result
    for each, result in zip(batch, results, strict=True):
        each.write.is_unanswered = result is Result.UNKNOWN
    return [result is Result.APPLIED for result in results]
