"""``python -m tests.models``: SPIN searches the models of the protocols, and has to break each one without a rule.

Needs `spin` (Debian has it, and Homebrew) and a C compiler. States are stored all, so a search without an error is a
proof for the model of that size.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SMALL: Final = "COPIES=0 ABORTS=0"

#: For each model the stories that have to hold, and for each rule a story that has to break without it.
HOLDS: Final = {
    "queue": ["CALLERS=1 FAULTS=2", "CALLERS=1 FAULTS=1 EVICTIONS=2", "CALLERS=2 WRITES=1 EVICTIONS=0"],
    "transaction": [
        "COPIES=0",
        "ABORTS=0",
        "DEATHS=1 COPIES=0",
        "SKEW",
        "SKEW DEATHS=1",
        "INSERT",
        "RECREATE ABORTS=0",
        f"READER {SMALL}",
    ],
}
BREAKS: Final = {
    "queue": {
        **dict.fromkeys(("NO_ORDER", "NO_GUARD", "NO_TICKET", "NO_NUMBER", "NO_CERTAINTY", "OPEN"), "CALLERS=1"),
        **dict.fromkeys(("BLIND_HAND_OVER", "ONE_TICKET"), "WRITES=1 EVICTIONS=0"),
    },
    "transaction": {
        "NO_R1": "RECREATE ABORTS=0",
        "NO_R2": SMALL,
        "NO_R3": "COPIES=0",
        "NO_R4": "COPIES=0",
        "NO_R6": f"SKEW {SMALL}",
        "NO_R8": "INSERT",
        "NO_R9": SMALL,
        "NO_R11": SMALL,
        "NO_R13": f"READER {SMALL}",
    },
}


def search(model: str, story: str) -> tuple[str | None, int, float]:
    """Return the assertion that was violated, if one was; how many states there are; and how many seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
            return done.stdout

        run("spin", "-a", *(f"-D{each}" for each in story.split()), str(HERE / f"{model}.pml"))
        run("cc", "-w", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
        told = run("./pan", "-m200000", "-n")
    violated = re.search(r"pan:1: (.*) \(at depth", told)
    states = re.search(r"(\d+) states, stored", told)
    if states is None or "max search depth too small" in told:
        sys.exit(told)
    return violated and violated[1], int(states[1]), time.monotonic() - began


def main() -> int:
    """Search all, print a table, and return how many searches did not end as they have to."""
    wrong = 0
    sys.stdout.write("| model | story | rule taken out | states | seconds | found |\n|---|---|---|---|---|---|\n")
    for model, stories in HOLDS.items():
        searches = [("", story) for story in stories] + [(rule, story) for rule, story in BREAKS[model].items()]
        for rule, story in searches:
            violated, states, took_s = search(model, f"{story} {rule}")
            is_wrong = (violated is None) is bool(rule)
            wrong += is_wrong
            found = f"`{violated}`" if violated else "nothing"
            found += " (WRONG)" * is_wrong
            sys.stdout.write(f"| {model} | {story} | {rule} | {states:,} | {took_s:.1f} | {found} |\n")
            sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
