"""A process that tells the guardian its number, and then becomes the program.

So the program never runs without a guardian that would end it. Run as a script of its own, in a session of its own, and
imports nothing of the package.

Arguments: the file descriptor of the guardian's input; another one for the number of the error if the program cannot be
started; for how many seconds the program is guarded unless the guardian is told otherwise; the path of the program; its
arguments, the first of which is its name.
"""

from __future__ import annotations

import os
import signal
import sys

#: Python ignores these signals, and the program would inherit that.
_IGNORED = ("SIGPIPE", "SIGXFSZ")


def start(guardian: int, errors: int, seconds: str, path: str, command: list[str]) -> None:
    """Become the program."""
    for descriptor in (guardian, errors):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the program does not inherit it
    os.write(guardian, f"{os.getpid()} {seconds}\n".encode())
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(path, command)  # noqa: S606 - what the person asked for
    except OSError as error:
        os.write(errors, str(error.errno).encode())
        os._exit(1)


if __name__ == "__main__":
    start(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
