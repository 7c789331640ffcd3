"""The benchmarks of locks: what they make of what they saw, and that they run."""

from __future__ import annotations

from collections import Counter

import pytest
from botocore.exceptions import ClientError

from benchmarks.contenders import CONTENDERS, Place, Turn
from benchmarks.contenders.counters import create_table, low_level_client
from benchmarks.contenders.ours import Edit
from benchmarks.locks import caps, contention, layer
from benchmarks.locks.crew import Round, Shift
from benchmarks.locks.tables import fill, spread
from benchmarks.locks.variants import Variant, variants
from benchmarks.meter import Taken, metered
from benchmarks.throttled import throttled


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
    """So that no contender is only slow by default; ours are as they are."""
    tuned = {each.key for each in variants(lambda _: True, tuned=True) if each.poll_s is not None}

    assert tuned == {key for key, kind in CONTENDERS.items() if (kind.poll_s or 0) > 0.1 and not kind.unavailable()}
    assert not any(CONTENDERS[key].is_ours for key in tuned)


def test_what_is_made_of_a_race():
    """Rounds are put together, throughput is compared within each; waits without an end count as long as they were."""
    rush = Shift([(-3.0, 0.0)], [0.0], 0.0, taken=Taken(Counter(PutItem=9), 0.0, {"a": 8.0}), seconds=2.0)
    first = Shift([(0.0, 1.0), (1.0, 2.0)], [0.5], 4.0, taken=Taken(Counter(PutItem=6), 2.0, {"a": 4.0}), seconds=4.0)
    taken = Taken(Counter(PutItem=3), 1.0, {"a": 1.0, "b": 1.0})
    second = Shift([(10.0, 13.0)], [], 14.0, Counter(LockTimeout=1), taken, seconds=4.0)
    turns = [Turn(1, 5), Turn(3, 7), Turn(2, 6)]
    rounds = [Round(rush, first, 2, turns, 3), Round(Shift(seconds=2.0), second, 1, [Turn(1, 2), Turn(2, 1)], 1)]

    race = contention.judge(Variant(Edit.name), 2, rounds, [1.0, 0.125], [5.0, 2.5], total=3)

    assert (race.contender, race.threads, race.cycles, race.seconds, race.cycles_per_s) == ("edit()", 2, 3, 8.0, 0.375)
    assert (race.ratio, race.ratios, race.beside_plain) == (1.25, "0.50 to 2.00", 0.1)
    assert (race.requests, race.read_units, race.write_units) == (3.0, 1.0, 2.0)
    assert (race.wait_max_ms, race.overtaken_max, race.lost, race.failed) == (3500, 1, 1, {"LockTimeout": 1})
    assert (race.cap_per_s, race.out_of_order, race.refused) == (1000 * 3 / 5, 1, 1.0)  # 5 of 6 units in one table
    assert (race.rush_s, race.rush_served, race.rush_cycles_per_s, race.rush_write_units) == (2.0, 1, 0.25, 8.0)


def test_who_needs_no_unit_has_no_cap():
    """Nothing is divided by nothing; who shows no ticket has none out of order."""
    race = contention.judge(Variant(Edit.name), 1, [Round(steady=Shift(seconds=1.0))], [1.0], [1.0], total=0)

    assert (race.cap_per_s, race.out_of_order) == (None, None)
    assert "out of order" not in contention.as_markdown([race])


@pytest.fixture
def race_of(dynoxide):
    """Return what one contender did in a race of two."""

    def race_of(name, **course):
        course = contention.Course(seconds=0.5, rush_s=5.0, **course)
        [race] = contention.compare(str(dynoxide.host), 0, [Variant(name)], 2, course, lambda: None)
        return race

    return race_of


@pytest.mark.parametrize("name", ["edit()", "NamedLock"])
def test_a_race(race_of, name):
    """All have a turn, and go on until the time is over; what they say they did is in the item, in order."""
    race = race_of(name, rounds=2)

    assert (race.threads, race.seconds, race.rush_served, race.lost, race.failed) == (2, 1.0, 2, 0, {})
    assert (race.out_of_order, race.cycles > 0, race.beside_plain > 0) == (0, True, True)
    assert contention.as_markdown([race]).count("\n") == 2 + 2 + 2


def test_a_race_on_a_partition(dynoxide):
    """Behind the throttle fewer turns are made than units allow, and the refusals are counted."""
    with throttled(str(dynoxide.host), 20) as (url, refusals):
        course = contention.Course(1.0, 1.0, 1, refusals)
        [race] = contention.compare(url, 0, [Variant("unprotected")], 4, course, lambda: None)

    assert race.refused > 0
    assert race.cycles <= 20 * (1 + 2 + 1)  # the burst, both windows, and what was under way


def test_units_of_refused_writes(dynoxide):
    """DynamoDB bills them by the item that they met, and reports nothing."""
    client = low_level_client(Place(str(dynoxide.host), ""))
    table = dynoxide.new_name("metered")
    create_table(client, table, "key")
    item = {"key": {"S": "k"}, "body": {"S": "x" * 3000}}
    with metered() as meter:
        client.put_item(TableName=table, Item=item)
        with pytest.raises(ClientError):
            client.put_item(
                TableName=table,
                Item={"key": {"S": "k"}},
                ConditionExpression="attribute_not_exists(body)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        early = meter.taken()
        client.get_item(TableName=table, Key={"key": {"S": "k"}}, ConsistentRead=True)

    assert (early.written, meter.write_units, meter.refused) == ({table: 6}, 3, 1)
    assert (meter.taken() - early).read_units == 1
    assert (early + early).requests == {"PutItem": 4}


def test_caps(dynoxide):
    """What a turn takes with two in the queue, and that 1,000 units are divided by it."""
    dynoxide.bind(*caps.MODELS)

    done = caps.measure(lambda: None, queues=(2,))

    assert [each.units for each in done] == [2, 3, 2]
    assert [round(each.cap_per_s) for each in done] == [500, 333, 500]
    rows = caps.as_markdown(done).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["2 (500) |", "3 (333) |", "2 (500) |"]


def test_processor_time(dynoxide):
    """Each case is measured; the first one is what the others are compared with."""
    done = layer.measure(dynoxide, 1, lambda: None)

    assert [each.case for each in done] == list(layer.CASES)
    assert done[0].ratio == 1
    assert all(each.median_us > 0 for each in done)
