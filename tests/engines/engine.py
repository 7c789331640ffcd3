"""One DynamoDB engine, as a test sees it: clients, and tables that vanish when the test ends."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import botocore.config
import botocore.exceptions
import botocore.session
import pytest
from moto import mock_aws  # before any session is made, so that each has moto's hook
from moto.core import models as moto_models
from moto.core.botocore_stubber import BotocoreStubber
from pynamodb.models import Model

from tests.engines import descriptions, one_table
from tests.engines.memory import TappedMemory
from tests.engines.servers import Servers, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

M = TypeVar("M", bound=Model)

#: When set, the tests run against AWS instead of the engines, on tables that begin with this text.
AWS_PREFIX_VARIABLE: Final = "PYNAMO_LOCKING_AWS_TABLE_PREFIX"
DUMMY: Final = "dummy"
DUMMY_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": DUMMY,
    "AWS_SECRET_ACCESS_KEY": DUMMY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
COUNTER: Final = itertools.count(1)
MISSING: Final = object()

descriptions.share()
descriptions.hasten_moto()


class Engine:
    """A DynamoDB to test against.

    ``host`` is None for moto, which answers inside this process, and for AWS.
    """

    def __init__(
        self,
        name: str,
        host: str | None,
        region: str,
        prefix: str,
        session: botocore.session.Session,
        memory: TappedMemory | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.region = region
        self._prefix = prefix
        self._session = session
        self._memory = memory
        self._clients: dict[tuple[int, float], Any] = {}
        self._cleanup = ExitStack()
        self._shared: str | None = None

    def __repr__(self) -> str:
        return f"<Engine {self.name} {self.host or 'in process'}>"

    @property
    def is_moto(self) -> bool:
        return self.name == "moto"

    @property
    def is_aws(self) -> bool:
        return self.name == "aws"

    @property
    def vanishes(self) -> bool:
        """Whether it ends with the test, and all tables with it."""
        return self.is_moto or self._memory is not None

    @property
    def credentials(self) -> dict[str, str]:
        """Keyword arguments for clients and connections made by a test; empty on AWS, which finds its own."""
        return {} if self.is_aws else {"aws_access_key_id": DUMMY, "aws_secret_access_key": DUMMY}

    def client(self, *, attempts: int = 1, read_timeout: float = 10) -> Any:
        """A plain low-level client, which does not retry unless told to; the same one for the same
        arguments.
        """
        if self._memory is not None:
            return self._memory.client(attempts)
        key = (attempts, read_timeout)
        if key not in self._clients:
            config = botocore.config.Config(
                retries={"total_max_attempts": attempts, "mode": "standard"},
                parameter_validation=False,
                connect_timeout=2,
                read_timeout=read_timeout,
                max_pool_connections=32,
            )
            create_client: Any = self._session.create_client
            self._clients[key] = create_client(
                "dynamodb", region_name=self.region, endpoint_url=self.host, config=config, **self.credentials
            )
        return self._clients[key]

    def new_name(self, name: str = "table") -> str:
        """A table name never used before in this run.

        The table is deleted when the test ends, if it was created.
        """
        unique = f"{self._prefix}{next(COUNTER)}-{name}"
        self._cleanup.callback(self._drop, unique)
        return unique

    def create_table(self, hash_type: str = "S", range_type: str | None = None) -> str:
        """A new table with the key ``pk`` (and ``sk``), made by a low-level request; its name."""
        name = self.new_name()
        types = {"pk": hash_type} if range_type is None else {"pk": hash_type, "sk": range_type}
        client = self.client()
        client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in types.items()],
            KeySchema=[
                {"AttributeName": key, "KeyType": role} for key, role in zip(types, ("HASH", "RANGE"), strict=False)
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        self.await_table(name)
        return name

    def await_table(self, name: str) -> None:
        """Wait until a table can be used. On an emulator it can be at once."""
        if self.is_aws:
            self.client().get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 90})

    @overload
    def bind(self, model: type[M], /) -> type[M]: ...
    @overload
    def bind(self, first: type[Model], second: type[Model], /, *more: type[Model]) -> tuple[type[Model], ...]: ...
    def bind(self, *models: type[Model]) -> Any:
        """Give each model a fresh table here; return the model, or the tuple of them. Undone when the
        test ends.
        """
        for model in models:
            self._bind(model)
        return models[0] if len(models) == 1 else models

    def bind_to(self, table: str, *models: type[Model]) -> None:
        """Give models a table that is there. Undone when the test ends."""
        for model in models:
            self._bind(model, table)

    def _bind(self, model: type[Model], table: str | None = None) -> None:
        meta: Any = model.Meta
        own: Any = model
        if one_table.is_wanted() and issubclass(model, one_table.SHAREABLE) and table is None:
            self._cleanup.enter_context(one_table.sharing(own))
            if self._shared is None:
                self._shared = self.create_table(range_type="S")
                self._cleanup.enter_context(one_table.beside_others(self.client(), self._shared))
            table = self._shared
        values: dict[str, Any] = {
            "table_name": table or self.new_name(getattr(meta, "table_name", None) or model.__name__),
            "host": self.host,
            "region": self.region,
            "connect_timeout_seconds": 2,
            "read_timeout_seconds": 5,
            **self.credentials,
        }
        for name, value in values.items():
            self._cleanup.callback(_restore, meta, name, vars(meta).get(name, MISSING))
            setattr(meta, name, value)
        self._cleanup.callback(setattr, model, "_connection", None)
        model._connection = None
        # Loading botocore's model of DynamoDB takes 0.1 s per session; PynamoDB would make one for each
        # model.
        connection: Any = model._get_connection().connection
        connection._local.session = self._session
        self._cleanup.callback(_close, connection)
        if table is None:
            self._make_table(model, connection)

    def _make_table(self, model: type[Model], connection: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if not self.is_aws:
                # The name is new, so there is no need to ask; and a new table can be used at once.
                patch.setattr(model, "exists", lambda: False)
                # Three requests more. Besides, DynamoDB Local deletes what has expired in the middle of a test.
                patch.setattr(model, "update_ttl", lambda *_arguments, **_options: None)
            if self._memory is None:
                # A client takes longer to make than a table, and many models that a test binds are never used.
                patch.setattr(connection, "_client", self.client())
            model.create_table(wait=self.is_aws, billing_mode="PAY_PER_REQUEST", ignore_update_ttl_errors=True)

    def _drop(self, table: str) -> None:
        if self.vanishes:
            return
        client = self.client()
        try:
            if self.is_aws:
                client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 2})
            client.delete_table(TableName=table)
        except (client.exceptions.ResourceNotFoundException, botocore.exceptions.WaiterError):
            return

    def close(self) -> None:
        """Delete the tables, close the clients, put the models' ``Meta`` back."""
        try:
            self._cleanup.close()
        finally:
            for client in self._clients.values():
                client.close()


