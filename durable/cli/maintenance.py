"""`durable prune`: delete old runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from django.core.management.base import CommandError

from durable.cli.actor import shell_actor
from durable.cli.arguments import add_acting, add_confirming, add_format, confirmed, duration, is_at_terminal
from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import Subcommand
from durable.conf import conf
from durable.operations.audit import REFUSALS, acting_as
from durable.operations.prune import preview_pruning, prune
from durable.retention import STATES, Policy, Pruned, RetentionError

COUNTED: Final = 10_000  # runs that a preview counts


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
