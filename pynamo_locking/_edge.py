"""The one door through which the command line, the frameworks and telemetry reach behind the public names."""

from pynamo_locking._core.error_codes import NO_TABLE
from pynamo_locking._core.lease import LONGEST_LEASE_S, believed
from pynamo_locking._core.naming import plain, text_of_ms
from pynamo_locking._io import runtime
from pynamo_locking._items import key_text
from pynamo_locking._locks import inspection
from pynamo_locking._models import administration, entity_tags
from pynamo_locking._transactions import recovery
from pynamo_locking._transactions.options import TransactionKeywords

__all__ = [
    "LONGEST_LEASE_S",
    "NO_TABLE",
    "TransactionKeywords",
    "administration",
    "believed",
    "entity_tags",
    "inspection",
    "key_text",
    "plain",
    "recovery",
    "runtime",
    "text_of_ms",
]
