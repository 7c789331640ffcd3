"""The orders: in SQL."""

from django.db import models


class Order(models.Model):
    """Who bought how much of what is not of interest here: how much of what is."""

    product = models.CharField(max_length=100, db_index=True)
    quantity = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.quantity} of {self.product}"
