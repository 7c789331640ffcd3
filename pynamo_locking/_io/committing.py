"""Chooses the path of a commit, and takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core import paths as rules
from pynamo_locking._core.paths import CannotBeStaged, Member, Path, Plan, choose
from pynamo_locking._core.transaction import Header, State
from pynamo_locking._io import events, header_rows, images, runtime
from pynamo_locking._io.assembly import Assembly
from pynamo_locking._io.commit import Action, Commit
from pynamo_locking._io.items import GuardedItem
from pynamo_locking._io.long_path import LongCommit, key_size
from pynamo_locking._io.marking import can_be_marked
from pynamo_locking._io.requests import Unavailable
from pynamo_locking._io.resolving import Resolver, StillPending
from pynamo_locking._io.unit import Unread
from pynamo_locking._io.validation import item_size, validate
from pynamo_locking._io.writes import DELETE
from pynamo_locking.exceptions import ConfigurationError, Conflict, OutcomeUnknown, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._io.headers import Book
    from pynamo_locking._io.unit import Entry

#: For how long an idempotency key is known, in seconds.
KEY_TTL_S: Final = 24 * 3600


@dataclass(frozen=True)
class Terms:
    """How a transaction is committed, whatever is in it.

    Attributes:
        id: names the attempt.
        priority: tells how old the transaction is.
        owner: label for people.
        lease: how long it lives without a renewal, in seconds.
        deadline: until when to wait for others, by the monotonic clock.
        workers: how many requests at once.
        idempotency_key: names what it does.
        on_progress: called with the number of items done and of all.
        book: the table of transactions; None if there is none.
    """

    id: str
    priority: str
    owner: str
    lease: float
    deadline: float
    workers: int
    idempotency_key: str | None = None
    on_progress: Callable[[int, int], object] | None = None
    book: Book | None = None


class Committing:
    """The commit of some items.

    Args:
        entries: all of the transaction, in any order.
        terms: how.

    Attributes:
        path: the one that it takes; empty before.
    """

    def __init__(self, entries: Sequence[Entry], terms: Terms) -> None:
        taking_part = [entry for entry in entries if entry.write is not None or entry.is_read]
        self._entries = sorted(taking_part, key=lambda entry: (entry.table, repr(sorted(entry.key.items()))))
        self._terms = terms
        self._long: LongCommit | None = None
        self._assembly: Assembly | None = None
        self.path = ""

    @property
    def is_decided(self) -> bool:
        """Whether it is known to be committed, although what came afterwards was interrupted."""
        return self._long is not None and self._long.is_decided

    def plan(self) -> Plan:
        """Return which path it will take.

        Raises:
            ConfigurationError: too many items cannot carry a mark, or there is no table of transactions.
        """
        try:
            extra = self._extra_actions()
            is_long = len(self._entries) + extra > limits.MOST_ACTIONS
            table = None if self._terms.book is None else self._terms.book.table
            plan = choose([_member(entry, table, is_long=is_long) for entry in self._entries], extra=extra)
        except CannotBeStaged as error:
            raise _too_large(error) from error
        self._check_places()
        if self._terms.book is None and (plan.path is Path.LONG or self._terms.idempotency_key is not None):
            raise ConfigurationError(
                "a transaction of more than 100 actions, or with an idempotency key, needs a TransactionTable: pass it "
                "to transaction(), or name it in Meta.transaction_table of a model."
            )
        return plan

    def direct(self) -> list[Entry]:
        """Return the items that the deciding transaction writes itself."""
        return [self._entries[i] for i in self.plan().direct]

    def _check_places(self) -> None:
        """Refuse items that no native transaction could include."""
        connections = [entry.item._get_connection().connection for entry in self._entries]
        if self._terms.book is not None:
            connections.append(self._terms.book.connection)
        places = {(connection.region, connection.host) for connection in connections}
        if len(places) > 1:
            named = ", ".join(f"{region} ({host or 'AWS'})" for region, host in sorted(places, key=repr))
            raise ConfigurationError(
                f"the items of a transaction, and its TransactionTable, have to be in one Region and on one host: "
                f"they are in {named}."
            )

    def _extra_actions(self) -> int:
        writers = [entry.writer for entry in self._entries]
        guarded = [writer for writer in writers if isinstance(writer, GuardedItem)]
        locked_rows = {own.row.identity for writer in guarded for own in writer.owns}
        return len(locked_rows) + (self._terms.idempotency_key is not None)

    def run(self) -> bool:
        """Commit; tell whether it was committed before, under the same idempotency key.

        Raises:
            Conflict: in one of its kinds; nothing was written.
            OutcomeUnknown: nothing tells whether it was committed.
        """
        plan = self.plan()
        self.path = plan.path.value
        try:
            if plan.path is Path.READ:
                self._validate()
            elif plan.path is Path.SINGLE:
                self._write_one()
            elif plan.path is Path.NATIVE:
                self._write_together()
            elif plan.path is Path.LONG:
                self._write_long(plan)
        except (Conflict, OutcomeUnknown, TransactWriteError) as error:
            found = self._found_key()
            if found is None:
                if events.listeners and plan.path is not Path.SINGLE:  # of which the write itself has told
                    events.tell.commit_failed(self._terms.id, self._entries[0].table if self._entries else "", error)
                raise
            if found == self._terms.id:
                self._note_commit()
            return found != self._terms.id
        return False

    def _note_commit(self) -> None:
        """It was committed, although no answer said so: make the instances what they are now."""
        if self._long is not None:
            self._long.conclude()
        elif self._assembly is not None:
            self._assembly.note_commit()

    def _validate(self) -> None:
        resolver = Resolver(deadline=self._terms.deadline, priority=self._terms.priority)
        try:
            validate(self._entries, resolver, is_snapshot=True)
        except (StillPending, Unavailable) as reason:
            raise also(TransactionConflict, TransactWriteError)(f"{reason}. Trying again is safe.") from reason

    def _write_one(self) -> None:
        [entry] = self._entries
        assert entry.writer is not None  # noqa: S101 - it has a write
        entry.writer._write(entry.final())

    def _write_together(self) -> None:
        assembly = self._assembly = Assembly()
        for i, entry in enumerate(self._entries):
            write = entry.final()
            if entry.write is None:
                assembly.add_check(i, write, entry.row)
            else:
                assert entry.writer is not None  # noqa: S101 - it has a write
                assembly.add_write(i, entry.writer, write)
        assembly.before_commit()
        try:
            with assembly.last_under_locks():
                Commit(
                    self._connection(),
                    list(assembly.actions.values()),
                    [*assembly.guards, *self._key_action()],
                    self._terms.id,
                    may_change_token=True,
                    options={},
                    resolver=Resolver(deadline=self._terms.deadline, priority=self._terms.priority),
                ).send()
        except BaseException as error:
            assembly.note_refusal(error)
            raise
        assembly.note_commit()

    def _connection(self) -> Connection:
        if not self._entries:  # only the key
            assert self._terms.book is not None  # noqa: S101 - `plan` checks it
            return self._terms.book.connection
        connection: Connection = self._entries[0].item._get_connection().connection
        return connection

    def _write_long(self, plan: Plan) -> None:
        terms, now_ms = self._terms, runtime.current.time_ms()
        assert terms.book is not None  # noqa: S101 - `plan` checks it
        lease_ms = int(terms.lease * 1000)
        header = Header(
            terms.id,
            State.PENDING,
            terms.priority,
            terms.owner,
            lease_ms=lease_ms,
            until_ms=now_ms + lease_ms,
            is_early=bool(plan.validated),
        )
        self._long = LongCommit(
            self._entries,
            plan,
            terms.book,
            header,
            deadline=terms.deadline,
            workers=terms.workers,
            extra=self._key_action(),
            on_progress=terms.on_progress,
        )
        try:
            self._long.run()
        except CannotBeStaged as error:
            raise _too_large(error) from error

    # Idempotency keys

    def _key_action(self) -> list[Action]:
        """Return the action that notes the idempotency key, once."""
        book, key = self._terms.book, self._terms.idempotency_key
        if book is None or key is None:
            return []
        return [Action(header_rows.once(book, _row_of_key(key), {"id": {"S": self._terms.id}}, KEY_TTL_S))]

    def _found_key(self) -> str | None:
        """Return which transaction has left the idempotency key: an earlier one, or this one."""
        book, key = self._terms.book, self._terms.idempotency_key
        if book is None or key is None:
            return None
        try:
            return header_rows.get_once(book, _row_of_key(key), lambda row: str(row["id"]["S"]))
        except Unavailable:
            return None


def _too_large(error: CannotBeStaged) -> ConfigurationError:
    return ConfigurationError(
        f"this transaction is too large for one native transaction, and {error}: declare `lock = LockAttribute()` on "
        f"their models, name the transaction's table in their Meta.transaction_table, read items that expire in the "
        f"transaction (a mark needs a day), or write at most 99 such items in it."
    )


def _row_of_key(key: str) -> str:
    return f"key#{key}"


def _member(entry: Entry, table: str | None, *, is_long: bool) -> Member:
    row = entry.row
    is_delete = entry.write is not None and entry.write.operation is DELETE
    before = images.size_of(entry.base) if isinstance(entry.base, dict) else 0
    is_counted = entry.writer is not None and entry.writer.is_locked  # in the lock, which refuses a second copy
    after = 0 if is_delete or isinstance(entry.after, Unread) or entry.after is None else images.size_of(entry.after)
    return Member(
        is_write=entry.write is not None,
        is_absent=entry.is_absent,
        can_be_marked=can_be_marked(entry, table),
        wants_direct=after > rules.LARGE_BYTES,
        needs_token=entry.write is not None and entry.write.is_sent_once and not is_counted,
        size=after if entry.write is not None else item_size(entry),
        before_size=before,
        intent_size=_intent_size(entry) if is_long and entry.write is not None else 0,
        key_size=0 if row is None else key_size(row),
    )


def _intent_size(entry: Entry) -> int:
    """Return about what a mark will have to say."""
    if entry.is_deleted or isinstance(entry.after, Unread) or entry.after is None:
        return 0
    base = entry.base if isinstance(entry.base, dict) else None
    set_, removed = images.difference(base, entry.after, keys=entry.key)
    return images.size_of(set_) + sum(map(len, removed))
