"""Whether readers without a transaction saw committed states only.

They may see an old one, or of several registers states that were never there together. What they may not see is what
was never committed, or not yet: a transaction that is seen before it is decided can still be aborted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence


class Version(NamedTuple):
    """A state that was installed in a register.

    Attributes:
        value: the state; None for no item, if readers tell of that so.
        decided: the moment since which it could no longer be aborted.
    """

    value: Any
    decided: float = -math.inf


class PlainRead(NamedTuple):
    """What a reader without a transaction saw.

    Attributes:
        reader: who, for people.
        register: of what.
        value: the state that it saw.
        ended: the moment at which it had the answer.
    """

    reader: str
    register: Hashable
    value: Any
    ended: float = math.inf


def uncommitted_reads(reads: Iterable[PlainRead], versions: Mapping[Any, Sequence[Version]]) -> Iterator[str]:
    """Yield what is wrong with reads, one sentence for each.

    Args:
        reads: all that were seen.
        versions: by register, all states that were ever installed, with the one at the beginning.
    """
    for read in reads:
        fitting = [version for version in versions.get(read.register, ()) if version.value == read.value]
        if not fitting:
            yield f"{read.reader} saw {read.register} as {read.value}, which was never committed"
        elif all(version.decided > read.ended for version in fitting):
            yield f"{read.reader} saw {read.register} as {read.value} before that was decided"
