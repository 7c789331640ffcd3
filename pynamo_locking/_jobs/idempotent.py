"""The decorator of functions that may be called twice."""

from __future__ import annotations

import functools
import inspect
import json
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import ParamSpec

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._jobs.calls import KEEP_S, IdempotencyTable, check_terms
from pynamo_locking._locks.options import make_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lease import Duration
    from pynamo_locking._jobs.calls import IdempotentCall, Serializer

_T = TypeVar("_T")
_P = ParamSpec("_P")


def idempotent(  # noqa: PLR0913 - options
    table: type[IdempotencyTable],
    *,
    key: str | Callable[..., object],
    payload: str | Callable[..., object] | None = None,
    name: str | None = None,
    keep: Duration = KEEP_S,
    wait: Duration | None = None,
    lease: Duration | None = None,
    heartbeat: bool | None = None,
    final: tuple[type[Exception], ...] = (),
    serializer: Serializer = json,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Run a function once for each key: a second call returns the stored result of the first, and does nothing.

    ::

        @idempotent(Calls, key="order_id", payload="amount")
        def charge(order_id: str, amount: int) -> str:
            ...

    Also for coroutine functions. Every caller gets what the serializer makes of the stored text, the first one too: a
    tuple becomes a list. A function that raises stores nothing, and its key is free again, unless the exception is in
    `final`. One that returns what cannot be serialized raises as well.

    Guaranteed under crashes, lost answers and pauses: of all calls with one key, one result is stored, and returned
    until `keep` has passed. While a call is in progress, other calls wait or are refused. A call that ends after its
    key was taken over raises `LockLost`, and its result is not stored. Not guaranteed: that the effects of the function
    elsewhere happen once. If its process dies after the effect and before the result is stored, the next call repeats
    the effect; pass the key, or the ticket of `IdempotentCall.lock`, to a system that can refuse it. Changes of items
    are made once inside a `transaction`, as ``@transactional()`` above this decorator opens it: the commit stores the
    items and the result, and no lock is acquired.

    In a handler of AWS Lambda, an argument that has ``get_remaining_time_in_millis`` gives the `lease`: see
    ``lambda_context`` of `IdempotencyTable.call`.

    Args:
        table: where the results are kept.
        key: the name of the argument that is the key of the call, a text or a whole number; or a function of all
            arguments, defaults included, that returns it.
        payload: what else must be the same if a key comes again: the name of an argument, or a function of all
            arguments, whose value is JSON or bytes. None compares nothing.
        name: of the function, which the stored key begins with; its module and qualified name unless given. Give one to
            a function that may be renamed or moved: its keys would be forgotten. Functions that share a table and have
            one qualified name need one too: two programs' ``__main__.run``, two Lambda functions' ``app.handler``, a
            function that is made anew by each call of another one. They would get each other's results.
        keep: for how long a result counts. See `IdempotencyTable.call`, for all that follow as well.
        wait: how long to wait for a call that is in progress elsewhere; 0 refuses at once.
        lease: how long a call in progress survives without a renewal.
        heartbeat: renew in the background.
        final: exceptions that are results.
        serializer: of the result.

    Returns:
        A decorator. The function that it returns also raises the following.

    Raises:
        PayloadMismatch: the key was used with another payload. Nothing was done.
        LockTimeout: a call with this key is in progress elsewhere. Nothing was done.
        LockLost: the call took longer than its lease and was taken over. What it did stays done.
        OutcomeUnknown: no response tells whether the result was stored. Another call tells.
        ConfigurationError: the key is no text, or the result is too large for an item; or of the decorator: its
            arguments cannot work, or the function is `transactional`, which belongs above this decorator.

    Cost: 2 writes for the first call, 1 refused write for a repeat. Inside a transaction 1 read, and 1 action of its
    commit. A call whose key was freed or has expired takes 1 refused write more. Waiting costs as for `Lock`.

    Source: the decorator of Powertools for AWS Lambda; the header of draft-ietf-httpapi-idempotency-key-header.
    """
    _check_table(table)
    check_terms(keep, final, serializer)
    make_options(table, wait=wait, lease=lease, heartbeat=heartbeat, owner=None, settings=None)
    options: Any = {"keep": keep, "wait": wait, "lease": lease, "heartbeat": heartbeat}
    options |= {"final": final, "serializer": serializer}

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        begin = _Beginning(table, function, name, key, payload, options)

        @functools.wraps(function)
        def run(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            with begin(arguments, keywords) as call:
                if not call.is_repeated:
                    call.result = function(*arguments, **keywords)
            return cast("_T", call.result)

        @functools.wraps(function)
        async def arun(*arguments: _P.args, **keywords: _P.kwargs) -> Any:
            async with begin(arguments, keywords) as call:
                if not call.is_repeated:
                    call.result = await cast("Any", function(*arguments, **keywords))
            return call.result

        return cast("Callable[_P, _T]", arun) if inspect.iscoroutinefunction(function) else run

    return decorate


def _check_table(table: Any) -> None:
    if not (isinstance(table, type) and issubclass(table, IdempotencyTable)):
        raise ConfigurationError(f"the table of idempotent() is a subclass of IdempotencyTable, not {table!r}.")


class _Beginning:
    """Makes a call of the arguments of a function; refuses a function, or a name of an argument, that cannot work."""

    def __init__(
        self,
        table: type[IdempotencyTable],
        function: Callable[..., object],
        name: str | None,
        key: str | Callable[..., object],
        payload: str | Callable[..., object] | None,
        options: dict[str, Any],
    ) -> None:
        if not inspect.isroutine(function) or isinstance(function, classmethod):
            raise ConfigurationError(f"idempotent() is for functions, below @classmethod, not for {function!r}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{function.__qualname__} is a generator: it returns before it has run.")
        if hasattr(function, "_begins_transaction"):
            raise ConfigurationError(
                f"{function.__qualname__} commits before its result is stored, so after a crash in between it would do "
                f"its work again. Put @transactional() above @idempotent(...): then one commit stores both."
            )
        self._signature = inspect.signature(function)
        for what, each in (("key", key), ("payload", payload)):
            if isinstance(each, str) and each not in self._signature.parameters:
                raise ConfigurationError(
                    f"{function.__qualname__} has no argument {each!r}, which is to be the {what}."
                )
            if not isinstance(each, str) and not callable(each) and (each, what) != (None, "payload"):
                raise ConfigurationError(f"the {what} is the name of an argument, or a function, not {each!r}.")
        self._table = table
        self._name = f"{function.__module__}.{function.__qualname__}" if name is None else name
        self._key = key
        self._payload = payload
        self._options = options

    def __call__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> IdempotentCall:
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()

        def value_of(what: str | Callable[..., object]) -> object:
            return what(*bound.args, **bound.kwargs) if callable(what) else bound.arguments[what]

        key = value_of(self._key)
        if isinstance(key, bool) or not isinstance(key, (str, int)) or key == "":
            raise ConfigurationError(f"the key of {self._name} must be a text or a whole number, not {key!r}.")
        compared = None if self._payload is None else value_of(self._payload)
        if self._payload is not None and not isinstance(compared, bytes):
            compared = [compared]  # so that an argument that is None is compared as well
        options = self._options
        if options["lease"] is None and options["heartbeat"] is None:
            contexts = (each for each in bound.arguments.values() if hasattr(each, "get_remaining_time_in_millis"))
            options = {**options, "lambda_context": next(contexts, None)}
        return self._table.call(f"{self._name}#{key}", payload=compared, **options)
