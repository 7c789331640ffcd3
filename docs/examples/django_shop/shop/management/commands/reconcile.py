"""``manage.py reconcile``: counts again what was sold."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Sum

from pynamo_locking.contrib.django.sql import locked_atomic
from shop.models import Order
from shop.stock import Stock


class Command(BaseCommand):
    """Makes the stock agree with the orders, product by product, while nobody sells it."""

    help = "Make the stock agree with the orders."

    def handle(self, *_: Any, **__: Any) -> None:
        for product in [stock.product for stock in Stock.scan()]:
            with locked_atomic(Stock.locked(product)) as [lock]:
                orders = Order.objects.filter(product=product)
                sold = orders.aggregate(sum=Sum("quantity"))["sum"] or 0
                if lock.item.sold != sold:
                    self.stdout.write(f"{product}: {lock.item.sold} were counted as sold, and {sold} are ordered")
                    lock.item.sold = sold
                    lock.item.save()
