"""The page of a run: Markdown from the facts of the JSON document."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def write(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write the page into a folder, as Markdown and as JSON; return the files. Their name has the time and the place."""
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
    lines = [
        f"# {_place(document)}, {document['began_at'][:10]}: {document['result']}",
        "",
        f"`pynamo-locking certify` began at {document['began_at']} at {document['endpoint']} (Region "
        f"{document['region']}). Its tables were removed: {', '.join(document['removed']) or 'none was there'}.",
        "",
        *_table(("what", "version"), document["versions"].items()),
        "",
        *_table(("setting", ""), document["settings"].items()),
        "",
        "## Results",
        "",
        *_table(("stage", "what", "result", "seconds"), [_result(stage) for stage in document["stages"]]),
    ]
    for stage in document["stages"]:
        lines += _details(stage)
    return "\n".join([*lines, *_units(document), ""])


def _result(stage: dict[str, Any]) -> tuple[Any, ...]:
    return stage["name"], stage["about"], stage["result"], stage["seconds"]


def _details(stage: dict[str, Any]) -> list[str]:
    lines = ["", f"## {stage['name'].capitalize()}", ""] if stage["facts"] or stage["problems"] else []
    rows = [each for each in stage["facts"].values() if isinstance(each, dict)]
    if rows:
        rows = [(name, *figures.values()) for name, figures in stage["facts"].items()]
        lines += _table(("operation", *next(iter(stage["facts"].values()))), rows)
    elif stage["facts"]:
        lines += _table(("figure", ""), stage["facts"].items())
    if stage["problems"]:
        lines += ["", *(f"* {' '.join(problem.split())}" for problem in stage["problems"])]
    return lines


def _units(document: dict[str, Any]) -> list[str]:
    rows = []
    for stage in document["stages"]:
        estimated, reported = stage["estimated"], stage["reported"]
        figures = [(estimated[kind], reported[kind]) for kind in ("reads", "writes")]
        rows.append((stage["name"], *(f"{each:,.0f}" for pair in figures for each in pair), stage["unreported"]))
    used, price, cost = document["used"], document["price"], document["cost"]
    return [
        "",
        "## Units and cost",
        "",
        *_table(("stage", "reads, estimated", "reads, reported", "writes, estimated", "writes, reported", "unreported"), rows),
        "",
        f"DynamoDB reported {used['reads']:,.1f} read and {used['writes']:,.1f} write units. It does not report those of "
        f"refused requests, which are {used['unreported']:,.0f} by our count. At most {used['pending']:,.0f} more may be of requests "
        f"that were under way when their process was killed. The cap was {document['settings']['max_units']:,.0f}.",
        "",
        f"At US$ {price['read']} for a million reads and US$ {price['write']} for a million writes this is US$ "
        f"{cost['used']:.4f}; the estimate was US$ {cost['estimated']:.4f}.",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]
