"""Everybody who counts up an item that others count up as well: this package, and what people use instead.

The algorithms of others are written from their sources, which each module names, request by request, with their
published defaults.
"""

from __future__ import annotations

from typing import Final

from benchmarks.contenders.aws_lock_client import AwsLockClient
from benchmarks.contenders.base import Contender, Place, Turn
from benchmarks.contenders.optimistic import RetryLoop
from benchmarks.contenders.ours import Combine, Edit, LockedInItem, LockedInRow, Modify, Named
from benchmarks.contenders.postgres import PostgreSQL
from benchmarks.contenders.python_dynamodb_lock import PythonDynamoDBLock
from benchmarks.contenders.seed_lease import SeedLease
from benchmarks.contenders.ticket_seed import TicketScheme
from benchmarks.contenders.unprotected import Unprotected

__all__ = ["CONTENDERS", "Contender", "Place", "Turn"]

_IN_ORDER: Final[tuple[type[Contender], ...]] = (
    Unprotected,
    RetryLoop,
    Edit,
    LockedInItem,
    LockedInRow,
    Named,
    Modify,
    Combine,
    TicketScheme,
    AwsLockClient,
    PythonDynamoDBLock,
    SeedLease,
    PostgreSQL,
)

#: All, in the order of the tables.
CONTENDERS: Final[dict[str, type[Contender]]] = {each.name: each for each in _IN_ORDER}
