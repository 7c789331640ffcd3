"""The layers of the package, read from its source: imports go downwards, the outside world stays in `_io`."""

from __future__ import annotations

import ast
from pathlib import Path

import pynamo_locking

ROOT = Path(pynamo_locking.__file__).parent
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}

#: From the top down; those in one line do not know of each other.
LAYERS = [
    ["__main__"],
    ["cli", "contrib"],
    ["testing"],
    ["__init__"],
    ["telemetry"],
    ["running", "intervals"],
    ["_intervals"],
    ["transactions", "recovery"],
    ["querying"],
    ["members"],
    ["terms"],
    ["named", "transaction_table"],
    ["models"],
    ["aio", "awaitable"],
    ["contexts", "versioned", "expiring"],
    ["batches"],
    ["transact_write"],
    ["guarded"],
    ["reads"],
    ["placement"],
    ["locks"],
    ["attributes", "tables", "events"],
    ["_io"],
    ["_core"],
    ["_expressions"],
    ["exceptions"],
]
#: Programs and frameworks around the library: they live in the outside world, and need an extra to be imported.
EDGE = ("cli", "contrib")
#: Besides `_io`: where the in-memory database meets botocore, and the threads of the virtual clock.
TEST_WORLD = {"testing._botocore", "testing._timeline"}
OUTSIDE_WORLD = {
    *("time", "threading", "random", "secrets", "uuid", "socket", "asyncio", "botocore", "boto3"),
    "pynamodb.connection",
}


def layer(module: str) -> int:
    top = module.partition(".")[0]
    return next(i for i, names in enumerate(LAYERS) if top in names)


def imports(tree: ast.AST) -> set[str]:
    """What a module imports at run time: everything outside of `if TYPE_CHECKING:`."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return set().union(*map(imports, tree.orelse))
    if isinstance(tree, ast.Import):
        return {alias.name for alias in tree.names}
    if isinstance(tree, ast.ImportFrom):
        assert tree.level == 0, "imports are absolute"
        return {f"{tree.module}.{alias.name}" for alias in tree.names} | {str(tree.module)}
    return set().union(*map(imports, ast.iter_child_nodes(tree)))


def own_imports(tree: ast.AST) -> set[str]:
    inner = {name.removeprefix("pynamo_locking.") for name in imports(tree) if name.startswith("pynamo_locking.")}
    folders = ("_io", "_core", "_expressions", "_intervals")
    return {name for name in inner if name in MODULES or name.split(".")[0] in folders}


def functions() -> dict[str, int]:
    """The lines of every function, docstring and decorators excepted."""
    lengths = {}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                documented = ast.get_docstring(node) is not None
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if documented else 0
                lengths[f"{module}.{node.name}:{node.lineno}"] = node.end_lineno - node.lineno + 1 - docstring
    return lengths


def test_every_module_has_a_layer() -> None:
    """A new module has to be given its place here."""
    known = {name for names in LAYERS for name in names}

    assert {module.split(".")[0] for module in MODULES} <= known


def test_imports_go_downwards() -> None:
    """No module imports one above it, nor a neighbour in its line, at run time."""
    wrong = [
        f"{module} imports {name}"
        for module, tree in TREES.items()
        for name in own_imports(tree)
        if layer(name) < layer(module) or (layer(name) == layer(module) and name.split(".")[0] != module.split(".")[0])
    ]

    assert wrong == []


def test_no_import_is_hidden_in_a_function() -> None:
    """A circle of imports would be."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]

    assert wrong == []


def test_the_outside_world_is_in_io() -> None:
    """Clocks, threads, randomness and botocore are imported under `_io` only, and in two places for tests."""
    wrong = [
        f"{module} imports {name}"
        for module, tree in TREES.items()
        if not module.startswith(("_io.", *EDGE)) and module not in TEST_WORLD
        for name in imports(tree)
        if any(name == outside or name.startswith(f"{outside}.") for outside in OUTSIDE_WORLD)
    ]

    assert wrong == []


def test_clocks_and_threads_are_in_the_runtime() -> None:
    """Only `runtime` has them, so that a test can replace them in one place, and the virtual clock that does so."""
    clocks = {"time", "threading", "random", "secrets", "socket", "os"}
    inner = {module: tree for module, tree in TREES.items() if not module.startswith(EDGE)}
    found = {module: clocks & imports(tree) for module, tree in inner.items() if clocks & imports(tree)}

    assert found.keys() == {"_io.runtime", "testing._timeline"}, found
    assert found["testing._timeline"] == {"threading", "time"}


def test_nothing_of_the_package_needs_its_tests() -> None:
    """Who does not test does not load `testing`."""
    wrong = [
        f"{module} imports {name}"
        for module, tree in TREES.items()
        if not module.startswith("testing")
        for name in imports(tree)
        if name.startswith("pynamo_locking.testing")
    ]

    assert wrong == []


#: What pure code imports, besides itself and the exceptions.
PURE = {"__future__", "dataclasses", "datetime", "decimal", "enum", "hashlib", "math", "typing", "urllib"}


def impure(package: str, allowed: set[str], own: tuple[str, ...]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, tree in TREES.items()
        if module.split(".")[0] == package
        for name in imports(tree)
        if name.split(".")[0] not in allowed and not name.startswith(tuple(f"pynamo_locking.{each}" for each in own))
    ]


def test_the_core_is_pure() -> None:
    """`_core` neither logs nor knows PynamoDB, nor anything of the package but itself and what is below it."""
    assert impure("_core", PURE, ("_core", "_expressions", "exceptions")) == []


def test_the_expressions_are_pure() -> None:
    """`_expressions` knows nothing but itself: the same text and item give the same answer, wherever it runs."""
    tools = {"__future__", "dataclasses", "decimal", "functools", "itertools", "marshal", "operator", "re", "typing"}

    assert impure("_expressions", tools, ("_expressions",)) == []


#: The requests of locks, of transactions' own rows, and of the marks that transactions leave on items.
REQUESTS = {"_io.requests", "_io.header_rows", "_io.headers", "_io.marks"}


def test_condition_text_is_in_requests() -> None:
    """Hand-written expressions stand in the modules that make requests by hand."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in TREES.items()
        if module not in REQUESTS
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(("attribute_exists(", "attribute_not_exists(", "SET ", "REMOVE ", "#l"))
    ]

    assert wrong == []


def test_functions_are_short() -> None:
    """Nine of ten have fewer than 30 lines without their docstring, and none more than 60."""
    lengths = functions()
    longer = {name: length for name, length in lengths.items() if length >= 30}

    assert {name: length for name, length in longer.items() if length > 60} == {}
    assert len(longer) <= len(lengths) / 10, longer


def test_modules_are_short() -> None:
    """At most 500 lines."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}

    assert {name: length for name, length in lengths.items() if length > 500} == {}
