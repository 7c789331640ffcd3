"""The middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import JsonResponse

from pynamo_locking._facade import inspection
from pynamo_locking.contrib import _frameworks
from pynamo_locking.contrib.django import apps, sql

if TYPE_CHECKING:
    from collections.abc import Callable


class LocksMiddleware:
    """Answers errors of locks, versions and transactions, and releases what a request leaves locked.

    * Errors become responses with a body in the form of RFC 9457: 409 for `Conflict`, 412 for a failed ``If-Match``,
      422 for `InvalidInput`, 423 for `ItemLocked` and `LockTimeout`, 428 for a missing ``If-Match``, 500 for `LockLost`
      and `OutcomeUnknown`; and 404 for an absent item if the setting ``ANSWER_NOT_FOUND`` is true. A function in the
      setting ``HANDLER409`` (and so on) makes another response.
    * A lock that the view acquired by `Lock.acquire` and did not release is released at the end, and that is logged.
      Locks of `lock_in_transaction` are released without a log record. Nothing is ever committed here. Streamed
      responses are made afterwards.

    Runs under WSGI and ASGI. Put it last: it surrounds what comes after it in ``MIDDLEWARE``.

    Args:
        get_response: what Django calls next.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Answer a request."""
        if self._is_async:
            return self._answer_later(request)
        before, held = inspection.held(), list[Any]()
        try:
            with sql.scope(held):
                return self._get_response(request)
        finally:
            _end(before, held, request)

    async def _answer_later(self, request: Any) -> Any:
        before, held = inspection.held(), list[Any]()
        is_answered = False
        try:
            with sql.scope(held):
                response = await self._get_response(request)
            is_answered = True
            return response
        finally:
            # A synchronous view whose client has gone runs on in its thread, where `lock_in_transaction` may still
            # acquire locks. Django has one thread for a request, so what runs there after the view finds all of them.
            if not is_answered or held or inspection.held() != before:
                await sync_to_async(_end)(before, held, request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        """Return the answer to an error of this package; None for any other error, which Django handles."""
        configuration = apps.configuration()
        if not isinstance(error, _frameworks.answered(not_found=configuration.get("ANSWER_NOT_FOUND"))):
            return None
        base = configuration.get("PROBLEM_TYPE")
        problem = _frameworks.answer(error, request.META, f"{request.method} {request.path}", base)
        handler = apps.handler_of(problem.status)
        if handler is not None:
            return handler(request, error)
        kind = _frameworks.CONTENT_TYPE
        return JsonResponse(problem.body, status=problem.status, headers=problem.headers, content_type=kind)


def _end(before: Any, held: list[Any], request: Any) -> None:
    sql.release_all(held)
    inspection.release_all_since(before, f"{request.method} {request.path}")
