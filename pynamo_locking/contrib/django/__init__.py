"""Django: settings, errors as answers, ETags, locks around SQL transactions, commands, checks.

Needs the extra ``django``.

::

    INSTALLED_APPS = [..., "pynamo_locking.contrib.django"]
    MIDDLEWARE = [..., "pynamo_locking.contrib.django.middleware.LocksMiddleware"]
    PYNAMO_LOCKING = {"MODELS": ["shop.stock.Stock"], "REGION": "eu-west-1"}
"""

from __future__ import annotations

from pynamo_locking.contrib._frameworks import PreconditionRequired
from pynamo_locking.contrib.django.http import conditional, etag, health, if_match
from pynamo_locking.contrib.django.sql import lock_in_transaction, locked_atomic

__all__ = ["PreconditionRequired", "conditional", "etag", "health", "if_match", "lock_in_transaction", "locked_atomic"]
