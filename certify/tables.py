"""The tables of a run.

A table without the mark is never touched.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from certify.contract.rows import code_of
from pynamo_locking._facade import NO_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from certify.plan import Place


#: The key of each table.
KINDS: Final = {"contract": "pk", "items": "pk", "locks": "name", "transactions": "id"}

#: The index by which a table of a run is known. The request that creates the table creates it as well. It costs
#: nothing, since no item has its key. A tag would do, but DynamoDB Local has no tags.
MARK: Final = "pynamo-locking-certify"
_MARK_KEY: Final = "certify_mark"

#: Creating or deleting a table takes a Region some ten seconds.
_PATIENCE_S: Final = 300.0
_POLL_S: Final = 0.5
_PASSING: Final = {"LimitExceededException", "ResourceInUseException", "ThrottlingException"}


class ForeignTable(Exception):  # noqa: N818 - what the person is told
    """A table has a name that a run needs, and is not one of a run."""


class Tables:
    """The tables of a run.

    Args:
        place: where they are.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: Any = client_of(place)

    @property
    def names(self) -> list[str]:
        """The names of all tables."""
        return [self._place.table(kind) for kind in KINDS]

    @property
    def endpoint(self) -> str:
        """The URL that requests go to."""
        return str(self._client.meta.endpoint_url)

    @property
    def region(self) -> str:
        """The Region."""
        return str(self._client.meta.region_name)

    def there(self) -> list[str]:
        """Return the tables that an earlier run has left.

        Raises:
            ForeignTable: a table of such a name has no mark.
        """
        found = []
        for name in self.names:
            description = self._described(name)
            if description is None:
                continue
            if MARK not in {index["IndexName"] for index in description.get("GlobalSecondaryIndexes", ())}:
                raise ForeignTable(
                    f"there is a table {name} that this command has not made: it lacks the index {MARK}. Nothing was "
                    f"changed. Choose another prefix."
                )
            found.append(name)
        return found

    def create(self) -> None:
        """Create all of them, and wait until they can be used."""
        for kind, key in KINDS.items():
            self._client.create_table(
                TableName=self._place.table(kind),
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in (key, _MARK_KEY)],
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                GlobalSecondaryIndexes=[
                    {
                        "IndexName": MARK,
                        "KeySchema": [{"AttributeName": _MARK_KEY, "KeyType": "HASH"}],
                        "Projection": {"ProjectionType": "KEYS_ONLY"},
                    }
                ],
                BillingMode="PAY_PER_REQUEST",
            )
        for name in self.names:
            _until(lambda name=name: (self._described(name) or {}).get("TableStatus") == "ACTIVE")  # type: ignore[misc]

    def remove(self) -> list[str]:
        """Remove those that are there and have the mark, and wait until they are gone; return their names.

        Raises:
            ForeignTable: as for `there`; nothing was removed.
        """
        found = self.there()
        for name in found:
            _until(lambda name=name: self._is_told(name))  # type: ignore[misc]
        for name in found:
            _until(lambda name=name: self._described(name) is None)  # type: ignore[misc]
        return found

    def _is_told(self, name: str) -> bool:
        """Ask DynamoDB to delete a table; tell whether it does. It refuses while the table is being created."""
        try:
            self._client.delete_table(TableName=name)
        except ClientError as error:
            code = code_of(error)
            if code == NO_TABLE:
                return True
            if code not in _PASSING:
                raise
            description = self._described(name)
            return description is None or bool(description["TableStatus"] == "DELETING")
        return True

    def _described(self, name: str) -> dict[str, Any] | None:
        try:
            described: dict[str, Any] = self._client.describe_table(TableName=name)["Table"]
        except ClientError as error:
            if code_of(error) != NO_TABLE:
                raise
            return None
        return described


def client_of(place: Place, **options: Any) -> Any:
    """Return a low-level client."""
    config = Config(connect_timeout=5, read_timeout=20, max_pool_connections=32, **options)
    session: Any = botocore.session.get_session()
    return session.create_client("dynamodb", region_name=place.region, endpoint_url=place.endpoint, config=config)


def _until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    pause = 0.01
    while not is_so():
        if time.monotonic() > give_up:
            raise TimeoutError(f"a table was not created or deleted within {_PATIENCE_S:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S)
