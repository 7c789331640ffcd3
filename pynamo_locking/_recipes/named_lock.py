"""The lock that needs no item."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import UnicodeAttribute
from typing_extensions import Self, Unpack

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import seconds
from pynamo_locking._io import client, responses, runtime
from pynamo_locking._io.lock_record import EMPTY, LEASE_ENDS, QUEUE, TX
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._io.stored_rows import Place, Stored, known_format, number
from pynamo_locking._locks.options import check_plain
from pynamo_locking._models.attributes import LockAttribute, TTLAttribute
from pynamo_locking._models.awaited import awaited_write
from pynamo_locking._models.mixins import LockableModel
from pynamo_locking._models.tables import OwnTable
from pynamo_locking._recipes.leader_election import LeaderElection
from pynamo_locking._recipes.once import Once, as_lock_of_a_job, make_period
from pynamo_locking.exceptions import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from pynamo_locking._core.lease import Duration, LockSettings
    from pynamo_locking._locks.options import LockKeywords
    from pynamo_locking._recipes.leader_election import LeaderTerm


#: How far our clock may be ahead of DynamoDB's where rows are deleted by it. They are kept for a day at least.
_MOST_AHEAD_S: Final = 60.0


class NamedLock(OwnTable, LockableModel):
    """A distributed lock (mutex) on a name, for what is not an item: a nightly job, a file, a call to a partner.

    Subclass it, with a separate table. Rows are created and removed automatically.

    Example::

        class Locks(NamedLock):
            class Meta:
                table_name = "locks"
                region = "eu-west-1"

        Locks.create_table()
        with Locks.locked("import", wait=0):
            print("no other process imports now")

    It prevents two holders of a name from overlapping. It does not prevent two successive holders from doing a job
    twice: `once` does.

    To keep the rows in a table of other items, set ``keys = ("pk", "sk")`` and ``prefix = "locks#"`` in the Meta: the
    names of its hash key and range key, which are strings, and a prefix that no other item uses; see "single-table
    design". Without a prefix nothing else may be stored in the table. If another program has stored an item where the
    row of a name belongs, locking that name raises `ConfigurationError`; the item stays as it is.

    The class can carry the locks of other models as well: name it in their ``Meta.lock_table``. A subclass may declare
    further attributes; they are read and saved under the lock like those of any lockable model.

    DynamoDB's TTL removes a row a day after its last lease, or `max_lease` after it if that is longer. A row with a
    recorded success of `once` is kept at least two days beyond the time for which the success counts. Nothing depends
    on when that happens.
    """

    _lock_creates_item: ClassVar[bool] = True
    _kind: ClassVar[str] = "lock"
    _also_stored: ClassVar[frozenset[str]] = frozenset({LEASE_ENDS, "touched", "version", "version_write_id"})
    _reserved_names: ClassVar[frozenset[str]] = frozenset({"lead", "once", "prune", "aprune"})

    name: UnicodeAttribute = UnicodeAttribute(hash_key=True)
    lock: LockAttribute = LockAttribute()
    expires: TTLAttribute = TTLAttribute(null=True, attr_name="expires_s")

    @classmethod
    def lead(
        cls,
        name: str,
        *,
        on_elected: Callable[[LeaderTerm], object] | None = None,
        on_lost: Callable[[str], object] | None = None,
        lease: Duration | None = None,
        max_hold: Duration | None = None,
        owner: str | None = None,
        settings: LockSettings | None = None,
    ) -> LeaderElection:
        """Let this process stand for election as leader of a name, for as long as a block lasts (leader election).

        Example::

            with Locks.lead("scheduler") as campaign:
                if (term := campaign.elected(timeout=60)) is not None:
                    for job in jobs:
                        if term.is_leader:
                            job()

        The leader is the process that holds the lock of that name; the other candidates wait in its queue.
        `LeaderElection` says what is guaranteed, and `LeaderTerm` what a leader may rely on.

        Args:
            name: what is led.
            on_elected: a plain function, called in a separate thread with the `LeaderTerm` when this process is
                elected. It may do the work of the leader, or start it and return. If it raises an error, the term ends,
                and the process is a candidate again a third of a lease later; `LockLost` of the term itself is no
                error.
            on_lost: a plain function, called with the reason (`LeaderTerm.reason`) whenever a term has ended, by
                resignation too, and before the lock is released: stop here what `on_elected` has started.
            lease: how long a killed leader blocks its successor, in seconds or as a timedelta. 60 s unless set.
            max_hold: the longest term, in seconds or as a timedelta, also for a leader whose work hangs. Without end
                unless set.
            owner: as for `locked`.
            settings: as for `locked`.

        Returns:
            The election, which has not begun: use it in a ``with`` or ``async with`` statement.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.

        Cost: none here; see `LeaderElection`.
        """
        check_plain("on_elected", on_elected)
        check_plain("on_lost", on_lost)
        lock = cls.locked(
            name, wait=math.inf, lease=lease, heartbeat=True, max_hold=max_hold, owner=owner, settings=settings
        )
        return LeaderElection(lock, on_elected, on_lost)

    @classmethod
    def once(
        cls,
        name: str,
        *,
        period: Duration,
        zone: str | tzinfo | None = None,
        since_success: bool = False,
        at_least: Duration = 0,
        **options: Unpack[LockKeywords],
    ) -> Once[Self]:
        """Run a job once in a period, on whichever machine asks first (a distributed cron).

        Example::

            with Locks.once("report", period=timedelta(days=1), wait=0) as run:
                if run:
                    print("write the report of", run.period_begins)

        At most one *successful* run in each period. A run succeeds when the block ends without an exception and its
        lock is still held: the request that releases the lock records the success in its row. If the block raises, the
        process dies or the lock is lost, no success is recorded, and the next caller that waits runs the job; after the
        death of a process, when its lease has expired. So a job that dies after its work and before that request runs
        again: make the work idempotent, or let `run.ticket` or `run.lock.add_check_to` refuse the late run.

        Periods are a grid in a time zone. Each process computes the beginning of its period from its wall clock when it
        asks, and its run is due only if that is later than the recorded one. So a machine whose clock is behind skips a
        period that is done, one whose clock is ahead runs the next period early, and no period succeeds twice, however
        much clocks differ. With `since_success` clocks that differ by a second shift a run by a second.

        Args:
            name: of the job and of its lock: one for each job of the table.
            period: in seconds or as a timedelta: a part of a day such as a quarter of an hour, or a number of whole
                days; of 7 days each begins on Monday.
            zone: days begin at midnight in this time zone: a name such as ``"Europe/Zurich"`` or a `tzinfo`; UTC unless
                given. Name the zone of the crontab.
            since_success: instead of a grid, a run is due when the last successful run ended at least a `period` ago.
                The default is a grid, because each run ends later in the day than it began: a daily job that is started
                at a fixed time would be skipped every second day.
            at_least: no run begins within this time of the beginning of the last successful run, in seconds or as a
                timedelta, whatever the grid says: for a job of one day that runs late, shortly before the next. It is
                judged by the wall clocks of two processes, so choose more than these differ.
            **options: those of `locked`. `wait` is one `period` unless given, so that the job is taken over from a
                process that dies or fails; with 0 a job that runs elsewhere is not waited for.

        Returns:
            A context manager, for ``with`` and ``async with``, that yields a `OnceRun`: true if the job is to be done
            in the block. It is a decorator of a function as well: a call of the function runs the job, and returns None
            if it is not to be done here. Otherwise `OnceRun.status` says why: it is done, too soon, or was running
            elsewhere for all of `wait`. A block that asks neither runs each time, which a warning says.

        Raises:
            LockTimeout: on entering: no response from DynamoDB in time.
            ConfigurationError: for arguments that cannot work, before any request; on entering, as `Lock.acquire`, and
                if this thread or task holds the lock already, or has an open transaction, whose commit comes later.
            LockLost: on leaving: the lock was lost, no success was recorded, and another process may have run the job.
            OutcomeUnknown: on leaving: no response, the success may be recorded. If it is not, the job runs again.

        Cost: 1 eventually consistent read where the job is done; 2 writes more to run it, or to wait until another
        process has run it, and those of the lock for a longer wait. Source of `at_least`: `lockAtLeastFor` of ShedLock.
        """
        checked = make_period(period, zone, since_success=since_success, at_least=at_least)
        if options.get("wait") is None:
            options["wait"] = checked.length_s
        return Once(lambda: as_lock_of_a_job(cls.locked(name, **options)), checked)

    @classmethod
    def prune(cls, *, older_than: Duration = 0, dry_run: bool = False) -> list[str]:
        """Delete the rows of locks that are no longer used, in a table without DynamoDB's TTL.

        Deletes what TTL would delete, a day after the last lease or later if `once` has stored a success, but no row
        with an entry in its queue, and none with an attribute that a lock does not have. A lock that is taken meanwhile
        stays. As after a deletion by TTL, tickets of a deleted name begin again at the time in µs: they are larger
        unless the clock of the process that creates the row is behind (:doc:`/explanation/protocol`).

        Args:
            older_than: how long ago TTL would have deleted a row at least, in seconds or as a timedelta.
            dry_run: delete nothing.

        Returns:
            The names of the locks whose rows were deleted, or with `dry_run` would be.

        Raises:
            ScanError, DeleteError: DynamoDB refused a request. Some rows may be deleted.
            ConfigurationError: `older_than` is no duration; or the clock of this machine is more than a minute ahead of
                DynamoDB's, by which rows would be deleted too early. Nothing was deleted.

        Cost: a consistent scan of the table, and 1 write for each row.
        """
        lock, expires = cls.lock.attr_name, cls.expires.attr_name
        now_s = runtime.current.time_ms() / 1000
        end_s = int(now_s - seconds(older_than, "older_than"))
        is_over = Place(expires) < Stored(number(end_s))
        is_idle = (Place(lock, QUEUE) == Stored(EMPTY)) & Place(lock, TX).does_not_exist() & known_format(lock)
        names, own = list[str](), {*own_keys_of(cls).begins, lock, expires, LEASE_ENDS}
        for image in client.scan(cls, is_over & is_idle, check=partial(_refuse_ahead, now_s)):
            if image.keys() <= own:
                row = cls.from_raw_data(image)
                try:
                    if not dry_run:
                        row.delete(is_over)
                except Conflict:  # it was taken since
                    continue
                names.append(row.name)
        return names

    @awaited_write(prune)
    def aprune(self) -> None:
        """Delete the rows of locks that are no longer used, awaited. See `prune`."""


def _refuse_ahead(now_s: float, answer: dict[str, Any]) -> None:
    """Refuse to judge by our clock what has expired, if DynamoDB's says that ours is wrong."""
    its_s = responses.time_s_of(answer)
    if its_s is not None and now_s - its_s > _MOST_AHEAD_S:
        raise ConfigurationError(
            f"the clock of this machine is {now_s - its_s:.0f} s ahead of DynamoDB's, so prune() would delete rows "
            f"that are still kept. Nothing was deleted: set the clock."
        )
