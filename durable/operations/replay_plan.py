"""The plan of a replay: its effects, described for the operator who decides, and a hash that ties the replay to them.

Pure, and the same for every surface and every store. `durable.core.replay` decides what a replay does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from durable.core.location import listed
from durable.core.records import ENDED, EntryKind, EntryRecord, EntryStatus, RunState
from durable.core.replay import Replay
from durable.core.words import Sentence, gettext_noop

__all__ = ["Family", "ReplayPlan", "ReturnedMessage", "build_plan"]

_STARTS_AGAIN = {
    "loop": gettext_noop('"{place}" is in the loop "{around}", which starts again: its iterations build on each other'),
    "race": gettext_noop('"{place}" is in the race "{around}", which starts again: who wins it is decided again'),
}
_EXECUTING = gettext_noop("a worker is executing the run now: pause the run first, or replay it as a new run")

_AWAITED = gettext_noop(
    "its parent has not ended and may still read its output: replay it as a new run, or wait until the parent has ended"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedMessage:
    """A message that becomes pending again: `wait` is the location of the wait that had received it."""

    id: str
    queue: str
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The runs around a run that is replayed: ids of children, and whether an open parent may still read its output.

    `open`: what stays in the history has started them, and they have not ended. `lost`: the same, and they were
    cancelled, so that new ones are started. `dropped`: what is deleted has started them, and they have not ended.
    """

    open: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    is_awaited: bool = False


