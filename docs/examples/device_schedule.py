"""Schedules of devices over HTTP: what a device does from when until when, and never two things at once.

    POST   /schedule                            stores a list of entries, all or none
    GET    /devices/<id>/schedule?begin=&end=   what there is, in order
    GET    /devices/<id>/free?begin=&end=       where there is room
    PATCH  /devices/<id>/schedule/<begin>       moves an entry
    DELETE /devices/<id>/schedule/<begin>       removes one

An entry is ``{"deviceId": "100", "begin": "2026-01-01T12:00:00Z", "end": "2026-01-01T15:00:00Z"}``. Several of these
processes may run against the same table: no two entries of a device ever overlap.

Try it, with Flask and this package installed and a DynamoDB that your environment points to:

    python docs/examples/device_schedule.py
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from flask import Flask, Response, jsonify, request
from pynamodb.attributes import UnicodeAttribute, UTCDateTimeAttribute

from pynamo_locking import LockableModel, NamedLock, VersionAttribute
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    InvalidInput,
    LockTimeout,
    OutcomeUnknown,
    OverlapError,
    TransactionConflict,
)
from pynamo_locking.intervals import IntervalMixin


class Locks(NamedLock):
    """The guards of the devices, and the range locks of the pessimistic form."""

    class Meta:
        table_name = "schedule-locks"


class Entry(IntervalMixin, LockableModel):
    """What a device does from `begin` until `end`."""

    class Meta:
        table_name = "schedule"
        interval = ("begin", "end")
        lock_table = Locks

    device_id = UnicodeAttribute(hash_key=True)
    begin = UTCDateTimeAttribute(range_key=True)
    end = UTCDateTimeAttribute()
    version = VersionAttribute()


class BadRequestError(Exception):
    """The client sent something that cannot be."""


def create_app(*, pessimistic: bool = False, wait: float = 5.0) -> Flask:
    """Return the application.

    Args:
        pessimistic: queue for the times that are asked for, first come, first served, instead of trying again.
        wait: for how many seconds a request tries or queues before it is a 503.
    """
    app = Flask(__name__)
    form: dict[str, Any] = {"pessimistic": pessimistic, "wait": wait}

    @app.post("/schedule")
    def insert() -> tuple[Response, int]:
        entries = [entry_of(each) for each in list_of(request.get_json())]
        try:
            Entry.intervals.insert_disjoint(entries, **form)
        except OutcomeUnknown:
            Entry.intervals.insert_disjoint(entries, **form)  # the same instances: what is stored counts as stored
        return jsonify([shown(entry) for entry in entries]), 201

    @app.get("/devices/<device_id>/schedule")
    def overlapping(device_id: str) -> Response:
        return jsonify([shown(entry) for entry in Entry.intervals.overlapping(device_id, *window())])

    @app.get("/devices/<device_id>/free")
    def free(device_id: str) -> Response:
        gaps = Entry.intervals.free(device_id, *window())
        return jsonify([{"begin": text_of(begin), "end": text_of(end)} for begin, end in gaps])

    @app.patch("/devices/<device_id>/schedule/<begin>")
    def move(device_id: str, begin: str) -> Response:
        change = request.get_json()
        entry = Entry.get(device_id, moment(begin))
        Entry.intervals.move(entry, moment(field(change, "begin")), moment(field(change, "end")), **form)
        return jsonify(shown(entry))

    @app.delete("/devices/<device_id>/schedule/<begin>")
    def delete(device_id: str, begin: str) -> tuple[str, int]:
        Entry.get(device_id, moment(begin)).delete()
        return "", 204

    add_error_handlers(app)
    return app


def add_error_handlers(app: Flask) -> None:
    """Give each error that a request may meet its status."""

    def failed(status: int, error: Exception) -> tuple[Response, int]:
        return jsonify({"error": str(error)}), status

    @app.errorhandler(OverlapError)
    def taken(error: OverlapError) -> tuple[Response, int]:
        in_the_way = [shown(row) for row in error.rows]
        return jsonify({"error": "overlap", "requested": shown(error.requested), "inTheWay": in_the_way}), 409

    app.register_error_handler(Conflict, lambda error: failed(409, error))  # somebody else changed that entry meanwhile
    app.register_error_handler(TransactionConflict, lambda error: failed(503, error))  # busy: try again later
    app.register_error_handler(LockTimeout, lambda error: failed(503, error))
    app.register_error_handler(OutcomeUnknown, lambda error: failed(504, error))  # may have been stored: look
    app.register_error_handler(InvalidInput, lambda error: failed(400, error))  # such as an end before its begin
    app.register_error_handler(ConfigurationError, lambda error: failed(400, error))  # such as too many entries
    app.register_error_handler(BadRequestError, lambda error: failed(400, error))
    app.register_error_handler(Entry.DoesNotExist, lambda error: failed(404, error))


def window() -> tuple[datetime | None, datetime | None]:
    """Return begin and end of the query string; None where it names none."""
    begin, end = (request.args.get(name) for name in ("begin", "end"))
    return (None if begin is None else moment(begin)), (None if end is None else moment(end))


def list_of(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise BadRequestError("the body has to be a list of entries")
    return body


def field(body: Any, name: str) -> str:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise BadRequestError(f"{name!r} is needed, as a string")
    return value


def entry_of(body: Any) -> Entry:
    return Entry(field(body, "deviceId"), moment(field(body, "begin")), end=moment(field(body, "end")))


def moment(text: str) -> datetime:
    """Return a time; without a time zone nobody knows which one it is."""
    try:
        result = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise BadRequestError(f"{text!r} is no time in the form 2026-01-01T12:00:00Z") from error
    if result.tzinfo is None:
        raise BadRequestError(f"{text!r} has no time zone")
    return result.astimezone(timezone.utc)


def shown(entry: Entry) -> dict[str, str | None]:
    return {"deviceId": entry.device_id, "begin": text_of(entry.begin), "end": text_of(entry.end)}


def text_of(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


if __name__ == "__main__":
    Locks.create_table()
    if not Entry.exists():
        Entry.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    create_app().run()
