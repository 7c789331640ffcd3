"""Whether a copy of an item is old, and whether DynamoDB or only the copy itself can tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pynamo_locking._core.outcome import Known


class Why(Enum):
    """Why a copy is old, or may be, in words."""

    COMMITTED = "was changed by a transaction, and the copy does not have the result: saving it"
    UNKNOWN = "may have been changed by an update of which nothing is known: saving the copy"
    WRITTEN = "was written through another instance, or may have been, under the same lock: saving this one"

    def __str__(self) -> str:
        return f"{self.value} {'would' if self is Why.COMMITTED else 'could'} take that change back"


@dataclass(frozen=True)
class Freshness:
    """What is known of the age of a copy.

    Attributes:
        why: why it is old; None if nothing says so.
        noticed: what the copy knew of the stored item, if DynamoDB will refuse to store the copy because of its
            version. The copy is old until it knows another state. None if DynamoDB does not notice.
    """

    why: Why | None = None
    noticed: Known | None = None

    @property
    def must_not_be_saved(self) -> bool:
        """Whether a save must be refused here, because DynamoDB would accept it."""
        return self.why is not None and self.noticed is None

    def is_old(self, known: Known) -> bool:
        """Tell whether a copy that knows this state of the stored item is old."""
        return self.why is not None and self.noticed in (None, known)

    def marked(self, why: Why, known: Known, *, has_version: bool, is_locked: bool) -> Freshness:
        """Return what is known from now on.

        A transaction gives the copy the new version without the new values, so the version does not tell. In all other
        cases it does. An item with neither a version nor a lock is overwritten by the next save, as with PynamoDB.
        """
        is_noticed = has_version and why is not Why.COMMITTED
        if why is Why.WRITTEN:
            is_news = not self.must_not_be_saved
        else:
            is_news = not is_noticed if why is Why.UNKNOWN else has_version or is_locked
        return Freshness(why, known if is_noticed else None) if is_news else self
