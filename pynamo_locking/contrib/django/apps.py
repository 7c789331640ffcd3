"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register

from pynamo_locking.contrib.django import conf


class PynamoLockingConfig(AppConfig):
    """Puts the models where ``settings.PYNAMO_LOCKING`` says, before their first use. No request."""

    name = "pynamo_locking.contrib.django"
    label = "pynamo_locking"
    verbose_name: str = "pynamo_locking"

    def ready(self) -> None:
        """Configure the models, and register the checks."""
        conf.apply()
        register(conf.check_keys, Tags.compatibility)
        register(conf.check_handlers, Tags.compatibility)
        register(conf.check_models, Tags.models)
        register(conf.check_tables, Tags.database, deploy=True)
