"""ETags, preconditions and the responses to errors, for views."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from django.http import JsonResponse
from django.utils.cache import get_conditional_response
from pynamodb.models import Model

from pynamo_locking._facade import tables
from pynamo_locking.contrib import _frameworks
from pynamo_locking.contrib._frameworks import etag
from pynamo_locking.contrib.django import apps

__all__ = ["conditional", "etag", "health", "if_match"]

_M = TypeVar("_M", bound=Model)

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


def if_match(request: Any, item: type[_M] | _M, hash_key: Any = None, range_key: Any = None) -> _M:
    """Return an item that is written only if it is still what the client has read, as ``If-Match`` says.

    DynamoDB compares in the write itself, so no other write can intervene. For the rest of the request a stale version
    is answered by 412.

    Args:
        request: the request with the header.
        item: the item as it was just read, or its model. With a model the item is read only if ``If-Match`` has several
            tags, a ``*`` or a tag without a write id; otherwise the instance has only its keys and its version. That is
            enough to `update` or `delete` it; to `save` it, set all its attributes.
        hash_key: with a model.
        range_key: with a model.

    Raises:
        PreconditionRequired: there is no ``If-Match``; answered by 428. Or it is not a list of tags; answered by 400.
        StaleVersion: it names another version, or there is no such item.
        ConfigurationError: the model has no version.
    """
    found: _M = _frameworks.if_match(request.META, item, hash_key, range_key)
    return found


def health(_request: Any) -> Any:
    """Answer 200 if every table of the settings answers, else 503, with the error in the log.

    Reads an absent item from one table after another, once, and waits 2 s at most for each.

    Cost: half a read unit for each model.
    """
    errors = {model: tables.probe(model, _PATIENCE) for model in apps.models()}
    bad = {model.__name__: error for model, error in errors.items() if error is not None}
    for name, error in bad.items():
        _frameworks.logger.error("%s does not answer: %s", name, error)
    return JsonResponse({"status": "failing" if bad else "ok", "failing": list(bad)}, status=503 if bad else 200)
