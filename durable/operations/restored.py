"""The decision about a database that has gone back in time: let its runs go on, pause them, or put them in doubt first.

`durable.marks` says how that is noticed. Until the decision workers claim nothing. The decision raises the generation
of the database's row, then the mark. So the mark follows this history from then on, and another database with the same
name that still goes on, as a primary beside the promoted standby, is behind from then on. A copy gets a name of its own
instead, and the database that it was made of goes on.

A decision to pause all open runs, or to put them in doubt (`durable.core.scope.Doubt`), is carried out before workers
claim anything: in the call for `HOLD_FOR` seconds, and then by the sweep (`continue_hold`, one of the chores of
`durable.worker.timer`). Schedules tick first: the moments of the lost time are due again, and their runs are paused or
in doubt with the others.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction

from durable import marks, runtime
from durable.conf import conf
from durable.core.errors import OperationError, RestoredDatabaseError
from durable.core.records import ENDED, Request, RunState
from durable.core.words import Sentence, gettext_noop
from durable.marks import Mark, Position
from durable.models import DatabaseMark, Run
from durable.models.workers import ONLY
from durable.operations.audit import audited
from durable.operations.lifecycle import pause
from durable.operations.schedules.tick import next_look, tick_due
from durable.runtime import Runtime

logger = logging.getLogger("durable.marks")

GO_ON: Final = "go_on"
HOLD: Final = "hold"
UNKNOWN: Final = "unknown"
_WAYS: Final = (HOLD, UNKNOWN, GO_ON)

#: Seconds of one call that are spent on pausing runs, or on putting them in doubt.
HOLD_FOR: Final = 5.0
_AT_ONCE: Final = 200  # runs of one query
_MARKED: Final = 1_000  # runs of one transaction that puts them in doubt
_OPEN: Final = tuple(state.value for state in RunState if state not in ENDED and state != RunState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a decision has come to: the `name` of the database, and how many runs are `paused`, or `in_doubt`, so far.

    `is_done` is False while open runs are left; workers claim nothing until it is True.
    """

    name: str
    paused: int = 0
    in_doubt: int = 0
    is_done: bool = True


def decide(database: str, how: str, *, as_copy: bool = False) -> Decided:
    """Let workers go on in the database of this name: at once ("go_on"), when all open runs are paused ("hold"), or
    when all of them are in doubt ("unknown"), so that what they may have done is asked about before they do it.

    With `as_copy` the database gets a name of its own: it is a copy of another one, which goes on. All but "go_on" are
    allowed for a database that is not behind its mark, too.

    Raises OperationDeniedError, ValueError for another name or `how`, and RestoredDatabaseError if there is nothing to
    decide, if another database with this name is in use, or if the mark cannot be read.
    """
    if how not in _WAYS:
        raise ValueError(f'"{how[:20]}" is not a decision: give "{HOLD}", "{UNKNOWN}" or "{GO_ON}"')
    at = runtime.current()
    with audited(at, "restored", "", subject=("database", database)) as by:
        now = at.now()
        position = marks.look()
        row = position.row
        if row is None or row.name != database:
            raise ValueError(_other_name(database, row))
        if by.saw_other(marks.revision_of(row)):
            raise RestoredDatabaseError(Sentence(_STALE))
        _check(position, how, now, as_copy=as_copy)
        with at.store.transaction():
            decided = _decided(position, how, now, as_copy=as_copy)
            before = "behind" if position.is_behind else ""
            transaction.on_commit(_publish, using=conf.DATABASE)
            at.store.log([by.done(before=before, after=how, detail=_told(position, how, as_copy=as_copy))])
    if how == GO_ON:
        at.notify(at.store.due_queues(at.now()))
        return Decided(name=decided)
    return carry_on(decided)


_STALE: Final = gettext_noop("it was decided about the database: it has changed since this page was made; look again")
_NOT_BEHIND: Final = gettext_noop(
    "the database is not behind its mark, and workers claim runs: there is nothing to decide. To pause all open runs "
    "after a restore that nothing has noticed, hold them; to have the next steps of all open runs asked about, treat them as "
    "unknown"
)
_UNREADABLE: Final = gettext_noop("the mark of the database cannot be read: {problem}. Try again when it can be")
_IN_USE: Final = gettext_noop(
    "the mark was written {seconds} s ago in {place}, so a database with this name seems to be in use. If this database "
    "is a copy, give it a name of its own. If not, stop the workers of the other database and try again in "
    "{quiet} s"
)


def _other_name(database: str, row: DatabaseMark | None) -> str:
    if row is None:
        return f'this database is not "{database[:64]}": it has no name before the first sweep of a durable_worker'
    return f'this database has the name "{row.name}", not "{database[:64]}"'


