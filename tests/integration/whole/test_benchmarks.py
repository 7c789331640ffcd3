"""The benchmarks: what they make of what they saw, and that each of them runs."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from benchmarks import contention
from benchmarks.__main__ import PARTS
from benchmarks.contenders import CONTENDERS, Place, Variant, variants
from benchmarks.contenders.counters import create_table, low_level_client
from benchmarks.contenders.ours import Edit, Named
from benchmarks.contention import Seen
from benchmarks.harness import Bench, Measured, Part, draw, table, told
from benchmarks.meter import metered
from benchmarks.pages import filled


def test_contenders_take_turns():
    """Each once a round; what warms up does not count; ratios are those of the same round."""
    bench, order = Bench(None, 2), []

    def turn(name, *times):
        left = iter(times)

        def work():
            order.append(name)
            return {"ms": next(left), "requests": 2}

        return work

    bench.part = "p"
    bench.in_turns("case", {"a": turn("a", 9, 1, 2), "b": turn("b", 9, 3, 5)}, warm_up=1)

    assert order == ["a", "b"] * 3
    assert bench.of("p") == [
        Measured("p", "case", "a", {"ms": [1, 2], "requests": [2, 2]}, [1, 1]),
        Measured("p", "case", "b", {"ms": [3, 5], "requests": [2, 2]}, [3, 2.5]),
    ]
    assert table(bench.measured, Part("title", PARTS["cycles"].measure)).splitlines() == [
        "| case | contender | ms | ratio | requests |",
        "| --- | --- | ---: | ---: | ---: |",
        "| case | a | 1.5 (1 to 2) | 1 | 2 |",
        "| case | b | 4 (3 to 5) | 2.75 (2.5 to 3) | 2 |",
    ]


def test_a_page_quotes_a_run():
    """The figures and contenders that it asks for, whatever stood there before; the rest of the page stays."""
    measured = [
        Measured("p", "8 threads", "a", {"ms": [1, 2, 4], "requests": [2, 2, 2]}, [1, 1, 1]),
        Measured("p", "8 threads", "b", {"ms": [3, 3, 3], "requests": [4, 4, 4]}, [3, 1.5, 0.75]),
        Measured("p", "9 threads", "b", {"ms": [9, 9, 9]}, [1, 1, 1]),
    ]
    comment = "<!-- measured: p | 8 threads | requests; ratio | b -->"
    page = f"Before.\n\n{comment}\n\n| old |\n| 7 |\n\nAfter."

    assert filled(page, measured).splitlines() == [
        *("Before.", "", comment, ""),
        *("| 8 threads | requests | ratio |", "| --- | ---: | ---: |", "| b | 4 | 1.5 (0.75 to 3) |"),
        *("", "After."),
    ]
    assert filled(filled(page, measured), measured) == filled(page, measured)
    with pytest.raises(KeyError):
        filled(page.replace("| b", "| c"), measured)


def test_what_was_counted_has_no_ratio():
    """It is the same on each machine; nor is there one of nothing."""
    measured = [Measured("p", "n = 1", "a", {"requests": [3]}, [1])]

    assert "ratio" not in table(measured, Part("title", PARTS["growth"].measure, is_compared=False))
    assert table([], Part("title", PARTS["growth"].measure)) == "No contender was asked for."


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1234.5, 2000, 1000], "1,234 (1,000 to 2,000)"),
        ([0.01234], "0.0123"),
        ([12.34, 12.31], "12.3"),
        ([0], "0"),
        ([], "-"),
        ([float("nan")], "-"),
    ],
)
def test_a_figure_is_a_median_with_its_range(values, text):
    """Three digits; where all rounds show the same, that is all."""
    assert told(values) == text


@pytest.mark.processes
def test_the_picture(tmp_path):
    """Whoever was measured is in it; it follows the page, and is the same for the same figures."""
    measured = [Measured("p", "1 ms", name, {"ms": [1.0, 2.0, 4.0]}, [1, 1, 1]) for name in ("edit()", "others")]
    for name in ("a", "b"):
        draw("One", measured, tmp_path / name)
    drawn = (tmp_path / "a").read_text()

    assert drawn == (tmp_path / "b").read_text()
    assert [part in drawn for part in ("edit(), 1 ms", "One: ms", "prefers-color-scheme", "#ffffff;color")] == [
        True
    ] * 4


def test_slow_pollers_run_with_our_interval_too():
    """So that no contender is only slow by default; ours are as they are."""
    tuned = {each.kind for each in variants(tuned=True) if each.poll_s is not None}

    assert tuned == {kind for kind in CONTENDERS.values() if (kind.poll_s or 0) > 0.1 and not kind.unavailable()}
    assert not any(kind.__module__.endswith(".ours") for kind in tuned)


def test_overtakings():
    """Who begins later and ends earlier has overtaken; who is still waiting has been overtaken by all of those."""
    done = [(0.0, 10.0), (1.0, 2.0), (3.0, 11.0), (4.0, 5.0)]

    assert list(contention.overtakings(done, [])) == [2, 0, 1, 0]
    assert list(contention.overtakings(done, [0.5])) == [2, 4 - 1, 0, 1, 0]


def test_what_is_made_of_a_race():
    """Processes are put together; waits without an end count as long as they were."""
    first = Seen([(0.0, 1.0), (1.0, 2.0)], [0.5], in_all=4, served=2, gave_up=0, requests=6, written=4.0)
    second = Seen([(1.0, 4.0)], [], in_all=1, served=1, gave_up=1, requests=3, written=2.0)

    assert (first + second).figures(6.0, end=4.0, threads=4, total=3) == {
        "cycles/s": 0.5,
        "p50, ms": 2000,
        "longest, ms": 3500,
        "overtaken": 0.5,
        "requests": 3,
        "write units": 2,
        "never served": 1,
        "gave up": 1,
        "lost updates": 2,
    }
    assert Seen().figures(1.0, end=1.0, threads=1, total=0)["cycles/s"] == 0


@pytest.mark.parametrize("kind", [Edit, Named])
def test_a_race(dynoxide, kind):
    """All have a turn, and go on until the time is over; what they say they did is in the item."""
    variant, place = Variant(kind), Place(str(dynoxide.host), f"{dynoxide.new_name('race')}-", 0)
    contender = variant.build(place)
    contender.create(["k", *(f"warm-{i}" for i in range(4))])
    end, seen = contention.contend(variant, place, "k", 2, (0.5, 0.5))
    figures = seen.figures(0.5, end, 2, contender.total("k"))
    contender.close()

    assert [figures[name] for name in ("never served", "gave up", "lost updates")] == [0, 0, 0]
    assert figures["cycles/s"] > 0


def test_units_of_refused_writes(dynoxide):
    """DynamoDB bills them by the item that they met, and reports nothing."""
    client = low_level_client(Place(str(dynoxide.host), ""))
    table_name = dynoxide.new_name("metered")
    create_table(client, table_name, "key")
    item = {"key": {"S": "k"}, "body": {"S": "x" * 3000}}
    with metered() as meter:
        client.put_item(TableName=table_name, Item=item)
        with pytest.raises(ClientError):
            client.put_item(
                TableName=table_name,
                Item={"key": {"S": "k"}},
                ConditionExpression="attribute_not_exists(body)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        client.get_item(TableName=table_name, Key={"key": {"S": "k"}}, ConsistentRead=True)

    assert (meter.written, meter.write_units, meter.read_units) == (6, 3, 1)
    assert (meter.requests, meter.refused) == (3, 1)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", PARTS)
def test_each_part_runs(servers, part):
    """With its smallest size: there are figures of all contenders."""
    bench = Bench(servers, 1, is_small=True)
    bench.part = part
    PARTS[part].measure(bench)

    assert bench.of(part)
    assert "nan" not in table(bench.of(part), PARTS[part])
