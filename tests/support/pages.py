"""Pages whose examples need a process of their own: what runs around their `py` blocks, and is not shown there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

GUIDES: Final = Path(__file__).parents[2] / "docs" / "how-to"

BEFORE_DJANGO: Final = """
import sys, types
from django.conf import settings
from pynamo_locking.testing import MemoryDynamoDB

MemoryDynamoDB().__enter__()
project = types.ModuleType("shop_stock")
sys.modules["shop_stock"] = project
"""
SET_UP_DJANGO: Final = """
import django
from django.core.management import call_command
from django.db import connection

settings.configure(
    INSTALLED_APPS=INSTALLED_APPS, MIDDLEWARE=MIDDLEWARE, PYNAMO_LOCKING=PYNAMO_LOCKING,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF=project, USE_TZ=True, SECRET_KEY="-",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
call_command("dynamodb_tables", "create", verbosity=0)
assert Stock.Meta.table_name == "test-stock"
Stock("book", left=5).save()
"""
BEFORE_GEVENT: Final = """
from gevent import monkey
monkey.patch_all()
from pynamo_locking.testing import MemoryDynamoDB
MemoryDynamoDB().__enter__()
"""
MORE_GEVENT: Final = """
from pynamo_locking import transactional

@transactional(wait=10)
def move(tx, source, target, amount):
    giver, taker = tx.get(Account, source), tx.get(Account, target)
    giver.balance -= amount
    taker.balance += amount
    tx.save(giver)
    tx.save(taker)

gevent.joinall([gevent.spawn(move, "a-1", "a-2", 1) for _ in range(5)], raise_error=True)
assert [Account.get(key).balance for key in ("a-1", "a-2")] == [115, 5]
"""


def run_django_page() -> None:
    """Django can be set up only once in a process."""
    model, settings, views, *others = blocks_of("use-with-django")
    assert len(others) > 2
    model, views = f"{model}\nproject.Stock = Stock", f"{views}\nproject.urlpatterns = urlpatterns"
    run(BEFORE_DJANGO, model, settings, SET_UP_DJANGO, views, *others)


def run_gevent_blocks() -> None:
    """The blocks about gevent, with the model of the page, in a process whose threads are replaced."""
    text = (GUIDES / "use-with-asyncio.md").read_text()
    model = re.search(r"^```python\n(.*?)^async def pay", text, re.MULTILINE | re.DOTALL)
    assert model is not None
    [shown] = blocks_of("use-with-asyncio")
    run(BEFORE_GEVENT, model[1], shown, MORE_GEVENT, options=("-W", "error"))


def blocks_of(guide: str) -> list[str]:
    return re.findall(r"^```py\n(.*?)^```$", (GUIDES / f"{guide}.md").read_text(), re.MULTILINE | re.DOTALL)


def run(*blocks: str, options: tuple[str, ...] = ()) -> None:
    command = [sys.executable, *options, "-c", "\n".join(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
