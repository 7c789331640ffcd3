"""What a program under a lock is before it becomes that program: it names itself to the guardian first.

So there is no moment at which the program runs and nobody would end it. Run as a script of its own, in a session of its
own, and imports nothing of the package.

Arguments: two file descriptors, of the guardian and for the number of the error if the program cannot be started; for
how many seconds it is guarded; the path of the program; its arguments, the first of which is its name.
"""

from __future__ import annotations

import os
import signal
import sys

#: Python ignores these, and a program would inherit that.
_IGNORED = ("SIGPIPE", "SIGXFSZ")


def start(guardian: int, errors: int, seconds: str, path: str, command: list[str]) -> None:
    """Become the program.

    Args:
        guardian: file descriptor of the guardian's input.
        errors: file descriptor for the number of the error.
        seconds: for how long the program is guarded unless the guardian hears otherwise.
        path: of the program.
        command: its name and its arguments.
    """
    for descriptor in (guardian, errors):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - so it is not the program's
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
