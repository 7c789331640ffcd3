"""What a lock protects, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from pynamodb.models import Model
from typing_extensions import TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.lock_document import LockRow

M = TypeVar("M", bound=Model, default=Any)


@dataclass(frozen=True)
class LockTarget(Generic[M]):
    """What a lock protects: the item of a model, and the row that carries the lock.

    Attributes:
        carrier: the model of that row, and its key as given by the caller.
        read: reads the item as it is now.
    """

    model: type[M]
    row: LockRow
    carrier: tuple[type[Model], Any, Any]
    read: Callable[[], M]

    @property
    def is_elsewhere(self) -> bool:
        """Whether the lock is in another row than the item."""
        return self.carrier[0] is not self.model
