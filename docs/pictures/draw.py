"""Draw the pictures of the documentation: ``make pictures``.

Those of terminals show what real programs print, on a real engine. Nothing in them is made up.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from docs.pictures.terminal import running
from pynamo_locking import LockSettings, NamedLock
from tests.engines.engine import DUMMY_ENVIRONMENT
from tests.engines.servers import start_dynoxide

HERE: Final = Path(__file__).resolve().parent
BIN: Final = Path(sys.executable).parent


def demo() -> None:
    """`make demo` while its victim has just been killed."""
    with running([sys.executable, "-m", "demo"], 45, 82, _environment()) as terminal:
        terminal.wait_for("SIGKILL")
        terminal.draw(HERE / "demo-live.svg", "make demo")


class Locks(NamedLock):
    """Those in the picture of `locks watch`."""

    class Meta:
        """Where they are."""

        table_name = "locks"
        host: str
        # Threads stand for processes here: each has an entry of its own.
        lock_settings = LockSettings(max_callers_per_entry=1)


#: Who holds what or waits for it, in the order of coming.
_QUEUE: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("nightly-report", "web-1:811:report", {}),
    ("nightly-report", "web-2:97:report", {}),
    ("nightly-report", "kim@laptop", {}),
    ("partner-api", "worker-1:15:main", {"permits": 2}),
    ("partner-api", "worker-2:15:main", {"permits": 2}),
    ("partner-api", "worker-3:15:main", {"permits": 2}),
    ("price-list", "shop-1:40:reader", {"shared": True}),
    ("price-list", "shop-2:40:reader", {"shared": True}),
)


def watch() -> None:
    """`locks watch`: a lock and its queue, a semaphore, and readers."""
    os.environ.update(DUMMY_ENVIRONMENT)
    end = threading.Event()
    with start_dynoxide() as server, ThreadPoolExecutor(len(_QUEUE)) as people:
        Locks.Meta.host = server.url
        Locks.create_table()
        try:
            for name, owner, options in _QUEUE:
                people.submit(_stand, name, owner, end, options)
                while owner not in {entry.owner for entry in Locks.lock_state(name).entries}:
                    end.wait(0.05)
            program = [str(BIN / "pynamo-locking"), "locks", "watch", "--table", "locks", "--every", "0.5"]
            with running([*program, "--endpoint", server.url], 30, 126, _environment()) as terminal:
                terminal.wait_for("shop-2")
                terminal.draw(HERE / "watch.svg", "pynamo-locking locks watch --table locks")
        finally:
            end.set()


def _stand(name: str, owner: str, end: threading.Event, options: dict[str, Any]) -> None:
    with Locks.locked(name, owner=owner, **options):
        end.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, **DUMMY_ENVIRONMENT, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


if __name__ == "__main__":
    demo()
    watch()
