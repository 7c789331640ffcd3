"""From the text of an update or a projection to what it says."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.parsing import Parsed, Parser
from pynamo_locking._expressions.paths import Computed, Operand, Path
from pynamo_locking._expressions.updates import SUMS, Action, if_not_exists, list_append
from pynamo_locking._expressions.values import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: Final = frozenset({"N"})
_LISTS: Final = frozenset({"L"})
_SETS: Final = frozenset(ELEMENTS)
_VERBS: Final = frozenset({"SET", "REMOVE", "ADD", "DELETE"})


@lru_cache(maxsize=4096)
def parse_update(text: str) -> Parsed[tuple[Action, ...]]:
    """Return the changes of an update."""
    parser = _UpdateParser("UpdateExpression", text)
    return parser.finish(parser.actions())


@lru_cache(maxsize=4096)
def parse_projection(text: str) -> Parsed[tuple[Path, ...]]:
    """Return the paths of a projection."""
    parser = Parser("ProjectionExpression", text)
    paths = [parser.path()]
    while parser.tokens.accept(","):
        paths.append(parser.path())
    return parser.finish(tuple(paths))


class _UpdateParser(Parser):
    def actions(self) -> tuple[Action, ...]:
        found = list[Action]()
        seen = set[str]()
        while self.tokens.next or not seen:
            verb = self.tokens.next.upper()
            if verb not in _VERBS:
                raise self.tokens.syntax_error()
            if verb in seen:
                raise self.tokens.error(f'The "{verb}" section can only be used once in an update expression;')
            seen.add(verb)
            self.tokens.take()
            found.append(self._action(verb))
            while self.tokens.accept(","):
                found.append(self._action(verb))
        return tuple(found)

    def _action(self, verb: str) -> Action:
        path = self.path()
        if verb == "REMOVE":
            return Action(verb, path)
        if verb == "SET":
            self.tokens.expect("=")
            return Action(verb, path, self._source())
        literal = self.literal()
        self.demand_type(literal, _NUMBERS | _SETS if verb == "ADD" else _SETS, verb)
        return Action(verb, path, literal)

    def _source(self) -> Operand:
        """Take what stands on the right of SET: an operand, or the sum of two, also in parentheses."""
        left = self._group(self._source) if self.tokens.next == "(" else self.operand()
        sign = self.tokens.next
        if sign not in SUMS or (isinstance(left, Computed) and left.function in SUMS.values()):
            return left
        self.tokens.take()
        operands = left, self.operand()
        for operand in operands:
            self.demand_type(operand, _NUMBERS, sign)
        return Computed(SUMS[sign], operands)

    def operand(self) -> Operand:
        if self.tokens.next == "(":
            return self._group(self.operand)
        return self._function() if self.tokens.is_function else self.path_or_literal()

    def _group(self, inner: Callable[[], Operand]) -> Operand:
        self.tokens.expect("(")
        if self.tokens.next == "(":
            raise self.tokens.error("The expression has redundant parentheses;")
        operand = inner()
        self.tokens.expect(")")
        return operand

    def _function(self) -> Operand:
        name, operands = self.function(of_update=True)
        if name == "if_not_exists":
            self.must_be_path(operands[0], name)
            return Computed(if_not_exists, operands)
        for operand in operands:
            self.demand_type(operand, _LISTS, name)
        return Computed(list_append, operands)
