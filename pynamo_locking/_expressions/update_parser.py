"""From the text of an update or a projection to what it says."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.parsing import Parsed, Parser
from pynamo_locking._expressions.paths import Literal, Operand, Path
from pynamo_locking._expressions.updates import Action, Add, Delete, IfNotExists, ListAppend, Remove, Set, Sum
from pynamo_locking._expressions.values import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: Final = frozenset({"N"})
_LISTS: Final = frozenset({"L"})
_SETS: Final = frozenset(ELEMENTS)
_OF_CONDITIONS: Final = frozenset(
    {"attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains", "size"}
)
_FUNCTIONS: Final = ("if_not_exists", "list_append")


@lru_cache(maxsize=4096)
def parse_update(text: str) -> Parsed[tuple[Action, ...]]:
    """Return the changes of an update.

    Raises:
        Refusal: it is no update.
    """
    parser = _UpdateParser("UpdateExpression", text)
    return parser.finish(parser.actions())


@lru_cache(maxsize=4096)
def parse_projection(text: str) -> Parsed[tuple[Path, ...]]:
    """Return the paths of a projection.

    Raises:
        Refusal: it is no projection.
    """
    parser = Parser("ProjectionExpression", text)
    paths = [parser.path()]
    while parser.tokens.accept(","):
        paths.append(parser.path())
    return parser.finish(tuple(paths))


class _UpdateParser(Parser):
    def actions(self) -> tuple[Action, ...]:
        sections: dict[str, Callable[[], Action]] = {
            "SET": self._set,
            "REMOVE": self._remove,
            "ADD": self._add,
            "DELETE": self._delete,
        }
        found = list[Action]()
        seen = set[str]()
        while self.tokens.next or not seen:
            word = self.tokens.next.upper()
            if word not in sections:
                raise self.tokens.syntax_error()
            if word in seen:
                raise self.tokens.error(f'The "{word}" section can only be used once in an update expression;')
            seen.add(word)
            self.tokens.take()
            found.append(sections[word]())
            while self.tokens.accept(","):
                found.append(sections[word]())
        return tuple(found)

    def _set(self) -> Action:
        path = self.path()
        self.tokens.expect("=")
        return Set(path, self._source())

    def _remove(self) -> Action:
        return Remove(self.path())

    def _add(self) -> Action:
        path, literal = self.path(), self.literal()
        self.demand_type(literal, _NUMBERS | _SETS, "ADD")
        return Add(path, literal)

    def _delete(self) -> Action:
        path, literal = self.path(), self.literal()
        self.demand_type(literal, _SETS, "DELETE")
        return Delete(path, literal)

    def _source(self) -> Operand:
        """Take what stands on the right of SET: an operand, or the sum of two, also in parentheses."""
        left = self._group(self._source) if self.tokens.next == "(" else self._operand()
        if self.tokens.next not in {"+", "-"} or isinstance(left, Sum):
            return left
        sign = self.tokens.take()
        right = self._operand()
        for operand in (left, right):
            self.demand_type(operand, _NUMBERS, sign)
        return Sum(left, right, 1 if sign == "+" else -1)

    def _operand(self) -> Operand:
        if self.tokens.next == "(":
            return self._group(self._operand)
        if self.tokens.after_next == "(" and self.tokens.next[:1].isalpha():
            return self._function()
        return self.path_or_literal()

    def _group(self, inner: Callable[[], Operand]) -> Operand:
        self.tokens.expect("(")
        if self.tokens.next == "(":
            raise self.tokens.error("The expression has redundant parentheses;")
        operand = inner()
        self.tokens.expect(")")
        return operand

    def _function(self) -> Operand:
        name = self.tokens.take()
        if name in _OF_CONDITIONS:
            raise self.tokens.error(f"The function is not allowed in an update expression; function: {name}")
        if name not in _FUNCTIONS:
            raise self.tokens.error(f"Invalid function name; function: {name}")
        first, second = self._two_operands(name)
        if name == "list_append":
            for operand in (first, second):
                self.demand_type(operand, _LISTS, name)
            return ListAppend(first, second)
        if isinstance(first, Literal) or not isinstance(first, Path):
            raise self.tokens.error(f"Operator or function requires a document path; operator or function: {name}")
        return IfNotExists(first, second)

    def _two_operands(self, name: str) -> tuple[Operand, Operand]:
        self.tokens.expect("(")
        found = [self._operand()]
        while self.tokens.accept(","):
            found.append(self._operand())
        self.tokens.expect(")")
        if len(found) != len(_FUNCTIONS):
            raise self.tokens.error(
                f"Incorrect number of operands for operator or function; "
                f"operator or function: {name}, number of operands: {len(found)}"
            )
        return found[0], found[1]
