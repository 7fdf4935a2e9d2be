"""`durable show`, `why` and `compare`: a run with its history, why it does not continue, and its differences from
another. And `replay`: run again from a location in a run's history, after showing the plan.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable import operations
from durable.carriers import unread
from durable.cli.list_command import counted
from durable.cli.output import Cell, Exit, Output
from durable.cli.subcommand import (
    ACTING,
    CONFIRMING,
    JSON_HELP,
    RUN,
    acting,
    argument,
    confirm,
    formats,
    found_run,
    given_ids,
    json_value,
    need_terminal,
    no_run,
    refusable,
    run_ids,
    subcommand,
)
from durable.cli.watching import follow, following
from durable.conf import conf
from durable.core.places import Place
from durable.core.records import EntryKind
from durable.inspection.actions import read_actions
from durable.inspection.activities import activities_of_runs, saved_by
from durable.inspection.children import count_children, list_parents
from durable.inspection.comparison import Comparison, Difference, Side, compare_runs
from durable.inspection.explain_states import Explanation, awaited_queues
from durable.inspection.explanation import explain_fully
from durable.inspection.humanize import moment, plural, span, until
from durable.inspection.payloads import payload, pretty, redacted_error, redacted_traceback
from durable.inspection.reading import reading
from durable.inspection.run_facts import (
    about_of,
    carried_lines,
    key_note,
    key_of,
    limits_of,
    rank_of,
    rank_words,
    share_words,
    tags_of,
    work_words,
)
from durable.inspection.schedules import tick_data, tick_of
from durable.inspection.shown import status_of
from durable.inspection.tree import TreeNode, TreePage, history_tree
from durable.inspection.undone import state_word
from durable.inspection.wording import command, display_location
from durable.listings import history
from durable.listings.runs import RunDetail, seen_runs
from durable.listings.shapes import Seen, data_of
from durable.models import Run
from durable.operations.replay_plan import ReplayPlan

# -- show


@subcommand(
    "show",
    "Show a run and its history.",
    RUN,
    argument(
        "-p",
        "--payloads",
        action="store_true",
        help="with the run's input, output and traceback, and what running steps have saved",
    ),
    argument("--failed", action="store_true", help="of the history only what failed, was retried or is open"),
    argument("--start", type=int, metavar="N", help="show the history from this position on (default: its end)"),
    *following("then print what happens, until the run has ended"),
    formats("table", "json"),
)
def show_command(options: Namespace, output: Output) -> int:
    with reading():
        run, now = found_run(options.id), timezone.now()
        running = activities_of_runs([run], now)[run.id]
        page = history_tree(
            run,
            start=options.start,
            only_failed=options.failed,
            at_end=True,
            running=running,
            with_payloads=options.payloads,
        )
        if output.format == "json":
            output.json(_shown_data(run, page, now, with_payloads=options.payloads))
        else:
            _print_run(output, run, now, with_payloads=options.payloads)
            if actions := read_actions(run, now):
                output.line()
                output.table(["WHEN", "WHAT HAPPENED"], ((until(each.at, now), each.title) for each in actions))
            if options.payloads:
                _print_payloads(output, run)
            _print_history(output, run, page)
            for location, value in _saved(run, page).items() if options.payloads else ():
                output.line()
                output.line(f"saved by {location}:")
                output.indented(pretty(value))
    if options.follow:
        return follow(run, output, options.interval.total_seconds())
    return Exit.OK


def _shown_data(run: Run, page: TreePage, now: datetime, *, with_payloads: bool) -> dict[str, Any]:
    seen = Seen(now=now, payloads=with_payloads)
    beside = seen_runs(seen, [run], expand=("input", "output") if with_payloads else ())
    data = data_of(RunDetail, run, beside)
    data["history"] = [
        {
            "location": node.location,
            "summary": node.summary,
            "kind": node.kind,
            "status": node.status,
            "attempts": _attempts(node),
            "running_since": node.running_since and node.running_since.isoformat(),
            "note": "; ".join(_marks(node)),
        }
        for node in page.nodes
    ]
    if with_payloads:
        data["saved"] = _saved(run, page)
    data["history_start"], data["history_total"] = page.start, page.total
    return data


def _print_run(output: Output, run: Run, now: datetime, *, with_payloads: bool) -> None:
    explanation = explain_fully(run, now, with_payloads=with_payloads)
    limits, key, ranking = limits_of(run), key_of(run), rank_of(run)
    tick, parents, status = tick_of(run.id), list_parents(run), status_of(run)
    output.facts(
        {
            "run": run.id,
            "workflow": run.workflow,
            "state": state_word(run),
            "what": explanation.headline,
            "more": explanation.detail,
            "status": status and status.words,
            "expected": status and status.expected(now),
            "queue": run.queue,
            "started": until(run.created_at, now),
            "ended": run.finished_at and until(run.finished_at, now),
            "took": run.finished_at and span((run.finished_at - run.created_at).total_seconds()),
            "in doubt since": limits and not run.finished_at and limits.in_doubt and moment(limits.in_doubt, now),
            "deadline": limits and limits.deadline and until(limits.deadline, now),
            "work limit": limits and work_words(limits),
            "key": key and f"{key.key}: {key_note(key, now)}",
            "priority": ranking and rank_words(ranking),
            "share": ranking and share_words(ranking),
            "tags": ", ".join(
                f"{each.name}={'(hashed)' if each.is_hashed else each.value}" for each in tags_of([run])[run.id]
            ),
            "about": ", ".join(each.word for each in about_of([run])[run.id]),
            "carries": ", ".join(f"{name}={value}" for name, value in carried_lines(run)) if with_payloads else "",
            "not read here": ", ".join(unread(run.carried)),
            "parent": " > ".join(each.id for each in parents) or run.parent_id,
            "children": counted(count_children(run.id)),
            "schedule": tick and f"{tick.schedule.name}, {until(tick.moment, now)}",
            "replay of": run.replay_of_id,
        }
    )


def _print_payloads(output: Output, run: Run) -> None:
    for field, text in (("input", run.input), ("output", run.output)):
        if text is not None:
            output.line()
            output.line(f"{field}:")
            output.indented(pretty(payload(run.workflow, field, text, Place(run.id, field))))
    if traceback := redacted_traceback(run.workflow, run.error):
        output.line()
        output.line("error:")
        output.indented(traceback.rstrip())


def _print_history(output: Output, run: Run, page: TreePage) -> None:
    if not page.nodes:
        return
    output.line()
    rows = (_row(run.workflow, node) for node in page.nodes)
    output.table(["LOCATION", "KIND", "STATUS", "ATTEMPTS", "NOTE"], rows)
    end = page.start + len(page.nodes)
    if end < page.total or page.start:
        others = []
        if page.previous_start is not None:
            others.append(f"what is before: {command('show', run.id)} --start {page.previous_start}")
        if page.next_start is not None:
            others.append(f"what follows: {command('show', run.id)} --start {page.next_start}")
        output.say(f"Positions {page.start} to {end - 1} of {page.total}; {'; '.join(others)}")
    if page.is_cut:
        output.say("The history is longer than what is shown: durable export has more.")


def _saved(run: Run, page: TreePage) -> dict[str, Any]:
    return saved_by(run, [node.location for node in page.nodes if node.kind == EntryKind.STEP])


def _row(workflow: str, node: TreeNode) -> tuple[object, ...]:
    attempts = _attempts(node) if node.kind == "step" else ""
    return (node.location, node.kind, Cell(node.status, node.status), attempts, _note(workflow, node))


def _attempts(node: TreeNode) -> int | None:
    """The number of attempts, including a running one; None for an entry without attempts."""
    if node.running is not None and not node.running.is_rollback:
        return node.running.attempt
    return node.entry.metadata.attempts if node.entry is not None else None


def _note(workflow: str, node: TreeNode) -> str:
    about = node.entry.metadata if node.entry is not None else None
    errors = (about.error, about.rollback_error) if about is not None else ()
    texts = [redacted_error(workflow, error)[:200] for error in errors]
    return "; ".join(filter(None, [node.summary, "won" if node.is_winner else "", *_marks(node), *texts]))


def _marks(node: TreeNode) -> list[str]:
    """The notes on the node: its own, whether its failure was caught, and whether its step was undone or recovered."""
    about = node.entry.metadata if node.entry is not None else None
    is_undone = about is not None and about.rollback_completed_at is not None
    is_recovered = about is not None and 0 < node.failed_attempts >= max(1, about.attempts) and not node.has_failed
    running = ""
    if node.running is not None:
        what = "rollback handler running" if node.running.is_rollback else "running"
        running = f"{what} for {span(node.running.seconds)}"
    found = {
        node.note: True,
        "caught": node.is_caught,
        f"{plural(node.failed_attempts, 'failed attempt')} in all": is_recovered,
        running: True,
        "undone": is_undone,
    }
    return [text for text, is_so in found.items() if text and is_so]


# -- why


@subcommand(
    "why",
    "Explain why runs do not go on, and what to do.",
    run_ids(),
    formats("table", "json"),
)
def why_command(options: Namespace, output: Output) -> int:
    status: int = Exit.OK
    for run_id in given_ids(options.ids):
        with reading():
            run = Run.objects.using(conf.DATABASE).with_side_rows().filter(pk=run_id).first()
            explanation = None if run is None else explain_fully(run, timezone.now(), with_payloads=True)
        if run is None or explanation is None:
            output.complain(no_run(run_id))
            status = Exit.REFUSED
            continue
        if output.format == "json":
            output.json(_why_data(run, explanation))
        else:
            output.line(f"{run.id} ({run.workflow}): {state_word(run)}")
            output.line(f"  {explanation.text}")
            for line in [*_remedies(run, explanation), *filter(None, [explanation.command])]:
                output.line(f"  $ {line}")
    return status


def _why_data(run: Run, explanation: Explanation) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "state": run.state,
        "headline": explanation.headline,
        "detail": explanation.detail,
        "needs_attention": explanation.needs_attention,
        "location": explanation.location,
        "schedule": tick_data(tick_of(run.id)),
        "remedies": _remedies(run, explanation),
        "withheld": list(explanation.withheld),
        "command": explanation.command,
    }


def _remedies(run: Run, explanation: Explanation) -> list[str]:
    """Return commands to copy. A message's body is read from standard input, so that the operator has to write one."""
    more = {
        "send": [*(awaited_queues(run) or ["QUEUE"])[:1], "-"],
        "replay": [explanation.location or "LOCATION"],
        "move": ["--queue", "QUEUE"],
    }
    ways = {"settle": [[explanation.location, *way] for way in (["--done", "JSON"], ["--not-done"], ["--fail"])]}
    return [
        command(verb.replace("_", "-"), run.id, *way)
        for verb in explanation.remedies
        for way in ways.get(verb, [more.get(verb, [])])
    ]


