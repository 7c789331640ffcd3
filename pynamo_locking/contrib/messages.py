"""Messages that are delivered more than once: the key of a message, and the answer to a batch of them.

An effect is applied once by `idempotent` inside a transaction, under a key that is the same in each delivery: see the
page :doc:`/how-to/apply-each-message-once`. A record without such a key raises `InvalidInput`, before anything is done.
Nothing here makes a request, or needs another package.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.exceptions import ConfigurationError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

logger: Final = logging.getLogger("pynamo_locking")


__all__ = ["celery_key", "durable_key", "partial_batch", "sqs_key", "step_functions_key", "stream_key"]


def sqs_key(record: Mapping[str, Any]) -> str:
    """Return the id that SQS has given to a message: of a record of a Lambda event, or of boto3's `receive_message`.

    A message that its producer sends again, or that is moved back from a dead-letter queue, has another id.
    """
    found = record.get("messageId") or record.get("MessageId")
    return _text(found, "this SQS record has no messageId: pass one of event['Records'], not its body.")


def stream_key(record: Mapping[str, Any]) -> str:
    """Return the id of a record of DynamoDB Streams, or of Kinesis, which is unique within its stream."""
    return _text(record.get("eventID"), "this record has no eventID: pass one of event['Records'] of a stream.")


def durable_key(context: Any, step: str, *part: str | int) -> str:
    """Return a key for a step of a Lambda durable function, which its retries and replays have as well.

    Args:
        context: the `DurableContext` of the execution.
        step: the name of the step.
        part: what tells several steps of the name apart: the id of an item.
    """
    arn = getattr(getattr(context, "execution_context", None), "durable_execution_arn", None)
    advice = "a step is known by its execution: pass the DurableContext of the handler, not that of the step or Lambda."
    return _joined(_text(arn, advice), step, *part)


def step_functions_key(context: Mapping[str, Any], *part: str | int) -> str:
    """Return a key for a state of a Step Functions execution, which its retries and redrives have as well.

    Args:
        context: the context object, which the state machine passes on: ``"context.$": "$$"``, or in JSONata
            ``"{% $states.context %}"``.
        part: what tells several runs of the state apart: the id of the item of a `Map`, the number of the round of a
            loop. It is required inside a `Map`.
    """
    execution, state = (_part(context, name, field) for name, field in (("Execution", "Id"), ("State", "Name")))
    advice = 'this is not the context object of Step Functions: let the state pass it on, as "context.$": "$$".'
    if "Map" in context and not part:
        raise InvalidInput("a state inside a Map runs for each item: pass the id of the item as well.")
    return _joined(_text(execution, advice), _text(state, advice), *part)


def celery_key(task: Any) -> str:
    """Return the id of the message of a Celery task with ``bind=True``, which its retries have as well."""
    found = getattr(getattr(task, "request", None), "id", None)
    return _text(found, "no message has started this task: pass the `self` of a task with bind=True, run by a worker.")


def partial_batch(event: Mapping[str, Any], apply: Callable[[Any], object]) -> dict[str, Any]:
    """Apply each record of a batch; return which of them Lambda is to deliver again.

    For an event source mapping with ``ReportBatchItemFailures`` of an SQS queue, of DynamoDB Streams or of Kinesis.
    A record fails if `apply` raises an `Exception`, which is logged. In a standard queue the others are applied. In a
    FIFO queue and a stream none is applied after it: it is delivered again, and so are those after it.

    Args:
        event: of Lambda.
        apply: a plain function, called with each record of the event.

    Returns:
        ``{"batchItemFailures": [...]}``, for the handler to return.

    Raises:
        InvalidInput: the event has no records, or one that has failed has no identifier. As after any error of the
            handler, Lambda delivers the whole batch again.
        ConfigurationError: `apply` is a coroutine function, and was not run. Likewise.
    """
    records, failed = event.get("Records"), list[Mapping[str, Any]]()
    if not isinstance(records, list):
        raise InvalidInput("this event has no list of Records: pass the event of a queue or of a stream.")
    for number, record in enumerate(records):
        try:
            result = apply(record)
        except Exception:
            logger.exception("record %d of a batch has failed, and is left to be delivered again", number)
            if "dynamodb" in record or "kinesis" in record:
                failed = [record]  # Lambda goes back to it in the stream
                break
            if str(record.get("eventSourceARN", "")).endswith(".fifo"):
                failed = records[number:]
                break
            failed.append(record)
        else:
            if inspect.iscoroutine(result):
                result.close()
                raise ConfigurationError(f"{apply!r:.80} is a coroutine function: let a function call it.")
    return {"batchItemFailures": [{"itemIdentifier": _identifier(each)} for each in failed]}


def _identifier(record: Mapping[str, Any]) -> str:
    """Return what Lambda knows a record of a batch by. An empty one would be a failure of the whole batch."""
    found = _part(record, "dynamodb", "SequenceNumber") or _part(record, "kinesis", "sequenceNumber")
    advice = "this record has neither messageId nor sequence number: pass the event of a queue or of a stream."
    return _text(found or record.get("messageId"), advice)


def _part(record: Mapping[str, Any], name: str, field: str) -> Any:
    part = record.get(name)
    return part.get(field) if isinstance(part, Mapping) else None


def _joined(*parts: object) -> str:
    """Make a text of the parts of a key, which no other parts have."""
    for each in parts:
        if isinstance(each, bool) or not isinstance(each, (str, int)) or each == "":
            raise InvalidInput(f"a part of a key is a whole number, or a text that is not empty, not {each!r:.80}.")
    return json.dumps(parts, ensure_ascii=False)


def _text(found: object, advice: str) -> str:
    if not isinstance(found, str) or not found:
        raise InvalidInput(advice)
    return found
