"""Histories in the form that Jepsen gives them, so that Elle reads them: written by each process, merged, read again.

An operation is a map with ``:type`` (``:invoke``, and then ``:ok``, ``:fail`` or ``:info``), ``:process``, ``:f``,
``:value``, ``:time`` in nanoseconds and ``:index``. The value of a transaction is a vector of micro-operations. For
lists they are ``[:append key element]`` and ``[:r key [elements]]``, for registers ``[:w key value]`` and
``[:r key value]``. ``:info`` says that the operation may have happened or not; its process invokes nothing any more.

A process appends to a file of its own, one line before a request is made and one after the answer. Each line is one
write. What a kill leaves is an invocation without a completion; merged, that is an ``:info``.

EDN has one map a line, which `elle-cli --model list-append FILE.edn` reads as it is. The same as JSON lines is for
other programs; elle-cli reads JSON as one array (``jq -s . FILE.jsonl``).

Sources: https://github.com/jepsen-io/history (README, "Operation Structure"), https://github.com/jepsen-io/elle
(README), https://github.com/ligurio/elle-cli (README, and `read-edn-history`, `read-json-history` in its `cli.clj`).
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: A micro-operation: what, on which key, with which value.
MicroOp = list[Any]

#: Process numbers of one writer: after an unknown outcome it goes on under its next number.
_NUMBERS: Final = 1_000_000
_SPACES: Final = re.compile(r"\s")


class Scribe:
    """Writes the part of a history that one process of the operating system sees.

    Args:
        path: of its file, which nothing else writes.
        number: of the process. No other process of the history has it, also none that was killed.
    """

    def __init__(self, path: Path, number: int) -> None:
        # Each line is one write, so that a killed process leaves whole lines; the kernel keeps what was written.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._process = number * _NUMBERS

    def invoke(self, value: list[MicroOp]) -> None:
        """Note what is about to be asked for. Reads have no value yet."""
        self._write("invoke", value)

    def ok(self, value: list[MicroOp]) -> None:
        """Note that it was done, and what was read."""
        self._write("ok", value)

    def fail(self, value: list[MicroOp], error: Exception | None) -> None:
        """Note that it was refused: nothing of it was or will be done."""
        self._write("fail", value, error)

    def info(self, value: list[MicroOp], error: Exception | None) -> None:
        """Note that it may have been done, or may be done later."""
        self._write("info", value, error)
        self._process += 1

    def _write(self, kind: str, value: list[MicroOp], error: Exception | None = None) -> None:
        op = {"time": time.monotonic_ns(), "type": kind, "process": self._process, "f": "txn", "value": value}
        if error is not None:
            op["error"] = type(error).__name__
        os.write(self._file, json.dumps(op, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def merge(parts: Iterable[Path], target: Path) -> int:
    """Merge the files of all processes into ``target.edn`` and ``target.jsonl``; return how many lines those have.

    One clock, which all processes of a machine share, has the times.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(path.open()) for path in parts]
        as_edn = stack.enter_context(target.with_suffix(".edn").open("w"))
        as_json = stack.enter_context(target.with_suffix(".jsonl").open("w"))
        index = -1
        for index, op in enumerate(_ended(heapq.merge(*map(_timed, files), key=lambda timed: timed[0]))):
            op = {"index": index, **op}  # noqa: PLW2901
            as_json.write(json.dumps(op, separators=(",", ":")) + "\n")
            as_edn.write(to_edn(op) + "\n")
        return index + 1