_ALONE = Family()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The effects of a replay. Locations are those of the history, in the order in which their entries began.

    - `target` is the requested location; the run continues from `boundary`, and `why` gives the reasons if they differ.
    - `removed` entries are deleted. Of these, `reruns` are the steps that had begun and run again when the code reaches
      them, and `resends` the sends that are made again. `kept` entries stay; `siblings` are the branches beside the
      boundary whose records stay.
    - `messages` return to the queue in their order.
    - `children` are the runs that a replay in place cancels: children that removed entries have started.
    - `not_compensated` are completed steps with a rollback handler that are removed: their handlers are not run.
    - `refusals` prevent a replay as a new run, `in_place_refusals` a replay in place. An empty tuple: the replay is
      possible.
    - `notes` are sentences that an operator should read.
    - `hash` differs for each history. Pass it to `replay`, which refuses a stale one.
    """

    run_id: str
    target: str
    boundary: str
    why: tuple[str, ...]
    removed: tuple[str, ...]
    reruns: tuple[str, ...]
    resends: tuple[str, ...]
    kept: tuple[str, ...]
    siblings: tuple[str, ...]
    messages: tuple[ReturnedMessage, ...]
    children: tuple[str, ...]
    not_compensated: tuple[str, ...]
    refusals: tuple[str, ...]
    in_place_refusals: tuple[str, ...]
    notes: tuple[str, ...]
    hash: str

    def refusals_of(self, *, in_place: bool) -> tuple[str, ...]:
        """Return what prevents this kind of replay."""
        return self.in_place_refusals if in_place else self.refusals


def build_plan(
    replay: Replay,
    entries: Sequence[EntryRecord],
    now: datetime,
    family: Family = _ALONE,
    *,
    is_given: bool = False,
) -> ReplayPlan:
    """Return the plan of `replay`, which was built from these entries.

    `is_given`: the output of the target is given by hand, so that the target stays.
    """
    run = replay.run
    not_given = list(replay.refusals_of_giving()) if is_given else []
    if is_given and not not_given:
        replay.give(None, {}, now)
    gone = sorted(replay.history.deleted.values(), key=lambda entry: entry.ordinal)
    not_compensated = [entry.location for entry in gone if entry.is_compensable]
    is_held = run.lease_expires_at is not None and run.lease_expires_at > now
    refusals = [*not_given, *_refusals(replay, is_held=is_held), *_of_open_children(family)]
    in_place = [Sentence(_EXECUTING)] if is_held else []
    if family.is_awaited:
        in_place.append(Sentence(_AWAITED))
    return ReplayPlan(
        run_id=run.id,
        target=replay.target,
        boundary=replay.boundary,
        why=tuple(_why(replay)),
        removed=tuple(entry.location for entry in gone),
        reruns=tuple(entry.location for entry in gone if entry.kind == EntryKind.STEP),
        resends=tuple(entry.location for entry in gone if entry.kind == EntryKind.SEND),
        kept=tuple(entry.location for entry in replay.history),
        siblings=tuple(name for name, _ in replay.siblings()),
        messages=tuple(
            ReturnedMessage(id=each.id, queue=each.queue, wait=each.received_by) for each in replay.pending_again()
        ),
        children=family.dropped,
        not_compensated=tuple(not_compensated),
        refusals=tuple(refusals),
        in_place_refusals=(*refusals, *in_place),
        notes=tuple(_notes(replay, not_compensated, family)),
        hash=_hash_of(replay, entries),
    )


def _why(replay: Replay) -> Iterable[str]:
    for location, kind in replay.moved:
        if kind in _STARTS_AGAIN:
            yield Sentence(_STARTS_AGAIN[kind], place=replay.target, around=location)
    compensated = [location for location, kind in replay.moved if kind == "compensated"]
    if compensated:
        text = gettext_noop("{places} was compensated: what was undone is done again, and all that came after it")
        yield Sentence(text, places=listed(compensated))


def _refusals(replay: Replay, *, is_held: bool) -> list[str]:
    run = replay.run
    if run.state == RunState.ROLLING_BACK or (run.state_after_rollback and run.state not in ENDED):
        return [Sentence(gettext_noop("the run is being compensated: replay it once that has ended"))]
    if not is_held:
        return []
    running = [
        each.location for each in replay.history if each.kind == EntryKind.STEP and each.status == EntryStatus.RUNNING
    ]
    running += [name for name, status in replay.siblings() if status in ("pending", "running")]
    if not running:
        return []
    text = gettext_noop("{places} would stay and is being run now: pause the run, or wait until that has ended")
    return [Sentence(text, places=listed(running))]


def _of_open_children(family: Family) -> Iterable[str]:
    if family.open:
        text = gettext_noop(
            "what started the children {children} would stay, and they have not ended: wait until they have, or cancel them"
        )
        yield Sentence(text, children=listed(family.open))


def _notes(replay: Replay, not_compensated: Sequence[str], family: Family) -> Iterable[str]:
    if family.dropped:
        text = gettext_noop("a replay in place cancels the children {children}, which are started again")
        yield Sentence(text, children=listed(family.dropped))
    if family.lost:
        text = gettext_noop("the children {children} were cancelled or deleted: new ones are started in their place")
        yield Sentence(text, children=listed(family.lost))
    failed = [name for name, status in replay.siblings() if status == "failed"]
    if failed:
        text = gettext_noop("{places} has failed and stays so: replay from there to have it run again")
        yield Sentence(text, places=listed(failed))
    if not_compensated:
        text = gettext_noop(
            "the rollback handlers of {places} are not run: what these steps did stays, and is done again"
        )
        yield Sentence(text, places=listed(not_compensated))
    if replay.run.state not in ENDED:
        text = gettext_noop("this run is {state}: a new run goes on beside it, unless you cancel this one")
        yield Sentence(text, state=Sentence(replay.run.state))


def _hash_of(replay: Replay, entries: Iterable[EntryRecord]) -> str:
    """Return 32 hexadecimal digits for what an operator saw: the location, and the history behind the plan."""
    history = [
        [
            entry.location,
            entry.kind,
            entry.status,
            entry.attempts,
            entry.ordinal,
            entry.finished_ordinal,
            entry.rollback_completed_at is not None,
            entry.data.get("iteration"),
        ]
        for entry in sorted(entries, key=lambda entry: entry.ordinal)
    ]
    messages = [each.id for each in replay.returned]
    text = json.dumps([replay.run.id, replay.target, replay.run.generations, history, messages])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
