"""The awaited forms of the methods of models: a decorator makes each of the method without the "a".

::

    @awaited_item(get)
    def aget(self) -> None:
        \"\"\"Get an item, awaited. See `get`.\"\"\"

The function gives the name and the docstring, and is never called. Arguments and types are those of `get`, and
whichever class has overridden `get`, its method is called.

PynamoDB blocks, so each call takes place in one of the 32 threads of this package, under the locks of the task. Tasks
must not change an instance while a call for it is under way. If a task is cancelled while it reads, the cancellation is
raised at once. While it writes, it is raised when the write has ended, which no cancellation can undo: with the error
of the write, if there is one, as the cause.

Rejected: to decorate a function that returns `Self`, which mypy loses on the way. A descriptor is asked with the class.
"""

from __future__ import annotations

from functools import partial, wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, TypeVar

from typing_extensions import ParamSpec

from pynamo_locking._io import concurrency

_P = ParamSpec("_P")
_T = TypeVar("_T")
_M = TypeVar("_M")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    _Method = Callable[Concatenate[Any, _P], _T]
    _Named = Callable[..., None]

    # What a type checker takes the results for; they are plain methods.

    class Awaited(Generic[_P, _T]):
        """A method with a result of one class."""

        def __get__(self, instance: object, owner: type[Any]) -> Callable[_P, Coroutine[Any, Any, _T]]: ...

    class AwaitedItem(Generic[_P]):
        """A method that returns an item of the class it is called for."""

        def __get__(self, instance: object, owner: type[_M]) -> Callable[_P, Coroutine[Any, Any, _M]]: ...

    class AwaitedItems(Generic[_P]):
        """A method that yields items of the class it is called for."""

        def __get__(self, instance: object, owner: type[_M]) -> Callable[_P, AsyncIterator[_M]]: ...

    class AwaitedEach(Generic[_P, _T]):
        """A method that yields values of one class."""

        def __get__(self, instance: object, owner: type[Any]) -> Callable[_P, AsyncIterator[_T]]: ...


#: The most values that are asked for beyond those that the caller has seen.
_MOST_AHEAD: Final = 64


def awaited_read(method: _Method[_P, _T]) -> Callable[[_Named], Awaited[_P, _T]]:
    """Make the awaited form of a method that only reads: a cancelled task leaves it."""
    return partial(_call, method, read)


def awaited_write(method: _Method[_P, _T], *, is_urgent: bool = True) -> Callable[[_Named], Awaited[_P, _T]]:
    """Make the awaited form of a method that runs to its end, even if the task is cancelled."""
    return partial(_call, method, partial(concurrency.to_the_end, is_urgent=is_urgent))


def awaited_item(method: _Method[_P, Any]) -> Callable[[_Named], AwaitedItem[_P]]:
    return partial(_call, method, read)


def awaited_items(method: _Method[_P, Iterable[Any]]) -> Callable[[_Named], AwaitedItems[_P]]:
    """Make the awaited form of a method that yields items, and reads them when they are asked for."""
    return partial(_each, method)


def awaited_each(method: _Method[_P, Iterable[_T]]) -> Callable[[_Named], AwaitedEach[_P, _T]]:
    """Make the awaited form of a method that yields other values, and reads them when they are asked for."""
    return partial(_each, method)


async def read(work: Callable[[], _T]) -> _T:
    """Read something in a thread."""
    return await concurrency.call(work, is_urgent=False)


def _call(method: Any, run: Callable[[Callable[[], Any]], Awaitable[Any]], named: _Named) -> Any:
    name = _function_of(method).__name__

    async def twin(this: Any, *arguments: Any, **options: Any) -> Any:
        return await run(partial(getattr(this, name), *arguments, **options))

    return in_place_of(method, twin, named)


def _each(method: Any, named: _Named) -> Any:
    """Ask for one value, then for twice as many as before, up to a limit: the caller may end the iteration early."""
    name = _function_of(method).__name__

    async def twin(this: Any, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        found, ahead = iter(getattr(this, name)(*arguments, **options)), 1
        while values := await read(partial(_take, found, ahead)):
            for value in values:
                yield value
            ahead = min(2 * ahead, _MOST_AHEAD)

    return in_place_of(method, twin, named)


def _take(found: Any, count: int) -> list[Any]:
    return list(islice(found, count))


def in_place_of(method: Any, twin: Any, named: _Named) -> Any:
    """Give a method the signature of another one, and the name and the docstring of the function it replaces."""
    twin = wraps(_function_of(method))(twin)
    twin.__name__, twin.__qualname__, twin.__doc__ = named.__name__, named.__qualname__, named.__doc__
    return classmethod(twin) if isinstance(method, classmethod) else twin


def _function_of(method: Any) -> Callable[..., Any]:
    return method.__func__ if isinstance(method, classmethod) else method
