"""The words of an expression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.refusals import invalid

if TYPE_CHECKING:
    from pynamo_locking._expressions.refusals import Refusal

_TOKEN: Final = re.compile(r"[#:][A-Za-z0-9_]+|[A-Za-z][A-Za-z0-9_]*|[0-9]+|<>|<=|>=|\S")
_LONGEST: Final = 4096
#: In the place of a token after the last one.
END: Final = ""


class Tokens:
    """The tokens of an expression, taken from left to right.

    Args:
        kind: what the expression is, as ``ConditionExpression``.
        text: the expression.

    Raises:
        Refusal: it is empty, or longer than 4 KB.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.place = 0
        self._text = text
        if not text:
            raise self.error("The expression can not be empty;")
        size = len(text.encode())
        if size > _LONGEST:
            raise self.error(
                f"Expression size has exceeded the maximum allowed size; expression size: {size}",
            )
        matches = list(_TOKEN.finditer(text))
        self._tokens = [match.group() for match in matches] + [END, END]
        self._spans = [match.span() for match in matches]

    @property
    def next(self) -> str:
        """The next token, or `END`."""
        return self._tokens[self.place]

    @property
    def after_next(self) -> str:
        """The token after the next one, or `END`."""
        return self._tokens[self.place + 1] if self.next else END

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
        """Go on if the next token is this sign or keyword.

        Raises:
            Refusal: it is not.
        """
        if not self.accept(word):
            raise self.syntax_error()

    def error(self, message: str) -> Refusal:
        """Return the refusal of this expression."""
        return invalid(f"Invalid {self.kind}: {message}")

    def syntax_error(self) -> Refusal:
        """Return the refusal of the next token."""
        first, last = max(self.place - 1, 0), self.place + 1
        spans = self._spans[first : last + 1]
        near = self._text[spans[0][0] : spans[-1][1]] if spans and self.next else self._text[slice(*self._last_span)]
        return self.error(f'Syntax error; token: "{self.next or "<EOF>"}", near: "{near}"')

    @property
    def _last_span(self) -> tuple[int, int]:
        return self._spans[-1] if self._spans else (0, len(self._text))
