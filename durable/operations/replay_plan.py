"""The plan of a replay: its effects, described for the operator who decides, and a hash that ties the replay to them.

The same for every surface and every store. `durable.core.rewind.replay` decides what a replay does. The children that
it starts again are read from the deleted entries; where a loop has pruned its older iterations, the store counts them.
Nothing here writes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from durable.core.children.entries import divided, started_number
from durable.core.location import is_within, listed
from durable.core.outcomes import is_unsettled
from durable.core.records import ENDED, EntryKind, EntryRecord, EntryStatus, Message, RunRecord, RunState, is_leased
from durable.core.rewind.replay import Replay
from durable.core.rewind.rewinding import Region
from durable.core.words import Sentence, gettext_noop
from durable.store.base import Store
from durable.store.surveys import Listed, Revision, Survey, revision_of, survey_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsAgain:
    """Children that are started again: `number` new runs of `workflow`, with new idempotency keys.

    `location` is the operation that started them, or a loop around it with pruned iterations: there, all children ever
    started in it count.
    """

    location: str
    workflow: str
    number: int


def starts_again(store: Store, replay: Replay) -> list[StartsAgain]:
    """Return the children that are started again, in the order of the operations. One statement for each pruned
    loop.
    """
    ordinals = {each.location: each.ordinal for each in replay.history.deleted.values()}
    pruned = [each.removesuffix("/") for each in divided(replay.history.dropped_children())[1]]
    loops = [each for each in pruned if not any(each != other and is_within(each, other) for other in pruned)]
    counts = {loop: store.count_children_below(replay.run.id, f"{loop}/") for loop in loops}
    loops = [loop for loop in loops if counts[loop]]
    found: Counter[tuple[str, str]] = Counter()
    for each in replay.history.deleted.values():
        if number := started_number(each):
            around = next((loop for loop in loops if is_within(each.location, loop)), each.location)
            found[around, each.data["workflow"]] += number
    for loop in loops:
        for workflow, number in counts[loop].items():
            found[loop, workflow] = max(found[loop, workflow], number)
    in_order = sorted(found.items(), key=lambda item: (ordinals[item[0][0]], item[0]))
    return [
        StartsAgain(location=location, workflow=workflow, number=number) for (location, workflow), number in in_order
    ]


def starts_note(numbers: Mapping[str, int]) -> str:
    """Say how many children are started again, given their numbers by workflow, the largest first; "" for none."""
    total = sum(numbers.values())
    if not total:
        return ""
    text = (
        gettext_noop(
            "{number} child of {workflows} is started again, as a new run with new idempotency keys: what the one before did "
            "stays, and is done again"
        )
        if total == 1
        else gettext_noop(
            "{number} children of {workflows} are started again, as new runs with new idempotency keys: what those before did "
            "stays, and is done again"
        )
    )
    return Sentence(text, number=total, workflows=listed(numbers))


SHOWN: Final = 50  # the most items of each list in a plan

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
class Relatives:
    """The runs around a replayed run: ids of children, and whether an open parent may still read its output.

    `open`: kept entries have started them, and they have not ended. `lost`: the same, but they were cancelled, so that
    new ones are started. `dropped`: deleted entries have started them, and they have not ended. `unread_maps` are the
    locations of kept maps whose results the run has not read. `open_maps` are those of them with open children, and how
    many; `dropped_maps` are the same for deleted maps.
    """

    open: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    is_awaited: bool = False
    unread_maps: tuple[str, ...] = ()
    open_maps: tuple[tuple[str, int], ...] = ()
    dropped_maps: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The locations of steps of which nobody knows whether they were done, in the order in which they began.

    `gone` are deleted. The others stay: those in branches that have lost their race (`lost`), and `held` ones, which
    wait for a person, for this or for another reason.
    """

    gone: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


