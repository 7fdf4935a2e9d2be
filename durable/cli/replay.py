"""`durable replay`: run again from a location in a run's history, after showing the plan."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from django.core.management.base import CommandError

from durable import operations
from durable.cli.output import Exit, Output
from durable.cli.subcommand import (
    ACTING,
    CONFIRMING,
    JSON_HELP,
    RUN,
    acting,
    argument,
    confirm,
    formats,
    json_value,
    need_terminal,
    refusable,
    subcommand,
)
from durable.inspection.reading import reading
from durable.operations.replay_plan import ReplayPlan

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
