"""What the parsers of all expressions share: tokens, paths, placeholders, and what they demand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pynamo_locking._expressions.paths import Literal, Path
from pynamo_locking._expressions.refusals import invalid
from pynamo_locking._expressions.reserved import RESERVED
from pynamo_locking._expressions.rules import allowed_types, distinct

if TYPE_CHECKING:
    from pynamo_locking._expressions.paths import Operand
    from pynamo_locking._expressions.refusals import Refusal
    from pynamo_locking._expressions.rules import Rule

Root = TypeVar("Root")

_TOKEN: Final = re.compile(r"[#:][A-Za-z0-9_]+|[A-Za-z][A-Za-z0-9_]*|[0-9]+|<>|<=|>=|\S")
_LONGEST: Final = 4096
#: In the place of a token after the last one.
END: Final = ""
_MOST_OPERATORS: Final = 300
#: How many operands the functions of conditions take, and those of updates.
_OF_CONDITIONS: Final = {
    "attribute_exists": 1,
    "attribute_not_exists": 1,
    "attribute_type": 2,
    "begins_with": 2,
    "contains": 2,
    "size": 1,
}
_OF_UPDATES: Final = {"if_not_exists": 2, "list_append": 2}


class Tokens:
    """The tokens of an expression, taken from left to right.

    Args:
        kind: what the expression is, as ``ConditionExpression``.
        text: the expression.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.place = 0
        self._text = text
        if not text:
            raise self.error("The expression can not be empty;")
        size = len(text.encode())
        if size > _LONGEST:
            raise self.error(f"Expression size has exceeded the maximum allowed size; expression size: {size}")
        matches = list(_TOKEN.finditer(text))
        self._tokens = [match.group() for match in matches] + [END, END]
        self._spans = [match.span() for match in matches]

    @property
    def next(self) -> str:
        """The next token, or `END`."""
        return self._tokens[self.place]

    @property
    def is_function(self) -> bool:
        """Whether a name and a parenthesis are next."""
        return self.next[:1].isalpha() and self._tokens[self.place + 1] == "("

    def take(self) -> str:
        """Return the next token, and go on."""
        token = self._tokens[self.place]
        if token:
            self.place += 1
        return token

    def accept(self, word: str) -> bool:
        """Go on if the next token is this sign or keyword; tell whether it was."""
        if self._tokens[self.place].upper() != word:
            return False
        self.place += 1
        return True

    def expect(self, word: str) -> None:
        """Go on if the next token is this sign or keyword."""
        if not self.accept(word):
            raise self.syntax_error()

    def error(self, message: str) -> Refusal:
        """Return the refusal of this expression."""
        return invalid(f"Invalid {self.kind}: {message}")

    def syntax_error(self) -> Refusal:
        """Return the refusal of the next token."""
        first, last = max(self.place - 1, 0), self.place + 1
        spans = (self._spans[first : last + 1] if self.next else self._spans[-1:]) or [(0, len(self._text))]
        near = self._text[spans[0][0] : spans[-1][1]]
        return self.error(f'Syntax error; token: "{self.next or "<EOF>"}", near: "{near}"')


@dataclass(frozen=True)
class Parsed(Generic[Root]):
    """An expression after parsing. Holds nothing of the request, so that it can be kept.

    Attributes:
        root: the condition, actions or paths.
        kind: what the expression is, as ``ConditionExpression``.
        names: the placeholders of names in it.
        values: the placeholders of values in it.
        placeholders: of both.
        rules: what has to be true of them.
        paths: the document paths in it.
    """

    root: Root
    kind: str
    names: frozenset[str]
    values: frozenset[str]
    placeholders: frozenset[str]
    rules: tuple[Rule, ...]
    paths: tuple[Path, ...]