def unsettled_of(gone_from: Sequence[Region], steps: Iterable[EntryRecord], *, without: str | None = None) -> Unsettled:
    """Return the unsettled ones of these steps; a replay deletes the entries in the regions `gone_from`.

    The step at `without` has an output given by hand.
    """
    gone, lost, held = list[str](), list[str](), list[str]()
    for each in sorted(steps, key=lambda entry: entry.ordinal):
        if each.location == without:
            continue
        if any(region.covers(each.location, each.ordinal) for region in gone_from):
            gone += [each.location] if is_unsettled(each) else []
        elif each.status == EntryStatus.HELD:
            held.append(each.location)
        elif is_unsettled(each) and each.status == EntryStatus.UNKNOWN:
            lost.append(each.location)
    return Unsettled(gone=tuple(gone), lost=tuple(lost), held=tuple(held))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCounts:
    """The length of each list of a plan. `started_children` is the sum of the numbers in `starts`."""

    removed: int
    reruns: int
    resends: int
    starts: int
    started_children: int
    kept: int
    siblings: int
    messages: int
    children: int
    not_compensated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The basis of a plan: the rewound run, and the effects on its history, inbox and children.

    `running` are kept steps that run now; `returned` the first messages that return to the queue, of `messages`.
    `starts` are the children that are started again. `unsettled` are steps of which nobody knows whether they were
    done. `not_given` says why the output of the target cannot be given by
    hand.
    """

    replay: Replay
    survey: Survey
    relatives: Relatives
    returned: Sequence[Message]
    messages: int
    running: Sequence[str]
    hash: str
    not_given: Sequence[str] = ()
    starts: Sequence[StartsAgain] = ()
    unsettled: Unsettled = Unsettled()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The effects of a replay. Locations are those of the history, in the order in which their entries began.

    Each list has the first 50; `counts` says how many there are.

    - `target` is the requested location; the run continues from `boundary`, and `why` gives the reasons if they differ.
    - `removed` entries are deleted. Of these, `reruns` are the steps that had begun and run again when the code reaches
      them, and `resends` the sends that are made again. `kept` entries stay; `siblings` are the branches beside the
      boundary whose records stay.
    - `starts` are the operations among the removed ones that start their children again, each with its `location`, the
      `workflow` of the children and their `number`. They are new runs with new idempotency keys: the effects of the
      earlier ones stay, and happen again. A child with an id of its own is refused in a new run, because the id is
      taken.
    - `messages` return to the queue in their order.
    - `children` are the runs that a replay in place cancels: children that removed entries have started.
    - `not_compensated` are completed steps with a rollback handler that are removed, and starts of children that are
      compensated with the run: their handlers are not run.
    - `refusals` prevent a replay as a new run, `in_place_refusals` a replay in place. An empty tuple: the replay is
      possible.
    - `notes` are sentences that an operator should read. `starts_note` is the one that says how many children are
      started again, or "".
    - `hash` differs for each history, and after each verb and each pass. Pass it to `replay`, which refuses a stale
      one.
    """

    run_id: str
    target: str
    boundary: str
    why: tuple[str, ...]
    removed: tuple[str, ...]
    reruns: tuple[str, ...]
    resends: tuple[str, ...]
    starts: tuple[StartsAgain, ...]
    kept: tuple[str, ...]
    siblings: tuple[str, ...]
    messages: tuple[ReturnedMessage, ...]
    children: tuple[str, ...]
    not_compensated: tuple[str, ...]
    refusals: tuple[str, ...]
    in_place_refusals: tuple[str, ...]
    notes: tuple[str, ...]
    starts_note: str
    counts: PlanCounts
    hash: str

    def refusals_of(self, *, in_place: bool) -> tuple[str, ...]:
        """Return the refusals of this kind of replay."""
        return self.in_place_refusals if in_place else self.refusals


