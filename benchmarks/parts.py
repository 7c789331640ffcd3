"""What benchmarks of several parts share: which of them to run, and where the figures go."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import rich

from tests.engines.servers import Servers

#: Each part by its name; it prints its tables, and returns its figures.
Parts = dict[str, Callable[[Servers, argparse.Namespace], list[dict[str, Any]]]]


def run(parts: Parts, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the part that was asked for, or all of them; write the figures down if there is a file for them."""
    servers = Servers()
    logging.getLogger("pynamo_locking").setLevel(logging.ERROR)  # that the dead are aborted is the point
    figures: dict[str, Any] = {"machine": f"{os.cpu_count()} cores, Python {platform.python_version()}"}
    try:
        for name, measure in parts.items():
            if options.part in (name, "all"):
                figures[name] = measure(servers, options)
    finally:
        servers.close()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def show(title: str, table: str) -> None:
    """Print a table as Markdown, whatever the width of the terminal."""
    rich.print(f"\n[bold]{title}[/bold]\n")
    sys.stdout.write(f"{table}\n")
    sys.stdout.flush()
