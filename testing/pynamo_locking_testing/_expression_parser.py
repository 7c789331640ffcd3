"""What all parsers share: tokens, document paths, placeholders, reserved words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pynamo_locking._core.values import Value, comparable, invalid, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamo_locking._core.values import Item, Refusal


# Document paths: ``a.b[1]``.


#: The steps of a path: names of attributes and places in lists.
Parts = tuple["str | int", ...]
#: Paths that begin alike, joined: by step, the tree of what follows it; None where a path ends.
Tree = dict["str | int", Any]


@dataclass
class Scope:
    """What an expression is about: an item, empty if there is none, and names and values by placeholder."""

    item: Item
    names: Mapping[str, str]
    values: Mapping[str, Value]


class Operand:
    """Something in an expression that has a value, or is true or false."""

    __slots__ = ()

    def value(self, scope: Scope) -> Any:
        """Return the value, or None if the item has none there."""
        raise NotImplementedError


@dataclass(frozen=True)
class Path(Operand):
    """A document path as it is written, with placeholders."""

    parts: Parts

    def resolve(self, names: Mapping[Any, str]) -> Parts:
        """Return the path with the real names. Only placeholders begin with a #, so nothing else is replaced."""
        return tuple(map(names.get, self.parts, self.parts))

    def value(self, scope: Scope) -> Value | None:
        return find(scope.item, self.resolve(scope.names))


@dataclass(frozen=True)
class Literal(Operand):
    """A placeholder of a value."""

    name: str

    def value(self, scope: Scope) -> Value | None:
        return scope.values[self.name]


@dataclass(frozen=True)
class Computed(Operand):
    """What a function returns for the values of operands, as ``size(a)`` or ``a + b``."""

    function: Callable[..., Value | None]
    operands: tuple[Operand, ...]

    def value(self, scope: Scope) -> Value | None:
        """Return the result. The function is given None for an operand that has no value."""
        return self.function(*[operand.value(scope) for operand in self.operands])


def find(item: Item, parts: Parts) -> Value | None:
    content: Any = {"M": item}
    try:
        for part in parts:
            content = content["L" if isinstance(part, int) else "M"][part]
    except LookupError:
        return None
    value: Value = content
    return value


def described(parts: Parts) -> str:
    """Return a path as DynamoDB's messages write it."""
    return "[" + ", ".join(f"[{part}]" if isinstance(part, int) else part for part in parts) + "]"


def place(parts: Parts) -> Any:
    """Return the sort key of a path: a path comes before its continuations, and places of a list in their order."""
    return [(isinstance(part, int), part) for part in parts]


def check_paths(kind: str, in_order: Iterable[Parts]) -> None:
    """Refuse two paths in one expression, sorted by `place`, of which one is a part of the other.

    What one takes for a map the other must not take for a list, either.
    """
    # Only neighbours can overlap: whatever comes between a path and its continuation continues it, too.
    for one, two in pairwise(in_order):
        is_overlap = one == two[: len(one)]
        if is_overlap or _takes_list_for_map(one, two):
            raise invalid(
                f"Invalid {kind}: Two document paths {'overlap' if is_overlap else 'conflict'} with each other; must "
                f"remove or rewrite one of these paths; path one: {described(one)}, path two: {described(two)}"
            )


def _takes_list_for_map(one: Parts, two: Parts) -> bool:
    for left, right in zip(one, two, strict=False):
        if left != right:
            return isinstance(left, int) is not isinstance(right, int)
    return False


def tree_of(paths: Iterable[Parts]) -> Tree:
    """Return paths that do not overlap as a tree."""
    tree: Tree = {}
    for parts in paths:
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, {})
        branch[parts[-1]] = None
    return tree


def project(item: Item, tree: Tree, *, whole_lists: bool = False) -> Item:
    """Return the part of an item that a tree of paths names; `whole_lists`: naming an element means all of its list."""
    projected = _project({"M": item}, tree, whole_lists=whole_lists)
    return {} if projected is None else projected["M"]


