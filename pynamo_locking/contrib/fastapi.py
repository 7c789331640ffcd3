"""FastAPI: what `contrib.starlette` has, and transactions as dependencies.

::

    @app.post("/transfers")
    def transfer(tx: Annotated[Transaction, transaction_dependency()]) -> None:
        account = tx.get(Account, "a-1")
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends

from pynamo_locking import atransaction
from pynamo_locking.contrib._frameworks import PreconditionRequired
from pynamo_locking.contrib.starlette import PynamoLocking, aif_match, conditional, etag, if_match
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.transactions import current_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from typing_extensions import Unpack

    from pynamo_locking import TransactionTable
    from pynamo_locking._facade import TransactionKeywords


__all__ = [
    "PreconditionRequired",
    "PynamoLocking",
    "aif_match",
    "atransaction_dependency",
    "conditional",
    "etag",
    "if_match",
    "transaction_dependency",
]


def transaction_dependency(
    table: type[TransactionTable] | None = None, *, join: bool = False, **options: Unpack[TransactionKeywords]
) -> Any:
    """Return a dependency that gives an endpoint, or another dependency, of the form ``def`` a `Transaction`.

    ::

        Tx = Annotated[Transaction, transaction_dependency(wait=5)]

        @app.post("/transfers")
        def transfer(tx: Tx) -> None:
            ...

    The transaction is committed when the endpoint has returned and its result is valid, before anything is sent: a
    failed commit is the answer, as 409. It is rolled back if the endpoint raises, ``HTTPException`` too, or if the
    request is not valid. An error that the endpoint *returns* as a response does not roll back. The body of a streamed
    response, and background tasks, run after the commit.

    There is no retry after a conflict: to retry, call a `transactional` function in the endpoint.

    Make the dependency once, and use it everywhere in a request: each call of this function makes another transaction,
    which is refused inside the first one, unless `join`.

    Args:
        table: as in `transaction`.
        join: as in `transaction`.
        **options: those of `transaction`, except `idempotency_key`: it would be one key for all requests.

    Raises:
        ConfigurationError: an `idempotency_key` was given.

    Cost: that of `transaction`.
    """
    begin = _begin(table, join, options)

    async def transaction_of_request() -> AsyncIterator[Any]:
        async with begin():  # in the task, whose context the threads of its endpoint and dependencies get a copy of
            yield current_transaction()

    return Depends(transaction_of_request, scope="function")


def atransaction_dependency(
    table: type[TransactionTable] | None = None, *, join: bool = False, **options: Unpack[TransactionKeywords]
) -> Any:
    """Return a dependency that gives an endpoint, or another dependency, of the form ``async def`` a transaction.

    As `transaction_dependency`, for an `AsyncTransaction`, whose steps are awaited.

    ::

        @app.post("/transfers")
        async def transfer(tx: Annotated[AsyncTransaction, atransaction_dependency()]) -> None:
            ...
    """
    begin = _begin(table, join, options)

    async def transaction_of_request() -> AsyncIterator[Any]:
        async with begin() as begun:
            yield begun

    return Depends(transaction_of_request, scope="function")


def _begin(table: Any, join: bool, options: Any) -> Callable[[], Any]:  # noqa: FBT001 - an option
    if options.get("idempotency_key") is not None:
        raise ConfigurationError(
            "a dependency is made once, so all requests would have this idempotency_key. Begin the transaction in the "
            "endpoint, with the key of its request."
        )
    return lambda: atransaction(table, join=join, **options)
