"""What people take a lock for: calls that may be made twice, jobs that run once in a period, a leader.

Jobs and leaders are made by `NamedLock.once` and `NamedLock.lead`.
"""

from pynamo_locking._core.lock_queue import RunRecord
from pynamo_locking._recipes.idempotency import IdempotencyTable, IdempotentCall, idempotent
from pynamo_locking._recipes.leader_election import LeaderElection, LeaderTerm
from pynamo_locking._recipes.once import OnceRun

__all__ = ["IdempotencyTable", "IdempotentCall", "LeaderElection", "LeaderTerm", "OnceRun", "RunRecord", "idempotent"]
