"""The reader of histories: published bad ones, good ones that were recorded here, and these with one thing changed."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.campaign import histories, lists, registers
from tests.campaign.__main__ import main
from tests.campaign.check import check_file, describe

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
PUBLISHED = sorted((HERE / "published").iterdir())
#: Of campaigns of a few seconds on dynoxide, under kills and faults: nothing is wrong with these.
RECORDED = HERE / "recorded"

Ops = list[dict[str, Any]]


def expected(path: Path) -> str:
    """The anomaly that a published file says that it shows."""
    if path.suffix == ".jsonl":
        return path.stem.partition("-")[0]
    return path.read_text().splitlines()[0].removeprefix("; anomaly: ")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_bad_histories(path):
    """Each is found, by the name that its source gives it."""
    checked = check_file(path)
    assert expected(path) in checked.report.kinds
    assert f"  {expected(path)} (" in describe(checked)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_what_only_time_contradicts(path):
    """Without the order in time, only what is named after it is allowed."""
    kind = expected(path)
    kinds = check_file(path, strict=False).report.kinds
    assert (kind in kinds) == (not kind.endswith(("-realtime", "-process", "cyclic-versions")))


@pytest.mark.parametrize("kind", ["lists", "registers"])
def test_recorded_good_histories(kind, tmp_path, capsys):
    """Nothing is found in either form, which say the same; the command says so."""
    as_edn = tmp_path / f"{kind}.edn"
    as_edn.write_text("".join(f"{histories.to_edn(op)}\n" for op in recorded(kind)))
    assert list(histories.read(as_edn)) == recorded(kind)
    assert main(["check", str(as_edn), str(RECORDED / f"{kind}.jsonl")]) == 0
    assert capsys.readouterr().out.count("\ttrue\t") == 2


def test_the_command_finds_anomalies(capsys):
    """It ends with 1, and shows the operations."""
    assert main(["check", str(HERE / "published" / "long-fork.edn")]) == 1
    said = capsys.readouterr().out
    assert "\tfalse\tlist-append" in said
    assert "{:index 6, :type :ok, :process 2" in said


# Changed


def recorded(kind: str) -> Ops:
    return list(histories.read(RECORDED / f"{kind}.jsonl"))


def reads(ops: Ops, least: int) -> list[tuple[dict[str, Any], list[Any]]]:
    """Reads of at least so many elements, none of which are the transaction's own."""
    return [
        (op, micro)
        for op in ops
        if op["type"] == "ok"
        for micro in op["value"][:1]
        if micro[0] == "r" and isinstance(micro[2], list) and len(micro[2]) >= least
    ]


def a_stale_read(ops: Ops, chooser: random.Random) -> None:
    """Something that was read long ago is read again, much later."""
    _, micro = reads(ops, 3)[-chooser.randint(1, 9)]
    micro[2][:] = micro[2][:1]


def an_aborted_read(ops: Ops, chooser: random.Random) -> None:
    """An operation that others have read is told as refused."""
    _, micro = chooser.choice(reads(ops, 2))
    [writer] = [op for op in ops if op["type"] in ("ok", "info") and ["append", micro[1], micro[2][0]] in op["value"]]
    writer["type"] = "fail"


def garbage(ops: Ops, chooser: random.Random) -> None:
    """A read shows what nothing has appended."""
    _, micro = chooser.choice(reads(ops, 2))
    micro[2].append(-1)


def two_orders(ops: Ops, chooser: random.Random) -> None:
    """A read shows two elements the other way round."""
    _, micro = reads(ops, 3)[0]
    micro[2][:2] = micro[2][1::-1]


def twice(ops: Ops, chooser: random.Random) -> None:
    """The last read of a list shows an element twice."""
    _, micro = reads(ops, 3)[-1]
    micro[2].append(micro[2][0])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (a_stale_read, "G-single-item"),
        (an_aborted_read, "G1a"),
        (garbage, "garbage-read"),
        (two_orders, "incompatible-order"),
        (twice, "duplicate-elements"),
    ],
)
def test_one_thing_changed_in_a_list(change: Callable[..., None], kind: str, seed: int):
    """It is found."""
    ops = recorded("lists")
    change(ops, random.Random(seed))
    kinds = lists.check(histories.operations(ops)).kinds
    assert any(kind in found for found in kinds), kinds


