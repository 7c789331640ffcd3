"""Celery: tasks of which one is queued or running at a time.

A lock around a task, and a job of which one run is to succeed in a period, need nothing of this module: see the page
:doc:`/how-to/use-with-celery`.
"""

from __future__ import annotations

import hashlib
import inspect
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from celery import Task, signals
from celery.exceptions import Ignore, Reject
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils import json
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import NamedLock
from pynamo_locking._facade import logger, runtime
from pynamo_locking.exceptions import ConfigurationError, Conflict, ItemLocked, LockTimeout

if TYPE_CHECKING:
    from typing import TypeAlias

    from celery.result import AsyncResult

    from pynamo_locking import Lock

    _Task: TypeAlias = Task[..., Any]  # for those who check types with the package celery-types
else:
    _Task = Task


__all__ = ["TaskClaims", "UniqueTask"]


_json: Any = json  # has no types

#: The header of a message whose sender has claimed its name.
_HEADER: Final = "pynamo_locking_claimed"


_LONGEST_S: Final = 36_525 * 86_400.0


class TaskClaims(NamedLock):
    """The table of unique tasks: a row for each task and its arguments, with a lock while it runs.

    Subclass it, with a separate table or that of your `NamedLock`::

        class Claims(TaskClaims):
            class Meta:
                table_name = "locks"

    Attributes:
        task_id: of the task that is queued or running; None once it has succeeded.
        until_ms: when a claim of a queued task ends, in ms since the epoch; 0 from the moment when it runs.
    """

    task_id: UnicodeAttribute = UnicodeAttribute(null=True)
    until_ms: NumberAttribute = NumberAttribute(default=0)


