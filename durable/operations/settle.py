"""Steps that wait for a person: which they are, and the verb that settles one.

A step is held because its outcome is unknown, or because its attempts are used up (`durable.core.outcomes`). The verb
says that it was done, with its result, that it was not, so that it is tried again, or that it fails. `recover` tries
all held steps of a run again, and asks their `verify` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from durable import runtime
from durable.core import transitions
from durable.core.causes import MAX_PLACE, numberless, place_of
from durable.core.errors import EntryNotFoundError, InvalidTransitionError
from durable.core.location import check_location, display_location, listed
from durable.core.once import failed_by, not_begun
from durable.core.outcomes import (
    FAILURE,
    HELD,
    SAID_BY,
    UNDOING,
    HeldStep,
    held_steps,
    is_unsettled,
    without,
)
from durable.core.places import Place
from durable.core.records import EntryRecord, EntryStatus, RunChange, RunRecord
from durable.core.rewind.recovery import may_be_tried, tried_once_more
from durable.core.rewind.replay import nearest
from durable.core.scope import IN_DOUBT, NOT_DONE
from durable.core.steps import ATOMIC
from durable.core.transitions import ALLOWED
from durable.core.words import Sentence, gettext_noop
from durable.operations.audit import Attribution, audited
from durable.operations.common import announce, check_state, require_step
from durable.operations.queries import record
from durable.runtime import Runtime

ONE_ANSWER: Final = "settle a step with one answer: done=RESULT, not_done=True or fail=True"
#: Marks that no result was given, where None is one.
NOTHING: Final = object()
_REASON = 300  # characters of a reason in an entry; the audit log has the whole text


def held(run_id: str) -> tuple[HeldStep, ...]:
    """Return the steps of the run that wait for a person, in the order in which they began.

    Two queries. Raises RunNotFoundError.
    """
    record(run_id)
    return held_steps(runtime.current().store.held_steps(run_id))


def settle(run_id: str, location: str, *, done: Any = NOTHING, not_done: bool = False, fail: bool = False) -> None:
    """Settle the held step at `location`: it was done, with the result `done`, it was not, or it fails.

    A step that was not done is tried again; one whose attempts were used up gets all of them again. Raises
    EntryNotFoundError, InvalidTransitionError if the step is not held, PayloadError, ValueError unless exactly one
    answer is given, and TypeError for a location that is no text.
    """
    check_location(location)
    check_answer(done=done, not_done=not_done, fail=fail)
    require_step("settling a step", "settle it in a step")
    at = runtime.current()

    def chosen(run: RunRecord, history: Sequence[EntryRecord]) -> list[EntryRecord]:
        return [_held_at(run, location, history, at.now())]

    _settle(at, run_id, chosen, done=done, not_done=not_done)


def settle_held(
    run_id: str, *, place: str = "", done: Any = NOTHING, not_done: bool = False, fail: bool = False
) -> None:
    """Settle all held steps of the run in one way, or those at this place of a cause. Raises as `settle` does,
    and InvalidTransitionError if there is no such step.
    """
    check_answer(done=done, not_done=not_done, fail=fail)
    require_step("settling steps", "settle them in a step")
    at = runtime.current()

    def chosen(run: RunRecord, history: Sequence[EntryRecord]) -> list[EntryRecord]:
        waiting = [each for each in history if each.status == EntryStatus.HELD and not _is_over(run, each, at.now())]
        found = [each for each in waiting if not place or numberless(place_of(each.location))[:MAX_PLACE] == place]
        if not found:
            text = (
                gettext_noop('cannot settle steps of run "{run}": none of its steps at {place} waits for a person')
                if place
                else gettext_noop('cannot settle steps of run "{run}": none of its steps waits for a person')
            )
            problem = Sentence(text, run=run.id, place=place)
            raise InvalidTransitionError(run.state, ALLOWED["settle"], "settle", run.id, problem=problem)
        return found

    _settle(at, run_id, chosen, done=done, not_done=not_done)


def check_answer(*, done: Any = NOTHING, not_done: bool = False, fail: bool = False) -> None:
    """Raise ValueError unless exactly one answer is given."""
    if sum(map(bool, [done is not NOTHING, not_done, fail])) != 1:
        raise ValueError(ONE_ANSWER)


def _settle(
    at: Runtime,
    run_id: str,
    chosen: Callable[[RunRecord, Sequence[EntryRecord]], Sequence[EntryRecord]],
    *,
    done: Any,
    not_done: bool,
) -> None:
    """Settle the chosen steps of the run in one change."""
    with audited(at, "settle", run_id) as attribution:

        def decide(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
            attribution.check_seen(run)
            check_state(run, "settle", ALLOWED["settle"])
            history = entries()
            steps = chosen(run, history)
            newest = max(max(each.ordinal, each.finished_ordinal or 0) for each in history)
            if done is not NOTHING:
                by = _by(attribution, at.now())
                after = [
                    _done(each, newest + number, _output(at, run, each, done), by, at.now())
                    for number, each in enumerate(steps, 1)
                ]
                told = "it was done"
            elif not_done:
                after, told = [_again(each, at.now()) for each in steps], "it was not done"
            else:
                failed = (replace(each, **failed_by(each, is_decided=_is_to_be_undone(run, each))) for each in steps)
                by = _by(attribution, at.now())
                after = [
                    replace(each, data={**each.data, FAILURE: {**each.data[FAILURE], SAID_BY: by}}) for each in failed
                ]
                told = "it fails"
            locations = [each.location for each in steps]
            word = "step" if len(steps) == 1 else "steps"
            named = listed(map(display_location, locations))
            return RunChange(
                run=transitions.settled(run, now=at.now()),
                entries=after,
                is_held_over=not any(
                    each.status == EntryStatus.HELD and each.location not in locations for each in history
                ),
                action=attribution.done(before=run.state, after=run.state, detail=f"{word} {named}: {told}"),
            )

        changed = at.store.change(run_id, decide)
    announce(at, changed.queue, changed.wake_at)


def _output(at: Runtime, run: RunRecord, entry: EntryRecord, done: Any) -> str:
    return at.encode(done, f'the output of step "{entry.location}"', Place(run.id, "output", entry.location))


def tried_again(run: RunRecord, entries: Iterable[EntryRecord], now: datetime) -> RunChange | None:
    """Return the change that tries all held steps of an open run again; None if it has none.

    A step of which nobody knows whether it was done is asked about again. Raises InvalidTransitionError if it has no
    `verify`, and nothing else is held.
    """
    waiting = [each for each in entries if each.status == EntryStatus.HELD]
    changed = [tried_once_more(each) for each in waiting if may_be_tried(each)]
    if waiting and not changed:
        text = gettext_noop(
            'cannot recover run "{run}": nobody knows whether step "{place}" was done, and it has no verify that could be '
            "asked; settle it: it was done, it was not, or it fails"
        )
        problem = Sentence(text, run=run.id, place=display_location(waiting[0].location))
        raise InvalidTransitionError(run.state, ALLOWED["recover"], "recover", run.id, problem=problem)
    if not changed:
        return None
    return RunChange(run=transitions.settled(run, now=now), entries=changed, is_held_over=len(changed) == len(waiting))


def waiting_no_more(entries: Iterable[EntryRecord]) -> list[EntryRecord]:
    """Return the entries of a run that goes on elsewhere: steps that waited for a person are tried or asked again."""
    return [tried_once_more(each) if each.status == EntryStatus.HELD else each for each in entries]


def _held_at(run: RunRecord, location: str, history: Iterable[EntryRecord], now: datetime) -> EntryRecord:
    known = {each.location: each for each in history}
    entry = known.get(location)
    if entry is None:
        held = [each.location for each in known.values() if each.status == EntryStatus.HELD]
        raise EntryNotFoundError(run.id, location, nearest(location, list(known)) or held[:3])
    problem = ""
    if entry.status != EntryStatus.HELD:
        problem = gettext_noop('cannot settle step "{place}" of run "{run}": it is not held, it is {status}')
    elif _is_over(run, entry, now):
        problem = gettext_noop('cannot settle step "{place}" of run "{run}": its unknown_timeout is over, and it fails')
    if problem:
        told = Sentence(problem, place=display_location(location), run=run.id, status=str(entry.status))
        raise InvalidTransitionError(run.state, ALLOWED["settle"], "settle", run.id, problem=told)
    return entry


def _is_to_be_undone(run: RunRecord, entry: EntryRecord) -> bool:
    """Return True if a rollback waits for the answer about the step: one that fails is left as it is."""
    return bool(run.state_after_rollback) or UNDOING in entry.data[HELD]


def _is_over(run: RunRecord, entry: EntryRecord, now: datetime) -> bool:
    """Return True if the held step's `unknown_timeout` is over: the run's next pass fails it, unless it rolls back."""
    return entry.next_attempt_at is not None and entry.next_attempt_at <= now and not run.state_after_rollback


def _done(entry: EntryRecord, ordinal: int, output: str, given: dict[str, str], now: datetime) -> EntryRecord:
    """Return a held step of which a person says that it was done; it has finished as number `ordinal`."""
    if entry.data.get(ATOMIC):
        text = gettext_noop(
            '"{place}" is atomic and has failed: its rows were not written, and an output would say they were'
        )
        raise ValueError(Sentence(text, place=display_location(entry.location)))
    return replace(
        entry,
        status=EntryStatus.COMPLETED,
        output=output,
        error=entry.error if FAILURE in entry.data else None,
        data={**without(entry, HELD), "given": given},
        next_attempt_at=None,
        last_attempt_at=None,  # no attempt has completed it: as where an output is given in a replay
        completed_at=now,
        finished_ordinal=ordinal,
    )


def _again(entry: EntryRecord, now: datetime) -> EntryRecord:
    """Return a held step of which a person says that it was not done: it is tried again at once."""
    if not is_unsettled(entry):
        return tried_once_more(entry)
    if FAILURE in entry.data:  # what the code has got stays; there is nothing to undo
        return replace(entry, **failed_by(entry, is_decided=True))
    told = replace(entry, data={**without(entry, HELD), NOT_DONE: now.isoformat()})
    if IN_DOUBT in told.data:
        return replace(told, **not_begun(told))
    return replace(told, status=EntryStatus.FAILED, next_attempt_at=now)


def _by(attribution: Attribution, now: datetime) -> dict[str, str]:
    """Return who has given a result, as recorded with the step."""
    by = attribution.done(before="", after="")
    return {"by": by.actor_label, "source": by.source, "reason": by.reason[:_REASON], "at": now.isoformat()}
