"""The rows by which the fate of a transaction is known: its idempotency key and its record.

Each is written by the native transaction that decides, and so exists exactly if the transaction was applied. Its place
can be taken for good instead: then no copy of that transaction, however late, is applied any more.

The row of a suspended transaction is deleted by it instead.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.commit_paths import CommitPath
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import Header, State, row_of_key
from pynamo_locking._io import header_requests, runtime
from pynamo_locking._io.retries import Unavailable, persistently
from pynamo_locking._io.transactional_reads import get_together
from pynamo_locking._items.keys import own_keys_of
from pynamo_locking._transactions.transaction_table import TransactionTable
from pynamo_locking._writes.native import TransactAction
from pynamo_locking._writes.resolving import Question
from pynamo_locking.exceptions import OutcomeUnknown

if TYPE_CHECKING:
    from pynamo_locking._core.outcome import Resolution
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.options import TransactionOptions


#: What the name of the row of a suspended transaction begins with.
SUSPENDED: Final = "suspended#"


def is_own_row(member: Member) -> bool:
    """Tell whether an item is a row of the transactions' own table."""
    return issubclass(member.model, TransactionTable)


def suspended_id(member: Member) -> str:
    """Return the id of the suspended transaction whose row this is; empty for any other item."""
    name = (own_keys_of(member.model).name_in(member.key) or "") if is_own_row(member) else ""
    return name.removeprefix(SUSPENDED) if name.startswith(SUSPENDED) else ""


def needs_table(options: TransactionOptions) -> bool:
    """Tell whether a transaction of any size writes such a row."""
    return options.record or options.idempotency_key is not None


def check_table(options: TransactionOptions) -> HeaderTable:
    """Return where the rows are; `ConfigurationError` if there is no table for them."""
    if options.header_table is None:
        raise ConfigurationError(
            "a transaction of more than 100 actions, or with an idempotency key or a record, needs a TransactionTable: "
            "pass it to transaction(), or name it in Meta.transaction_table of a model."
        )
    return options.header_table


def key_action(options: TransactionOptions) -> list[TransactAction]:
    """Return the action that stores the idempotency key, and fails if the key is stored."""
    if options.idempotency_key is None:
        return []
    row = row_of_key(options.idempotency_key)
    return [TransactAction(header_requests.once(check_table(options), row, options.id))]


def record_action(options: TransactionOptions) -> list[TransactAction]:
    """Return the action that stores the record of a native transaction, which is a header that is finished."""
    if not options.record:
        return []
    return [TransactAction(header_requests.record(check_table(options), _header(options, State.FINISHED)))]


def _header(options: TransactionOptions, state: State, by: str = "") -> Header:
    return Header(options.id, state, options.priority, options.owner, by=by)


def found(options: TransactionOptions, path: CommitPath, error: Exception) -> str | None:
    """Return the id of the transaction that was committed although this one got an error: an earlier one, or itself."""
    if not needs_table(options):
        return None
    try:
        if options.idempotency_key is not None:
            return header_requests.key_holder(check_table(options), row_of_key(options.idempotency_key))
        if path is CommitPath.NATIVE and isinstance(error, OutcomeUnknown):
            header = persistently(partial(header_requests.read, check_table(options), options.id))
            return None if header is None or not header.state.is_committed else options.id
    except Unavailable:
        pass
    return None


def is_done(options: TransactionOptions) -> bool:
    """Tell whether a transaction with this idempotency key was committed, also if its rows show before its key does."""
    table, row = check_table(options), row_of_key(str(options.idempotency_key))
    get_together(table.connection, [{"Get": {"TableName": table.table, "Key": table.key(row)}}])  # settles it
    return header_requests.key_holder(table, row) is not None


def ask_later(options: TransactionOptions, path: CommitPath, error: Exception) -> None:
    """Let `OutcomeUnknown.resolve` ask the row of a native transaction: it tells where its items may not.

    Of several attempts with one key, the key tells of all, and so does the error of the last one.
    """
    has_key = options.idempotency_key is not None
    is_told = (path is CommitPath.NATIVE and needs_table(options)) or (has_key and bool(options.earlier))
    if is_told and isinstance(error, OutcomeUnknown):
        error.write_id = options.id  # as in the rows; a native transaction may have been sent under other tokens
        ask = _by_key if has_key else _by_record
        error._question = Question(partial(ask, options, check_table(options), runtime.current.monotonic()))


def _may_have_expired(since: float, keep_s: int) -> bool:
    """Tell whether a row of that time may be gone by now. Half of the time is for clocks that differ."""
    return runtime.current.monotonic() - since > keep_s / 2


def _by_record(options: TransactionOptions, table: HeaderTable, since: float) -> Resolution:
    if _may_have_expired(since, table.keep.keep_finished_s):
        stored = persistently(partial(header_requests.read, table, options.id))
        return "unknown" if stored is None else _said_by(stored)
    return _said_by(header_requests.give_up(table, _header(options, State.ABORTED, by="itself")))


def _said_by(header: Header) -> Resolution:
    return "applied" if header.state.is_committed else "not applied"


def _by_key(options: TransactionOptions, table: HeaderTable, since: float) -> Resolution:
    row = row_of_key(str(options.idempotency_key))
    attempts = (*options.earlier, options.id)
    if _may_have_expired(since, table.keep.keep_keys_s):
        return "applied" if header_requests.key_holder(table, row) in attempts else "unknown"
    return "applied" if header_requests.abandon(table, row, attempts) in attempts else "not applied"
