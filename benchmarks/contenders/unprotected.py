"""No protection at all, PynamoDB as its tutorial shows it: the yardstick of what a cycle must cost.

Requests of a cycle: GetItem (consistent), PutItem (unconditional). Whoever writes last wins, and what the others have
added is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from benchmarks.contenders.counters import PlainCounter

if TYPE_CHECKING:
    from typing import ClassVar


class Unprotected(PlainCounter):
    """Get and save."""

    name: ClassVar[str] = "unprotected"
    source: ClassVar[str] = "PynamoDB 6.1, Model.get and Model.save"
    has_lock: ClassVar[bool] = False
    is_safe: ClassVar[bool] = False

    @override
    def add(self, key: str) -> None:
        self.raise_total(key)
