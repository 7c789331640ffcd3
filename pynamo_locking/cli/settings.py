"""Where the tables are: options, environment variables, then ``[tool.pynamo-locking]`` of ``pyproject.toml``."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.cli.problems import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX: Final = "PYNAMO_LOCKING_"
SECTION: Final = "pynamo-locking"

#: Whose place a profile takes: botocore would prefer them to a profile named by the environment.
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Settings:
    """Where the tables are, and how to reach them.

    Attributes:
        region: AWS Region; None for that of the profile or of ``AWS_DEFAULT_REGION``.
        profile: of the AWS configuration; None for botocore's usual search.
        endpoint: URL of another DynamoDB, such as an emulator.
        table: of locks, or of the model whose items carry them.
        transaction_table: of transactions.
        log_file: to which warnings, and every lock that is broken, are appended.
    """

    region: str | None = None
    profile: str | None = None
    endpoint: str | None = None
    table: str | None = None
    transaction_table: str | None = None
    log_file: str | None = None


NAMES: Final = tuple(field.name for field in fields(Settings))


def load(options: Mapping[str, str | None], folder: Path | None = None) -> Settings:
    """Return the settings: each from an option, else from its variable, else from the file.

    Args:
        options: by name of the setting; None where the option was not given.
        folder: with the ``pyproject.toml``; the working directory unless given.

    Raises:
        Problem: the file cannot be read, or has a setting that nobody knows.
    """
    file = Path.cwd() if folder is None else folder
    written = _from_file(file / "pyproject.toml")
    chosen = {
        name: options.get(name) or os.environ.get(PREFIX + name.upper()) or written.get(name.replace("_", "-"))
        for name in NAMES
    }
    settings = Settings(**chosen)
    if settings.endpoint is not None and not settings.endpoint.startswith(("http://", "https://")):
        raise usage(f"the endpoint {settings.endpoint!r} is no URL: it begins with http:// or https://.")
    return settings


def _from_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    content = path.read_bytes()
    if f"tool.{SECTION}".encode() not in content:
        return {}
    found: Mapping[str, Any] = _parsed(path, content).get("tool", {}).get(SECTION, {})
    known = {name.replace("_", "-") for name in NAMES}
    unknown = sorted(found.keys() - known)
    if unknown:
        raise usage(
            f"{path} has {unknown[0]!r} in [tool.{SECTION}], which nobody knows. Known are: {', '.join(sorted(known))}."
        )
    wrong = sorted(name for name, value in found.items() if not isinstance(value, str))
    if wrong:
        raise usage(f"{path}: {wrong[0]} in [tool.{SECTION}] must be a string.")
    return dict(found)


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
