"""Draw the diagrams of the documentation: ``python -m docs.pictures.diagrams``.

Each is one SVG file, as narrow as a phone, with colours for light and dark pages. A test compares the files with what
this module draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
WIDTH: Final = 440
#: Of the smallest text. A phone shows 440 units as 390 pixels, so these as 15.
SMALLEST: Final = 17

#: The colours of each kind on a light and on a dark page: fill, line, text.
COLOURS: Final[dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]]] = {
    "page": (("#ffffff", "#ffffff", "#1f2328"), ("#131416", "#131416", "#e4e6ea")),
    "note": (("#ffffff", "#d0d7de", "#57606a"), ("#131416", "#3d444d", "#a7afb9")),
    "stored": (("#f3f4f6", "#6e7781", "#1f2328"), ("#22262c", "#7d858f", "#e4e6ea")),
    "holder": (("#d5f2dd", "#1a7f37", "#0f5226"), ("#12361f", "#3fb950", "#8ee6a6")),
    "waiter": (("#ddecff", "#0969da", "#0a4a99"), ("#10284a", "#58a6ff", "#a5d1ff")),
    "intent": (("#efe5ff", "#8250df", "#5b2fb0"), ("#2e1e52", "#a884f5", "#d6c3fc")),
    "refused": (("#ffe3e0", "#cf222e", "#9a0c22"), ("#4a1518", "#ff7b72", "#ffbab4")),
}
_FONT: Final = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_SHAPES: Final = (
    f"text{{font:{SMALLEST}px {_FONT}}}.b{{font-weight:700}}.m{{text-anchor:middle}}.e{{text-anchor:end}}"
    ".l{fill:none;stroke-width:2}.s{stroke-width:2}.w{stroke-dasharray:6 4}"
)


def _colours(theme: int) -> str:
    """Return the rules of each kind: ``.holder`` for shapes, ``.holder-t`` for text and heads of arrows."""
    rules = []
    for kind, themes in COLOURS.items():
        fill, line, text = themes[theme]
        rules.append(f".{kind}{{fill:{fill};stroke:{line}}}.{kind}-l{{stroke:{line}}}")
        rules.append(f".{kind}-t{{fill:{text}}}.{kind}-h{{fill:{line}}}")
    return "".join(rules)


class Picture:
    """One drawing. Coordinates are in units of the view box; lines of text are given by their middle."""

    def __init__(self, height: int, title: str, description: str) -> None:
        """Begin an empty one."""
        self._head = (height, escape(title), escape(description))
        self._parts: list[str] = []

    def __str__(self) -> str:
        """Return the file."""
        height, title, description = self._head
        style = f"{_SHAPES}{_colours(0)}@media(prefers-color-scheme:dark){{{_colours(1)}}}"
        size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
                f'<title id="title">{title}</title>',
                f'<desc id="desc">{description}</desc>',
                f"<style>{style}</style>",
                f'<rect class="page" width="{WIDTH}" height="{height}" rx="12"/>',
                *self._parts,
                "</svg>\n",
            )
        )

    def text(self, x: float, y: float, text: str, kind: str = "page", shape: str = "") -> None:
        """Write one line at the left of `x`; with the shapes "m" and "e" around and before it, "b" in bold."""
        self._parts.append(f'<text class="{f"{kind}-t {shape}".strip()}" x="{x:g}" y="{y + 6:g}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draw a box with lines in its middle."""
        shape = f"{kind} s" + (" w" if kind == "waiter" else "")
        self._parts.append(f'<rect class="{shape}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        for k, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 22 * (k - (len(lines) - 1) / 2), line, kind, "m")

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "stored", shape: str = "l") -> None:
        """Draw a line; with the shape "l w" a dashed one."""
        self._parts.append(f'<path class="{kind}-l {shape}" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, kind: str = "stored") -> None:
        """Draw an arrow, level or upright."""
        across, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        self.line(x, y, to_x - 8 * across, to_y - 8 * down, kind)
        back_x, back_y = to_x - 11 * across, to_y - 11 * down
        self._parts.append(
            f'<path class="{kind}-h" d="M{to_x:g} {to_y:g}L{back_x + 6 * down:g} {back_y + 6 * across:g}'
            f'L{back_x - 6 * down:g} {back_y - 6 * across:g}z"/>'
        )

    def queue(self, x: float, y: float, *entries: tuple[str, str], width: float = 64) -> None:
        """Draw the entries of a queue: of each its kind, and its ticket with a name."""
        for k, (kind, label) in enumerate(entries):
            self.box(x + (width + 8) * k, y, width, 34, kind, label)

    def cases(self, y: float, *rows: tuple[tuple[str, ...], str, tuple[str, ...]], is_choice: bool) -> None:
        """Draw one below the other: of each its lines, and the kind and the lines of what it leads to."""
        for k, (lines, kind, result) in enumerate(rows):
            top = y + 92 * k
            self.box(16, top, 214, 58, "stored", *lines)
            self.arrow(230, top + 29, 274, top + 29)
            self.box(274, top, 150, 58, kind, *result)
            if is_choice:  # the first that applies
                self.text(250, top + 12, "yes", "note", "m")
                self.text(133, top + 75, "no", "note")
                self.arrow(123, top + 58, 123, top + 92)

    def legend(self, y: float, *kinds: str) -> None:
        """Say what the colours mean."""
        for k, kind in enumerate(kinds):
            x = 20 + 136 * k
            self.box(x, y - 8, 26, 16, kind)
            self.text(x + 34, y, {"refused": "rejected", "intent": "write intent"}.get(kind, kind))


def paused_holder() -> Picture:
    """The holder that was paused."""
    picture = Picture(
        700,
        "A holder that was paused for longer than its lease cannot write",
        "Process A acquires the lock with ticket 7, and pauses for longer than its lease. Process B waits with ticket "
        "8, sees no heartbeat of A for a lease, evicts A, holds the lock and writes. A wakes and writes with ticket "
        "7. DynamoDB rejects that write, since ticket 7 is no longer in the queue. A gets LockLost.",
    )
    a, dynamodb, b = 58, 220, 382
    for x, width, name in ((a, 100, "process A"), (dynamodb, 120, "DynamoDB"), (b, 100, "process B")):
        picture.line(x, 44, x, 572, "note")
        picture.box(x - width / 2, 12, width, 34, "stored", name)
    picture.box(a - 7, 80, 14, 76, "holder")
    picture.box(a - 7, 156, 14, 276, "stored")
    picture.text(a + 16, 176, "paused")
    picture.box(b - 7, 156, 14, 126, "waiter")
    picture.box(b - 7, 282, 14, 278, "holder")

    picture.text((a + dynamodb) / 2, 68, "acquire", shape="m")
    picture.arrow(a + 7, 82, dynamodb, 82)
    picture.queue(dynamodb - 32, 92, ("holder", "7 A"))

    picture.text((b + dynamodb) / 2, 144, "acquire", shape="m")
    picture.arrow(b - 7, 158, dynamodb, 158)
    picture.queue(dynamodb - 68, 168, ("holder", "7 A"), ("waiter", "8 B"))
    picture.text(b - 16, 222, "no heartbeat", shape="e")
    picture.text(b - 16, 244, "for a lease", shape="e")

    picture.text((b + dynamodb) / 2, 270, "evict A", shape="m")
    picture.arrow(b - 7, 284, dynamodb, 284)
    picture.queue(dynamodb - 32, 294, ("holder", "8 B"))

    picture.text((b + dynamodb) / 2, 346, "write, ticket 8", shape="m")
    picture.arrow(b - 7, 360, dynamodb, 360)
    picture.box(dynamodb - 48, 370, 96, 34, "stored", "applied")

    picture.text(a + 16, 422, "wakes")
    picture.box(a - 7, 432, 14, 128, "refused")
    picture.text((a + dynamodb) / 2, 446, "write, ticket 7", shape="m")
    picture.arrow(a + 7, 460, dynamodb, 460, "refused")
    picture.box(dynamodb - 88, 470, 176, 56, "refused", "rejected: ticket 7", "is not in the queue")
    picture.text((a + dynamodb) / 2, 542, "LockLost", shape="m")
    picture.arrow(dynamodb, 556, a + 7, 556, "refused")

    picture.legend(598, "holder", "waiter", "refused")
    picture.text(20, 632, "7 A: A is in the queue, with ticket 7.")
    picture.text(20, 658, "Each write names its ticket in its condition,")
    picture.text(20, 680, "so DynamoDB itself rejects a stale write.")
    return picture


def lease() -> Picture:
    """Heartbeats, the end of a lease, and the eviction."""
    picture = Picture(
        490,
        "Lease, heartbeat and eviction",
        "Process A acquires the lock at 0 s with a lease of 60 s, and sends heartbeats at 20 s and at 40 s. Each "
        "renews the lease for 60 s. A stops at 50 s, so its lease ends at 100 s. Process B waits from 10 s on, and "
        "sees the last heartbeat at 41 s. No other comes for a lease and 5 percent, so B evicts A at 104 s and holds "
        "the lock.",
    )

    def at(seconds: float) -> float:
        return 20 + 3 * seconds

    picture.text(20, 24, "Process A", shape="b")
    picture.box(at(0), 40, 150, 30, "holder", "holds the lock")
    picture.text(at(50) + 10, 55, "stops", "refused", "b")
    picture.text(20, 98, "Its lease, 60 s from each heartbeat", shape="b")
    for k, name in enumerate(("acquired", "heartbeat 1", "heartbeat 2")):
        picture.box(at(20 * k), 114 + 34 * k, 180, 28, "holder", name)
    picture.text(at(100) + 8, 196, "lease ends")

    picture.text(20, 236, "Process B", shape="b")
    picture.text(at(104), 232, "evicts A", shape="m")
    picture.arrow(at(104), 242, at(104), 257)
    picture.box(at(10), 258, 3 * 94, 30, "waiter", "waits")
    picture.box(at(104), 258, 3 * 25, 30, "holder", "holds")
    for seconds in (41, 104):
        picture.line(at(seconds), 296, at(seconds), 312)
    picture.arrow(at(72), 304, at(104), 304)
    picture.arrow(at(72), 304, at(41), 304)
    picture.text(at(72.5), 328, "no heartbeat for a lease + 5 %", shape="m")

    picture.line(at(0), 356, at(130), 356)
    for seconds in range(0, 121, 20):
        picture.line(at(seconds), 350, at(seconds), 362)
        picture.text(at(seconds), 378, f"{seconds}", shape="m")
    picture.text(at(128), 378, "s")
    picture.text(20, 416, "A counts a lease from before it sends the")
    picture.text(20, 438, "heartbeat, B from after it sees it. So the")
    picture.text(20, 460, "lease of A has ended before B evicts A.")
    return picture


def queue() -> Picture:
    """The queue inside one item."""
    picture = Picture(
        626,
        "The queue of a lock, in one item",
        "The item alice with its balance and its lock, three times. First A holds the lock with ticket 7, B and C "
        "wait with tickets 8 and 9. A writes the balance and releases the lock: B now has the smallest ticket and "
        "holds the lock. Then D enters the queue: it takes ticket 10 in one atomic write.",
    )
    holder, waiter = "holder", "waiter"
    states = (
        (100, ((holder, "7 A"), (waiter, "8 B"), (waiter, "9 C")), 10),
        (70, ((holder, "8 B"), (waiter, "9 C")), 10),
        (70, ((holder, "8 B"), (waiter, "9 C"), (waiter, "10 D")), 11),
    )
    steps = (("A writes balance 70,", "and releases the lock"), ("D enters the queue: one", "atomic write, ticket 10"))
    for k, (balance, entries, ticket) in enumerate(states):
        y = 12 + 190 * k
        picture.box(16, y, 408, 116, "stored")
        picture.text(30, y + 22, "item alice", shape="b")
        picture.text(410, y + 22, f"balance {balance}", shape="e")
        picture.text(30, y + 58, "lock")
        picture.queue(82, y + 41, *entries)
        picture.text(410, y + 94, f"next ticket {ticket}", shape="e")
    for k, lines in enumerate(steps):
        y = 132 + 190 * k
        picture.arrow(60, y, 60, y + 66)
        for line, text in enumerate(lines):
            picture.text(82, y + 22 + 22 * line, text)
    picture.legend(534, holder, waiter)
    picture.text(20, 570, "The entry with the smallest ticket holds the")
    picture.text(20, 592, "lock. So the release itself passes it on.")
    return picture


def modes() -> Picture:
    """Who excludes whom."""
    picture = Picture(
        732,
        "Which lock modes exclude each other",
        "Two claims exclude each other if their ranges overlap and they are not both shared. A claim without a range "
        "is of everything. Of a semaphore of 2 permits, two entries hold the lock and the third waits. A reader that "
        "comes after a waiting writer waits too. Of ranges, those of 0 to 10 and of 10 to 20 are held together; one "
        "of 5 to 15 overlaps both and waits.",
    )
    holder, waiter = "holder", "waiter"
    picture.text(20, 24, "Two claims", shape="b")
    picture.text(245, 24, "overlap", shape="m b")
    picture.text(365, 24, "are disjoint", shape="m b")
    rows = (("both exclusive", False), ("one is shared", False), ("both shared", True))
    for k, (name, together) in enumerate(rows):
        y = 42 + 42 * k
        picture.text(20, y + 17, name)
        picture.box(190, y, 110, 34, holder if together else waiter, "both hold" if together else "one waits")
        picture.box(310, y, 110, 34, holder, "both hold")
    picture.text(20, 186, "A lock without a range claims everything.")

    picture.text(20, 230, "Semaphore of 2 permits", shape="b")
    picture.queue(20, 248, (holder, "7 A"), (holder, "8 B"), (waiter, "9 C"), width=95)
    picture.text(20, 302, "The third waits until one of them leaves.")
    readers = ((holder, "6 reader"), (holder, "7 reader"), (waiter, "8 writer"), (waiter, "9 reader"))
    picture.text(20, 346, "Shared: readers and a writer", shape="b")
    picture.queue(20, 364, *readers, width=95)
    picture.text(20, 418, "A reader behind a waiting writer waits too.")

    picture.text(20, 462, "Ranges", shape="b")

    def at(value: float) -> float:
        return 30 + 18 * value

    for y, lower, upper, kind, name in (
        (480, 0, 10, holder, "7 A: [0, 10)"),
        (520, 10, 20, holder, "8 B: [10, 20)"),
        (560, 5, 15, waiter, "9 C: [5, 15)"),
    ):
        picture.box(at(lower), y, 18 * (upper - lower), 34, kind, name)
    picture.line(at(0), 612, at(21.5), 612)
    for value in range(0, 21, 5):
        picture.line(at(value), 606, at(value), 618)
        picture.text(at(value), 634, f"{value}", shape="m")
    picture.text(20, 668, "A and B do not overlap. C overlaps both.")
    picture.legend(706, holder, waiter)
    picture.text(292, 706, "7 A: ticket 7")
    return picture


def long_commit() -> Picture:
    """The commit of a transaction with more than 100 actions."""
    picture = Picture(
        912,
        "The commit of a transaction of more than 100 actions",
        "Five steps. First the transaction record is written, pending. Second, items get write intents, in batches of "
        "25: readers still see the old values. Third, one TransactWriteItems turns the record from pending to "
        "committed and writes 99 items: this is the commit point. From then on a read in a transaction sees all new "
        "values, while a plain get sees the old value of an item that still has its intent. Fourth, intents are "
        "applied. Fifth, the record is finished.",
    )
    picture.text(20, 46, "record", shape="b")
    picture.text(142, 46, "items", shape="b")
    picture.text(357, 22, "a reader sees", shape="m b")
    picture.text(322, 46, "get", shape="m b")
    picture.text(392, 46, "tx.get", shape="m b")
    old, new = ("100", "50", "5"), ("70", "80", "9")
    steps = (
        ("1  Write the record", "pending", old, (), old, old),
        ("2  Write intents, in batches of 25", "pending", old, (0, 1), old, old),
        ("3  Commit: one TransactWriteItems", "committed", ("100", "50", "9"), (0, 1), ("100", "50", "9"), new),
        ("4  Apply the intents, in batches", "committed", ("70", "50", "9"), (1,), ("70", "50", "9"), new),
        ("5  Finish the record", "finished", new, (), new, new),
    )
    for k, (title, state, stored, intents, plain, read) in enumerate(steps):
        commits, y = title.startswith("3"), 68 + 148 * k + 18 * (state in {"committed", "finished"})
        picture.line(16, y, 424, y, "intent" if commits else "note")
        picture.text(20, y + 22, title, shape="b")
        if commits:
            picture.text(424, y - 13, "commit point", "intent", "b e")
        picture.box(16, y + 68, 112, 34, "stored", state)
        for line, name in enumerate("abc"):
            middle = y + 55 + 31 * line
            picture.text(142, middle, name)
            picture.text(206, middle, stored[line], shape="e b" if stored[line] in new else "e")
            if line in intents:
                picture.box(216, middle - 13, 62, 26, "intent", f"→ {new[line]}")
            for x, seen in ((322, plain[line]), (392, read[line])):
                picture.text(x, middle, seen, shape="m b" if seen in new else "m")
    picture.line(16, 826, 424, 826, "note")
    picture.box(20, 840, 26, 16, "intent")
    picture.text(54, 848, "write intent: what the item will be")
    picture.text(20, 872, "c: one of the 99 items that step 3 writes")
    picture.text(20, 894, "tx.get: a read in a read-only transaction")
    return picture


def clocks() -> Picture:
    """Three processes whose clocks differ, at midnight."""
    picture = Picture(
        598,
        "One run a day, by three processes whose clocks differ",
        "Real time from 23:20 on Monday to 0:30 on Tuesday. The clock of process A is 15 minutes ahead: its Tuesday "
        "begins at 23:45. Process A asks at 23:50, and runs the job of Tuesday early. The clock of process B is "
        "right. It asks at 0:05, and is told done. The clock of process C is 15 minutes behind. It asks at 0:10, in "
        "its Monday, and at 0:20, in its Tuesday: both times it is told done. The stored success is that of Monday "
        "until the run of A has ended, then that of Tuesday.",
    )

    def at(minutes: float) -> float:
        return 20 + 5.7 * (minutes + 40)

    def days(y: float, midnight: float) -> None:
        picture.box(at(-40), y, 5.7 * (40 + midnight), 30, "stored", "Monday")
        picture.box(at(midnight), y, 5.7 * (30 - midnight), 30, "stored", "Tuesday")

    picture.line(at(0), 20, at(0), 482, "note", "l w")
    rows = (
        ("A: clock 15 min ahead", -15, ((-10, "due"),)),
        ("B: clock is right", 0, ((5, "done"),)),
        ("C: clock 15 min behind", 15, ((10, "done"), (20, "done"))),
    )
    for k, (name, midnight, calls) in enumerate(rows):
        y = 14 + 126 * k
        picture.text(20, y + 10, name, shape="b")
        days(y + 26, midnight)
        for when, status in calls:
            kind = "holder" if status == "due" else "stored"
            picture.arrow(at(when), y + 84, at(when), y + 57, kind)
            picture.text(at(when), y + 96, status, kind, "m b" if kind == "holder" else "m")
    picture.text(at(-10) - 22, 110, "runs the job:", "holder", "e")
    picture.text(20, 402, "stored: last success", shape="b")
    days(418, -7)
    picture.line(at(-40), 478, at(30), 478)
    picture.text(163, 500, "real time", "note", "m")
    for minutes, name in ((-30, "23:30"), (0, "0:00"), (29, "0:30")):
        picture.line(at(minutes), 472, at(minutes), 484)
        picture.text(at(minutes), 500, name, shape="m")
    picture.text(20, 540, "A run is due only if the period of the caller")
    picture.text(20, 562, "is later than the stored one. So no period")
    picture.text(20, 584, "has two successful runs.")
    return picture


#: The tables: of each its name, its keys, and its rows or attributes with what they are.
_TABLES: Final = (
    (
        "your tables",
        "your keys",
        (
            ("balance, …", "your attributes"),
            ("version", "optimistic locking"),
            ("version_write_id", "id of the last write"),
            ("lock", "queue, write intent"),
        ),
    ),
    (
        "NamedLock",
        "key: name",
        (
            ("nightly-report", "lock of a name"),
            ("orders/1", "lock of an item"),
            ("table#orders", "lock of a table"),
            ("guard#rooms/blue", "guard of intervals"),
        ),
    ),
    (
        "TransactionTable",
        "key: id",
        (
            ("2fad00d5…", "transaction record"),
            ("2fad00d5…#0000", "items with intents"),
            ("2fad00d5…!00000", "a large intent"),
            ("key#order-1", "idempotency key"),
            ("guard#…", "guard of queries"),
            ("suspended#…", "to be resumed"),
        ),
    ),
    ("UniqueTable", "key: name", (("users%23email/…", "item with the value"),)),
    ("IdempotencyTable", "key: name", (("order-1", "result of a call"),)),
)
_ONE_TABLE: Final = (
    "one table",
    "keys: pk and sk",
    (
        ("order#1", "order"),
        ("locks#nightly-…", "lock#nightly-…"),
        ("locks#2fad00d5…", "transaction#2fad…"),
        ("locks#users…", "unique#users…"),
        ("locks#order-1", "call#order-1"),
    ),
)


def tables() -> Picture:
    """Which table holds what."""
    picture = Picture(
        1020,
        "Which table holds what",
        "Your own tables: an item has your attributes, version and version_write_id, and lock, a map with the queue "
        "and a write intent. A NamedLock table: locks of names, of tables and of items of models with "
        "Meta.lock_table, guards of intervals. A TransactionTable: transaction records, the items with write intents, "
        "idempotency keys, guards of queries, suspended transactions. A UniqueTable: for each unique value its item. "
        "An IdempotencyTable: the results of calls. Or all of these in one table with the keys pk and sk, under a "
        "prefix.",
    )
    y = 12
    for name, keys, rows in (*_TABLES, _ONE_TABLE):
        if rows is _ONE_TABLE[2]:
            picture.text(20, y + 10, "or all of this in one table, under a prefix:")
            y += 34
        height = 46 + 28 * len(rows)
        picture.box(16, y, 408, height, "stored")
        picture.text(30, y + 20, name, shape="b")
        picture.text(410, y + 20, keys, "note", "e")
        for k, (key, meaning) in enumerate(rows):
            picture.text(30, y + 52 + 28 * k, key)
            picture.text(216, y + 52 + 28 * k, meaning)
        y += height + 14
    picture.text(20, y + 12, "You need the tables of the features you use.")
    return picture


def demo() -> Picture:
    """What a run of `make demo` has lost."""
    lost, changes = 114, 192
    picture = Picture(
        250,
        "Changes that got lost in a run of make demo",
        f"Eight processes move money between a few accounts, and one of them is killed. Unprotected, {lost} of "
        f"{changes} changes got lost. In transactions none got lost, and under locks none.",
    )
    picture.text(20, 28, "Changes lost in a run of make demo", shape="b")
    ways = (("unprotected", lost), ("in transactions", 0), ("under locks", 0))
    for k, (way, count) in enumerate(ways):
        y = 48 + 66 * k
        picture.text(20, y + 12, way)
        picture.text(420, y + 12, f"{count} of {changes}", shape="e b")
        picture.box(20, y + 28, 400, 20, "stored")
        if count:
            picture.box(20, y + 28, 400 * count / changes, 20, "refused")
    return picture


def choice() -> Picture:
    """Which of version, lock, once, idempotent and transaction."""
    picture = Picture(
        530,
        "Which of them do I need?",
        "Ask from top to bottom; the first yes decides. Must a repeated call or message count once? Use idempotent. "
        "Must a job run once in each period? Use once. Must several items change together? Use a transaction. Do many "
        "callers want one item at the same time, or is the work long? Use a lock: edit or locked. Otherwise use a "
        "version.",
    )
    picture.text(20, 24, "What do I need? The first yes decides.", shape="b")
    picture.cases(
        48,
        (("a repeated call or", "message counts once"), "holder", ("@idempotent",)),
        (("a job runs once", "in each period"), "holder", ("once",)),
        (("several items", "change together"), "holder", ("transaction",)),
        (("many callers want one", "item, or for long"), "holder", ("a lock: edit,", "locked")),
        is_choice=True,
    )
    picture.box(16, 416, 214, 40, "holder", "a version")
    picture.text(20, 488, "They work together: a model can have a")
    picture.text(20, 510, "version and a lock, and be in transactions.")
    return picture


def entry() -> Picture:
    """The states of an entry."""
    picture = Picture(
        600,
        "The states of an entry in the queue",
        "An entry waits until no entry ahead conflicts with it; a caller that gives up removes it. Then it holds the "
        "lock. A release removes it, or stores the entry of the next caller of the process. Detach stores an entry "
        "with a token. Without a renewal for a lease and 5 percent, or if an operator breaks the lock, it is removed, "
        "and the holder gets LockLost.",
    )
    picture.box(16, 16, 408, 34, "waiter", "waiting: it has a ticket, and is renewed")
    picture.arrow(123, 50, 123, 96)
    picture.text(139, 74, "no entry ahead conflicts with it")
    picture.box(16, 96, 408, 34, "holder", "holding: it is renewed by the heartbeat")
    picture.text(20, 162, "How it leaves the queue", shape="b")
    picture.cases(
        182,
        (("release, or the last", "save of an edit"), "stored", ("removed",)),
        (("release, and a caller", "of the process waits"), "stored", ("entry of the", "next caller")),
        (("detach",), "holder", ("entry of the", "token")),
        (("no renewal for a lease", "and 5 %, or broken"), "refused", ("evicted:", "LockLost")),
        is_choice=False,
    )
    picture.text(20, 566, "A waiter that gives up removes its entry.")
    return picture


def on_call() -> Picture:
    """What to do about a lock that nobody gets."""
    picture = Picture(
        520,
        "On call: callers do not get a lock",
        "Look at locks show. If there is an intent, a transaction has the item: look at tx show. If it says dead "
        "holder, the lease has ended, and the next waiter evicts the holder: do nothing. If the owner still works, "
        "wait. If the owner hangs, end its process, or break the lock. Otherwise the lock is free.",
    )
    picture.text(20, 24, "pynamo-locking locks show KEY", shape="b")
    picture.cases(
        48,
        (("it shows an intent",), "intent", ("tx show ID,", "tx recover ID")),
        (("it shows a", "dead holder"), "waiter", ("nothing: a", "waiter evicts it")),
        (("its owner runs,", "and makes progress"), "holder", ("wait, or raise", "wait=")),
        (("its owner hangs",), "refused", ("end its process,", "or locks break")),
        is_choice=True,
    )
    picture.box(16, 416, 214, 40, "stored", "no holder: it is free")
    picture.text(20, 490, "A broken lock gives its holder LockLost.")
    return picture


PICTURES: Final = {
    "demo.svg": demo,
    "paused-holder.svg": paused_holder,
    "lease.svg": lease,
    "queue.svg": queue,
    "modes.svg": modes,
    "long-commit.svg": long_commit,
    "clocks.svg": clocks,
    "tables.svg": tables,
    "choice.svg": choice,
    "entry.svg": entry,
    "on-call.svg": on_call,
}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (HERE / file).write_text(str(draw()))
