"""What the shop does over HTTP. No view handles a conflict: the middleware answers those."""

import json

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_http_methods, require_POST

from pynamo_locking.contrib.django.http import conditional, if_match
from pynamo_locking.contrib.django.sql import locked_atomic
from shop.models import Order
from shop.stock import Stock

MOST = 10**9  # of one thing: what fits into a column of SQL


@require_POST
def order(request: HttpRequest) -> HttpResponse:
    """Sell: the order in SQL and the stock in DynamoDB, while nobody else sells that product."""
    try:
        product, quantity = _order_in(request)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    try:
        with locked_atomic(Stock.locked(product)) as [lock]:
            stock = lock.item
            if stock.left < quantity:
                return JsonResponse({"error": "sold out", "left": stock.left}, status=409)
            placed = Order.objects.create(product=product, quantity=quantity)
            stock.sold += quantity
            stock.save()  # last: if DynamoDB refuses it, since the lock was lost, SQL rolls back
    except Stock.DoesNotExist:
        return JsonResponse({"error": "there is no such product"}, status=404)
    return JsonResponse({"id": placed.pk, "left": stock.left}, status=201)


@require_http_methods(["GET", "HEAD", "PUT"])
def product(request: HttpRequest, name: str) -> HttpResponse:
    """Show a product, or say how much of it was received."""
    try:
        stock = Stock.get(name, consistent_read=True)
    except Stock.DoesNotExist:
        return JsonResponse({"error": "there is no such product"}, status=404)
    if request.method == "PUT":
        stock = if_match(request, stock)
        try:
            stock.received = _whole(_body(request).get("received"))
        except ValueError as error:
            return JsonResponse({"error": str(error)}, status=400)
        stock.save()  # refused if somebody was faster, and while somebody sells it: 412, 423
    return conditional(request, JsonResponse({"product": name, "left": stock.left}), stock)


def _order_in(request: HttpRequest) -> tuple[str, int]:
    body = _body(request)
    if not isinstance(body.get("product"), str) or not body["product"]:
        raise ValueError("'product' is needed, as a string")
    return body["product"], _whole(body.get("quantity"))


def _body(request: HttpRequest) -> dict[str, object]:
    body = json.loads(request.body)
    return body if isinstance(body, dict) else {}


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise ValueError(f"a whole number from 1 to {MOST} is needed")
    return value
