"""Preview a replay, and replay runs exactly as previewed.

For a preview, the database counts most of a history instead of reading it (`durable.store.surveys`).
`durable.core.rewind.replay` also decides for the preview: it rewinds the few entries that matter, and notes the regions
that it deletes. A store in memory, and the replay itself, use all entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable import runtime
from durable.core.causes import failed_at
from durable.core.children.entries import divided, group_of, open_maps, unread_children
from durable.core.errors import EntryNotFoundError, ReplayRefusedError, RunConflictError, StalePlanError
from durable.core.ids import new_id
from durable.core.location import parent
from durable.core.outcomes import held_anew
from durable.core.places import Place
from durable.core.records import (
    ENDED,
    EntryKind,
    EntryRecord,
    Message,
    RunChange,
    RunRecord,
    RunState,
    TagChange,
    is_leased,
)
from durable.core.rewind.replay import Replay, nearest
from durable.operations.audit import Attribution, audited
from durable.operations.common import announce, check_not_an_order, require_step, send_run_changed
from durable.operations.queries import record
from durable.operations.replay_plan import (
    SHOWN,
    Outlook,
    Relatives,
    ReplayPlan,
    StartsAgain,
    build_plan,
    hash_of,
    in_place_refusals_of,
    of_unread_maps,
    outlook_of,
    refusals_of,
    running_steps,
    starts_again,
    unsettled_of,
)
from durable.operations.start import Started, check_is_successor, successor
from durable.runtime import Runtime
from durable.store.recovery import cancelled_children, members
from durable.store.surveys import Survey, revision_of

if TYPE_CHECKING:
    from durable.store.tables.surveys import RowSurveyor

_SHORT: Final = 1_000  # the most entries, and messages, of a run that is read whole
_MOST_COMPENSATED: Final = 1_000  # compensated steps; with more, the history is read whole
_MOST_REGIONS: Final = 100  # conditions that a database checks for each entry; with more, likewise
_SEARCHED: Final = 2_000  # locations among which the nearest ones are found


def plan_replay(run_id: str, location: str, *, with_output: bool = False) -> ReplayPlan:
    """Return the plan of a replay from `location`; changes nothing. Raises RunNotFoundError, EntryNotFoundError.

    `with_output`: the plan of `give_output`.
    """
    at = runtime.current()
    run = record(run_id)  # read first: the rest may then be newer than the hash, but never older
    found = _surveyed(at, run, location, is_given=with_output) or _whole(at, run, location, is_given=with_output)
    return build_plan(found, at.now())


def relatives_of(at: Runtime, replay: Replay, starts: Sequence[StartsAgain] | None = None) -> Relatives:
    """Return the runs around the replayed one; without a query if it is not a child and has no children.

    `starts` are those of the replay, if the caller has them: a loop without children is not searched for open ones.
    """
    run, history = replay.run, replay.history
    staying, (dropped, places) = unread_children(history), divided(history.dropped_children())
    if places and (starts is None or any(f"{each.location}/" in places for each in starts)):
        dropped = list(dict.fromkeys([*dropped, *at.store.open_children_below(run.id, places)]))
    states = at.store.states([*staying, *dropped]) if staying or dropped else {}
    lost = cancelled_children(at.store, history)
    parent = at.store.get(run.parent_id) if run.parent_id is not None and run.state == RunState.COMPLETED else None
    is_awaited = parent is not None and parent.state not in ENDED and run.id in at.store.children([run.id])
    # replays of the parent read it too, even when the parent is gone
    is_awaited |= run.state == RunState.COMPLETED and bool(at.store.readers_of(run.id))

    def are_open(children: Sequence[str]) -> tuple[str, ...]:
        return tuple(each for each in children if each in states and states[each] not in ENDED and each not in lost)

    unread = open_maps(history)
    return Relatives(
        open=are_open(staying),
        lost=tuple(sorted(lost)),
        dropped=are_open(dropped),
        is_awaited=is_awaited,
        unread_maps=tuple(entry.location for entry in unread),
        open_maps=_open_maps(at, [group_of(entry) for entry in unread]),
        dropped_maps=_open_maps(at, history.dropped_groups()),
    )


def _open_maps(at: Runtime, groups: Sequence[str | None]) -> tuple[tuple[str, int], ...]:
    """Return the locations of the groups with open children, each with their number."""
    found = [at.store.group(each) for each in groups if each is not None]
    return tuple(
        (each.spec.location, left) for each in found if each is not None and (left := each.waiting + each.running)
    )


def _whole(at: Runtime, run: RunRecord, location: str, *, is_given: bool) -> Outlook:
    return _of_whole(at, run, location, *at.store.outline(run.id), is_given=is_given)


def _of_whole(
    at: Runtime,
    run: RunRecord,
    location: str,
    entries: Sequence[EntryRecord],
    messages: Sequence[Message],
    *,
    is_given: bool,
) -> Outlook:
    replay = Replay(run, entries, messages, location)
    starts = starts_again(at.store, replay)
    return outlook_of(replay, entries, relatives_of(at, replay, starts), at.now(), is_given=is_given, starts=starts)


def _surveyed(at: Runtime, run: RunRecord, location: str, *, is_given: bool) -> Outlook | None:
    """Return the outlook, from the entries that matter; None if too many do, or the store is in memory."""
    surveyor = at.store.surveyor(run.id)
    if surveyor is None:
        return None
    if run.message_count <= _SHORT and (entries := surveyor.short_history(_SHORT)):
        return _of_whole(at, run, location, entries, surveyor.messages(), is_given=is_given)
    if run.lease_expires_at is None:
        surveyor.find_landmarks(run)
        revision = None
    else:
        revision = surveyor.revision()
    known = {each.location: each for each in surveyor.entries(_and_around([location]))}
    if location not in known and (first := surveyor.first_within(location)) is not None:
        known[first.location] = first
    try:
        replay = Replay(run, known.values(), (), location)
    except EntryNotFoundError:
        raise EntryNotFoundError(run.id, location, nearest(location, surveyor.first_locations(_SEARCHED))) from None
    regions = replay.history.regions
    survey, not_given, kept = _survey(surveyor, replay, is_given=is_given)
    if survey.has_children:
        known |= {each.location: each for each in surveyor.child_entries()}
    if survey.has_loops and surveyor.has_children():
        known |= {each.location: each for each in surveyor.loops(regions)}
    if survey.has_handlers:
        undone = surveyor.compensated(regions, _MOST_COMPENSATED + 1)
        if len(undone) > _MOST_COMPENSATED:
            return None
        known |= {each.location: each for each in undone}
        missing = _and_around([*(each.location for each in undone), *_undone_by(undone)]) - known.keys()
        known |= {each.location: each for each in (surveyor.entries(missing) if missing else ())}
    if survey.has_children or survey.has_loops or survey.has_handlers:
        replay = Replay(run, known.values(), (), location)
    if len(set(replay.history.regions)) > _MOST_REGIONS:
        return None
    if set(replay.history.regions) != set(regions):
        regions = replay.history.regions
        survey, not_given, kept = _survey(surveyor, replay, is_given=is_given)
        # loops that are restarted because something in them was undone
        if survey.has_loops and surveyor.has_children():
            known |= {each.location: each for each in surveyor.loops(regions)}
            replay = Replay(run, known.values(), (), location)
    if survey.races.number > len(survey.races.first):
        return None
    sent_again = [each.data["message_id"] for each in surveyor.own_sends(regions)] if survey.sends.number else []
    returned: Sequence[Message] = ()
    messages = 0
    if run.message_count and survey.has_receipts:
        returned, messages = surveyor.returned(regions, survey.races.first, sent_again, SHOWN)
    starts = starts_again(at.store, replay)
    return Outlook(
        replay=replay,
        survey=survey,
        relatives=relatives_of(at, replay, starts),
        returned=returned,
        messages=messages,
        unsettled=unsettled_of(regions, surveyor.unfinished_steps(), without=kept),
        running=[each for each in surveyor.running_steps(regions) if each != kept] if is_leased(run, at.now()) else (),
        hash=hash_of(run, location, revision),
        not_given=not_given,
        starts=starts,
    )


def _survey(surveyor: RowSurveyor, replay: Replay, *, is_given: bool) -> tuple[Survey, list[str], str | None]:
    """Return the survey, why the output of the target cannot be given, and the target if its entry is kept."""
    not_given = list(replay.refusals_of_giving()) if is_given else []
    kept = replay.target if is_given and not not_given else None
    return surveyor.survey(replay.history.regions, kept=kept, most=SHOWN), not_given, kept


def _undone_by(steps: Iterable[EntryRecord]) -> Iterator[str]:
    """Yield the locations of the code's compensations that have undone these steps."""
    for each in steps:
        policy: Mapping[str, str | None] = each.data.get("rollback", {})
        by = policy.get("by")
        if by is not None:
            yield by