def _check(position: Position, how: str, now: datetime, *, as_copy: bool) -> None:
    """Raise RestoredDatabaseError if it cannot be decided so."""
    if position.problem and not as_copy:
        raise RestoredDatabaseError(Sentence(_UNREADABLE, problem=position.problem))
    if how == GO_ON and not as_copy and not position.is_behind:
        raise RestoredDatabaseError(Sentence(_NOT_BEHIND))
    if position.is_behind and not as_copy and position.mark is not None and position.moves(now):
        raise RestoredDatabaseError(
            Sentence(
                _IN_USE,
                seconds=f"{abs(now - position.mark.at).total_seconds():.0f}",
                place=position.mark.place,
                quiet=f"{marks.quiet().total_seconds():.0f}",
            )
        )


def _decided(position: Position, how: str, now: datetime, *, as_copy: bool) -> str:
    """Write the decision into the database's row, and return the name that the database has now."""
    row, mark = position.row, position.mark
    assert row is not None
    counter = max(row.counter, mark.counter if mark is not None else 0) + 1
    values: dict[str, object] = {"counter": counter, "token": marks.new_token(), "written_at": now, "mark_at": None}
    if how != GO_ON:
        values |= {"holding_since": now, "in_doubt_since": now if how == UNKNOWN else None}
    if position.is_behind and mark is not None:
        values |= {"went_back_from": mark.at, "went_back_to": row.written_at, "decided_at": now}
        values["generation"] = max(row.generation, mark.generation) + 1
    if as_copy:
        values["name"] = marks.new_name()
    rows = DatabaseMark.objects.using(conf.DATABASE)
    mine = rows.filter(pk=ONLY, name=row.name, generation=row.generation)
    if not mine.update(**values):
        raise RestoredDatabaseError(Sentence(_STALE))
    return str(values.get("name", row.name))


def _publish() -> None:
    row = DatabaseMark.objects.using(conf.DATABASE).filter(pk=ONLY).first()
    if row is not None:
        marks.publish(Mark.of(row, "an operator's decision"))


def _told(position: Position, how: str, *, as_copy: bool) -> str:
    what = _WHAT[how]
    behind = f"; {position.in_words()}" if position.is_behind else ""
    return f"{what}{'; the database is a copy, and gets a name of its own' if as_copy else ''}{behind}"


_WHAT: Final = {
    HOLD: "all open runs are paused first",
    UNKNOWN: "the next steps of all open runs count as unknown",
    GO_ON: "all open runs go on",
}


# -- pausing open runs, or putting them in doubt


def carry_on(name: str) -> Decided:
    """Go on with a decision about all open runs, for some seconds; return what has been done in this call."""
    at = runtime.current()
    row = DatabaseMark.objects.using(conf.DATABASE).get(pk=ONLY)
    since = row.in_doubt_since
    if since is None:
        paused, is_done = continue_pausing(at, HOLD_FOR)
        decided = Decided(name=name, paused=paused, is_done=is_done)
    else:
        marked, is_done = _continue_marking(at, HOLD_FOR, since)
        decided = Decided(name=name, in_doubt=marked, is_done=is_done)
    if decided.is_done:
        at.notify(at.store.due_queues(at.now()))
    return decided


def continue_hold(_now: datetime) -> None:
    """Go on with a decision about all open runs, if there is one. A chore of the sweep."""
    rows = DatabaseMark.objects.using(conf.DATABASE)
    if rows.filter(pk=ONLY, holding_since__isnull=False).exists():
        carry_on("")


def continue_pausing(at: Runtime, seconds: float) -> tuple[int, bool]:
    """Pause open runs for so many seconds; return how many were paused, and whether all are.

    When all are, workers claim runs again. A run that is being cancelled, or that a step of another process has, keeps
    its request and is passed by.
    """
    until = time.monotonic() + seconds
    _tick(at, until)
    paused, last = 0, ""
    while time.monotonic() < until:
        runs = Run.objects.using(conf.DATABASE).filter(state__in=_OPEN, id__gt=last)
        ids = list(
            runs.exclude(pending_request=Request.PAUSE.value).order_by("id").values_list("id", flat=True)[:_AT_ONCE]
        )
        if not ids:
            _end()
            return paused, True
        for last in ids:
            try:
                pause(last)
            except OperationError as error:  # it has ended meanwhile, or is being cancelled
                logger.info("run %s is not paused: %s", last, error, extra={"run_id": last})
            else:
                paused += 1
    return paused, False


def _continue_marking(at: Runtime, seconds: float, since: datetime) -> tuple[int, bool]:
    """Put open runs in doubt for so many seconds; return how many, and whether all are."""
    until = time.monotonic() + seconds
    _tick(at, until)
    marked = 0
    while time.monotonic() < until:
        number = at.store.put_in_doubt(since, _MARKED)
        marked += number
        if not number:
            _end()
            return marked, True
    return marked, False


def _tick(at: Runtime, until: float) -> None:
    """Start the runs of schedules whose moments of the lost time are due again."""
    while (due := next_look(at.now())) is not None and due <= at.now():
        if not tick_due(at.now()) or time.monotonic() >= until:
            break


def _end() -> None:
    """Let workers claim runs again."""
    DatabaseMark.objects.using(conf.DATABASE).filter(pk=ONLY).update(holding_since=None, in_doubt_since=None)
