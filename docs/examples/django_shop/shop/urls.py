"""Where the views are."""

from django.urls import path

from pynamo_locking.contrib.django.http import health
from shop import views

urlpatterns = [
    path("orders", views.order),
    path("products/<str:name>", views.product),
    path("health", health),
]
