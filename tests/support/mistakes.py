"""Mistakes on purpose: what is right in a file of the package, and what a mistake makes of it.

`planted` changes the code of the running process: each function whose code differs gets the changed code, so wherever
it was imported it has the mistake; a constant is set in each module that has it, with the constants that follow from
it. `copied` changes a copy of the package, for tests that run in a process of their own. The files of the package stay
as they are.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import inspect
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pynamo_locking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(pynamo_locking.__file__).parent


class Change(NamedTuple):
    """A text that is once in a file of the package, and the text of the mistake."""

    file: str
    right: str
    wrong: str


class Mistake(NamedTuple):
    """A mistake by its name, and the test, file or folder below `tests` that has to notice it."""

    name: str
    file: str
    right: str
    wrong: str
    test: str

    @property
    def change(self) -> Change:
        """What it changes."""
        return Change(self.file, self.right, self.wrong)


class NotPlanted(Exception):  # noqa: N818 - says what is wrong with the mistake
    """The mistake cannot be planted as it is written."""


def changed(name: str, changes: Iterable[Change]) -> dict[str, str]:
    """Return the changed text of each file; `NotPlanted` names a mistake whose right text is not there once."""
    texts: dict[str, str] = {}
    for file, right, wrong in changes:
        text = texts.get(file) or (PACKAGE / file).read_text()
        if text.count(right) != 1:
            raise NotPlanted(f"{name!r}: {file} has this {text.count(right)} times, and not once: {right}")
        texts[file] = text.replace(right, wrong)
    return texts


# In a copy


@contextlib.contextmanager
def copied(mistake: Mistake) -> Iterator[Path]:
    """Make a folder with everything that is beside the tests, and with a copy of the package that has the mistake."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for each in ROOT.iterdir():
            if each != PACKAGE:
                (folder / each.name).symlink_to(each)
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        for file, text in changed(mistake.name, [mistake.change]).items():
            (folder / PACKAGE.name / file).write_text(text)
        yield folder


# In this process


@contextlib.contextmanager
def planted(name: str, changes: Iterable[Change]) -> Iterator[list[str]]:
    """Have a mistake in this process for a while; the list gets the errors of code that cannot work."""
    broken = list[str]()
    with contextlib.ExitStack() as undo:
        for file, wrong in changed(name, changes).items():
            module = importlib.import_module(".".join((PACKAGE.name, *Path(file).with_suffix("").parts)))
            before, after = _code_of(module), compile(wrong, str(module.__file__), "exec")
            vars(module)[_NOTE] = functools.partial(_note, broken, module)
            undo.callback(vars(module).pop, _NOTE)
            made = [*_swapped(module, before, after, _noting(wrong, module), undo)]
            if _plain(before, of_module=True) != _plain(after, of_module=True):
                made += _set(module, wrong, undo)
            if not made:
                raise NotPlanted(f"{name!r} changes no function and no constant of {file}")
            _forget(module, undo)
        yield broken


_NOTE: Final = "__note_broken__"
#: What code raises that cannot work: a mistake that does is found by its own error, whatever the tests look at.
_WATCH: Final = f"""
try:
    pass
except (NameError, AttributeError, TypeError) as __error__:
    {_NOTE}(__error__)
    raise
"""


def _note(broken: list[str], module: ModuleType, error: BaseException) -> None:
    """Note an error that a file has raised itself."""
    *_, last = traceback.walk_tb(error.__traceback__)
    if last[0].f_code.co_filename == module.__file__:
        broken.append(repr(error))


def _noting(text: str, module: ModuleType) -> CodeType:
    """Return the code of a file, whose functions note errors of code that cannot work."""
    tree = ast.parse(text)
    for each in ast.walk(tree):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            [watch] = ast.parse(_WATCH).body
            assert isinstance(watch, ast.Try)
            watch.body = each.body
            each.body = [watch]
    return compile(ast.fix_missing_locations(tree), str(module.__file__), "exec")


@functools.cache
def _code_of(module: ModuleType) -> CodeType:
    return compile(inspect.getsource(module), str(module.__file__), "exec")


def _swapped(
    module: ModuleType, before: CodeType, after: CodeType, noting: CodeType, undo: contextlib.ExitStack
) -> Iterator[str]:
    """Swap the code of the functions whose code differs for the noting one, and yield their names."""
    live = _live(module)
    for old, plain, new in zip(_outermost(before), _outermost(after), _outermost(noting), strict=True):
        if _plain(old) == _plain(plain):
            continue
        pairs = zip(_nested(old), _nested(new), strict=False)  # those that a decorator has made are live, too
        same = [(of, to) for of, to in pairs if of.co_name == to.co_name]
        swaps = [(each, to) for of, to in same for each in live.get((of.co_name, of.co_firstlineno), ())]
        if not swaps:
            raise NotPlanted(f"{old.co_name} of {module.__name__} is not to be found")
        for each, code in swaps:
            undo.callback(setattr, each, "__code__", each.__code__)
            each.__code__ = code
        yield old.co_name


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module, and those of its classes."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from [each] if each.co_flags & inspect.CO_OPTIMIZED else _outermost(each)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _plain(code: CodeType, *, of_module: bool = False) -> tuple[Any, ...]:
    """Return what a function does, wherever it stands; or a module, apart from its functions and classes."""
    inner = [] if of_module else [_plain(each) for each in code.co_consts if isinstance(each, CodeType)]
    consts = [(type(each), each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, consts, inner, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


_HOLDERS: Final = (type, property, classmethod, staticmethod, CellType, functools.partial, tuple, list, dict)
_CACHE: Final = type(functools.cache(len))


def _live(module: ModuleType) -> dict[tuple[str, int], list[FunctionType]]:
    """Return the functions of a module's file by name and line, those in classes, decorators and closures as well."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    seen, left = set[int](), [*vars(module).values()]
    while left:
        each = left.pop()
        if id(each) in seen or (isinstance(each, type) and each.__module__ != module.__name__):
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            if each.__code__.co_filename == module.__file__:
                found.setdefault((each.__code__.co_name, each.__code__.co_firstlineno), []).append(each)
            left += [*(each.__closure__ or ()), *vars(each).values()]
        elif isinstance(each, (*_HOLDERS, _CACHE)):
            left += gc.get_referents(each)
    return found


def _set(module: ModuleType, wrong: str, undo: contextlib.ExitStack) -> Iterator[str]:
    """Set the constants that differ, then those made of them, wherever they were imported; yield their names."""
    names = set[str]()
    for old, new in zip(ast.parse(inspect.getsource(module)).body, ast.parse(wrong).body, strict=True):
        if not isinstance(new, (ast.Assign, ast.AnnAssign)) or new.value is None:
            continue
        read = {each.id for each in ast.walk(new.value) if isinstance(each, ast.Name)}
        if ast.dump(old) == ast.dump(new) and not read & names:
            continue
        made: dict[str, Any] = {}
        statement = ast.Module([new], [])
        exec(compile(statement, str(module.__file__), "exec"), vars(module), made)
        for name, value in made.items():
            before = vars(module)[name]
            for each in [each for name, each in sys.modules.items() if name.startswith("pynamo_locking")]:
                if vars(each).get(name) is before:
                    undo.callback(setattr, each, name, before)
                    setattr(each, name, value)
            names.add(name)
            yield name


def _forget(module: ModuleType, undo: contextlib.ExitStack) -> None:
    """Let cached functions of a module forget what they have returned, now and afterwards."""
    for each in vars(module).values():
        if isinstance(each, _CACHE):
            undo.callback(each.cache_clear)
            each.cache_clear()
