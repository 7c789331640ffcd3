"""What no retry and no wait can help is refused at once, with a word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransaction, atransactional, transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from tests.support.transaction_models import Plain, Purse, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

USES: dict[str, Callable[[Any, Any], Any]] = {
    "save": lambda tx, item: tx.save(item),
    "update": lambda tx, item: tx.update(item, [Purse.balance.add(1)]),
    "delete": lambda tx, item: tx.delete(item),
    "touch": lambda tx, item: tx.touch(item),
    "check": lambda tx, item: tx.check(item),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_absent_item(cheap: Engine, use: Callable[[Any, Any], Any]) -> None:
    """`get_all` and `get_or_none` return None for it."""
    cheap.bind(Purse, Transactions)
    with pytest.raises(ConfigurationError, match=r"None is no item: .*get_all"), transaction() as tx:
        [absent] = tx.get_all(Purse, ["a"])
        use(tx, absent)

    async def main() -> None:
        async with atransaction() as tx:
            await use(tx, await tx.get_or_none(Purse, "a"))

    with pytest.raises(ConfigurationError, match=r"None is no item: .*get_or_none"):
        asyncio.run(main())


@pytest.mark.parametrize("is_gone", [False, True], ids=["changed", "deleted"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("write", USES.values(), ids=USES)
def test_an_instance_from_outside(cheap: Engine, write: Callable[[Any, Any], Any], count: int, is_gone: bool) -> None:
    """Another writer has changed the item since: the second attempt would not be the last one, and end in the same."""
    cheap.bind(Purse, Transactions)
    attempts = list[int]()

    def begin() -> Purse:
        attempts.clear()
        Purse("a", balance=1).save(add_version_condition=False)
        outside, other = Purse.get("a"), Purse.get("a")
        other.delete() if is_gone else other.touch()
        return outside

    @transactional
    def run(tx: Any, item: Purse) -> None:
        attempts.append(1)
        write(tx, item)
        if count > 1:
            tx.save(Purse("b"))

    @atransactional
    async def arun(tx: Any, item: Purse) -> None:
        attempts.append(1)
        await write(tx, item)
        if count > 1:
            await tx.save(Purse("b"))

    match = r"gave up after attempt 2 of 10: Purse\('a'\) is an instance from outside .* read it with tx.get"
    with pytest.raises(StaleVersion, match=match):
        run(begin())
    assert len(attempts) == 2
    with pytest.raises(StaleVersion, match=match):
        asyncio.run(arun(begin()))
    assert len(attempts) == 2


def test_an_instance_from_outside_that_is_fresh(cheap: Engine) -> None:
    """Another item was stale: the next attempt succeeds with the same instance."""
    cheap.bind(Purse, Transactions)
    Purse("a", balance=1).save()
    Purse("b", balance=1).save()
    attempts = list[int]()

    @transactional
    def run(tx: Any, item: Purse) -> None:
        attempts.append(1)
        read = tx.get(Purse, "b")
        if len(attempts) < 4:
            Purse.get("b").touch()
        item.balance = 7
        tx.save(item)
        tx.save(read)

    run(Purse.get("a"))
    assert (len(attempts), Purse.get("a").balance) == (4, 7)


@pytest.mark.parametrize("is_gone", [False, True], ids=["changed", "deleted"])
def test_a_stale_item_that_looks_like_the_instance_from_outside(cheap: Engine, is_gone: bool) -> None:
    """It has the same key and version in another table. The instance is fresh, and the third attempt succeeds."""
    cheap.bind(Purse, Plain, Transactions)
    Plain("a").save()
    Purse("a", balance=1).save()
    Purse.get("a").touch()
    attempts = list[int]()

    @transactional
    def run(tx: Any, item: Purse) -> None:
        attempts.append(1)
        tx.get_or_none(Plain, "a")
        if len(attempts) < 3:
            other = Plain.get("a")
            other.delete() if is_gone and len(attempts) == 2 else other.touch()
        tx.update(item, [Purse.balance.set(7)])

    run(Purse.get("a"))
    assert (len(attempts), Purse.get("a").balance) == (3, 7)


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_instance_whose_key_exists(cheap: Engine, count: int) -> None:
    """Nobody has looked for the item, and each attempt would store the instance: the second one is the last."""
    cheap.bind(Purse, Transactions)
    Purse("a", balance=1).save()
    attempts = list[int]()

    @transactional
    def run(tx: Any) -> None:
        attempts.append(1)
        tx.save(Purse("a", balance=2))
        if count > 1:
            tx.save(Purse("b"))

    @atransactional
    async def arun(tx: Any) -> None:
        attempts.append(1)
        await tx.save(Purse("a", balance=2))
        if count > 1:
            await tx.save(Purse("b"))

    match = r"gave up after attempt 2 of 10: Purse\('a'\) is a new instance, and an item with this key exists: .*none"
    with pytest.raises(StaleVersion, match=match):
        run()
    with pytest.raises(StaleVersion, match=match):
        asyncio.run(arun())
    assert len(attempts) == 4
    assert [(each.purse_id, each.balance) for each in Purse.scan()] == [("a", 1)]


def test_a_new_instance_with_another_key_in_each_attempt(cheap: Engine) -> None:
    """The next number is taken again and again, and the function goes on to look for a free one."""
    cheap.bind(Purse, Transactions)
    attempts = list[int]()

    @transactional
    def run(tx: Any) -> None:
        attempts.append(1)
        tx.save(Purse(str(len(attempts))))
        if len(attempts) < 4:
            Purse(str(len(attempts))).save()

    run()
    assert len(attempts) == 4


def test_a_new_instance_that_the_function_has_looked_for(cheap: Engine) -> None:
    """Another process creates the item after each look, and deletes it again: the last attempt is not in vain."""
    cheap.bind(Purse, Transactions)
    attempts = list[int]()

    @transactional
    def run(tx: Any) -> None:
        attempts.append(1)
        assert tx.get_or_none(Purse, "a") is None
        tx.save(Purse("a", balance=7))
        if len(attempts) < 4:
            other = Purse("a")
            other.save(add_version_condition=False)
            tx.after_rollback(other.delete)

    run()
    assert (len(attempts), Purse.get("a").balance) == (4, 7)
