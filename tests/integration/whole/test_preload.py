"""A server loads an application that reads and writes, and forks its workers from it then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import preload
from tests.support.workers import Locks, Versioned, crew

if TYPE_CHECKING:
    from tests.engines.engine import Engine

pytestmark = [pytest.mark.alone, pytest.mark.processes]


def test_workers_forked_from_an_application_that_has_read(real_engine: Engine) -> None:
    """It read in every public way; its eight workers, and itself, get and change what they name, and nothing else."""
    real_engine.bind(Versioned, Locks, preload.Transactions)
    parties = range(9)
    with Versioned.batch_write(unguarded=True) as batch:
        for key in (preload.key_of(party, name) for party in parties for name in preload.names()):
            batch.save(Versioned(key, version=1))

    with crew(real_engine, 1, Versioned, Locks, preload.Transactions) as [server]:
        server.start("fork_many", preload.Application, len(parties) - 1, rounds=60)
        reports = server.result(patience=110)  # some ten thousand requests

    assert "\n".join(wrong for report in reports for wrong in report.wrong) == ""
    stored = {item.name: item.value for item in Versioned.scan(consistent_read=True) if item.value}
    assert stored == {key: count for report in reports for key, count in report.added.items()}