def _project(value: Value, tree: Tree | None, *, whole_lists: bool) -> Value | None:
    if tree is None:
        return value
    is_list = isinstance(next(iter(tree)), int)
    kind = "L" if is_list else "M"
    if kind not in value or (is_list and whole_lists):
        return value if kind in value else None
    content = value[kind]
    there = range(len(content)) if is_list else content
    parts = [part for part in (sorted(tree) if is_list else tree) if part in there]
    found = {part: _project(content[part], tree[part], whole_lists=whole_lists) for part in parts}
    left = {part: inner for part, inner in found.items() if inner is not None}
    return {kind: list(left.values()) if is_list else left} if left else None


# What has to be true of a request's names and values before an expression is evaluated: rules. Each returns DynamoDB's
# message if it is broken.


Names = Mapping[str, str]
Values = Mapping[str, Value]
Rule = Callable[[Names, Values], "str | None"]

#: As two of DynamoDB's messages name the types.
_LONG_NAMES: Final = {
    "S": "STRING",
    "N": "NUMBER",
    "B": "BINARY",
    "SS": "STRING_SET",
    "NS": "NUMBER_SET",
    "BS": "BINARY_SET",
    "L": "LIST",
    "M": "MAP",
    "BOOL": "BOOLEAN",
    "NULL": "NULL",
}


def _allowed_types(value: str, types: frozenset[str], function: str, _names: Names, values: Values) -> str | None:
    """A value is of a type that a function or operator takes."""
    kind = type_of(values[value])
    if kind in types:
        return None
    what = "Incorrect operand type for operator or function; operator"
    if function in {"ADD", "DELETE"}:
        allowed = f"typeSet: ALLOWED_FOR_{function}_OPERAND"
        return f"{what}: {function}, operand type: {_LONG_NAMES[kind]}, {allowed}"
    return f"{what} or function: {function}, operand type: {kind}"


_TYPES: Final = frozenset({"S", "N", "B", "SS", "NS", "BS", "M", "L", "BOOL", "NULL"})


def type_name(value: str, _names: Names, values: Values) -> str | None:
    """A value names a type."""
    name = values[value].get("S")
    if name is None or name in _TYPES:
        return None  # another rule says that it is a text
    return f"Invalid attribute type name found; type: {name}, valid types: {{{','.join(sorted(_TYPES))}}}"


def bounds_in_order(lower: str, upper: str, _names: Names, values: Values) -> str | None:
    """The bounds of BETWEEN are of one type, and in order."""
    low, high = values[lower], values[upper]
    if type_of(low) != type_of(high):
        demand = "same data type for lower and upper bounds"
    elif comparable(low) > comparable(high):
        demand = "upper bound to be greater than or equal to lower bound"
    else:
        return None
    bounds = f"lower bound operand: {_shown(low)}, upper bound operand: {_shown(high)}"
    return f"The BETWEEN operator requires {demand}; {bounds}"


def _shown(value: Value) -> str:
    [(kind, content)] = value.items()
    shown: Any = content.decode("latin-1") if isinstance(content, bytes) else content
    return f"AttributeValue: {{{kind}:{shown}}}"


def _distinct(one: Path, two: Path, function: str, names: Names, _values: Values) -> str | None:
    """Two operands are not the same path."""
    parts = one.resolve(names)
    if parts != two.resolve(names):
        return None
    return (
        "The first operand must be distinct from the remaining operands for this operator or function; "
        f"operator: {function}, first operand: {described(parts)}"
    )


# Words that an expression may use only through a placeholder.


