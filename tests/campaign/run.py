"""Runs campaigns: processes at work under faults on an engine, their histories merged, and checked from the files."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import PynamoDBException

from pynamo_locking import transaction
from pynamo_locking.exceptions import LockingError
from pynamo_locking_testing._engine.partitions import Partitions
from tests.campaign import check, histories
from tests.campaign.models import BESIDE, CELLS, HELD, MODELS, SLOTS, Beside, Cell, Generations, Held, Mixed, model_of
from tests.campaign.party import live
from tests.campaign.served import KINDS, LATE_AFTER, MemoryServer, RemoteMemory
from tests.engines.engine import Engine, _session, running
from tests.engines.servers import Servers
from tests.support.crew import Crew, places_of
from tests.support.proxy import Proxy, Storm, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.campaign.check import Checked

#: Read together at the end.
_TOGETHER: Final = 50
#: Of a final read that meets what a dead process has left.
_PATIENCE_S: Final = 60.0
#: Write units of a hash key in a second, before the engines that have a proxy.
_UNITS: Final = 300.0


@dataclass(frozen=True)
class Weather:
    """How bad it is.

    Attributes:
        rate: the part of all requests that is spoilt.
        disturb_s: a process is killed or stopped every so many seconds.
        stop_s: the longest time for which one is stopped: more than the lease of a lock, and of a transaction.
    """

    rate: float = 0.02
    disturb_s: float = 4.0
    stop_s: float = 4.0


@dataclass
class Result:
    """What came of one campaign.

    Attributes:
        engine: its name.
        seconds: how long processes were at work.
        requests: how many requests came.
        faults: how often each of them has struck.
        checked: the histories.
        errors: what must not happen besides.
    """

    engine: str
    seconds: float = 0.0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checked: list[Checked] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def operations(self) -> int:
        """How many operations were begun: transactions, in Elle's words."""
        return sum(each.report.operations.total() for each in self.checked)

    @property
    def kinds(self) -> set[str]:
        """The names of all anomalies."""
        return set().union(*(each.report.kinds for each in self.checked))


def campaign(
    name: str,
    servers: Servers,
    folder: Path,
    seconds: float,
    *,
    seed: int,
    size: int = 6,
    weather: Weather | None = None,
    bug: str = "",
    only: tuple[str, ...] = (),
    slots: int = SLOTS,
) -> Result:
    """Let processes work on an engine for so long, and check what they have noted.

    Args:
        name: of the engine.
        servers: of the engines.
        folder: for the histories, which stay there. It need not exist.
        seconds: how long.
        seed: of what is drawn.
        size: how many processes.
        weather: how bad it is.
        bug: the name of a planted bug that they have in the package.
        only: the names of the only ways in which they write; all if empty.
        slots: how many keys of each kind are written at once, at most.
    """
    weather = weather or Weather()
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(name)
    Generations(folder / "generations", new=True)
    with _engine(name, servers, folder, seed, weather.rate) as world:
        how = {"seed": str(seed), "only": only, "slots": slots}
        places = places_of(world.engine, MODELS.values())
        with Crew(places, folder, size, live, folder, world.socket, bug, how) as crew:
            result.seconds = _disturb(crew, seconds, random.Random(seed), weather)
            crew.wake(early=True)
            crew.finish()
            killed = len(crew.killed)
            result.faults.update({"killed": killed, "stopped": crew.stopped})
        world.calm()
        result.requests, injected = world.counts()
        result.faults.update(injected)
        _read_all(folder, size + killed)
        result.errors += world.errors()
    result.checked = [_merged(folder, kind) for kind in ("lists", "registers")]
    return result


def campaign_on(name: str, folder: Path, seconds: float, seed: int, size: int) -> Result:
    """Run a campaign with servers of its own; if it breaks, the result says how."""
    with contextlib.closing(Servers()) as servers:
        try:
            return campaign(name, servers, folder, seconds, seed=seed, size=size)
        except Exception:  # noqa: BLE001 - told, and other campaigns go on
            return Result(name, errors=[traceback.format_exc()])


def _disturb(crew: Crew, seconds: float, chooser: random.Random, weather: Weather) -> float:
    """Kill and stop processes until the time is over; return how long that was."""
    began = time.monotonic()
    due = began + weather.disturb_s * chooser.uniform(0.5, 1.5)
    while time.monotonic() - began < seconds:
        time.sleep(0.05)
        crew.wake()
        if time.monotonic() >= due:
            awake = crew.awake()
            if chooser.random() < 0.5 or not awake:
                crew.kill(chooser)
            else:
                crew.stop(chooser.choice(awake), chooser.uniform(0.1, weather.stop_s))
            due = time.monotonic() + weather.disturb_s * chooser.uniform(0.5, 1.5)
    return time.monotonic() - began


