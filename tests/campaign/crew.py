"""The processes of a campaign."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from tests.campaign.models import MODELS
from tests.campaign.party import Party
from tests.campaign.served import RemoteMemory
from tests.engines import descriptions
from tests.support import nursery

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine

_planted = contextlib.ExitStack()


def crew_of(folder: Path, engine: Engine, memory: Path | None, size: int, bug: str, **how: Any) -> nursery.Crew:
    """Let so many processes begin.

    Args:
        folder: for their files.
        engine: which tables they use.
        memory: the socket of the server in memory, if that is the engine.
        size: how many.
        bug: the name of a planted bug that they have in the package.
        how: the other options of a campaign: seed, only, slots.
    """
    forks = nursery.Nursery(_prepare, nursery.places_of(engine, MODELS.values()), bug)
    return nursery.Crew(forks, folder, size, _live, folder, memory, how)


def _prepare(places: nursery.Places, bug: str) -> None:
    descriptions.share()
    nursery.use(places)
    if bug:
        from tests.simulation.planted import BUGS

        [planted] = [each for each in BUGS if each.name == bug]
        _planted.enter_context(planted.planted())


def _live(_pipe: object, number: int, folder: Path, memory: Path | None, how: dict[str, Any]) -> None:
    logging.disable(logging.WARNING)  # each fault is told
    with RemoteMemory(str(memory)) if memory else contextlib.nullcontext():
        Party(folder, number, **how).work()
