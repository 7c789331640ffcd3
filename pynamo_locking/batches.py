"""Batches of guarded writes, as `Model.guarded_batch` makes them, and their results."""

from pynamo_locking._core.write_outcome import BatchResult
from pynamo_locking._models.batch_writes import GuardedBatch

__all__ = ["BatchResult", "GuardedBatch"]
