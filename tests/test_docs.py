"""The documentation: every Python block runs, every public name has its place, every link leads somewhere."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

import pynamo_locking
import pynamo_locking_testing
from benchmarks.pages import filled
from benchmarks.pages import pages as quoting_pages
from benchmarks.pages import read as read_figures
from docs import api_lists
from pynamo_locking import (
    LockableModel,
    NamedLock,
    TransactionTable,
    batches,
    events,
    exceptions,
    inspection,
    intervals,
    recipes,
    transactions,
    unique,
)
from pynamo_locking.contrib import celery, django, fastapi, flask, messages, starlette
from pynamo_locking.exceptions import ConfigurationError
from tests.engines.engine import running
from tests.support.models import declare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.servers import Servers

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
#: The record of decisions is for developers, and not part of the site.
DECISIONS: Final = DOCS / "explanation" / "design-choices.md"
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
SOURCES: Final = [path for package in ("pynamo_locking", "testing") for path in (ROOT / package).rglob("*.py")]
LINK: Final = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
CODE_BLOCK: Final = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
EXAMPLES: Final = Sybil(parsers=[PythonCodeBlockParser()])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def has_examples(page: Path) -> bool:
    return (
        re.search(r"^ *```python|^<!--- invisible-code-block: python", page.read_text(encoding="utf-8"), re.MULTILINE)
        is not None
    )


def pages_with_examples() -> Iterator[Any]:
    """Each page and an engine for it: in memory, or moto where the page itself brings the one in memory.

    None where it brings moto, without what makes ours safe for threads.

    Pages whose examples start another Python are marked.
    """
    for page in filter(has_examples, PAGES):
        text = page.read_text(encoding="utf-8")
        brings_memory = re.search(r"\bMemoryDynamoDB\b|\bmemory_dynamodb\b|\bsimulate\(|\bcheck_global_tables\b", text)
        marks = [pytest.mark.processes] if re.search(r"run_\w+_(?:page|blocks)\(\)", text) else []
        engine = None if "mock_aws" in text else "moto" if brings_memory else "memory"
        yield pytest.param(page, engine, marks=marks, id=name_of(page))


@pytest.mark.parametrize(("page", "engine_name"), list(pages_with_examples()))
def test_the_examples_run(page: Path, engine_name: str | None, servers: Servers) -> None:
    """All blocks of a page, in order, in one namespace; what a page starts, it ends."""
    examples = list(EXAMPLES.parse(page).examples())
    with contextlib.nullcontext() if engine_name is None else running(engine_name, servers):
        for example in examples:
            example.evaluate()
    assert examples


def visible_code(page: str) -> str:
    """The Python blocks of a page, without what HTML hides."""
    visible = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", visible, re.MULTILINE | re.DOTALL))


@functools.cache
def not_installed_with_them() -> list[str]:
    """The modules here that an empty environment lacks after `pip install . ./testing`."""
    found, wanted = set[str](), ["pynamo-locking-testing"]
    while wanted:
        found.add(name := wanted.pop())
        requirements = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
        names = [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
        wanted += {canonicalize_name(each) for each in names} - found
    owners = importlib.metadata.packages_distributions().items()
    return sorted(module for module, names in owners if not found & {canonicalize_name(each) for each in names})


def run_alone(program: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program from standard input with both packages and what pip installs with them; elsewhere, without AWS."""
    missing = f"import sys; sys.modules.update(dict.fromkeys({not_installed_with_them()}))\n"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(directory)}
    command = [sys.executable, "-I", *options, "-"]
    text = missing + program
    return subprocess.run(
        command, input=text, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.processes
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_what_a_stranger_can_see_runs_as_pasted(page: str, tmp_path: Path) -> None:
    """These pages say that their code runs as it stands, where nothing but the two packages was installed."""
    done = run_alone(visible_code(page), tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^```text\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert page != "README.md" or [done.stdout] == said, "what stands below it"


@pytest.mark.processes
def test_the_first_example_is_short_and_can_be_typed_at_the_prompt(tmp_path: Path) -> None:
    """The README's, also at the prompt of a Python older than 3.13, where an empty line ends a class."""
    program = visible_code("README.md")
    assert len([line for line in program.splitlines() if line]) <= 27
    done = run_alone(f"{program}\n", tmp_path, "-i")
    assert re.findall(r"^with.*", done.stdout, re.MULTILINE) == [
        "without_lock 90 1 rejected",
        "with_lock 70 0 rejected",
    ], done.stderr
    assert "Error" not in done.stderr


@pytest.mark.skipif(
    "not on PyPI yet" not in (ROOT / "README.md").read_text(encoding="utf-8"), reason="it has been released"
)
def test_nothing_is_installed_from_the_index() -> None:
    """The package is not there: a command that names it fails, or installs what others have put there."""
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES)}
    command = re.compile(r"pip install [^\n`]*pynamo[-_]locking.*")
    assert {name_of(path): command.findall(text) for path, text in texts.items() if command.search(text)} == {}


def test_no_text_takes_a_lock_for_once() -> None:
    """A lock keeps two runs from overlapping, and no job from being done twice, one run after the other."""
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES)}
    claim = re.compile(r"at most one `?[^.`|\n]*`? runs|must not (?:be done|happen|be touched) twice", re.IGNORECASE)
    assert {name_of(path): claim.findall(text) for path, text in texts.items() if claim.search(text)} == {}


