"""The soak itself: that it works, counted by operations, and that it can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import soak
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.engines.engine import Engine

pytestmark = pytest.mark.alone

OPERATIONS = 100
MOMENTS = 20
FLAT = soak.Sample(rss_mb=100.0, python_mb=20.0, threads=9, files=30)


def test_every_operation(dynoxide: Engine) -> None:
    """A hundred operations: each kind was done, no increment is lost, no lock is left."""
    soak.prepare(dynoxide)
    run = soak.Soak(moments=MOMENTS)
    run.run(lambda: run.total() / OPERATIONS)
    run.check()
    assert set(run.done) == {operation.__name__ for operation in soak.OPERATIONS}
    assert [one.name for one in soak.verdicts(run.samples)] == list(soak.Sample._fields)


def test_a_leak_is_found(dynoxide: Engine) -> None:
    """An operation that keeps 200 KB each time shows in Python's memory."""
    soak.prepare(dynoxide)
    kept = []

    def progress() -> float:
        return 2 * run.total() / OPERATIONS

    def leaking(key: str) -> Sequence[object]:
        # A sample takes longer than many operations where the process has grown large.
        until(lambda: len(run.samples) >= progress() * MOMENTS - 1 or progress() >= 1, "the samples")
        kept.append(bytearray(200_000))
        return soak.edit(key)

    run = soak.Soak([leaking], MOMENTS)
    run.run(progress)
    grown = {one.name for one in soak.verdicts(run.samples) if not one.is_flat}
    assert "python_mb" in grown


def test_an_error_ends_the_run(dynoxide: Engine) -> None:
    """What an operation raises is raised by the run."""
    soak.prepare(dynoxide)

    def failing(key: str) -> Sequence[object]:
        raise ZeroDivisionError(key)

    with pytest.raises(ZeroDivisionError):
        soak.Soak([soak.edit, failing], MOMENTS).run(lambda: 0.0)


@pytest.mark.parametrize("name", soak.Sample._fields)
def test_verdicts(name: str) -> None:
    """A figure that keeps growing is found; one that only grew in the beginning is not, nor is one that falls."""
    start = getattr(FLAT, name)

    def judged(values: list[float]) -> dict[str, bool]:
        samples = [FLAT._replace(**{name: value}) for value in values]
        return {one.name: one.is_flat for one in soak.verdicts(samples)}

    calm = dict.fromkeys(soak.Sample._fields, True)
    assert judged([start + n for n in range(50)]) == calm | {name: False}
    assert judged([start - 20 + 2 * min(n, 9) for n in range(50)]) == calm
    assert judged([start - n / 10 for n in range(50)]) == calm
