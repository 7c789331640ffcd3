"""Where the tables are: options, environment variables, then ``[tool.pynamo-locking]`` of ``pyproject.toml``."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url

from pynamo_locking.cli.problems import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX: Final = "PYNAMO_LOCKING_"
SECTION: Final = "pynamo-locking"

#: The name of the section, in any of the forms that TOML allows, but not as a dependency, for example. Without it the
#: file is not parsed: Python 3.10 has no parser.
_HEADING: Final = re.compile(
    rb"""^\s*\[?\[?\s*(["']?)tool\1\s*\.\s*(["']?)pynamo-locking\2\s*[\].=]|^\s*(["']?)pynamo-locking\3\s*[.=]""",
    re.MULTILINE,
)

#: A profile replaces these: botocore would prefer them to a profile named by the environment.
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Settings:
    """Where the tables are, and how to reach them."""

    region: str | None = None  # None for that of the profile or of AWS_DEFAULT_REGION
    profile: str | None = None  # None for botocore's usual search
    endpoint: str | None = None  # of another DynamoDB, such as an emulator
    table: str | None = None  # of locks, or of the model whose items carry them
    transaction_table: str | None = None
    log_file: str | None = None  # to which warnings, and every lock that is broken, are appended


NAMES: Final = tuple(field.name for field in fields(Settings))


def load(options: Mapping[str, str | None], folder: Path | None = None) -> Settings:
    """Return the settings: each from an option, else from its variable, else from ``pyproject.toml`` in the folder.

    Raises:
        Problem: the file cannot be read, or has an unknown setting.
    """
    written = _from_file((Path() if folder is None else folder) / "pyproject.toml")
    chosen = {
        name: options.get(name) or os.environ.get(PREFIX + name.upper()) or written.get(name.replace("_", "-"))
        for name in NAMES
    }
    settings = Settings(**chosen)
    if settings.endpoint is not None and not _is_url(settings.endpoint):
        raise usage(f"the endpoint {settings.endpoint!r} is no URL: it is like http://localhost:8000.")
    return settings


def _is_url(text: str) -> bool:
    """Tell whether botocore takes that as an endpoint; it would say no with a ValueError."""
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False
    return is_complete and bool(is_valid_endpoint_url(text) or is_valid_ipv6_endpoint_url(text))


def _from_file(path: Path) -> dict[str, str]:
    try:
        path = path.absolute()  # the working directory may have been deleted
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}.") from error
    if not _HEADING.search(content):
        return {}
    found = _section(_parsed(path, content))
    if not isinstance(found, dict):
        raise usage(f"{path}: tool.{SECTION} must be a table of settings, as in [tool.{SECTION}].")
    known = {name.replace("_", "-") for name in NAMES}
    unknown = sorted(found.keys() - known)
    if unknown:
        raise usage(
            f"{path} has {unknown[0]!r} in [tool.{SECTION}], which is not known. Known are: {', '.join(sorted(known))}."
        )
    wrong = sorted(name for name, value in found.items() if not isinstance(value, str))
    if wrong:
        raise usage(f"{path}: {wrong[0]} in [tool.{SECTION}] must be a string.")
    return dict(found)


def _section(document: Mapping[str, Any]) -> Any:
    tool = document.get("tool", {})
    return tool.get(SECTION, {}) if isinstance(tool, dict) else {}


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    parser = _toml_parser(path)
    try:
        document: dict[str, Any] = parser.loads(content.decode())
    except ValueError as error:  # both of TOML and of UTF-8
        raise usage(f"{path} cannot be read: {error}.") from error
    return document


def _toml_parser(path: Path) -> Any:
    for name in ("tomllib", "tomli"):  # the first one is part of Python since 3.11
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise Problem(
        "no_toml",
        f"{path} has a section [tool.{SECTION}], and this Python cannot read TOML: pip install tomli, use Python 3.11 "
        f"or newer, or set the {PREFIX}... variables and delete the section.",
        Exit.USAGE,
    )


@contextlib.contextmanager
def profile_in_use(profile: str | None) -> Iterator[None]:
    """Let botocore use a profile in all threads of this process, rather than keys from the environment."""
    if profile is None:
        yield
        return
    before = {name: os.environ.pop(name, None) for name in ("AWS_PROFILE", *_KEYS)}
    os.environ["AWS_PROFILE"] = profile
    try:
        yield
    finally:
        del os.environ["AWS_PROFILE"]
        os.environ.update({name: value for name, value in before.items() if value is not None})
