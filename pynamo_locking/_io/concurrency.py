"""Threads and event loops: pauses that a thread sleeps and a task awaits, and a small pool of threads.

asyncio over blocking calls: requests are made in threads of our own, pauses pass in the event loop.

Nothing is left half done. If a task is cancelled during a request, that is raised after the effect of the request was
undone; if the task's loop is closed, a thread undoes it.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from pynamo_locking._io import runtime
from pynamo_locking._io.runtime import logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from pynamo_locking._io.stored_rows import Image


T = TypeVar("T")

#: Requests in flight at once. Leaves some of the 50 connections of the locks' own pool to the heartbeat.
MAX_THREADS: Final = 32

#: A longer pause is cut, since the clocks of loops can overflow; a waiter that wakes up too early polls again.
_LONGEST_PAUSE_S: Final = 3600.0


class WakeupSource(Protocol):
    """What ends a pause early: the place where a release in this process leaves the new image of the row."""

    on_wakeup: Callable[[], None] | None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next wake-up; at once if there was one already."""

    def wait(self, timeout: float) -> Image | None:
        """Return the image that was left, waiting up to `timeout` seconds for it."""


class Pause(NamedTuple):
    """A time in which there is nothing to do.

    Attributes:
        seconds: how long at most.
        mailbox: ends it early.
        leave: for a pause in a line of callers, after which no request is made: leaves that line for good, without a
            request either, and tells whether it could.
    """

    seconds: float
    mailbox: WakeupSource | None = None
    leave: Callable[[], bool] | None = None

    def sleep(self) -> Image | None:
        """Let the pause pass in this thread; return what was left in the mailbox."""
        if self.mailbox is not None:
            return self.mailbox.wait(self.seconds)
        if self is not TO_THREADS:
            runtime.current.sleep(self.seconds)
        return None


#: The pause before the first request. A task makes the steps before it in its loop, and the rest in threads.
TO_THREADS: Final = Pause(0.0)


#: Makes requests, yields each pause, is sent what the pause has brought, and returns a T.
Steps = Generator[Pause, "Image | None", T]