# -- compare


@subcommand(
    "compare",
    "Compare two runs place by place, for example a run and its replay.",
    argument("left", metavar="ID"),
    argument("right", metavar="OTHER", help="for example the run that a replay has made"),
    argument("--payloads", action="store_true", help="compare the outputs and the inputs too"),
    argument("--all", action="store_true", help="places that are the same, too"),
    formats(),
)
def compare_command(options: Namespace, output: Output) -> int:
    with reading():
        runs = []
        for run_id in (options.left, options.right):
            run = Run.objects.using(conf.DATABASE).filter(pk=run_id).defer("input", "output").first()
            if run is None:
                output.complain(f'there is no run "{run_id}"')
                return Exit.REFUSED
            runs.append(run)
        start: int | None = 0
        differing = 0
        while start is not None:
            found = compare_runs(*runs, with_payloads=options.payloads, start=start)
            rows = [each for each in found.rows if each.differs or options.all]
            differing += sum(bool(each.differs) for each in rows)
            _print_differences(output, found, rows)
            start = found.next_start
    output.say(f"{differing} of {found.total} places differ")
    return Exit.OK


def _print_differences(output: Output, found: Comparison, rows: list[Difference]) -> None:
    if found.inputs is not None and output.format == "json":
        output.json({"inputs": list(found.inputs)})
    if output.format == "ids":
        for each in rows:
            output.id(each.location)
    elif output.format == "json":
        for each in rows:
            output.json(data_of(history.Difference, each, Seen(now=timezone.now())))
    elif rows:
        output.table(
            ["PLACE", "LEFT", "RIGHT", "DIFFERS"],
            (
                (display_location(each.location), _side(each.left), _side(each.right), ", ".join(each.differs))
                for each in rows
            ),
        )


