"""The benchmarks of locks: what they make of what they saw, and that they run."""

from __future__ import annotations

import pytest

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.ours import Edit
from benchmarks.locks import contention, layer
from benchmarks.locks.tables import fill, spread
from benchmarks.locks.variants import Variant, variants


def test_overtakings():
    """Who begins later and ends earlier has overtaken; who is still waiting has been overtaken by all of those."""
    done = [(0.0, 10.0), (1.0, 2.0), (3.0, 11.0), (4.0, 5.0)]

    assert list(contention.overtakings(done, [])) == [2, 0, 1, 0]
    assert list(contention.overtakings(done, [0.5])) == [2, 4 - 1, 0, 1, 0]


def test_the_middle_of_a_spread():
    """The lowest and the highest tenth are left out."""
    assert spread([float(i) for i in range(1, 11)]) == "2.00 to 9.00"


def test_tables_go_where_they_belong(tmp_path):
    """Between the marks, as often as one likes; a page without marks is an error."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: a -->\nold\n<!-- end -->\n<!-- figures: b -->\n<!-- end -->\nafter\n")
    for text in ("one", r"two \1"):
        fill(page, "a", text)

    assert page.read_text() == (
        "before\n<!-- figures: a -->\n\ntwo \\1\n\n<!-- end -->\n<!-- figures: b -->\n<!-- end -->\nafter\n"
    )
    with pytest.raises(LookupError, match="c"):
        fill(page, "c", "x")


def test_slow_pollers_run_with_our_interval_too():
    """So that nobody is only slow by default; ours are as they are."""
    tuned = {each.key for each in variants(lambda _: True, tuned=True) if each.poll_s is not None}

    assert tuned == {key for key, kind in CONTENDERS.items() if (kind.poll_s or 0) > 0.1 and not kind.unavailable()}
    assert not any(CONTENDERS[key].is_ours for key in tuned)


def test_a_race(dynoxide):
    """Threads in processes run cycles until the time is over, and all that were done are counted."""
    crew, seconds = [Variant(Edit.name)], 0.5
    for level in range(2, 9):  # each on tables of its own; longer where the machine is busy
        [race] = contention.compare(str(dynoxide.host), 0, crew, level, seconds, 2, lambda: None)
        if race.ratio == 1:
            break
        seconds *= 2

    assert (race.ratio, race.ratios, race.seconds) == (1, "1.00 to 1.00", 2 * seconds)
    assert race.cycles > 0
    assert (race.lost, race.failed) == (0, {})
    assert race.requests >= 2
    assert race.wait_max_ms >= race.wait_p99_ms >= race.wait_p50_ms > 0
    assert contention.as_markdown([race]).count("\n") == 2


def test_processor_time(dynoxide):
    """Each case is measured; the first one is what the others are compared with."""
    done = layer.measure(dynoxide, 1, lambda: None)

    assert [each.case for each in done] == list(layer.CASES)
    assert done[0].ratio == 1
    assert all(each.median_us > 0 for each in done)