def outlook_of(
    replay: Replay,
    entries: Iterable[EntryRecord],
    relatives: Relatives,
    now: datetime,
    *,
    is_given: bool = False,
    starts: Sequence[StartsAgain] = (),
) -> Outlook:
    """Return the outlook of a replay, from these entries, the whole history.

    `is_given`: the target stays, with an output given by hand. `starts` are the children that are started again.
    """
    not_given = list(replay.refusals_of_giving()) if is_given else []
    if is_given and not not_given:
        replay.give(None, {}, now)
    returned = replay.pending_again()
    steps = (each for each in (*replay.history.deleted.values(), *replay.history) if each.kind == EntryKind.STEP)
    return Outlook(
        replay=replay,
        survey=survey_of(replay.history, SHOWN),
        relatives=relatives,
        returned=returned[:SHOWN],
        messages=len(returned),
        running=running_steps(replay.history),
        hash=hash_of(replay.run, replay.target, revision_of(entries)),
        not_given=not_given,
        starts=starts,
        unsettled=unsettled_of(
            replay.history.regions, steps, without=replay.target if is_given and not not_given else None
        ),
    )


def build_plan(found: Outlook, now: datetime) -> ReplayPlan:
    replay, survey, relatives = found.replay, found.survey, found.relatives
    siblings = [name for name, _ in replay.siblings()]
    refusals = [*found.not_given, *refusals_of(replay, relatives, found.running, now)]
    of_starts = _of_starts(found.starts)
    return ReplayPlan(
        run_id=replay.run.id,
        target=replay.target,
        boundary=replay.boundary,
        why=tuple(_why(replay)),
        removed=tuple(survey.deleted.first),
        reruns=tuple(survey.steps.first),
        resends=tuple(survey.sends.first),
        starts=tuple(found.starts[:SHOWN]),
        kept=tuple(survey.kept.first),
        siblings=tuple(siblings[:SHOWN]),
        messages=tuple(ReturnedMessage(id=each.id, queue=each.queue, wait=each.received_by) for each in found.returned),
        children=relatives.dropped[:SHOWN],
        not_compensated=tuple(survey.compensable.first),
        refusals=(*refusals, *of_unread_maps(relatives)),
        in_place_refusals=(*refusals, *in_place_refusals_of(replay, relatives, now)),
        notes=(
            *_of_unsettled(found.unsettled),
            *filter(None, [of_starts]),
            *_notes(replay, survey.compensable, relatives),
        ),
        starts_note=of_starts,
        counts=PlanCounts(
            removed=survey.deleted.number,
            reruns=survey.steps.number,
            resends=survey.sends.number,
            starts=len(found.starts),
            started_children=sum(each.number for each in found.starts),
            kept=survey.kept.number,
            siblings=len(siblings),
            messages=found.messages,
            children=len(relatives.dropped),
            not_compensated=survey.compensable.number,
        ),
        hash=found.hash,
    )


def refusals_of(replay: Replay, relatives: Relatives, running: Iterable[str], now: datetime) -> list[str]:
    """Return the reasons that prevent a replay of either kind. `running` are kept steps that run now."""
    run = replay.run
    if run.state == RunState.ROLLING_BACK or (run.state_after_rollback and run.state not in ENDED):
        found = [Sentence(gettext_noop("the run is being compensated: replay it once that has ended"))]
    else:
        found = _of_what_runs(replay, running) if is_leased(run, now) else []
    return [*found, *_of_open_children(relatives)]


def in_place_refusals_of(replay: Replay, relatives: Relatives, now: datetime) -> Iterable[str]:
    """Yield the reasons that prevent only a replay in place."""
    if is_leased(replay.run, now):
        yield Sentence(_EXECUTING)
    if relatives.is_awaited:
        yield Sentence(_AWAITED)


def running_steps(history: Iterable[EntryRecord]) -> list[str]:
    return [each.location for each in history if each.kind == EntryKind.STEP and each.status == EntryStatus.RUNNING]


def _why(replay: Replay) -> Iterable[str]:
    for location, kind in replay.moved:
        if kind in _STARTS_AGAIN:
            yield Sentence(_STARTS_AGAIN[kind], place=replay.target, around=location)
    compensated = [location for location, kind in replay.moved if kind == "compensated"]
    if compensated:
        text = gettext_noop("{places} was compensated: what was undone is done again, and all that came after it")
        yield Sentence(text, places=listed(compensated))