def is_lazy(function: Callable[..., Any]) -> bool:
    """Tell whether a call of the function does not run its body."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def run_steps(steps: Steps[T]) -> T:
    """Make all steps in this thread, and return their result. An interrupt of a pause closes the steps."""
    image: Image | None = None
    try:
        while True:
            try:
                pause = steps.send(image)
            except StopIteration as done:
                result: T = done.value
                return result
            image = pause.sleep()
    finally:
        steps.close()  # an interrupt could keep `contextlib.closing` from it


def _asyncio() -> Any:
    """Return asyncio. A program with tasks has imported it; the others would wait 25 ms for an import here."""
    return sys.modules["asyncio"]


def cancelled() -> type[asyncio.CancelledError]:
    error: type[asyncio.CancelledError] = _asyncio().CancelledError
    return error


class BlockingThreads:
    """Threads for blocking calls. A thread ends when no work is left, so an idle process has none.

    The threads never wait for a lock, only for DynamoDB's answers. So a task that has to save or to release a lock
    finds a thread, however many tasks wait for that lock.
    """

    def __init__(self) -> None:
        self.world = runtime.current
        self._mutex = runtime.current.mutex()  # reentrant: a finalizer may come in between
        self._urgent: deque[Callable[[], object]] = deque()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads: set[object] = set()

    def do(self, work: Callable[[], object], *, is_urgent: bool = False) -> None:
        """Do the work soon, in order; urgent work first. An interrupt may leave it undone.

        Raises:
            RuntimeError: no thread runs, and none can be started.
        """
        queue = self._urgent if is_urgent else self._waiting
        thread = object()  # no counter: after an interrupt it is unknown whether the thread runs, and removes itself
        try:
            with self._mutex:
                queue.append(work)
                if len(self._threads) >= MAX_THREADS:
                    return
                self._threads.add(thread)
            runtime.current.spawn(partial(self._serve, thread), name="pynamo-locking-asyncio")
        except BaseException as error:
            is_interrupt = not isinstance(error, RuntimeError)
            with self._mutex:
                self._threads.discard(thread)
                is_undone = (is_interrupt or not self._threads) and work in queue
                if is_undone:
                    queue.remove(work)
            if is_undone or is_interrupt:
                raise

    def _serve(self, thread: object) -> None:
        while True:
            with self._mutex:
                queue = self._urgent or self._waiting
                if not queue:
                    self._threads.discard(thread)
                    return
                work = queue.popleft()
            try:
                work()
            except BaseException:  # no task waits for it, and the thread is still needed
                logger.exception("what a task left behind could not be put in order")
            del work  # or what it refers to would live on until the next work


blocking_threads = BlockingThreads()


def start(work: Callable[[], object], *, is_urgent: bool = True) -> None:
    """Do the work in a thread, in a copy of this context, and do not wait for it.

    `is_urgent` is False for the steps of waiters: the holder goes first, however many wait.
    """
    global blocking_threads  # noqa: PLW0603 - one for each world that a test installs
    if blocking_threads.world is not runtime.current:
        blocking_threads = BlockingThreads()
    context = contextvars.copy_context()
    blocking_threads.do(lambda: context.run(work), is_urgent=is_urgent)


def _begin(work: Callable[[], T], *, is_urgent: bool = True) -> futures.Future[T]:
    future: futures.Future[T] = futures.Future()

    def job() -> None:
        try:
            result = _without_stop_iteration(work)
        except BaseException as error:  # noqa: BLE001 - raised again in the task
            future.set_exception(error)
        else:
            future.set_result(result)

    start(job, is_urgent=is_urgent)
    return future


async def _until_done(future: futures.Future[Any]) -> None:
    """Let other tasks run until a thread is done.

    Raises:
        asyncio.CancelledError: the task was cancelled. An interrupt may have kept the thread's message from the loop,
            so only `future` tells whether the thread is done.
    """
    loop: asyncio.AbstractEventLoop = _asyncio().get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(lambda _: _call_soon(loop, partial(_end, done)))
    await done


def _without_stop_iteration(work: Callable[[], T]) -> T:
    """Raise what a coroutine would: before Python 3.12 a future refuses StopIteration, and its task never ends."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("StopIteration was raised in a thread of asyncio") from error


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        logger.debug("the event loop is closed, so no task waits for that any more")


async def call(work: Callable[[], T], *, is_urgent: bool = True) -> T:
    """Do the work in a thread. If the task is cancelled, that is raised at once; the thread continues."""
    future = _begin(work, is_urgent=is_urgent)
    await _until_done(future)
    return future.result()


async def to_the_end(work: Callable[[], T], *, is_urgent: bool = True, hurry: Callable[[], object] = lambda: None) -> T:
    """Do the work in a thread. If the task is cancelled, that is raised when the work is done.

    `hurry` is called when the task is cancelled: it may let the work end sooner.
    """
    try:
        future = _begin(work, is_urgent=is_urgent)
    except RuntimeError as error:  # blocking the loop for a request is better than holding a lock for ever
        logger.warning("no thread for a request, so the event loop waits for it: %s", error)
        return work()
    # Even if it is done already: other tasks get their turn.
    cancellation = await _despite_cancellation(partial(_until_done, future), hurry, future.done)
    if cancellation is not None:
        raise cancellation from future.exception()
    return future.result()