def test_an_update_that_is_lost():
    """Two transactions that replaced the same value of a register are found, and so is a read of an old value."""
    ops = recorded("registers")
    done = [op for op in ops if op["type"] == "ok"]
    both = [
        op
        for op in done
        if [micro[0] for micro in op["value"]] == ["r", "w"] and op["value"][0][1] == op["value"][1][1]
    ]
    of_one = Counter(op["value"][0][1] for op in both).most_common(1)[0][0]
    first, second, *_ = (op for op in both if op["value"][0][1] == of_one)
    second["value"][0][2] = first["value"][0][2]
    kinds = registers.check(histories.operations(ops)).kinds
    assert "lost-update" in kinds


# Files


def test_edn_and_back():
    """What is written as EDN reads the same; keywords are strings, as they are in JSON."""
    op = {"index": 1, "type": "ok", "f": "txn", "value": [["append", 3, 'a "b"'], ["r", 4, []], ["r", 5, None]]}
    assert list(histories.from_edn(histories.to_edn(op))) == [op]
    assert list(histories.from_edn("[{:a 1, :b [:x nil true]} (2 3)] ; no more")) == [
        [{"a": 1, "b": ["x", None, True]}, [2, 3]]
    ]


@pytest.mark.parametrize("text", ["[1", "[1 2)", "}"])
def test_broken_edn(text):
    """Is refused, not read in part."""
    with pytest.raises(ValueError, match=r"closes nothing|is missing"):
        list(histories.from_edn(text))


def test_parts_are_merged_by_time(tmp_path):
    """A killed process leaves an invocation, which becomes an `:info`; one with an unknown outcome has a new number."""
    first = histories.Scribe(tmp_path / "a.part", 1)
    second = histories.Scribe(tmp_path / "b.part", 2)
    first.invoke([["append", 1, 1]])
    second.invoke([["append", 1, 2]])
    second.info([["append", 1, 2]], TimeoutError())
    second.invoke([["r", 1, None]])
    second.ok([["r", 1, [2]]])
    first.close()
    second.close()
    with (tmp_path / "a.part").open("a") as file:
        file.write('{"time": 9')  # never ended
    assert histories.merge([tmp_path / "a.part", tmp_path / "b.part"], tmp_path / "all") == 6
    ops = list(histories.read(tmp_path / "all.edn"))
    assert [(op["index"], op["type"], op["process"]) for op in ops] == [
        (0, "invoke", 1_000_000),
        (1, "invoke", 2_000_000),
        (2, "info", 2_000_000),
        (3, "invoke", 2_000_001),
        (4, "ok", 2_000_001),
        (5, "info", 1_000_000),
    ]
    assert [op["error"] for op in ops if op["type"] == "info"] == ["TimeoutError", "killed"]
    assert json.loads((tmp_path / "all.jsonl").read_text().splitlines()[4])["value"] == [["r", 1, [2]]]
    report = check_file(tmp_path / "all.edn").report
    assert report.anomalies == []
    assert report.operations == {"info": 2, "ok": 1}


def test_a_process_that_goes_on_after_an_unknown_outcome():
    """Is refused: Jepsen's processes do one thing at a time, and none after an `:info`."""
    ops = [
        {"type": "invoke", "process": 1, "value": [["append", 1, 1]]},
        {"type": "info", "process": 1, "value": [["append", 1, 1]]},
        {"type": "invoke", "process": 1, "value": [["append", 1, 2]]},
    ]
    with pytest.raises(ValueError, match="second operation"):
        list(histories.operations(ops))


def test_unknown_outcomes_may_have_happened_or_not():
    """An append of unknown outcome may be read, or not; what it has read is not known."""
    value = [["append", 1, 1], ["r", 2, None]]
    ops: Ops = [{"type": kind, "process": 1, "value": value} for kind in ("invoke", "info")]
    for seen in ([], [1]):
        ops += [{"type": kind, "process": 2, "value": [["r", 1, seen]]} for kind in ("invoke", "ok")]
    assert lists.check(histories.operations(ops)).anomalies == []
    later = [{"type": kind, "process": 2, "value": [["r", 1, []]]} for kind in ("invoke", "ok")]
    assert lists.check(histories.operations([*ops, *later])).kinds == {"G-single-item-process"}