_WORDS: Final = """
ABORT ABSOLUTE ACTION ADD AFTER AGENT AGGREGATE ALL ALLOCATE ALTER ANALYZE AND ANY ARCHIVE ARE ARRAY AS ASC ASCII
ASENSITIVE ASSERTION ASYMMETRIC AT ATOMIC ATTACH ATTRIBUTE AUTH AUTHORIZATION AUTHORIZE AUTO AVG BACK BACKUP BASE
BATCH BEFORE BEGIN BETWEEN BIGINT BINARY BIT BLOB BLOCK BOOLEAN BOTH BREADTH BUCKET BULK BY BYTE CALL CALLED CALLING
CAPACITY CASCADE CASCADED CASE CAST CATALOG CHAR CHARACTER CHECK CLASS CLOB CLOSE CLUSTER CLUSTERED CLUSTERING
CLUSTERS COALESCE COLLATE COLLATION COLLECTION COLUMN COLUMNS COMBINE COMMENT COMMIT COMPACT COMPILE COMPRESS
CONDITION CONFLICT CONNECT CONNECTION CONSISTENCY CONSISTENT CONSTRAINT CONSTRAINTS CONSTRUCTOR CONSUMED CONTINUE
CONVERT COPY CORRESPONDING COUNT COUNTER CREATE CROSS CUBE CURRENT CURSOR CYCLE DATA DATABASE DATE DATETIME DAY
DEALLOCATE DEC DECIMAL DECLARE DEFAULT DEFERRABLE DEFERRED DEFINE DEFINED DEFINITION DELETE DELIMITED DEPTH DEREF
DESC DESCRIBE DESCRIPTOR DETACH DETERMINISTIC DIAGNOSTICS DIRECTORIES DISABLE DISCONNECT DISTINCT DISTRIBUTE DO
DOMAIN DOUBLE DROP DUMP DURATION DYNAMIC EACH ELEMENT ELSE ELSEIF EMPTY ENABLE END EQUAL EQUALS ERROR ESCAPE ESCAPED
EVAL EVALUATE EXCEEDED EXCEPT EXCEPTION EXCEPTIONS EXCLUSIVE EXEC EXECUTE EXISTS EXIT EXPLAIN EXPLODE EXPORT
EXPRESSION EXTENDED EXTERNAL EXTRACT FAIL FALSE FAMILY FETCH FIELDS FILE FILTER FILTERING FINAL FINISH FIRST FIXED
FLATTERN FLOAT FOR FORCE FOREIGN FORMAT FORWARD FOUND FREE FROM FULL FUNCTION FUNCTIONS GENERAL GENERATE GET GLOB
GLOBAL GO GOTO GRANT GREATER GROUP GROUPING HANDLER HASH HAVE HAVING HEAP HIDDEN HOLD HOUR IDENTIFIED IDENTITY IF
IGNORE IMMEDIATE IMPORT IN INCLUDING INCLUSIVE INCREMENT INCREMENTAL INDEX INDEXED INDEXES INDICATOR INFINITE
INITIALLY INLINE INNER INNTER INOUT INPUT INSENSITIVE INSERT INSTEAD INT INTEGER INTERSECT INTERVAL INTO INVALIDATE
IS ISOLATION ITEM ITEMS ITERATE JOIN KEY KEYS LAG LANGUAGE LARGE LAST LATERAL LEAD LEADING LEAVE LEFT LENGTH LESS
LEVEL LIKE LIMIT LIMITED LINES LIST LOAD LOCAL LOCALTIME LOCALTIMESTAMP LOCATION LOCATOR LOCK LOCKS LOG LOGED LONG
LOOP LOWER MAP MATCH MATERIALIZED MAX MAXLEN MEMBER MERGE METHOD METRICS MIN MINUS MINUTE MISSING MOD MODE MODIFIES
MODIFY MODULE MONTH MULTI MULTISET NAME NAMES NATIONAL NATURAL NCHAR NCLOB NEW NEXT NO NONE NOT NULL NULLIF NUMBER
NUMERIC OBJECT OF OFFLINE OFFSET OLD ON ONLINE ONLY OPAQUE OPEN OPERATOR OPTION OR ORDER ORDINALITY OTHER OTHERS OUT
OUTER OUTPUT OVER OVERLAPS OVERRIDE OWNER PAD PARALLEL PARAMETER PARAMETERS PARTIAL PARTITION PARTITIONED PARTITIONS
PATH PERCENT PERCENTILE PERMISSION PERMISSIONS PIPE PIPELINED PLAN POOL POSITION PRECISION PREPARE PRESERVE PRIMARY
PRIOR PRIVATE PRIVILEGES PROCEDURE PROCESSED PROJECT PROJECTION PROPERTY PROVISIONING PUBLIC PUT QUERY QUIT QUORUM
RAISE RANDOM RANGE RANK RAW READ READS REAL REBUILD RECORD RECURSIVE REDUCE REF REFERENCE REFERENCES REFERENCING
REGEXP REGION REINDEX RELATIVE RELEASE REMAINDER RENAME REPEAT REPLACE REQUEST RESET RESIGNAL RESOURCE RESPONSE
RESTORE RESTRICT RESULT RETURN RETURNING RETURNS REVERSE REVOKE RIGHT ROLE ROLES ROLLBACK ROLLUP ROUTINE ROW ROWS
RULE RULES SAMPLE SATISFIES SAVE SAVEPOINT SCAN SCHEMA SCOPE SCROLL SEARCH SECOND SECTION SEGMENT SEGMENTS SELECT
SELF SEMI SENSITIVE SEPARATE SEQUENCE SERIALIZABLE SESSION SET SETS SHARD SHARE SHARED SHORT SHOW SIGNAL SIMILAR
SIZE SKEWED SMALLINT SNAPSHOT SOME SOURCE SPACE SPACES SPARSE SPECIFIC SPECIFICTYPE SPLIT SQL SQLCODE SQLERROR
SQLEXCEPTION SQLSTATE SQLWARNING START STATE STATIC STATUS STORAGE STORE STORED STREAM STRING STRUCT STYLE SUB
SUBMULTISET SUBPARTITION SUBSTRING SUBTYPE SUM SUPER SYMMETRIC SYNONYM SYSTEM TABLE TABLESAMPLE TEMP TEMPORARY
TERMINATED TEXT THAN THEN THROUGHPUT TIME TIMESTAMP TIMEZONE TINYINT TO TOKEN TOTAL TOUCH TRAILING TRANSACTION
TRANSFORM TRANSLATE TRANSLATION TREAT TRIGGER TRIM TRUE TRUNCATE TTL TUPLE TYPE UNDER UNDO UNION UNIQUE UNIT UNKNOWN
UNLOGGED UNNEST UNPROCESSED UNSIGNED UNTIL UPDATE UPPER URL USAGE USE USER USERS USING UUID VACUUM VALUE VALUED
VALUES VARCHAR VARIABLE VARIANCE VARINT VARYING VIEW VIEWS VIRTUAL VOID WAIT WHEN WHENEVER WHERE WHILE WINDOW WITH
WITHIN WITHOUT WORK WRAPPED WRITE YEAR ZONE
"""

