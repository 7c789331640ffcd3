"""The DynamoDB of the demo: the package's in-memory one behind HTTP, or dynoxide where npm has brought it."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from demo.worker import Process
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import MemoryDynamoDB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

MEMORY: Final = "MemoryDynamoDB"
DYNOXIDE: Final = "dynoxide"
BINARY: Final = Path(__file__).parents[1] / "tests/engines/node_modules/@dynoxide/linux-x64/dynoxide"
#: It takes a tenth of a second to start.
START_S: Final = 0.5


@contextlib.contextmanager
def running(name: str | None) -> Iterator[tuple[str, str]]:
    """Start an engine on a free port of this machine; yield its name and address. None: dynoxide if it is there."""
    chosen = name or (DYNOXIDE if BINARY.exists() else MEMORY)
    with _dynoxide() if chosen == DYNOXIDE else _memory() as port:
        yield chosen, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _dynoxide() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with subprocess.Popen([BINARY, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            time.sleep(START_S)
            yield port
        finally:
            child.kill()


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    with contextlib.closing(Process(MEMORY, serve)) as child:
        yield child.pipe.recv()


# The in-memory DynamoDB as a server: DynamoDB's JSON over HTTP, as botocore speaks it


def serve(pipe: Connection[int, None]) -> None:
    """Run the server, in a process of its own, until that of the demo is gone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_port)
    pipe.recv()


class _Handler(BaseHTTPRequestHandler):
    database: Final = MemoryDynamoDB()  # a request of it is atomic
    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True
    wbufsize = -1  # header and body at once

    def do_POST(self) -> None:
        """Serve a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        status, answer = 200, {}
        try:
            answer = self.database.handle(operation, json.loads(body, object_hook=_with_bytes))
        except ClientError as refusal:
            status, answer = 400, dict(refusal.response)
            error = answer.pop("Error")
            answer |= {"__type": f"com.amazonaws.dynamodb.v20120810#{error['Code']}", "message": error["Message"]}
        except ConfigurationError as error:
            status, answer = 400, {"__type": "UnknownOperationException", "message": str(error)}
        answer.pop("ResponseMetadata", None)
        content = json.dumps(answer, default=_as_json).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""


def _with_bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Return an attribute's value as boto3 has it: bytes come as base64."""
    match value:
        case {"B": str(text)}:
            return {"B": base64.b64decode(text)}
        case {"BS": list(texts)}:
            return {"BS": [base64.b64decode(text) for text in texts]}
    return value


def _as_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.timestamp()  # or a datetime
