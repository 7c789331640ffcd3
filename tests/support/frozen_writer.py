"""Writers of older releases, as far as rows and requests say what they do: for processes of two releases on one table.

`tests.support.recorder` has written down what a release stores and sends. The requests of a writer here are those, word
for word, with the keys, tickets, versions and values of the moment; it decides by the answers as that release did. A
writer is a generator: where it yields, another one may act, and where it is not asked any more, its process has died.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError

from pynamo_locking_testing import MemoryDynamoDB
from tests.support.recorder import BEGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking_testing import VirtualClock
    from tests.support.recorder import Database

FOLDER: Final = Path(__file__).resolve().parents[1] / "integration" / "whole" / "stored"
RELEASES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
#: It gives up a transaction after so many attempts.
ATTEMPTS: Final = 30


#: Of four purses in a long transaction.
GAINING: Final = ("p1", "p3")


class Recording(NamedTuple):
    """What a release has stored and sent."""

    release: str
    format: int
    rows: Mapping[str, Mapping[str, list[dict[str, Any]]]]
    requests: Mapping[str, list[tuple[str, dict[str, Any]]]]

    @classmethod
    def of(cls, release: str) -> Recording:
        """Read that of a release."""
        return cls(**json.loads((FOLDER / f"{release}.json").read_text()))


class Refused(Exception):  # noqa: N818 - an answer
    """A condition was not met."""


class Holding(NamedTuple):
    """When a writer held a lock, counted in requests of all parties."""

    ticket: int
    begin: int
    end: int
    table: str = "names"


class FrozenWriter:
    """A process of an older release.

    Args:
        database: with its rows.
        clock: of all processes.
        recording: of its release.
        name: makes its ids its own.

    Attributes:
        held: when it held a lock.
        done: how often it did what it wanted.
    """

    def __init__(self, database: Database, clock: VirtualClock, recording: Recording, name: str = "old") -> None:
        self._database, self._clock, self._requests, self._name = database, clock, recording.requests, name
        self._ids = itertools.count(1)
        self.held: list[Holding] = []
        self.done = 0

    # Locks

    def add_one(self, key: str = "a") -> Iterator[None]:
        """Add one to a counter under its lock, which nothing but the lock protects."""
        yield from self._locked("lock_an_item", {"name": {"S": key}}, is_item=True)

    def hold(self, key: str = "n") -> Iterator[None]:
        """Hold a name."""
        yield from self._locked("lock_a_name", {"name": {"S": key}}, is_item=False)

    def _locked(self, scene: str, key: dict[str, Any], *, is_item: bool) -> Iterator[None]:
        enqueue, first, renew, *save, release = self._requests[scene][: 5 if is_item else 4]
        waiting = [
            each for each in self._requests["wait_for_a_lock"] if each[1]["TableName"] == enqueue[1]["TableName"]
        ]
        wait = next(each for each in waiting if ":renewed" in str(each) and ":granted" not in str(each))
        me, beat = self._id(14), 0
        entry = {
            "o": {"S": self._name},
            "l": {"N": "30000"},
            "b": {"N": "0"},
            "e": _number(self._ms()),
            "w": _number(0),
        }
        row: Any = None
        while row is None:
            try:
                given = {":entry": {"L": [{"M": entry}]}, **self._ends()}
                row = self._send(enqueue, key, {"#me": me}, given)["Attributes"]
            except Refused:
                row = self._enqueue_first(first, key, me, entry)
            yield
        entered_ms, ticket = self._ms(), row["lock"]["M"]["queue"]["M"][me]["L"][0]
        while True:
            queue = row["lock"]["M"]["queue"]["M"]
            is_mine = min(int(other["L"][0]["N"]) for other in queue.values()) == int(ticket["N"])
            beat += 1
            given = {":beat": _number(beat), ":renewed": _number(self._ms() - entered_ms), ":ticket": ticket}
            given[":granted"] = _number(0)
            self._send(renew if is_mine else wait, key, {"#me": me}, given | self._ends())
            if is_mine:
                break
            yield
            row = self._read(renew, key)
        begin = len(self._database.sent)
        yield
        if is_item:
            value = _number(int(self._read(renew, key)["value"]["N"]) + 1)
            yield
            self._send(save[0], key, {"#2": me}, {":0": ticket, ":3": value})
            yield
        self.held.append(Holding(int(ticket["N"]), begin, len(self._database.sent), enqueue[1]["TableName"]))
        self._send(release, key, {"#me": me})
        self.done += 1

    def _enqueue_first(self, first: Any, key: Any, me: str, entry: dict[str, Any]) -> Any:
        lock = copy.deepcopy(first[1]["ExpressionAttributeValues"][":map"])
        now_us = self._ms() * 1000
        lock["M"] |= {"since": _number(now_us), "next": {"L": [_number(now_us + 1)]}}
        lock["M"]["queue"] = {"M": {me: {"L": [_number(now_us), {"M": entry}]}}}
        try:
            return self._send(first, key, {}, {":map": lock, **self._ends()})["Attributes"]
        except Refused:
            return None

    def _ends(self) -> dict[str, Any]:
        """For the row of a name: when the lease ends."""
        ends_s = self._ms() // 1000 + 31
        return {":ends": _number(ends_s), ":shown": {"S": BEGIN.isoformat()}}

    # Versions

    def add_to(self, key: str = "p0", amount: int = 1) -> Iterator[None]:
        """Read a purse, and save it with another balance; again, if it was written meanwhile."""
        read, save = self._requests["save_a_version"]
        for _ in range(ATTEMPTS):
            row = self._send(read, {"name": {"S": key}})["Item"]
            yield
            try:
                self._send(save, {"name": {"S": key}}, {}, _given(save[1], row, self._new_values(row, amount)))
            except Refused:
                yield
            else:
                self.done += 1
                return

    def move(self, amount: int = 10) -> Iterator[None]:
        """Move money from one purse to another one, in a native transaction; again, if one was written meanwhile."""
        *reads, (operation, whole) = self._requests["move_natively"]
        for _ in range(ATTEMPTS):
            rows = []
            for read in reads:
                rows.append(self._send(read, read[1]["Key"])["Item"])
                yield
            request = copy.deepcopy(whole)
            request["ClientRequestToken"] = self._id(20)
            for each, row, by in zip(request["TransactItems"], rows, (-amount, amount), strict=True):
                update = each["Update"]
                update["ExpressionAttributeValues"] |= _given(update, row, self._new_values(row, by))
            try:
                self._ask(operation, request)
            except Refused:
                yield
            else:
                self.done += 1
                return

    def move_among_four(self, amount: int = 10) -> Iterator[None]:
        """The same from one to another and from a third to a fourth, in a long transaction."""
        for _ in range(ATTEMPTS):
            if (yield from self._move_among_four(amount)):
                self.done += 1
                return

    def _move_among_four(self, amount: int) -> Any:
        sent = self._requests["move_in_a_long_one"]
        reads, record, participants, marks, decision, applies = (
            sent[:4],
            sent[4],
            sent[5],
            sent[6:8],
            sent[8],
            sent[9:11],
        )
        me, rows = self._id(20), dict[str, Any]()
        changes, marked = dict[str, Any](), list[str]()
        for read in reads:
            rows[_name_in(read[1])] = self._send(read, read[1]["Key"])["Item"]
            yield
        self._put(record, me, until_ms=_number(self._ms() + 10_000), priority={"S": f"{self._ms():015}-{me}"})
        yield
        self._put(participants, f"{me}#0000")
        yield
        for name in map(_name_in, (request for _, request in marks)):
            changes[name] = self._new_values(rows[name], amount if name in GAINING else -amount)
            try:
                self._mark(rows[name], me, changes[name], marks[0])
            except Refused:
                yield from self._give_up(me, marked)
                return False
            marked.append(name)
            yield
        request = copy.deepcopy(decision[1])
        request["ClientRequestToken"] = me
        *updates, of_record = [each["Update"] for each in request["TransactItems"]]
        for update in updates:
            name = _name_in(update)
            values = self._new_values(rows[name], amount if name in GAINING else -amount)
            update["ExpressionAttributeValues"] |= _given(update, rows[name], values)
        of_record["Key"] = {"id": {"S": me}}
        try:
            self._ask("TransactWriteItems", request)
        except Refused:
            yield from self._give_up(me, marked)
            return False
        yield
        for name, changed in changes.items():
            values = dict(zip((":s0", ":s1", ":s2"), changed.values(), strict=True))
            self._try(applies[0], {"name": {"S": name}}, {":id": {"S": me}, **values})
            yield
        self._try(sent[11], {"id": {"S": me}})
        return True

    def _mark(self, row: dict[str, Any], me: str, changed: dict[str, Any], first: Any) -> None:
        """Set an intent: in an item without a lock, as the first one that was recorded, or beside its lock."""
        tx = copy.deepcopy(first[1]["ExpressionAttributeValues"][":4"]["M"]["tx"])
        tx["M"]["id"], tx["M"]["intent"]["M"]["set"] = {"S": me}, {"M": changed}
        given = {":0": row["version"], ":1": row["version_write_id"]}
        if "lock" not in row:
            self._send(first, {"name": row["name"]}, {}, {**given, ":4": {"M": {"tx": tx}}})
            return
        beside = next(each for each in self._requests["move_in_a_long_one"] if "SET #3.#5 = :4" in str(each))
        self._send(beside, {"name": row["name"]}, {}, {**given, ":4": tx})

    def _new_values(self, row: dict[str, Any], amount: int) -> dict[str, Any]:
        return {
            "balance": _number(int(row["balance"]["N"]) + amount),
            "version": _number(int(row["version"]["N"]) + 1),
            "version_write_id": {"S": f"{row['version_write_id']['S'].partition('-')[0]}-{self._id(20)}"},
        }

    def resolve(self, rows: list[dict[str, Any]]) -> None:
        """Complete or undo the transaction of a dead process that has left intents in these purses."""
        abort, drop, _ = self._requests["abort_a_long_one"][-3:]
        apply = self._requests["move_in_a_long_one"][9]
        for row in rows:
            if "tx" not in row.get("lock", {}).get("M", {}):
                continue
            intent = row["lock"]["M"]["tx"]["M"]
            self._try(abort, {"id": intent["id"]}, {":by": {"S": "expired"}})
            key = {"TableName": intent["table"]["S"], "Key": {"id": intent["id"]}, "ConsistentRead": True}
            if self._ask("GetItem", key)["Item"]["state"] == {"S": "aborted"}:
                self._send(drop, {"name": row["name"]}, {}, {":id": intent["id"]})
            else:
                changed = intent["intent"]["M"]["set"]["M"]
                sets = {f":s{i}": changed[name] for i, name in enumerate(("balance", "version", "version_write_id"))}
                self._send(apply, {"name": row["name"]}, {}, {":id": intent["id"], **sets})

    def _give_up(self, me: str, marked: list[Any]) -> Iterator[None]:
        """Abort, and take back the intents."""
        abort, drop, clean = self._requests["abort_a_long_one"][-3:]
        self._try(abort, {"id": {"S": me}})
        yield
        for name in marked:
            self._try(drop, {"name": {"S": name}}, {":id": {"S": me}})
            yield
        self._try(clean, {"id": {"S": me}})
        yield

    # Intervals

    def book(self, begin: int, end: int) -> Iterator[None]:
        """Book a room, if no other booking overlaps."""
        read, query, (_, first), *_, (_, again) = self._requests["book"]
        for _ in range(ATTEMPTS):
            guard = self._send(read, read[1]["Key"]).get("Item")
            yield
            asked = copy.deepcopy(query[1])
            asked["ExpressionAttributeValues"][":1"] = _number(end)
            rows = self._ask("Query", asked)["Items"]
            yield
            if any(int(row["end"]["N"]) > begin for row in rows):
                return
            request = copy.deepcopy(first if guard is None else again)
            request["ClientRequestToken"] = self._id(20)
            of_guard, of_row = (each["Put"] for each in request["TransactItems"])
            of_row["Item"] |= {"begin": _number(begin), "end": _number(end)}
            of_row["Item"]["version_write_id"] = {"S": self._id(20)}
            of_guard["Item"]["touched"] = {"L": [{"L": [_number(begin), _number(end)]}]}
            of_guard["Item"]["version_write_id"] = {"S": self._id(20)}
            if guard is not None:
                of_guard["Item"]["version"] = _number(int(guard["version"]["N"]) + 1)
                of_guard["Item"]["touched"]["L"][:0] = guard["touched"]["L"][-8:]
                of_guard["ExpressionAttributeValues"] |= {":0": guard["version"], ":1": guard["version_write_id"]}
            try:
                self._ask("TransactWriteItems", request)
            except Refused:
                yield
            else:
                self.done += 1
                return

    # Requests

    def _put(self, recorded: Any, id_: str, **more: Any) -> None:
        request = copy.deepcopy(recorded[1])
        request["Item"] |= {"id": {"S": id_}, **more}
        self._ask("PutItem", request)

    def _read(self, like: Any, key: dict[str, Any]) -> dict[str, Any]:
        asked = {"TableName": like[1]["TableName"], "Key": key, "ConsistentRead": True}
        row: dict[str, Any] = self._ask("GetItem", asked)["Item"]
        return row

    def _send(
        self, recorded: Any, key: dict[str, Any], names: Mapping[str, str] = {}, values: Mapping[str, Any] = {}
    ) -> Any:
        """Send a recorded request for another key, with other names and values, as far as it has these."""
        operation, request = recorded[0], {**recorded[1], "Key": key}
        for part, given in (("ExpressionAttributeNames", names), ("ExpressionAttributeValues", values)):
            if part in request:
                known = request[part]
                request[part] = known | {name: value for name, value in given.items() if name in known}
        return self._ask(operation, request)

    def _try(self, recorded: Any, key: dict[str, Any], values: Mapping[str, Any] = {}) -> None:
        """Send a request that another process may have made unnecessary."""
        with suppress(Refused):
            self._send(recorded, key, {}, values)

    def _ask(self, operation: str, request: dict[str, Any]) -> Any:
        """Send a request past those of today's code."""
        self._database.sent.append((operation, request))
        try:
            return MemoryDynamoDB.handle(self._database, operation, request)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in ("ConditionalCheckFailedException", "TransactionCanceledException"):
                raise Refused from error
            raise

    def _ms(self) -> int:
        return self._clock.time_ms()

    def _id(self, length: int) -> str:
        return f"{self._name}{next(self._ids)}".rjust(length, "0")


def _given(update: Mapping[str, Any], row: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recorded write of a purse, which was read so; its version counts up by itself."""
    names = update["ExpressionAttributeNames"]
    sets = re.findall(r"(#\d+) = (:\d+)", update["UpdateExpression"])
    return {":0": row["version"], ":1": row["version_write_id"]} | {value: values[names[name]] for name, value in sets}


def _name_in(request: Mapping[str, Any]) -> str:
    return str(request["Key"]["name"]["S"])


def _number(value: int) -> dict[str, str]:
    return {"N": str(value)}
