"""What several contenders share: the counter, a plain PynamoDB model, and low-level clients.

All of them, also those on boto3, use clients alike: no validation of parameters (as PynamoDB), a pool that is large
enough for 128 threads, and boto3's standard retries. So they differ in the requests that they make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import botocore.config
import botocore.session
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from typing_extensions import override

from benchmarks.contenders.base import Contender, Place, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Connections of one client; 128 threads and those that renew.
POOL: Final = 160
REGION: Final = "us-east-1"
CREDENTIALS: Final = {"aws_access_key_id": "dummy", "aws_secret_access_key": "dummy"}

#: The counter is about 500 bytes with it.
_BODY: Final = "x" * 450
_SESSIONS: Final[list[botocore.session.Session]] = []


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


def plain_counters(place: Place) -> Any:
    """Return a PynamoDB model that protects nothing."""

    class Counter(CounterFields, Model):
        Meta: Any = meta(place, "counters")

    return connected(Counter)


def create_counters(model: Any, keys: Sequence[str]) -> None:
    """Make the table of a model, and its items."""
    model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    for key in keys:
        model(key).save()


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


def _session() -> botocore.session.Session:
    """Return the one of this process: to load botocore's model of DynamoDB takes 0.1 s."""
    if not _SESSIONS:
        session = botocore.session.get_session()
        session.set_credentials(CREDENTIALS["aws_access_key_id"], CREDENTIALS["aws_secret_access_key"])
        _SESSIONS.append(session)
    return _SESSIONS[0]


class PlainCounter(Contender):
    """A contender whose counter is a plain PynamoDB model. With a lock beside it, that is all that protects it."""

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        self.poll = poll_s if poll_s is not None else self.poll_s or 0.0
        self.lease = lease_s
        self.counters = plain_counters(place)

    @override
    def create(self, keys: Sequence[str]) -> None:
        create_counters(self.counters, keys)

    @override
    def add(self, key: str) -> Turn | None:
        with self.hold(key):
            self.raise_total(key)
        return None

    def raise_total(self, key: str) -> int:
        """Read the counter, add 1, write it, and return it: one GetItem and one PutItem."""
        counter = self.counters.get(key, consistent_read=True)
        counter.total += 1
        counter.save()
        return int(counter.total)

    @override
    def total(self, key: str) -> int:
        return int(self.counters.get(key, consistent_read=True).total)

    @override
    def close(self) -> None:
        self.counters._get_connection().connection.client.close()
