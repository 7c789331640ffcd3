"""Campaigns stop at what they find, and the command line shows it so that it can be repeated."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation import campaign, run
from tests.simulation.__main__ import main
from tests.simulation.campaign import Exhaustive, Seeds, Tally
from tests.simulation.explore import Found, parsed, run_all, written
from tests.simulation.plans import Plan
from tests.simulation.regressions import FOLDER
from tests.simulation.workloads import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan("embedded", faults={Fault.PAUSE_AFTER: 1})


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run with a pause is in time any more."""
    monkeypatch.setattr(run, "HORIZON_S", 20.0)


@pytest.mark.parametrize("search", [Exhaustive(PLAN), Seeds("embedded", 0, 200)], ids=["exhaustive", "seeds"])
def test_a_campaign_stops_at_the_first_failure(broken: None, search: campaign.Search) -> None:
    """The failing run is the last, and its message repeats it: the plan and the choices lead to the same error."""
    tally = Tally()
    with pytest.raises(Found) as caught:
        for result in search.results():
            tally.add(result)
            assert result.error is None
    words = shlex.split(str(caught.value).partition("replay: ")[2])
    assert words[:3] == ["python", "-m", "tests.simulation"]
    assert main(words[3:]) == 1
    assert tally.runs < 200


def test_a_failure_is_plain_data(broken: None) -> None:
    """What a worker process hands back names the plan and the choices."""
    tally, failure = campaign.conduct(Exhaustive(PLAN))
    assert failure is not None
    assert failure.plan == PLAN
    assert "Stuck: the processes have not ended after 20 simulated seconds" in failure.message
    assert tally.runs > 0


def test_what_is_counted() -> None:
    """Each fault is counted by times and by runs; tallies add up."""
    tally, failure = campaign.conduct(Exhaustive(Plan("break lock", faults={Fault.LOST_RESPONSE: 1})))
    twice = Tally()
    twice.merge(tally)
    twice.merge(tally)
    assert failure is None
    assert 0 < tally.happened["lost response"] == tally.runs_with["lost response"] < tally.runs
    assert (twice.runs, twice.happened["lost response"]) == (2 * tally.runs, 2 * tally.happened["lost response"])


def test_a_campaign_sees_every_workload_and_every_fault() -> None:
    """All workloads with all single faults, for two parties and for three."""
    searches = list(campaign.exhaustive_searches())
    assert len({str(search) for search in searches}) == len(searches) == 2 * len(WORKLOADS) * (len(Fault) + 1)


def test_a_replay_shows_who_did_what(capsys: pytest.CaptureFixture[str]) -> None:
    """The timeline has the requests, the pause, the operations with what their callers were told, and the verdict."""
    assert main(["--plain", "replay", "--file", str(FOLDER / "granted_after_a_pause.json")]) == 0
    shown = capsys.readouterr().out
    for text in ("process p0 stands still", "renew", "save 2", "applied", "everything as it must be"):
        assert text in shown


def test_a_replay_can_be_made_duller(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    """`--shrink` keeps the error, and of the choices only those that it takes: here, the pause."""
    failing = (result for result in run_all(PLAN) if result.error is not None)
    busy = next(result for result in failing if sum(map(bool, result.choices)) > 2)
    assert main(["--plain", "replay", PLAN.to_json(), written(busy.choices), "--shrink"]) == 1
    shown = capsys.readouterr().out
    choices = shown.partition("choices")[2].partition("\n")[0]
    assert "Stuck: the processes have not ended after 20 simulated seconds" in shown
    assert sum(map(bool, parsed(choices.strip()))) == 1


def test_a_long_search_counts_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worker processes search until the time is up; the counts go to a file."""
    file = tmp_path / "counts.json"
    assert main(["long", "--minutes", "0.02", "--workers", "1", "--first", "7", "--json", str(file)]) == 0
    counts = json.loads(file.read_text(encoding="utf-8"))
    assert counts["runs"] > 0
    assert counts["failure"] is None
    assert "seeds from 7" in capsys.readouterr().out
