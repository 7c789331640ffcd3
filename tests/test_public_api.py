"""What users import: complete, documented, typed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from pynamodb.models import Model

import pynamo_locking
import pynamo_locking_testing
from pynamo_locking import batches, exceptions, inspection, intervals, recipes, transactions, unique

pytestmark = pytest.mark.core

#: Where users import from. Each `__all__` is the list of what is public there.
MODULES = (batches, exceptions, inspection, intervals, recipes, transactions, unique)
THINGS = {
    **{name: getattr(module, name) for module in (pynamo_locking, *MODULES) for name in module.__all__},
    **{f"testing.{name}": getattr(pynamo_locking_testing, name) for name in pynamo_locking_testing.__all__},
}
ROOT = Path(pynamo_locking.__file__).parent


def public_functions():
    """Every public function and method of the package with the name it has for users."""
    for name, thing in THINGS.items():
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for base in thing.__mro__:
                if base.__module__.startswith("pynamo_locking"):
                    for member, value in vars(base).items():
                        function = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
                        if not member.startswith("_") and inspect.isfunction(function):
                            yield f"{name}.{member}", function


#: One of each: a method inherited by several public classes counts once.
FUNCTIONS = {function: name for name, function in reversed(list(public_functions()))}


def test_each_name_has_one_home():
    """A name of the package itself is in no module beside it, and each list is in order."""
    assert [name for module in MODULES for name in module.__all__ if hasattr(pynamo_locking, name)] == []
    assert [module.__name__ for module in MODULES if list(module.__all__) != sorted(module.__all__)] == []


@pytest.mark.parametrize("package", [pynamo_locking, pynamo_locking_testing])
def test_nothing_else_is_public(package):
    """What a package imports for itself is private by name, a module, or in `__all__`."""
    others = [
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and name not in package.__all__ and not inspect.ismodule(value)
    ]

    assert others == []


@pytest.mark.parametrize("package", [pynamo_locking, pynamo_locking_testing])
def test_a_star_import_gives_everything(package):
    """And nothing else: a name that is not there is told as by every module."""
    namespace: dict[str, object] = {}
    exec(f"from {package.__name__} import *", namespace)

    assert sorted(namespace.keys() - {"__builtins__"}) == sorted(package.__all__)
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'Lokc'"):
        _ = package.Lokc


def test_every_public_name_is_documented():
    """By a docstring of its own whose first paragraph ends like a sentence."""

    def has_docstring(thing):
        is_own = thing.__doc__ not in [base.__doc__ for base in getattr(thing, "__mro__", ())[1:]]
        return is_own and inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].rstrip().endswith((".", "::", ":"))

    assert [name for name, thing in THINGS.items() if not has_docstring(thing)] == []


def unnamed_arguments(function):
    """The arguments that a docstring does not name, unless it says whose arguments they are."""
    text = inspect.getdoc(function) or ""
    arguments = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    unnamed = [p for p in arguments if not re.search(rf"\b{p}\b", text)]
    refers = re.search(r"[Ss]ee\b|[Tt]he same as|[Aa]rguments( and errors)? are those of|PynamoDB", text)
    return [] if text and (refers or len(arguments) == 1) else unnamed or ([] if text else ["no docstring"])


def test_every_public_method_is_documented():
    """And every argument of its own is named in the text."""
    for_pynamodb = re.compile(r"LockAttribute\.|.*_kwargs_from_instance$")
    missing = {name: unnamed_arguments(function) for function, name in FUNCTIONS.items()}
    assert {name: names for name, names in missing.items() if names and not for_pynamodb.match(name)} == {}


#: Public methods of models and locks that have no awaited form, and why.
NOT_AWAITED = {
    **dict.fromkeys(
        ("locked", "locked_range", "locked_table", "locked_first", "try_locked", "attach"), "for `async with`"
    ),
    **dict.fromkeys(("edit", "once", "lead", "call"), "for `async with`"),
    **dict.fromkeys(("guarded_batch", "batch_write"), "a block in PynamoDB's form, for `asyncio.to_thread`"),
    **dict.fromkeys(("lock_settings", "held_condition", "add_check_to", "before_save"), "no request"),
    **dict.fromkeys(("create_table", "update_ttl"), "before there are tasks, as PynamoDB's"),
    **dict.fromkeys(("deserialize", "from_raw_data", "update_local_version_attribute"), "for PynamoDB"),
    **dict.fromkeys((f"get_{each}_kwargs_from_instance" for each in ("save", "update", "delete")), "for PynamoDB"),
}

#: What a model has its methods from.
MIXINS = pynamo_locking.LockableMixin, pynamo_locking.VersionedMixin, intervals.IntervalMixin


def blocking_methods():
    """Every public method of models and locks that is not an awaited form, with the first class that has it."""
    found = {}
    for path, _ in public_functions():
        owner, _, name = path.rpartition(".")
        thing = THINGS.get(owner)
        if inspect.isclass(thing) and issubclass(thing, (*MIXINS, pynamo_locking.Lock, intervals.Intervals)):
            is_property = isinstance(inspect.getattr_static(thing, name), property)
            is_awaited_form = name.startswith("a") and hasattr(thing, name[1:])
            if not is_property and not is_awaited_form and name not in NOT_AWAITED:
                found.setdefault(name, thing)
    return [pytest.param(owner, name, id=name) for name, owner in found.items()]


@pytest.mark.parametrize(("owner", "name"), blocking_methods())
def test_every_method_that_blocks_has_an_awaited_form(owner, name):
    """With the same arguments, and a docstring that names it. No attribute of a user's model may hide it."""
    blocking, awaited = getattr(owner, name), getattr(owner, f"a{name}")

    assert inspect.iscoroutinefunction(awaited) or inspect.isasyncgenfunction(awaited) or name == "chunks"
    assert [*inspect.signature(awaited).parameters] == [*inspect.signature(blocking).parameters]
    assert f"`{name}`" in awaited.__doc__
    if issubclass(owner, MIXINS) and not issubclass(owner, Model):
        assert f"a{name}" in set().union(*(vars(base).get("_reserved_names", ()) for base in owner.__mro__))


