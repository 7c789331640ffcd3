"""The table that carries what transactions of many items need beside their items."""

from __future__ import annotations

from pynamodb.attributes import NumberAttribute, TTLAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking._io import headers
from pynamo_locking.attributes import VersionAttribute
from pynamo_locking.tables import OwnTable
from pynamo_locking.versioned import VersionedMixin


class TransactionTable(OwnTable, VersionedMixin, Model):
    """The headers of transactions, by which they are decided, and rows that help to recover them.

    Subclass it with a table of its own, and name that in the ``Meta.transaction_table`` of your models::

        class Transactions(TransactionTable):
            class Meta:
                table_name = "transactions"
                region = "eu-west-1"

    Only transactions of more than a hundred actions, idempotency keys and guarded queries need it. It has to
    be in the account and Region of the items.

    Final headers are removed by DynamoDB's TTL after a day, rows of participants after thirty. Nothing depends
    on when that happens. Do not delete rows by hand: a header that is missing counts as aborted.
    """

    id: UnicodeAttribute = UnicodeAttribute(hash_key=True, attr_name=headers.ID)
    state: UnicodeAttribute = UnicodeAttribute(null=True, attr_name=headers.STATE)
    owner: UnicodeAttribute = UnicodeAttribute(null=True, attr_name=headers.OWNER)
    items: NumberAttribute = NumberAttribute(null=True, attr_name=headers.ITEMS)
    version: VersionAttribute = VersionAttribute(null=True)
    expires: TTLAttribute = TTLAttribute(null=True, attr_name=headers.EXPIRES)


def header_table_of(table: type[TransactionTable]) -> headers.HeaderTable:
    """Return a table of transactions as those who make its requests know it."""
    connection = table._get_connection()
    return headers.HeaderTable(connection.connection, connection.table_name)
