"""What must be true of every run, each in an object of its own."""

from __future__ import annotations

from typing import Final

from tests.simulation.checkers.base import Checker, Violation, own_methods
from tests.simulation.checkers.calls import OneResult
from tests.simulation.checkers.entries import KeptPlace, Silence, ToldLoss, TrueLoss
from tests.simulation.checkers.intervals import Disjoint, Limited
from tests.simulation.checkers.items import Expiry, NothingLost, Progress, RealTime, Truth, Versions
from tests.simulation.checkers.jobs import OneSuccess
from tests.simulation.checkers.lives import Lives
from tests.simulation.checkers.locks import Breaking, Fence, Fifo, NoEarlyEviction, OneHolder, Quiet, SoundQueue
from tests.simulation.checkers.modes import OnceEach, Steady, Unhindered
from tests.simulation.checkers.transactions import NothingLeft, PlainReads, Serializable, Together
from tests.simulation.checkers.turns import Growing, Turns
from tests.simulation.checkers.unique import OneRowEach
from tests.simulation.checkers.values import Bank, Linearizable, OneOrder

__all__ = ["CHECKERS", "Checker", "Lives", "Violation", "own_methods"]

CHECKERS: Final[tuple[type[Checker], ...]] = (
    OneHolder,
    NoEarlyEviction,
    Growing,
    Fence,
    SoundQueue,
    Fifo,
    Turns,
    Unhindered,
    Steady,
    OnceEach,
    Disjoint,
    Limited,
    OneRowEach,
    Silence,
    KeptPlace,
    ToldLoss,
    TrueLoss,
    Breaking,
    Truth,
    NothingLost,
    Versions,
    RealTime,
    Linearizable,
    Bank,
    OneOrder,
    OneSuccess,
    OneResult,
    Serializable,
    Together,
    NothingLeft,
    PlainReads,
    Expiry,
    Progress,
    Quiet,
)
