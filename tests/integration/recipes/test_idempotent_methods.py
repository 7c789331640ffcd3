"""Methods that may be called twice: the class that they are called for is a part of their keys."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransactional, transactional
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.recipes import idempotent
from tests.support.call_models import Calls
from tests.support.transaction_models import Purse, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _bound(engine):
    engine.bind(Calls, Purse, Transactions)


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not tell what it decorates."""
    return lambda *arguments, **keywords: function(*arguments, **keywords)  # noqa: PLW0108


def telling(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(hiding(function))


class Registry(type):
    """A metaclass, whose methods are called for classes."""

    @idempotent(Calls, key="order_id")
    def registered(klass, order_id: str) -> int:  # noqa: N804 - `cls` is known by its name
        return klass.rate  # type: ignore[attr-defined]


class Charging(metaclass=Registry):
    """A base class. What a subclass charges is its own."""

    rate = 1

    @idempotent(Calls, key="order_id")
    def method(this, order_id: str) -> int:  # noqa: N805
        return this.rate

    @idempotent(Calls, key="order_id")
    async def coroutine(_, order_id: str) -> int:  # noqa: N805
        return _.rate

    @idempotent(Calls, key="order_id", key_prefix="charge")
    def prefixed(this, order_id: str) -> int:  # noqa: N805
        return this.rate

    @idempotent(Calls, key=lambda *arguments: arguments[1])
    def unnamed(*arguments: Any) -> int:  # type: ignore[misc]
        return arguments[0].rate

    @classmethod
    @idempotent(Calls, key="order_id")
    def of_class(klass, order_id: str) -> int:  # noqa: N804
        return klass.rate

    @transactional()
    @idempotent(Calls, key="order_id")
    def committed(tx: Any, this, order_id: str) -> int:  # noqa: N805
        return this.rate

    @atransactional()
    @idempotent(Calls, key="order_id")
    async def acommitted(tx: Any, this, order_id: str) -> int:  # noqa: N805
        return this.rate

    @telling
    @idempotent(Calls, key="order_id")
    @telling
    def told(this, order_id: str) -> int:  # noqa: N805
        return this.rate

    @hiding
    @idempotent(Calls, key="order_id")
    def hidden(this, order_id: str) -> int:  # noqa: N805
        return this.rate

    def bound(self, order_id: str) -> int:
        return self.rate

    @classmethod
    def bound_to_class(cls, order_id: str) -> int:
        return cls.rate

    @staticmethod
    @idempotent(Calls, key=lambda each: "o")
    def static(each: Charging) -> int:
        return each.rate


@idempotent(Calls, key="order_id")
def added(this: Any, order_id: str) -> int:
    return this.rate


Charging.added = added  # type: ignore[attr-defined]


class Double(Charging):
    rate = 2


class Triple(Double):
    rate = 3

    def method(self, order_id: str) -> int:
        return super().method(order_id)


CALLS: dict[str, Callable[[Any], Any]] = {
    "method": lambda each: each().method("o"),
    "function of the class": lambda each: Charging.method(each(), "o"),
    "by keyword": lambda each: Charging.method(order_id="o", this=each()),
    "coroutine": lambda each: asyncio.run(each().coroutine("o")),
    "prefix": lambda each: each().prefixed("o"),
    "no name": lambda each: each().unnamed("o"),
    "class method": lambda each: each.of_class("o"),
    "class method of an instance": lambda each: each().of_class("o"),
    "transactional": lambda each: each().committed("o"),
    "coroutine in a transaction": lambda each: asyncio.run(each().acommitted("o")),
    "decorated": lambda each: each().told("o"),
    "hidden": lambda each: each().hidden("o"),
    "added": lambda each: each().added("o"),
    "bound": lambda each: idempotent(Calls, key="order_id")(each().bound)("o"),
    "bound to a class": lambda each: idempotent(Calls, key="order_id")(each.bound_to_class)("o"),
    "metaclass": lambda each: each.registered("o"),
}


@pytest.mark.parametrize("way", CALLS)
def test_a_method_is_another_one_in_each_subclass(way):
    """However its first argument is named, and however it became a method."""
    for _ in range(2):
        assert [CALLS[way](each) for each in (Charging, Double, Triple)] == [1, 2, 3]


def test_a_static_method_is_called_for_no_class():
    """Also if its argument is an instance of its class. A function whose argument is one is no method either."""
    assert [Triple.static(each()) for each in (Double, Charging)] == [2, 2]

    @idempotent(Calls, key=lambda each: "o")
    def function(each: Charging) -> int:
        return each.rate

    assert [function(each()) for each in (Double, Charging)] == [2, 2]


def made(rate: int, name: str | None = None) -> Any:
    """Make a class; all have one name unless given."""

    class Made(Charging):
        @idempotent(Calls, key="order_id")
        def own(self, order_id: str) -> int:
            return self.rate

    Made.rate = rate
    Made.__qualname__ = name or Made.__qualname__
    return Made


@pytest.mark.parametrize("way", ["method", "class method", "own"])
def test_two_classes_of_one_name_are_refused(way):
    """The second one gets no result of the first: it says what to do, and that is enough."""
    call = {**CALLS, "own": lambda each: each().own("o")}[way]
    first, second = made(1), made(2)
    assert call(first) == 1
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"two classes .*\.Made.*__qualname__"):
            call(second)
    assert call(first) == 1
    assert [call(made(rate, f"made({rate})")) for rate in (1, 2)] == [1, 2]


def test_a_class_that_replaces_one_of_its_name(monkeypatch: pytest.MonkeyPatch):
    """A cell of a notebook that is run again makes the class anew; an instance of the old one is still there."""
    first, second = made(1, "Again"), made(2, "Again")
    monkeypatch.setattr(sys.modules[__name__], "Again", first, raising=False)
    assert first().own("o") == 1
    monkeypatch.setattr(sys.modules[__name__], "Again", second)
    assert second().own("o") == 1  # as after the end of a process: the same call
    with pytest.raises(ConfigurationError, match="two classes"):
        first().own("o")


def test_two_classes_that_share_a_prefix():
    """Whoever chooses the prefix of two classes chooses that they share their keys."""

    class Charging:  # as the one above, and elsewhere
        @idempotent(Calls, key="order_id", key_prefix="charge")
        def prefixed(self, order_id: str) -> int:
            return 7

    assert [each.prefixed("o") for each in (Charging(), globals()["Charging"]())] == [7, 7]


def test_a_class_that_is_made_again_has_its_results():
    """Such as by a function that makes an application, in the next test."""
    assert [made(1)().method("again") for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("wrong", [classmethod, staticmethod, functools.partial, functools.partialmethod])
def test_what_is_no_function_is_refused(wrong):
    """The decorator belongs below."""
    with pytest.raises(ConfigurationError, match="below @classmethod and @staticmethod"):
        idempotent(Calls, key="n")(wrong(lambda n: n))
