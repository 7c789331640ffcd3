"""The command line without a table: help, settings, errors, output, and what needs no DynamoDB."""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ProfileNotFound,
)
from pynamodb.exceptions import ScanError

import pynamo_locking.cli
from pynamo_locking import LockSettings
from pynamo_locking.cli import locks, main, run, session, terminal
from pynamo_locking.cli.app import app
from pynamo_locking.cli.terminal import Exit, Problem, explain
from pynamo_locking.exceptions import ConfigurationError, LockingError, OutcomeUnknown

COMMANDS = [
    *(["tables", name] for name in ("create", "check")),
    *(["locks", name] for name in ("list", "show", "watch", "break", "prune")),
    *(["tx", name] for name in ("list", "show", "recover", "sweep")),
    *(["calls", name] for name in ("list", "settle")),
    ["run"],
    ["version"],
]
PROGRAM = (sys.executable, "-m", "pynamo_locking.cli")
VARIABLES = ("REGION", "PROFILE", "ENDPOINT", "TABLE", "TRANSACTION_TABLE", "CALL_TABLE", "LOG_FILE")


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable is set, and there is no file in the working directory."""
    for name in VARIABLES:
        monkeypatch.delenv(f"PYNAMO_LOCKING_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def started(*command: str, **options: Any) -> tuple[int, str, str]:
    """Run a command in a process of its own; exit code, standard output and standard error."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    done = subprocess.run(command, text=True, check=False, timeout=60, **streams)
    return done.returncode, done.stdout, done.stderr


# Help and what needs no table


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command, capsys):
    """Also ``--json``; and each example begins with the command that it is about."""
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out

    assert "--json" in text
    examples = text.partition("Examples")[2]
    assert f"pynamo-locking {' '.join(command)}" in examples
    assert "\x1b" not in text
    assert "<bool>" not in text  # of options without a value


@pytest.mark.parametrize("command", [[], ["locks"], ["tables"], ["tx"]])
def test_without_a_command_there_is_help(command, capsys):
    """It names the commands; the exit code is that of a mistake."""
    assert main(command) == 2
    captured = capsys.readouterr()

    assert "Commands" in captured.out + captured.err
    assert captured.err.endswith(f"Name a command. See {' '.join(['pynamo-locking', *command])} --help.\n")


