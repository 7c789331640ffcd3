"""Four frameworks with one interface: applications of views that know none of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import flask
import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotation
from starlette.responses import JSONResponse, PlainTextResponse

from pynamo_locking.contrib import flask as ours_for_flask
from pynamo_locking.contrib import starlette as ours_for_starlette

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: An application's views, by method and path.
Views = dict[tuple[str, str], "Callable[[Web], Any]"]
PROBLEM: Final = "application/problem+json"


@dataclass
class Web:
    """What a view can do, whatever its framework is."""

    body: Any
    if_match: Callable[..., Any]
    #: Of what is shown, and its item.
    conditional: Callable[[Any, Any], Any]


@dataclass
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any = field(init=False)

    def __post_init__(self) -> None:
        is_json = self.text and "json" in (self.headers.get("Content-Type") or "")
        self.json = json.loads(self.text) if is_json else None

    @property
    def problem(self) -> tuple[int, str | None]:
        """The status, and the code of the problem."""
        return self.status, self.json and self.json.get("code")


class Application:
    """An application of one of the frameworks.

    Args:
        views: what it does.
        models: what it gives to the extension.
        own: an error that it answers itself, by 503.
        options: of the extension.
    """

    def __init__(self, views: Views, models: Any = (), own: type[Exception] | None = None, **options: Any) -> None:
        raise NotImplementedError

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; a header's name has ``_`` for ``-``."""
        [answer] = self.at_once((method, path, body, headers))
        return answer

    def at_once(self, *requests: tuple[str, str, Any, dict[str, str]]) -> list[Answer]:
        """Send several, each in a thread of its own."""
        sent = [(*each[:3], {name.replace("_", "-"): value for name, value in each[3].items()}) for each in requests]
        with self._settings():
            if len(sent) == 1:
                return [self._send(*sent[0])]
            with ThreadPoolExecutor(len(sent)) as clients:
                return list(clients.map(lambda each: self._send(*each), sent))

    def _settings(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        raise NotImplementedError


class OfFlask(Application):
    def __init__(self, views: Views, models: Any = (), own: type[Exception] | None = None, **options: Any) -> None:
        self.app = flask.Flask(__name__)
        self.app.config.update({f"PYNAMO_LOCKING_{name.upper()}": value for name, value in options.items()})
        ours_for_flask.PynamoLocking(models).init_app(self.app)
        if own is not None:
            self.app.register_error_handler(own, lambda _: ("mine", 503))
        for (method, path), view in views.items():
            self.app.add_url_rule(path, f"{method} {path}", self._endpoint(view), methods=[method])

    @staticmethod
    def _endpoint(view: Callable[[Web], Any]) -> Callable[[], Any]:
        return lambda: view(
            Web(flask.request.get_json(silent=True), ours_for_flask.if_match, ours_for_flask.conditional)
        )

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        answer = self.app.test_client().open(path, method=method, json=body, headers=headers)
        return Answer(answer.status_code, answer.headers, answer.text)


class OfStarlette(Application):
    new: Any = Starlette

    def __init__(self, views: Views, models: Any = (), own: type[Exception] | None = None, **options: Any) -> None:
        self.app = self.new()
        ours_for_starlette.PynamoLocking(models).init_app(self.app, **options)
        if own is not None:
            self.app.add_exception_handler(own, lambda _request, _error: PlainTextResponse("mine", 503))
        for (method, path), view in views.items():
            self._add(path, self._endpoint(view), method)

    def _add(self, path: str, endpoint: Any, method: str) -> None:
        self.app.router.add_route(path, endpoint, methods=[method])

    @staticmethod
    def _endpoint(view: Callable[[Web], Any]) -> Any:
        async def endpoint(request: Request) -> Any:
            body = await request.body()
            web = Web(
                json.loads(body) if body else None,
                lambda *found: ours_for_starlette.if_match(request, *found),
                lambda shown, item: ours_for_starlette.conditional(request, shown, item),
            )
            shown = await run_in_threadpool(view, web)
            return JSONResponse(shown) if isinstance(shown, dict) else shown

        return endpoint

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client:
                return await client.request(method, path, json=body, headers=headers)

        answer = asyncio.run(sent())
        return Answer(answer.status_code, answer.headers, answer.text)


class OfFastAPI(OfStarlette):
    new = FastAPI

    def _add(self, path: str, endpoint: Any, method: str) -> None:
        self.app.add_api_route(path, endpoint, methods=[method], response_model=None)


class OfDjango(Application):
    """Needs the fixture `shop`, which sets Django up."""

    def __init__(self, views: Views, models: Any = (), own: type[Exception] | None = None, **options: Any) -> None:
        from django.conf import settings
        from django.urls import path

        self._options = {**settings.PYNAMO_LOCKING, **{name.upper(): value for name, value in options.items()}}
        if own is not None:
            self._options["HANDLER500"] = lambda _request, error: self._own(own, error)
        self._views = views
        self._urls: Any = type(sys)("urls")
        self._urls.urlpatterns = [path(each.lstrip("/"), self._endpoint(each)) for each in {key[1] for key in views}]

    @staticmethod
    def _own(own: type[Exception], error: Exception) -> Any:
        from django.http import HttpResponse

        assert isinstance(error, own)
        return HttpResponse("mine", status=503)

    def _endpoint(self, path: str) -> Any:
        from django.http import JsonResponse

        from pynamo_locking.contrib.django import http

        def endpoint(request: Any) -> Any:
            web = Web(
                json.loads(request.body) if request.body else None,
                lambda *found: http.if_match(request, *found),
                lambda shown, item: http.conditional(request, JsonResponse(shown), item),
            )
            shown = self._views[request.method, path](web)
            return JsonResponse(shown) if isinstance(shown, dict) else shown

        return endpoint

    def _settings(self) -> contextlib.AbstractContextManager[object]:
        from django.test import override_settings

        return override_settings(ROOT_URLCONF=self._urls, PYNAMO_LOCKING=self._options)

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        from django.test import Client

        content = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        answer = Client(raise_request_exception=False).generic(method, path, headers=headers, **content)
        return Answer(answer.status_code, answer.headers, answer.content.decode())


FRAMEWORKS: Final[dict[str, type[Application]]] = {
    "flask": OfFlask,
    "starlette": OfStarlette,
    "fastapi": OfFastAPI,
    "django": OfDjango,
}
