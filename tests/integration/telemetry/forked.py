"""Work in a forked child."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(work: Callable[[], str]) -> str:
    """Run something in a forked child; return what it returns, or says before it dies."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test run do not matter here
        pid = os.fork()
    if pid == 0:
        try:
            import faulthandler

            faulthandler.dump_traceback_later(60, exit=True)
            os.write(writing, work().encode())
        except BaseException as error:  # noqa: BLE001 - the parent asserts on it
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    os.waitpid(pid, 0)
    return said
