"""docs/how-to/operate.md: what it quotes is what the package logs, counts, tells and takes as a command."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pynamo_locking import events
from pynamo_locking.telemetry import logs, opentelemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs/how-to/operate.md").read_text(encoding="utf-8")
COMMANDS: Final = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
#: What a format or an f-string fills in.
FIELD: Final = re.compile(r"%(?:\.\d+)?[sdrgf]")


def template(node: ast.expr) -> str | None:
    """A text of the source, with `…` for what is filled in; None if it is no text."""
    if isinstance(node, ast.Constant):
        return FIELD.sub("…", node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


@cache
def texts() -> frozenset[tuple[str, str | None]]:
    return frozenset(_texts())


def _texts() -> Iterator[tuple[str, str | None]]:
    """Each text of the package; with the level at which it is logged, if it is the message of a logger."""
    for path in sorted((ROOT / "pynamo_locking").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                text = template(node.args[0])
                if text is not None and node.func.attr in LEVELS and "log" in ast.unparse(node.func.value):
                    yield text, LEVELS[node.func.attr]
            if isinstance(node, (ast.Constant, ast.JoinedStr)):
                text = template(node)
                if text:
                    yield text, None


def quoted() -> list[tuple[str, str]]:
    """Level and text of each log line on the page."""
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [(level, text) for block in blocks for level, text in re.findall(r"^(\w+) +(.+)$", block, re.MULTILINE)]


def test_each_log_line_stands_in_the_source() -> None:
    """With its level, where the text is the message itself."""
    stored = texts()
    leveled = {text for text, level in stored if level is not None}
    lines = quoted()
    missing = [
        (level, text)
        for level, text in lines
        if not ((text, level) in stored or (text not in leveled and (text, None) in stored))
    ]
    assert len(lines) > 30
    assert missing == []


def test_each_metric_is_named() -> None:
    """All of them, and no other."""
    source = Path(opentelemetry.__file__).read_text(encoding="utf-8")
    names = re.findall(r'(?:counter|_duration)\((?:meter, )?\s*"([a-z._]+)"|\{NAME\}\.([a-z]+\.[a-z]+)"', source)
    metrics = {f"pynamo_locking.{first or second}" for first, second in names}
    named = set(re.findall(r"`(pynamo_locking\.[a-z_.]+)`", PAGE)) - {"pynamo_locking.events"}
    assert len(metrics) == 12
    assert named == metrics


def test_each_event_is_named() -> None:
    """Those that are told, at least in one section, and no other."""
    bases = {events.Event, events.LockEvent, events.WriteEvent, events.TransactionEvent, events.Attempt}
    bases |= {events.TransactionEnded}
    told = {name for name in events.__all__ if name[0].isupper() and getattr(events, name) not in bases}
    told.remove("Subscription")
    sentences = re.findall(r"\b[Ee]vents? ((?:`\w+`(?:, | and )?)+)", PAGE)
    named = {name for sentence in sentences for name in re.findall(r"`(\w+)`", sentence)}
    assert {event.__name__ for event in logs.NOTABLE} <= named
    assert named <= told
    assert {name for name in told if f"`{name}`" not in PAGE} == set()


def test_each_command_exists() -> None:
    """As the reference of the command line has it, which a test compares with the program."""
    commands = re.findall(
        r"pynamo-locking ((?:locks|tx|tables|unique) [a-z]+|run|version)((?: +--?[a-z-]+| +\S+)*)", PAGE
    )
    assert len(commands) > 12
    assert [command for command, _ in commands if f"| `{command}" not in COMMANDS] == []
    options = {option for _, rest in commands for option in re.findall(r"--[a-z-]+", rest)} - {"--model"}
    assert {option for option in options if f"`{option}" not in COMMANDS and f" {option}" not in COMMANDS} == set()
