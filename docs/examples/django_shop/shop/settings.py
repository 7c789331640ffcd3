"""Settings of the shop. What differs from one place to another comes from the environment."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example")
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["shop", "pynamo_locking.contrib.django"]
MIDDLEWARE = [  # nobody is known here by a cookie, so nothing is needed against forged requests
    "django.middleware.common.CommonMiddleware",
    "pynamo_locking.contrib.django.middleware.LocksMiddleware",  # the last one
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parents[1] / "shop.sqlite3"),
        "OPTIONS": {"timeout": 30},  # seconds to wait for other processes' writes
    }
}

PYNAMO_LOCKING = {
    "MODELS": ["shop.stock.Stock"],
    "HOST": os.environ.get("SHOP_DYNAMODB_HOST"),
    "REGION": os.environ.get("SHOP_DYNAMODB_REGION"),
    "TABLE_PREFIX": os.environ.get("SHOP_TABLE_PREFIX"),
    "LOCK_SETTINGS": {"wait": 10},  # seconds
    "CONNECT_TIMEOUT": 2,
    "READ_TIMEOUT": 5,
}
