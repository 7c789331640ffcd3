"""The one door through which the command line, the frameworks and telemetry reach behind the public names."""

from pynamo_locking._core import transitions
from pynamo_locking._core.error_codes import NO_TABLE
from pynamo_locking._core.lease import LONGEST_LEASE_S, believed
from pynamo_locking._core.naming import plain, text_of_ms
from pynamo_locking._core.queue import LockState, Mark
from pynamo_locking._core.transitions import Breach
from pynamo_locking._io import header_requests, lock_document, runtime
from pynamo_locking._items import key_text
from pynamo_locking._items.keys import own_keys_of
from pynamo_locking._locks import inspection
from pynamo_locking._models import administration, entity_tags
from pynamo_locking._models.administration import Audited, audited
from pynamo_locking._transactions import recovery
from pynamo_locking._transactions.options import TransactionKeywords

__all__ = [
    "LONGEST_LEASE_S",
    "NO_TABLE",
    "Audited",
    "Breach",
    "LockState",
    "Mark",
    "TransactionKeywords",
    "administration",
    "audited",
    "believed",
    "entity_tags",
    "header_requests",
    "inspection",
    "key_text",
    "lock_document",
    "own_keys_of",
    "plain",
    "recovery",
    "runtime",
    "text_of_ms",
    "transitions",
]