def test_what_has_no_awaited_form_is_there():
    """A reason for a method that is gone, or has an awaited form by now, is none."""
    things = [thing for thing in THINGS.values() if inspect.isclass(thing)]

    assert [name for name in NOT_AWAITED if not any(hasattr(thing, name) for thing in things)] == []
    assert [name for name in NOT_AWAITED if any(hasattr(thing, f"a{name}") for thing in things)] == []


@pytest.mark.parametrize(
    "name", ["LockSettings", "LockAttribute", "Transaction", "testing.ClockView", "testing.VirtualClock"]
)
def test_constructors_are_documented(name):
    """Classes that users make themselves have a section for their arguments, one line each at least."""
    thing = THINGS[name]
    text = inspect.getdoc(thing)
    arguments = [p for p in inspect.signature(thing).parameters if p != "self"]
    section = text.split("Args:\n")[1]

    assert [p for p in arguments if f"\n    {p}: " not in f"\n{section}"] == []
    assert "Raises:" in text


def test_facts_are_documented():
    """Every attribute of a value or an error stands in its docstring."""
    facts = {
        name: [fact for fact in vars(thing).get("__annotations__", {}) if not fact.startswith("_")]
        for name, thing in THINGS.items()
        if inspect.isclass(thing) and (issubclass(thing, (tuple, Exception)) or dataclasses.is_dataclass(thing))
    }
    unnamed = {
        name: [each for each in own if f"    {each}: " not in THINGS[name].__doc__] for name, own in facts.items()
    }

    assert sum(map(bool, facts.values())) > 10
    assert {name: each for name, each in unnamed.items() if each} == {}


def test_annotations_can_be_read():
    """`typing.get_type_hints` works on the values, which tools for serialization need."""
    for thing in (inspection.QueueEntry, pynamo_locking.LockSettings):
        assert typing.get_type_hints(thing)


def test_the_package_is_typed():
    """The marker file is there, and is packaged with the code."""
    assert (ROOT / "py.typed").is_file()


def test_the_version_is_that_of_the_project():
    """The installed metadata carries the version of pyproject.toml."""
    project = ROOT.parent / "pyproject.toml"
    version = re.search(r'^version = "(.+)"$', project.read_text(encoding="utf-8"), re.MULTILINE)[1]

    assert importlib.metadata.version("pynamo-locking") == version
    assert importlib.metadata.metadata("pynamo-locking")["License-Expression"] == "MIT"


@pytest.mark.processes
def test_an_import_does_nothing():
    """Importing the package starts no thread and prints nothing, with every warning an error."""
    script = "import threading, pynamo_locking; print(threading.active_count())"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )

    assert (result.stdout, result.stderr) == ("1\n", "")


@pytest.mark.processes
def test_an_import_loads_what_most_programs_need():
    """A model with a version and a lock: nothing else, and not its events."""
    used = "LockAttribute, LockableModel, VersionAttribute, locked_all"
    script = f"import sys; from pynamo_locking import {used}; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    loaded = set(run.stdout.split())
    folders = {name.split(".")[1] for name in loaded if name.startswith("pynamo_locking.")}
    assert " ".join(sorted(folders)) == "_core _io _items _locks _models _pynamodb _writes exceptions"
    late = ("_core.events", "_models.batch_writes", "_models.unique_audit", "_writes.native_transaction")
    assert loaded.isdisjoint({"asyncio", "difflib", "zoneinfo", *(f"pynamo_locking.{name}" for name in late)})