def _side(side: Side | None) -> Cell:
    if side is None:
        return Cell("nothing")
    words = [side.status, f"{side.attempts} attempts" if side.attempts > 1 else "", "by hand" if side.is_given else ""]
    took = "" if side.took is None else span(side.took.total_seconds())
    return Cell(", ".join(filter(None, [*words, took, side.error])), side.status)


# -- replay

SHOWN: Final = 20  # locations of each kind
NOTHING: Final = object()  # marks a missing output: null is a valid one


@subcommand(
    "replay",
    "Run again from a place in a run's history; prints the id of the run that does. The code computes the arguments of a "
    "step each time: to change them, change the code, the input (restart --set) or the output that they came from "
    "(--output-of-step).",
    RUN,
    argument("location", metavar="LOCATION", help="where in the history, as durable show names it"),
    argument("--in-place", action="store_true", help="in the same run; else a new one goes on from there"),
    argument("--plan", metavar="HASH", help="only as a plan of --dry-run with this hash says"),
    argument("--id", dest="new_id", help="the new run's id"),
    argument(
        "--output-of-step",
        type=json_value,
        metavar="JSON",
        default=NOTHING,
        help=f"do not run the step at LOCATION again: it has this output. Needs --reason. {JSON_HELP}",
    ),
    ACTING,
    CONFIRMING,
    formats(),
)
def replay_command(options: Namespace, output: Output) -> int:
    if options.in_place and options.new_id:
        raise CommandError("--in-place makes no new run: leave out --id", returncode=Exit.USAGE)
    is_given = options.output_of_step is not NOTHING
    with refusable(), reading():
        plan = operations.plan_replay(options.id, options.location, with_output=is_given)
    if options.dry_run:
        _print_plan(output, plan, in_place=options.in_place)
        return Exit.REFUSED if plan.refusals_of(in_place=options.in_place) else Exit.OK
    if not (options.yes or options.plan):
        _ask(output, plan, in_place=options.in_place)
    with acting(options):
        how = {"in_place": options.in_place, "plan_hash": options.plan or plan.hash, "as_id": options.new_id}
        if is_given:
            run_id = operations.give_output(options.id, options.location, options.output_of_step, **how).id
        else:
            run_id = operations.replay(options.id, options.location, **how).id
    if plan.starts_note:
        output.say(f"{plan.starts_note}.")
    if output.format == "json":
        output.json({"id": options.id, "outcome": "done", "run": run_id, "boundary": plan.boundary})
    else:
        output.id(run_id)
    return Exit.OK


