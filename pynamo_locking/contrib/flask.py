"""Flask: configuration, errors as responses, ETags, ``flask locks``.

::

    locking = PynamoLocking(models=[Account])

    def create_app():
        app = Flask(__name__)
        app.config.from_prefixed_env()
        locking.init_app(app)
        return app
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from flask import appcontext_pushed, current_app, g, has_request_context, make_response, request, request_started
from flask.cli import AppGroup
from pynamodb.exceptions import PynamoDBException

from pynamo_locking._facade import inspection, versions
from pynamo_locking.contrib import _frameworks
from pynamo_locking.contrib._frameworks import PreconditionRequired
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, LockingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flask import Flask, Response
    from pynamodb.models import Model


__all__ = ["PreconditionRequired", "PynamoLocking", "conditional", "etag", "if_match"]

_M = TypeVar("_M", bound="Model")

_EXTENSION: Final = "pynamo_locking"
_PREFIX: Final = "PYNAMO_LOCKING_"
_HELD_BEFORE: Final = "pynamo_locking.held_before"


class PynamoLocking:
    """The extension: one object for a program, however many applications its factory makes.

    What it adds to an application:

    * The keys ``PYNAMO_LOCKING_HOST``, ``_REGION``, ``_TABLE_PREFIX``, ``_CONNECT_TIMEOUT`` and ``_READ_TIMEOUT``
      (seconds), ``_MAX_RETRIES``, ``_MAX_POOL_CONNECTIONS``, ``_LOCK_SETTINGS`` (a `LockSettings` or its arguments; for
      models without ``Meta.lock_settings``) say where the models are and how they behave. ``_PROBLEM_TYPE`` begins the
      ``type`` of an error's answer; the code of the error follows. With ``_ANSWER_NOT_FOUND`` an absent item is
      answered by 404.
    * Errors become responses with a body in the form of RFC 9457: 409 for `Conflict`, 412 for a failed ``If-Match``,
      422 for `InvalidInput`, 423 for `ItemLocked` and `LockTimeout`, 428 for a missing ``If-Match``, 500 for `LockLost`
      and `OutcomeUnknown`. A handler that the application registers afterwards, or for a subclass, is used instead.
    * ``flask locks list``, ``show`` and ``break``.
    * A lock that a request acquired by `Lock.acquire` and did not release is released when its context ends, and that
      is logged. Nothing is ever committed there. Streamed responses may be made afterwards.

    Args:
        models: the models of the program. The tables in their ``Meta.lock_table``, ``Meta.transaction_table`` and
            ``Meta.unique_table`` are added.
    """

    def __init__(self, models: Sequence[type[Model]]) -> None:
        self.models: list[type[Model]] = inspection.with_tables(models)

    def init_app(self, app: Flask) -> None:
        """Configure the models as an application says, and add everything else to it.

        Raises:
            ConfigurationError: an unknown key, or a model that was used or configured otherwise before: a model class
                is bound to one table and endpoint in a process, whatever the number of applications.
        """
        if app.extensions.setdefault(_EXTENSION, self) is not self:
            raise ConfigurationError("this application has a PynamoLocking already: give all models to one.")
        given = {key.removeprefix(_PREFIX): value for key, value in app.config.items() if key.startswith(_PREFIX)}
        unknown = sorted(given.keys() - _frameworks.KEYS)
        if unknown:
            raise ConfigurationError(
                f"{_PREFIX}{unknown[0]} is no key; there are: {', '.join(sorted(_frameworks.KEYS))}."
            )
        _frameworks.configure(self.models, given)
        for error_class in _frameworks.answered(not_found=given.get("ANSWER_NOT_FOUND")):
            app.register_error_handler(error_class, _answer)
        request_started.connect(_note_held_before_request, app)
        app.teardown_request(_release_leftovers_of_request)
        appcontext_pushed.connect(_note_held, app)
        app.teardown_appcontext(_release_leftovers)  # of commands
        app.cli.add_command(_commands(self.models))

    def reset(self) -> None:
        """Undo the configuration of the models: for tests that configure one application after another."""
        _frameworks.reset(self.models)


def etag(item: Model) -> str:
    """Return the ETag of an item as Flask takes it, without quotes: ``response.set_etag(etag(account))``.

    It is a strong tag: it names the write that made the item what it is. No request.

    Args:
        item: a stored item.

    Raises:
        ConfigurationError: the model has no version.
    """
    return versions.etag_of(item)


def conditional(body: Any, item: Model) -> Response:
    """Return a response with the ETag of an item; 304 without a body if the client has this version already.

    Args:
        body: anything that a view may return.
        item: the item that it shows.
    """
    response = make_response(body)
    response.set_etag(etag(item))
    response.make_conditional(request)
    return response


def if_match(item: type[_M] | _M, hash_key: Any = None, range_key: Any = None) -> _M:
    """Return an item that is written only if it is still what the client has read, as ``If-Match`` says.

    Given a model, it reads the item only if ``If-Match`` has several tags, a ``*`` or a tag without a write id.
    Otherwise the instance has only its keys and its version: set all attributes before you save it. Without
    ``If-Match`` the answer is 428; 412 for a version that is stale, also later in this request. Arguments and errors
    are those of `pynamo_locking.contrib.starlette.if_match`.
    """
    return _frameworks.if_match(request, item, hash_key, range_key)


def _answer(error: Exception) -> Response:
    base = current_app.config.get(f"{_PREFIX}PROBLEM_TYPE")
    problem = _frameworks.answer(error, request.environ, _request(), base)
    body = current_app.json.dumps(problem.body)
    return current_app.response_class(body, problem.status, problem.headers, content_type=_frameworks.CONTENT_TYPE)


def _request() -> str:
    return f"{request.method} {request.path}" if has_request_context() else "an application context"


def _note_held(_app: Flask, **_: Any) -> None:
    setattr(g, _HELD_BEFORE, inspection.held())


def _note_held_before_request(_app: Flask, **_: Any) -> None:
    # Not in `g`: a test may send requests, one after another, in an application context that it has pushed itself.
    request.environ[_HELD_BEFORE] = inspection.held()


def _release_leftovers(_error: BaseException | None) -> None:
    _release_since(g.get(_HELD_BEFORE))


def _release_leftovers_of_request(_error: BaseException | None) -> None:
    _release_since(request.environ.get(_HELD_BEFORE))


def _release_since(before: Any) -> None:
    if before is not None:
        inspection.release_all_since(before, _request())


def _commands(models: Sequence[type[Model]]) -> AppGroup:
    locks = AppGroup("locks", help="Holders and waiters of locks.")

    def add(action: str, help_: str, *parameters: click.Parameter) -> None:
        def run(**options: Any) -> None:
            try:
                click.echo(_frameworks.run_lock_command(models, action, options, click.confirm))
            except (ConfigurationError, InvalidInput) as error:
                raise click.UsageError(str(error)) from error
            except (LockingError, PynamoDBException) as error:
                raise click.ClickException(str(error)) from error

        locks.command(action, help=help_, params=list(parameters))(run)

    lock = click.Argument(["model"]), click.Argument(["key"], nargs=-1, required=True)
    as_json = click.Option(["--json", "is_json"], is_flag=True, help="Print JSON.")
    ticket = click.Option(["--ticket"], type=int, required=True, help="Of the entry to remove, from `show`.")
    yes = click.Option(["--yes"], is_flag=True, help="Do not ask.")
    add("list", "List all holders and waiters. Scans the tables that carry locks.", as_json)
    add("show", "Show the queue of one lock: the name of a MODEL, and its hash KEY and range key.", *lock, as_json)
    add("break", "Remove an entry from a queue, whether its owner lives or not.", *lock, ticket, yes)
    return locks
