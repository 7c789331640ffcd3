"""What a review of the core found in its small parts, each once: none of it comes back."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import ConfigurationError, LockableModel, LockAttribute, LockSettings
from pynamo_locking._io import runtime
from pynamo_locking._io.pool import Pool
from tests.unit.helpers import own_entry


class Crowded(runtime.Runtime):
    """A machine on which only so many threads can be started."""

    def __init__(self, threads):
        super().__init__()
        self.left = threads

    def spawn(self, target, name):
        if self.left == 0:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        super().spawn(target, name)


@pytest.fixture
def crowded():
    """Let no more than that many threads be started from now on."""
    real = runtime.current
    yield lambda threads: runtime.install(Crowded(threads))
    runtime.install(real)


def test_a_thread_is_not_taken_for_one_that_has_ended(monkeypatch):
    """Python gives the idents of ended threads to new ones: who has one does not hold its locks."""
    parties = []
    monkeypatch.setattr(runtime, "threading", SimpleNamespace(get_ident=lambda: 7))
    for _ in range(2):
        thread = threading.Thread(target=lambda: parties.append((runtime.current.party(), runtime.current.party())))
        thread.start()
        thread.join()
    (first, first_again), (second, _) = parties
    assert first == first_again
    assert first != second


def test_a_loss_is_told_although_no_thread_can_be_started(crowded):
    """`on_lost` is called, by the thread that finds out; what it raises keeps nobody else from being called."""
    own, heard = own_entry(), []

    def on_lost(reason):
        heard.append(reason)
        raise ValueError

    own.on_lost += [on_lost, on_lost]
    crowded(0)
    own.lose("evicted")
    assert heard == ["evicted", "evicted"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pool_makes_do_with_fewer_threads(crowded, threads):
    """All jobs are done, and the caller hears of each."""
    done, heard = [], []
    crowded(threads)
    Pool([lambda i=i: done.append(i) for i in range(20)], 4, heard.append).run()
    assert sorted(done) == sorted(heard) == list(range(20))


def test_a_pool_without_any_thread_begins_nothing(crowded):
    """And says so."""
    crowded(0)
    pool = Pool([pytest.fail], 4, pytest.fail)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.run()
    assert pool.begun == set()


def test_a_lease_of_no_millisecond_is_refused():
    """It would be stored as 0, be over at once, and be renewed without a pause."""
    with pytest.raises(ConfigurationError, match="whole milliseconds"):
        LockSettings(lease=1e-4, request_timeout=1e-5)
    assert LockSettings(lease=0.001, request_timeout=1e-5).lease == 0.001


def job(access_key):
    """Return a model of one table, in the account of that key."""

    class Job(LockableModel):
        class Meta:
            table_name = "jobs"
            region = "us-east-1"
            aws_access_key_id = access_key
            aws_secret_access_key = "secret"

        job_id = UnicodeAttribute(hash_key=True)
        lock = LockAttribute()

    return Job


def identity(model):
    """Return what tells the lock of one item from others in this process."""
    return model.locked("j")._target.row.identity


def test_tables_of_two_accounts_are_not_one():
    """Two accounts may have a table of the same name: a lock in the one is not held with that in the other."""
    here = job("A")
    assert identity(here) != identity(job("B"))
    assert identity(here) != identity(job(None))
    assert identity(here) == identity(job("A"))


def test_a_lock_outlives_the_session_it_was_taken_with():
    """Whoever assumes its role anew while it holds a lock gets another key, and writes under the lock all the same."""
    model = job("A")
    before = identity(model)
    model.Meta.aws_access_key_id, model._connection = "A2", None
    assert identity(model) == before

    class Late(model):
        class Meta(model.Meta):
            table_name = "jobs"

    assert identity(Late) == before


def test_a_pool_that_is_interrupted_twice_keeps_no_thread(monkeypatch):
    """Ctrl-C, and another one while the first is being seen to: its threads end all the same."""
    waits = threading.Event()

    class Watched(runtime.Runtime):
        def wait(self, condition, timeout):
            if threading.current_thread() is not threading.main_thread():
                waits.set()
            return super().wait(condition, timeout)

    def interrupt(_index):
        assert waits.wait(60)  # a thread that is ahead waits for us
        monkeypatch.setattr(pool, "_send_home", interrupt_again)
        raise KeyboardInterrupt

    def interrupt_again():
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "current", Watched())
    before = set(threading.enumerate())
    pool = Pool([lambda: None] * 10, 1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.run()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert len(pool.begun) < 10
