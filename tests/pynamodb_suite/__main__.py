"""Runs PynamoDB's own tests: ``python -m tests.pynamodb_suite stock|ours [CHECKOUT]``.

``ours`` exchanges the imports, as a user does who changes over. The files were downloaded by ``make``, see
`requirements`; with the directory of a checkout of PynamoDB its tests are run instead, which are some more.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.engines.servers import Servers
from tests.pynamodb_suite.differences import DIFFERENCES

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
FILES: Final = HERE / ".files"
PACKAGE: Final = "pynamodb_tests"

OURS: Final = {
    ("pynamodb.models", "Model"): "LockableModel",
    ("pynamodb.attributes", "TTLAttribute"): "TTLAttribute",
    ("pynamodb.attributes", "VersionAttribute"): "VersionAttribute",
    ("pynamodb.transactions", "TransactWrite"): "TransactWrite",
}
ENVIRONMENT: Final = {"AWS_ACCESS_KEY_ID": "1", "AWS_SECRET_ACCESS_KEY": "2", "AWS_DEFAULT_REGION": "us-east-1"}


def exchanged(source: str) -> str:
    """Return a module in which our classes are imported over PynamoDB's; no line moves."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            ours = [(OURS.get((str(node.module), name.name)), name.asname or name.name) for name in node.names]
            names = ", ".join(f"{name} as {known}" for name, known in ours if name is not None)
            if names:
                end = lines[node.end_lineno - 1]
                lines[node.end_lineno - 1] = f"{end.rstrip()}; from pynamo_locking import {names}\n"
    return "".join(lines)


def shipped() -> Iterator[tuple[str, str]]:
    """Yield the names and the text of the files that were downloaded, and of ours for those that no archive has."""
    archives = sorted(FILES.glob("pynamodb-*"))
    if not archives:
        sys.exit("PynamoDB's tests are not here: run `make pynamodb-tests`, which downloads them.")
    data, integration, tests = archives  # 3.4.1, 4.3.1, 6.1.0
    with tarfile.open(tests) as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            content = archive.extractfile(member) if path.parent.name == "tests" else None
            if content is not None:
                yield path.name, content.read().decode()
    for path in HERE.joinpath("beside").glob("*.py"):
        yield path.name, path.read_text()
    with zipfile.ZipFile(data) as archive:
        yield "shipped_data.py", archive.read("pynamodb/tests/data.py").decode()
    with zipfile.ZipFile(integration) as archive:
        for name in ("__init__.py", "conftest.py", "test_transaction_integration.py"):
            yield f"integration/{name}", archive.read(f"tests/integration/{name}").decode()


def of_checkout(checkout: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and the text of the files in a checkout of PynamoDB."""
    tests = checkout / "tests"
    for path in tests.rglob("*.py"):
        yield str(path.relative_to(tests)), path.read_text()


def lay_out(target: Path, files: Iterator[tuple[str, str]], *, ours: bool) -> None:
    """Write the files as a package that does not share its name with ours."""
    shutil.rmtree(target, ignore_errors=True)
    for name, source in files:
        path = target / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((exchanged(source) if ours else source).replace("from tests.", f"from {PACKAGE}."))


class Suite:
    """A pytest plugin: starts the server, and expects the differences.

    Args:
        ours: whether it is with our classes.
    """

    def __init__(self, *, ours: bool) -> None:
        self.differences = {one.test: one for one in DIFFERENCES} if ours else {}
        self.servers = Servers()

    def pytest_sessionstart(self) -> None:
        os.environ["PYNAMODB_INTEGRATION_TEST_DDB_URL"] = self.servers["dynamodb-local"].url

    def pytest_sessionfinish(self) -> None:
        self.servers.close()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        tests = {name_of(item): item for item in items}
        modules = {name.partition("::")[0] for name in tests}
        for name, difference in self.differences.items():
            if name in tests:
                tests[name].add_marker(pytest.mark.xfail(reason=difference.reason, strict=True))
            elif name.partition("::")[0] in modules:
                raise pytest.UsageError(f"{name} is in the list of differences, and there is no such test.")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Have a test fail for the reason that is known, and no other."""
        report = yield
        difference = self.differences.get(name_of(item))
        if difference is not None and report.skipped and difference.shows not in str(report.longrepr):
            report.outcome = "failed"
            del report.wasxfail  # with it, pytest would end with 0
            report.sections.append(
                ("differences", f"expected: {difference.reason}. It does not say {difference.shows!r}.")
            )
        return report


def name_of(item: pytest.Item) -> str:
    """Return the module and the name of a test."""
    return item.nodeid.partition(f"{PACKAGE}/")[2]


def main() -> int:
    """Run the tests; return 0 if the result is the expected one."""
    parser = argparse.ArgumentParser(prog="python -m tests.pynamodb_suite", description="Runs PynamoDB's own tests.")
    parser.add_argument("kind", choices=["stock", "ours"], help="with whose classes")
    parser.add_argument("checkout", nargs="?", type=Path, help="a checkout of PynamoDB, instead of the downloads")
    given = parser.parse_args()
    target, ours = FILES / given.kind, given.kind == "ours"
    lay_out(target, of_checkout(given.checkout) if given.checkout else shipped(), ours=ours)
    os.environ.update(ENVIRONMENT)
    options = ["-c", str(HERE / "pytest.ini"), "--rootdir", str(target), "-p", "no:randomly", "-p", "no:cacheprovider"]
    return pytest.main([*options, "--quiet", "-rx", str(target)], plugins=[Suite(ours=ours)])


if __name__ == "__main__":
    sys.exit(main())
