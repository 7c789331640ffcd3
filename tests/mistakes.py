"""Whether `make check` notices a mistake of one line: ``python -m tests.mistakes [a word of its name]``.

Each mistake is written into the package in turn, `make check` runs until its first failure, and the line is put back.
The table is that of docs/explanation/testing.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pynamo_locking

PACKAGE: Final = Path(pynamo_locking.__file__).parent


class Mistake(NamedTuple):
    """What is wrong, in which file, the right code, which is there once, and the wrong one."""

    name: str
    file: str
    right: str
    wrong: str


MISTAKES: Final = (
    Mistake(
        "a guarded write does not name the lock",
        "_writes/inside.py",
        "guards.standing(own, number), [guards.c",
        "None, [guards.c",
    ),
    Mistake(
        "a number of a write is used twice",
        "_locks/guards.py",
        "(_writes(held) < Stored(",
        "(_writes(held) <= Stored(",
    ),
    Mistake(
        "a write from outside does not ask for marks",
        "_locks/guards.py",
        "(queue.does_not_exist() | (queue == Stored(lock_document.EMPTY))) & unmarked(attribute)",
        "queue.does_not_exist() | (queue == Stored(lock_document.EMPTY))",
    ),
    Mistake(
        "the version is not checked",
        "_items/versions.py",
        "if path is None or not self.is_checked:",
        "if path is None or self.is_checked:",
    ),
    Mistake(
        "a lost answer is taken for a refusal", "_core/sending.py", "answer is not Answer.UNANSWERED and not", "not"
    ),
    Mistake(
        "an absent entry counts as lost", "_core/possession.py", "return Absence.UNKNOWN if in_doubt else", "return"
    ),
    Mistake(
        "a lease is renewed after its end",
        "_locks/heartbeat.py",
        "return next_renewal(started, lease)",
        "return started + 2 * lease",
    ),
    Mistake(
        "an eviction does not wait for a whole lease",
        "_core/lease.py",
        "now - since >= lease * (1 + RATE_MARGIN)",
        "now - since >= lease * (1 - RATE_MARGIN)",
    ),
    Mistake(
        "a waiter waits too long",
        "_locks/acquisition.py",
        "monotonic() + options.wait",
        "monotonic() + 2 * options.wait",
    ),
    Mistake(
        "locked ranges include their upper end",
        "_core/claims.py",
        "order(bound) < order(other)",
        "order(bound) <= order(other)",
    ),
    Mistake("intervals include their end", "_core/intervals.py", "None or lower < upper", "None or lower <= upper"),
    Mistake(
        "the mark of an aborted transaction stays",
        "_io/mark_requests.py",
        "        drop(row, mark)",
        "        pass",
    ),
)


@contextmanager
def planted(mistake: Mistake):
    """Have the mistake in the package for a while."""
    file = PACKAGE / mistake.file
    text = file.read_text()
    assert text.count(mistake.right) == 1, f"{mistake.file} does not have once: {mistake.right}"
    try:
        file.write_text(text.replace(mistake.right, mistake.wrong))
        yield
    finally:
        file.write_text(text)


def noticed() -> tuple[float, str]:
    """Return after how many seconds `make check` was red, and by what."""
    began = time.perf_counter()
    run = subprocess.run(["make", "check", "PYTEST=-x"], check=False, capture_output=True, text=True)
    elapsed = time.perf_counter() - began
    if not run.returncode:
        return elapsed, "nothing"
    failed = re.search(r"^(?:FAILED|ERROR) \S+/(\S+)\.py::(\w+)", run.stdout, re.MULTILINE)
    return elapsed, "`{}`: `{}`".format(*failed.groups()) if failed else run.stdout[-400:]


def main() -> None:
    sys.stdout.write("| mistake | red after | by |\n|---|---|---|\n")
    for mistake in MISTAKES:
        if all(word in mistake.name for word in sys.argv[1:]):
            with planted(mistake):
                elapsed, by = noticed()
            sys.stdout.write(f"| {mistake.name} | {elapsed:.0f} s | {by} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
