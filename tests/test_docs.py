"""The documentation: every Python block runs, every public name has its place, every link leads somewhere."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

import pynamo_locking
from certify import contract
from pynamo_locking import (
    batches,
    events,
    exceptions,
    inspection,
    intervals,
    recipes,
    testing,
    transactions,
    unique,
)
from pynamo_locking._core.transactions import RetentionTimes
from pynamo_locking.contrib import celery, django, fastapi, flask, messages, starlette, streams
from tests.engines.engine import DUMMY_ENVIRONMENT, moto_one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
#: The record of decisions is for developers, and not part of the site.
DECISIONS: Final = DOCS / "explanation" / "design-choices.md"
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "tests").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
LINK: Final = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
CODE_BLOCK: Final = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
EXAMPLES: Final = Sybil(parsers=[PythonCodeBlockParser()])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def has_examples(page: Path) -> bool:
    return re.search(r"^ *```python|^<!--- invisible-code-block: python", page.read_text(), re.MULTILINE) is not None


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty DynamoDB in this process."""
    for name, value in DUMMY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with moto_one_at_a_time():
        yield


@pytest.mark.usefixtures("moto")
@pytest.mark.parametrize("page", [page for page in PAGES if has_examples(page)], ids=name_of)
def test_the_examples_run(page: Path) -> None:
    """All blocks of a page, in order, in one namespace; what a page starts, it ends."""
    document = EXAMPLES.parse(page)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    assert examples


def visible_code(page: str) -> str:
    """The Python blocks of a page, without what HTML hides."""
    visible = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", visible, re.MULTILINE | re.DOTALL))