def test_no_example_makes_a_connection() -> None:
    """A transaction needs none, and with a new one takes ten times as long: it connects, and asks for the keys."""
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES) if path != DECISIONS}
    assert [name_of(path) for path, text in texts.items() if re.search(r"\bConnection\(\)", text)] == []


def test_what_we_need_of_dynamodb_is_asked() -> None:
    """Each test that the page names, or a file of them, is one of the contract, which `make aws` sends to AWS."""
    page = (DOCS / "explanation" / "what-we-need-of-dynamodb.md").read_text(encoding="utf-8")
    files = list((ROOT / "tests" / "contract").glob("test_*.py"))
    there = {file.name for file in files}
    there |= {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}
    named = re.findall(r"`(test_[\w.]+)`", page)
    assert len(named) > 15
    assert [name for name in named if name not in there] == []


def test_the_pages_have_examples() -> None:
    """The pages that teach by example are found, and their blocks recognised."""
    found = {name_of(page) for page in PAGES if has_examples(page)}
    taught = {name_of(page) for page in PAGES if "how-to" in page.parts or page.stem in {"README", "tutorial"}}
    assert taught
    assert taught <= found


def public_names() -> Iterator[str]:
    """Yield all that users import, by its full name."""
    ours = (batches, events, exceptions, inspection, intervals, recipes, transactions, unique, pynamo_locking_testing)
    for module in (pynamo_locking, *ours, celery, flask, django, messages, starlette, fastapi):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    yield from (f"pynamo_locking.telemetry.{name}.install" for name in ("logs", "signals", "opentelemetry"))
    yield "pynamo_locking.contrib.django.middleware.LocksMiddleware"


def home_of(name: str) -> str:
    """The name under which the reference has it: frameworks share some classes and functions."""
    name = re.sub(r"contrib\.\w+\.PreconditionRequired", "contrib.flask.PreconditionRequired", name)
    is_shared = name.rpartition(".")[2] in starlette.__all__
    return name.replace("contrib.fastapi", "contrib.starlette") if is_shared else name


def test_each_public_name_stands_in_the_reference() -> None:
    """A page below docs/reference/api has one directive for it, and the overview names it."""
    names = {home_of(name) for name in public_names()}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
    overview = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    directives = Counter(re.findall(r"^\.\. auto\w+:: (\S+)$", pages, re.MULTILINE))
    assert {name: directives[name] for name in names if directives[name] != 1} == {}
    assert [name for name in sorted(names) if f"\n   {name}\n" not in overview] == []


#: What PynamoDB calls, and what only the package itself calls: not for users.
NOT_FOR_USERS: Final = {
    "DoesNotExist",
    "ahead_of",
    "deserialize",
    "find",
    "from_raw_data",
    "get_delete_kwargs_from_instance",
    "get_save_kwargs_from_instance",
    "get_update_kwargs_from_instance",
    "process_exception",
    "serialize",
    "was_evicted",
}


