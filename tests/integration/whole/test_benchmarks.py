"""The benchmarks of locks: what they make of what they saw, and that they run."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.ours import Edit
from benchmarks.locks import contention, layer
from benchmarks.locks.crew import Shift
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


def test_what_is_made_of_a_race():
    """Rounds are put together, throughput is compared within each; waits without an end count as long as they were."""
    first = Shift([(0.0, 1.0), (1.0, 2.0)], [0.5], 4.0, Counter(), Counter(PutItem=6), 2.0, 4.0, seconds=4.0)
    second = Shift([(10.0, 13.0)], [], 14.0, Counter(LockTimeout=1), Counter(PutItem=3), 1.0, 2.0, seconds=4.0)

    race = contention.judge(Variant(Edit.name), 2, [first, second], [1.0, 0.125], total=2)

    assert (race.contender, race.threads, race.cycles, race.seconds, race.cycles_per_s) == ("edit()", 2, 3, 8.0, 0.375)
    assert (race.ratio, race.ratios) == (1.25, "0.50 to 2.00")
    assert (race.requests, race.read_units, race.write_units) == (3.0, 1.0, 2.0)
    assert (race.wait_max_ms, race.overtaken_max, race.lost, race.failed) == (3500, 1, 1, {"LockTimeout": 1})


def test_a_race(dynoxide):
    """Threads in processes run cycles until the time is over; what they say they did is in the item."""
    [race] = contention.compare(str(dynoxide.host), 0, [Variant(Edit.name)], 2, 0.5, 2, lambda: None)

    assert (race.threads, race.seconds, race.lost, race.failed) == (2, 1.0, 0, {})
    assert contention.as_markdown([race]).count("\n") == 2


def test_processor_time(dynoxide):
    """Each case is measured; the first one is what the others are compared with."""
    done = layer.measure(dynoxide, 1, lambda: None)

    assert [each.case for each in done] == list(layer.CASES)
    assert done[0].ratio == 1
    assert all(each.median_us > 0 for each in done)
