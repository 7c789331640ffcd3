"""What has been done to an item of a transaction, as actions of an update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.expressions.operand import Path

from pynamo_locking._io import guards, images
from pynamo_locking._io.operands import Stored

if TYPE_CHECKING:
    from collections.abc import Collection

    from pynamodb.expressions.update import Action

    from pynamo_locking._io.requests import Image


def changes(before: Image | None, after: Image, keys: Collection[str]) -> list[Action]:
    """Return the actions that make a stored item what a transaction sees.

    Args:
        before: the stored item; None if there is none.
        after: what it is to be.
        keys: names of its key attributes.
    """
    set_, removed = images.difference(before, after, keys=keys)
    actions: list[Action] = [Path([name]).set(Stored(value)) for name, value in set_.items()]
    actions += [Path([name]).remove() for name in removed]
    return actions or [guards.nothing()]
