"""A table of calls that may be made twice."""

from __future__ import annotations

from dataclasses import replace

from pynamo_locking.recipes import IdempotencyTable
from tests.support.models import APART, declare

#: Each caller has an entry of its own, so that a thread stands for another process.
Calls = declare("Calls", IdempotencyTable, table_name="calls", lock_settings=replace(APART, local_wakeups=False))
