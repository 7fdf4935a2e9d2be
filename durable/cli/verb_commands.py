"""`durable recover`, `cancel`, `abandon`, `wake`, `pause`, `resume` and `restart`: one verb on each of the named runs.

Each run is decided separately: a refusal for one run does not stop the others.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import Any

from django.core.management.base import CommandError

from durable import operations, runtime
from durable.cli.actor import shell_actor
from durable.cli.arguments import (
    JSON_HELP,
    add_acting,
    add_cause,
    add_confirming,
    add_format,
    add_ids,
    confirmed,
    given_ids,
    is_at_terminal,
    keyword,
)
from durable.cli.bulks import add_canary, is_slow, start_bulk
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand, found_run
from durable.conf import conf
from durable.core.errors import BulkCountError
from durable.inspection import Filtered, RunCriteria
from durable.inspection.children_notes import verb_note
from durable.inspection.family import FailedChildren
from durable.inspection.humanize import plural
from durable.inspection.undone import Undone, undone_steps
from durable.models import Run
from durable.operations import bulk
from durable.operations.audit import acting_as, bulk_id
from durable.operations.audited import REFUSALS, outcome_of
from durable.operations.bulk_decisions import go_on, stop_here
from durable.operations.bulk_starts import BulkStarts, StartsCounter
from durable.operations.replay import replay_failed

PAGE = 100  # runs whose states are read at a time
_PLANNED = 200  # runs with children whose replays are planned beforehand
_IN_BULK = {"replay-failed": "replay"}  # the names of verbs that a bulk has under another one


def _configure(verb: str, add_options: Callable[[ArgumentParser], None], parser: ArgumentParser) -> None:
    takes_causes = add_options in (add_cause, _recover_options, _restart_options)
    add_ids(parser, may_be_none=takes_causes)
    add_options(parser)
    add_acting(parser)
    parser.add_argument(
        "--expect", type=int, metavar="N", help="do nothing unless N of the runs are in a state that allows it"
    )
    if _IN_BULK.get(verb, verb) in bulk.BULK_VERBS:
        add_canary(parser)
    add_confirming(parser)
    add_format(parser)


def _run(verb: str, call: Callable[[str, Namespace], str | None], past: str, options: Namespace, output: Output) -> int:
    ids = _chosen(options)
    if options.dry_run:
        return _preview(verb, ids, output)
    if options.expect is not None:
        ids = list(ids)
        possible = sum(_is_possible(verb, state) for _, state in _states(ids))
        if possible != options.expect:
            output.complain(BulkCountError(verb, options.expect, f"{possible:,}"))
            output.say("Nothing was done.")
            return Exit.REFUSED
    starts: BulkStarts | None = None
    if verb == "replay-failed" and "-" not in options.ids:
        ids = list(ids)
        starts = _starts(ids)
        if starts.note:
            output.say(f"{starts.note}.")
    if not options.yes and "-" not in options.ids and is_at_terminal():
        ids = list(ids)
        is_many = len(ids) > 1 or (starts is not None and starts.children)
        if is_many and not confirmed(output, _question(verb, len(ids), starts)):
            output.say("Nothing was done.")
            return Exit.REFUSED
    in_bulk = _IN_BULK.get(verb, verb)
    if in_bulk in bulk.BULK_VERBS and is_slow(options):
        return start_bulk(in_bulk, _selection(options, ids), options, output)
    done = refused = 0
    with acting_as(shell_actor(options.user), reason=options.reason), ExitStack() as stack:
        is_streamed = "-" in options.ids
        rest = iter(ids)
        first = [] if is_streamed else list(islice(rest, 2))  # the lines of standard input are done as they arrive
        if is_streamed or len(first) > 1:  # the audit log has them together
            total = len(ids) if isinstance(ids, Sized) else None
            try:
                stack.enter_context(bulk.grouped(in_bulk, total))
            except REFUSALS as error:
                output.complain(error)
                output.say("Nothing was done.")
                return Exit.REFUSED
        for run_id in chain(first, rest):
            note = _note(verb, run_id, is_streamed=is_streamed)
            try:
                became = call(run_id, options)
            except REFUSALS as error:
                refused += 1
                output.complain(error)
                _print(output, run_id, str(outcome_of(error)), detail=str(error))
            else:
                done += 1
                _print(output, run_id, "done", became=became)
                if note:
                    output.say(f"{note}.")
    if done + refused != 1 or not refused:
        output.say(f"{done} {past}{f', {refused} refused' if refused else ''}")
    return Exit.REFUSED if refused else Exit.OK


def _chosen(options: Namespace) -> Iterable[str]:
    """Return the ids given, or those of the failed runs of a cause."""
    selection = _filtered(options)
    if (selection is None) == (not options.ids):
        which = ", or --children-of, and only one of them" if hasattr(options, "children_of") else ", and not both"
        raise CommandError(f"give the ids of runs, or --cause or --place{which}", returncode=Exit.USAGE)
    if selection is not None:
        return _read(selection)
    found = given_ids(options.ids)
    return found if "-" in options.ids else list(found)


def _selection(options: Namespace, ids: Iterable[str]) -> bulk.Selection | list[str]:
    """Return the runs of a bulk in the background: the selection itself, or the ids."""
    selection = _filtered(options)
    return list(ids) if selection is None else selection


def _filtered(options: Namespace) -> bulk.Selection | None:
    """Return the runs that the options select; None if they select none."""
    wanted = RunCriteria(cause=getattr(options, "cause", ""), place=getattr(options, "place", ""))
    parent, group = getattr(options, "children_of", ""), getattr(options, "group", None)
    if bool(parent) + (not wanted.is_empty) > 1 or (group is not None and not parent):
        problem = "--children-of goes with neither --cause nor --place, and --group goes with it"
        raise CommandError(problem, returncode=Exit.USAGE)
    if parent:
        return FailedChildren(found_run(parent).id, group)
    return None if wanted.is_empty else Filtered(wanted)


def _read(selection: bulk.Selection) -> Iterator[str]:
    cursor: str | None = None
    while True:
        ids, cursor = selection.page(cursor, PAGE)
        yield from ids
        if cursor is None:
            return


def _print(output: Output, run_id: str, outcome: str, *, detail: str = "", became: str | None = None) -> None:
    """Print the data: a result for each run, or the ids of the changed runs (of the new runs, if there are any)."""
    if output.format == "json":
        data: dict[str, Any] = {"id": run_id, "outcome": outcome}
        output.json(data | ({"detail": detail} if detail else {}) | ({"new_id": became} if became else {}))
    elif outcome == "done" and (output.format == "ids" or became is not None):
        output.id(became or run_id)


def _question(verb: str, number: int, starts: BulkStarts | None) -> str:
    again = ""
    if starts is not None and starts.children:
        least = "at least " if starts.is_partial else ""
        again = f", and start {least}{_children(starts.children)} again"
    return f"{verb.capitalize()} {plural(number, 'run')}{again}?"


def _children(number: int) -> str:
    return f"{number:,} {'child' if number == 1 else 'children'}"


def _starts(ids: Iterable[str]) -> BulkStarts:
    """Return how many children are started again if the failed ones of these runs are replayed."""
    counter, number = StartsCounter(_PLANNED), 0
    for page in _pages(ids):
        failed = [run_id for run_id, state in page if _is_possible("replay-failed", state)]
        number += len(failed)
        counter.add(failed)
    return counter.counted(number)


def _note(verb: str, run_id: str, *, is_streamed: bool = False) -> str:
    """Return what the verb means for the children of the run, as it is before the verb."""
    if verb == "replay-failed":  # of a list of runs it was said before
        return _starts([run_id]).note if is_streamed else ""
    run = Run.objects.using(conf.DATABASE).filter(pk=run_id).first() if verb in ("pause", "cancel") else None
    return "" if run is None else verb_note(run, verb)


def _preview(verb: str, ids: Iterable[str], output: Output) -> int:
    """Print for which of the runs the verb is allowed in their current state."""
    count = 0
    counter = StartsCounter(_PLANNED)
    for page in _pages(ids):
        possible = [run_id for run_id, state in page if _is_possible(verb, state)]
        count += len(possible)
        starts = counter.add(possible) if verb == "replay-failed" else {}
        for run_id, state in page:
            _preview_one(verb, run_id, state, starts.get(run_id), output)
    output.say(f"{count} would be done, nothing was")
    if note := counter.counted(count).note:
        output.say(f"{note}.")
    return Exit.OK


def _preview_one(verb: str, run_id: str, state: str | None, starts: int | None, output: Output) -> None:
    """Print it for one run. `starts` is how many children it starts again, None if that is not known."""
    is_possible = _is_possible(verb, state)
    undone = undone_steps(run_id) if verb == "recover" and is_possible else None
    if output.format == "json":
        data = {"id": run_id, "state": state, "allowed": is_possible} | _undone_data(undone)
        output.json(data | ({"starts": starts} if verb == "replay-failed" and is_possible else {}))
    elif output.format == "ids" and is_possible:
        output.id(run_id)
    elif output.format == "table":
        what = "there is no such run" if state is None else f"it is {state}"
        again = f"; {undone.text}" if undone is not None else ""
        if starts:
            again = f"; it starts {_children(starts)} again"
        output.line(f"{run_id}: {'yes' if is_possible else 'no'}, {what}{again}")


def _is_possible(verb: str, state: str | None) -> bool:
    """Return whether a run in this state (None: there is no such run) allows the verb."""
    in_bulk = _IN_BULK.get(verb, verb)
    return state is not None and (in_bulk not in bulk.BULK_VERBS or state in bulk.allowed_states(in_bulk))


def _undone_data(undone: Undone | None) -> dict[str, Any]:
    return {} if undone is None else {"undone": list(undone.locations), "done_again_from": undone.start}


def _states(ids: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    return chain.from_iterable(_pages(ids))


def _pages(ids: Iterable[str]) -> Iterator[list[tuple[str, str | None]]]:
    """Yield the runs with their states, a page at a time; None is the state of a run that does not exist."""
    iterator = iter(ids)
    while page := list(islice(iterator, PAGE)):
        states = runtime.current().store.states(page)
        yield [(run_id, states.get(run_id)) for run_id in page]


def _nothing(_parser: ArgumentParser) -> None:
    """Add no options."""


def _cancel_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--rollback",
        action="store_true",
        help="undo what was done: compensate before it ends, and children that were started with rollback=True with it",
    )
    parser.add_argument(
        "--interrupt", action="store_true", help="abandon the attempts of steps that run, instead of waiting for them"
    )


def _abandon_options(parser: ArgumentParser) -> None:
    parser.add_argument("--location", default="", help="the attempt at this location only (default: all that run)")


def _wake_options(parser: ArgumentParser) -> None:
    parser.add_argument("--end-sleeps", action="store_true", help="end its sleeps too")


def _go_on_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--canary", action="store_true", help="try the next runs alone first, as many as before; stop if they fail"
    )


def _recover_options(parser: ArgumentParser) -> None:
    add_cause(parser)
    parser.add_argument(
        "--children-of",
        default="",
        metavar="ID",
        help="the failed children of this run, and then the run itself if it has failed too",
    )
    parser.add_argument("--group", metavar="LOCATION", help="with --children-of: the children of this group alone")


def _restart_options(parser: ArgumentParser) -> None:
    add_cause(parser)
    parser.add_argument(
        "--set",
        type=keyword,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"start with another argument NAME; the others stay. VALUE is {JSON_HELP}",
    )


def _verb(
    name: str,
    help: str,
    call: Callable[[str, Namespace], str | None],
    *,
    past: str,
    alias: str = "",
    options: Callable[[ArgumentParser], None] = _nothing,
) -> Subcommand:
    return Subcommand(
        name=name,
        help=help,
        configure=partial(_configure, name, options),
        run=partial(_run, name, call, past),
        alias=alias,
    )


VERBS = (
    _verb(
        "recover",
        "Continue failed runs: what made them fail is tried again. `retry` is an alias.",
        lambda run_id, _: operations.recover(run_id),
        past="recovered",
        alias="retry",
        options=_recover_options,
    ),
    _verb(
        "cancel",
        "End runs for good: parked ones at once, running ones at their next operation.",
        lambda run_id, options: operations.cancel(run_id, rollback=options.rollback, interrupt=options.interrupt),
        past="cancelled, or asked to",
        options=_cancel_options,
    ),
    _verb(
        "abandon",
        "Abandon the attempts of steps that run now: their workers interrupt them as their timeouts would.",
        lambda run_id, options: operations.abandon(run_id, location=options.location),
        past="asked to be abandoned",
        options=_abandon_options,
    ),
    _verb(
        "wake",
        "Give runs a pass now, and try steps in backoff at once.",
        lambda run_id, options: operations.wake(run_id, end_sleeps=options.end_sleeps),
        past="woken",
        options=_wake_options,
    ),
    _verb(
        "pause",
        "Stop runs until they are resumed.",
        lambda run_id, _: operations.pause(run_id),
        past="paused, or asked to",
    ),
    _verb("resume", "Let paused runs go on.", lambda run_id, _: operations.resume(run_id), past="resumed"),
    _verb(
        "restart",
        "Start new runs of the same workflows with the same input; prints their ids.",
        lambda run_id, options: operations.restart(run_id, changes=dict(options.set)).id,
        past="restarted",
        options=_restart_options,
    ),
    _verb(
        "replay-failed",
        "Replay failed runs from where they failed, as new runs; prints their ids.",
        lambda run_id, _: bulk.replay_as_part(run_id) if bulk_id() else replay_failed(run_id).id,
        past="replayed",
        options=add_cause,
    ),
    _verb(
        "go-on",
        "Continue bulks that their canary has stopped, with the rest of their runs.",
        lambda run_id, options: go_on(run_id, canary=options.canary),
        past="continued",
        options=_go_on_options,
    ),
    _verb(
        "stop-here",
        "End bulks that their canary has stopped; the rest of their runs are left alone.",
        lambda run_id, _: stop_here(run_id),
        past="ended",
    ),
)
