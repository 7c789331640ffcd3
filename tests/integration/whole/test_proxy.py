"""A bad network on real sockets: botocore's own attempts, timeouts and connection pool, and a truthful answer.

`writes/test_lost_responses` and `writes/test_write_ids` spoil requests inside botocore, where any moment can be chosen.
Here nothing of botocore is touched but the length of its pauses: a proxy stands before the engine.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import botocore.endpoint
import pytest
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockSettings, NamedLock, TransactWrite, VersionedMixin
from pynamo_locking.exceptions import ItemLocked, LockingError, LockTimeout, OutcomeUnknown, StaleVersion
from tests.conftest import ON_AWS, engines
from tests.engines.engine import running
from tests.support.models import declare
from tests.support.parties import held_elsewhere
from tests.support.proxy import Fault, Proxy, nothing, nth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

pytestmark = [pytest.mark.waits, pytest.mark.skipif(ON_AWS, reason="the proxy stands before an engine on this machine")]

#: Of the lock's requests and of the models': long for an engine beside us, also on a busy machine, short for a
#: test. What has to time out does so on dynoxide.
TIMEOUTS_S = {"dynoxide": 0.4, "dynamodb-local": 1.5}
#: botocore's pauses and ours, in comparison with what they are in production.
PAUSES = 0.01

Plain = declare("Plain", lock=True, numbers="value")
Versioned = declare("Versioned", lock=True, version=True, numbers="value")
#: Locks without items, and those of `Beside`.
Locks = declare("Locks", NamedLock)
Beside = declare("Beside", version=True, numbers="value", lock_table=Locks)
Free = declare("Free", VersionedMixin, version=True, numbers="value")


MODELS: list[Any] = [Plain, Versioned, Locks, Beside, Free]


@pytest.fixture(params=engines(["dynoxide", "dynamodb-local"]))
def engine(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Engine]:
    """Each engine that is a server."""
    with running(request.param, servers) as engine:
        yield engine


@pytest.fixture
def proxy(engine: Engine) -> Iterator[Proxy]:
    """The models, bound to a proxy before the engine."""
    assert engine.host is not None
    engine.bind(*MODELS)
    with Proxy(engine.host) as proxy:
        for model in MODELS:
            _lead_through(proxy, engine, model)
        yield proxy
        for model in MODELS:
            model._connection.connection.client.close()
    assert proxy.errors == []


def _lead_through(proxy: Proxy, engine: Engine, model: Any) -> None:
    """Send a model's requests to the proxy; the engine's fixture puts all of it back."""
    model.Meta.host = proxy.url
    timeout_s = TIMEOUTS_S[engine.name]
    model.Meta.read_timeout_seconds = timeout_s
    model.Meta.lock_settings = LockSettings(
        lease=6 * timeout_s, poll_interval=0.01, max_poll_interval=0.05, request_timeout=timeout_s, max_clock_skew=0.5
    )
    model._connection = None
    model._get_connection().connection._local.session = engine._session


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore decides whether and for how long to pause; only the pause itself is shorter."""

    class Time:
        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(seconds * PAUSES)

    monkeypatch.setattr(botocore.endpoint, "time", Time)


def stored(engine: Engine, model: Any, key: str) -> dict[str, Any]:
    """Read an item past the proxy and past the library."""
    name = model._hash_key_attribute().attr_name
    answer = engine.client().get_item(TableName=model.Meta.table_name, Key={name: {"S": key}}, ConsistentRead=True)
    return answer.get("Item", {})


def value_of(engine: Engine, model: Any, key: str) -> int:
    return int(stored(engine, model, key).get("value", {"N": "0"})["N"])


def say(act: Callable[[], object]) -> str:
    """What an operation says of itself."""
    try:
        act()
    except OutcomeUnknown:
        return "unknown"
    except (LockingError, PynamoDBException) as error:
        return f"refused: {error!r}"
    return "applied"


# Every operation


class Case(NamedTuple):
    """One operation, which adds 1 to a value that was 0.

    Attributes:
        prepare: what is done before the fault; returns what does it.
        applied: how often it was applied, read past the proxy.
        models: those whose items it needs.
        may_be_unknown: whether it must not be sent twice.
        repeated: what it says, and how often it was applied, if the network repeats it and passes the second answer on.
    """

    prepare: Callable[[str], Callable[[], object]]
    applied: Callable[[Engine, str], int]
    models: tuple[Any, ...]
    may_be_unknown: bool = False
    repeated: tuple[str, int] = ("applied", 1)


def counts(model: Any) -> Callable[[Engine, str], int]:
    return lambda engine, key: value_of(engine, model, key)


def locked_save(model: Any) -> Case:
    def act(key: str) -> None:
        with model.locked(key) as lock:
            lock.item.value += 1
            lock.item.save()

    return Case(lambda key: lambda: act(key), counts(model), (model,))


def locked_update(model: Any) -> Case:
    def act(key: str) -> None:
        with model.locked(key) as lock:
            lock.item.update([model.value.add(1)])

    return Case(lambda key: lambda: act(key), counts(model), (model,))