def public_members(of: type) -> Iterator[tuple[type, str]]:
    """What users may call or read of a class, each with the class of this package that defines it."""
    for name in dir(of):
        owner = next(base for base in of.__mro__ if name in vars(base))
        value = vars(owner)[name]
        is_member = isinstance(value, (property, classmethod, staticmethod)) or callable(value)
        is_ours = owner.__module__.startswith("pynamo_locking")
        if is_member and is_ours and not name.startswith("_") and not inspect.isclass(value):
            yield owner, name


def test_each_public_member_stands_in_the_reference() -> None:
    """At a class that has it; an awaited form right after its twin."""
    texts = [page.read_text(encoding="utf-8") for page in api_lists.PAGES]
    documented = [each for text in texts for each in api_lists.documented(text)]
    pages = {thing: listed for _, thing, listed in documented if inspect.isclass(thing)}
    wanted = [(thing, *member) for thing in pages for member in public_members(thing) if member[1] not in NOT_FOR_USERS]
    missing = {
        f"{thing.__name__}.{name}"
        for thing, owner, name in wanted
        if not any(
            name in listed if listed is not None else owner is other
            for other, listed in pages.items()
            if owner in other.__mro__ or other in thing.__mro__
        )
    }
    assert len(wanted) > 100
    assert sorted(missing) == []
    lists = [listed for listed in pages.values() if listed]
    twins = [(each, f"a{each}", listed) for listed in lists for each in listed if f"a{each}" in listed]
    assert len(twins) > 20
    assert [each for each, awaited, listed in twins if listed.index(awaited) != listed.index(each) + 1] == []


@pytest.mark.parametrize("page", api_lists.PAGES, ids=name_of)
def test_a_page_of_the_reference_begins_with_its_names(page: Path) -> None:
    """Each with the first sentence of its docstring, as `python -m docs.api_lists` writes them, before all else."""
    text = page.read_text(encoding="utf-8")
    before, _, _ = text.partition(api_lists.BEGIN)
    assert api_lists.with_list(text) == text, "run `python -m docs.api_lists`"
    assert "\n* `pynamo_locking" in text
    assert "```" not in before
    assert "\n## " not in before


def pages_of_the_site() -> list[Path]:
    """All that a reader can open there, apart from the landing page and what the API leads to."""
    pages = [page for page in PAGES if page.is_relative_to(DOCS) and page != DECISIONS]
    return [page for page in pages if page.name != "index.md" and page.parent.name != "api"]


def test_each_page_can_be_found() -> None:
    """The list of all pages on the landing page names it, and the sidebar too; or the page of internals has both."""
    _, _, listed = (DOCS / "index.md").read_text(encoding="utf-8").partition("<!-- all pages -->")
    listed, _, sidebar = listed.partition("<!-- end of all pages -->")
    internals, _, below = (DOCS / "internals.md").read_text(encoding="utf-8").partition("```{toctree}")
    paths = [page.relative_to(DOCS).with_suffix("").as_posix() for page in pages_of_the_site()]
    places = {
        path: [f"({path}.md)" in listed, f"\n{path}\n" in sidebar, f"({path}.md)" in internals, f"\n{path}\n" in below]
        for path in paths
    }
    once = ([True, True, False, False], [False, False, True, True])
    assert {path: place for path, place in places.items() if place not in once} == {}


