"""What a transaction reads, as it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._models.writing import GuardedMixin
from pynamo_locking._transactions.item_locks import locking
from pynamo_locking._transactions.options import check_model, check_query, check_scan, values_of_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._transactions.item_locks import Locking
    from pynamo_locking._transactions.members import Members

_M = TypeVar("_M", bound=GuardedMixin)


class Reads:
    """The reads of a `Transaction`."""

    _isolation: str
    _is_over: bool
    _forks: int
    _members: Members

    def _check_open(self) -> None:
        if self._is_over:
            raise ConfigurationError("this transaction has ended: begin a new one.")
        if self._forks != runtime.forks:
            raise ConfigurationError(
                "this transaction was begun before this process was forked, or restored from a snapshot, and its "
                "copies have the same id: begin a new one here."
            )

    def get(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M:
        """Return an item as the transaction sees it: read consistently, and with the changes by the transaction.

        Args:
            model: the model.
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            for_update: acquire the item's queue lock first, and hold it until the end: first come, first served, and
                no other process writes the item meanwhile. Worth it under high contention. Of an absent item the name
                is locked, in ``Meta.lock_table``, so that callers that want to create it queue.
            for_share: acquire the lock together with other readers. The commit checks the item under every isolation,
                and the transaction cannot write it: there is no upgrade.

        Raises:
            DoesNotExist: there is no such item, or the transaction has deleted it.
            LockTimeout: the lock was not free in time.
            TransactionConflict: another live transaction has marked the item, and `wait` is over.
            ConfigurationError: the model has no version; or the transaction has ended; or it has read the item with
                `for_share` and asks for more.

        Cost: 1 consistent read the first time, none afterwards; 1 more and 1 write at most if another transaction has
        marked the item. With `for_update` and `for_share` 1 write to enter the queue, and 1 to leave it; of an absent
        item with a `LockAttribute` 2 refused writes more.
        """
        wanted = locking(for_update=for_update, for_share=for_share, refuses_absent=False)
        [found] = self._read(model, [(hash_key, range_key)], wanted)
        if found is None:
            raise model.DoesNotExist("There is no such item.")
        return found

    def get_or_none(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M | None:
        """Return an item, or None if it does not exist; the commit then checks that it is still absent. See `get`.

        Raises:
            ConfigurationError: an absent item was to be locked, and the model has no ``Meta.lock_table``.
        """
        [found] = self._read(model, [(hash_key, range_key)], locking(for_update=for_update, for_share=for_share))
        return found

    def get_all(
        self, model: type[_M], keys: Iterable[Any], *, for_update: bool = False, for_share: bool = False
    ) -> list[_M | None]:
        """Return the items of many keys, each as by `get_or_none`, in the order of the keys.

        Args:
            model: the model.
            keys: the hash keys; tuples of hash key and range key if the model has one. The same key twice gives the
                same instance twice.
            for_update: acquire the queue locks of all items first, in one canonical order; see `get`.
            for_share: the same, among readers.

        Raises:
            LockTimeout, TransactionConflict, ConfigurationError: as `get_or_none`.
            GetError: DynamoDB was too busy to read some items, until `wait` was over; or refused the request.

        Cost: 1 request for each hundred items that were not read yet, with the read units of single reads; 1 more
        for each 16 MB, and for each time that DynamoDB is too busy for some. What `get` takes for marks and locks.
        """
        wanted = locking(for_update=for_update, for_share=for_share)
        return self._read(model, (values_of_key(model, key) for key in keys), wanted)

    def _read(self, model: type[_M], values: Iterable[tuple[Any, Any]], wanted: Locking | None) -> list[_M | None]:
        self._check_open()
        check_model(model)
        members = self._members.read_all(model, list(values), wanted)
        return [None if member.look() is None else cast("_M", member.item) for member in members]

    def query(
        self,
        model: type[_M],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        **options: Any,
    ) -> list[_M]:
        """Return the items of a hash key as the transaction sees them, each read as by `get`.

        The items that are found take part like those of `get`; with a `limit`, those up to the last one returned. That
        no further item *appears* until the commit is guaranteed only for models with ``Meta.guard_queries = True``,
        whose items are created and deleted by transactions alone: each such transaction then increments a row of the
        hash key in the `TransactionTable`, and the commit checks the row.

        Args:
            model: the model.
            hash_key: the hash key.
            range_key_condition: on the range key.
            filter_condition: on the stored items; items that the transaction has changed are judged as it sees them.
            **options: `scan_index_forward`, `limit`, `page_size` and `rate_limit` of PynamoDB's `Model.query`. Not an
                index, which is eventually consistent, nor parts of items.

        Raises:
            ConfigurationError: an index was named; or the isolation is serializable and the model does not guard
                its queries.

        Cost: that of the query, whose pages with a `limit` start there and double; and 1 read and at most 1 write
        for each item that another transaction has marked, a hundred and 25 in a request. With guarded queries 1
        more, and 1 transactional read for each hundred items that the last transactions, nine at most, have created
        and deleted.
        """
        self._check_open()
        check_model(model)
        check_query(model, self._isolation, options)
        return self._members.query(model, hash_key, range_key_condition, filter_condition, options)

    def scan(self, model: type[_M], filter_condition: Condition | None = None, *, at_most: int) -> list[_M]:
        """Return the items of a small table as the transaction sees them, in no order, each read as by `get`.

        All of them take part. That no further item appears until the commit is guaranteed only for models with
        ``Meta.guard_queries = "table"``: see `query`. Then one row stands for the whole table.

        Args:
            model: the model.
            filter_condition: on what the transaction sees. All items are read, and take part.
            at_most: how many rows the table may have, with expired ones and those that a transaction is about to store.

        Raises:
            ConfigurationError: the table has more items; or the isolation is serializable and the model does not guard
                its table.

        Cost: that of a consistent scan, and otherwise that of `query`.
        """
        self._check_open()
        check_model(model)
        check_scan(model, self._isolation, at_most)
        return self._members.scan(model, filter_condition, at_most)