class UniqueTask(_Task):
    """A base class of tasks of which one is queued or running at a time, for the same arguments.

    ::

        @app.task(base=UniqueTask, claims=Claims)
        def rebuild(shop): ...

    `delay` and `apply_async` claim the name and the arguments of the task before they send the message. If another
    message has the claim, or runs, nothing is sent, and the `AsyncResult` of that message is returned.

    The worker that runs the task holds a lock with a lease and a heartbeat, so no two workers run it at a time. If the
    worker dies, the claim ends with its lease. A message that is delivered again (after a visibility timeout, or with
    `acks_late`) waits while the first delivery runs; then it is skipped if that was completed, and runs if not. A
    message is skipped, too, if a later message has taken over its claim.

    Attributes:
        claims: the table. Required.
        unique_on: the names of the arguments that count; None, the default, means all.
        unique_for: for how many seconds a message that was sent and did not begin to run keeps others out, counted from
            its `eta`; a day. It matters for lost messages, since the broker reports no loss.
        unique_until: ``"done"``: the claim ends with the run. ``"start"``: it ends when the run begins, so that what
            changes during the run is seen by another one; the runs can overlap then, unless they take a lock.

    Raises:
        ConfigurationError: `claims` is missing, or an attribute is wrong, when the task is made. The task has callbacks
            (a `link`, or a place in a chain before its end, or in a chord) when it is sent: a message that is not sent
            would not call them. As `Lock.acquire` also where the table cannot be used; nothing was sent.

    Cost: a message 1 write; 1 write and 1 read if it is not sent. A run 3 writes, and 1 for each third of its lease. A
    run whose name was never locked before: 4 writes.
    """

    abstract = True
    claims: ClassVar[type[TaskClaims] | None] = None
    unique_on: ClassVar[tuple[str, ...] | list[str] | None] = None
    unique_for: ClassVar[float] = 86_400.0
    unique_until: ClassVar[Literal["done", "start"]] = "done"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "run" not in vars(cls):
            return
        claims: Any = cls.claims
        lasts: Any = cls.unique_for
        if not (isinstance(claims, type) and issubclass(claims, TaskClaims)):
            raise ConfigurationError(f"the unique task {cls.name} needs claims=, a subclass of TaskClaims.")
        if cls.unique_until not in ("done", "start"):
            raise ConfigurationError(f"unique_until={cls.unique_until!r} of {cls.name} is neither 'done' nor 'start'.")
        if not (isinstance(lasts, (int, float)) and 0 < lasts <= _LONGEST_S):
            raise ConfigurationError(
                f"unique_for={lasts!r} of {cls.name} must be seconds, above 0 and at most a hundred years."
            )
        unknown = set(cls.unique_on or ()) - set(inspect.signature(cls.run).parameters)
        if unknown or isinstance(cls.unique_on, str):
            raise ConfigurationError(f"unique_on of {cls.name} must be a tuple of names of its arguments: {unknown}.")

    @property
    def lock(self) -> Lock[TaskClaims]:
        """The lock of the run, for its `ticket`, `lost` and `ensure_remaining`; needs ``bind=True``.

        Raises:
            ConfigurationError: the task does not run in a worker, or has given up its claim already.
        """
        lock: Lock[TaskClaims] | None = self.request.get("pynamo_locking_lock")
        if lock is None:
            raise ConfigurationError(f"no lock is held for the task {self.name} here: it was called as a function.")
        return lock

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:  # pyright: ignore[reportInvalidTypeArguments] - generic in celery-types only
        """Send the task, or return the result of the one that is queued or running."""
        is_again = task_id is not None and task_id == self.request.id  # a retry
        if is_again:
            self._extend(options)
        else:
            if link or options.get("chain") or options.get("chord"):
                raise ConfigurationError(f"{self.name} is unique, and cannot have callbacks: a chain may end with it.")
            task_id, mine = self._claim(args, kwargs, task_id or uuid(), options)
            if not mine:
                return self.AsyncResult(task_id)
        options["headers"] = {**(options.get("headers") or {}), _HEADER: True}
        try:
            return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
        except BaseException:
            if not is_again:
                self._free(args, kwargs, task_id)
            raise

    def _claim(self, args: Any, kwargs: Any, task_id: str, options: Any) -> tuple[str, bool]:
        """Return the id of the task that has the claim, and whether it is ours."""
        claims, name = self._claims(), self._name_of(args, kwargs)
        lock: Lock[TaskClaims] | None = self.request.get("pynamo_locking_lock")
        if lock is not None and lock.item.name == name:  # called by its own run, whose lock would let it write
            return self.request.id, False
        is_free = claims.until_ms.does_not_exist() | (claims.until_ms <= _now_ms())
        mine = claims.until_ms.set(self._until_ms(options)), claims.task_id.set(task_id)
        while True:
            try:
                claims(name).update([*mine, _expire_a_day_after(claims, self._until_ms(options))], is_free)
            except (ItemLocked, Conflict):
                row = claims.get(name, consistent_read=True)
                if row.task_id and (row.until_ms > _now_ms() or row.lock.entries):
                    return row.task_id, False
                if row.lock.entries:  # of a run that has not said yet which message it is of
                    with claims.locked(name):
                        pass
            else:
                return task_id, True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its lock, or as a plain function if no worker calls it."""
        request = self.request
        if request.called_directly:
            return self.run(*args, **kwargs)
        claims, name, has_begun = self._claims(), self._name_of(args, kwargs), False
        try:
            with claims.edit(name, wait=0) as row, claims.locked(name) as lock:  # the second makes no request
                has_begun = True
                self._begin(row)
                if self.unique_until == "done":
                    request.pynamo_locking_lock = lock
                    return self._run(row, args, kwargs)
        except LockTimeout:
            if has_begun:
                raise  # of a lock that the task has asked for
            logger.info("%s[%s] is running elsewhere: it is sent again", self.name, request.id)
            later: Any = self.signature_from_request(request, args, kwargs, countdown=self.default_retry_delay)
            later.apply_async()
            raise Ignore from None
        return self._run_freely(args, kwargs)

    def _begin(self, row: TaskClaims) -> None:
        """Let the row say that this message runs, or skip the message if it has no claim any more."""
        request = self.request
        is_claimed = bool(request.get(_HEADER) or (request.headers or {}).get(_HEADER))
        if row.task_id != request.id and (is_claimed or row.until_ms > _now_ms()):
            logger.info("%s[%s] is done, or another message has its claim: skipped", self.name, request.id)
            raise Ignore
        row.task_id, row.until_ms = request.id, 0
        if self.unique_until == "done":  # else it is saved as the lock is released
            row.save()

    def _run(self, row: TaskClaims, args: Any, kwargs: Any) -> Any:
        try:
            result = self.run(*args, **kwargs)
        except (Ignore, Reject) as error:
            if not getattr(error, "requeue", False):
                row.task_id = None
                row.save()
            raise
        finally:
            self.request.pynamo_locking_lock = None
        row.task_id = None
        return result

    def _run_freely(self, args: Any, kwargs: Any) -> Any:
        """Run the task after its claim: the row names the message until it is completed, or another one has claimed."""
        is_completed = True
        try:
            return self.run(*args, **kwargs)
        except BaseException as error:
            is_completed = isinstance(error, (Ignore, Reject)) and not getattr(error, "requeue", False)
            raise
        finally:
            if is_completed:
                self._free(args, kwargs, self.request.id, is_done=True)

    def _extend(self, options: Any) -> None:
        """Claim the name for the message of a retry, which is sent by its run."""
        lock: Lock[TaskClaims] | None = self.request.get("pynamo_locking_lock")
        if lock is not None:
            lock.item.until_ms = self._until_ms(options)
            lock.item.save()

    def _free(self, args: Any, kwargs: Any, task_id: str | None, *, is_done: bool = False) -> None:
        """End the claim of a message that will not run; or skip it from now on."""
        claims = self._claims()
        change = claims.task_id.remove() if is_done else claims.until_ms.set(0)
        try:
            claims(self._name_of(args, kwargs)).update([change], claims.task_id == task_id)
        except (ItemLocked, Conflict):  # another message has it
            pass
        except Exception:
            logger.exception("the claim of %s[%s] stays for up to %g s", self.name, task_id, self.unique_for)

    def _claims(self) -> type[TaskClaims]:
        assert self.claims is not None  # noqa: S101 - checked when the task was made
        return self.claims

    def _until_ms(self, options: Any) -> int:
        eta = maybe_iso8601(options.get("eta"))
        if eta is None:
            begins_ms = _now_ms() + int((options.get("countdown") or 0) * 1000)
        else:  # a time without a zone is one of UTC to Celery's worker
            begins_ms = int(maybe_make_aware(eta).timestamp() * 1000)
        return begins_ms + int(self.unique_for * 1000)

    def _name_of(self, args: Any, kwargs: Any) -> str:
        """Return the name of the task and a digest of its arguments, as they are after they were sent."""
        bound = inspect.signature(self.run).bind(*(args or ()), **(kwargs or {}))
        bound.apply_defaults()
        counted = {key: value for key, value in bound.arguments.items() if key in (self.unique_on or bound.arguments)}
        text: str = _json.dumps(_json.loads(_json.dumps(counted)), sort_keys=True)
        return f"{self.name} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _expire_a_day_after(claims: type[TaskClaims], until_ms: int) -> Any:
    """Let TTL remove the row of a claim that nothing has used for a day."""
    return claims.expires.set(datetime.fromtimestamp(until_ms / 1000, tz=timezone.utc) + timedelta(days=1))


def _now_ms() -> int:
    return runtime.current.time_ms()


def _free_revoked(sender: Any = None, request: Any = None, *, terminated: bool = False, **_: Any) -> None:
    """End the claim of a message that was revoked, or has expired, before it ran."""
    if isinstance(sender, UniqueTask) and not terminated:
        sender._free(request.args, request.kwargs, request.id)  # noqa: SLF001 - the task's handler of the signal


signals.task_revoked.connect(_free_revoked)
