"""From the text of a condition to what it says."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.conditions import SIZED, And, Condition, Not, Or, Test, size
from pynamo_locking._expressions.parsing import Parsed, Parser
from pynamo_locking._expressions.paths import Computed, Literal, Operand
from pynamo_locking._expressions.rules import bounds_in_order, type_name
from pynamo_locking._expressions.values import SCALARS

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHOICES: Final = 100
_SIGNS: Final = frozenset({"=", "<>", "<", "<=", ">", ">=", "BETWEEN", "IN"})
_PREFIXES: Final = frozenset({"S", "B"})
_TEXTS: Final = frozenset({"S"})


@lru_cache(maxsize=4096)
def parse_condition(kind: str, text: str) -> Parsed[Condition]:
    """Return what a condition says.

    Args:
        kind: ConditionExpression, FilterExpression or KeyConditionExpression.
        text: the expression.
    """
    parser = _ConditionParser(kind, text)
    return parser.finish(parser.condition())


class _ConditionParser(Parser):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self._last_group = (-1, -1)  # the places of its parentheses

    def condition(self) -> Condition:
        return self._must_be_condition(self._any_of())

    # Each of these returns an operand if that is all there is: a parenthesis may stand around either.

    def _any_of(self) -> Condition | Operand:
        return self._joined("OR", self._all_of, Or)

    def _all_of(self) -> Condition | Operand:
        return self._joined("AND", self._negation, And)

    def _joined(
        self, word: str, part: Callable[[], Condition | Operand], join: Callable[[tuple[Condition, ...]], Condition]
    ) -> Condition | Operand:
        first = part()
        if self.tokens.next.upper() != word:
            return first
        parts = [self._must_be_condition(first)]
        while self.tokens.accept(word):
            self.count_operator()
            parts.append(self._must_be_condition(part()))
        return join(tuple(parts))

    def _negation(self) -> Condition | Operand:
        negations = 0
        while self.tokens.accept("NOT"):
            self.count_operator()
            negations += 1
        inner = self._comparison()
        for _ in range(negations):
            inner = Not(self._must_be_condition(inner))
        return inner

    def _comparison(self) -> Condition | Operand:
        left = self._primary()
        sign = self.tokens.next.upper()
        if isinstance(left, Condition) or sign not in _SIGNS:
            return left
        self.tokens.take()
        self.count_operator()
        if sign == "BETWEEN":
            return self._between(left)
        right = self._choices() if sign == "IN" else (self.operand(),)
        self.demand_distinct(left, right, sign)
        if sign not in {"=", "<>", "IN"}:
            self._demand_order(sign, left, *right)
        return Test(sign, (left, *right))

    def _demand_order(self, sign: str, *operands: Operand) -> None:
        for operand in operands:
            self.demand_type(operand, SCALARS, sign)

    def _between(self, operand: Operand) -> Condition:
        low = self.operand()
        self.tokens.expect("AND")
        high = self.operand()
        self._demand_order("BETWEEN", operand, low, high)
        if isinstance(low, Literal) and isinstance(high, Literal):
            self.demand(bounds_in_order(low.name, high.name))
        return Test("BETWEEN", (operand, low, high))

    def _choices(self) -> tuple[Operand, ...]:
        choices = self.operands()
        if len(choices) > _MOST_CHOICES:
            raise self.tokens.error(
                f"The IN operator is provided with too many operands; number of operands: {len(choices)}"
            )
        return choices

    def operand(self) -> Operand:
        operand = self._primary()
        if isinstance(operand, Operand):
            return operand
        raise self.tokens.syntax_error()

    def _must_be_condition(self, found: Condition | Operand) -> Condition:
        if isinstance(found, Condition):
            return found
        raise self.tokens.syntax_error()

    def _primary(self) -> Condition | Operand:
        if self.tokens.next == "(":
            return self._group()
        return self._function() if self.tokens.is_function else self.path_or_literal()

    def _group(self) -> Condition | Operand:
        opened = self.tokens.place
        self.tokens.expect("(")
        inner = self._any_of()
        closed = self.tokens.place
        self.tokens.expect(")")
        if self._last_group == (opened + 1, closed - 1):
            raise self.tokens.error("The expression has redundant parentheses;")
        self._last_group = (opened, closed)
        return inner

    def _function(self) -> Condition | Operand:
        name, operands = self.function(of_update=False)
        self.count_operator()
        first, last = operands[0], operands[-1]
        if name == "size":
            self.demand_type(first, SIZED, name)
            return Computed(size, operands)
        if name in {"begins_with", "contains"}:
            self.demand_distinct(first, (last,), name)
        else:
            self.must_be_path(first, name)
        if name == "begins_with":
            self.demand_type(first, _PREFIXES, name)
            self.demand_type(last, _PREFIXES, name)
        elif name == "attribute_type":
            self._demand_type_name(last)
        return Test(name, operands)

    def _demand_type_name(self, operand: Operand) -> None:
        if not isinstance(operand, Literal):
            raise self.tokens.syntax_error()
        self.demand_type(operand, _TEXTS, "attribute_type")
        self.demand(type_name(operand.name))