#: In upper case. From the DynamoDB developer guide, "Reserved words in DynamoDB".
RESERVED: Final = frozenset(_WORDS.split())


# What the parsers of all expressions share: tokens, paths, placeholders, and what they demand.


Root = TypeVar("Root")

_TOKEN: Final = re.compile(r"[#:][A-Za-z0-9_]+|[A-Za-z][A-Za-z0-9_]*|[0-9]+|<>|<=|>=|\S")
_LONGEST: Final = 4096
#: In the place of a token after the last one.
END: Final = ""
_MOST_OPERATORS: Final = 300
#: Of each function, what kind of expression may have it, and how many operands it takes.
_FUNCTIONS: Final = {
    "attribute_exists": ("a condition", 1),
    "attribute_not_exists": ("a condition", 1),
    "attribute_type": ("a condition", 2),
    "begins_with": ("a condition", 2),
    "contains": ("a condition", 2),
    "size": ("a condition", 1),
    "if_not_exists": ("an update", 2),
    "list_append": ("an update", 2),
}


@dataclass(frozen=True)
class Parsed(Generic[Root]):
    """An expression after parsing. Holds nothing of the request, so that it can be kept.

    Attributes:
        root: the condition, actions or paths.
        kind: what the expression is, as ``ConditionExpression``.
        placeholders: of names and values in it.
        rules: what has to be true of them.
    """

    root: Root
    kind: str
    placeholders: frozenset[str]
    rules: tuple[Rule, ...]
    paths: tuple[Path, ...]


