"""The stream of an engine: of DynamoDB Local its own, of the engine in memory one that is made of its changes."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking.testing._tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.models import Model

    from tests.engines.engine import Engine

_NUMBER: Final = itertools.count(1)


def record_of(
    table: str, keys: list[str], old: Any, new: Any, *, at_s: float = 0.0, is_by_ttl: bool = False
) -> dict[str, Any]:
    """Return the record of one change, in the form of a Lambda event."""
    name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
    told = {"Keys": {key: (old or new)[key] for key in keys}, "ApproximateCreationDateTime": at_s}
    told |= {"OldImage": old} if old is not None else {}
    told |= {"NewImage": new} if new is not None else {}
    number = f"{next(_NUMBER):021}"
    record = {
        "eventID": f"event-{number}",
        "eventName": name,
        "eventSourceARN": f"arn:aws:dynamodb:us-east-1:000000000000:table/{table}/stream/2026-11-23T00:00:00.000",
        "dynamodb": {**told, "SequenceNumber": number, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }
    if is_by_ttl:
        record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    return record


class Stream:
    """The records of some tables of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._models: list[type[Model]] = []
        self._kept: list[dict[str, Any]] = []
        self._read: dict[str, int] = {}
        self._ends: list[Any] = []
        self._client: Any = None

    def bind(self, *models: type[Model]) -> None:
        """Give each model a fresh table with a stream."""
        for model in models:
            self.engine.bind(model)
            self._models.append(model)
            if self.engine.name == "dynamodb-local":
                self.engine.client().update_table(
                    TableName=model.Meta.table_name,
                    StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
                )

    def keep(self, record: dict[str, Any]) -> None:
        """Add a record, of an engine that has no streams."""
        self._kept.append(record)

    def new_records(self) -> list[dict[str, Any]]:
        """Return what has happened since the last call, in order for each table."""
        if self.engine.name == "memory":
            found, self._kept = self._kept, []
            return found
        return [record for model in self._models for record in self._of_table(model.Meta.table_name)]

    def _of_table(self, table: str) -> list[dict[str, Any]]:
        """Return the new records of a table, which come late: one of our own after them is waited for."""
        session: Any = self.engine._session
        plain = self.engine.client()
        description = plain.describe_table(TableName=table)["Table"]
        types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
        text, arn = f"end-{next(_NUMBER)}", description["LatestStreamArn"]
        values = {"S": text, "N": str(next(_NUMBER)), "B": text.encode()}
        end = {
            each["AttributeName"]: {types[each["AttributeName"]]: values[types[each["AttributeName"]]]}
            for each in description["KeySchema"]
        }
        plain.put_item(TableName=table, Item=end)
        self._ends.append(end)
        client = self._client = self._client or session.create_client(
            "dynamodbstreams", region_name="us-east-1", endpoint_url=self.engine.host, **self.engine.credentials
        )
        records: list[dict[str, Any]] = []
        while not any(record["dynamodb"]["Keys"] == end for record in records):
            shards = client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
            records = [record for shard in shards for record in _of_shard(client, arn, shard["ShardId"])]
        read, self._read[table] = self._read.get(table, 0), len(records)
        return [_mended(record) for record in records[read:] if record["dynamodb"]["Keys"] not in self._ends]


def _mended(record: Any) -> Any:
    """Return a record with its empty maps: DynamoDB Local leaves out what an attribute is if it is an empty map."""
    if isinstance(record, dict):
        return {name: _mended(value) for name, value in record.items()} if record else {"M": {}}
    return [_mended(value) for value in record] if isinstance(record, list) else record


def _of_shard(client: Any, arn: str, shard: str) -> Iterator[dict[str, Any]]:
    position = client.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    while position is not None:
        answer = client.get_records(ShardIterator=position)
        if not answer["Records"]:
            return
        yield from ({**record, "eventSourceARN": arn} for record in answer["Records"])
        position = answer.get("NextShardIterator")


@contextmanager
def stream_of(engine: Engine) -> Iterator[Stream]:
    """Keep the records of an engine while the block runs."""
    stream, replace = Stream(engine), Table.replace

    def see(self: Table, old: Any, new: Any) -> int:
        answer = replace(self, old, new)
        images = [None if each is None else each.item for each in (old, new)]
        if images[0] != images[1]:
            keys = [each["AttributeName"] for each in self.description["KeySchema"]]
            stream.keep(record_of(self.name, keys, *images, at_s=engine._memory.time_ms() / 1000))  # type: ignore[union-attr]
        return answer

    with pytest.MonkeyPatch.context() as patch:
        if engine.name == "memory":
            patch.setattr(Table, "replace", see)
        try:
            yield stream
        finally:
            if stream._client is not None:
                stream._client.close()
