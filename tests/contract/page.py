"""A plugin of pytest: the page that ``make aws`` writes of a run of this folder."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import botocore.session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

#: They are about the engines of this repository.
LEFT_OUT: Final = ("test_engines.py", "test_faults.py")
PACKAGES: Final = ("pynamo-locking", "pynamodb", "botocore")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page", metavar="FILE", required=True, help="where the page is written")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Page(Path(config.getoption("--page"))))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in LEFT_OUT else None


class Page:
    """Notes what each test asks, and what DynamoDB has answered."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self._questions: dict[str, str] = {}
        #: By file: name, question, answer, seconds.
        self._answers: dict[str, list[tuple[str, str, str, str]]] = {}
        self._latencies: dict[str, tuple[float, float]] = {}
        self._fine = self._asked = 0

    def pytest_itemcollected(self, item: Any) -> None:
        """Take the docstring as the question."""
        self._questions[item.nodeid] = " ".join((item.obj.__doc__ or "").partition("\n\n")[0].split())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test has ended, and what it has measured."""
        if report.when != "call" and report.passed:
            return
        path, _, name = report.nodeid.rpartition("::")
        name = name.replace("[aws]", "").replace("[aws-", "[")
        row = (f"`{name}`", self._questions[report.nodeid], answer_of(report), f"{report.duration:.1f}")
        self._answers.setdefault(Path(path).stem.removeprefix("test_"), []).append(row)
        self._fine += report.passed
        self._asked += not report.skipped
        self._latencies |= dict(report.user_properties)

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        session = botocore.session.get_session()
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
        endpoint = os.environ.get("AWS_ENDPOINT_URL_DYNAMODB")
        place = f"DynamoDB in {region}" if endpoint is None else endpoint
        today = datetime.now(timezone.utc).date()
        versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
        took = f"{time.monotonic() - self._began:.0f} s"
        lines = [
            f"# {place}, {today}: {self._fine} of {self._asked} answers as this package needs them",
            "",
            f"{', '.join(versions)}, Python {platform.python_version()}; {took} in all.",
        ]
        if self._latencies:
            milliseconds = [
                (name, *(f"{1000 * each:.1f}" for each in figures)) for name, figures in self._latencies.items()
            ]
            lines += ["", "## Latencies", "", *table(("operation", "median, ms", "slowest, ms"), milliseconds)]
        for file, rows in self._answers.items():
            lines += ["", f"## {file.replace('_', ' ').capitalize()}", ""]
            lines += table(("test", "what should be true", "is it?", "seconds"), rows)
        self._file.write_text("\n".join([*lines, ""]), encoding="utf-8")


def answer_of(report: pytest.TestReport) -> str:
    """Return yes, or why not."""
    if report.passed:
        return "yes"
    if isinstance(report.longrepr, tuple):
        return f"not asked: {report.longrepr[2].removeprefix('Skipped: ')}"
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return "no: " + " ".join((crash.message if crash else report.longreprtext).split())[:500]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
