"""Sends a request until it is known what became of it, as `sending` decides. What is different is handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pynamo_locking._core.lease import backoff
from pynamo_locking._core.sending import Next, Policy, Sending
from pynamo_locking._io import runtime, transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.error_codes import Answer
    from pynamo_locking._core.sending import Step

_T = TypeVar("_T")


def send(
    attempt: Callable[[Next | None], _T],
    settle: Callable[[Exception, bool], _T | None],
    failed: Callable[[Exception], Exception],
    unknown: Callable[[Exception], Exception],
    *,
    look: Callable[[Exception], _T] | None = None,
    policy: Policy = Policy(),  # noqa: B008 - frozen
) -> _T:
    """Return the answer to a request.

    Args:
        attempt: sends it once; gets `AGAIN` or `REPEAT` if it was sent before, None if it has to be the same request.
        settle: judges a refusal, and whether it is in doubt: returns the answer if the request was applied, raises
            if it was not, and returns None if it has removed what was in the way.
        failed: returns the error of a request that was not applied.
        unknown: returns the error of a request that may have been applied.
        look: reads the item, if the policy says so, and returns the answer, or raises.
        policy: how the request may be sent again.
    """
    sending, how = Sending(policy), None
    while True:
        try:
            return attempt(how)
        except transport.BOTOCORE_EXCEPTIONS as error:
            answer = transport.answer_of(error, is_single=policy.is_single)
            how = _pause(sending.after(answer, was_repeated=transport.was_repeated(error)))
            if how is Next.SETTLE:
                how, data = None, settle(error, sending.in_doubt)
                if data is not None:
                    return data
            elif how is Next.LOOK and look is not None:
                return look(error)
            elif how not in {Next.AGAIN, Next.REPEAT}:
                raise (failed if how is Next.FAIL else unknown)(error) from error


def is_sent_again(sending: Sending, answer: Answer) -> bool:
    """Pause before the next attempt of a request of which a copy does no harm; False if there is none."""
    return _pause(sending.after(answer)) in {Next.AGAIN, Next.REPEAT}


def _pause(step: Step) -> Next:
    if step.pause is not None:
        runtime.current.sleep(backoff(step.pause, runtime.current.jitter()))
    return step.next
