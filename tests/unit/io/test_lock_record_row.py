"""What tells one lock from others in this process."""

from __future__ import annotations

from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute
from tests.support.models import meta


def job(access_key):
    """Return a model of one table, in the account of that key."""

    class Job(LockableModel):
        Meta = meta("jobs", region="us-east-1", aws_access_key_id=access_key, aws_secret_access_key="secret")

        job_id = UnicodeAttribute(hash_key=True)
        lock = LockAttribute()

    return Job


def identity(model):
    """Return what tells the lock of one item from others in this process."""
    return model.locked("j")._handle.target.row.identity


def test_tables_of_two_accounts_are_not_one():
    """Two accounts may have a table of the same name: a lock in the one is not held with that in the other."""
    here = job("A")
    assert identity(here) != identity(job("B"))
    assert identity(here) != identity(job(None))
    assert identity(here) == identity(job("A"))


def test_a_lock_outlives_the_session_it_was_taken_with():
    """A holder that assumes its role anew gets another key, and writes under the lock all the same."""
    model = job("A")
    before = identity(model)
    model.Meta.aws_access_key_id, model._connection = "A2", None
    assert identity(model) == before

    class Late(model):
        class Meta(model.Meta):
            table_name = "jobs"

    assert identity(Late) == before