def _timed(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in lines:
        if line.endswith("\n"):  # the last line of a process that ran out of disk, say
            op = json.loads(line)
            yield op["time"], op


def _ended(timed: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield operations from time 0 on; at the end, those of killed processes that were never completed."""
    under_way: dict[Any, dict[str, Any]] = {}
    begin = last = None
    for now, op in timed:
        begin = now if begin is None else begin
        op["time"] = last = now - begin
        if op["type"] == "invoke":
            under_way[op["process"]] = op
        else:
            del under_way[op["process"]]
        yield op
    for op in under_way.values():
        yield {**op, "time": last, "type": "info", "error": "killed"}


# EDN


def to_edn(op: dict[str, Any]) -> str:
    """Return an operation as a map of EDN."""
    fields = [f":{name} {_field(name, value)}" for name, value in op.items()]
    return "{" + ", ".join(fields) + "}"


def _field(name: str, value: Any) -> str:
    if name in ("type", "f"):
        return f":{value}"
    if name == "value":
        return "[" + " ".join(f"[:{f} {_plain(key)} {_plain(of)}]" for f, key, of in value) + "]"
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, list):
        return "[" + " ".join(map(_plain, value)) + "]"
    return str(value) if isinstance(value, int) else json.dumps(value)


_TOKEN: Final = re.compile(r'[\s,]+|;[^\n]*|("(?:\\.|[^"\\])*"|[\[\](){}]|[^\s,\[\](){}";]+)')
_CLOSED_BY: Final = {"[": "]", "(": ")", "{": "}"}
_NAMED: Final = {"nil": None, "true": True, "false": False}


def from_edn(text: str) -> Iterator[Any]:
    """Yield the forms of an EDN text. Keywords become strings, as in JSON."""
    open_forms: list[tuple[str, list[Any]]] = []
    for match in _TOKEN.finditer(text):
        token = match[1]
        if token is None:
            continue
        if token in _CLOSED_BY:
            open_forms.append((_CLOSED_BY[token], []))
            continue
        if token in "])}":
            if not open_forms or open_forms[-1][0] != token:
                raise ValueError(f"a {token} that closes nothing, at {match.start()}")
            form: Any = open_forms.pop()[1]
            if token == "}":
                form = dict(zip(form[::2], form[1::2], strict=True))
        else:
            form = _atom(token)
        if open_forms:
            open_forms[-1][1].append(form)
        else:
            yield form
    if open_forms:
        raise ValueError(f"a {open_forms[-1][0]} is missing at the end")


def _atom(token: str) -> Any:
    if token[0] == '"':
        return json.loads(token)
    if token[0] == ":":
        return token[1:]
    if token in _NAMED:
        return _NAMED[token]
    try:
        return int(token)
    except ValueError:
        return token


# Reading


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the operations of a file: ``.edn`` or ``.jsonl``, as a series of maps or as one vector of them."""
    with path.open() as file:
        if path.suffix == ".edn":
            first = from_edn(file.read())
        else:
            lines = (line for line in file if not _SPACES.fullmatch(line))
            first = map(json.loads, lines)
        for form in first:
            yield from form if isinstance(form, list) else (form,)


class Op:
    """An operation as its process knows it: from its invocation to its completion.

    Attributes:
        number: its place among all operations that were completed, or never will be.
        index: of its completion in the file, or of its invocation.
        process: who made it.
        outcome: ``ok``, ``fail`` or ``info``.
        begin: the event with which it was invoked, counted from 0; None if the file does not say.
        end: the event with which it was completed; None if that is not known.
        value: its micro-operations.
    """

    __slots__ = ("begin", "end", "index", "number", "outcome", "process", "value")

    def __init__(self, index: int, process: Any, outcome: str, begin: int | None, end: int | None, value: Any) -> None:
        self.number = -1
        self.index = index
        self.process = process
        self.outcome = outcome
        self.begin = begin
        self.end = end
        self.value = value


def operations(ops: Iterable[dict[str, Any]]) -> Iterator[Op]:
    """Pair invocations with completions; operations without an end come last, as ``info``.

    Raises:
        ValueError: a process has invoked something before its last operation was completed.
    """
    under_way: dict[Any, tuple[int, dict[str, Any]]] = {}
    gone: set[Any] = set()
    numbers = itertools.count()
    for event, op in enumerate(ops):
        process = op.get("process")
        if not isinstance(process, int | None):
            continue  # :nemesis tells of faults
        if op["type"] == "invoke":
            if process in under_way or (process is not None and process in gone):
                raise ValueError(f"process {process} invokes a second operation before its first has ended: {op}")
            under_way[process] = (event, op)
            continue
        begin, invoked = under_way.pop(process, (None, op))
        if op["type"] == "info":
            gone.add(process)
        ended, value = event if op["type"] == "ok" else None, op.get("value") or invoked["value"]
        yield _numbered(Op(op.get("index", event), process, op["type"], begin, ended, value), numbers)
    for begin, op in under_way.values():
        yield _numbered(Op(op.get("index", begin), op.get("process"), "info", begin, None, op["value"]), numbers)


def _numbered(op: Op, numbers: Iterator[int]) -> Op:
    op.number = next(numbers)
    return op
