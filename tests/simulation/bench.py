"""A table and clients that send raw requests, for tests of the simulated DynamoDB itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pynamo_locking_testing._engine.choices import Listed, Recorded, every_branch
from pynamo_locking_testing._engine.faults import Fault, Faults
from pynamo_locking_testing._engine.network import Network, Place
from pynamo_locking_testing._engine.scheduler import Process, Scheduler
from pynamo_locking_testing.clock import ClockView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing._engine.choices import Choices

#: A transaction's condition that is false, and shows the item.
FALSE = {"ConditionExpression": "attribute_exists(nothing)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class _FaultsOf(Faults):
    """A fault that strikes the first request of one operation."""

    operation = "TransactWriteItems"

    def at(self, operation: str, **more: Any) -> Fault | None:
        return super().at(operation, **more) if operation == self.operation else None


class Bench:
    """Items `a`, `b`, ... with counters `n` in one table, and clients.

    Args:
        choices: decide; without, everything is dull.
        fault: strikes the first transaction.
        steps: whether transactions go step by step.
        more: options of the steps.
    """

    def __init__(
        self, choices: Choices | None = None, fault: Fault | None = None, *, steps: bool = True, **more: Any
    ) -> None:
        recorded = Recorded(choices or Listed([]))
        self.scheduler = Scheduler(recorded, None, 10_000.0, lambda: None, is_fine=False)
        self.faults = _FaultsOf(Recorded(Listed([1])), {} if fault is None else {fault: 1})
        self.network = Network(self.scheduler, self.faults, pause_s=9.0)
        if steps:
            self.network.take_steps(recorded, **more)
        create_table(self.network)
        self.processes = [Process(f"p{number}", ClockView(self.scheduler)) for number in range(3)]
        self.heard: dict[str, list[Any]] = {}
        self.on_the_way: list[str] = []

    def spawn(self, name: str, *requests: Callable[[], Any], process: int = 0) -> None:
        """Add a client that does this, and notes what it hears: an answer, or the code of an error."""
        heard = self.heard[name] = []

        def target() -> None:
            for request in requests:
                try:
                    heard.append(request())
                except Exception as error:  # noqa: BLE001 - what the client hears
                    heard.append(code(error))

        self.scheduler.spawn(self.processes[process], name, target)

    def play(self) -> Bench:
        """Let everyone do what they do, and everything land."""
        self.scheduler.run()
        self.on_the_way = [str(each) for each in self.scheduler.landings]
        self.scheduler.let_land()
        return self

    def send(self, operation: str, **kwargs: Any) -> dict[str, Any]:
        return self.network.attempt(operation, kwargs, 1.0)

    def add(self, *keys: str, token: str | None = None, by: int = 1, but: str = "") -> str:
        """Add to counters in one transaction, with a condition that is false for one of them; return "done"."""
        actions = [{"Update": {**addition(key, by), **(FALSE if key == but else {})}} for key in keys]
        self.send("TransactWriteItems", TransactItems=actions, **({"ClientRequestToken": token} if token else {}))
        return "done"

    def add_one(self, key: str) -> str:
        """Add to a counter in a plain request."""
        self.send("UpdateItem", **addition(key, 1))
        return "done"

    def get(self, key: str) -> int:
        """Read a counter in a plain request."""
        return _number(self.send("GetItem", TableName="table", Key={"key": {"S": key}}, ConsistentRead=True))

    def get_all(self, *keys: str) -> tuple[int, ...]:
        """Read counters in one transaction."""
        gets = [{"Get": {"TableName": "table", "Key": {"key": {"S": key}}}} for key in keys]
        return tuple(_number(each) for each in self.send("TransactGetItems", TransactItems=gets)["Responses"])

    def sleep(self, seconds: float) -> None:
        self.scheduler.block(seconds, "sleeps")

    def count(self, key: str) -> int:
        return _number({"Item": self.network.image(place(key)) or {}})


def create_table(network: Network) -> None:
    """Make a table with a hash key `key`."""
    key = {"AttributeName": "key", "AttributeType": "S"}
    schema = {"AttributeName": "key", "KeyType": "HASH"}
    kwargs = {"TableName": "table", "AttributeDefinitions": [key], "KeySchema": [schema]}
    network.handle("CreateTable", {**kwargs, "BillingMode": "PAY_PER_REQUEST"})


def every(
    build: Callable[[Bench], None], fault: Fault | None = None, *, steps: bool = True, **more: Any
) -> Iterator[Bench]:
    """Yield one run for each list of choices."""
    for choices in every_branch():
        bench = Bench(choices, fault, steps=steps, **more)
        build(bench)
        yield bench.play()


def place(key: str) -> Place:
    """Return an item of the table."""
    return Place("table", (key,))


def addition(key: str, by: int) -> dict[str, Any]:
    """Return the arguments of an update."""
    values = {":by": {"N": str(by)}}
    update = {"UpdateExpression": "ADD n :by", "ExpressionAttributeValues": values}
    return {"TableName": "table", "Key": {"key": {"S": key}}, **update}


def code(error: Exception) -> Any:
    """Return the code of an error; of a cancelled transaction, the reasons."""
    response: Any = error.response if isinstance(error, ClientError) else None
    if response is None:
        return type(error).__name__
    if "CancellationReasons" in response:
        return tuple(each["Code"] for each in response["CancellationReasons"])
    return response["Error"]["Code"]


def _number(answer: dict[str, Any]) -> int:
    return int(answer.get("Item", {}).get("n", {"N": "0"})["N"])
