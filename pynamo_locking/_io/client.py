"""Sends one request: its connection, how often it is repeated, and what a fork does to connections."""

from __future__ import annotations

import json
import re
import sys
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.serialize import JSONSerializer
from pynamodb.connection import Connection
from pynamodb.exceptions import TableError, TransactWriteError
from typing_extensions import override

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import (
    HTTP_BAD_GATEWAY,
    HTTP_CLIENT_ERROR,
    HTTP_REDIRECTION,
    HTTP_SERVER_ERROR,
    Answer,
    Next,
    RetryPolicy,
    RetryState,
)
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.row_keys import row_name
from pynamo_locking._io import event_stream, responses, runtime
from pynamo_locking._io.runtime import logger
from pynamo_locking._pynamodb import (
    connection_of,
    copy_without_retries,
    forget_client,
    has_client,
    is_connection_of_another_place,
    session_holder_of,
    set_connection,
)
from pynamo_locking.exceptions import also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.dynamodb import Step
    from pynamo_locking._io.stored_rows import Image


#: The connections that were noted, each with its twins by their timeouts.
_twins: weakref.WeakKeyDictionary[Connection, dict[float, Connection]] = weakref.WeakKeyDictionary()
_mutex = runtime.current.mutex()

#: Stands for the timeout of the twin that keeps the model's own.
_ONCE: Final = 0.0

#: PynamoDB keeps ten connections; a process with many waiters needs more, and would open them again and again.
_POOL_SIZE: Final = 50


def lock_connection(connection: Connection, request_timeout: float) -> Connection:
    """Return a twin of a model's connection for lock requests: short timeouts, no hidden retries.

    The package repeats its own requests, each of which recognises its earlier attempt. With PynamoDB's defaults, a
    retry inside botocore would delay a heartbeat for minutes.
    """
    return _twin(connection, request_timeout)


def single_attempt(connection: Connection) -> Connection:
    """Return a twin of a model's connection without hidden retries, for writes that must not be sent twice."""
    return _twin(connection, _ONCE)


def client_of(connection: Connection) -> Any:
    """Return a connection's client. PynamoDB would make one for each thread that comes before the first is made."""
    if not has_client(connection):
        with _mutex:
            return connection.client
    return connection.client


def is_mocked() -> bool:
    """Tell whether moto answers in place of AWS. When its block is left, the same clients send to AWS."""
    stubber = getattr(sys.modules.get("moto.core.models"), "botocore_stubber", None)
    return bool(getattr(stubber, "enabled", False))


def _twin(connection: Connection, timeout: float) -> Connection:
    note(connection)
    with _mutex:
        twins = _twins.setdefault(connection, {})
        if timeout not in twins:
            seconds = None if timeout == _ONCE else timeout
            twins[timeout] = copy_without_retries(connection, seconds, _POOL_SIZE)
        return twins[timeout]