class Parser:
    """Parses by recursive descent; takes the tokens from left to right. `kind` is such as ``ConditionExpression``."""

    def __init__(self, kind: str, text: str) -> None:
        self._kind = kind
        self._text = text
        if not text:
            raise self.error("The expression can not be empty;")
        size = len(text.encode())
        if size > _LONGEST:
            raise self.error(f"Expression size has exceeded the maximum allowed size; expression size: {size}")
        matches = list(_TOKEN.finditer(text))
        self._tokens = [match.group() for match in matches] + [END, END]
        self._spans = [match.span() for match in matches]
        self.place = 0
        self._placeholders = set[str]()
        self._rules = list["Rule"]()
        self._paths = list[Path]()
        self._operators = 0

    def finish(self, root: Root) -> Parsed[Root]:
        """Return what was parsed, once the whole text was."""
        if self.next != END:
            raise self.syntax_error()
        return Parsed(root, self._kind, frozenset(self._placeholders), tuple(self._rules), tuple(self._paths))

    # Tokens

    @property
    def next(self) -> str:
        return self._tokens[self.place]

    @property
    def is_function(self) -> bool:
        return self.next[:1].isalpha() and self._tokens[self.place + 1] == "("

    def take(self) -> str:
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
        return invalid(f"Invalid {self._kind}: {message}")

    def syntax_error(self) -> Refusal:
        first, last = max(self.place - 1, 0), self.place + 1
        spans = (self._spans[first : last + 1] if self.next else self._spans[-1:]) or [(0, len(self._text))]
        near = self._text[spans[0][0] : spans[-1][1]]
        return self.error(f'Syntax error; token: "{self.next or "<EOF>"}", near: "{near}"')

    # Demands

    def demand(self, rule: Callable[..., str | None], *about: Any) -> None:
        self._rules.append(partial(rule, *about))

    def demand_type(self, operand: Operand, types: frozenset[str], function: str) -> None:
        if isinstance(operand, Literal):
            self.demand(_allowed_types, operand.name, types, function)

    def demand_distinct(self, first: Operand, others: tuple[Operand, ...], function: str) -> None:
        """Note that the other operands have to be other paths than the first."""
        for other in others:
            if isinstance(first, Path) and isinstance(other, Path):
                self.demand(_distinct, first, other, function)

    def must_be_path(self, operand: Operand, function: str) -> None:
        if not isinstance(operand, Path):
            raise self.error(f"Operator or function requires a document path; operator or function: {function}")

    def count_operator(self) -> None:
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise self.error(f"The expression contains too many operators; operator count: {self._operators}")

    # Parts of expressions

    def function(self, allowed_in: str) -> tuple[str, tuple[Operand, ...]]:
        name = self.take()
        if name not in _FUNCTIONS:
            raise self.error(f"Invalid function name; function: {name}")
        kind, number = _FUNCTIONS[name]
        if kind != allowed_in:
            raise self.error(f"The function is not allowed in {allowed_in} expression; function: {name}")
        operands = self.operands()
        if len(operands) != number:
            raise self.error(
                f"Incorrect number of operands for operator or function; "
                f"operator or function: {name}, number of operands: {len(operands)}"
            )
        return name, operands

    def operands(self) -> tuple[Operand, ...]:
        self.expect("(")
        found = [self.operand()]
        while self.accept(","):
            found.append(self.operand())
        self.expect(")")
        return tuple(found)

    def operand(self) -> Operand:
        """Take an operand: what may be one depends on the kind of expression."""
        raise NotImplementedError

    def path_or_literal(self) -> Path | Literal:
        return self.literal() if self.next.startswith(":") else self.path()

    def literal(self) -> Literal:
        if not self.next.startswith(":"):
            raise self.syntax_error()
        self._placeholders.add(self.next)
        return Literal(self.take())

    def path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while self.next in {".", "["}:
            if self.take() == ".":
                parts.append(self._name())
            else:
                if not self.next.isdigit():
                    raise self.syntax_error()
                parts.append(int(self.take()))
                self.expect("]")
        path = Path(tuple(parts))
        self._paths.append(path)
        return path

    def _name(self) -> str:
        name = self.next
        if name.startswith("#"):
            self._placeholders.add(name)
        elif not name[:1].isalpha():
            raise self.syntax_error()
        elif name.upper() in RESERVED:
            raise self.error(f"Attribute name is a reserved keyword; reserved keyword: {name}")
        return self.take()