def edit(model: Any) -> Case:
    def act(key: str) -> None:
        with model.edit(key) as item:
            item.value += 1

    return Case(lambda key: lambda: act(key), counts(model), (model,))


def named_lock() -> Case:
    """What is done under it is not DynamoDB's: one ticket was taken, and the queue is empty again."""

    def act(key: str) -> None:
        with Locks.locked(f"name-{key}"):
            pass

    def served(engine: Engine, key: str) -> int:
        document = stored(engine, Locks, f"name-{key}")["lock"]["M"]
        assert document["queue"] == {"M": {}}
        return 1

    return Case(lambda key: lambda: act(key), served, ())


def versioned_save(model: Any) -> Case:
    def prepare(key: str) -> Callable[[], object]:
        item = model.get(key)
        item.value += 1
        return item.save

    return Case(prepare, counts(model), (model,))


def versioned_create(model: Any) -> Case:
    return Case(
        lambda key: model(f"new-{key}", value=1).save, lambda engine, key: value_of(engine, model, f"new-{key}"), ()
    )


def versioned_update(model: Any) -> Case:
    def prepare(key: str) -> Callable[[], object]:
        item = model.get(key)
        return lambda: item.update([model.value.add(1)])

    return Case(prepare, counts(model), (model,))


def unchecked_update(model: Any) -> Case:
    def prepare(key: str) -> Callable[[], object]:
        item = model.get(key)
        return lambda: item.update([model.value.add(1)], add_version_condition=False)

    return Case(prepare, counts(model), (model,), may_be_unknown=True, repeated=("applied", 2))


def versioned_delete(model: Any) -> Case:
    def applied(engine: Engine, key: str) -> int:
        return int(not stored(engine, model, key))

    return Case(lambda key: model.get(key).delete, applied, (model,), repeated=("refused", 1))


def both(engine: Engine, key: str) -> int:
    """How often a transaction of two items was applied: as often to one as to the other."""
    first, second = value_of(engine, Versioned, key), value_of(engine, Free, key)
    assert first == second
    return first


def transaction(*, is_locked: bool) -> Case:
    def write(first: Any, second: Any) -> None:
        first.value += 1
        with TransactWrite(connection=Versioned._get_connection().connection) as transaction:
            transaction.save(first)
            transaction.update(second, [Free.value.add(1)])

    def prepare(key: str) -> Callable[[], object]:
        free, second = Versioned.get(key), Free.get(key)

        def act() -> None:
            with Versioned.locked(key) as lock:
                write(lock.item, second)

        return act if is_locked else lambda: write(free, second)

    return Case(prepare, both, (Versioned, Free))


CASES = {
    "locked-save": locked_save(Plain),
    "locked-update-beside": locked_update(Beside),
    "edit": edit(Versioned),
    "named-lock": named_lock(),
    "create": versioned_create(Free),
    "update": versioned_update(Free),
    "unchecked-update": unchecked_update(Free),
    "delete": versioned_delete(Free),
    "transaction-in-lock": transaction(is_locked=True),
}
SOUND = [fault for fault in Fault if fault is not Fault.CUT_RESPONSE]


@pytest.mark.parametrize("name", CASES)
def test_one_fault_at_each_request(engine: Engine, proxy: Proxy, name: str) -> None:
    """Whatever happens to whichever request of an operation: applied once, and said so.

    Late copies change nothing. Only a write that checks nothing, and so must not be sent twice, may say that it
    does not know; and if the network itself duplicates it, it counts twice. And a delete whose first answer was not
    seen finds no item, which it says.
    """
    # One that the engine never sees, and a timeout, are the same whatever the engine is.
    faults = [one for one in SOUND if engine.name == "dynoxide" or (one.reaches_engine and not one.is_slow)]
    assert wrong_answers(engine, proxy, CASES[name], faults) == []


@pytest.mark.parametrize("name", CASES)
def test_an_answer_that_is_cut_short(engine: Engine, proxy: Proxy, name: str) -> None:
    """botocore takes what is left of it for the answer, unless it may repeat the request: we must not."""
    assert wrong_answers(engine, proxy, CASES[name], [Fault.CUT_RESPONSE]) == []


def wrong_answers(engine: Engine, proxy: Proxy, case: Case, faults: list[Fault]) -> list[str]:
    """Do an operation under each fault, at its first request, its second one, and so on to its last."""
    wrong = []
    for fault in faults:
        for position in itertools.count():
            was_hit, problem = _hit(engine, proxy, case, fault, position)
            if not was_hit:
                break
            wrong += [f"{fault.name} at request {position}: {problem}"] if problem else []
        assert position > 0, "no request was made"
    return wrong


