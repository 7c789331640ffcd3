"""What this package needs of DynamoDB, asked of a table directly: requests of boto3, and nothing of ours.

Each check is a function of `Rows` whose docstring says what should be true. It raises `Failed` where DynamoDB does
something else. `tests/contract` asks the same of every engine.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from certify.contract import concurrency, conditions, lock_document, transactions
from certify.contract.rows import Failed, Rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["MODULES", "Failed", "Rows", "checks_of"]

MODULES = (conditions, lock_document, transactions, concurrency)


def checks_of(module: ModuleType) -> dict[str, Callable[[Rows], None]]:
    """Return the checks of a module, by name."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
