"""When a request is sent again, and when its sender stops: every branch, without an engine."""

from __future__ import annotations

import itertools

import pytest

from pynamo_locking._core.dynamodb import MOST_CONFLICTS, PASSING, Answer, Next, RetryPolicy, RetryState, Step

ONCE = RetryPolicy(is_single=True)
FINAL = {Next.READ, Next.FAIL, Next.UNKNOWN}
#: What proves that an attempt was not applied, and passes only where botocore does not repeat it.
LEFT_TO_BOTOCORE = sorted(PASSING - {Answer.CONFLICT}, key=lambda answer: answer.name)


def steps(policy, *answers):
    """Return what comes after each of some answers."""
    sending = RetryState(policy)
    return [sending.after(answer) for answer in answers]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_refusal_is_settled(in_doubt):
    """Whatever was before: the image that comes with it says most."""
    sending = RetryState(RetryPolicy())
    assert sending.after(Answer.REFUSED, was_repeated=in_doubt) == Step(Next.SETTLE)
    assert sending.in_doubt is in_doubt


def test_conflicts_are_sent_again_with_pauses():
    """Eight times; then the request has failed, since no attempt was applied."""
    assert steps(RetryPolicy(), *[Answer.CONFLICT] * (MOST_CONFLICTS + 1)) == [
        *(Step(Next.AGAIN, number) for number in range(1, MOST_CONFLICTS + 1)),
        Step(Next.FAIL),
    ]


def test_conflicts_in_doubt_repeat_the_same_request():
    """An earlier attempt may have been applied, so the copy keeps its token; in the end the outcome is unknown."""
    unanswered, *conflicts, last, end = steps(RetryPolicy(repeats=2), Answer.UNANSWERED, *[Answer.CONFLICT] * 10)
    assert unanswered == Step(Next.REPEAT)
    assert conflicts == [Step(Next.REPEAT, number) for number in range(1, MOST_CONFLICTS + 1)]
    assert (last, end) == (Step(Next.REPEAT), Step(Next.UNKNOWN))


@pytest.mark.parametrize("answer", LEFT_TO_BOTOCORE)
def test_throttled_requests_are_left_to_botocore(answer):
    """It has repeated them already, unless it may not."""
    assert steps(RetryPolicy(), answer) == [Step(Next.FAIL)]
    assert steps(ONCE, *[answer] * 9) == [*(Step(Next.AGAIN, n) for n in range(1, 9)), Step(Next.FAIL)]


def test_conflicts_and_limits_share_one_budget():
    """However they alternate, a request is not sent for ever."""
    mixed = itertools.islice(itertools.cycle([Answer.BUSY, Answer.CONFLICT, Answer.NOT_SENT]), 9)
    assert [step.next for step in steps(ONCE, *mixed)] == [Next.AGAIN] * 8 + [Next.FAIL]


@pytest.mark.parametrize("policy", [RetryPolicy(), RetryPolicy(repeats=3), RetryPolicy(reads_outcome=True), ONCE])
def test_a_denied_request_has_failed(policy):
    """At once: no copy would fare better."""
    assert steps(policy, Answer.DENIED) == [Step(Next.FAIL)]


@pytest.mark.parametrize("answer", [Answer.DENIED, *LEFT_TO_BOTOCORE])
def test_a_failure_in_doubt_is_as_no_answer(answer):
    """The last attempt was not applied, and an earlier one may have been."""
    for was_repeated, before in ((True, []), (False, [Answer.UNANSWERED])):
        sending = RetryState(RetryPolicy(repeats=2))
        for each in before:
            sending.after(each)
        assert sending.after(answer, was_repeated=was_repeated) == Step(Next.REPEAT)


@pytest.mark.parametrize("repeats", [0, 1, 4])
@pytest.mark.parametrize("first", [None, 0, 1])
def test_no_answer(repeats, first):
    """So many copies follow, and then the outcome is unknown."""
    found = steps(RetryPolicy(repeats, first), *[Answer.UNANSWERED] * (repeats + 1))
    pauses = [None if first is None else first + number for number in range(repeats)]
    assert found == [*(Step(Next.REPEAT, pause) for pause in pauses), Step(Next.UNKNOWN)]


def test_what_must_not_be_applied_twice_is_looked_for():
    """No copy is sent, whatever the number of copies; a conflict before is no danger."""
    policy = RetryPolicy(repeats=4, is_single=True, reads_outcome=True)
    assert steps(policy, Answer.CONFLICT, Answer.UNANSWERED) == [Step(Next.AGAIN, 1), Step(Next.READ)]


def test_doubt_begins_with_what_botocore_repeated():
    """And never ends."""
    sending = RetryState(RetryPolicy())
    assert sending.after(Answer.CONFLICT) == Step(Next.AGAIN, 1)
    assert not sending.in_doubt
    assert sending.after(Answer.CONFLICT, was_repeated=True) == Step(Next.REPEAT, 2)
    assert sending.after(Answer.CONFLICT) == Step(Next.REPEAT, 3)
    assert sending.in_doubt


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_all_short_histories(repeats, looks, is_single):
    """Nothing that may have been applied is called failed, nothing that was not is called unknown."""
    for answers in itertools.product(Answer, repeat=4):
        sending, has_doubt = RetryState(RetryPolicy(repeats, None, is_single, looks)), False
        copies = 0
        for answer in answers:
            step = sending.after(answer)
            has_doubt = has_doubt or answer is Answer.UNANSWERED
            assert sending.in_doubt == has_doubt
            assert (step.next is Next.SETTLE) == (answer is Answer.REFUSED)
            assert step.next is not Next.FAIL or not has_doubt
            assert step.next not in {Next.READ, Next.UNKNOWN, Next.REPEAT} or has_doubt
            assert (step.next is Next.READ) <= looks
            copies += step.next is Next.REPEAT and step.pause is None
            assert copies <= (0 if looks else repeats)
            if step.next in FINAL:
                break
