"""A pool of threads: with too few of them, and interrupted."""

from __future__ import annotations

import threading

import pytest

from pynamo_locking._io import runtime
from pynamo_locking._io.concurrency import Pool


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