class SeenConnection(Connection):
    """A connection of a model of ours, or one that was handed to us: what throttles its requests is reported."""

    @override
    def dispatch(self, operation_name: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Send a request as PynamoDB does; say in its error, and in events, why DynamoDB has throttled it."""
        _watch(self)
        last: dict[str, Any] = {}
        before = len(_attempts.get() or ())  # of the request inside of which a receiver of a signal sends this one
        try:
            data: dict[str, Any] = super().dispatch(operation_name, operation_kwargs)
            last = data if operation_name == "BatchExecuteStatement" else last
        except ClientError as error:
            last = responses.explain(error, [each["TableName"] for each in actions_of(operation_kwargs)])
            raise
        finally:
            _report_throttling(self, operation_name, operation_kwargs, last, before)
        return data


def note(connection: object) -> None:
    """Make a connection one of those that are seen, and that a fork gives sockets of their own.

    A model makes its connection through PynamoDB, and an application may hand one in, so its class is set afterwards.
    A connection of another class keeps it. A stand-in of a test is left alone.
    """
    if type(connection) is SeenConnection or not isinstance(connection, Connection):
        return
    with _mutex:
        if connection in _twins:
            return
        # A connection that was used before a fork shares its sockets with the parent and all of its children, so a
        # process could read another's answers.
        _twins[connection] = {}
        if runtime.forks:
            _open_new_sockets(connection)
        if type(connection) is Connection:
            connection.__class__ = SeenConnection


def leave_connection_of_another_place(model: type[Model]) -> None:
    """Let a model make its own connection, where PynamoDB would use that of a base class to another place."""
    if not is_connection_of_another_place(model):
        return
    with _mutex:
        if is_connection_of_another_place(model):  # else another thread was faster, and may have made it
            set_connection(model, None)


def _open_new_sockets(connection: Connection) -> None:
    """Let a connection and its twins open their own sockets for the next request."""
    local = session_holder_of(connection)
    # Credentials that botocore fetches have a mutex and sockets as well.
    if isinstance(getattr(getattr(local, "session", None), "_credentials", None), RefreshableCredentials):
        local = type(local)()
    for each in (connection, *_twins.get(connection, {}).values()):
        forget_client(each, local)


def _forget_after_fork() -> None:
    """Stop using the parent's mutex and sockets in a child process, even in locks made before the fork."""
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    for connection in runtime.living(_twins):
        _open_new_sockets(connection)


def _close_after_restore() -> None:
    """Close the sockets of a restored process, whose peers have forgotten them; clients open new ones.

    The clients stay: a snapshot is taken to spare a process the making of them.
    """
    for connection in runtime.living(_twins):  # the threads of the snapshot go on
        for each in (connection, *_twins.get(connection, {}).values()):
            if client := getattr(each, "_client", None):  # a test's substitute may have none
                client.close()


runtime.after_fork(_forget_after_fork, restored=_close_after_restore)


class Attempt(NamedTuple):
    """What is known of one attempt of a request."""

    is_doubtful: bool
    refusal: dict[str, Any] | None = None


#: One entry for each attempt of the request that is on its way.
_attempts: ContextVar[list[Attempt] | None] = ContextVar("pynamo_locking_attempts", default=None)
_watched: weakref.WeakSet[Any] = weakref.WeakSet()

#: What the refusal of a transaction says where a table has none. AWS documents that it is refused, not in which words.
_NO_TRANSACTIONS: Final = re.compile(r"multi-?\s?region|\bMRSC\b|global table|strong(ly)? consisten", re.IGNORECASE)


def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a request, and note on its error whether an attempt before the last may have been applied.

    Raises:
        ConfigurationError: it is a transaction, and one of its tables has none; also PynamoDB's `TransactWriteError`.
    """
    return _noted(connection, partial(connection.dispatch, operation, kwargs))


def transact_write(connection: Connection, **arguments: Any) -> dict[str, Any]:
    """Send a transaction as `dispatch` does, through PynamoDB's method for it.

    Tests of applications replace that method. It sends the actions sorted by kind.
    """

    def send() -> dict[str, Any]:
        try:
            return connection.transact_write_items(**arguments)
        except TransactWriteError as error:
            if not isinstance(error.cause, responses.BOTOCORE_EXCEPTIONS):
                raise
            cause = error.cause
        raise cause  # as it was raised, with its own cause

    return _noted(connection, send)


def _noted(connection: Connection, send: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not isinstance(connection, SeenConnection):  # which watches itself
        _watch(connection)
    attempts: list[Attempt] = []
    reset = _attempts.set(attempts)
    try:
        data = send()
    except responses.BOTOCORE_EXCEPTIONS as error:
        _note(error, attempts)
        _check_supported(error)
        raise
    finally:
        _attempts.reset(reset)
    event_stream.answered(data)
    return data


def _check_supported(error: Exception) -> None:
    """Say what to do about a transaction on a global table with strong consistency between Regions."""
    if not isinstance(error, ClientError) or not error.operation_name.startswith("Transact"):
        return
    said = [responses.message_of(error), *(str(each.get("Message", "")) for each in responses.reasons_of(error))]
    if responses.answer_in(error) is Answer.DENIED and _NO_TRANSACTIONS.search(" ".join(said)):
        raise also(ConfigurationError, TransactWriteError)(
            f"this transaction was refused, and nothing was written: one of its tables is a global table with strong "
            f"consistency between Regions, which has no transactions. Single writes, versions, locks in items and "
            f"NamedLock work there. Transaction, TransactWrite, intervals, Meta.lock_table and Meta.unique need tables "
            f"in one Region; `pynamo-locking tables check` finds the others. DynamoDB said: {' '.join(said)}",
            cause=error,
        ) from error


def _note(error: Exception, attempts: list[Attempt]) -> None:
    if attempts:
        setattr(error, responses.REPEATED, any(attempt.is_doubtful for attempt in attempts[:-1]))


def _watch(connection: Connection) -> None:
    """Hear of every attempt of a connection's client, read its items, and check its answers.

    A test's substitute may make no attempt.
    """
    client: Any = None
    with suppress(BotoCoreError):  # there is no client: the request itself says why
        client = client_of(connection)
    meta = getattr(client, "meta", None)
    if meta is not None and client not in _watched:
        with _mutex:  # botocore would register it for each of two threads
            # Before botocore's own, which decides what is repeated.
            meta.events.register_first("needs-retry.dynamodb", _note_attempt, unique_id="pynamo-locking")
            meta.events.register("before-parse.dynamodb", responses.take_items, unique_id="pynamo-locking-items")
            meta.events.register("provide-client-params.dynamodb", _note_asked, unique_id="pynamo-locking-asked")
            serializer = getattr(client, "_serializer", None)
            if type(serializer) is JSONSerializer:  # and none that validates first, or a test's substitute
                serializer.__class__ = _BodyAtOnce
            _watched.add(client)


#: In botocore's context of a request: whether its answer says anything, such as what the request has consumed.
_SAYS_SOMETHING: Final = "pynamo_locking_says_something"

#: What botocore itself puts into each answer.
_METADATA: Final = frozenset({"ResponseMetadata"})


def _note_asked(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    is_about_items = "ReturnConsumedCapacity" in model.input_shape.members  # PynamoDB asks for it
    asked = params.get("ReturnConsumedCapacity", "NONE") != "NONE"
    context[_SAYS_SOMETHING] = asked if is_about_items else model.output_shape is not None


class _BodyAtOnce(JSONSerializer):
    """Writes the body of a request about items by one call.

    botocore calls several functions for each value in it, although PynamoDB's parameters are the JSON that it sends:
    that takes longer than all that PynamoDB does for a save.
    """

    @override
    def serialize_to_request(self, parameters: Mapping[str, Any], operation_model: Any) -> dict[str, Any]:
        body = _body_of(parameters, operation_model.input_shape)
        if body is None:
            return super().serialize_to_request(parameters, operation_model)
        return {**super().serialize_to_request({}, operation_model), "body": body}


def _body_of(parameters: Mapping[str, Any], shape: Any) -> bytes | None:
    """Return the body of a request about items; None if botocore has to convert something in it."""
    if shape is None or "ReturnConsumedCapacity" not in shape.members:  # others have times
        return None
    try:
        text = json.dumps(parameters)
    except (TypeError, ValueError, RecursionError):  # bytes have no form in JSON
        return None
    is_binary = '"B": ' in text or '"BS": ' in text  # binary values, which may be given as text, are encoded
    return None if is_binary else text.encode()


def _note_attempt(
    response: tuple[Any, dict[str, Any]] | None = None,
    caught_exception: Exception | None = None,
    request_dict: dict[str, Any] | None = None,
    **_: Any,
) -> None:
    """Check how an attempt went, and note it.

    Raises:
        Exception: that of a signal's handler, which botocore took for an error of the network: it would be repeated, or
            count as no answer, and a time limit would not be heard.
    """
    attempts = _attempts.get()
    if caught_exception is not None:
        interruption = responses.interruption_in(caught_exception)
        if interruption is not None:
            raise interruption
        if attempts is not None:
            attempts.append(Attempt(is_doubtful=not responses.was_not_sent(caught_exception)))
    elif response is not None:
        http, parsed = response
        _refuse_what_is_no_answer(http, parsed, (request_dict or {}).get("context", {}))
        if attempts is not None:
            is_refused = HTTP_CLIENT_ERROR <= http.status_code < HTTP_SERVER_ERROR
            refusal = parsed if http.status_code >= HTTP_CLIENT_ERROR else None
            attempts.append(Attempt(is_doubtful=not is_refused, refusal=refusal))


def _refuse_what_is_no_answer(http: Any, parsed: dict[str, Any], context: dict[str, Any]) -> None:
    """Make what botocore would accept a "bad gateway": the request may have been applied, or not.

    An answer that was cut short, unless a checksum shows that. A page of a proxy with status 200: it has another form
    than DynamoDB's answers, or says nothing of what these say.
    """
    is_page = parsed.pop(responses.NO_ANSWER, False)
    is_page |= bool(context.get(_SAYS_SOMETHING)) and not parsed.keys() - _METADATA
    if _is_cut(http):
        what = "the answer was cut short"
    elif is_page and http.status_code < HTTP_REDIRECTION:
        what = "what came with status 200 is no answer of DynamoDB's: is it a page of a proxy?"
    else:
        what = ""
    if what:
        http.status_code = HTTP_BAD_GATEWAY
        parsed.setdefault("ResponseMetadata", {})["HTTPStatusCode"] = HTTP_BAD_GATEWAY
        parsed["Error"] = {"Code": str(HTTP_BAD_GATEWAY), "Message": what}


def _is_cut(http: Any) -> bool:
    """Tell whether a part of an answer is missing, or nobody knows how long it is."""
    length = http.headers.get("Content-Length")
    if length is None or "Content-Encoding" in http.headers:
        return False
    try:
        return not 0 <= int(length) <= len(http.content)
    except ValueError:
        return True


# Throttled requests: why, in the error and in events. Hot keys show in plain reads as well.


@event_stream.to_listeners
def _report_throttling(
    connection: Connection, operation: str, kwargs: dict[str, Any], last: dict[str, Any], before: int
) -> None:
    """Report the throttled attempts of a request; `last` is the last response, if that may be one."""
    attempts = (_attempts.get() or [])[before:]
    refusals = [each.refusal for each in attempts if each.refusal is not None]
    if last and (not refusals or "Error" not in last):  # else botocore has shown it
        refusals.append(last)
    if not refusals:
        return
    actions = actions_of(kwargs)
    tables = [each["TableName"] for each in actions]
    reset = _attempts.set(None)  # requests of a listener are no attempts of this one
    try:
        for why in [why for refusal in refusals for why in dynamodb.throttling_in(refusal, tables)]:
            table, _, index = why.resource.partition("/index/")
            items = [each for i, each in enumerate(actions) if why.action in {None, i} and each["TableName"] == table]
            event_stream.emit(
                event_stream.events.Throttled(
                    **event_stream.clocks(),
                    name=", ".join(dict.fromkeys(_name_of(connection, each) for each in items)) or table,
                    table=table,
                    index=index or None,
                    reason=why.reason,
                    operation=operation,
                )
            )
    finally:
        _attempts.reset(reset)


def actions_of(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a request asks for, with a `TableName` each: actions, statements, or tables of a batch."""
    actions = [action for each in kwargs.get("TransactItems", ()) for action in each.values()]
    said = [each["Statement"].partition('"')[2].partition('"')[0] for each in kwargs.get("Statements", ())]
    actions += [{"TableName": table} for table in (*said, *kwargs.get("RequestItems", ()))]
    actions = actions or [{"TableName": "", **kwargs}]
    return [{**each, "TableName": each["TableName"].rpartition(":table/")[2]} for each in actions]  # without its ARN


def _name_of(connection: Connection, action: dict[str, Any]) -> str:
    table, item, key = str(action["TableName"]), action.get("Item", {}), action.get("Key", {})
    if item:
        with suppress(TableError, KeyError):
            key = {name: item[name] for name in connection.get_meta_table(table).get_key_names()}
    return row_name(table, tuple(next(iter(value.items())) for value in key.values()))


def scan(
    model: type[Model],
    condition: Condition | None,
    attributes: list[str] | None = None,
    *,
    is_consistent: bool = True,
    check: Callable[[dict[str, Any]], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the items of a table that fulfil a condition, as stored, page by page; `check` may refuse an answer."""
    connection = connection_of(model)
    start: Any = None
    while True:
        answer = connection.scan(
            filter_condition=condition,
            attributes_to_get=attributes,
            consistent_read=is_consistent,
            exclusive_start_key=start,
        )
        if check is not None:
            check(answer)
        yield from answer["Items"]
        start = answer.get("LastEvaluatedKey")
        if start is None:
            return


# How often a request is sent again, and after which pauses.


_T = TypeVar("_T")

#: How often a request without a response is sent, if a caller can be told that it failed.
_ATTEMPTS: Final = 4

#: How often a request of the package's own is sent while other writes have the item; its pauses last 0.75 s at most.
_AT_ONCE: Final = 5


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The condition failed. Carries the item as it was, or None if there is no such item.

    Attributes:
        repeated: whether an earlier request of the same call got no response, and may have been applied.
    """

    def __init__(self, image: Image | None, *, repeated: bool) -> None:
        super().__init__("the condition failed")
        self.image = image
        self.repeated = repeated


class Unavailable(Exception):  # noqa: N818 - an answer, not an error
    """No usable answer; the same request may succeed later. Carries botocore's exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def patiently(call: Callable[[], _T], most: int = _ATTEMPTS) -> _T:
    """Send a request that may be sent twice, again while no response comes, with pauses of full jitter.

    Raises:
        Unavailable: no request was answered.
        Refused: the condition of the last one failed; `repeated` says whether an earlier one got no response.
    """
    sending, in_doubt = RetryState(RetryPolicy(repeats=most - 1, first_pause=0)), False
    while True:
        try:
            return call()
        except Refused as refused:
            refused.repeated = refused.repeated or in_doubt
            raise
        except Unavailable as error:
            logger.debug("not answered: %s", error)
            in_doubt = in_doubt or responses.is_ambiguous(error.cause)
            if not is_sent_again(sending, Answer.UNANSWERED):
                raise
        except LockingError as error:
            if not in_doubt or not isinstance(error.cause, responses.BOTOCORE_EXCEPTIONS):
                raise
            setattr(error.cause, responses.REPEATED, True)  # a refusal for good says nothing of an earlier copy
            raise Unavailable(error.cause) from error


def ask(connection: Connection, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a request, again while other writes have its item: DynamoDB has not applied it then.

    Raises:
        Refused: its condition failed; `repeated` as `patiently` has it.
        Unavailable: no usable answer came.
        BotoCoreError, ClientError: DynamoDB refused it for good.
    """
    in_doubt, attempts = False, 0
    while True:
        try:
            return dispatch(connection, operation, kwargs)
        except responses.BOTOCORE_EXCEPTIONS as error:
            answer, attempts = responses.answer_in(error), attempts + 1
            in_doubt = in_doubt or responses.was_repeated(error)
            if answer is Answer.CONFLICT and attempts < _AT_ONCE:
                runtime.current.sleep(backoff(attempts - 1, runtime.current.jitter()))
                continue
            if answer is Answer.REFUSED:
                # With a name here, its traceback would be a cycle that keeps the callers' frames until a collection.
                raise Refused(responses.image_of(error), repeated=in_doubt) from error
            if in_doubt:
                setattr(error, responses.REPEATED, True)
            if responses.is_transient(error):
                raise Unavailable(error) from error
            raise


#: Unanswered requests in a row before giving up; their pauses last at most 12 s together.
_PERSISTENT_ATTEMPTS: Final = 12


def persistently(call: Callable[[], _T]) -> _T:
    return patiently(call, most=_PERSISTENT_ATTEMPTS)


def is_sent_again(sending: RetryState, answer: Answer) -> bool:
    """Pause before the next attempt of a request whose copies do no harm; False if there is none."""
    return paused(sending.after(answer)) in {Next.AGAIN, Next.REPEAT}


def paused(step: Step) -> Next:
    if step.pause is not None:
        runtime.current.sleep(backoff(step.pause, runtime.current.jitter()))
    return step.next
