"""The one source of everything that is left to chance: a seed, an enumeration, or a list to repeat.

Option 0 is always the dull one: the same actor goes on, no fault happens. So a list that ends early ends dully.

Source of the enumeration: exhaustigen (https://github.com/graydon/exhaustigen-rs) and matklad's article on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pynamo_locking_testing._engine.strategies import Strategy


class NotTheSame(Exception):  # noqa: N818 - what it is
    """The run asked for other choices than the one it repeats: something is not under control."""


class Choices(Protocol):
    """Gives a number below `n`, for a purpose."""

    def pick(self, n: int, purpose: str, named: Sequence[object] = ()) -> int:
        """Return one of n options, which may be known by name."""
        ...


class Recorded:
    """Any choices, written down. A question with one answer is not asked."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.taken: list[int] = []

    def pick(self, n: int, purpose: str, named: Sequence[object] = ()) -> int:
        if n < 2:
            return 0
        self.taken.append(self._choices.pick(n, purpose, named))
        return self.taken[-1]


class Seeded:
    """Random choices.

    Args:
        random: where they come from.
        strategy: chooses among actors, which have names.
        rates: by purpose, how likely anything but option 0 is; the rest is uniform.
    """

    def __init__(self, random: random.Random, strategy: Strategy, rates: Mapping[str, float]) -> None:
        self.random = random
        self._strategy = strategy
        self._rates = rates

    def pick(self, n: int, purpose: str, named: Sequence[object] = ()) -> int:
        if named:
            return self._strategy.choose(named)
        rate = self._rates.get(purpose)
        if rate is None:
            return self.random.randrange(n)
        return self.random.randrange(1, n) if self.random.random() < rate else 0


class Listed:
    """The choices of an earlier run; once they are used up, always option 0."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._at = 0

    def pick(self, n: int, purpose: str, named: Sequence[object] = ()) -> int:
        """Return the next number of the list."""
        if self._at >= len(self._choices):
            return 0
        choice = self._choices[self._at]
        if choice >= n:
            raise NotTheSame(f"choice {self._at} ({purpose}) is {choice}, but there are {n} options")
        self._at += 1
        return choice


class _Branch:
    """One walk through the tree of all choices, along a given path and then along the first options."""

    def __init__(self, path: list[tuple[int, int]]) -> None:
        self.path = path
        self._at = 0

    def pick(self, n: int, purpose: str, named: Sequence[object] = ()) -> int:
        if self._at == len(self.path):
            self.path.append((0, n))
        choice, options = self.path[self._at]
        if options != n:
            raise NotTheSame(f"choice {self._at} ({purpose}) had {options} options, and has {n} now")
        self._at += 1
        return choice


def every_branch() -> Iterator[Choices]:
    """Yield choices until each list of choices has been made once; each is used up before the next is asked for."""
    path: list[tuple[int, int]] = []
    while True:
        yield _Branch(path)
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        choice, options = path.pop()
        path.append((choice + 1, options))


def shrink(choices: Sequence[int], fails: Callable[[list[int]], bool], attempts: int = 300) -> list[int]:
    """Return a duller list that still fails: cut off at the end, and with zeros in the place of choices."""
    best = list(choices)
    step = max(1, len(best) // 2)
    while attempts > 0:
        for end in range(len(best), 0, -step):
            start = max(0, end - step)
            if not any(best[start:end]):
                continue
            attempts -= 1
            shorter = _without_end([*best[:start], *([0] * (end - start)), *best[end:]])
            if fails(shorter):
                best = shorter
        if step == 1:
            break
        step //= 2
    return best


def _without_end(choices: list[int]) -> list[int]:
    while choices and choices[-1] == 0:
        choices.pop()
    return choices
