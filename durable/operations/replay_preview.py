"""Preview a replay: the plan, from as much of the history as it takes.

In a database most of a history is counted there and not read (`durable.store.surveys`). `durable.core.replay` decides
here as well: it goes back in a history of the few entries that matter, and notes the regions that it deletes. A store
in memory has all entries at hand, and so has a replay itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from durable import runtime
from durable.core.child_entries import divided, group_of, open_maps, unread_children
from durable.core.errors import EntryNotFoundError
from durable.core.location import parent
from durable.core.records import ENDED, EntryRecord, Message, RunRecord, RunState
from durable.core.replay import Replay, nearest
from durable.operations.queries import record
from durable.operations.replay_plan import (
    SHOWN,
    Family,
    Outlook,
    ReplayPlan,
    build_plan,
    hash_of,
    is_held,
    outlook_of,
)
from durable.operations.replay_starts import StartsAgain, starts_again
from durable.runtime import Runtime
from durable.store.families import cancelled_children

_SHORT: Final = 1_000  # entries, and messages, of a run that is read whole
_MOST_COMPENSATED: Final = 1_000  # compensated steps; with more the history is read whole
_MOST_REGIONS: Final = 100  # conditions that a database checks for each entry; the same
_SEARCHED: Final = 2_000  # locations among which the nearest ones are found


def plan_replay(run_id: str, location: str, *, with_output: bool = False) -> ReplayPlan:
    """Return the plan of a replay from `location`; changes nothing. Raises RunNotFoundError, EntryNotFoundError.

    `with_output`: the plan of `give_output`.
    """
    at = runtime.current()
    run = record(run_id)  # first: what is read later may be newer than the hash says, and never older
    found = _surveyed(at, run, location, is_given=with_output) or _whole(at, run, location, is_given=with_output)
    return build_plan(found, at.now())


def family_of(at: Runtime, replay: Replay, starts: Sequence[StartsAgain] | None = None) -> Family:
    """Return the runs around the one that is replayed; without a query if it is no child and has none.

    `starts` are those of the replay, for a caller that has them: a loop without children is not searched for open ones.
    """
    run, history = replay.run, replay.history
    staying, (dropped, places) = unread_children(history), divided(history.dropped_children())
    if places and (starts is None or any(f"{each.location}/" in places for each in starts)):
        dropped = list(dict.fromkeys([*dropped, *at.store.open_children_below(run.id, places)]))
    states = at.store.states([*staying, *dropped]) if staying or dropped else {}
    lost = cancelled_children(at.store, history)
    parent = at.store.get(run.parent_id) if run.parent_id is not None and run.state == RunState.COMPLETED else None
    is_awaited = parent is not None and parent.state not in ENDED and run.id in at.store.children([run.id])
    # replays of the parent read it too, and are known when the parent is gone
    is_awaited |= run.state == RunState.COMPLETED and bool(at.store.readers_of(run.id))

    def are_open(children: Sequence[str]) -> tuple[str, ...]:
        return tuple(each for each in children if each in states and states[each] not in ENDED and each not in lost)

    unread = open_maps(history)
    return Family(
        open=are_open(staying),
        lost=tuple(sorted(lost)),
        dropped=are_open(dropped),
        is_awaited=is_awaited,
        unread_maps=tuple(entry.location for entry in unread),
        open_maps=_open_maps(at, [group_of(entry) for entry in unread]),
        dropped_maps=_open_maps(at, history.dropped_groups()),
    )


def _open_maps(at: Runtime, groups: Sequence[str | None]) -> tuple[tuple[str, int], ...]:
    """Return the locations of those groups that have children which have not ended, and how many."""
    found = [at.store.group(each) for each in groups if each is not None]
    return tuple(
        (each.spec.location, left) for each in found if each is not None and (left := each.waiting + each.running)
    )


def _whole(at: Runtime, run: RunRecord, location: str, *, is_given: bool) -> Outlook:
    """Return the outlook from the whole history."""
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
    return outlook_of(replay, entries, family_of(at, replay, starts), at.now(), is_given=is_given, starts=starts)


def _surveyed(at: Runtime, run: RunRecord, location: str, *, is_given: bool) -> Outlook | None:
    """Return the outlook from the entries that matter; None if too many do, or the store has all at hand."""
    surveyor = at.store.surveyor(run.id)
    if surveyor is None:
        return None
    if run.message_count <= _SHORT and (entries := surveyor.short_history(_SHORT)):
        return _of_whole(at, run, location, entries, surveyor.messages(), is_given=is_given)
    mark = None if run.lease_expires_at is None else surveyor.mark()
    known = {each.location: each for each in surveyor.entries(_and_around([location]))}
    if location not in known and (first := surveyor.first_within(location)) is not None:
        known[first.location] = first
    try:
        replay = Replay(run, known.values(), (), location)
    except EntryNotFoundError:
        raise EntryNotFoundError(run.id, location, nearest(location, surveyor.first_locations(_SEARCHED))) from None
    not_given = list(replay.refusals_of_giving()) if is_given else []
    kept = location if is_given and not not_given else None
    regions = replay.history.regions
    survey = surveyor.survey(regions, kept=kept, most=SHOWN)
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
        not_given = list(replay.refusals_of_giving()) if is_given else []
        kept = location if is_given and not not_given else None
        survey = surveyor.survey(regions, kept=kept, most=SHOWN)
        if survey.has_loops and surveyor.has_children():  # those that go back with what was undone
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
        family=family_of(at, replay, starts),
        returned=returned,
        messages=messages,
        running=[each for each in surveyor.running_steps(regions) if each != kept] if is_held(run, at.now()) else (),
        hash=hash_of(run, location, mark),
        not_given=not_given,
        starts=starts,
    )


def _undone_by(steps: Iterable[EntryRecord]) -> Iterator[str]:
    """Yield the locations of the operations of the code that have undone these steps."""
    for each in steps:
        policy: Mapping[str, str | None] = each.data.get("rollback", {})
        by = policy.get("by")
        if by is not None:
            yield by


def _and_around(locations: Iterable[str]) -> set[str]:
    """Return the locations and those around them."""
    found: set[str] = set()
    for each in locations:
        while each and each not in found:
            found.add(each)
            each = parent(each)
    return found
