"""The one door through which the command line, the frameworks and telemetry reach behind the public names."""

from pynamo_locking._core.dynamodb import NO_TABLE
from pynamo_locking._core.lease import LONGEST_LEASE_S, believed
from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._core.row_keys import brief, plain, text_of_ms
from pynamo_locking._io import lock_record, runtime
from pynamo_locking._io.model_doors import (
    endpoint_of,
    has_lock_place,
    lock_attribute_of,
    lock_table_of,
    lock_target_of,
)
from pynamo_locking._io.runtime import logger
from pynamo_locking._items import keys, versions
from pynamo_locking._locks import inspection
from pynamo_locking._locks.lock import handle_of
from pynamo_locking._models import tables
from pynamo_locking._pynamodb import connection_of, has_connection, set_connection, ttl_attribute_of
from pynamo_locking._transactions import recovery
from pynamo_locking._transactions.options import TransactionKeywords
