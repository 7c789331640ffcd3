"""Code as people write it, wrong and right: what `simulate` has to tell apart."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.exceptions import ClientError
from pynamodb.attributes import BooleanAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PutError
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, NamedLock, VersionAttribute, transactional
from pynamo_locking.recipes import IdempotencyTable, idempotent


class PlainAccount(Model):
    """An account with PynamoDB alone."""

    class Meta:
        table_name = "accounts"

    id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Account(LockableModel):
    """An account with a version and a lock."""

    class Meta:
        table_name = "accounts"

    id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Message(Model):
    """Whether a message was processed."""

    class Meta:
        table_name = "messages"

    id = UnicodeAttribute(hash_key=True)
    is_done = BooleanAttribute(default=False)


class Calls(IdempotencyTable):
    class Meta:
        table_name = "calls"


class User(Model):
    """A user, found by the address."""

    class Meta:
        table_name = "users"

    email = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute()


class Job(Model):
    """When a job ran last, and how many reports it has made."""

    class Meta:
        table_name = "jobs"

    name = UnicodeAttribute(hash_key=True)
    last = UnicodeAttribute(null=True)


class Report(Model):
    """A report that was made."""

    class Meta:
        table_name = "reports"

    id = UnicodeAttribute(hash_key=True)
    day = UnicodeAttribute()


class Locks(NamedLock):
    class Meta:
        table_name = "locks"


# Lost update


def withdraw_unguarded(amount: int) -> None:
    account = PlainAccount.get("a-1", consistent_read=True)
    account.balance -= amount
    account.save()


def withdraw_versioned(amount: int) -> None:
    with Account.edit("a-1") as account:
        account.balance -= amount


# Double charge on redelivery


def charge_and_mark(message_id: str, amount: int) -> None:
    try:
        if Message.get(message_id, consistent_read=True).is_done:
            return
    except Message.DoesNotExist:
        pass
    account = Account.get("a-1", consistent_read=True)
    account.balance -= amount
    account.save()
    Message(message_id, is_done=True).save()


@transactional()
@idempotent(Calls, key="message_id", payload=lambda tx, message_id, amount: amount)
def charge_once(tx: Any, message_id: str, amount: int) -> None:
    account = tx.get(Account, "a-1")
    account.balance -= amount
    tx.save(account)


# Check, then insert


def register_after_check(email: str, name: str) -> str | None:
    if User.count(email):
        return None
    User(email, name=name).save()
    return name


def register_if_new(email: str, name: str) -> str | None:
    try:
        User(email, name=name).save(User.email.does_not_exist())
    except PutError as error:
        # PynamoDB's own `cause_response_code` fails where there was no response.
        if isinstance(error.cause, ClientError) and error.cause_response_code == "ConditionalCheckFailedException":
            return None
        raise
    return name


# A lock without fencing


def withdraw_under_a_lock_elsewhere(amount: int) -> None:
    with Locks.locked("a-1", wait=600):
        withdraw_unguarded(amount)


def withdraw_under_its_lock(amount: int) -> None:
    with Account.locked("a-1", wait=600) as lock:
        lock.item.balance -= amount
        lock.item.save()


# Cron twice


def _report(today: str) -> None:
    Report(str(uuid.uuid4()), day=today).save()


def nightly_by_date() -> None:
    today = datetime.now(timezone.utc).date().isoformat()
    job = Job.get("report", consistent_read=True)
    if job.last != today:
        job.last = today
        _report(today)
        job.save()


def nightly_once() -> None:
    with Locks.once("report", period=timedelta(days=1)) as run:
        if run:
            today = run.period_begins.date().isoformat()
            Report(today, day=today).save()