def test_version(capsys):
    """Of this package and of what it stands on."""
    assert main(["version", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "pynamo_locking": version("pynamo-locking"),
        "pynamodb": version("pynamodb"),
        "botocore": version("botocore"),
        "python": platform.python_version(),
    }


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing, monkeypatch, capsys):
    """Rather than a traceback: what to install."""
    for name in [name for name in sys.modules if name.startswith("pynamo_locking.cli.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(pynamo_locking.cli, name.removeprefix("pynamo_locking.cli."), raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)

    brought = "typer rich" if sys.version_info >= (3, 11) else "typer rich tomli"
    assert main(["version"]) == 2
    assert capsys.readouterr().err == (
        f"pynamo-locking: the command line needs {missing}, which is not installed. "
        f"Install what the extra `cli` brings: pip install {brought}\n"
    )


def test_another_missing_module_is_an_error(monkeypatch):
    """What is not of the extra is not blamed on it."""

    def fail(_name: str) -> None:
        raise ModuleNotFoundError(name="boto3")

    monkeypatch.setattr(importlib, "import_module", fail)

    with pytest.raises(ModuleNotFoundError):
        main(["version"])


# Used wrongly


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lokcs"], "No such command 'lokcs'"),
        (["locks", "break", "a"], "Missing option '--ticket'. See pynamo-locking locks break --help."),
        (["locks", "break", "a", "--ticket", "x"], "Invalid value for '--ticket'"),
        (["locks", "list"], "which table? Name it with --table, PYNAMO_LOCKING_TABLE, or table in [tool.pynamo-lock"),
        (["tx", "list"], "which table? Name it with --table, PYNAMO_LOCKING_TRANSACTION_TABLE, or trans"),
        (["calls", "settle", "k"], "say one of the two: --result, with what callers get, or --forget"),
        (["calls", "settle", "k", "--forget", "--result", "1"], "say one of the two"),
        (["calls", "settle", "k", "--result", "{"], "--result is not JSON"),
        (["tables", "check"], "which tables?"),
        (["tx", "list", "--table", "t", "--state", "lost"], "pending, committed, finished, aborted, not 'lost'"),
        (["locks", "list", "--model", "Order"], "'Order' names no model: write module:Class"),
        (["locks", "list", "--model", "no_such.models:Order"], "there is no module 'no_such'"),
        (["locks", "list", "--model", "json:Order"], "the module json has no 'Order'"),
        (["locks", "list", "--model", "json:JSONDecoder"], "is not a model"),
        (["locks", "list", "--model", "pynamo_locking:LockableModel"], "has no Meta.table_name"),
        (["locks", "list", "--model", "tests.support.transaction_models:Transactions"], "cannot be locked"),
        (["tx", "list", "--model", "tests.support.models:Locks"], "is no TransactionTable, and names none"),
        (["locks", "list", "--table", "t", "--endpoint", "localhost:8000"], "is no URL"),
        (["run", "--lock", "x", "--table", "t", "--lease", "1", "--", "true"], "too short"),
        (["run", "--lock", "x", "--table", "t", "--grace", "31", "--", "true"], "half of the lease, 30 s, not 31 s"),
        (["run", "--lock", "x", "--", "true"], "which table?"),
        (["run", "--lock", "x", "--table", "t"], "Missing argument"),
        (["locks", "list", "--table", "t", "--log-file", "/no/such/folder/log"], "cannot be written"),
        *(
            (
                ["run", "--lock", "x", "--table", "t", "--lead", *more, "--", "true"],
                "--lead waits for ever and leads al",
            )
            for more in (["--wait", "1"], ["--permits", "2"], ["--shared"], ["--once-per", "1d"])
        ),
        *(
            (["run", "--lock", "x", "--table", "t", *more, "--", "true"], message)
            for more, message in (
                (
                    ["--once-per", "1"],
                    "--once-per takes a whole number and one of s, m, h, d and w, as in 10m or 1d",
                ),
                (["--once-per", "5h"], "period must divide a day"),
                (["--once-per", "1d", "--at-least", "soon"], "--at-least takes"),
                (["--once-per", "1d", "--zone", "Nowhere"], "no time zone 'Nowhere'"),
                (["--once-per", "1d", "--permits", "2"], "one run at a time"),
                (["--zone", "UTC"], "a --once-per, which is missing"),
                (["--at-least", "10m"], "a --once-per, which is missing"),
                (["--since-success"], "a --once-per, which is missing"),
                (["--busy-exit", "256"], "--busy-exit"),
                (["--lease", "nan"], "lease"),
                (["--lease", "-5"], "lease"),
                (["--lease", "inf"], "lease must be finite"),
                (["--lease", "86401"], "lease (86401.0 s) is longer than max_lease (86400.0 s)"),
                (["--owner", "\udcff"], "owner is no text: "),
                (["--owner", "o" * 257], "owner must have at most 256 bytes in UTF-8, not 257: "),
            )
        ),
        *((["locks", "watch", "--table", "t", "--every", pause], "--every") for pause in ("nan", "inf", "1e10", "0")),
        *((["locks", "show", name, "--table", "t"], "") for name in ("", "x" * 2049, "\udcff")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_used_wrongly(arguments, message, capsys):
    """Exit code 2 and one sentence on stderr; with ``--json`` the same as a document. No request is made."""
    arguments = [sys.executable if word == "true" else word for word in arguments]  # a program that is there
    words = 1 if arguments[0] in ("run", "lokcs") else 2
    as_json = [*arguments[:words], "--json", *arguments[words:]]

    assert main(arguments) == main(as_json) == 2
    captured = capsys.readouterr()
    first, second = captured.err.splitlines()

    assert message in first
    assert captured.out == ""
    document = json.loads(second)["error"]
    assert document == {"kind": "usage", "message": first.removeprefix("pynamo-locking: "), "exit_code": 2}


def test_the_default_grace_fits_the_lease():
    """So that no user has to name it for a short lease."""
    assert run._grace(None, 60) == 5
    assert run._grace(None, 6) == 1.5
    assert run._grace(0, 6) == 0
    assert LockSettings().lease == 60, "the default of --lease"


def test_a_model_that_fails_to_import(tmp_path, capsys):
    """Modules of the working directory are found; what their import raises is said."""
    (tmp_path / "broken_models.py").write_text("raise RuntimeError('no database here')")
    (tmp_path / "poor_models.py").write_text("import no_such_module")

    assert main(["locks", "list", "--model", "broken_models:Order"]) == 2
    assert "broken_models:Order cannot be imported: RuntimeError: no database here." in capsys.readouterr().err
    assert main(["locks", "list", "--model", "poor_models:Order"]) == 2
    assert "poor_models:Order cannot be imported: ModuleNotFoundError: No module named 'no" in capsys.readouterr().err
    assert "" not in sys.path


def test_a_program_that_does_not_exist(capsys):
    """As in a shell; before the wait for a lock, so no table is needed."""
    under = ["run", "--lock", "x", "--table", "t", "--"]

    assert main([*under, "no-such-program"]) == 127
    assert main([*under, os.devnull]) == 126
    assert capsys.readouterr().err.splitlines() == [
        "pynamo-locking: there is no program no-such-program.",
        f"pynamo-locking: {os.devnull} cannot be executed.",
    ]


# Settings


OTHER = "[tool.other]\nkey = 1\n"
FILE = f"""{OTHER}
[tool.pynamo-locking]
region = "from-file"
table = "from-file"
transaction-table = "from-file"
log-file = "from-file"
"""


def written(tmp_path, text):
    """The options that name a file with this text."""
    (tmp_path / "pyproject.toml").write_text(text)
    return {"config": str(tmp_path / "pyproject.toml")}


def test_an_option_wins_over_a_variable_and_that_over_the_file(tmp_path, monkeypatch):
    """Each setting for itself."""
    named = written(tmp_path, FILE)
    monkeypatch.setenv("PYNAMO_LOCKING_TABLE", "from-environment")
    monkeypatch.setenv("PYNAMO_LOCKING_REGION", "from-environment")
    monkeypatch.setenv("PYNAMO_LOCKING_LOG_FILE", "")

    assert session.load_settings({"region": "from-option", "table": None, **named}) == session.Settings(
        region="from-option",
        table="from-environment",
        transaction_table="from-file",
        log_file="from-file",
        **named,
    )


def test_a_file_that_nobody_has_named_is_not_read(tmp_path, monkeypatch):
    """What is in the working directory may be somebody else's: it says which code is run, and where requests go."""
    named = written(tmp_path, FILE)
    monkeypatch.chdir(tmp_path)

    assert session.load_settings({}) == session.Settings()
    monkeypatch.setenv("PYNAMO_LOCKING_CONFIG", "pyproject.toml")
    assert session.load_settings({}).table == session.load_settings(named).table == "from-file"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[tool.pynamo-locking]", None),
        ('[tool]\npynamo-locking = {table = "t"}', "t"),
        ('[tool."pynamo-locking"]\ntable = "t"', "t"),
        ('[ tool . pynamo-locking ]\ntable = "t"', "t"),
        ('tool.pynamo-locking.table = "t"', "t"),
        ('[tool]\npynamo-locking.table = "t"', "t"),
    ],
)
def test_all_forms_of_the_section(text, found, tmp_path):
    """That TOML has: none is overlooked."""
    named = written(tmp_path, text)

    assert session.load_settings(named) == session.Settings(table=found, **named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.pynamo-locking]\nregoin = "x"', "has 'regoin' in [tool.pynamo-locking], which is not known"),
        ("[tool.pynamo-locking]\ntable = 1", "table in [tool.pynamo-locking] must be a string"),
        ("[tool.pynamo-locking]\ntable = ", "cannot be read"),
        ("tool.pynamo-locking = 3", "must be a table of settings"),
        ("[[tool.pynamo-locking]]", "must be a table of settings"),
        ("", "has no [tool.pynamo-locking]"),
        ("tool = 3\n[x]\npynamo-locking = 1", "has no [tool.pynamo-locking]"),
        (None, "cannot be read"),
    ],
)
def test_a_file_with_a_mistake(text, message, tmp_path):
    """Says which, rather than to go on with another table, or to fail with an error of Python's."""
    path = tmp_path / "pyproject.toml"
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)

    with pytest.raises(Problem, match=r"pyproject\.toml") as caught:
        session.load_settings({"config": str(path)})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://", "https://", "http://a b", "http://localhost:99999", "http://localhost:x", "ftp://host", "http://a_b"],
)
def test_endpoints_that_botocore_would_not_take(url):
    """It would raise a ValueError."""
    with pytest.raises(Problem, match="is no URL"):
        session.load_settings({"endpoint": url})


