"""The text in which a detached lock is passed on."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._io import lock_record
from pynamo_locking._io.stored_rows import decoded, encoded
from pynamo_locking._items.keys import deserialized_key, key_of
from pynamo_locking._pynamodb import connection_of, region_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode

#: What each token begins with, so that people know it.
_BEGIN: Final = "lock1."

#: No id that this package makes is longer, and no ticket as large.
_LONGEST_ID: Final = 255
_TICKETS_END: Final = 10**38


class Token(NamedTuple):
    """What `Lock.detach` returns as text.

    Attributes:
        table: of the model.
        region: in which the table is. No host and no account: each may have several names.
        key: of the item, in DynamoDB's form.
        id: of the entry that was stored for it.
        ticket: of the entry.
        lock_mode: its mode.
    """

    table: str
    region: str | None
    key: Mapping[str, Any]
    id: str
    ticket: int
    lock_mode: LockMode

    def __str__(self) -> str:
        stored = (*self[:-1], lock_record.LOCK_MODE.encode(self.lock_mode))
        content = json.dumps(stored, default=encoded, separators=(",", ":")).encode()
        return _BEGIN + base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    @classmethod
    def of(cls, text: object) -> Token:
        """Return the token of a text; `InvalidInput` if it is none."""
        try:
            content = base64.urlsafe_b64decode(str(text).removeprefix(_BEGIN) + "==")
            table, region, key, entry_id, ticket, lock_mode = decoded(json.loads(content), content)
            return cls(table, region, key, _id(entry_id), _ticket(ticket), lock_record.LOCK_MODE.decode(lock_mode))
        except Exception as error:  # a forged text may fail in any way, too deep for the parser for example
            raise InvalidInput(
                f"{text!r:.80} is no token of a lock: pass on what lock.detach() has returned."
            ) from error

    def key_of(self, model: type[Model]) -> tuple[Any, Any]:
        """Return the hash key, and the range key or None, of the item of that model.

        Raises:
            ConfigurationError: it is of another table, or of that of another Region.
            InvalidInput: it has no key that the model stores so.
        """
        region = region_of(connection_of(model).connection)
        if (self.table, self.region) != (model.Meta.table_name, region):
            raise ConfigurationError(
                f"the token is of a lock in the table {self.table!r} in {self.region}, and {model.__name__} is about "
                f"{model.Meta.table_name!r} in {region}: attach it with the model that has detached it."
            )
        try:
            values = deserialized_key(model, self.key)
            is_stored_so = key_of(model, *values) == self.key
        except Exception as error:  # whatever an attribute makes of a forged value
            raise InvalidInput(f"the token has no key of {model.__name__}: {self.key!r:.80}.") from error
        if not is_stored_so:
            raise InvalidInput(f"the token has a key that {model.__name__} does not store so: {self.key!r:.80}.")
        return values


def _id(value: object) -> str:
    """Return the id of an entry. An empty one would be that of each entry that was never detached."""
    if not isinstance(value, str) or not value.isascii() or not 0 < len(value) <= _LONGEST_ID:
        raise TypeError(value)
    return value


def _ticket(value: object) -> int:
    """Return a ticket: a whole number that DynamoDB stores."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _TICKETS_END:
        raise TypeError(value)
    return value