def _close(connection: Any) -> None:
    if connection._client is not None:
        connection._client.close()


def _restore(meta: Any, name: str, value: object) -> None:
    if value is MISSING:
        delattr(meta, name)
    else:
        setattr(meta, name, value)


@contextmanager
def moto_one_at_a_time() -> Iterator[None]:
    """An empty moto in this process that takes one request at a time, as DynamoDB does an item.

    Without it, threads lose updates and see "dictionary changed size during iteration".
    """
    one_at_a_time = threading.Lock()
    answer = BotocoreStubber.__call__

    def answer_alone(self: BotocoreStubber, *args: Any, **options: Any) -> Any:
        with one_at_a_time:
            return answer(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        # botocore's requests come by another way; moto would prepare 1,300 answers to those of `requests`.
        patch.setattr(moto_models, "RESPONSES_METHODS", ())
        with mock_aws():
            patch.setattr(BotocoreStubber, "__call__", answer_alone)
            yield


_SESSIONS: Final[dict[str, botocore.session.Session]] = {}


def _session(name: str) -> botocore.session.Session:
    if name not in _SESSIONS:
        session = botocore.session.get_session()
        if name != "aws":
            session.set_credentials(DUMMY, DUMMY)
        _SESSIONS[name] = session
    return _SESSIONS[name]


def _url(servers: Servers, name: str) -> str:
    try:
        return servers[name].url
    except StartError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@contextmanager
def running(name: str, servers: Servers) -> Iterator[Engine]:
    """The engine of this name, for one test."""
    with ExitStack() as stack:
        if name == "aws":
            session = _session(name)
            region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
            prefix = f"{os.environ[AWS_PREFIX_VARIABLE]}{os.urandom(4).hex()}-"
            engine = Engine(name, None, region, prefix, session)
        else:
            environment = stack.enter_context(pytest.MonkeyPatch.context())
            for variable, value in DUMMY_ENVIRONMENT.items():
                environment.setenv(variable, value)
            environment.delenv("AWS_PROFILE", raising=False)
            host, memory = None, None
            if name == "moto":
                stack.enter_context(moto_one_at_a_time())
            elif name == "memory":
                memory = stack.enter_context(TappedMemory())
            else:
                host = _url(servers, name)
            engine = Engine(name, host, "us-east-1", "test-", _session("local"), memory)
        stack.callback(engine.close)
        yield engine