def _hit(engine: Engine, proxy: Proxy, case: Case, fault: Fault, position: int) -> tuple[bool, str]:
    """Do it on an item of its own; return whether there was such a request, and what is wrong with the result."""
    key = f"{fault.name}-{position}"
    for model in case.models:
        model(key).save()
    before = proxy.injected[fault]
    act, proxy.plan = case.prepare(key), nth(position, fault)
    said = say(act)
    proxy.plan = nothing
    counted = [case.applied(engine, key)]
    proxy.release()
    if case.models:  # the late copy of a request to enter a free queue brings an entry back, until its lease is over
        counted.append(case.applied(engine, key))
    if fault is Fault.DOUBLED:
        is_right = {(said.partition(":")[0], count) for count in counted} == {case.repeated}
    elif case.may_be_unknown and fault is Fault.DUPLICATED:
        is_right = said == "applied" and counted == [1, 2]  # what checks nothing cannot know its second copy
    else:
        may_be_unknown = case.may_be_unknown and fault is not Fault.THROTTLED
        is_right = counted[0] == counted[-1] == 1 if said == "applied" else said == "unknown" and may_be_unknown
    return proxy.injected[fault] > before, "" if is_right else f"{said}, applied {counted} times"


def test_a_copy_of_what_a_lock_refused_is_applied_when_the_lock_is_free(engine: Engine, proxy: Proxy) -> None:
    """No version prevents it, so it is not promised: the network sends a second copy after the refusal."""
    Versioned("a").save()
    copy = Versioned.get("a")
    copy.value += 1
    with held_elsewhere(Versioned.locked("a", heartbeat=False)):
        proxy.plan = nth(0, Fault.DUPLICATED)
        with pytest.raises(ItemLocked):
            copy.save()
        proxy.plan = nothing
    proxy.release()
    assert proxy.injected[Fault.DUPLICATED]
    assert value_of(engine, Versioned, "a") == 1
    copy = Versioned.get("a")
    copy.value += 1
    Versioned.get("a").save()
    proxy.plan = nth(0, Fault.DUPLICATED)
    with pytest.raises(StaleVersion):
        copy.save()
    proxy.release()
    assert value_of(engine, Versioned, "a") == 1, "a version that has gone up never comes back"


def test_botocores_own_attempts(engine: Engine, proxy: Proxy) -> None:
    """Nothing is answered, four attempts of botocore, all of it once more by us: unknown, and applied once."""
    Plain("a").save()
    with Plain.locked("a", heartbeat=False) as lock:
        proxy.plan = nth(0, Fault.LOST_RESPONSE, times=100)
        before = proxy.total
        with pytest.raises(OutcomeUnknown):
            lock.item.update([Plain.value.add(1)])
        assert proxy.total - before == 2 * 4
        assert value_of(engine, Plain, "a") == 1
        proxy.plan = nothing
        with pytest.raises(StaleVersion, match="read in version 1, and is stored in version 2"):
            lock.item.save()  # it would be 0 again
        lock.item.refresh()
        lock.item.value += 1
        lock.item.save()
    assert value_of(engine, Plain, "a") == 2
    assert Plain.lock_state("a").entries == ()


@pytest.mark.parametrize("fault", [Fault.STALLED_REQUEST, Fault.RESET_BEFORE, Fault.THROTTLED])
def test_no_request_gets_through(engine: Engine, proxy: Proxy, fault: Fault) -> None:
    """A lock for which no answer comes is not taken, in a bounded number of requests; then it can be taken."""
    Plain("a").save()
    proxy.plan = nth(0, fault, times=1000)
    with pytest.raises(LockTimeout, match="no answer"):
        Plain.locked("a", wait=0).acquire()
    assert proxy.injected[fault] < 50  # to enter, to leave in case one of those arrived, and by a thread
    proxy.plan = nothing
    with Plain.edit("a", wait=0) as item:
        item.value += 1
    assert value_of(engine, Plain, "a") == 1


def test_a_late_request_to_enter(engine: Engine, proxy: Proxy) -> None:
    """It arrives after we have left and brings our entry back: gone after a lease, and no other caller had it."""
    Plain("a").save()
    with Plain.locked("a"):
        pass
    proxy.plan = nth(0, Fault.LATE)
    with Plain.edit("a") as item:
        item.value += 1
    assert proxy.release() == [200]
    [ghost] = Plain.lock_state("a").entries
    with Plain.locked("a", wait=10 * Plain.lock_settings().lease) as lock:
        assert lock.ticket > ghost.ticket
        assert [entry.ticket for entry in Plain.lock_state("a").entries] == [lock.ticket]
    assert Plain.lock_state("a").entries == ()
    assert value_of(engine, Plain, "a") == 1


def test_late_copies_of_guarded_writes(engine: Engine, proxy: Proxy) -> None:
    """Each write of a holder is late and overtaken by the next one, or by another holder: none lands on top."""
    Plain("a").save()
    for _ in range(5):
        with Plain.locked("a") as lock:
            for _ in range(2):
                proxy.plan = nth(0, Fault.LATE)
                lock.item.update([Plain.value.add(1)])
            assert proxy.release() == [400, 400]
            proxy.plan = nth(0, Fault.LATE)
            lock.item.update([Plain.value.add(1)])
        with Plain.edit("a") as item:
            item.value += 100
        assert proxy.release() == [400]
    assert value_of(engine, Plain, "a") == 5 * 103
