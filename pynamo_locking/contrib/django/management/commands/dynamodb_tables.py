"""``manage.py dynamodb_tables``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pynamo_locking._facade import tables
from pynamo_locking.contrib.django import apps
from pynamo_locking.exceptions import ConfigurationError


class Command(BaseCommand):
    """Creates absent tables of the models in the settings, or lists them. Tables that exist are not changed."""

    help = "The tables of the models in PYNAMO_LOCKING['MODELS']."

    def add_arguments(self, parser: Any) -> None:
        """Declare the arguments."""
        parser.add_argument("action", choices=("create", "check"), help="Create what is absent, or only say what is.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do it."""
        try:
            self._do(options["action"])
        except ConfigurationError as error:
            raise CommandError(str(error)) from error

    def _do(self, action: str) -> None:
        absent = [model for model in apps.models() if not model.exists()]
        for model in apps.models():
            if model not in absent:
                tables.check_keys(model, wait=False)
        names = ", ".join(dict.fromkeys(str(model.Meta.table_name) for model in absent))
        if action == "check" and absent:
            raise CommandError(f"Absent: {names}.")
        for model in sorted(absent, key=tables.is_shared):  # the tables of items first, which they need
            model.create_table(wait=True, billing_mode=getattr(model.Meta, "billing_mode", "PAY_PER_REQUEST"))
        self.stdout.write(f"Created: {names}." if absent else "All tables are there.")
