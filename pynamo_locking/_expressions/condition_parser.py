"""From the text of a condition to what it says."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.conditions import (
    SIZED,
    And,
    BeginsWith,
    Between,
    Condition,
    Contains,
    Different,
    Equal,
    Exists,
    HasType,
    In,
    Not,
    NotExists,
    Or,
    Ordered,
    Size,
)
from pynamo_locking._expressions.parsing import Parsed, Parser
from pynamo_locking._expressions.paths import Literal, Operand, Path
from pynamo_locking._expressions.rules import BoundsInOrder, TypeName
from pynamo_locking._expressions.values import SCALARS

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHOICES: Final = 100
_OF_UPDATES: Final = frozenset({"if_not_exists", "list_append"})
_PREFIXES: Final = frozenset({"S", "B"})
_TEXTS: Final = frozenset({"S"})
_OPERANDS: Final = {
    "attribute_exists": 1,
    "attribute_not_exists": 1,
    "attribute_type": 2,
    "begins_with": 2,
    "contains": 2,
    "size": 1,
}


@lru_cache(maxsize=4096)
def parse_condition(kind: str, text: str) -> Parsed[Condition]:
    """Return what a condition says.

    Args:
        kind: ConditionExpression, FilterExpression or KeyConditionExpression.
        text: the expression.

    Raises:
        Refusal: it is no condition.
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
        if isinstance(left, Condition):
            return left
        sign = self.tokens.next.upper()
        if sign not in {"=", "<>", "<", "<=", ">", ">=", "BETWEEN", "IN"}:
            return left
        self.tokens.take()
        self.count_operator()
        if sign == "BETWEEN":
            return self._between(left)
        if sign == "IN":
            return self._in(left)
        return self._compared(sign, left, self._operand())

    def _compared(self, sign: str, left: Operand, right: Operand) -> Condition:
        self.demand_distinct(left, (right,), sign)
        if sign == "=":
            return Equal(left, right)
        if sign == "<>":
            return Different(left, right)
        self._demand_order(sign, left, right)
        return Ordered(sign, left, right)

    def _demand_order(self, function: str, *operands: Operand) -> None:
        for operand in operands:
            self.demand_type(operand, SCALARS, function)

    def _between(self, operand: Operand) -> Condition:
        low = self._operand()
        self.tokens.expect("AND")
        high = self._operand()
        self._demand_order("BETWEEN", operand, low, high)
        if isinstance(low, Literal) and isinstance(high, Literal):
            self.demand(BoundsInOrder(low.name, high.name))
        return Between(operand, low, high)

    def _in(self, operand: Operand) -> Condition:
        choices = self._arguments()
        if len(choices) > _MOST_CHOICES:
            raise self.tokens.error(
                f"The IN operator is provided with too many operands; number of operands: {len(choices)}"
            )
        self.demand_distinct(operand, choices, "IN")
        return In(operand, choices)

    def _arguments(self) -> tuple[Operand, ...]:
        self.tokens.expect("(")
        found = [self._operand()]
        while self.tokens.accept(","):
            found.append(self._operand())
        self.tokens.expect(")")
        return tuple(found)

    def _operand(self) -> Operand:
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
        if self.tokens.after_next == "(" and self.tokens.next[:1].isalpha():
            return self._function()
        return self.path_or_literal()

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
        name = self.tokens.take()
        if name in _OF_UPDATES:
            raise self.tokens.error(f"The function is not allowed in a condition expression; function: {name}")
        if name not in _OPERANDS:
            raise self.tokens.error(f"Invalid function name; function: {name}")
        self.count_operator()
        arguments = self._arguments()
        if len(arguments) != _OPERANDS[name]:
            raise self.tokens.error(
                f"Incorrect number of operands for operator or function; "
                f"operator or function: {name}, number of operands: {len(arguments)}"
            )
        return self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Operand, ...]) -> Condition | Operand:
        first, last = arguments[0], arguments[-1]
        if name == "size":
            self.demand_type(first, SIZED, name)
            return Size(first)
        if name in {"begins_with", "contains"}:
            self.demand_distinct(first, (last,), name)
            if name == "contains":
                return Contains(first, last)
            self.demand_type(first, _PREFIXES, name)
            self.demand_type(last, _PREFIXES, name)
            return BeginsWith(first, last)
        if not isinstance(first, Path):
            raise self.tokens.error(f"Operator or function requires a document path; operator or function: {name}")
        if name != "attribute_type":
            return Exists(first) if name == "attribute_exists" else NotExists(first)
        if not isinstance(last, Literal):
            raise self.tokens.syntax_error()
        self.demand_type(last, _TEXTS, name)
        self.demand(TypeName(last.name))
        return HasType(first, last)
