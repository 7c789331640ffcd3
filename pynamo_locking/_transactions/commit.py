"""Chooses the path of a commit, and commits on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import commit_paths, limits
from pynamo_locking._core.commit_paths import (
    CannotBeStaged,
    CommitPath,
    MemberFacts,
    OwnRows,
    Plan,
    choose,
    with_costs,
)
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import State, row_of_changes
from pynamo_locking._io import event_stream
from pynamo_locking._io.resolver import Resolver, conflicts
from pynamo_locking._items import images
from pynamo_locking._models import isolation
from pynamo_locking._transactions import fates
from pynamo_locking._transactions.long_commit import LongCommit, assemble, facts_if_read, facts_of, new_header, own_rows
from pynamo_locking._transactions.marking import can_be_marked, needs_read, plan_mark, stored_size
from pynamo_locking._transactions.member_writes import Unread, check_key
from pynamo_locking._transactions.validation import item_size, validate
from pynamo_locking._writes import reports
from pynamo_locking._writes.assembly import Assembly
from pynamo_locking._writes.native import Commit
from pynamo_locking._writes.write import DELETE
from pynamo_locking._writes.writers import BesideWriter
from pynamo_locking.exceptions import Conflict, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.options import TransactionOptions


class Committing:
    """The commit of the items of one transaction. `path` names its path, and is empty until `run`."""

    def __init__(self, members: Sequence[Member], options: TransactionOptions) -> None:
        used = [member for member in members if member.write is not None or member.is_read]
        # The row of a suspended one comes first: `OutcomeUnknown.resolve` changes that, and no item that it has read.
        self._members = sorted(used, key=lambda member: (not fates.suspended_id(member), repr(member.identity)))
        self._options = options
        self._long: LongCommit | None = None
        self._assembly: Assembly | None = None
        self.path = ""

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is known to be committed, even if the work after the decision was interrupted."""
        return self._long is not None and self._long.is_decided

    def plan(self) -> Plan:
        """Return the path and its cost; refuse a commit for which no path is possible.

        This works out all that the commit would store, without a request.
        """
        plan = self._choose()
        facts, staged = self._facts(is_long=True), set(plan.staged)
        with isolation.for_commit():
            for i in (*plan.direct, *plan.staged):
                facts[i] = replace(facts[i], size=stored_size(self._members[i], facts[i].size))
            for i in plan.marked:
                facts[i] = self._marked(facts[i], i, is_staged=i in staged)
        return with_costs(plan, facts, extra=self._extra_units(plan.path), rows=self._own_rows(plan))

    def _marked(self, facts: MemberFacts, i: int, *, is_staged: bool) -> MemberFacts:
        """Return the facts of an item that gets a mark."""
        member, table, id_ = self._members[i], self._options.header_table, self._options.id
        assert table is not None  # noqa: S101 - `_choose` checks it
        if needs_read(member):
            return replace(facts, mark=facts_if_read(member, facts.size + facts.before_size))
        one = plan_mark(member, id_, table, row_of_changes(id_, i), is_staged=is_staged)
        return replace(facts, size=facts.size + one.document_size, mark=facts_of(table, one))

    def _choose(self) -> Plan:
        try:
            extra = self._extra_actions()
            is_long = len(self._members) + extra + self._options.record > limits.MOST_ACTIONS
            plan = choose(self._facts(is_long=is_long), extra=extra, record=self._options.record)
            if plan.path is CommitPath.LONG and not is_long:  # because of its bytes
                plan = choose(self._facts(is_long=True), extra=extra, record=self._options.record)
        except CannotBeStaged as error:
            raise _too_large(error) from error
        self._check_places()
        if plan.path is CommitPath.LONG or fates.needs_table(self._options):
            fates.check_table(self._options)
        return plan

    def direct(self) -> list[Member]:
        """Return the items that the deciding transaction writes itself."""
        return [self._members[i] for i in self._choose().direct]

    def _check_places(self) -> None:
        """Refuse items that no native transaction could include."""
        places = {(connection.region, connection.host) for connection in self._connections()}
        if len(places) > 1:
            named = ", ".join(f"{region} ({host or 'AWS'})" for region, host in sorted(places, key=repr))
            raise ConfigurationError(
                f"the items of a transaction and its TransactionTable must be in one Region and on one host: they are "
                f"in {named}."
            )

    def _facts(self, *, is_long: bool) -> list[MemberFacts]:
        table = None if self._options.header_table is None else self._options.header_table.place
        return [_facts(member, table, is_long=is_long) for member in self._members]

    def _extra_actions(self) -> int:
        writers = [member.writer for member in self._members]
        guarded = [writer for writer in writers if isinstance(writer, BesideWriter)]
        checked_rows = {each.row.identity for writer in guarded for each in writer.checked}
        return len(checked_rows) + (self._options.idempotency_key is not None)

    def _extra_units(self, path: CommitPath) -> int:
        """Return the units of these actions; the row of a lock, whose queue is not known, counts as 1 KB."""
        has_record = path is CommitPath.NATIVE and self._options.record
        own = [*fates.key_action(self._options), *(fates.record_action(self._options) if has_record else [])]
        rows = self._extra_actions() - (self._options.idempotency_key is not None)
        return rows + sum(commit_paths.kb(images.size_of(action.request["Put"]["Item"])) for action in own)

    def _own_rows(self, plan: Plan) -> OwnRows:
        table, options, marked = self._options.header_table, self._options, len(plan.marked)
        if plan.path is not CommitPath.LONG or table is None:
            return OwnRows(0, 0)
        header = new_header(options, is_early=bool(plan.validated))
        header = replace(header, state=State.COMMITTED, items=marked, rows=marked)
        return own_rows(table, header)

    def run(self) -> bool:
        """Commit; tell whether an earlier transaction with this idempotency key was committed instead."""
        plan = self._choose()
        self.path = plan.path.value
        try:
            if plan.path is CommitPath.READ:
                self._validate()
            elif plan.path is CommitPath.SINGLE:
                self._write_one()
            elif plan.path is CommitPath.NATIVE:
                self._write_together()
            elif plan.path is CommitPath.LONG:
                self._write_long(plan)
        except (Conflict, OutcomeUnknown, TransactWriteError) as error:
            found = fates.found(self._options, plan.path, error)
            if found is None:
                fates.ask_later(self._options, plan.path, error)
                if event_stream.listeners and plan.path is not CommitPath.SINGLE:  # a single write reports itself
                    reports.commit_failed(self._options.id, self._members[0].table if self._members else "", error)
                raise
            if found == self._options.id:
                self._note_commit()
            return found != self._options.id
        return False

    def _note_commit(self) -> None:
        """Update the instances: the key shows that the transaction was committed, although the response was lost."""
        if self._long is not None:
            self._long.conclude()
        elif self._assembly is not None:
            self._assembly.note_commit()

    def _validate(self) -> None:
        with conflicts(TransactWriteError):
            validate(self._members, self._resolver(), is_snapshot=True)

    def _resolver(self) -> Resolver:
        return Resolver(deadline=self._options.deadline, priority=self._options.priority)

    def _write_one(self) -> None:
        [member] = self._members
        assert member.writer is not None  # noqa: S101 - it has a write
        member.writer._write(member.final())

    def _write_together(self) -> None:
        assembly = self._assembly = Assembly()
        for i, member in enumerate(self._members):
            assemble(assembly, i, member)
        assembly.before_commit()
        try:
            with assembly.last_under_locks():
                Commit(
                    self._connections()[0],
                    list(assembly.actions.values()),
                    [*assembly.guards, *fates.key_action(self._options), *fates.record_action(self._options)],
                    self._options.id,
                    may_change_token=True,
                    options={},
                    resolver=self._resolver(),
                ).send()
        except BaseException as error:
            assembly.note_refusal(error)
            raise
        assembly.note_commit()

    def _connections(self) -> list[Connection]:
        """Return the connections of the items, then that of the headers: it alone if only the key is written."""
        connections = [member.item._get_connection().connection for member in self._members]
        header_table = self._options.header_table
        return connections if header_table is None else [*connections, header_table.connection]

    def _write_long(self, plan: Plan) -> None:
        self._long = LongCommit(self._members, plan, self._options, extra=fates.key_action(self._options))
        try:
            self._long.run()
        except CannotBeStaged as error:
            raise _too_large(error) from error


