"""Bugs in what keeps intervals apart and values unique, and in what guards queries."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_INTERVALS = Plan("intervals", parties=3, processes=3)
_OPEN = _INTERVALS.but(workload="open intervals")
_IN_TRANSACTIONS = _INTERVALS.but(workload="intervals in transactions")
_UNDER_LOCKS = Plan("intervals under locks", parties=3, processes=3, faults={Fault.PAUSE_AFTER: 1})
_VALUES = Plan("unique values", parties=3, processes=3)

_DISJOINT = Search(_INTERVALS, "Disjoint")
_LIMITED = Search(Plan("guarded queries", parties=3, processes=3), "Limited")
_ONE_ROW_EACH = Search(_VALUES, "OneRowEach")
_EXPIRING = Search(_VALUES.but(workload="unique values, expiring"), "OneRowEach")
_TOGETHER = Search(_VALUES.but(workload="unique values, transactions"), "OneRowEach")

_CALL: Final = "_intervals/disjoint_writes.py"
_STAGED: Final = "_intervals/guards.py"
_ROWS: Final = "_writes/unique_rows.py"
_ITEMS: Final = "_transactions/items.py"

INTERVALS: Final = (
    bug(
        "guard not counted: The guard of a hash key is checked, and not counted.",
        _DISJOINT,
        Change(_STAGED, "        self.guard.save(None, checks=True)", "        pass"),
    ),
    bug(
        "guard not checked: The guard is written whatever it has become.",
        _DISJOINT,
        Change(_STAGED, "        self.guard.rely()", "        pass"),
        Change(_STAGED, "self.guard.save(None, checks=True)", "self.guard.save(None, checks=False)"),
    ),
    bug(
        "touched items not settled: What the guard names is taken to be in its place.",
        _DISJOINT,
        Change(_STAGED, "settle(self._interval.model, [each.key for each in touched])", "pass"),
        Change(_STAGED, "MOST_TOUCHED: Final = 8", "MOST_TOUCHED: Final = 0"),
    ),
    bug(
        "touched items not named: The guard names nothing.",
        _DISJOINT,
        Change(_STAGED, 'guard.touched = [{"L": list(each.ends)} for each in touched] or None', "guard.touched = None"),
    ),
    bug(
        "open ends not seen: A stored item without an end counts as one without an interval.",
        Search(_OPEN, "Disjoint", first_seed=31),
        Change("_intervals/intervals.py", "not (self.may_be_open or len(stored) == 2)", "len(stored) < 2"),
    ),
    bug(
        "open ends written unseen: An item that loses its end is written without a look at what comes after it.",
        Search(_OPEN, "Disjoint"),
        Change(
            "_intervals/placings.py",
            "changed_by(action) in interval.stored]",
            "changed_by(action) in interval.stored and isinstance(action, SetAction)]",
        ),
    ),
    bug(
        "last part not looked at: Items that overlap by the last part of one do not count.",
        _DISJOINT,
        Change("_intervals/intervals.py", "None or lower < upper", "None or lower.at < upper.at - 1"),
    ),
    bug(
        "own items in the way: Who inserts again what may be stored already is refused by that.",
        Search(_INTERVALS.but(faults={Fault.FAILED_AFTER: 6}), "Truth"),
        Change(_STAGED, "for each in unsure_of(row) if each.write_id", "for each in () if each.write_id"),
    ),
    bug(
        "done under a lost lock: That the lock is lost is told as a refusal, though the items are stored.",
        Search(_UNDER_LOCKS, "Truth"),
        Change(_CALL, "(LockLost,))):\n            self._held.__exit__", "())):\n            self._held.__exit__"),
    ),
    bug(
        "names forgotten in turn: Who increments the guard in its turn removes the names of items not in their places.",
        Search(_INTERVALS.but(workload="intervals in turns"), "Disjoint", limit=300, first_seed=230),
        Change(_CALL, "model.touched.set(model.touched | [])", "model.touched.set([])"),
    ),
    bug(
        "staged items not seen: A transaction does not see the items that it has inserted itself.",
        Search(_IN_TRANSACTIONS, "Disjoint"),
        Change(_STAGED, "{item.identity: item.plan.after for item in self._written()}", "{}"),
    ),
    bug(
        "earlier calls not named: The guard names the items of the last call of a transaction alone.",
        Search(_IN_TRANSACTIONS, "Disjoint", limit=300, first_seed=14),
        Change(_STAGED, "self._touched = touched + ours", "self._touched = touched"),
    ),
)

QUERIES: Final = (
    bug(
        "queries without guard: A query does not check that nothing has appeared.",
        _LIMITED,
        Change(_ITEMS, "if is_guarding(model):", "if False:"),
    ),
    bug(
        "creations not counted: Who creates or deletes an item does not count the guard of its hash key.",
        _LIMITED,
        Change(
            _ITEMS,
            "guard.touch(_is_counter(guard) if guard.plan.write is None else None, checks=False, creates=True)",
            "pass",
        ),
    ),
    bug(
        "named items not settled: What the guard of a query names is taken to be in its place.",
        _LIMITED,
        Change(
            _ITEMS, "batch_requests.settle(model, [key | hash_key for keys in new.values() for key in keys])", "pass"
        ),
    ),
)

UNIQUE: Final = (
    bug(
        "row not conditional: A row is written whatever item it belongs to.",
        _ONE_ROW_EACH,
        Change(_ROWS, "return free", 'return free if self.to is None else free | Place("name").exists()'),
    ),
    bug(
        "old row not deleted: A change leaves the row of the old value.",
        _ONE_ROW_EACH,
        Change(_ROWS, "list(rows.values())", "[row for row in rows.values() if row.to] or [*rows.values()]"),
    ),
    bug(
        "delete leaves the row: A delete gives up nothing.",
        _ONE_ROW_EACH,
        Change(_ROWS, "return UniqueRows(item, kind, _read_with(item, checks_version), {})", "return None"),
    ),
    bug(
        "update leaves the rows: An update of a value takes no row.",
        _ONE_ROW_EACH,
        Change(_ROWS, "if not touching:", "if touching:"),
    ),
    bug(
        "time of the row not moved: An item gets more time, and its row does not.",
        _EXPIRING,
        Change(_ROWS, "if is_moved or name not in was", "if name not in was"),
    ),
    bug(
        "row taken before its time: A row with a time of expiry is free at once.",
        _EXPIRING,
        Change(_ROWS, "return free", 'return free | Place("expires_s").exists()'),
    ),
    bug(
        "row of another item deleted: A delete removes the row, whatever item has it by now.",
        _EXPIRING,
        Change(_ROWS, "return free", 'return free if self.to else free | Place("name").exists()'),
    ),
    bug(
        "rows not in the transaction: A transaction writes its items alone.",
        _TOGETHER,
        Change(_ITEMS, "for item in list(self.by_key.values()) if (its", "for item in () if (its"),
    ),
    bug(
        "swapped rows not joined: Of two items that want to change one row, the second one is forgotten.",
        _TOGETHER,
        Change(_ROWS, "            row =", "            if name in rows:\n                continue\n            row ="),
    ),
)

BUGS: Final = (*INTERVALS, *QUERIES, *UNIQUE)