class Parser:
    """Parses by recursive descent.

    Args:
        kind: what the expression is, as ``ConditionExpression``.
        text: the expression.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.tokens = Tokens(kind, text)
        self._names = set[str]()
        self._values = set[str]()
        self._rules = list["Rule"]()
        self._paths = list[Path]()
        self._operators = 0

    def finish(self, root: Root) -> Parsed[Root]:
        """Return what was parsed, once the whole text was."""
        if self.tokens.next != END:
            raise self.tokens.syntax_error()
        names, values = frozenset(self._names), frozenset(self._values)
        return Parsed(root, self.tokens.kind, names, values, names | values, tuple(self._rules), tuple(self._paths))

    def demand(self, rule: Rule) -> None:
        """Note what has to be true of the request."""
        self._rules.append(rule)

    def demand_type(self, operand: Operand, types: frozenset[str], function: str) -> None:
        """Note that a literal operand has to be of one of these types."""
        if isinstance(operand, Literal):
            self.demand(allowed_types(operand.name, types, function))

    def demand_distinct(self, first: Operand, others: tuple[Operand, ...], function: str) -> None:
        """Note that the other operands have to be other paths than the first."""
        if isinstance(first, Path):
            for other in others:
                if isinstance(other, Path):
                    self.demand(distinct(first, other, function))

    def count_operator(self) -> None:
        """Note one operator more."""
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise self.tokens.error(f"The expression contains too many operators; operator count: {self._operators}")

    def function(self, *, of_update: bool) -> tuple[str, tuple[Operand, ...]]:
        """Take a function; return its name and its operands."""
        name = self.tokens.take()
        functions, others, what = _OF_CONDITIONS, _OF_UPDATES, "a condition"
        if of_update:
            functions, others, what = _OF_UPDATES, _OF_CONDITIONS, "an update"
        if name in others:
            raise self.tokens.error(f"The function is not allowed in {what} expression; function: {name}")
        if name not in functions:
            raise self.tokens.error(f"Invalid function name; function: {name}")
        operands = self.operands()
        if len(operands) != functions[name]:
            raise self.tokens.error(
                f"Incorrect number of operands for operator or function; "
                f"operator or function: {name}, number of operands: {len(operands)}"
            )
        return name, operands

    def operands(self) -> tuple[Operand, ...]:
        """Take operands in parentheses."""
        self.tokens.expect("(")
        found = [self.operand()]
        while self.tokens.accept(","):
            found.append(self.operand())
        self.tokens.expect(")")
        return tuple(found)

    def operand(self) -> Operand:
        """Take an operand: what may be one depends on the kind of expression."""
        raise NotImplementedError

    def must_be_path(self, operand: Operand, function: str) -> None:
        """Refuse any other operand of a function."""
        if not isinstance(operand, Path):
            raise self.tokens.error(f"Operator or function requires a document path; operator or function: {function}")

    def path_or_literal(self) -> Path | Literal:
        """Take a document path, or a placeholder of a value."""
        return self.literal() if self.tokens.next.startswith(":") else self.path()

    def literal(self) -> Literal:
        """Take a placeholder of a value."""
        if not self.tokens.next.startswith(":"):
            raise self.tokens.syntax_error()
        name = self.tokens.take()
        self._values.add(name)
        return Literal(name)

    def path(self) -> Path:
        """Take a document path."""
        parts: list[str | int] = [self._name()]
        while self.tokens.next in {".", "["}:
            if self.tokens.take() == ".":
                parts.append(self._name())
            else:
                if not self.tokens.next.isdigit():
                    raise self.tokens.syntax_error()
                parts.append(int(self.tokens.take()))
                self.tokens.expect("]")
        path = Path(tuple(parts))
        self._paths.append(path)
        return path

    def _name(self) -> str:
        name = self.tokens.next
        if name.startswith("#"):
            self._names.add(name)
        elif not name[:1].isalpha():
            raise self.tokens.syntax_error()
        elif name.upper() in RESERVED:
            raise self.tokens.error(f"Attribute name is a reserved keyword; reserved keyword: {name}")
        return self.tokens.take()