@pytest.mark.parametrize("url", ["http://localhost:8000", "https://h.example/", "http://[::1]:1", "http://10.0.0.1"])
def test_endpoints(url):
    """That are taken."""
    assert session.load_settings({"endpoint": url}).endpoint == url


def test_a_profile_replaces_keys_of_the_environment_for_a_while(monkeypatch):
    """As with the AWS command line; afterwards all is as it was."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    before = dict(os.environ)

    with session.profile_in_use("prod"):
        assert os.environ["AWS_PROFILE"] == "prod"
        assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert dict(os.environ) == before
    with session.profile_in_use(None):
        assert dict(os.environ) == before


# Errors


def refusal(code: str) -> ClientError:
    """What DynamoDB says."""
    return ClientError({"Error": {"Code": code, "Message": "it said no"}}, "Scan")


@pytest.mark.parametrize(
    ("error", "kind", "exit_code"),
    [
        (NoCredentialsError(), "no_credentials", 77),
        (ScanError("failed", cause=NoCredentialsError()), "no_credentials", 77),
        (ProfileNotFound(profile="x"), "no_credentials", 77),
        (NoRegionError(), "usage", 2),
        (refusal("AccessDeniedException"), "access_denied", 77),
        (LockingError("no", cause=refusal("ExpiredTokenException")), "bad_credentials", 77),
        (ConfigurationError("no table x", cause=refusal("ResourceNotFoundException")), "table_missing", 78),
        (ScanError("failed", cause=EndpointConnectionError(endpoint_url="http://x")), "unreachable", 69),
        (ConfigurationError("a mistake"), "configuration", 78),
        (OutcomeUnknown("no answer"), "outcome_unknown", 69),
        (LockingError("something"), "failed", 69),
        (refusal("ValidationException"), "failed", 69),
    ],
    ids=repr,
)
def test_errors_are_explained(error, kind, exit_code):
    """By what is behind them."""
    problem = explain(error)

    assert (problem.kind, problem.exit_code) == (kind, exit_code)
    assert problem.document()["error"].keys() == {"kind", "message", "exit_code"}


def test_a_missing_region_and_missing_credentials(monkeypatch, tmp_path, capsys):
    """End to end, with botocore's own search for them, which finds nothing."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    arguments = ["locks", "list", "--table", "locks", "--json"]

    assert main(arguments) == 2
    assert main([*arguments, "--region", "eu-west-1"]) == 77
    assert main([*arguments, "--region", "eu-west-1", "--profile", "nobody"]) == 77
    errors = [json.loads(line)["error"] for line in capsys.readouterr().err.splitlines()]

    assert [each["kind"] for each in errors] == ["usage", "no_credentials", "no_credentials"]
    assert "--region" in errors[0]["message"]
    assert "--profile" in errors[1]["message"]
    assert "nobody" in errors[2]["message"]


