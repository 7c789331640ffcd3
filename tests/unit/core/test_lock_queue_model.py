"""The decisions of `_core` against a hostile world: one document, actors with clocks and old images of their own.

Every request may be lost before or after it was applied, sent twice, by its sender or unseen on the way, or arrive
late; actors crash and pause; their clocks differ in rate and by hours; reads may be old. Only the decisions are real:
who is first (`ahead_of`), who is dead (`observe`, `dead_among`), what became of a write (`judge`).
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from pynamo_locking._core import lock_queue
from pynamo_locking._core.lease import RATE_MARGIN
from pynamo_locking._core.lock_queue import EVICTION_SLOTS, FREE, EntryOwnership, LockState, QueueEntry
from pynamo_locking._core.write_outcome import EntryEffect, Outcome, judge
from tests.unit.helpers import entry

LEASE = 10.0


class Refused(Exception):  # noqa: N818 - an answer
    pass


class NoAnswer(Exception):  # noqa: N818 - its absence
    pass


@dataclass
class Document:
    """The stored lock with a counter beside it; each method is one conditional write."""

    state: LockState = FREE
    balance: int = 0
    applied: set[tuple[str, int]] = field(default_factory=set)

    def change(self, *, ok, entries, **facts):
        if not ok:
            raise Refused
        self.state = replace(self.state, entries=tuple(entries), **facts)

    def mine(self, me):
        return self.state.find(me.id, me.ticket or None)

    def enter(self, me):
        if not self.state.exists:
            self.state = LockState((), 100, 100, {})
        new = replace(me, ticket=self.state.next_ticket)
        self.change(ok=self.state.find(me.id) is None, entries=[*self.state.entries, new], next_ticket=new.ticket + 1)

    def renew(self, me, beat):
        mine = self.mine(me)
        ok = mine is not None and mine.heartbeats < beat
        self.change(ok=ok, entries=[replace(e, heartbeats=beat) if e is mine else e for e in self.state.entries])

    def write(self, me, number, base, kind):
        mine = self.mine(me)
        ok = mine is not None and mine.writes < number
        kept = [
            replace(e, writes=number) if e is mine else e
            for e in self.state.entries
            if kind is EntryEffect.KEEP or e is not mine
        ]
        self.change(ok=ok, entries=kept)
        assert self.balance == base, "a lost update"
        assert self.state.ahead_of(me) == (), "a write by a party that is not first"
        self.balance += 1
        self.applied.add((me.id, number))

    def release(self, me):
        mine = self.state.find(me.id)
        self.change(ok=mine is not None, entries=[e for e in self.state.entries if e is not mine])

    def evict(self, dead):
        ids = {e.id for e in dead}
        found = [self.mine(e) for e in dead]
        evicted = dict(self.state.evicted)
        if self.state.entries and self.state.entries[0].id in ids:
            evicted[self.state.entries[0].ticket % EVICTION_SLOTS] = self.state.entries[0].ticket
        ok = all(e is not None and e.heartbeats == d.heartbeats for e, d in zip(found, dead, strict=True))
        self.change(ok=ok, entries=[e for e in self.state.entries if e.id not in ids], evicted=evicted)


class Actor:
    """Takes the lock, adds one to the balance twice, and leaves; a generator that yields its requests."""

    def __init__(self, name, world):
        self.name, self.world, r = name, world, world.random
        self.rate = 1 + r.uniform(0, RATE_MARGIN * 0.9)
        self.offset = r.uniform(-1e4, 1e4)
        self.holds = None  # the id of the entry under which it works
        self.certain_until = 0.0  # in true time: the lease as its holder counts it

    def clock(self):
        return self.offset + self.world.now * self.rate

    def live(self):
        for turn in range(2):
            me = entry(0, id=f"{self.name}{turn}", lease_ms=int(LEASE * 1000), until_ms=0)
            me = yield from self.take(me)
            if me is not None:
                yield from self.work(me)
            self.holds = None

    def take(self, me):
        started = self.world.now
        try:
            state = yield partial(self.world.document.enter, me)
        except Refused as refused:
            state = refused.args[0]
        except NoAnswer:
            return None  # its entry, if it arrived, has to be evicted by the others
        me = state.find(me.id)
        seen, beat = {}, 0
        while me is not None:
            ahead = state.ahead_of(me)
            if not ahead:
                self.holds, self.certain_until = me.id, started + LEASE / self.rate
                return me
            now = self.clock()
            seen = lock_queue.observe(seen, ahead, now)
            dead = lock_queue.dead_among(ahead, seen, now, 0, None)
            try:
                if dead:
                    state = yield partial(self.world.evict, dead)
                elif self.world.now > started + LEASE / 3:
                    beat, now = beat + 1, self.world.now
                    state = yield partial(self.world.document.renew, me, beat)
                    started = now
                else:
                    state = yield "old read"
            except (Refused, NoAnswer):
                try:
                    state = yield "read"
                except NoAnswer:
                    continue
            if state.find(me.id, me.ticket) is None:
                state = yield from self.read_for_certain()
            me = state.find(me.id, me.ticket)
        return None

    def read_for_certain(self):
        while True:
            try:
                return (yield "read")
            except NoAnswer:
                pass

    def work(self, me):
        yield from self.read_for_certain()
        for number, kind in ((1, EntryEffect.KEEP), (2, EntryEffect.FINISH)):
            base = self.world.document.balance  # read with the lock in the same item
            if self.world.document.mine(me) is None:
                base = -1  # whatever was read is old by now; the write must be refused
            outcome = yield from self.write(me, number, base, kind)
            if outcome is not Outcome.APPLIED:
                return

    def write(self, me, number, base, kind):
        repeated = False
        while True:
            try:
                yield partial(self.world.document.write, me, number, base, kind)
            except NoAnswer:
                if repeated:
                    return Outcome.UNKNOWN
                repeated = True
            except Refused as refused:
                state, was_resent = refused.args
                outcome = judge(
                    state, EntryOwnership(me.id, me.ticket, 100), number, kind=kind, repeated=repeated or was_resent
                )
                is_applied = (me.id, number) in self.world.document.applied
                assert outcome is Outcome.UNKNOWN or (outcome is Outcome.APPLIED) == is_applied, outcome
                self.world.judged.add(outcome)
                return outcome
            else:
                return Outcome.APPLIED


class World:
    """Delivers requests, loses answers, and lets time pass."""

    def __init__(self, seed, judged):
        self.random = random.Random(seed)
        self.now = 0.0
        self.document = Document()
        self.images = [FREE]
        self.late = []
        self.judged = judged
        self.actors = {name: Actor(name, self) for name in "abc"}

    def evict(self, dead):
        """No holder is evicted whose lease, as it counts it itself, has not ended."""
        self.document.evict(dead)
        for it in dead:
            owner = self.actors[it.id[0]]
            assert owner.holds != it.id or self.now >= owner.certain_until, "evicted within its lease"

    def apply(self, request):
        request()
        self.images.append(self.document.state)

    def send(self, request):
        """Return the state after a request, or raise what the actor sees."""
        luck = self.random.random()
        if request == "read":
            if luck < 0.05:
                raise NoAnswer
            return self.document.state
        if request == "old read":
            return self.random.choice(self.images[-3:])
        if luck < 0.06:
            self.late.append(request)
            raise NoAnswer
        try:
            self.apply(request)
            if luck < 0.12:
                raise NoAnswer
            if luck < 0.26:
                self.apply(request)
        except Refused:
            raise Refused(self.document.state, 0.12 <= luck < 0.20) from None
        return self.document.state

    def run(self):
        lives = {name: actor.live() for name, actor in self.actors.items()}
        requests = {name: next(life) for name, life in lives.items()}
        for _ in range(400):
            self.now += self.random.choice([0.01, 0.3, 2.0, 6.0])
            if self.late and self.random.random() < 0.15:
                late = self.late.pop(self.random.randrange(len(self.late)))
                with suppress(Refused):
                    self.apply(late)
            if not requests:
                return
            name = self.random.choice(list(requests))
            if self.random.random() < 0.01:
                del requests[name]  # crash
                continue
            life = lives[name]
            try:
                try:
                    answer = self.send(requests[name])
                except (Refused, NoAnswer) as answer:
                    requests[name] = life.throw(answer)
                else:
                    requests[name] = life.send(answer)
            except StopIteration:
                del requests[name]


def search(seeds):
    """Run the model; return what went wrong, the outcomes that were judged, and how many writes were applied."""
    judged, applied = set(), 0
    for seed in range(seeds):
        world = World(seed, judged)
        try:
            world.run()
        except AssertionError as error:
            return f"seed {seed}: {error}", judged, applied
        applied += world.document.balance
    return None, judged, applied


def test_nothing_goes_wrong():
    """No lost update, no write out of turn, no eviction within a lease, no wrong word about an outcome."""
    wrong, judged, applied = search(400)

    assert wrong is None
    assert judged >= {Outcome.APPLIED, Outcome.LOST, Outcome.UNKNOWN}
    assert applied > 1000


def impatient(entries, seen, now, now_ms, skew):
    return tuple(e for e in entries if e.id in seen and now - seen[e.id].since >= LEASE * 0.6)


def without_news(seen, entries, now):
    return {e.id: seen.get(e.id, lock_queue.HeartbeatObservation(e.heartbeats, now)) for e in entries}


def everybody(self: LockState, it: QueueEntry) -> tuple[QueueEntry, ...]:
    return ()


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (lock_queue, "dead_among", impatient),
        (lock_queue, "observe", without_news),
        (LockState, "ahead_of", everybody),
        (LockState, "was_evicted", lambda self, ticket, since: False),
    ],
    ids=["impatient", "renewals unseen", "everybody is first", "evictions unseen"],
)
def test_a_broken_decision_is_found(monkeypatch, where, name, broken):
    """The search has teeth: each decision, made wrongly, breaks a promise within a few runs."""
    monkeypatch.setattr(where, name, broken)
    wrong, _, _ = search(400)

    assert wrong is not None
