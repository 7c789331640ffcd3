"""``manage.py locks``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pynamodb.exceptions import PynamoDBException

from pynamo_locking.contrib import _frameworks
from pynamo_locking.contrib.django import apps
from pynamo_locking.exceptions import LockingError


class Command(BaseCommand):
    """Shows the holders and waiters of locks, and removes entries by hand."""

    help = "Holders and waiters of locks."

    def add_arguments(self, parser: Any) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="All holders and waiters. Scans the tables that carry locks.")
        show = actions.add_parser("show", help="The queue of one lock.")
        breaking = actions.add_parser("break", help="Remove an entry from a queue, whether its owner lives or not.")
        for one in (show, breaking):
            one.add_argument("model", help="The name of a model, or of its table.")
            one.add_argument("key", nargs="+", help="Hash key, and range key if there is one.")
        for one in (listing, show):
            one.add_argument("--json", action="store_true", dest="is_json", help="Print JSON.")
        breaking.add_argument("--ticket", type=int, required=True, help="Of the entry, from `show`.")
        breaking.add_argument("--yes", action="store_true", help="Do not ask.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do it."""
        try:
            self.stdout.write(_frameworks.run_lock_command(apps.models(), options["action"], options, _is_confirmed))
        except (LockingError, PynamoDBException) as error:
            raise CommandError(str(error)) from error


def _is_confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # no person can answer
        return False
