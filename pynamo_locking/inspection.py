"""The state of a lock and its queue, as `Model.lock_state` and errors show it."""

from pynamo_locking._core.lock_queue import LockState, QueueEntry

__all__ = ["LockState", "QueueEntry"]
