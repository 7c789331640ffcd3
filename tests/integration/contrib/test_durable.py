"""Lambda durable functions, run by AWS's own runner for tests: what a retry, a replay and a long suspension mean."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import transactional
from pynamo_locking.contrib.messages import durable_key
from pynamo_locking.exceptions import InvalidInput
from pynamo_locking.recipes import IdempotencyTable, idempotent
from tests.support import runtime
from tests.support.models import declare
from tests.support.pages import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

runner = pytest.importorskip("aws_durable_execution_sdk_python_testing", reason="its SDK needs Python 3.11")
sdk = pytest.importorskip("aws_durable_execution_sdk_python")
config = pytest.importorskip("aws_durable_execution_sdk_python.config")
exceptions = pytest.importorskip("aws_durable_execution_sdk_python.exceptions")
retries = pytest.importorskip("aws_durable_execution_sdk_python.retries")
serdes = pytest.importorskip("aws_durable_execution_sdk_python.serdes")

YEAR: Final = timedelta(days=365)
Calls = declare("Calls", IdempotencyTable)
Account = declare("Account", version=True, numbers="balance")


@transactional()
@idempotent(Calls, key="key", payload="amount", key_prefix="pay_in", expires_after=YEAR + timedelta(days=30))
def pay_in(tx: Any, key: str, amount: int) -> int:
    account = tx.get(Account, "a-1")
    account.balance += amount
    tx.save(account)
    return int(account.balance)


@pytest.fixture
def later(memory: Engine) -> Iterator[list[timedelta]]:
    """By how much the clock is ahead, in its last element."""
    memory.bind(Calls, Account)
    Account("a-1", balance=100).save()
    ahead = [timedelta()]
    now = lambda: int((time.time() + ahead[-1].total_seconds()) * 1000)  # noqa: E731
    with runtime.changed(time_ms=now):
        yield ahead


def run(handler: Any, event: object = None) -> Any:
    with runner.DurableFunctionTestRunner(handler=handler, poll_interval=0.02) as started:
        result = started.run(input=json.dumps(event), execution_timeout=3 * 365 * 24 * 3600)
    started._scheduler._loop.close()  # which it leaves to the garbage collection, with a warning
    return result


def test_steps_that_are_retried_and_replayed(later: list[timedelta]) -> None:
    """A step that ended after its commit, and is tried again a year later; then a suspension, and its replay."""
    ran = list[str]()
    year = config.Duration.from_seconds(int(YEAR.total_seconds()))
    patient = retries.RetryStrategyConfig(max_attempts=3, initial_delay=year, max_delay=year)

    @sdk.durable_execution
    def handler(_event: Any, context: Any) -> list[int]:
        def pay(step: Any) -> int:
            ran.append("pay")
            balance: int = pay_in(durable_key(context, "pay"), 5)
            if step.attempt == 1:
                later.append(YEAR)
                raise OSError
            return balance

        def pay_again(_step: Any) -> int:
            ran.append("pay again")
            balance: int = pay_in(durable_key(context, "pay again"), 5)
            return balance

        first = context.step(pay, name="pay", config=config.StepConfig(retries.create_retry_strategy(patient)))
        context.wait(year)
        return [first, context.step(pay_again, name="pay again")]

    result = run(handler)
    assert (result.error, json.loads(result.result)) == (None, [105, 110])
    assert ran == ["pay", "pay", "pay again"]
    assert Account.get("a-1").balance == 110


@pytest.mark.waits
def test_an_invocation_that_fails_before_the_result_of_a_step_is_stored(later: list[timedelta]) -> None:
    """Lambda begins another one, which runs the step again; nothing that the first one left makes it wait."""
    ran = list[str]()

    class Failing(serdes.JsonSerDes):
        def serialize(self, value: Any, context: Any) -> str:
            if len(ran) == 1:
                raise exceptions.RetryableSerDesError("the end of the invocation")
            return str(super().serialize(value, context))

    @sdk.durable_execution
    def handler(_event: Any, context: Any) -> int:
        def pay(_step: Any) -> int:
            ran.append("pay")
            balance: int = pay_in(durable_key(context, "pay"), 5)
            return balance

        balance: int = context.step(pay, name="pay", config=config.StepConfig(serdes=Failing()))
        return balance

    result = run(handler)
    assert (result.error, json.loads(result.result)) == (None, 105)
    assert ran == ["pay", "pay"]
    assert Account.get("a-1").balance == 105


def test_the_handler_of_the_page(later: list[timedelta]) -> None:
    """docs/how-to/apply-each-message-once.md."""
    [block] = blocks_of("apply-each-message-once")
    page = {"pay_in": lambda key, _account, amount: pay_in(key, amount)}
    exec(block, page)
    event = {"account": "a-1", "amount": 5}
    assert json.loads(run(page["handler"], event).result) == 105
    assert Account.get("a-1").balance == 105


def test_the_context_of_a_step_has_no_key() -> None:
    with pytest.raises(InvalidInput, match="the DurableContext of the handler"):
        durable_key(sdk.StepContext(logger=None, attempt=1), "pay")
