"""What a held entry tells its holder."""

from __future__ import annotations

from tests.unit.helpers import own_entry


def test_a_loss_is_told_although_no_thread_can_be_started(crowded):
    """`on_lost` is called, by the thread that finds out; what it raises keeps no other callback from being called."""
    own, heard = own_entry(), []

    def on_lost(reason):
        heard.append(reason)
        raise ValueError

    own.on_lost += [on_lost, on_lost]
    crowded(0)
    own.lose("evicted")
    assert heard == ["evicted", "evicted"]
