"""What must be true of several items together: none overlap, and there are not too many of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.simulation.checkers.base import Checker
from tests.simulation.models import Booking, Seat, Stay, Tariff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pynamo_locking_testing._engine.network import Change, Image, Place, Request
    from tests.simulation.run import Run

#: So many seats of each kind there may be.
LIMITS: Final = {"desk": 1, "chair": 2}


class _Committed(Checker):
    """Looks at all items of some tables, as soon as any of them changes.

    What a native transaction puts or deletes counts from its decision on, all at once, though it is not in its place by
    then; what it updates counts once it is.
    """

    tables: ClassVar[frozenset[str]]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._items: dict[Place, Image] = {}
        self._wrong: str | None = None
        run.network.on_decided.append(self.on_decided)

    def on_decided(self, request: Request) -> None:
        actions = [next(iter(action.items())) for action in request.kwargs["TransactItems"]]
        self._note(
            (place, kwargs.get("Item"))
            for place, (kind, kwargs) in zip(request.places, actions, strict=True)
            if kind in {"Put", "Delete"}
        )

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        self._note((change.place, change.after) for change in changes)

    def _note(self, images: Iterable[tuple[Place, Image | None]]) -> None:
        mine = [(place, image) for place, image in images if place.table in self.tables]
        for place, image in mine:
            self._items.pop(place, None)
            if image is not None:
                self._items[place] = image
        # Not raised here: within a request, the library or its client would take it for an answer.
        if mine and self._wrong is None:
            self._wrong = next(self.wrong_in(self._items), None)

    def wrong_in(self, items: Mapping[Place, Image]) -> Iterator[str]:
        """Yield what is wrong with these items."""
        raise NotImplementedError

    def on_step(self) -> None:
        self.require(self._wrong is None, str(self._wrong))

    def at_end(self) -> None:
        self.on_step()


class Disjoint(_Committed):
    """No two items of a hash key overlap, at any moment. An item without an end goes on for ever."""

    tables = frozenset(model.Meta.table_name for model in (Booking, Stay, Tariff))

    def wrong_in(self, items: Mapping[Place, Image]) -> Iterator[str]:
        groups: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for place, image in items.items():
            groups[place.table, place.key[0]].append((_number(image, "begin"), _number(image, "end")))
        for group in groups.values():
            for first, second in itertools.pairwise(sorted(group)):
                if second[0] < first[1]:
                    yield f"{first[0]} to {first[1]} and {second[0]} to {second[1]} overlap"


class Limited(_Committed):
    """There are never more items of a kind than those allow who counted them in a query before they added one."""

    tables = frozenset({Seat.Meta.table_name})

    def wrong_in(self, items: Mapping[Place, Image]) -> Iterator[str]:
        counted = Counter((place.key[0], image["kind"]["S"]) for place, image in items.items())
        for (key, kind), number in counted.items():
            if number > LIMITS[kind]:
                yield f"{number} of kind {kind!r} in {key!r}, which may have {LIMITS[kind]}"


def _number(image: Image, name: str) -> float:
    return float(image[name]["N"]) if name in image else math.inf
