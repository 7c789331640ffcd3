"""A bank over HTTP, with Flask: versions as ETags, a lock for deposits, a transaction for transfers.

    POST /accounts                   {"id": "a-1", "owner": "Ada", "balance": 100}
    GET  /accounts/<id>              with an ETag; 304 if the client has it
    PUT  /accounts/<id>              {"owner": "Ada L."}: needs If-Match; 428 without it, 412 if it is stale
    POST /accounts/<id>/deposits     {"amount": 5}: first come, first served; 423 if the lock cannot be had in time
    POST /transfers                  {"from": "a-1", "to": "a-2", "amount": 5}: both accounts or none

Any number of processes of any number of hosts may run it. Try it, with a DynamoDB that your environment points to:

    cd docs/examples
    flask --app flask_bank create-tables
    flask --app flask_bank run
    flask --app flask_bank locks list
"""

from __future__ import annotations

from typing import Any

from flask import Flask

from flask_bank.accounts import Account
from flask_bank.views import bank
from pynamo_locking.contrib.flask import PynamoLocking

locking = PynamoLocking(models=[Account])


def create_app(config: dict[str, Any] | None = None) -> Flask:
    """Return the application.

    Args:
        config: goes before the environment, where ``FLASK_PYNAMO_LOCKING_REGION`` and the like are looked for.
    """
    app = Flask(__name__)
    app.config["PYNAMO_LOCKING_LOCK_SETTINGS"] = {"wait": 5}  # seconds: nobody waits longer for a page
    app.config.from_prefixed_env()
    app.config.from_mapping(config or {})
    locking.init_app(app)
    app.register_blueprint(bank)

    @app.cli.command()
    def create_tables() -> None:
        """Create the tables."""
        if not Account.exists():
            Account.create_table(wait=True, billing_mode="PAY_PER_REQUEST")

    return app
