"""What import-linter cannot say of the structure of the package; pyproject.toml has the rest, for `make lint`."""

from __future__ import annotations

import ast
import dis
import functools
import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pynamodb.connection import Connection, TableConnection
from pynamodb.models import Model

import pynamo_locking
import pynamo_locking_testing

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.core

ROOT = Path(pynamo_locking.__file__).parent


def modules_in(folder: Path, prefix: str = "") -> dict[str, Path]:
    """The files of a package, by the names of their modules in it."""
    return {prefix + ".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}


#: Of the package, and of its test doubles.
MODULES = {**modules_in(ROOT), **modules_in(Path(pynamo_locking_testing.__file__).parent, "testing.")}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of all modules."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


#: The one module in which conditions and changes are written in DynamoDB's words.
PROTOCOL = "_io.protocol"
#: The one module with PynamoDB's private names.
ADAPTER = "_pynamodb"
#: What the package asks of a model of its own.
DOORS = "_io.model_doors"
#: What gives each simulated process for itself what a real process has for itself.
SIMULATED = "testing._engine.processes"
#: What loads modules when they are first needed, and how many: they would be a third of the package's import.
LATE = {
    "__init__": 1,
    "_io.event_stream": 1,
    "_models.attributes": 1,
    "_models.mixins": 3,
    "_recipes.once": 1,
    "testing.__init__": 1,
    "testing.pytest_plugin": 2,
}


def functions() -> dict[str, int]:
    """The lines of every function, docstring and decorators excepted."""
    lengths = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                documented = ast.get_docstring(node) is not None
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if documented else 0
                lengths[f"{module}.{node.name}:{node.lineno}"] = node.end_lineno - node.lineno + 1 - docstring
    return lengths


def test_no_import_is_hidden() -> None:
    """Neither in a function, nor in `importlib` or `__import__`, but where a module is loaded late on purpose."""
    in_functions = Counter(
        module
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    by_name = Counter(
        module
        for module, tree in trees().items()
        if module.split(".")[0] not in ("cli", "contrib")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    )

    assert in_functions + by_name == LATE


def test_imports_are_absolute() -> None:
    """So that they can be searched for, and moved."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert wrong == []


def test_conditions_are_in_one_module() -> None:
    """All that is written in DynamoDB's words."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in trees().items()
        if module != PROTOCOL
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(("attribute_exists(", "attribute_not_exists(", "SET ", "REMOVE ", "#l."))
    ]

    assert wrong == []


def test_private_names_of_pynamodb_are_in_the_adapter() -> None:
    """One module to change when PynamoDB renames one; `super()` stays where a method is overridden."""
    theirs = {name for each in (Model, Connection, TableConnection) for name in dir(each) if re.match("_[a-z]", name)}
    wrong = [
        f"{module}:{node.lineno}: {node.attr}"
        for module, tree in trees().items()
        if module != ADAPTER and not module.startswith("testing.")  # which stands in the place of PynamoDB's connection
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in theirs
        if ast.unparse(node.value) != "super()"
        if (module, ast.unparse(node)) != ("_models.batch_writes", "self._connection")  # in PynamoDB's own subclass
    ]

    assert wrong == []


def test_work_does_not_ask_who_listens() -> None:
    """A function `to_listeners` does, so that events are told in one line."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "event_stream.listeners"
    ]

    assert wrong == []


def test_no_folder_uses_a_private_name_of_another() -> None:
    """But the doors, adapter and simulator. A name is private to the folders whose classes or modules define it."""
    homes: dict[str, set[str]] = {}
    used = list[tuple[str, str]]()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            name = getattr(node, "name", None) or getattr(node, "attr", None) or getattr(node, "id", None)
            if not isinstance(name, str) or not re.match("_[a-z]", name) or name == "_replace":  # of named tuples
                continue
            is_own = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()")
            if not isinstance(node, ast.Attribute) or is_own:
                homes.setdefault(name, set()).add(module.split(".")[0])
            elif module not in (DOORS, ADAPTER, SIMULATED):
                used.append((module, name))

    assert [each for each in used if each[1] in homes and each[0].split(".")[0] not in homes[each[1]]] == []


def test_each_rule_of_transactions_stands_where_it_is_held() -> None:
    """In a comment at its line, under the number that the page gives it; and no other number."""
    page = ROOT.parent / "docs" / "explanation" / "transactions.md"
    rules = re.findall(r"^\*\*R(\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE)
    said = {
        number
        for path in MODULES.values()
        for comment in re.findall(r"#:? .*", path.read_text(encoding="utf-8"))
        for number in re.findall(r"\bR(\d+): ", comment)
    }

    assert len(rules) == 13
    assert said == set(rules)


CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "popleft", "remove", "setdefault", "update"}


def is_constant(name: str) -> bool:
    return name.isupper() or name == "__all__"


def test_constants_are_not_changed() -> None:
    """So that threads need nothing that guards them."""
    changed = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            is_change = (isinstance(node, ast.Attribute) and node.attr in CHANGES) or (
                isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
            )
            name = node.target if isinstance(node, ast.AugAssign) else node.value if is_change else None
            if isinstance(name, ast.Name) and is_constant(name.id):
                changed.add(f"{module}.{name.id}")

    assert changed == {"_core.values._EXACT"}  # a sum sets flags of its context, which nobody reads


def test_functions_are_short() -> None:
    """Nine of ten have fewer than 30 lines without their docstring, and none more than 60."""
    lengths = functions()
    longer = {name: length for name, length in lengths.items() if length >= 30}

    assert {name: length for name, length in longer.items() if length > 60} == {}
    assert len(longer) <= len(lengths) / 10, longer


def test_modules_are_short() -> None:
    """At most 900 lines: a module is as long as its subject."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}

    assert {name: length for name, length in lengths.items() if length > 900} == {}


def members(of: ast.ClassDef) -> tuple[set[str], list[str]]:
    """The fields that a class declares or sets on itself, and its methods."""
    methods = [node for node in of.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    fields = {
        node.target.id for node in of.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    fields |= {
        name.id
        for node in of.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for node in [node for method in methods for node in ast.walk(method)]:
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_own and isinstance(node.ctx, ast.Store):
            fields.add(node.attr)
    return fields, [method.name for method in methods]


def test_no_class_is_a_machine() -> None:
    """Who opens a class has at most 15 fields and 40 methods in mind."""
    classes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    large = {}
    for each in classes:
        if "Enum" in map(ast.unparse, each.bases):  # its members are no fields
            continue
        fields, methods = members(each)
        if len(fields) > 15 or len(methods) > 40:
            large[each.name] = len(fields), len(methods)
    assert large == {}


def _blocks_of_mutexes(tree: ast.Module) -> list[ast.With]:
    names = r"(self\.)?_(mutex|condition|changed|ended|configuring)"
    blocks = [each for each in ast.walk(tree) if isinstance(each, ast.With)]
    return [each for each in blocks if re.fullmatch(names, ast.unparse(each.items[0]))]


def _jumps_back(node: ast.AST) -> bool:
    """Tell whether it is compiled, here and not in a function, into a loop that jumps back after a condition."""
    match node:
        case ast.For(body=[*_, ast.If()]) | ast.While() | ast.Continue():
            return True
        case ast.Call(func=ast.Name(id="any" | "all" | "tuple"), args=[ast.GeneratorExp()]):  # from 3.14 on
            return True
        case _:
            return isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp))


def test_no_mutex_is_held_where_a_loop_jumps_back_after_a_condition() -> None:
    """CPython 3.12 to 3.14 do not release it if a trace function raises there, as tests of interrupts do."""
    blocks = [(name, block) for name, tree in trees().items() for block in _blocks_of_mutexes(tree)]
    assert blocks
    assert [f"{name}:{each.lineno}" for name, block in blocks for each in ast.walk(block) if _jumps_back(each)] == []


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="compilers before 3.12 forget no jump")
def test_an_interrupt_leaves_no_mutex_held() -> None:
    """CPython 3.12 to 3.14 forget, at a jump back that a condition takes, the block around it: an exception of a
    signal's handler, which may come there, does not release its mutex. So the block of a mutex calls what has such
    loops: a function, or a generator in place of a comprehension.
    """
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        blocks = [(each.body[0].lineno, each.end_lineno or 0) for each in _blocks_of_mutexes(ast.parse(text))]
        for code in _codes(compile(text, str(file), "exec")):
            kept = dis._parse_exception_table(code)  # type: ignore[attr-defined]
            for step in dis.get_instructions(code):
                line = step.positions.lineno if step.positions and step.positions.lineno else 0
                around = [first for first, last in blocks if code.co_firstlineno < first <= line <= last]
                is_kept = any(entry.start <= step.offset < entry.end for entry in kept)
                if step.opname == "JUMP_BACKWARD" and around and not is_kept and code.co_name != "<genexpr>":
                    found.append(f"{file.relative_to(ROOT)}:{line}")
    assert found == []
