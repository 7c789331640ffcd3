"""What several contenders share: the counter, a plain PynamoDB model, and low-level clients.

All of them, also those on boto3, use clients alike: no validation of parameters (as PynamoDB), a pool that is large
enough for 128 threads, and boto3's standard retries. So they differ in the requests that they make.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import botocore.config
import botocore.session
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from typing_extensions import override

from benchmarks.contenders.base import Contender, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Connections of one client; 128 threads and those that renew.
POOL: Final = 160
REGION: Final = "us-east-1"
CREDENTIALS: Final = {"aws_access_key_id": "dummy", "aws_secret_access_key": "dummy"}

#: The counter is about 500 bytes with it.
_BODY: Final = "x" * 450


class CounterFields:
    """The attributes of a counter, to be mixed into a model."""

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default=_BODY)
    total = NumberAttribute(default=0)


def meta(place: Place, table: str, **more: Any) -> Any:
    """Return the ``Meta`` of a model there."""
    settings = {"table_name": place.prefix + table, "host": place.host, "region": REGION, **CREDENTIALS}
    return type("Meta", (), {**settings, "max_pool_connections": POOL, **more})


def connected(model: Any) -> Any:
    """Return the model, with its client made: it is slow to make, and botocore must not do so in two threads."""
    connection = model._get_connection().connection
    connection._local.session = _session()
    assert connection.client  # noqa: S101 - a property that makes it
    return model


def low_level_client(place: Place) -> Any:
    """Return a client for requests by hand."""
    config = botocore.config.Config(
        parameter_validation=False, max_pool_connections=POOL, retries={"mode": "standard", "total_max_attempts": 4}
    )
    create_client: Any = _session().create_client
    return create_client("dynamodb", region_name=REGION, endpoint_url=place.host, config=config)


def create_table(client: Any, name: str, *keys: str) -> None:
    """Make a table on demand, whose one or two keys are strings."""
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        KeySchema=[{"AttributeName": key, "KeyType": role} for key, role in zip(keys, ("HASH", "RANGE"), strict=False)],
        BillingMode="PAY_PER_REQUEST",
    )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})


@functools.cache
def _session() -> botocore.session.Session:
    """Return the one of this process: to load botocore's model of DynamoDB takes 0.1 s."""
    session = botocore.session.get_session()
    session.set_credentials(CREDENTIALS["aws_access_key_id"], CREDENTIALS["aws_secret_access_key"])
    return session


class ModelCounter(Contender):
    """A contender whose counter is an item of a PynamoDB model.

    Attributes:
        counters: the model.
    """

    counters: Any

    @override
    def create(self, keys: Sequence[str]) -> None:
        self.counters.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        for key in keys:
            self.counters(key).save()

    @override
    def total(self, key: str) -> int:
        return int(self.counters.get(key, consistent_read=True).total)

    @override
    def close(self) -> None:
        self.counters._get_connection().connection.client.close()


class PlainCounter(ModelCounter):
    """Of a model that protects nothing. With a lock beside it, that is all that protects it."""

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        super().__init__(place, poll_s=poll_s, lease_s=lease_s)

        class Counter(CounterFields, Model):
            Meta: Any = meta(place, "counters")

        self.counters = connected(Counter)

    @override
    def add(self, key: str) -> None:
        with self.hold(key):
            self.raise_total(key)

    def raise_total(self, key: str) -> None:
        """Read the counter, add 1, write it: one GetItem and one PutItem."""
        counter = self.counters.get(key, consistent_read=True)
        counter.total += 1
        counter.save()
