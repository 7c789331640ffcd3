"""Campaigns: a short one in which nothing may be wrong, and others whose processes have a bug in the package.

``make campaign`` has the long ones. The first planted bug is searched for in ``make test``, all others in
``make test-all``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.campaign.check import describe
from tests.campaign.run import Weather, campaign
from tests.conftest import ON_AWS
from tests.simulation.planted import BUGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.servers import Servers

pytestmark = [
    pytest.mark.alone,
    pytest.mark.processes,
    pytest.mark.skipif(ON_AWS, reason="processes are at work on engines of this machine"),
]

CALM = Weather(rate=0.05, disturb_s=30)
#: Each second process is killed, or stopped for longer than a lease.
ROUGH = Weather(rate=0.03, disturb_s=0.5)
#: Nearly a third of all requests is lost, late, repeated or refused.
STORM = Weather(rate=0.3, disturb_s=30)


class Planted(NamedTuple):
    """A bug of `tests.simulation.planted`, and how it shows in a history.

    Attributes:
        name: its name there.
        shows: anomalies of which at least one must be found.
        weather: how bad it has to be.
        only: the ways in which processes write.
    """

    name: str
    shows: set[str]
    weather: Weather
    only: tuple[str, ...]


PLANTED = (
    Planted("version not checked", {"lost-update"}, CALM, ("modify", "save", "transaction")),
    Planted("transaction in parts", {"G1a", "dirty-update"}, CALM, ("transaction", "transact_write")),
    Planted("read set not checked", {"G2-item"}, CALM, ("transact_write",)),
    Planted("r2 writers do not look for marks", {"lost-update"}, CALM, ("transaction", "modify", "save")),
    Planted("r11 another token for each attempt", {"G1a", "dirty-update"}, STORM, ("transact_write",)),
    Planted("half of a batch is dropped", {"lost-update", "cyclic-versions"}, STORM, ("transaction", "save")),
    Planted("a refused statement counts as applied", {"G-single-item", "lost-update"}, STORM, ("transaction", "save")),
    Planted("write known by its version", {"lost-update"}, STORM, ("modify", "save")),
    Planted("unknown told as refused", {"G1a", "duplicate-elements"}, STORM, ("modify", "save")),
    Planted("nobody is ahead", {"lost-update"}, CALM, ("edit", "locked_save")),
    Planted("order of insertion", {"lost-update"}, CALM, ("edit", "locked_save")),
    Planted(
        "embedded save without guard",
        {"G1a", "G0-process", "lost-update", "dirty-update", "incompatible-order"},  # it writes after its successor
        ROUGH,
        ("locked_save", "edit"),
    ),
)
ROUNDS = 30


def test_a_short_campaign(tmp_path: Path, servers: Servers) -> None:
    """Five seconds of kills, pauses and faults on dynoxide leave a history in which nothing is wrong."""
    weather = Weather(rate=0.05, disturb_s=1.0, stop_s=2.5)
    result = campaign("dynoxide", servers, tmp_path, 5.0, seed=os.getpid(), size=4, weather=weather)
    assert result.errors == []
    for checked in result.checked:
        assert not checked.report.anomalies, describe(checked)
        assert checked.report.operations["ok"]
    assert result.faults["killed"] + result.faults["stopped"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "planted",
    [PLANTED[0], *(pytest.param(planted, marks=pytest.mark.slow) for planted in PLANTED[1:])],
    ids=lambda planted: planted.name,
)
def test_planted_bugs_are_found(planted: Planted, tmp_path: Path, servers: Servers) -> None:
    """What processes with a bug have noted shows it, by a name that fits."""
    assert planted.name in {bug.name for bug in BUGS}
    kinds = set[str]()
    operations = 0
    for number in range(ROUNDS):
        options = {"weather": planted.weather, "bug": planted.name, "only": planted.only, "slots": 3}
        result = campaign("memory", servers, tmp_path / str(number), 3.0, seed=number, **options)
        kinds |= result.kinds
        operations += result.operations
        if kinds & planted.shows:
            break
    print(f"{planted.name}: {sorted(kinds)} in {operations} operations")  # noqa: T201 - shown by pytest -s
    assert kinds & planted.shows, (kinds, operations)
