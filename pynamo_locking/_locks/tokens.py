"""The text in which a detached lock is passed on."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._io import lock_record
from pynamo_locking._io.stored_rows import decoded, encoded
from pynamo_locking._items.keys import deserialized_key, key_of

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
        key: of the item, in DynamoDB's form.
        id: of the entry that was stored for it.
        ticket: of the entry.
        lock_mode: its mode.
        region: in which it was detached, if that is known. No host and no account: each may have several names.
    """

    table: str
    key: Mapping[str, Any]
    id: str
    ticket: int
    lock_mode: LockMode
    region: str | None

    def __str__(self) -> str:
        stored = (*self[:-2], lock_record.LOCK_MODE.encode(self.lock_mode), self.region)
        content = json.dumps(stored, default=encoded, separators=(",", ":")).encode()
        return _BEGIN + base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    @classmethod
    def of(cls, text: object) -> Token:
        """Return the token of a text; `InvalidInput` if it is none."""
        try:
            content = base64.urlsafe_b64decode(str(text).removeprefix(_BEGIN) + "==")
            table, key, entry_id, ticket, stored_mode, region = decoded(json.loads(content), content)
            lock_mode = lock_record.LOCK_MODE.decode(stored_mode)
            return cls(table, key, _id(entry_id), _ticket(ticket), lock_mode, None if region is None else _id(region))
        except Exception as error:  # a forged text may fail in any way, too deep for the parser for example
            raise InvalidInput(
                f"{text!r:.80} is no token of a lock: pass on what lock.detach() has returned."
            ) from error

    def key_of(self, model: type[Model]) -> tuple[Any, Any]:
        """Return the hash key, and the range key or None, of the item of that model.

        Raises:
            ConfigurationError: it is of another table.
            InvalidInput: it has no key that the model stores so.
        """
        if self.table != model.Meta.table_name:
            raise ConfigurationError(
                f"the token is of a lock in the table {self.table!r}, and {model.__name__} is about "
                f"{model.Meta.table_name!r}: attach it with the model that has detached it."
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
    """Return the id of an entry, or of a Region. An empty one would be that of each entry that was never detached."""
    if not isinstance(value, str) or not value.isascii() or not 0 < len(value) <= _LONGEST_ID:
        raise TypeError(value)
    return value


def _ticket(value: object) -> int:
    """Return a ticket: a whole number that DynamoDB stores."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _TICKETS_END:
        raise TypeError(value)
    return value