def _and_around(locations: Iterable[str]) -> set[str]:
    """Return the locations and all enclosing ones."""
    found: set[str] = set()
    for each in locations:
        while each and each not in found:
            found.add(each)
            each = parent(each)
    return found


_REASON = 300  # characters of a reason in an entry; the audit log has the whole text


@dataclass(frozen=True, slots=True)
class _Given:
    """The output that a person has given for a step."""

    value: Any


def replay(
    run_id: str, location: str, *, in_place: bool = False, plan_hash: str | None = None, as_id: str | None = None
) -> Started:
    """Run again from `location` on, as a new run or, with `in_place`, as the same one. Return the run."""
    require_step("replaying a run", "replay it in a step")
    if in_place and as_id is not None:
        raise ValueError("a replay in place makes no new run: leave out the id, or in_place=True")
    at = runtime.current()
    with audited(at, "replay", run_id) as attribution:
        if in_place:
            return _in_place(at, attribution, location, plan_hash)
        return _as_new_run(at, attribution, location, plan_hash, as_id)


def replay_failed(run_id: str, *, as_id: str | None = None) -> Started:
    """Replay a failed run from where it failed, as a new run. Raises as `replay` does.

    A run that failed outside of any operation is refused: recover it, or replay it from a location.
    """
    at = runtime.current()
    run = record(run_id)
    location = failed_at(run.error, run.origins) if run.state == RunState.FAILED else ""
    with audited(at, "replay", run_id):
        if not location:
            raise ReplayRefusedError(run_id, "", [f"it is {run.state}, and no step of it says where to begin"])
    return replay(run_id, location, as_id=as_id)


