"""The DynamoDB of the demo: dynoxide, or moto where dynoxide is not installed."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DYNOXIDE: Final = "dynoxide"
MOTO: Final = "moto"


@contextlib.contextmanager
def running(name: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Start an engine on a free port of this machine; yield its name and address.

    Args:
        name: which one; None takes dynoxide, or moto where dynoxide is missing.
        say: called with an explanation if it had to be moto.
    """
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    with contextlib.ExitStack() as stack:
        if name != MOTO:
            try:
                url = stack.enter_context(_dynoxide())
            except (ImportError, OSError, RuntimeError) as error:
                if name == DYNOXIDE:
                    raise
                say(f"dynoxide does not start, so moto stands in for it. It is slower. ({_first_line(error)})")
            else:
                yield DYNOXIDE, url
                return
        yield MOTO, stack.enter_context(_moto())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextlib.contextmanager
def _dynoxide() -> Iterator[str]:
    from tests.engines.servers import start_dynoxide  # noqa: PLC0415 - there only in a checkout

    with start_dynoxide() as server:
        yield server.url


@contextlib.contextmanager
def _moto() -> Iterator[str]:
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - needed only here
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 - comes with moto

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Print nothing for a request."""

    app = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _one_at_a_time(app: Any) -> Callable[[Any, Any], Iterable[bytes]]:
    """Serve one request after the other.

    moto checks a condition and applies its write in two steps, and another thread can come in between. In
    DynamoDB a conditional write is atomic, and every lock depends on that.
    """
    mutex = threading.Lock()

    def serve(environ: Any, start_response: Any) -> Iterable[bytes]:
        with mutex:
            return list(app(environ, start_response))

    return serve