def _too_large(error: CannotBeStaged) -> ConfigurationError:
    return ConfigurationError(
        f"this transaction is too large for one native transaction, and {error}. Declare `lock = LockAttribute()` on "
        f"their models, name the transaction's table in their Meta.transaction_table, read items that expire in the "
        f"transaction (a mark needs a day), or write fewer such items in it. Nothing was written."
    )


def _facts(member: Member, table: str | None, *, is_long: bool) -> MemberFacts:
    write = member.write
    if is_long:  # else `final` checks it before anything is sent
        check_key(member.item, member.key)
    measure = images.size_of if is_long else images.rough_size_of
    is_deleted = write is not None and write.operation is DELETE
    after = {} if is_deleted or isinstance(member.after, Unread) else member.after or {}
    is_counted = member.writer is not None and member.writer.is_locked  # the lock's entry refuses a second copy
    facts = MemberFacts(
        is_write=write is not None,
        is_absent=member.is_absent,
        needs_token=write is not None and write.is_sent_once and not is_counted,
        size=measure(after) if write is not None else item_size(member),
        before_size=measure(member.stored),
    )
    if not is_long or write is None:  # only writes are marked
        return facts
    return replace(
        facts,
        can_be_marked=can_be_marked(member, table),
        wants_direct=facts.size > commit_paths.LARGE_BYTES,
    )