def give_output(
    run_id: str,
    location: str,
    output: Any,
    *,
    in_place: bool = False,
    plan_hash: str | None = None,
    as_id: str | None = None,
) -> Started:
    """Replay after a step, whose `output` a person gives; the step itself does not run again. Return the run.

    The step's entry records who gave the output, why and when. The actor needs the permissions to replay and to give
    outputs, and a reason. Refused for a step with a rollback handler, for a failed atomic step (its rows were not
    written), and for a step in a loop or race that starts again. Raises as `replay` does, PayloadError, and ValueError
    without a reason.
    """
    require_step("giving an output", "give it in a step")
    if in_place and as_id is not None:
        raise ValueError("a replay in place makes no new run: leave out the id, or in_place=True")
    at = runtime.current()
    with audited(at, "give_output", run_id) as attribution:
        if attribution.acting is not None:
            attribution.acting.check("replay")
        if not attribution.reason.strip():
            raise ValueError("an output that is given by hand needs a reason: it is recorded with the step")
        given = _Given(output)
        if in_place:
            return _in_place(at, attribution, location, plan_hash, given)
        return _as_new_run(at, attribution, location, plan_hash, as_id, given)


def _in_place(
    at: Runtime, attribution: Attribution, location: str, plan_hash: str | None, given: _Given | None = None
) -> Started:
    previous = ""

    def decide(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
        nonlocal previous
        previous = run.state
        attribution.check_seen(run)
        replay = _planned(at, run, entries(), location, plan_hash, attribution, given, in_place=True)
        change = replay.in_place(at.now())
        number = _number_started(at, replay)
        detail = f"{_where(replay, given)}, in place{_started(number)}"
        change.action = attribution.done(before=run.state, after=change.run["state"], detail=detail, number=number)
        return change

    changed = at.store.change(attribution.run_id, decide)
    announce(at, changed.queue, changed.wake_at)
    if changed.state != previous:
        send_run_changed(at, [changed], previous)
    return Started(changed.id, is_new=False)


def _as_new_run(
    at: Runtime,
    attribution: Attribution,
    location: str,
    plan_hash: str | None,
    as_id: str | None,
    given: _Given | None = None,
) -> Started:
    with at.store.transaction():
        old = attribution.lock()
        found = None if as_id is None else at.store.get(as_id)
        if found is not None and found.replay_of_id == old.id and attribution.sees(found.id):
            if given is not None:
                _check_given(at, attribution, found, location, given)
            else:
                _check_from(at, old, found, location)
            detail = f"as run {found.id}: was there already"
            at.store.log([attribution.done(before=old.state, after=old.state, detail=detail)])
            return Started(found.id, is_new=False)
        entries = at.store.history(old.id)
        replay = _planned(at, old, entries, location, plan_hash, attribution, given, in_place=False)
        # Fence 1: the new run has a history to load, even if its original is pruned before its first pass.
        wanted = successor(
            at,
            old,
            as_id,
            fence=1,
            seed=old.seed or old.id,
            began_at=old.began_at or old.created_at,
            summary=replay.summary,
        )
        [(new, is_new)] = at.store.create([wanted])
        attribution.check_sees(new.id)
        if not is_new:  # created by another caller, or between the check and the insert
            check_is_successor(new, old)
            if given is None:
                _check_from(at, old, new, location)
            return Started(new.id, is_new=False)
        _plant(at, replay, new)
        number = _number_started(at, replay)
        detail = f"{_where(replay, given)}, as run {new.id}{_started(number)}"
        at.store.log([attribution.done(before=old.state, after=old.state, detail=detail, number=number)])
    announce(at, new.queue, new.wake_at)
    send_run_changed(at, [new], previous="")
    return Started(new.id, is_new=True)


def _check_from(at: Runtime, old: RunRecord, found: RunRecord, location: str) -> None:
    """Raise RunConflictError unless the earlier run was replayed from this location, or from an equivalent one."""
    entries, _ = at.store.outline(found.id)
    if Replay(old, *at.store.outline(old.id), location).begins_elsewhere(found, entries):
        raise RunConflictError(found.id, f'and was not replayed from "{location}"')


def _check_given(at: Runtime, attribution: Attribution, found: RunRecord, location: str, given: _Given) -> None:
    """Raise RunConflictError unless the earlier run has this output, given by hand, at this location."""
    detail = f'from "{location}", whose output was given by hand, as run {found.id}'
    acting = attribution.acting
    if acting is not None and not acting.may_compare(attribution.run_id, ("give_output",), detail):
        problem = "and may have another output; the permission durable.view_payload is needed to learn whether it has"
        raise RunConflictError(found.id, problem)
    entry = next((each for each in at.store.history(found.id) if each.location == location), None)
    place = Place(found.id, "output", location)
    wanted = at.encode(given.value, f'the output of step "{location}"', place)
    if (
        entry is None
        or "given" not in entry.data
        or (entry.output != wanted and at.decode(entry.output, place) != at.decode(wanted, place))
    ):
        raise RunConflictError(found.id, f'and does not have this output, given by hand, at "{location}"')


def _where(replay: Replay, given: _Given | None) -> str:
    return f'from "{replay.boundary}"' + ("" if given is None else ", whose output was given by hand")


def _number_started(at: Runtime, replay: Replay) -> int:
    return sum(each.number for each in starts_again(at.store, replay))


def _started(number: int) -> str:
    return f"; {number} {'child is' if number == 1 else 'children are'} started again" if number else ""


def _planned(
    at: Runtime,
    run: RunRecord,
    entries: list[EntryRecord],
    location: str,
    plan_hash: str | None,
    attribution: Attribution,
    given: _Given | None,
    *,
    in_place: bool,
) -> Replay:
    """Return the replay if the plan still matches and nothing refuses it."""
    check_not_an_order(run.workflow, "replay")
    try:
        replay = Replay(run, entries, at.store.messages(run.id), location)
    except EntryNotFoundError:
        if plan_hash is None:
            raise
        raise StalePlanError(run.id, location) from None  # the location existed when the plan was made
    if plan_hash is not None and plan_hash != hash_of(run, location, revision_of(entries)):
        raise StalePlanError(run.id, location)
    relatives, now = relatives_of(at, replay), at.now()
    refusals = refusals_of(replay, relatives, running_steps(replay.history), now)
    if in_place:
        refusals += in_place_refusals_of(replay, relatives, now)
    else:
        refusals += of_unread_maps(relatives)
    if given is not None:
        refusals = [*replay.refusals_of_giving(), *refusals]
    if refusals:
        raise ReplayRefusedError(run.id, location, refusals)
    replay.history.start_anew(relatives.lost)
    replay.history.start_lost_anew()
    if given is not None:
        by = attribution.done(before="", after="")
        who = {"by": by.actor_label, "source": by.source, "reason": by.reason[:_REASON], "at": at.now().isoformat()}
        what = f'the output of step "{location}"'
        replay.give(at.encode(given.value, what, Place(run.id, "output", location)), who, at.now())
    return replay


def _plant(at: Runtime, replay: Replay, new: RunRecord) -> None:
    """Give the new run its history, and keep the children that it may read or compensate.

    Raises StalePlanError if a child that it may read was pruned meanwhile.
    """
    unread = unread_children(replay.history)
    undoable = [each.data["child"] for each in replay.history if each.kind == EntryKind.CHILD and each.is_compensable]
    maps = (each for each in replay.history if each.kind == EntryKind.MAP and each.is_compensable)
    undoable += members(at.store, [each.data["group"] for each in maps])
    needed = list(dict.fromkeys([*unread, *undoable]))
    if needed and not set(unread).issubset(at.store.note_reader(new.id, needed)):
        raise StalePlanError(replay.run.id, replay.target)
    entries, messages = replay.history_of(new.id, new_id, at.copied)
    staying = {entry.location for entry in entries}
    attempts = [each for each in at.store.attempts(replay.run.id) if each.location in staying]
    tags = _tags_of(at, replay)
    at.store.import_history(
        new.id,
        entries=list(map(held_anew, entries)),
        attempts=attempts,
        messages=messages,
        tags=TagChange(new.created_at, tags) if tags else None,
    )


def _tags_of(at: Runtime, replay: Replay) -> dict[str, str | None]:
    """Return the tags that the kept history gives to a new run, without those given by the original's start."""
    run_id = replay.run.id
    now = at.store.tags([run_id]).get(run_id, {})
    if not now:
        return {}
    at_start = at.store.tags([run_id], at_start=True).get(run_id, {})
    return {name: value for name, value in {**now, **replay.history.tags()}.items() if value != at_start.get(name)}
