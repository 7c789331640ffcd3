"""Django, which a process sets up once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

SHOP: Final = Path(__file__).parents[3] / "docs" / "examples" / "django_shop"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The shop as Django has started it, with an SQL database of its own."""
    import django
    from django.core import management
    from django.db import connections
    from django.test.utils import setup_test_environment, teardown_test_environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
        patch.setenv("SHOP_DATABASE", str(tmp_path_factory.mktemp("shop") / "shop.sqlite3"))
        patch.setenv("TZ", os.environ.get("TZ", "UTC"))  # Django sets it
        patch.syspath_prepend(str(SHOP))
        django.setup()
        setup_test_environment()
        management.call_command("migrate", run_syncdb=True, verbosity=0)
        from shop.models import Order
        from shop.stock import Stock

        try:
            yield SimpleNamespace(Order=Order, Stock=Stock)
        finally:
            connections.close_all()
            teardown_test_environment()