def _of_what_runs(replay: Replay, running: Iterable[str]) -> list[Sentence]:
    running = [*running, *(name for name, status in replay.siblings() if status in ("pending", "running"))]
    if not running:
        return []
    text = gettext_noop("{places} would stay and is being run now: pause the run, or wait until that has ended")
    return [Sentence(text, places=listed(running))]


def _of_open_children(relatives: Relatives) -> Iterable[str]:
    if relatives.open:
        text = gettext_noop(
            "what started the children {children} would stay, and they have not ended: wait until they have, or cancel them"
        )
        yield Sentence(text, children=listed(relatives.open))
    for location, left in relatives.open_maps:
        text = gettext_noop(
            "the map {place} would stay, and {number} of its children have not ended: wait until they have, or cancel them"
        )
        yield Sentence(text, place=listed([location]), number=left)


def of_unread_maps(relatives: Relatives) -> Iterable[str]:
    """Yield the reasons that prevent only a replay as a new run: a map's children belong to the original."""
    if relatives.unread_maps:
        text = gettext_noop(
            "the run has not read the results of the map {places}, which would stay: replay in place, or from there"
        )
        yield Sentence(text, places=listed(relatives.unread_maps))


def _of_starts(starts: Iterable[StartsAgain]) -> str:
    """Say how many children are started again; "" for none.

    This is the first note, because the children repeat all of their steps.
    """
    numbers: Counter[str] = Counter()
    for each in starts:
        numbers[each.workflow] += each.number
    return starts_note(dict(numbers.most_common()))


def _of_unsettled(found: Unsettled) -> Iterable[str]:
    if found.gone:
        text = (
            gettext_noop("nobody knows whether {places} was done: it would be done again")
            if len(found.gone) == 1
            else gettext_noop("nobody knows whether {places} were done: they would be done again")
        )
        yield Sentence(text, places=listed(found.gone))
    if found.lost:
        text = gettext_noop(
            "{places} was begun in a branch that has lost its race, and nobody knows whether it was done: that stays so"
        )
        yield Sentence(text, places=listed(found.lost))
    if found.held:
        text = gettext_noop("{places} waits for a person, and goes on waiting: settle it in the run that goes on")
        yield Sentence(text, places=listed(found.held))


def _notes(replay: Replay, not_compensated: Listed, relatives: Relatives) -> Iterable[str]:
    if relatives.dropped:
        text = gettext_noop("a replay in place cancels the children {children}, which are started again")
        yield Sentence(text, children=listed(relatives.dropped))
    for location, left in relatives.dropped_maps:
        text = gettext_noop(
            "a replay in place cancels {number} children of the map {place}, which starts all of them again"
        )
        yield Sentence(text, place=listed([location]), number=left)
    if relatives.lost:
        text = gettext_noop("the children {children} were cancelled or deleted: new ones are started in their place")
        yield Sentence(text, children=listed(relatives.lost))
    failed = [name for name, status in replay.siblings() if status == "failed"]
    if failed:
        text = gettext_noop("{places} has failed and stays so: replay from there to have it run again")
        yield Sentence(text, places=listed(failed))
    if not_compensated.number:
        text = gettext_noop(
            "the rollback handlers of {places} are not run: what these steps and children did stays, and is done again"
        )
        yield Sentence(text, places=listed(not_compensated.first, not_compensated.number))
    if replay.run.state not in ENDED:
        text = gettext_noop("this run is {state}: a new run goes on beside it, unless you cancel this one")
        yield Sentence(text, state=Sentence(replay.run.state))


def hash_of(run: RunRecord, target: str, revision: Revision | None) -> str:
    """Return 32 hexadecimal digits that identify what an operator saw: the location, and the history behind the plan.

    A history changes in two ways. A pass writes it, and a pass begins with a claim, which raises the run's fence. A
    verb, a message from outside or a migration that renames an operation raises `change_seq`. So these two identify the
    history of a run that no worker has. A worker's commits change neither: then the `revision` of the history counts.
    """
    if run.lease_expires_at is None:
        revision = None
    text = json.dumps([run.id, target, run.state, run.fence, run.change_seq, revision])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
