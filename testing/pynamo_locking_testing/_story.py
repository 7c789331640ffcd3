"""A run in sentences: who read, wrote and heard what, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, ReadTimeoutError

from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.partitions import READS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamo_locking_testing._engine.network import Change, Image, Request
    from pynamo_locking_testing._engine.scheduler import Scheduler

#: So many lines tell a run, at most; what comes between its beginning and its end is counted.
_MOST_LINES: Final = 12
_WIDTH: Final = 140

#: How many items of a request are told, how many attributes of an item, and how much of each.
_MOST_PLACES: Final = 3
_MOST_ATTRIBUTES: Final = 3
_LONGEST_VALUE: Final = 30

#: What the package stores next to a version.
_WRITE_ID: Final = "_write_id"

#: From this time on a wait is told.
_LONG_S: Final = 1.0

_VERBS: Final = {
    "GetItem": ("read", "read"),
    "BatchGetItem": ("read", "read"),
    "TransactGetItems": ("read in a transaction:", "read in a transaction:"),
    "Query": ("queried", "query"),
    "Scan": ("scanned", "scan"),
    "PutItem": ("saved", "save"),
    "UpdateItem": ("updated", "update"),
    "DeleteItem": ("deleted", "delete"),
    "BatchWriteItem": ("wrote", "write"),
    "TransactWriteItems": ("wrote in a transaction:", "write in a transaction:"),
}

#: What the package does with a lock: its own requests.
_STEPS: Final = {
    "enter": ("entered the queue of the lock", "enter the queue of the lock"),
    "enter_first": ("entered the queue of the lock", "enter the queue of the lock"),
    "read": ("looked at the lock", "look at the lock"),
    "read_document": ("looked at the lock", "look at the lock"),
    "renew": ("renewed its lease of the lock", "renew its lease of the lock"),
    "release": ("released the lock", "release the lock"),
    "succeed": ("released the lock", "release the lock"),
    "evict": ("evicted the holder of the lock", "evict the holder of the lock"),
}

#: What became of a request that was not applied.
_NOT_APPLIED: Final = {
    Fault.THROTTLED: "it was throttled",
    Fault.NO_CONNECTION: "there was no connection",
    Fault.FAILED_BEFORE: "DynamoDB answered with status 500, and had not applied it",
    Fault.LOST_REQUEST: "the request was lost",
    Fault.CONFLICT: "it conflicted with another transaction",
    Fault.LATE: "the request was delayed, and timed out",
}

#: What was wrong with the response to a request that was applied.
_UNHEARD: Final = {
    Fault.FAILED_AFTER: ", but received status 500",
    Fault.LOST_RESPONSE: ", but the response was lost",
}


class Broken(Exception):  # noqa: N818 - what it is
    """What a test requires does not hold."""


@dataclass
class _Event:
    """What one process did, and how often in a row; "" stands for nobody in particular."""

    who: str
    what: str
    times: int = 1

    def __str__(self) -> str:
        return self.what if self.times == 1 else f"{self.what} ({self.times} times)"


class Story:
    """Writes down what happens.

    Args:
        scheduler: knows the time.
        pause_s: how long a process stands still.
        key_names: returns the names of a table's key.
    """

    def __init__(self, scheduler: Scheduler, pause_s: float, key_names: Callable[[str], frozenset[str]]) -> None:
        self._scheduler = scheduler
        self._pause_s = pause_s
        self._key_names = key_names
        self._events: list[_Event] = []
        self._changes: list[Change] = []
        self._told_at_s = 0.0

    def begins(self, name: str, skew_s: float) -> None:
        """Note that a process takes part, if its clock is not the true one."""
        if skew_s:
            self._events.append(
                _Event("", f"The clock of {name} is {abs(skew_s):g} s {'ahead' if skew_s > 0 else 'behind'}")
            )

    def on_changes(self, _request: Request, changes: list[Change]) -> None:
        """Note what a request has changed, before it is told itself."""
        self._changes = changes

    def on_request(self, request: Request, fault: Fault | None, answer: Any) -> None:
        """Note a request, and what its sender heard."""
        changes, self._changes = self._changes, []
        if isinstance(answer, Broken):
            answer = {}  # it was applied, which is what the test does not allow
        if request.actor is None:
            return
        if fault is None and _is_routine(request, answer):
            return
        name = request.actor.process.name
        if fault is Fault.LATE and not isinstance(answer, ReadTimeoutError):
            done = f"arrived{self._changed(changes)}" if isinstance(answer, dict) else "arrived, and was refused"
            self._note("", f"the late request of {name}, to {_what(request, 1)}, {done}")
        else:
            self._note(name, self._sentence(request, fault, answer, changes))

    def ended(self, name: str, error: BaseException) -> None:
        self._note(name, f"ended with {type(error).__name__}")

    def _note(self, who: str, what: str) -> None:
        waited_s, self._told_at_s = self._scheduler.now - self._told_at_s, self._scheduler.now
        last = self._events[-1] if self._events else None
        if last is not None and (last.who, last.what) == (who, what):
            last.times += 1
            return
        if waited_s >= _LONG_S and last is not None:
            self._events.append(_Event("", f"{_duration(waited_s)} passed"))
        self._events.append(_Event(who, what))

    def _sentence(self, request: Request, fault: Fault | None, answer: Any, changes: list[Change]) -> str:
        if fault is Fault.CRASH_BEFORE:
            return f"was killed before it could {_what(request, 1)}"
        if fault is Fault.PAUSE_BEFORE and answer is None:
            return f"was paused for {_duration(self._pause_s)}, about to {_what(request, 1)}"
        if fault in _NOT_APPLIED:
            return f"tried to {_what(request, 1)}: {_NOT_APPLIED[fault]}"
        if fault in _UNHEARD:
            done = f"{_what(request, 0)}{self._changed(changes)}" if changes else f"tried to {_what(request, 1)}"
            return done + _UNHEARD[fault]
        text = _refused(request, answer) if isinstance(answer, Exception) else self._done(request, answer, changes)
        return f"{text}{self._after(fault)}"

    def _after(self, fault: Fault | None) -> str:
        if fault is Fault.PAUSE_AFTER:
            return f", and was paused for {_duration(self._pause_s)}"
        return {Fault.STALE: ", as it was before", Fault.CRASH_AFTER: ", and was killed"}.get(fault, "")  # type: ignore[arg-type]

    def _done(self, request: Request, answer: Any, changes: list[Change]) -> str:
        if request.step:
            return _what(request, 0)
        if request.operation not in READS:
            return f"{_what(request, 0)}{self._changed(changes)}"
        if "Count" in answer:
            return f"{_what(request, 0)} ({answer['Count']} items)"
        if request.operation != "GetItem":
            return _what(request, 0)
        table = request.kwargs["TableName"]
        seen = [f"{name} {value}" for name, value in self._scalars(table, answer.get("Item")).items()]
        return f"{_what(request, 0)}{_listed(seen) if 'Item' in answer else ' (not there)'}"

    def _changed(self, changes: list[Change]) -> str:
        texts = []
        for change in changes:
            before = self._scalars(change.place.table, change.before)
            after = self._scalars(change.place.table, change.after)
            if change.before is not None and change.after is None:
                texts.append("deleted")
            new = {name: value for name, value in after.items() if before.get(name) != value}
            texts += [f"{name} {f'{before[name]} → ' if name in before else ''}{value}" for name, value in new.items()]
            if after and not new:
                texts += [*(f"{name} {value}" for name, value in after.items()), "as before"]
        return _listed(texts)

    def _scalars(self, table: str, item: Image | None) -> dict[str, str]:
        """Return the attributes of an item that fit into a sentence, without its key."""
        shown = {}
        for name, tagged in (item or {}).items():
            [(tag, value)] = tagged.items()
            if tag in {"S", "N", "BOOL"} and name not in self._key_names(table) and not name.endswith(_WRITE_ID):
                text = str(value)
                shown[name] = text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
        return shown

    def lines(self) -> list[str]:
        """Return the story, a line for what one process did without a break."""
        lines = list(_joined(self._events))
        if len(lines) <= _MOST_LINES:
            return lines
        end = _MOST_LINES // 2
        return [*lines[:end], f"... {len(lines) - _MOST_LINES + 1} more lines ...", *lines[end + 1 - _MOST_LINES :]]


def _joined(events: Iterable[_Event]) -> Iterator[str]:
    line, of = "", ""
    for event in events:
        who, longer = event.who, f"{line}, {event}"
        if line and who and who == of and len(longer) <= _WIDTH:
            line = longer
            continue
        if line:
            yield line
        line, of = f"{who} {event}".lstrip(), who
    if line:
        yield line


def _is_routine(request: Request, answer: Any) -> bool:
    """Tell whether a request of the package itself says nothing to users: it looks, renews, or finds no row yet."""
    return request.step in {"read", "read_document", "renew"} or (
        bool(request.step) and isinstance(answer, ClientError) and request.step.startswith("enter")
    )


def _what(request: Request, form: int) -> str:
    verbs = _STEPS.get(request.step) or _VERBS.get(request.operation)
    verb = verbs[form] if verbs else f"{('sent', 'send')[form]} {request.operation} about"
    places = [*map(str, request.places)] or [str(request.kwargs.get("TableName", ""))]
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    if request.step == "evict":
        more = ", whose lease has expired"
    return f"{verb} {', '.join(places[:_MOST_PLACES])}{more}"


def _refused(request: Request, error: Exception) -> str:
    response: Any = error.response if isinstance(error, ClientError) else {}
    code = response.get("Error", {}).get("Code", type(error).__name__)
    if code == "ConditionalCheckFailedException":
        return f"tried to {_what(request, 1)}: its condition failed"
    reasons = [each["Code"] for each in response.get("CancellationReasons", []) if each["Code"] != "None"]
    return f"tried to {_what(request, 1)}: {', '.join(reasons) or code}"


def _listed(texts: Iterable[str]) -> str:
    given = list(texts)
    return f" ({', '.join(given[:_MOST_ATTRIBUTES])})" if given else ""


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 2 * 3600 else f"{seconds:.0f} s"