def test_a_bug_keeps_its_traceback(monkeypatch):
    """An unexpected error is not made short."""
    monkeypatch.setattr("pynamo_locking.cli.app.importlib.metadata.version", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        main(["version"])


@pytest.mark.processes
@pytest.mark.parametrize("module", ["pynamo_locking", "pynamo_locking.cli"])
def test_the_version_by_either_name(module):
    """`python -m pynamo_locking` is the command line, and has the option that programs have."""
    expected = f"pynamo-locking {version('pynamo-locking')}\n"
    assert started(sys.executable, "-m", module, "--version") == (0, expected, "")


@pytest.mark.processes
def test_the_package_as_a_program_without_the_extra():
    """Says what to install, as the command does."""
    code = "import runpy, sys; sys.modules['typer'] = None; runpy.run_module('pynamo_locking', run_name='__main__')"
    exit_code, out, err = started(sys.executable, "-c", code)

    assert (exit_code, out) == (2, "")
    assert err.startswith("pynamo-locking: the command line needs typer, which is not installed.")


@pytest.mark.parametrize(
    ("words", "following"),
    [
        (["lo"], ["locks"]),
        (["tx", "list", "--state", ""], ["pending", "committed", "finished", "aborted"]),
        (["tx", "sweep", "--d"], ["--dry-run"]),
        (["run", "--lock", "x", "--", "ls", "--"], []),
        (["locks", "show", ""], []),
    ],
    ids=" ".join,
)
def test_what_may_follow(words, following, monkeypatch, capsys):
    """A shell gets commands, options and their values; of a program to be run, and of keys, nothing is known."""
    monkeypatch.setenv("_PYNAMO_LOCKING_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["pynamo-locking", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))

    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == following


@pytest.mark.processes
def test_bash_completes(tmp_path):
    """As it does for a user who has installed the completion, and has started a new shell."""
    session = """
        pynamo-locking --install-completion >&2 || exit
        source ~/.bashrc
        complete -p pynamo-locking >&2
        COMP_WORDS=(pynamo-locking locks list --pr) COMP_CWORD=3
        _pynamo_locking_completion pynamo-locking
        echo "${COMPREPLY[@]}"
    """
    folder = Path(sys.executable).parent
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    code, out, err = started("bash", "-c", session, env=environment)

    assert (code, out.split()) == (0, ["--prefix", "--profile"]), err


@pytest.mark.processes
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_no_reader_goes_on(options):
    """As with ``| head``: the exit code of a program that SIGPIPE has killed, and no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        assert started(*PROGRAM, "version", *options, stdout=stdout) == (141, None, "")


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_answer_that_cannot_be_written(options):
    """Exit code 74, which no other problem has, and one sentence."""
    with Path("/dev/full").open("w") as full:
        code, _, err = started(*PROGRAM, "version", *options, stdout=full)

    assert code == 74
    assert "the answer cannot be written: No space left on device." in err
    assert len(err.splitlines()) == 1


# Output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations_for_people(seconds, text):
    """The two largest units."""
    assert terminal.duration(seconds) == text


def test_what_a_terminal_obeys_is_made_visible():
    """An owner's label comes from any program that can write to the table."""
    assert terminal.plain("a\x1b[31mb\n\u202e") == "a\\x1b[31mb\\x0a\\u202e"
    assert terminal.plain("naïve [red]") == "naïve [red]"


def test_what_a_terminal_obeys_in_errors_and_logs(capsys):
    """Both may name owners; no line of theirs looks like one of ours."""
    hostile = Problem("failed", "held by \x1b[2J\nWARNING", 69)
    assert terminal.tell(hostile, as_json=False) == 69
    with terminal.logging_to(None, as_json=False):
        terminal.logger.warning("held by \x1b[2J\nWARNING nobody")

    assert capsys.readouterr().err == (
        "pynamo-locking: held by \\x1b[2J\n    WARNING\nWARNING held by \\x1b[2J\n    WARNING nobody\n"
    )


def test_no_colours_in_a_pipe(monkeypatch, capsys):
    """Whatever the environment says of colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.console().print("text", style="bold red")

    assert capsys.readouterr().out == "text\n"


def test_the_log(tmp_path, capsys):
    """Warnings go to stderr, as JSON if all is, and into the file with time and process; then the handlers are gone."""
    file, before = tmp_path / "log", list(terminal.logger.handlers)
    with terminal.logging_to(str(file), as_json=True):
        terminal.logger.warning("ticket %d", 1)
        terminal.logger.info("not this")

    assert json.loads(capsys.readouterr().err) == {"log": {"level": "warning", "message": "ticket 1"}}
    assert file.read_text().rstrip().endswith(f" {os.getpid()} WARNING ticket 1")
    assert logging.getLogger("pynamo_locking").handlers == before


# The reference


REFERENCE = Path(__file__).parents[3] / "docs/reference/command-line.md"
SOURCE = Path(pynamo_locking.cli.__file__).parent


def test_the_reference_is_complete():
    """Every command, setting, exit code and kind of error stands in it."""
    text = REFERENCE.read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.py")))
    kinds = {*re.findall(r'Problem\(\s*"(\w+)"', code), *re.findall(r'"\w+": "(\w+)",\n', code)} - {"pynamodb"}
    wanted = [
        *(f"`{' '.join(command)}" for command in COMMANDS),
        *(f"`PYNAMO_LOCKING_{name}`" for name in (*VARIABLES, "NAME", "TICKET")),
        *(f"`{name.replace('_', '-')}`" for name in session.NAMES),
        *(f"`{kind}`" for kind in kinds),
        *(f"| {number.value} |" for number in Exit if number < Exit.NOT_EXECUTABLE),
    ]

    [listed] = re.findall(r"whose `kind` is (.*)", text)

    assert len(kinds) > 15
    assert [each for each in wanted if each not in text] == []
    assert {*re.findall(r"`(\w+)`", listed)} - kinds == {"program_exit_code", "was_ended"}
    assert set(VARIABLES) == {name.upper() for name in session.NAMES}


def test_the_reference_has_every_check_of_a_table():
    """And says which of them can fail."""
    text = REFERENCE.read_text(encoding="utf-8")
    _, section = text.split("## What `tables check` says")
    rows = re.findall(r"^\| (`[^|]*`) \| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    failing = {check: bool(problem) for cell, problem in rows for check in re.findall(r"`(\w+)`", cell)}
    code = (SOURCE / "tables.py").read_text(encoding="utf-8")
    made = re.findall(r'Finding\(\s*f?"(\w+)(?:\{operation\})?",\s*([\w ]+)', code)
    checks = {check for check, _ in made if not check.endswith("_")} | {"permission_GetItem", "permission_Scan"}

    assert checks == {*failing}
    assert {check for check, level in made if "PROBLEM" in level} <= {check for check, can in failing.items() if can}


def options_of(command: Any) -> set[str]:
    """What its help shows; `--help` is every command's."""
    return {name for each in command.params for name in each.opts if name.startswith("--")} - {"--help"}


@pytest.mark.parametrize("command", [*COMMANDS, ["unique", "check"], ["unique", "repair"], []], ids=" ".join)
def test_the_reference_has_the_options_that_help_shows(command):
    """Those of a command in its row, and of `run` in its section; those of all commands among the settings."""
    text = REFERENCE.read_text(encoding="utf-8")
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    row = re.findall(rf"^\| `{' '.join(command)}\b.*$", text, re.MULTILINE)[0] if command else text
    [_, section, *_] = re.split(r"^## `run`$", text, flags=re.MULTILINE) if command == ["run"] else ["", ""]
    common = {"--json", "--table", "--region", "--profile", "--endpoint", "--log-file", "--model", "--attribute"}
    common |= {"--transaction-table", "--config"}
    wanted = options_of(found)
    assert "--json" in wanted or not command
    assert {
        each for each in wanted - common if f"{each}`" not in row + section and f"{each} " not in row + section
    } == set()
    assert {each for each in wanted & common if f"`{each}" not in text} == set()


def test_a_lease_that_is_over_stands_out() -> None:
    """An operator who watches at night sees the dead holder first, and a word tells it where there are no colours."""
    entry = {
        "ticket": 1,
        "callers": 1,
        "is_detached": False,
        "owner": "o",
        "mode": "exclusive",
        "permits": 1,
        "range_lower": None,
        "range_upper": None,
    }
    times = [
        {"queued_s": 3.0, "held_s": None, "since_renewal_s": 0.5, "lease_s": 60.0, "lease_left_s": left}
        for left in (59.5, -5.0)
    ]
    holder, waiter = ({**entry, **each} for each in times)
    lock = {"name": "l", "holders": [holder], "waiters": [waiter], "last_success": None, "transaction": None}
    alive, dead = (row[-2] for row in locks._rows(lock))
    assert [(str(each), each.style) for each in (alive, dead)] == [("in 59.5 s", ""), ("5.0 s ago", "bold red")]
    roles = [row[1] for row in locks._rows(lock)]
    assert [(str(each), each.style) for each in roles] == [("holds", "green"), ("dead waiter", "bold red")]
