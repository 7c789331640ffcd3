"""The options of a transaction, checked before any request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import LONGEST_LEASE_S, Duration, is_count, seconds
from pynamo_locking._core.transactions import row_of_key
from pynamo_locking._items import versions
from pynamo_locking._items.keys import is_implied
from pynamo_locking._models.writes import GuardedMixin
from pynamo_locking._pynamodb import range_attribute_of
from pynamo_locking._transactions.transaction_table import check_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._models.isolation import Level


#: A commit renews its lease between requests; a shorter lease could end within a slow request.
MIN_LEASE_S: Final = 3.0


def check_model(model: Any) -> None:
    """Refuse a model without versions and write ids: its items could be confused with later ones of the same key."""
    if not (isinstance(model, type) and issubclass(model, GuardedMixin)):
        raise ConfigurationError(f"{model!r} cannot take part in a transaction: derive it from VersionedMixin.")
    shape = versions.shape_of(model)
    if shape.attribute is None or shape.write_id is None:
        raise ConfigurationError(
            f"{model.__name__} cannot take part in a transaction: declare `version = VersionAttribute()`, and keep "
            f"its write ids (Meta.write_id)."
        )


#: The options of a query in a transaction, apart from its conditions.
_QUERY_OPTIONS: Final = frozenset({"scan_index_forward", "limit", "page_size", "rate_limit"})


def check_query(model: Any, level: Level, options: dict[str, Any]) -> None:
    """Refuse a query that cannot keep the promise of the transaction's isolation."""
    unknown = sorted(options.keys() - _QUERY_OPTIONS - {"index_name"})
    if unknown:
        raise ConfigurationError(
            f"the query of a transaction reads whole items, consistently, from the first one: it takes "
            f"{', '.join(sorted(_QUERY_OPTIONS))}, and not {', '.join(unknown)}."
        )
    if options.get("index_name") is not None:
        raise ConfigurationError(
            "an index is eventually consistent, so a transaction cannot query it: query it outside, and get() "
            "the items in the transaction."
        )
    if level.checks_reads and not is_guarding(model):
        raise ConfigurationError(
            f"other transactions could add items to the query of {model.__name__} before this one is committed. "
            f"Set Meta.guard_queries = True (its items are then created and deleted by transactions only), or "
            f"use isolation='read_committed'."
        )


def check_scan(model: Any, level: Level, at_most: Any) -> None:
    """Refuse a scan that cannot keep the promise of the transaction's isolation, or has no bound."""
    if not is_count(at_most):
        raise ConfigurationError(f"at_most must be a whole number above 0, not {at_most!r}.")
    if level.checks_reads and not is_guarding_table(model):
        raise ConfigurationError(
            f"other transactions could add items to the scan of {model.__name__} before this one is committed. Set "
            f'Meta.guard_queries = "table" (its items are then created and deleted by transactions only, which all '
            f"write one row), or use isolation='read_committed'."
        )


def values_of_key(model: type[Model], key: Any) -> tuple[Any, Any]:
    """Return the hash key and the range key of what names one item: a tuple of both if the model has a range key."""
    if range_attribute_of(model) is None or is_implied(range_attribute_of(model)):
        return key, None
    if not isinstance(key, (tuple, list)) or len(key) != 2:  # noqa: PLR2004 - both
        raise ConfigurationError(f"{key!r:.80} is no key of {model.__name__}: it takes (hash key, range key).")
    return key[0], key[1]


def is_guarding(model: Any) -> bool:
    """Tell whether transactions that create or delete items of a model increment a guard for its queries."""
    return bool(getattr(model.Meta, "guard_queries", False))


def is_guarding_table(model: Any) -> bool:
    """Tell whether one guard row covers the whole table, instead of one for each hash key."""
    return bool(getattr(model.Meta, "guard_queries", False) == "table")


def check_options(table: Any, idempotency_key: Any, workers: Any) -> None:
    """Refuse options that cannot work."""
    if table is not None:
        check_table(table)
    if idempotency_key is not None:
        row_of_key(idempotency_key)
    if not is_count(workers):
        raise ConfigurationError(f"workers must be a whole number above 0, not {workers!r}.")


def checked_lease(lease: Duration) -> float:
    """Return the lease of a transaction in seconds."""
    result = seconds(lease, "lease")
    if not MIN_LEASE_S <= result <= LONGEST_LEASE_S:
        raise ConfigurationError(
            f"the lease of a transaction must be at least {MIN_LEASE_S} s, and at most a day "
            f"({LONGEST_LEASE_S:,.0f} s): {lease!r}."
        )
    return result


class TransactionKeywords(TypedDict, total=False):
    """The options of `Transaction`."""

    isolation: str
    read_only: bool
    wait: Duration
    lease: Duration
    idempotency_key: str | None
    record: bool
    owner: str | None
    workers: int
    on_progress: Callable[[int, int], object] | None


@dataclass(frozen=True)
class TransactionOptions:
    """How a transaction is committed: see `Transaction`. `priority` is its age, `deadline` by the monotonic clock.

    `earlier` has the ids of earlier attempts at the same work: a copy of one of them may still arrive.
    """

    id: str
    priority: str
    owner: str
    lease: float
    deadline: Deadline
    workers: int
    idempotency_key: str | None = None
    record: bool = False
    on_progress: Callable[[int, int], object] | None = None
    earlier: tuple[str, ...] = ()
    record_table: RecordTable | None = None
