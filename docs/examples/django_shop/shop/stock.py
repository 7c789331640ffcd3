"""What is in stock: in DynamoDB, where any number of shops can share it."""

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute


class Stock(LockableModel):
    """How much of a product was received, and how much was sold."""

    class Meta:
        table_name = "stock"

    product = UnicodeAttribute(hash_key=True)
    received = NumberAttribute(default=0)
    sold = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()

    @property
    def left(self) -> int:
        return int(self.received - self.sold)
