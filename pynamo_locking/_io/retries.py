"""How often a request is sent again, and after which pauses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.error_codes import Answer
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.sending import Next, Policy, Sending
from pynamo_locking._io import answers, dispatch, runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.connection import Connection

    from pynamo_locking._core.sending import Step
    from pynamo_locking._io.stored import Image

logger = logging.getLogger("pynamo_locking")
_T = TypeVar("_T")

#: How often a request without an answer is sent, if a caller can be told that it failed.
_ATTEMPTS: Final = 4

#: How often a request of the package's own is sent while other writes have the item; its pauses last 0.75 s at most.
_AT_ONCE: Final = 5


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The condition failed. Carries the item as it was, or None if there is no such item.

    Attributes:
        repeated: whether an earlier request of the same call had no answer, and may have been applied.
    """

    repeated = False

    def __init__(self, image: Image | None) -> None:
        super().__init__("the condition failed")
        self.image = image


class Unavailable(Exception):  # noqa: N818 - an answer, not an error
    """No usable answer; the same request may succeed later. Carries botocore's exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def patiently(call: Callable[[], _T], most: int = _ATTEMPTS) -> _T:
    """Send a request that may be sent twice, again while no answer comes, with pauses of full jitter.

    Raises:
        Unavailable: no request was answered.
        Refused: the condition of the last one failed; `repeated` says whether an earlier one had no answer.
    """
    sending, in_doubt = Sending(Policy(repeats=most - 1, first_pause=0)), False
    while True:
        try:
            return call()
        except Refused as refused:
            refused.repeated = refused.repeated or in_doubt
            raise
        except Unavailable as error:
            logger.debug("not answered: %s", error)
            in_doubt = in_doubt or answers.is_ambiguous(error.cause)
            if not is_sent_again(sending, Answer.UNANSWERED):
                raise


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
            return dispatch.dispatch(connection, operation, kwargs)
        except answers.BOTOCORE_EXCEPTIONS as error:
            answer, attempts = answers.answer_of(error), attempts + 1
            in_doubt = in_doubt or answers.was_repeated(error)
            if answer is Answer.CONFLICT and attempts < _AT_ONCE:
                runtime.current.sleep(backoff(attempts - 1, runtime.current.jitter()))
                continue
            if answer is Answer.REFUSED:
                refused = Refused(answers.image_of(error))
                refused.repeated = in_doubt
                raise refused from error
            if in_doubt:
                setattr(error, answers.REPEATED, True)
            if answers.is_transient(error):
                raise Unavailable(error) from error
            raise


#: Unanswered requests in a row before giving up; their pauses last at most 12 s together.
_PERSISTENT_ATTEMPTS: Final = 12


def persistently(call: Callable[[], _T]) -> _T:
    """As `patiently`, but for longer."""
    return patiently(call, most=_PERSISTENT_ATTEMPTS)


def send(
    attempt: Callable[[Next | None], _T],
    settle: Callable[[Exception, bool], _T | None],
    failed: Callable[[Exception], Exception],
    unknown: Callable[[Exception], Exception],
    *,
    look: Callable[[Exception], _T] | None = None,
    policy: Policy = Policy(),  # noqa: B008 - immutable
) -> _T:
    """Return the answer to a request.

    Args:
        attempt: sends it once; gets `AGAIN` or `REPEAT` if it was sent before, None if it has to be the same request.
        settle: judges a refusal, and whether it is in doubt: returns the answer if the request was applied, raises if
            it was not, and returns None if it has removed the obstacle.
        failed: returns the error of a request that was not applied.
        unknown: returns the error of a request that may have been applied.
        look: reads the item, if the policy says so, and returns the answer, or raises.
        policy: how the request may be sent again.
    """
    sending, how = Sending(policy), None
    while True:
        try:
            return attempt(how)
        except answers.BOTOCORE_EXCEPTIONS as error:
            answer = answers.answer_of(error, is_single=policy.is_single)
            how = _pause(sending.after(answer, was_repeated=answers.was_repeated(error)))
            if how is Next.SETTLE:
                how, data = None, settle(error, sending.in_doubt)
                if data is not None:
                    return data
            elif how is Next.LOOK and look is not None:
                return look(error)
            elif how not in {Next.AGAIN, Next.REPEAT}:
                raise (failed if how is Next.FAIL else unknown)(error) from error


def is_sent_again(sending: Sending, answer: Answer) -> bool:
    """Pause before the next attempt of a request whose copies do no harm; False if there is none."""
    return _pause(sending.after(answer)) in {Next.AGAIN, Next.REPEAT}


def _pause(step: Step) -> Next:
    if step.pause is not None:
        runtime.current.sleep(backoff(step.pause, runtime.current.jitter()))
    return step.next