def test_a_guide_has_one_name() -> None:
    """The list of all pages has the title of its page, which has the words of its file."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    guides = sorted((DOCS / "how-to").glob("*.md"))
    titles = {page.stem: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in guides}
    assert len(titles) > 40
    assert [stem for stem, title in titles.items() if f"* [{title}](how-to/{stem}.md)" not in index] == []
    other = {
        stem: title
        for stem, title in titles.items()
        if not set(stem.split("-")) <= set(re.findall(r"\w+", title.lower()))
    }
    assert other == {}


def test_every_error_stands_in_the_table_of_errors() -> None:
    """docs/reference/errors.md says of each error what its catcher knows and may do."""
    text = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    assert {name for name in exceptions.__all__ if f"`{name}`" not in text} == set()


def test_every_key_of_meta_stands_in_its_table() -> None:
    """docs/reference/meta.md has a row for each one that the package reads, and for no other; some model has it."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "pynamo_locking").rglob("*.py")))
    read = set(re.findall(r"""getattr\((?:[\w.]+\.Meta|meta|getattr\(\w+, "Meta", None\)), "(\w+)\"""", source))
    pynamodb = {"billing_mode", "read_capacity_units", "region", "host", "table_name", "aws_access_key_id", "__mro__"}
    keys = {*read - pynamodb, "keep_finished_s", "keep_keys_s", "keep_rows_s"}
    table = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference" / "meta.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(keys) > 14
    assert sorted(table) == sorted(keys)
    unheard = set(table)
    for base in (LockableModel, NamedLock, TransactionTable):
        for name in table:
            with contextlib.suppress(ConfigurationError):
                declare("Any", base, **{name: 2_592_000 if name.startswith("keep_") else None})
                unheard.discard(name)
    assert unheard == set()


def test_explanations_and_reference_are_called_by_their_titles() -> None:
    """In the lists of pages, on the landing page and on that of internals."""
    lists = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("index.md", "internals.md"))
    links = re.findall(r"^\* \[(.*)\]\(((?:explanation|reference|benchmarks)/\S+\.md)\)", lists, re.MULTILINE)
    titles = {path: (DOCS / path).read_text(encoding="utf-8").partition("\n")[0] for _, path in links}
    assert len(links) > 20
    assert [(name, titles[path]) for name, path in links if titles[path] != f"# {name}"] == []


def test_links_lead_to_files() -> None:
    """A relative link names a file that exists, and an anchor in it names one of its headings."""
    targets = [(page, link or named) for page in PAGES for link, named in LINK.findall(without_code(page))]
    assert [(name_of(page), target) for page, target in targets if not leads_somewhere(page, target)] == []


@functools.cache
def without_code(page: Path) -> str:
    return CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def test_the_site_does_not_link_to_what_it_leaves_out() -> None:
    """The record of decisions is excluded from the site, so a link to it would lead nowhere."""
    assert f'"{DECISIONS.relative_to(DOCS).as_posix()}"' in (DOCS / "conf.py").read_text(encoding="utf-8")
    assert [name_of(page) for page in pages_of_the_site() if DECISIONS.name in page.read_text(encoding="utf-8")] == []


def leads_somewhere(page: Path, target: str) -> bool:
    if target.startswith(("https://", "http://")):
        return True
    path, _, anchor = unquote(target).partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in anchors(file))


@functools.cache
def anchors(page: Path) -> set[str]:
    """The names GitHub and MyST give to headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", quoting_pages(ROOT), ids=name_of)
def test_figures_of_the_site_are_those_of_the_run(page: Path) -> None:
    """Each table has the figures, of the columns and contenders, that the comment before it names."""
    text, measured = page.read_text(encoding="utf-8"), read_figures(DOCS / "benchmarks" / "measured.json")
    assert filled(text, measured) == text


@pytest.mark.parametrize("page", sorted((DOCS / "benchmarks").glob("*.md")), ids=name_of)
def test_each_table_of_measurements_is_quoted(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- measured: ") == len(re.findall(r"^\| ---", text, re.MULTILINE)) > 0


def test_paths_of_tests_exist() -> None:
    """Where a page or a command names a folder or file of the tests, it is there."""
    path = re.compile(r"(?<![\w/.])tests/(?!engines/node_modules|pynamodb_suite/\.files)[\w/.-]+")
    pages = [*PAGES, ROOT / "Makefile"]
    named = {name_of(page): path.findall(page.read_text(encoding="utf-8")) for page in pages}
    missing = [
        (page, each) for page, paths in named.items() for each in paths if not (ROOT / each.rstrip("./")).exists()
    ]
    assert missing == []