async def _despite_cancellation(
    wait: Callable[[], Awaitable[object]], hurry: Callable[[], object], is_over: Callable[[], bool] = lambda: False
) -> asyncio.CancelledError | None:
    """Wait, and go on to wait when the task is cancelled; return the cancellation, which is then to be raised.

    A cancelled scope of anyio cancels the task in each pass of its loop, until the task leaves the scope or is in
    another one that is shielded. So after the first cancellation the rest is waited for in such a scope.

    Args:
        wait: called again after each cancellation.
        hurry: called at each cancellation.
        is_over: tells after a cancellation whether there is nothing left to wait for.
    """
    cancellation: asyncio.CancelledError | None = None
    with contextlib.ExitStack() as shield:
        while True:
            try:
                await wait()
            except cancelled() as error:
                if cancellation is None:
                    shield.enter_context(_shield_from_anyio())
                cancellation = error
                hurry()
                if not is_over():
                    continue
            return cancellation


def _shield_from_anyio() -> contextlib.AbstractContextManager[object]:
    """Return a scope in which no outer scope of anyio cancels. A program with such scopes has imported anyio."""
    anyio: Any = sys.modules.get("anyio")
    shield: contextlib.AbstractContextManager[object] = (
        contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    )
    return shield


class SerialCalls:
    """Does works in threads, one at a time, in the order in which tasks ask for them."""

    def __init__(self) -> None:
        self._turn: asyncio.Lock = _asyncio().Lock()
        self._doing = runtime.current.exclusive()

    @contextlib.asynccontextmanager
    async def turn(self, hurry: Callable[[], object] | None = None) -> AsyncIterator[None]:
        """Wait until no other task has its turn. With `hurry`, even if the task is cancelled: see `to_the_end`."""
        cancellation: asyncio.CancelledError | None = None
        if hurry is None:
            await self._turn.acquire()
        else:
            cancellation = await _despite_cancellation(self._turn.acquire, hurry)
        try:
            yield
        except Exception as error:
            if cancellation is None:
                raise
            raise cancellation from error
        finally:
            self._turn.release()
        if cancellation is not None:
            raise cancellation

    def alone(self, work: Callable[[], T]) -> T:
        """Do the work in this thread once no other thread does any: a task may have left one behind."""
        with self._doing:
            return work()


class _Beginning(runtime.ThreadLocal):
    """Lets the tasks of a loop begin one at a time, in order of arrival. It keeps neither them nor a closed loop."""

    loop: Callable[[], asyncio.AbstractEventLoop | None] = staticmethod(lambda: None)
    turn: Callable[[], asyncio.Lock | None] = staticmethod(lambda: None)


_beginning = _Beginning()


async def begin_in_turn() -> None:
    """Let one task of this loop begin in each of its passes: a thousand in one pass would hold up all others."""
    loop: asyncio.AbstractEventLoop = _asyncio().get_running_loop()
    turn = _beginning.turn() if _beginning.loop() is loop else None
    if turn is None:  # nobody waits for it, and nobody is about to release it
        turn = _asyncio().Lock()
        _beginning.loop, _beginning.turn = weakref.ref(loop), weakref.ref(turn)
    await turn.acquire()
    loop.call_soon(turn.release)


async def spend(pause: Pause) -> Image | None:
    """Let a pause pass while other tasks run; return what was left in its mailbox."""
    if not runtime.current.has_real_time:  # loops know no other: a thread sleeps it
        return await call(pause.sleep, is_urgent=False)
    loop: asyncio.AbstractEventLoop = _asyncio().get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(max(0.0, min(pause.seconds, _LONGEST_PAUSE_S)), _end, over)
    # The mailbox outlives a closed loop, and must not keep the task alive. In an open loop the timer keeps it alive.
    still_open = weakref.ref(over)
    try:
        if pause.mailbox is not None:
            pause.mailbox.listen(lambda: _call_soon(loop, lambda: _end(still_open())))
        await over
    finally:
        timer.cancel()
        if pause.mailbox is not None:
            pause.mailbox.on_wakeup = None
    return None if pause.mailbox is None else pause.mailbox.wait(0)


async def arun_steps(steps: Steps[T]) -> T:
    """Make all steps in this task, which must make no requests, and return their result: `run_steps` for tasks."""
    image: Image | None = None
    try:
        while True:
            try:
                pause = steps.send(image)
            except StopIteration as done:
                result: T = done.value
                return result
            image = await spend(pause)
    finally:
        steps.close()