@functools.cache
def not_installed_with_the_package() -> list[str]:
    """The modules here that an empty environment lacks after `pip install .`."""
    found, wanted = set[str](), ["pynamo-locking"]
    while wanted:
        found.add(name := wanted.pop())
        requirements = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
        names = [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
        wanted += {canonicalize_name(each) for each in names} - found
    owners = importlib.metadata.packages_distributions().items()
    return sorted(module for module, names in owners if not found & {canonicalize_name(each) for each in names})


def run_alone(program: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program from standard input with this package and what pip installs with it; elsewhere, and without AWS."""
    missing = f"import sys; sys.modules.update(dict.fromkeys({not_installed_with_the_package()}))\n"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(directory)}
    command = [sys.executable, "-I", *options, "-"]
    text = missing + program
    return subprocess.run(
        command, input=text, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_what_a_stranger_can_see_runs_as_pasted(page: str, tmp_path: Path) -> None:
    """These pages say that their code runs as it stands, where nothing but the package was installed."""
    done = run_alone(visible_code(page), tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^```text\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert page != "README.md" or [done.stdout] == said, "what stands below it"


def test_the_first_example_is_short_and_can_be_typed_at_the_prompt(tmp_path: Path) -> None:
    """The README's, also at the prompt of a Python older than 3.13, where an empty line ends a class."""
    program = visible_code("README.md")
    assert len([line for line in program.splitlines() if line]) <= 27
    done = run_alone(f"{program}\n", tmp_path, "-i")
    assert re.findall(r"^with.*", done.stdout, re.MULTILINE) == ["without_lock 90", "with_lock 80"], done.stderr
    assert "Error" not in done.stderr


@pytest.mark.skipif("not on PyPI yet" not in (ROOT / "README.md").read_text(), reason="it has been released")
def test_nothing_is_installed_from_the_index() -> None:
    """The package is not there: a command that names it fails, or installs what others have put there."""
    texts = {path: path.read_text() for path in (*PAGES, *(ROOT / "pynamo_locking").rglob("*.py"))}
    command = re.compile(r"pip install [^\n`]*pynamo[-_]locking.*")
    assert {name_of(path): command.findall(text) for path, text in texts.items() if command.search(text)} == {}


def test_no_text_takes_a_lock_for_once() -> None:
    """A lock keeps two runs from overlapping, and no job from being done twice, one run after the other."""
    texts = {path: path.read_text() for path in (*PAGES, *(ROOT / "pynamo_locking").rglob("*.py"))}
    claim = re.compile(r"at most one `?[^.`|\n]*`? runs|must not (?:be done|happen|be touched) twice", re.IGNORECASE)
    assert {name_of(path): claim.findall(text) for path, text in texts.items() if claim.search(text)} == {}


def test_the_pages_have_examples() -> None:
    """The pages that teach by example are found, and their blocks recognised."""
    found = {name_of(page) for page in PAGES if has_examples(page)}
    taught = {name_of(page) for page in PAGES if "how-to" in page.parts or page.stem in {"README", "tutorial"}}
    assert taught
    assert taught <= found


def public_names() -> Iterator[str]:
    """Yield all that users import, by its full name."""
    ours = (batches, events, exceptions, inspection, intervals, recipes, testing, transactions, unique)
    for module in (pynamo_locking, *ours, celery, flask, django, messages, starlette, fastapi, streams):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    yield from (f"pynamo_locking.telemetry.{name}.install" for name in ("logs", "signals", "opentelemetry"))
    yield "pynamo_locking.contrib.django.middleware.LocksMiddleware"


@pytest.mark.parametrize("name", list(public_names()))
def test_a_public_name_stands_in_the_reference(name: str) -> None:
    """A page below docs/reference/api has a directive for it, and the overview names it."""
    # The same classes and functions.
    name = re.sub(r"contrib\.\w+\.PreconditionRequired", "contrib.flask.PreconditionRequired", name)
    if name.rpartition(".")[2] in starlette.__all__:
        name = name.replace("contrib.fastapi", "contrib.starlette")
    pages = (DOCS / "reference" / "api").glob("*.md")
    assert sum(len(re.findall(rf"^\.\. auto\w+:: {name}$", page.read_text(), re.MULTILINE)) for page in pages) == 1
    assert f"\n   {name}\n" in (DOCS / "reference" / "api.md").read_text()


def pages_of_the_site() -> list[Path]:
    """All that a reader can open there, apart from the landing page and what the API and the runs on AWS lead to."""
    pages = [page for page in PAGES if page.is_relative_to(DOCS) and page != DECISIONS]
    return [page for page in pages if page.name != "index.md" and page.parent.name not in ("api", "certified")]


@pytest.mark.parametrize("page", pages_of_the_site(), ids=name_of)
def test_a_page_can_be_found(page: Path) -> None:
    """The list of all pages on the landing page names it, and the sidebar too; or the page of internals has both."""
    path = page.relative_to(DOCS).with_suffix("").as_posix()
    _, _, listed = (DOCS / "index.md").read_text().partition("<!-- all pages -->")
    listed, _, sidebar = listed.partition("<!-- end of all pages -->")
    internals, _, below_internals = (DOCS / "internals.md").read_text().partition("```{toctree}")
    found = [f"({path}.md)" in listed, f"({path}.md)" in internals]
    assert found == [f"\n{path}\n" in sidebar, f"\n{path}\n" in below_internals]
    assert sum(found) == 1


def test_every_error_stands_in_the_table_of_errors() -> None:
    """docs/reference/errors.md says of each error what its catcher knows and may do."""
    text = (DOCS / "reference" / "errors.md").read_text()
    assert {name for name in exceptions.__all__ if f"`{name}`" not in text} == set()


def test_every_key_of_meta_stands_in_its_table() -> None:
    """docs/reference/meta.md has a row for each one that the package reads, and for no other."""
    source = "".join(path.read_text() for path in sorted((ROOT / "pynamo_locking").rglob("*.py")))
    read = set(re.findall(r"""getattr\((?:[\w.]+\.Meta|meta|getattr\(\w+, "Meta", None\)), "(\w+)\"""", source))
    pynamodb = {"billing_mode", "read_capacity_units", "region", "host", "table_name", "__mro__"}
    keys = {*read - pynamodb, *RetentionTimes._fields}
    table = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference" / "meta.md").read_text(), re.MULTILINE)
    assert len(keys) > 14
    assert sorted(table) == sorted(keys)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    """A relative link names a file that exists, and an anchor in it names one of its headings."""
    text = CODE_BLOCK.sub("", page.read_text())
    targets = [first or second for first, second in LINK.findall(text)]
    assert [target for target in targets if not leads_somewhere(page, target)] == []


def test_the_site_does_not_link_to_what_it_leaves_out() -> None:
    """The record of decisions is excluded from the site, so a link to it would lead nowhere."""
    assert f'"{DECISIONS.relative_to(DOCS).as_posix()}"' in (DOCS / "conf.py").read_text()
    assert [name_of(page) for page in pages_of_the_site() if DECISIONS.name in page.read_text()] == []


def leads_somewhere(page: Path, target: str) -> bool:
    if target.startswith(("https://", "http://")):
        return True
    path, _, anchor = unquote(target).partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in anchors(file))


def anchors(page: Path) -> set[str]:
    """The names GitHub and MyST give to headings."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# Promises, and the tests that hold them

PROMISES: Final = (DOCS / "explanation" / "guarantees.md").read_text()
HELD: Final = (ROOT / "tests" / "promises.md").read_text()
#: For each part of the guarantees, words of a promise and the cell with its tests.
ROWS: Final = {
    heading: re.findall(r"^\| (.+?) \| (`.+) \|$", rows, re.MULTILINE)
    for heading, rows in re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", HELD, re.MULTILINE | re.DOTALL)
}


@pytest.mark.parametrize("part", ["Locks", "Versions", "Transactions", "Intervals", "Calls", "Unique values", "Expiry"])
def test_every_promise_names_its_tests(part: str) -> None:
    """Each sentence of a promise and each fault; and nothing is named that is not promised."""
    text = re.search(rf"^## {part}\n(.*?)(?=^## )", PROMISES, re.MULTILINE | re.DOTALL)
    assert text
    promises = re.findall(r"^\d+\. (.*)$", text[1], re.MULTILINE) or text[1].strip().splitlines()[:1]
    without_titles = [re.sub(r"\*\*[^*]*\*\*,? ?", "", promise) for promise in promises]
    sentences = [each for promise in without_titles for each in re.split(r"(?<=\.) +", promise)]
    faults = [each for each in re.findall(r"^\| ([^|]+?) \|", text[1], re.MULTILINE) if each != "fault"]
    promised = [*sentences, *faults]
    quotes = [quote for quote, _ in ROWS[part]]
    assert [each for each in promised if not any(quote in each for quote in quotes)] == []
    assert [quote for quote in quotes if not any(quote in each for each in promised)] == []


@functools.cache
def walks() -> dict[str, list[str]]:
    """Return the modules that each call enters: in a process of its own, which has no warm caches."""
    command = [sys.executable, "-m", "tests.support.walks"]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("part", "call"), [("save", "item.save()"), ("edit", "with Model.edit"), ("commit", "A trans")]
)
def test_the_life_of_a_write_is_as_it_runs(part: str, call: str) -> None:
    """The page names the modules that each call enters, in their order."""
    text = (DOCS / "explanation" / "life-of-a-write.md").read_text()
    [section] = [each for each in text.split("\n## ") if each.removeprefix("`").startswith(call)]
    walked = [f"{module.replace('.', '/')}.py" for module in walks()[part]]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    assert [module for row in rows for module in re.findall(r"`(\S+\.py)`", row)] == walked


#: The tests that are made of what `python -m certify` asks.
CERTIFIED: Final = {f"test_{name}" for module in contract.MODULES for name in contract.checks_of(module)}


def missing_tests(cells: Iterable[str]) -> list[str]:
    """The tests that cells name, each after its file, and that are not there; found by reading the files."""
    missing = []
    for cell in cells:
        path, names = ROOT, set[str]()
        for name in re.findall(r"`([^`]+)`", cell):
            if name.endswith(".py"):
                path = ROOT / "tests" / name
                tree = ast.parse(path.read_text() if path.exists() else "")
                names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
                names |= {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}
                names |= CERTIFIED if name == "contract/test_certified.py" else set()
            elif name not in names:
                missing.append(f"{path}::{name}")
    return missing


def test_the_tests_that_hold_promises_exist() -> None:
    """A misspelt, moved or deleted one is found here."""
    cells = [cell for rows in ROWS.values() for _, cell in rows]
    assert missing_tests(cells) == []
    assert "".join(cells).count("`test_") > 100


def test_what_we_need_of_dynamodb_has_its_tests() -> None:
    """Each need has a row, or says that it is not tested; no row is about anything else."""
    text = (DOCS / "explanation" / "what-we-need-of-dynamodb.md").read_text()
    needs = re.findall(r"^### (\d+)\. |^\| \*\*(\d+)\. (.*)$", text, re.MULTILINE)
    tested = [section or row for section, row, said in needs if not said.endswith("Not tested |")]
    assert [int(section or row) for section, row, _ in needs] == list(range(1, 17))
    assert [need for need, _ in ROWS["What we need of DynamoDB"]] == tested


# The texts that the project comes from

#: Section, feature, where, and tests: for each text its rows.
SEEDS: Final = {
    number: re.findall(r"^\| (?!section |---)([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", rows, re.MULTILINE)
    for number, rows in re.findall(
        r"^## Seed (\d+)\n(.*?)(?=^## |\Z)",
        (ROOT / "tests" / "seeds.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
}


@pytest.mark.parametrize("number", ["000", "001", "002", "003", "004"])
def test_every_feature_of_a_seed_has_its_place_and_its_tests(number: str) -> None:
    """Each row links to a page, and names tests that exist."""
    rows = SEEDS[number]
    assert len(rows) >= 9
    assert [feature for _, feature, where, _ in rows if "](" not in where] == []
    assert [feature for _, feature, _, cell in rows if not re.match(r"`\S+\.py`: `test_", cell)] == []
    assert missing_tests(cell for *_, cell in rows) == []


def test_every_example_of_a_seed_is_listed() -> None:
    """The page names each test that is called after a text."""
    files = (ROOT / "tests" / "integration").rglob("test_*.py")
    tests = {test for file in files for test in re.findall(r"^def (test_seed_\w+)", file.read_text(), re.MULTILINE)}
    cells = "".join(cell for rows in SEEDS.values() for *_, cell in rows)
    assert tests
    assert {test for test in tests if f"`{test}`" not in cells} == set()


@pytest.mark.parametrize("page", sorted((DOCS / "benchmarks").glob("*.md")), ids=name_of)
def test_figures_of_the_site_are_those_of_the_results(page: Path) -> None:
    """Each row of figures is a part of a row of the file that `--publish` writes: a new run needs a new digest."""
    results = (ROOT / "benchmarks" / "results" / page.name).read_text()
    published = [set(re.split(r" *\| *", row)) for row in re.findall(r"^\| (.*) \|$", results, re.MULTILINE)]
    rows = re.findall(r"^\| (.*) \|$", page.read_text(), re.MULTILINE)
    digests = [row.split(" | ") for row in rows if re.search(r"\d", row.partition(" | ")[2])]
    assert digests
    assert [row for row in digests if not any(set(row) <= other for other in published)] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Makefile"], ids=name_of)
def test_paths_of_tests_exist(page: Path) -> None:
    """Where a page or a command names a folder or file of the tests, it is there."""
    paths = re.findall(r"(?<![\w/.])tests/(?!engines/node_modules|pynamodb_suite/\.files)[\w/.-]+", page.read_text())
    assert [path for path in paths if not (ROOT / path.rstrip("./")).exists()] == []
