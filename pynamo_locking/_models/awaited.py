"""What a model does, for tasks of asyncio: PynamoDB blocks, so each call takes place in a thread."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import Self

from pynamo_locking._io import loops
from pynamo_locking._models.reading import ReadingMixin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

#: The most items that are asked for beyond those that the caller has seen.
_MOST_AHEAD: Final = 64


class AwaitedMixin(ReadingMixin):
    """The reads and writes of a model, awaited.

    Each does what the method without the "a" does, with its arguments, errors and cost, in one of the 32 threads of
    this package, and under the locks of the task. Tasks must not change an instance while a call for it is under way.

    A task that is cancelled while it reads hears of it at once. A task that is cancelled while it writes hears of it
    when the write has ended, which no cancellation can call back: with the error of the write, if there is one, as the
    cause.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset({"aget", "aquery", "arefresh", "asave", "aupdate", "adelete"})

    @classmethod
    async def aget(cls, hash_key: Any, range_key: Any = None, **options: Any) -> Self:
        """Get an item, awaited. See `get`."""
        return await loops.call(partial(cls.get, hash_key, range_key, **options), is_urgent=False)

    @classmethod
    async def aquery(cls, hash_key: Any, *arguments: Any, **options: Any) -> AsyncIterator[Self]:
        """Yield the items of a query, awaited. See `query`.

        Cost: a task that ends the iteration early has asked for twice as many items as it has seen at most, and for 64
        more at most.
        """
        found, ahead = iter(cls.query(hash_key, *arguments, **options)), 1
        while items := await loops.call(partial(_take, found, ahead), is_urgent=False):
            for item in items:
                yield item
            ahead = min(2 * ahead, _MOST_AHEAD)

    async def arefresh(self, **options: Any) -> None:
        """Load the item again, awaited. See `refresh`."""
        await loops.to_the_end(partial(self.refresh, **options), is_urgent=False)

    async def asave(self, condition: Condition | None = None, **options: Any) -> dict[str, Any]:
        """Save the item, awaited. See PynamoDB's `Model.save`."""
        return await loops.to_the_end(partial(self.save, condition, **options))

    async def aupdate(self, actions: list[Action], condition: Condition | None = None, **options: Any) -> Any:
        """Update the item, awaited. See PynamoDB's `Model.update`."""
        return await loops.to_the_end(partial(self.update, actions, condition, **options))

    async def adelete(self, condition: Condition | None = None, **options: Any) -> Any:
        """Delete the item, awaited. See PynamoDB's `Model.delete`."""
        return await loops.to_the_end(partial(self.delete, condition, **options))


def _take(found: Any, count: int) -> list[Any]:
    return list(islice(found, count))
