"""A forked child of a process that was about to subscribe."""

from __future__ import annotations

import os

import pytest

from pynamo_locking import events
from pynamo_locking._io import event_stream
from tests.integration.telemetry.forked import in_child
from tests.support.parties import in_thread

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]


def test_a_child_can_subscribe_though_the_parent_was_about_to() -> None:
    """The mutex that another thread of the parent had at the moment of the fork is not the child's."""

    def child() -> str:
        with events.subscribe(print):
            return str(len(event_stream.listeners))

    with event_stream._mutex:
        assert in_thread(lambda: in_child(child)) == "1"
