"""What a test of `make test` may not do: it would depend on another process, on the network, or on the machine."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Python tells of these before it does them.
PROCESSES: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.kill", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
)
#: Where a server of the test itself may be.
HERE: Final = frozenset({"127.0.0.1", "::1", "localhost", None})

_ups: list[int] = [0]


class OutsideError(RuntimeError):
    """The test reaches for something outside of its process."""


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _ups[0]:
        return
    if event in PROCESSES:
        raise OutsideError(
            f"{event}{arguments!r}: a test that starts, forks or signals a process is marked `processes`."
        )
    if event == "socket.getaddrinfo" and arguments[0] not in HERE:
        raise OutsideError(f"a test dials {arguments[0]}, and nothing but this machine may be needed.")


sys.addaudithook(_refuse)


@contextmanager
def up() -> Iterator[None]:
    """Refuse to leave this process while the block runs."""
    _ups[0] += 1
    try:
        yield
    finally:
        _ups[0] -= 1