def _end(pause: asyncio.Future[None] | None) -> None:
    if pause is not None and not pause.done():
        pause.set_result(None)


def _reset_after_fork() -> None:
    global blocking_threads  # noqa: PLW0603 - no thread of the parent lives in the child
    blocking_threads = BlockingThreads()


runtime.after_fork(_reset_after_fork)


# Runs jobs in a few threads, each in the context of the caller, so that the caller's locks guard them as well.


class Pool:
    """A number of jobs. After the first that fails no other is begun.

    Args:
        jobs: what to do.
        workers: how many at once.
        on_done: called in the caller's thread with the index of each job that is done.

    Attributes:
        begun: the indexes of the jobs that were begun.
        failure: what the first job that failed has raised.
        is_over: whether running jobs should end: the caller is interrupted, or all are done.
    """

    def __init__(self, jobs: Sequence[Callable[[], object]], workers: int, on_done: Callable[[int], None]) -> None:
        self._jobs = jobs
        self._workers = min(workers, len(jobs))
        self._on_done = on_done
        self._waiting = deque(range(len(jobs)))
        self._done: deque[int] = deque()
        self._running = 0
        self.begun: set[int] = set()
        self.failure: BaseException | None = None
        self.is_over = False
        self._changed = runtime.current.condition()

    def run(self) -> None:
        """Do all jobs, and return when none is running; raise what a job has raised.

        If `on_done` raises, or the caller is interrupted, no other job is begun.
        """
        try:
            for number in range(self._workers):
                if not self._start(is_needed=number == 0):
                    break
            for _ in self._jobs:
                index = self._next_done()
                if self.failure is not None:
                    break
                self._on_done(index)
        finally:
            self._stop()
        if self.failure is not None:
            raise self.failure

    def _start(self, *, is_needed: bool) -> bool:
        """Start one more thread; False if there is none, and the running threads have to do all."""
        context = contextvars.copy_context()
        try:
            runtime.current.spawn(lambda: context.run(self._work), name="pynamo-locking-batch")
        except RuntimeError:
            if is_needed:
                raise  # no thread would do anything
            logger.warning("no thread to help with a batch", exc_info=True)
            return False
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                # Stay close to the caller, so that it can still stop the jobs after an error that it has not heard of.
                self._wait_while(lambda: self._waiting and len(self._done) >= self._workers)
                if not self._waiting or self.failure is not None:
                    return
                index = self._waiting.popleft()
                self.begun.add(index)
                self._running += 1
            try:
                self._jobs[index]()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                if self.failure is None:
                    self.failure = error
            finally:
                with self._changed:
                    self._running -= 1
                    self._done.append(index)
                    self._changed.notify_all()

    def _wait_while(self, is_so: Callable[[], object]) -> None:
        while is_so():
            runtime.current.wait(self._changed, None)

    def _next_done(self) -> int:
        with self._changed:
            self._wait_while(lambda: not self._done)
            self._changed.notify_all()
            return self._done.popleft()

    def _stop(self) -> None:
        try:
            self._end_workers()
            with self._changed:
                self._wait_while(lambda: self._running)
        finally:
            self._end_workers()  # if the caller was interrupted once more, perhaps before it was done

    def _end_workers(self) -> None:
        """Begin no other job, and end the threads that wait for the caller."""
        self.is_over = True
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


def run_all(jobs: Sequence[Callable[[], object]], workers: int) -> None:
    """Do all jobs; a single one in this thread. After the first failure begin no other job, and raise it."""
    if len(jobs) == 1:
        jobs[0]()
    else:
        Pool(jobs, workers, lambda _: None).run()


@contextlib.contextmanager
def undone_by(undo: Callable[[], object], *, unless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Undo what a block has begun, if an interrupt or an error ends it, but for those errors."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, unless):
            undo()
        raise
