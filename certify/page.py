"""The page that a run writes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def write(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write the page into a folder, as Markdown and as JSON; return the files, named after the time and the place."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^0-9TZ-]", "", document["began_at"]) + "-" + re.sub(r"[^\w-]+", "-", _place(document))
    files = [folder / f"{name}.md", folder / f"{name}.json"]
    for file, text in zip(files, (markdown(document), json.dumps(document, indent=2) + "\n"), strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def _place(document: dict[str, Any]) -> str:
    host = urlsplit(document["endpoint"]).netloc
    return str(document["region"]) if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else host


def markdown(document: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    began = document["began_at"]
    where = f"{document['endpoint']} (Region {document['region']})"
    removed = ", ".join(document["removed"])
    stages = [(stage["name"], stage["about"], stage["result"], stage["seconds"]) for stage in document["stages"]]
    lines = [
        "---",
        "orphan: true",  # docs/certified/index.md links to it, and no table of contents names it
        "---",
        "",
        f"# {_place(document)}, {began[:10]}: {document['result']}",
        "",
        f"`python -m certify` began at {began} at {where}. These tables were removed at its end: {removed}.",
        "",
        *_table(("what", "version"), document["versions"].items()),
        "",
        *_table(("setting", "value"), document["settings"].items()),
        "",
        "## Results",
        "",
        *_table(("stage", "what", "result", "seconds"), stages),
    ]
    for stage in document["stages"]:
        lines += _details(stage)
    return "\n".join([*lines, *_units(document), ""])


def _details(stage: dict[str, Any]) -> list[str]:
    facts, problems = stage["facts"], stage["problems"]
    lines = ["", f"## {stage['name'].capitalize()}", ""] if facts or problems else []
    if any(isinstance(each, dict) for each in facts.values()):
        head = ("operation", *next(iter(facts.values())))
        lines += _table(head, [(name, *figures.values()) for name, figures in facts.items()])
    elif facts:
        lines += _table(("figure", "value"), facts.items())
    if problems:
        lines += [*([""] if facts else []), *(f"* {' '.join(problem.split())}" for problem in problems)]
    return lines


def _units(document: dict[str, Any]) -> list[str]:
    rows = []
    for stage in document["stages"]:
        figures = [stage[when][kind] for kind in ("reads", "writes") for when in ("estimated", "reported")]
        rows.append((stage["name"], *(f"{each:,.0f}" for each in (*figures, stage["unreported"]))))
    head = ("stage", "reads, estimated", "reads, reported", "writes, estimated", "writes, reported", "not reported")
    used, price, cost = document["used"], document["price"], document["cost"]
    sentences = (
        f"DynamoDB reported {used['reads']:,.0f} read and {used['writes']:,.0f} write units.",
        f"It does not report the units of refused requests: {used['unreported']:,.0f} by our count.",
        f"Requests that were under way when their process was killed may have used {used['pending']:,.0f} more.",
        f"The cap was {document['settings']['max_units']:,.0f} units.",
        f"A million reads cost US$ {price['read']}, and a million writes US$ {price['write']}.",
        f"So the run cost US$ {cost['used']:.4f} at most. The estimate was US$ {cost['estimated']:.4f}.",
    )
    return ["", "## Units and cost", "", *_table(head, rows), "", *sentences]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]
