"""Checks a file: ``python -m tests.campaign check FILE``. Nothing but the file is looked at."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.campaign import histories, lists, registers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.campaign.histories import Op
    from tests.campaign.orders import Report

#: So many anomalies of a kind are told, with their operations.
_TOLD: Final = 2


class Checked(NamedTuple):
    """What came of a check."""

    path: Path
    model: str
    """``list-append`` or ``rw-register``, as elle-cli calls them."""
    report: Report
    seconds: float


def check_file(path: Path, *, strict: bool = True) -> Checked:
    """Check a history; whether it has lists or registers, its first write tells."""
    began = time.perf_counter()
    ops = histories.operations(histories.read(path))
    first = list[Any]()
    model = _model(ops, first)
    check = lists.check if model == "list-append" else registers.check
    report = check(itertools.chain(first, ops), strict=strict)
    return Checked(path, model, report, time.perf_counter() - began)


def check_parts(folder: Path, name: str) -> None:
    """What processes have noted is strictly serializable, says a reader that knows nothing but their notes.

    With ``HISTORIES=DIR``, the history stays there, for other readers.
    """
    history = Path(os.environ.get("HISTORIES", folder)) / f"{name}.jsonl"
    histories.merge(sorted(folder.glob("*.part")), history)
    checked = check_file(history)
    assert not checked.report.anomalies, describe(checked)


def _model(ops: Iterator[Op], taken: list[Op]) -> str:
    for op in ops:
        taken.append(op)
        for f, _, value in op.value:
            if f == "append" or (f == "r" and isinstance(value, list)):
                return "list-append"
            if f == "w" or (f == "r" and value is not None):
                return "rw-register"
    return "list-append"


def describe(checked: Checked) -> str:
    """Return what to tell about a file: one line if nothing is wrong."""
    report = checked.report
    rate = report.operations.total() / max(checked.seconds, 1e-9)
    text = (
        f"{checked.path}\t{'true' if not report.anomalies else 'false'}\t{checked.model}: "
        f"{report.operations.total():,} operations ({_counts(report.operations)}), {report.micro.total():,} "
        f"micro-operations done ({_counts(report.micro)}), {checked.seconds:.1f} s, {rate:,.0f} a second"
    )
    wanted: set[int] = set()
    for kind in sorted(report.kinds):
        found = [anomaly for anomaly in report.anomalies if anomaly.kind == kind]
        text += f"\n  {kind} ({len(found)} times)"
        for anomaly in found[:_TOLD]:
            text += f"\n    {anomaly.message}"
            wanted.update(anomaly.indices)
    if wanted:
        for op in histories.read(checked.path):
            if op.get("index") in wanted:
                text += f"\n  {histories.to_edn(op)}"
    return text


def _counts(counter: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counter.items()))