def _merged(folder: Path, kind: str) -> Checked:
    """Merge the files of all processes, and check the result, from the file alone."""
    parts = sorted(folder.glob(f"{kind}-*.part"))
    histories.merge(parts, folder / kind)
    for part in parts:
        part.unlink()
    return check.check_file(folder / f"{kind}.jsonl")


# What is there at the end


def _read_all(folder: Path, number: int) -> None:
    """Read everything once more, as another process, so that the last writes were read as well."""
    lists = histories.Scribe(folder / f"lists-{number}.part", number)
    keys = Generations(folder / "generations").keys()
    mixed = [key for key in keys if model_of(key) is Mixed]
    for start in range(0, len(mixed), _TOGETHER):
        _read(lists, Mixed, mixed[start : start + _TOGETHER])
    for model, slots in ((Held, HELD), (Beside, BESIDE)):
        for key in (key for key in keys if key % SLOTS in slots):
            _read_plain(lists, model, key)
    lists.close()
    registers = histories.Scribe(folder / f"registers-{number}.part", number)
    _read(registers, Cell, [*CELLS])
    registers.close()


def _read(scribe: histories.Scribe, model: Any, keys: list[int]) -> None:
    micro: list[Any] = [["r", key, None] for key in keys]
    scribe.invoke(micro)
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with transaction(read_only=True) as tx:
                items = tx.get_all(model, keys)
        except (LockingError, PynamoDBException):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            break
    scribe.ok([["r", key, _value(item)] for key, item in zip(keys, items, strict=True)])


def _read_plain(scribe: histories.Scribe, model: Any, key: int) -> None:
    """Nothing writes any more, so a plain read shows the end."""
    scribe.invoke([["r", key, None]])
    found = list(model.batch_get([key], consistent_read=True))
    scribe.ok([["r", key, _value(found[0] if found else None)]])


def _value(item: Any) -> Any:
    if isinstance(item, Cell):
        return None if item.value is None else int(item.value)
    return None if item is None else [*map(int, item.elements.split())]


# Engines, and what spoils requests before them


class _InMemory:
    def __init__(self, engine: Engine, server: MemoryServer, path: Path) -> None:
        self.engine, self._server, self.socket = engine, server, path

    def calm(self) -> None:
        self._server.spoil(0.0)

    def counts(self) -> tuple[int, Counter[str]]:
        return self._server.counts()

    def errors(self) -> list[str]:
        return []


class _Proxied:
    socket = None

    def __init__(self, engine: Engine, proxy: Proxy) -> None:
        self.engine, self._proxy = engine, proxy

    def calm(self) -> None:
        self._proxy.plan = nothing
        self._proxy.release()

    def counts(self) -> tuple[int, Counter[str]]:
        injected = Counter({fault.name: count for fault, count in self._proxy.injected.items()})
        injected["throttled by a partition"] = self._proxy.throttled.total()
        return self._proxy.total, injected

    def errors(self) -> list[str]:
        return [repr(error) for error in self._proxy.errors]


@contextlib.contextmanager
def _engine(name: str, servers: Servers, folder: Path, seed: int, rate: float) -> Iterator[_InMemory | _Proxied]:
    """Begin an engine with empty tables, and what spoils requests before it."""
    with contextlib.ExitStack() as stack:
        if name == "memory":
            socket = folder / "memory.socket"
            server = stack.enter_context(contextlib.closing(MemoryServer(socket, seed)))
            memory = stack.enter_context(RemoteMemory(str(socket)))
            engine = Engine(name, None, "us-east-1", "campaign-", _session("local"), memory)
            stack.callback(engine.close)
            engine.bind(*MODELS.values())
            server.spoil(rate)
            yield _InMemory(engine, server, socket)
            return
        engine = stack.enter_context(running(name, servers))
        engine.bind(*MODELS.values())
        assert engine.host is not None
        proxy = stack.enter_context(Proxy(engine.host, Partitions(_UNITS)))
        proxy.plan, proxy.late_after = Storm(seed, rate, KINDS), LATE_AFTER
        for model in MODELS.values():
            model.Meta.host, model._connection = proxy.url, None
        yield _Proxied(engine, proxy)
        for model in MODELS.values():
            model._get_connection().connection.client.close()
