"""Who runs next, at random: three ways, each good at another kind of bug.

Uniform finds what depends on one switch at the right place. PCT (Burckhardt et al., A Randomized Scheduler with
Probabilistic Guarantees of Finding Bugs, 2010) lets one actor sleep for long. POS (Yuan, Yang and Gu, Partial
Order Aware Concurrency Sampling, 2018) is between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

#: How many changes of priority PCT makes, and within how many steps.
_CHANGES: Final = 3
_STEPS: Final = 60


class Strategy(Protocol):
    """Chooses among those who can run."""

    def choose(self, options: Sequence[object]) -> int:
        """Return the index of who runs next."""
        ...


class Uniform:
    """Everyone is equally likely."""

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def choose(self, options: Sequence[object]) -> int:
        return self._random.randrange(len(options))


class Pct:
    """The highest priority runs; at a few random steps, the one that runs falls behind all others."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._priorities: dict[str, float] = {}
        self._changes = {random.randrange(_STEPS) for _ in range(_CHANGES)}
        self._step = 0

    def choose(self, options: Sequence[object]) -> int:
        """Return the index of who runs next."""
        names = [str(option) for option in options]
        for name in names:
            self._priorities.setdefault(name, 1 + self._random.random())
        self._step += 1
        best = max(names, key=self._priorities.__getitem__)
        if self._step in self._changes:
            self._priorities[best] = -self._step
            best = max(names, key=self._priorities.__getitem__)
        return names.index(best)


class Pos:
    """The highest priority runs, and gets a new one half of the time."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._priorities: dict[str, float] = {}

    def choose(self, options: Sequence[object]) -> int:
        """Return the index of who runs next."""
        names = [str(option) for option in options]
        for name in names:
            self._priorities.setdefault(name, self._random.random())
        best = max(names, key=self._priorities.__getitem__)
        if self._random.random() < 1 / 2:
            del self._priorities[best]
        return names.index(best)


STRATEGIES: Final[dict[str, Callable[[random.Random], Strategy]]] = {"uniform": Uniform, "pct": Pct, "pos": Pos}
