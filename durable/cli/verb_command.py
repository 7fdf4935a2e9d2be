"""The subcommands of verbs: on the named runs (`durable recover`, `cancel`, `restart` and others), and on queues,
workflows, limits, rates and schedules (`durable pause-queue`, `set-limit` and others); and `bulk`.

`durable.operations.verbs` and `durable.operations.catalogue` declare the verbs. Each run is decided separately: a
refusal for one run does not stop the others.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Exit, Output
from durable.cli.schedules import backfill_command, edit_command, told_of_tick
from durable.cli.subcommand import (
    ACTING,
    CONFIRMING,
    JSON_HELP,
    REVISION,
    YES,
    Argument,
    Subcommand,
    acting,
    argument,
    confirm,
    confirmed,
    duration,
    filters,
    formats,
    found_run,
    given_ids,
    is_at_terminal,
    keyword,
    need_terminal,
    option,
    refusable,
    run_ids,
    selected_ids,
    shell_actor,
    subcommand,
)
from durable.conf import conf
from durable.core.duration import later, parse_duration
from durable.core.errors import BulkCountError
from durable.core.records import RunState
from durable.inspection.actions import NOTED, verb_note
from durable.inspection.bulks import BulkSummary, failed_again, find_bulk, order_words, refusals
from durable.inspection.children import FailedChildren
from durable.inspection.explanation import explain
from durable.inspection.humanize import moment, plural
from durable.inspection.reading import reading
from durable.inspection.selection import Filtered
from durable.inspection.undone import Undone, read_undone
from durable.inspection.wording import command
from durable.listings.operators import bulk_data
from durable.listings.runs import CAUSE_FILTERS, HELD_FILTER, criteria_of
from durable.listings.shapes import Seen
from durable.models import Run
from durable.operations import bulk, catalogue
from durable.operations.audit import REFUSALS, acting_as, bulk_id, outcome_of
from durable.operations.catalogue import LIMIT, RATE
from durable.operations.eligibility import BulkStarts, Narrowed, StartsCounter, place_of, states_of
from durable.operations.options import Option, Until
from durable.operations.replay import replay_failed
from durable.operations.start import restart
from durable.operations.verbs import BULK_ACTIONS, DECISIONS, PLACE, RUN_VERBS, STEP, RunVerb, Subject, Verb
from durable.runtime import current

PAGE = 100  # runs whose states are read in one query
_PLANNED = 200  # runs with children whose replays are planned in advance
_SHOWN = 20  # runs of a group
_MOST = 10_000  # ids of runs that failed again
_SELECTING: Final = ("cause", "place", "held", "children_of")  # options in place of ids
_STUCK: Final = (*CAUSE_FILTERS, HELD_FILTER)  # what selects runs for verbs on held ones too


#: A run and a step of it, in place of several runs.
_RUN_AND_STEP: Final = (
    argument(
        "ids",
        nargs="?",
        type=lambda text: [text],
        default=[],
        metavar="ID",
        help="a run id; - reads several from standard input, one a line",
    ),
    argument("location", nargs="?", default="", metavar="LOCATION", help=STEP.shell_help),
)
#: The options that only bulks in the background have.
_CANARY: Final = (
    argument("--canary", type=int, metavar="N", help="in the background: try the first N runs, and wait for them"),
    argument("--stop-after", type=int, metavar="N", help="stop if N of these fail again (1), until go-on or stop-here"),
    argument("--within", type=duration, metavar="DURATION", help="stop, too, if one is still under way then (10 min)"),
    argument("--rate", type=float, metavar="N", help="in the background: at most N runs a second"),
)
#: By verb, what selects its runs in place of ids, and what it has besides its options.
_OPTIONS: Final[Mapping[str, Sequence[Argument]]] = {
    "recover": [
        filters(*_STUCK),
        argument(
            "--children-of",
            default="",
            metavar="ID",
            help="the failed children of this run, and then the run itself if it has failed too",
        ),
        argument("--group", metavar="LOCATION", help="with --children-of: the children of this group alone"),
    ],
    "restart": [
        filters(*CAUSE_FILTERS),
        argument(
            "--set",
            type=keyword,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"start with another argument NAME; the others stay. VALUE is {JSON_HELP}",
        ),
    ],
    "replay": [filters(*CAUSE_FILTERS)],
    "settle": [filters(*_STUCK)],
}


def _arguments(verb: RunVerb) -> list[Argument]:
    return [
        *(_RUN_AND_STEP if STEP in verb.options else [run_ids(may_be_none=verb.action in _OPTIONS)]),
        *_OPTIONS.get(verb.action, ()),
        *(option(each, is_named=True) for each in verb.options if each is not STEP),
        ACTING,
        REVISION,
        argument(
            "--expect", type=int, metavar="N", help="do nothing unless N of the runs are in a state that allows it"
        ),
        *(_CANARY if verb.action in BULK_ACTIONS else ()),
        CONFIRMING,
        formats(),
    ]


def _run(verb: RunVerb, options: Namespace, output: Output) -> int:
    ids = _chosen(verb, options)
    is_slow = _checked_to_be_slow(verb, options)
    if options.dry_run:
        return _preview(verb, ids, output)
    if options.expect is not None:
        ids = list(ids)
        possible = sum(_is_possible(verb, state) for page in _pages(verb, ids) for _, state in page)
        if possible != options.expect:
            output.complain(BulkCountError(verb.command, options.expect, f"{possible:,}"))
            return _nothing_done(output)
    starts: BulkStarts | None = None
    if verb.action == "replay" and "-" not in options.ids:
        ids = list(ids)
        starts = _starts(ids)
        if starts.note:
            output.say(f"{starts.note}.")
    if not options.yes and "-" not in options.ids and is_at_terminal():
        ids = list(ids)
        is_many = len(ids) > 1 or (starts is not None and starts.children)
        if is_many and not confirmed(output, _question(verb, len(ids), starts)):
            return _nothing_done(output)
    if is_slow:
        return _start_bulk(verb.action, _filtered(options) or list(ids), options, output)
    return _perform_each(verb, ids, options, output)


def _checked_to_be_slow(verb: RunVerb, options: Namespace) -> bool:
    """Return whether the bulk has a canary or a rate. Raises CommandError for options that do not go together."""
    if verb.check is not None:
        try:
            verb.check(**_said(verb.options, options))
        except ValueError:
            one = " | ".join(_flag(each) for each in verb.options if each is not STEP)
            raise CommandError(f"give one of {one}", returncode=Exit.USAGE) from None
    if STEP in verb.options and bool(options.ids) != bool(options.location):
        raise CommandError("give the LOCATION of a step with the ID of its run", returncode=Exit.USAGE)
    is_bulk = verb.action in BULK_ACTIONS
    if is_bulk and options.canary is None and (options.stop_after is not None or options.within is not None):
        raise CommandError("--stop-after and --within are options of --canary", returncode=Exit.USAGE)
    is_slow = is_bulk and (options.canary is not None or options.rate is not None)
    if options.revision is not None and (len(options.ids) != 1 or "-" in options.ids or is_slow):
        raise CommandError("--revision is that of one run: give its id alone", returncode=Exit.USAGE)
    return is_slow


def _nothing_done(output: Output) -> int:
    output.say("Nothing was done.")
    return Exit.REFUSED


def _perform_each(verb: RunVerb, ids: Iterable[str], options: Namespace, output: Output) -> int:
    """Perform the verb on one run after the other, and print what became of each."""
    done = refused = 0
    with acting_as(shell_actor(options.user), reason=options.reason, expected=options.revision), ExitStack() as stack:
        is_streamed = "-" in options.ids
        rest = iter(ids)
        first = [] if is_streamed else list(islice(rest, 2))  # the lines of standard input are done as they arrive
        if is_streamed or len(first) > 1:  # the audit log has them together
            total = len(ids) if isinstance(ids, Sized) else None
            try:
                stack.enter_context(bulk.grouped(verb.action, total))
            except REFUSALS as error:
                output.complain(error)
                return _nothing_done(output)
        for run_id in chain(first, rest):
            note = _note(verb, run_id, is_streamed=is_streamed)
            try:
                became = _performed(verb, run_id, options)
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
        output.say(f"{done} {verb.past}{f', {refused} refused' if refused else ''}")
    return Exit.REFUSED if refused else Exit.OK


def _said(among: Iterable[Option], options: Namespace) -> dict[str, Any]:
    return {each.name: value for each in among if each.is_said(value := getattr(options, each.name))}


def _flag(option: Option) -> str:
    return f"--{option.name.replace('_', '-')}{f' {option.metavar}' if option.metavar else ''}"


def _chosen(verb: RunVerb, options: Namespace) -> Iterable[str]:
    """Return the ids given, or those of the runs of a cause or with a held step."""
    selection = _filtered(options)
    if (selection is None) == (not options.ids):
        names = [f"--{each.replace('_', '-')}" for each in _SELECTING if hasattr(options, each)]
        which = f"{', '.join(names[:-1])} or {names[-1]}"
        raise CommandError(f"give either ids of runs or one of {which}", returncode=Exit.USAGE)
    if isinstance(selection, Narrowed):  # an open run with a held step is not started again beside itself
        is_bulk = verb.action in BULK_ACTIONS
        selection = selection.narrowed(bulk.allowed_states(verb.action) if is_bulk else {RunState.FAILED.value})
    if selection is not None:
        return selected_ids(selection)
    found = given_ids(options.ids)
    return found if "-" in options.ids else list(found)


def _filtered(options: Namespace) -> bulk.Selection | None:
    """Return the runs that the options select; None without such options."""
    wanted = criteria_of({each.name: getattr(options, each.name, None) for each in _STUCK})
    parent, group = getattr(options, "children_of", ""), getattr(options, "group", None)
    if bool(parent) + (not wanted.is_empty) > 1 or (group is not None and not parent):
        problem = "--children-of goes with neither --cause nor --place, and --group goes with it"
        raise CommandError(problem, returncode=Exit.USAGE)
    if parent:
        return FailedChildren(found_run(parent).id, group)
    return None if wanted.is_empty else Filtered(wanted)


def _print(output: Output, run_id: str, outcome: str, *, detail: str = "", became: str | None = None) -> None:
    """Print the data: a result for each run, or the ids of the changed runs (of the new runs, if there are any)."""
    if output.format == "json":
        data: dict[str, Any] = {"id": run_id, "outcome": outcome}
        output.json(data | ({"detail": detail} if detail else {}) | ({"new_id": became} if became else {}))
    elif outcome == "done" and (output.format == "ids" or became is not None):
        output.id(became or run_id)


def _question(verb: RunVerb, number: int, starts: BulkStarts | None) -> str:
    again = ""
    if starts is not None and starts.children:
        least = "at least " if starts.is_partial else ""
        again = f", and start {least}{_children(starts.children)} again"
    return f"{verb.command.capitalize()} {plural(number, 'run')}{again}?"


def _children(number: int) -> str:
    return f"{number:,} {'child' if number == 1 else 'children'}"


def _starts(ids: Iterable[str]) -> BulkStarts:
    """Count the children that are started again if the failed ones of these runs are replayed."""
    counter, number = StartsCounter(_PLANNED), 0
    replaying = RUN_VERBS["replay"]
    for page in _pages(replaying, ids):
        failed = [run_id for run_id, state in page if _is_possible(replaying, state)]
        number += len(failed)
        counter.add(failed)
    return counter.counted(number)


def _note(verb: RunVerb, run_id: str, *, is_streamed: bool = False) -> str:
    """Say what the verb does to the children of the run; call it before the verb."""
    if verb.action == "replay":  # of a list of runs it was said before
        return _starts([run_id]).note if is_streamed else ""
    run = Run.objects.using(conf.DATABASE).filter(pk=run_id).first() if verb.action in NOTED else None
    return "" if run is None else verb_note(run, verb.action)


def _preview(verb: RunVerb, ids: Iterable[str], output: Output) -> int:
    """Print for which runs the verb is allowed in their current state."""
    count = 0
    counter = StartsCounter(_PLANNED)
    for page in _pages(verb, ids):
        possible = [run_id for run_id, state in page if _is_possible(verb, state)]
        count += len(possible)
        starts = counter.add(possible) if verb.action == "replay" else {}
        for run_id, state in page:
            _preview_one(verb, run_id, state, starts.get(run_id), output)
    output.say(f"{count} would be done, nothing was")
    if note := counter.counted(count).note:
        output.say(f"{note}.")
    return Exit.OK


def _preview_one(verb: RunVerb, run_id: str, state: str | None, starts: int | None, output: Output) -> None:
    """Print the preview for one run. `starts` is how many children it starts again, None if that is not known."""
    is_possible = _is_possible(verb, state)
    undone = read_undone(run_id)[0] if verb.action == "recover" and is_possible else None
    if output.format == "json":
        data = {"id": run_id, "state": state, "allowed": is_possible} | _undone_data(undone)
        output.json(data | ({"starts": starts} if verb.action == "replay" and is_possible else {}))
    elif output.format == "ids" and is_possible:
        output.id(run_id)
    elif output.format == "table":
        what = "there is no such run" if state is None else f"it is {state}"
        again = f"; {undone.text}" if undone is not None else ""
        if starts:
            again = f"; it starts {_children(starts)} again"
        output.line(f"{run_id}: {'yes' if is_possible else 'no'}, {what}{again}")


def _is_possible(verb: RunVerb, state: str | None) -> bool:
    """Return whether the verb is allowed for a run in this state (None: the run does not exist)."""
    return state is not None and (verb.action not in BULK_ACTIONS or state in bulk.allowed_states(verb.action))


def _undone_data(undone: Undone | None) -> dict[str, Any]:
    return {} if undone is None else {"undone": list(undone.locations), "done_again_from": undone.start}


def _pages(verb: RunVerb, ids: Iterable[str]) -> Iterator[list[tuple[str, str | None]]]:
    """Yield the runs with their states, page by page; the state is None if the run does not exist."""
    iterator = iter(ids)
    allowed = bulk.allowed_states(verb.action) if verb.action in BULK_ACTIONS else ()
    while page := list(islice(iterator, PAGE)):
        states = states_of(page, allowed)
        yield [(run_id, states.get(run_id)) for run_id in page]


def _performed(verb: RunVerb, run_id: str, options: Namespace) -> str | None:
    """Perform the verb; return the id of the new run, or None."""
    if verb.action == "restart":
        return restart(run_id, changes=dict(options.set)).id
    if verb.action == "replay":
        return bulk.replay_as_part(run_id) if bulk_id() else replay_failed(run_id).id
    if verb.call_of_many is not None and not options.location:
        verb.call_of_many(run_id, **_of_many(verb, options))
    else:
        verb.call(run_id, **_said(verb.options, options))
    return None


def _of_many(verb: RunVerb, options: Namespace) -> dict[str, Any]:
    """Return the options of the verb as part of a bulk."""
    chosen = _filtered(options)
    place = "" if chosen is None else place_of(chosen)
    return {**({PLACE.name: place} if place and PLACE in verb.of_many else {}), **_said(verb.options, options)}


VERBS = tuple(
    Subcommand(each.command, each.help, partial(_run, each), _arguments(each), each.alias)
    for each in RUN_VERBS.values()
    if each.past
)


# -- bulks


def _start_bulk(verb: str, selection: Any, options: Namespace, output: Output) -> int:
    """Start the bulk in the background, and print its id."""
    within: timedelta | None = options.within
    given = bulk.options_of(verb, vars(options))
    with refusable():
        canary = None if options.canary is None else bulk.Canary.of(options.canary, options.stop_after, within)
    with acting(options):
        report = bulk.apply(verb, selection, canary=canary, rate=options.rate, expected=options.expect, **given)
    if output.format == "json":
        output.json({"bulk": report.bulk_id})
    else:
        output.id(report.bulk_id)
    output.say(f"It is done in the background: {command('bulk', report.bulk_id)}")
    return Exit.OK


@subcommand(
    "bulk",
    "Show what has come of a bulk; with -o ids, the runs that have failed again.",
    argument("id", metavar="ID", help="the bulk's id"),
    formats(),
)
def bulk_command(options: Namespace, output: Output) -> int:
    with reading():
        found = find_bulk(options.id)
        if found is None:
            output.complain(f'there is no bulk "{options.id}"')
            return Exit.REFUSED
        if output.format == "json":
            output.json(bulk_data(found, refusals(found.id), Seen(now=current().now())))
        elif output.format == "ids":
            for run_id in failed_again(found.id, found.verb).order_by("pk").values_list("pk", flat=True)[:_MOST]:
                output.id(run_id)
        else:
            _print_bulk(output, found)
    return Exit.OK


def _print_bulk(output: Output, found: BulkSummary) -> None:
    output.line(f"{found.headline}.")
    if found.order is not None:
        output.line(order_words(found.order, found.began_at))
    if found.stopped is not None:
        for verb in DECISIONS:
            output.line(f"  {command(RUN_VERBS[verb].command, found.id)}")
    if found.started:
        output.line(f"children that are started again: {found.started}")
    for group in refusals(found.id):
        output.line(f"{group.outcome}: {group.number}. {group.reason}")
        for run_id in group.runs:
            output.line(f"  {run_id}")
    if found.again:
        output.line(f"failed again: {found.again}")
        runs = failed_again(found.id, found.verb).defer("input", "output").order_by("pk")
        for run in runs[:_SHOWN]:
            output.line(f"  {run.id}: {explain(run, current().now()).headline}")


# -- verbs on named things: queues, limits, schedules

_BY_HAND: Final = {"edit_schedule": edit_command, "backfill_schedule": backfill_command}


def subcommands(*subjects: Subject) -> Iterator[Subcommand]:
    """Yield the subcommands of the verbs on these subjects."""
    for verb in catalogue.VERBS:
        if verb.on in subjects:
            yield _BY_HAND.get(verb.action) or _subcommand(verb)


def _subcommand(verb: Verb) -> Subcommand:
    what = "limit" if verb.on in (LIMIT, RATE) else verb.on.name
    name = argument("name", metavar=verb.on.metavar, help=f"the name of the {what}")
    arguments = [name, *map(option, verb.asked), *([YES] if verb.asks else []), ACTING, REVISION]
    return Subcommand(verb.command, verb.help, partial(_run_named, verb), arguments)


def _run_named(verb: Verb, options: Namespace, output: Output) -> int:
    now = timezone.now()
    if verb.asks and not options.yes:
        need_terminal(f"say --yes: {verb.loses}")
        confirm(output, verb.asks.format(name=options.name))
    with refusable():
        given = {each.name: _value(each, getattr(options, each.name), now) for each in verb.options}
    with acting(options):
        result = verb.call(options.name, **given)
    if verb.action == "run_schedule":
        return told_of_tick(result, output)
    output.say(verb.said.format(name=options.name, result=_told(result, now), **given))
    return Exit.OK


def _value(option: Option, given: Any, now: datetime) -> Any:
    """Convert the value of an option for the verb. Raises ValueError."""
    return later(now, parse_duration(given), "a closing") if isinstance(option, Until) else given


def _told(result: Any, now: datetime) -> Any:
    if isinstance(result, int):
        return plural(result, "run")
    return moment(result, now) if isinstance(result, datetime) else result
