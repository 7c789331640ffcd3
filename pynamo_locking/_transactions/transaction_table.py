"""The table of the records and other rows that transactions of many items need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transactions import RetentionTimes
from pynamo_locking._io import transaction_record
from pynamo_locking._models.attributes import TTLAttribute, VersionAttribute
from pynamo_locking._models.awaited import awaited_read, awaited_write
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._models.tables import OwnTable
from pynamo_locking._transactions import recovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lease import Duration
    from pynamo_locking._transactions.recovery import SweepReport


class TransactionTable(OwnTable, VersionedMixin, Model):
    """The table of transaction records, which decide transactions, and of rows that help to recover them.

    Subclass it, with a separate table, and name the class in the ``Meta.transaction_table`` of your models. The table
    must be in the account and Region of the items.

    Example::

        class Transactions(TransactionTable):
            class Meta:
                table_name = "transactions"
                region = "eu-west-1"

        Transactions.create_table()

    Needed for transactions that have more than a hundred actions or are suspended, for `record=True`, for idempotency
    keys and for guarded queries.

    DynamoDB's TTL removes final records after a day, and participant rows after thirty; nothing depends on when that
    happens. To keep them longer, set these in the Meta, in seconds: ``keep_finished_s`` (final records, 86,400),
    ``keep_keys_s`` (idempotency keys, 86,400), ``keep_rows_s`` (participant rows, and aborted records that may have
    left intents, 2,592,000). The guard rows of queries stay: one for each hash key. Do not delete other rows by hand: a
    transaction without a record counts as aborted.

    With ``keys`` and ``prefix`` in the Meta the rows share a table with other items, as those of a `NamedLock` can.
    """

    _kind: ClassVar[str] = "transaction"
    _has_format: ClassVar[bool] = True
    _also_stored: ClassVar[frozenset[str]] = frozenset(
        {
            transaction_record.PRIORITY,
            transaction_record.BEAT,
            transaction_record.LEASE,
            transaction_record.UNTIL,
            transaction_record.BY,
            transaction_record.ROWS,
            transaction_record.EARLY,
            transaction_record.CLEAN,
            transaction_record.CONTENT,
            transaction_record.ABANDONED,
            "version_write_id",
        }
    )

    id: UnicodeAttribute = UnicodeAttribute(hash_key=True, attr_name=transaction_record.ID)
    state: UnicodeAttribute = UnicodeAttribute(null=True, attr_name=transaction_record.STATE)
    owner: UnicodeAttribute = UnicodeAttribute(null=True, attr_name=transaction_record.OWNER)
    items: NumberAttribute = NumberAttribute(null=True, attr_name=transaction_record.ITEMS)
    version: VersionAttribute = VersionAttribute(null=True)
    expires: TTLAttribute = TTLAttribute(null=True, attr_name=transaction_record.EXPIRES)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        RetentionTimes.of(getattr(cls, "Meta", None))

    @classmethod
    def outcome(cls, id: str | None = None, *, idempotency_key: str | None = None) -> str | None:  # noqa: A002
        """Return the state of a transaction, of its id or of its idempotency key.

        To be sure that an undecided one stays uncommitted, see `OutcomeUnknown.resolve` and `recover`.

        Args:
            id: its `Transaction.id`, which an `OutcomeUnknown` has as its `write_id`.
            idempotency_key: its key, whichever attempt was committed.

        Returns:
            ``"pending"``, ``"committed"`` (decided; some items may still have to be finished), ``"finished"`` or
            ``"aborted"``; of a key ``"committed"``. None if nothing is known. By its id: it had at most a hundred
            actions and left no `record`, or it ended more than a day ago, or it never began. By its key: it was not
            committed within a day, and may still be.

        Raises:
            LockingError: no response came.
            ConfigurationError: neither of the two was given, or both.

        Cost: 1 consistent read.
        """
        return recovery.outcome(transaction_record.record_table_of(cls), id, idempotency_key)

    @classmethod
    def recover(cls, id: str, *, force: bool = False) -> str | None:  # noqa: A002
        """Complete a transaction of many items: finish it if it is committed, else abort it and drop its intents.

        This waits for a live transaction until it is decided, or shows no sign of life for a whole lease.

        Args:
            id: its `Transaction.id`.
            force: abort it at once if it is undecided. Its commit then raises `TransactionAborted`, with the reason
                ``"requested"``.

        Returns:
            ``"finished"`` or ``"aborted"``; None if nothing is known of it.

        Raises:
            LockingError: no response came; another call is safe.

        Cost: 1 read for each of its items, a hundred in a request; 1 write for each intent that is left, 25 in a
        request; and 2 for its record.
        """
        return recovery.recover(transaction_record.record_table_of(cls), id, force=force)

    @classmethod
    def sweep(
        cls,
        *,
        segments: int = 1,
        dry_run: bool = False,
        on_progress: Callable[[SweepReport], object] | None = None,
        older_than: Duration = 0.0,
    ) -> SweepReport:
        """Complete all transactions of many items whose process has died, and remove the rows that they have left.

        Run it nightly or in a Lambda function. Correctness does not depend on it: it saves later readers and writers
        the work. It is safe to run concurrently with live transactions and with other sweeps. It observes a live
        transaction for one lease; a transaction with a lease of more than a day is not observed, and counts as failed.
        Broken rows do not stop it.

        Args:
            segments: how many parts of the table to scan at once.
            dry_run: only report what would be done.
            on_progress: called after each transaction.
            older_than: skip transactions that have begun, or were renewed, within so many seconds, by the clocks of
                their processes. A live one is then not observed, if it renews more often than that.

        Returns:
            What was found and done.

        Raises:
            LockingError: the table could not be scanned.

        Cost: a scan of the table, and that of `recover` for each transaction that needs it; 1 read for each transaction
        with overflow rows (changes that did not fit into intents), and 1 write for each of these rows if it has ended.
        If the process of an aborted transaction got no response for one of its intents, every sweep of the following
        day examines it: the intent may arrive late.
        """
        record_table = transaction_record.record_table_of(cls)
        options: Any = {"segments": segments, "dry_run": dry_run, "on_progress": on_progress, "older_than": older_than}
        return recovery.sweep(record_table, **options)

    @awaited_read(outcome)
    def aoutcome(self) -> None:
        """Return the state of a transaction, awaited. See `outcome`."""

    @awaited_write(recover)
    def arecover(self) -> None:
        """Complete a transaction of many items, awaited. See `recover`."""

    @awaited_write(sweep)
    def asweep(self) -> None:
        """Complete all transactions of many items whose process has died, awaited. See `sweep`."""


def check_table(table: Any) -> type[TransactionTable]:
    """Return a table of transactions, or say what is wrong with it."""
    if not (isinstance(table, type) and issubclass(table, TransactionTable)):
        raise ConfigurationError(f"the table of transactions must be a subclass of TransactionTable, not {table!r}.")
    return table
