"""ETags, preconditions and the responses to errors, for views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.http import JsonResponse
from django.utils.cache import get_conditional_response

from pynamo_locking._facade import logger, tables
from pynamo_locking.contrib._frameworks import etag, if_match
from pynamo_locking.contrib.django import apps

if TYPE_CHECKING:
    from pynamodb.models import Model

__all__ = ["conditional", "etag", "health", "if_match"]

#: How many seconds a connection may take, and again the response.
_PATIENCE: Final = 1.0


def conditional(request: Any, response: Any, item: Model) -> Any:
    """Return a response with the ETag of an item; 304 without a body if the client has this version already.

    Args:
        request: the request.
        response: the response to it.
        item: the item that it shows.
    """
    response["ETag"] = etag(item)
    if request.method not in ("GET", "HEAD"):
        return response  # If-Match is compared by the write, which has happened
    return get_conditional_response(request, etag=response["ETag"], response=response)


def health(_request: Any) -> Any:
    """Answer 200 if every table of the settings answers, else 503, with the error in the log.

    Reads an absent item from one table after another, once, and waits 2 s at most for each.

    Cost: half a read unit for each model.
    """
    errors = {model: tables.probe(model, _PATIENCE) for model in apps.models()}
    bad = {model.__name__: error for model, error in errors.items() if error is not None}
    for name, error in bad.items():
        logger.error("%s does not answer: %s", name, error)
    return JsonResponse({"status": "failing" if bad else "ok", "failing": list(bad)}, status=503 if bad else 200)
