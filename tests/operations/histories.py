"""Histories of every shape, as the engine could have written them: loops, forks, scopes, compensations, children.

Branches of a fork take turns, so that the ordinals of one are among those of the others. Names are such that the
locations of neighbours sort around those of what is inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from durable.core.location import is_within, parent
from durable.core.records import (
    NOTHING,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Message,
    MessageState,
    RunRecord,
)
from durable.models import Child
from durable.store import Store

BEGAN: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_DEPTH: Final = 3
_SUFFIXES: Final = ("", "0", ".", "-x")
_STATES: Final = ("completed", "failed", "cancelled", "sleeping", "running", "rolling_back")


@dataclass
class MadeHistory:
    """A run with its entries and messages, and the children that it has started."""

    run: RunRecord
    entries: dict[str, EntryRecord] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    children: list[tuple[RunRecord, str]] = field(default_factory=list)  # with the locations that have started them
    places: set[str] = field(default_factory=set)  # scopes, branches and iterations

    @property
    def targets(self) -> list[str]:
        """Whatever a replay can begin with."""
        return sorted({*self.entries, *self.places})

    def store(self, store: Store) -> None:
        """Write all of it into the database of the settings."""
        store.create([self.run, *(child for child, _ in self.children)])
        Child.objects.bulk_create(
            Child(run_id=child.id, parent_id=self.run.id, location=location, when_parent_ends="cancel", position=number)
            for number, (child, location) in enumerate(self.children)
        )
        entries = sorted(self.entries.values(), key=lambda each: each.ordinal)
        store.import_history(self.run.id, entries=entries, attempts=[], messages=self.messages)


def _run(run_id: str) -> RunRecord:
    return RunRecord(id=run_id, workflow="w", queue="q", input="[]", created_at=BEGAN)


def made_history(chance: Random, run_id: str) -> MadeHistory:
    """A history that this source of chance decides."""
    return _Maker(chance, run_id).make()


class _Maker:
    def __init__(self, chance: Random, run_id: str) -> None:
        self.chance = chance
        self.made = MadeHistory(_run(run_id))
        self.ordinal = 0

    def make(self) -> MadeHistory:
        for _ in self._body("", 0):
            pass
        if self.chance.random() < 0.4:
            for each in list(self.made.entries.values()):
                if each.is_compensable and self.chance.random() < 0.6:
                    self._undo(each, None)
        self.made.run = self._ended(self.made.run)
        return self.made

    def _ended(self, run: RunRecord) -> RunRecord:
        state = self.chance.choice(_STATES)
        is_over = state in ("completed", "failed", "cancelled")
        is_held = state == "running" or (state == "rolling_back" and self.chance.random() < 0.5)
        return replace(
            run,
            state=state,
            fence=self.chance.randint(1, 3),
            change_seq=self.chance.randint(0, 3),
            message_count=len(self.made.messages),
            finished_at=BEGAN if is_over else None,
            wake_at=None if is_over else BEGAN,
            worker="me" if is_held else "",
            lease_expires_at=BEGAN + timedelta(days=36500) if is_held else None,
            state_after_rollback="failed" if state == "rolling_back" else "",
        )

    # -- operations: generators that let other branches do something

    def _body(self, scope: str, depth: int) -> Iterator[None]:
        kinds: list[Callable[[str, int], Iterator[None]]] = [
            self._step,
            self._step,
            self._wait,
            self._send,
            self._child,
            self._map,
            self._compensate,
        ]
        if depth < _DEPTH:
            kinds += [self._loop, self._join, self._race, self._block]
        for number in range(self.chance.randint(1, 4)):
            kind = self.chance.choice(kinds)
            name = f"{kind.__name__[1:3]}{number}{self.chance.choice(_SUFFIXES)}"
            yield from kind(f"{scope}/{name}" if scope else name, depth)

    def _step(self, location: str, depth: int) -> Iterator[None]:
        data: dict[str, Any] = {"text": '"rollback":{'}
        if self.chance.random() < 0.4:
            data["rollback"] = {"handler": "x.y", "attempts": self.chance.randint(0, 1)}
        entry = self._begin(location, EntryKind.STEP, data, attempts=self.chance.randint(1, 3))
        yield
        status = self.chance.choice([EntryStatus.COMPLETED] * 6 + [EntryStatus.EXHAUSTED, EntryStatus.RUNNING])
        self._end(entry, status)

    def _wait(self, location: str, depth: int) -> Iterator[None]:
        entry = self._begin(location, EntryKind.MESSAGE, {"names": ["m"]})
        yield
        for place, each in enumerate(self.made.messages):
            if each.state == MessageState.PENDING and self.chance.random() < 0.5:
                self.made.messages[place] = replace(each, state="received", received_by=location)
        for _number in range(self.chance.randint(0, 2)):
            self._message("received", location)
        self._end(entry)

    def _send(self, location: str, depth: int) -> Iterator[None]:
        to = self.made.run.id if self.chance.random() < 0.5 else "other"
        message = self._message("pending", "") if to == self.made.run.id else f"{self.made.run.id} elsewhere"
        self._end(self._begin(location, EntryKind.SEND, {"queue": "m", "to": to, "message_id": message}))
        yield

    def _child(self, location: str, depth: int) -> Iterator[None]:
        action = self.chance.choice(["call", "start"])
        child = f"{self.made.run.id}:{len(self.made.children)}"
        state = self.chance.choice(["pending", "completed", "cancelled"])
        ended: dict[str, Any] = {} if state == "pending" else {"finished_at": BEGAN}
        if state != "pending" or self.chance.random() < 0.8:
            run = replace(_run(child), state=state, parent_id=self.made.run.id, **ended)
            self.made.children.append((run, location))
        data = {"action": action, "workflow": "w", "child": self.chance.choice([child, child, child, None])}
        entry = self._begin(location, EntryKind.CHILD, data | self._rollback({"child": True}))
        yield
        if action == "start" or self.chance.random() < 0.6:
            self._end(entry)

    def _map(self, location: str, depth: int) -> Iterator[None]:
        group = self.chance.choice([{"group": f"{self.made.run.id}:{location}", "created": 2}, {}])
        data = {"workflow": "w", "size": 2, "position": self.ordinal, "at_once": None, "on_failure": "finish"}
        entry = self._begin(location, EntryKind.MAP, data | group | self._rollback({"children": True}))
        yield
        if self.chance.random() < 0.6:
            self._end(entry)

    def _rollback(self, policy: dict[str, Any]) -> dict[str, Any]:
        """What the start of children says of their compensation."""
        if self.chance.random() < 0.5:
            return {}
        return {"rollback": policy | ({NOTHING: True} if self.chance.random() < 0.2 else {})}

    def _compensate(self, location: str, depth: int) -> Iterator[None]:
        around = parent(location)
        entry = self._begin(location, EntryKind.COMPENSATE, {})
        for each in list(self.made.entries.values()):
            if each.is_compensable and (not around or is_within(each.location, around)) and self.chance.random() < 0.5:
                self._undo(each, location)
        yield
        self._end(entry)

    def _loop(self, location: str, depth: int) -> Iterator[None]:
        reached = self.chance.randint(1, 3)
        entry = self._begin(location, EntryKind.LOOP, {"iteration": reached, "state": "0", "pruned": 0})
        for number in range(1, reached + 1):
            self.made.places.add(f"{location}/~{number}")
            yield from self._body(f"{location}/~{number}", depth + 1)
        if self.chance.random() < 0.5:
            self._prune(f"{location}/~1")
            entry = self._put(replace(entry, data={**entry.data, "pruned": 1}))
        self._end(entry, self.chance.choice([EntryStatus.COMPLETED, EntryStatus.RUNNING]))

    def _join(self, location: str, depth: int) -> Iterator[None]:
        yield from self._fork(location, depth, EntryKind.JOIN)

    def _race(self, location: str, depth: int) -> Iterator[None]:
        yield from self._fork(location, depth, EntryKind.RACE)

    def _fork(self, location: str, depth: int, kind: EntryKind) -> Iterator[None]:
        names = [f"b{number}{self.chance.choice(_SUFFIXES)}" for number in range(self.chance.randint(1, 3))]
        statuses = {name: {"status": self.chance.choice(["completed", "failed", "pending"])} for name in names}
        entry = self._begin(location, kind, {"branches": statuses})
        self.made.places |= {f"{location}/{name}" for name in names}
        begun = [self._body(f"{location}/{name}", depth + 1) for name in names if statuses[name]["status"] != "pending"]
        while begun:
            branch = self.chance.choice(begun)
            if next(branch, self) is self:
                begun.remove(branch)
            yield
        if kind == EntryKind.RACE:
            winner = self.chance.choice([None, *names])
            entry = self._put(replace(entry, data={**entry.data, "winner": winner}))
            for name in names:
                if winner not in (None, name) and self.chance.random() < 0.5:
                    self._prune(f"{location}/{name}")
        self._end(entry)

    def _block(self, location: str, depth: int) -> Iterator[None]:
        self.made.places.add(location)
        yield from self._body(location, depth + 1)

    # -- records

    def _next(self) -> int:
        self.ordinal += 1
        return self.ordinal - 1

    def _put(self, entry: EntryRecord) -> EntryRecord:
        self.made.entries[entry.location] = entry
        return entry

    def _begin(self, location: str, kind: EntryKind, data: dict[str, Any], **values: Any) -> EntryRecord:
        entry = EntryRecord(location, kind, self._next(), BEGAN, status=EntryStatus.RUNNING, data=data, **values)
        return self._put(entry)

    def _end(self, entry: EntryRecord, status: str = EntryStatus.COMPLETED) -> None:
        if status in (EntryStatus.COMPLETED, EntryStatus.EXHAUSTED):
            entry = replace(self.made.entries[entry.location], status=status, finished_ordinal=self._next())
            self._put(replace(entry, completed_at=BEGAN if status == EntryStatus.COMPLETED else None))

    def _undo(self, entry: EntryRecord, by: str | None) -> None:
        policy = {**entry.data["rollback"], **({} if by is None else {"by": by})}
        self._put(replace(entry, data={**entry.data, "rollback": policy}, rollback_completed_at=BEGAN))

    def _message(self, state: str, received_by: str) -> str:
        order = len(self.made.messages) + 1
        run_id = self.made.run.id
        message = Message(f"{run_id} {order}", run_id, "m", "1", BEGAN, order, state=state, received_by=received_by)
        self.made.messages.append(message)
        return message.id

    def _prune(self, location: str) -> None:
        for each in [each for each in self.made.entries if is_within(each, location)]:
            del self.made.entries[each]
