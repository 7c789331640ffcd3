"""The header `Idempotency-Key` by Flask, FastAPI and Django, as docs/how-to/idempotency.md reads it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final

import httpx
import pytest
from fastapi import FastAPI, Header
from flask import Flask, request

from pynamo_locking.contrib.fastapi import PynamoLocking
from pynamo_locking.contrib.flask import PynamoLocking as PynamoLockingOfFlask
from pynamo_locking.recipes import IdempotencyTable, idempotent
from tests.support.crew import ROOT
from tests.support.models import declare

PAGE: Final = Path(ROOT, "docs/how-to/idempotency.md").read_text()
Calls = declare("Calls", IdempotencyTable, table_name="calls")
placed: Final[list[str]] = []


@idempotent(Calls, key="key", payload="product")
def place(key: str, product: str) -> dict[str, int]:
    placed.append(product)
    return {"order": 17}


def view_by_the_page(framework: str, text: str) -> Any:
    """Return the view of a text in which the code stands that the page names for a framework."""
    [code] = re.findall(rf"in {framework}\b[^`]*`([^`]+)`", PAGE, re.IGNORECASE)
    names: dict[str, Any] = {"Annotated": Annotated, "Header": Header, "place": place, "json": json, "request": request}
    exec(text.replace("CODE", code), names)
    return names["orders"]


def of_flask(key: str, product: str) -> Any:
    app = Flask("shop")
    PynamoLockingOfFlask(models=[]).init_app(app)
    app.post("/")(view_by_the_page("Flask", "def orders(): return place(CODE, **request.get_json())"))
    response = app.test_client().post("/", json={"product": product}, headers={"Idempotency-Key": key})
    return SimpleNamespace(json=response.get_json)


def of_fastapi(key: str, product: str) -> Any:
    app = FastAPI()
    PynamoLocking().init_app(app)
    app.post("/")(view_by_the_page("FastAPI", "def orders(order: dict, CODE): return place(idempotency_key, **order)"))

    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            return await client.post("/", json={"product": product}, headers={"Idempotency-Key": key})

    return asyncio.run(answer())


def of_django(key: str, product: str) -> Any:
    from django.http import JsonResponse
    from django.test import Client, override_settings
    from django.urls import path

    view = view_by_the_page("Django", "def orders(request): return place(CODE, **json.loads(request.body))")
    urls = type(sys)("urls")
    urls.urlpatterns = [path("", lambda request: JsonResponse(view(request)))]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        body = {"product": product}
        return Client().post("/", body, content_type="application/json", HTTP_IDEMPOTENCY_KEY=key)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("send", [of_flask, of_fastapi, of_django])
def test_the_header_is_the_key(memory: Any, send: Any) -> None:
    memory.bind(Calls)
    placed.clear()
    assert [send("k-1", "book").json() for _ in range(2)] == [{"order": 17}, {"order": 17}]
    assert placed == ["book"]
    assert send("k-1", "chair").json()["code"] == "payload-mismatch"
    assert send("", "book").json()["code"] == "invalid-input"
