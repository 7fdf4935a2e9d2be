"""`durable prune` and `workers`: delete old runs, and list the workers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting, add_confirming, add_format, confirmed, duration, is_at_terminal
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.conf import conf
from durable.inspection import Workers, worker_overview
from durable.inspection.humanize import relative
from durable.operations.audit import acting_as
from durable.operations.audited import REFUSALS
from durable.operations.prune import preview_pruning, prune
from durable.retention import STATES, Policy, Pruned, RetentionError

__all__ = ["PRUNE", "WORKERS"]

COUNTED: Final = 10_000  # runs that a preview counts

# -- prune


def _configure_prune(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=duration,
        metavar="DURATION",
        help='ended so long ago: "30 days" (default: as DURABLE["RETENTION"] says)',
    )
    parser.add_argument(
        "-s", "--state", action="append", choices=STATES, default=[], metavar="STATE", help="may be given again"
    )
    parser.add_argument("-w", "--workflow", metavar="NAME", help="runs of this workflow alone")
    add_acting(parser)
    add_confirming(parser)
    add_format(parser, "table", "json")


def _prune(options: Namespace, output: Output) -> int:
    policy = _policy(options.older_than, options.state, options.workflow)
    if options.dry_run:
        _print_pruned(output, preview_pruning(policy, most=COUNTED), "would go", is_capped=True)
        return Exit.OK
    if not options.yes:
        _ask(output, policy)
    try:
        with acting_as(shell_actor(options.user), reason=options.reason):
            pruned = prune(policy, tell=lambda so_far: output.say(f"{so_far.runs} runs so far"))
    except REFUSALS as error:
        output.complain(error)
        return Exit.REFUSED
    _print_pruned(output, pruned, "are gone", is_capped=False)
    return Exit.OK


def _policy(older_than: timedelta | None, states: list[str], workflow: str | None) -> Policy:
    if older_than is not None:
        return Policy.older_than(older_than.total_seconds(), states=states, workflow=workflow)
    if states or workflow:
        raise CommandError("--state and --workflow go with --older-than", returncode=Exit.USAGE)
    try:
        policy = Policy.of(conf.RETENTION)
    except RetentionError as error:
        raise CommandError(f'DURABLE["RETENTION"]: {error}. {error.hint}', returncode=Exit.USAGE) from error
    if policy.keeps_all:
        raise CommandError(
            'DURABLE["RETENTION"] keeps everything: say --older-than, "30 days" for example', returncode=Exit.USAGE
        )
    return policy


def _ask(output: Output, policy: Policy) -> None:
    if not is_at_terminal():
        raise CommandError("pruning deletes for good: look at it with --dry-run, then say --yes", returncode=Exit.USAGE)
    found = preview_pruning(policy, most=COUNTED)
    what = f"{_counted(found.runs)} runs and {_counted(found.actions)} rows of the audit log"
    if not confirmed(output, f"Delete {what} for good?"):
        raise CommandError("nothing was done", returncode=Exit.REFUSED)


def _counted(number: int) -> str:
    return f"{number:,}{' or more' if number >= COUNTED else ''}"


def _print_pruned(output: Output, pruned: Pruned, what: str, *, is_capped: bool) -> None:
    numbers = {name: number for name, number in asdict(pruned).items() if not is_capped or name in ("runs", "actions")}
    if output.format == "json":
        output.json(numbers)
        return
    shown = _counted if is_capped else "{:,}".format
    output.line(", ".join(f"{shown(number)} {_WORDS.get(name, name)}" for name, number in numbers.items()) + f" {what}")


_WORDS: Final = {"actions": "rows of the audit log"}

PRUNE = Subcommand(
    name="prune",
    help="Delete runs that ended long ago with their histories and messages, and old rows of the audit log.",
    configure=_configure_prune,
    run=_prune,
)

# -- workers


def _configure_workers(parser: ArgumentParser) -> None:
    add_format(parser, "table", "json")


def _workers(_options: Namespace, output: Output) -> int:
    found = worker_overview()
    if output.format == "json":
        for worker in found.workers:
            output.json(_as_data(asdict(worker)))
    else:
        _print_workers(output, found)
    if found.problem:
        output.complain(found.problem)
        return Exit.REFUSED
    if found.is_capped:
        output.say("There are more than are shown.")
    if not found.uses_redis:
        output.say('These hold runs. Without Redis (DURABLE["REDIS"] is False) other workers are not known.')
    elif not found.workers:
        output.say("There are no workers: manage.py durable_worker starts some.")
    return Exit.OK


def _as_data(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_data(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _print_workers(output: Output, found: Workers) -> None:
    now = timezone.now()
    output.table(
        ["WORKER", "HOST", "PID", "QUEUES", "STATE", "SEEN", "RUNS"],
        (
            (
                worker.name,
                worker.host,
                worker.pid,
                " ".join(worker.queues),
                Cell(worker.state, "running" if worker.state == "busy" else ""),
                relative(worker.last_heartbeat, now) if worker.last_heartbeat else "",
                " ".join(run.id for run in worker.runs),
            )
            for worker in found.workers
        ),
    )


WORKERS = Subcommand(
    name="workers",
    help="List the workers, the queues they serve and the runs they hold.",
    configure=_configure_workers,
    run=_workers,
)