def _ask(output: Output, plan: ReplayPlan, *, in_place: bool) -> None:
    """Show the plan to the person at the terminal. Raises CommandError without one, or if the answer is no."""
    need_terminal(
        "a replay runs steps again: look at it with --dry-run, then say --yes, or --plan with the hash it shows"
    )
    for line in _lines(plan, in_place=in_place):
        output.say(line)
    number = plan.counts.started_children
    again = f", and start {number:,} {'child' if number == 1 else 'children'} again" if number else ""
    confirm(output, f"Replay it{again}?")


def _print_plan(output: Output, plan: ReplayPlan, *, in_place: bool) -> None:
    if output.format == "json":
        output.json(asdict(plan))
        return
    if output.format == "ids":
        for location in plan.reruns:
            output.line(location)
        return
    for line in _lines(plan, in_place=in_place):
        output.line(line)


def _lines(plan: ReplayPlan, *, in_place: bool) -> list[str]:
    where = "in place" if in_place else "as a new run"
    lines = [f'run {plan.run_id} goes on from "{plan.boundary}", {where}', *plan.why, *plan.notes]
    counts, refusals = plan.counts, plan.refusals_of(in_place=in_place)
    kinds: list[tuple[str, Sequence[str], int]] = [
        ("steps that run again", plan.reruns, counts.reruns),
        ("sends that are made again", plan.resends, counts.resends),
        ("kept", plan.kept, counts.kept),
        ("branches beside it that stay", plan.siblings, counts.siblings),
        ("messages that return to the queue", [f"{m.queue} ({m.id})" for m in plan.messages], counts.messages),
        ("children that a replay in place cancels", plan.children, counts.children),
        ("rollback handlers that are not run", plan.not_compensated, counts.not_compensated),
        ("in the way", refusals, len(refusals)),
    ]
    if plan.starts:
        lines.append(f"children that are started again: {counts.started_children}")
        lines += _first([f"{each.location}: {each.number} of {each.workflow}" for each in plan.starts], counts.starts)
    for name, entries, number in kinds:
        if number:
            lines.append(f"{name}: {number}")
            lines += _first(entries, number)
    return [*lines, f"plan {plan.hash}"]


def _first(entries: Sequence[str], number: int) -> list[str]:
    """Return lines for the first of these entries, and a line for the number of the others."""
    return [*(f"  {each}" for each in entries[:SHOWN]), *(["  ..."] if number > SHOWN else [])]
