"""Starlette: configuration, errors as responses, ETags.

::

    locking = PynamoLocking(models=[Account])
    app = Starlette(routes=[...])
    locking.init_app(app, region="eu-central-1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import NotModifiedResponse

from pynamo_locking._facade import inspection
from pynamo_locking.contrib import _frameworks
from pynamo_locking.contrib._frameworks import PreconditionRequired, etag, if_match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.models import Model
    from starlette.applications import Starlette
    from starlette.requests import Request

    from pynamo_locking import LockSettings


__all__ = ["PreconditionRequired", "PynamoLocking", "aif_match", "conditional", "etag", "if_match"]

_M = TypeVar("_M", bound="Model")


class PynamoLocking:
    """The extension: one object for a program, however many applications it makes.

    Errors become responses with a body in the form of RFC 9457: 409 for `Conflict`, 412 for a failed ``If-Match``, 422
    for `InvalidInput`, 423 for `ItemLocked` and `LockTimeout`, 428 for a missing ``If-Match``, 500 for `LockLost` and
    `OutcomeUnknown`. A handler that the application registers afterwards, or for a subclass, is used instead.

    Nothing is committed or released at the end of a request: take locks in a ``with`` or ``async with`` block.

    Args:
        models: the models of the program. The tables in their ``Meta.lock_table``, ``Meta.transaction_table`` and
            ``Meta.unique_table`` are added.
    """

    def __init__(self, models: Sequence[type[Model]] = ()) -> None:
        self.models: list[type[Model]] = inspection.with_tables(models)

    def init_app(  # noqa: PLR0913 - options
        self,
        app: Starlette,
        *,
        host: str | None = None,
        region: str | None = None,
        table_prefix: str | None = None,
        connect_timeout: float | None = None,
        read_timeout: float | None = None,
        max_retries: int | None = None,
        max_pool_connections: int | None = None,
        lock_settings: LockSettings | Mapping[str, Any] | None = None,
        problem_type: str | None = None,
        answer_not_found: bool = False,
    ) -> None:
        """Configure the models, and let an application answer the errors of this package.

        None keeps what the models say.

        Args:
            app: of Starlette, or of FastAPI. A mounted application answers its own errors: call this for it as well.
            host: address of DynamoDB, for local emulators.
            region: the AWS Region.
            table_prefix: goes before each table's name.
            connect_timeout: seconds that one attempt of a model's own request may take to connect.
            read_timeout: seconds that it may take then.
            max_retries: attempts after the first one.
            max_pool_connections: connections that a process keeps.
            lock_settings: a `LockSettings` or its arguments, for models without ``Meta.lock_settings``.
            problem_type: what the ``type`` of an error's answer begins with; the code of the error follows.
                ``urn:pynamo-locking:problem:`` unless set.
            answer_not_found: whether an absent item (``DoesNotExist``) is answered by 404.

        Raises:
            ConfigurationError: a model was used or configured otherwise before: a model class is bound to one table and
                endpoint in a process, whatever the number of applications.
        """
        settings = {
            "HOST": host,
            "REGION": region,
            "TABLE_PREFIX": table_prefix,
            "CONNECT_TIMEOUT": connect_timeout,
            "READ_TIMEOUT": read_timeout,
            "MAX_RETRIES": max_retries,
            "MAX_POOL_CONNECTIONS": max_pool_connections,
            "LOCK_SETTINGS": lock_settings,
        }
        _frameworks.configure(self.models, settings)

        async def answer(connection: Request | Any, error: Any) -> Response:
            if connection.scope["type"] != "http":  # a WebSocket has no answer with a status
                raise error
            asked = f"{connection.method} {connection.url.path}"
            problem = _frameworks.answer(error, _frameworks.environ_of(connection), asked, problem_type)
            return JSONResponse(problem.body, problem.status, problem.headers, media_type=_frameworks.CONTENT_TYPE)

        for error_class in _frameworks.answered(not_found=answer_not_found):
            app.add_exception_handler(error_class, answer)

    def reset(self) -> None:
        """Undo the configuration of the models: for tests that configure one application after another."""
        _frameworks.reset(self.models)


def conditional(request: Request, body: Any, item: Model) -> Response:
    """Return a response with the ETag of an item; 304 without a body if the client has this version already.

    Args:
        request: the request.
        body: a response, or what JSON can say.
        item: the item that it shows.
    """
    response = body if isinstance(body, Response) else JSONResponse(body)
    tag = etag(item)
    response.headers["ETag"] = tag
    # Of other methods the write has happened, which has compared If-Match.
    is_read = request.method in ("GET", "HEAD")
    return (
        NotModifiedResponse(response.headers)
        if is_read and _frameworks.is_known(_frameworks.environ_of(request), tag)
        else response
    )


async def aif_match(request: Request, item: type[_M] | _M, hash_key: Any = None, range_key: Any = None) -> _M:
    """Do what `if_match` does without blocking the event loop: where it has to read, it does so in a thread."""
    return await run_in_threadpool(if_match, request, item, hash_key, range_key)
