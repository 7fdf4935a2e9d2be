"""`durable queues`: the queues, and which are paused."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection import QueueSummary, list_queues, reading
from durable.inspection.humanize import relative, span


def _configure_list(parser: ArgumentParser) -> None:
    add_format(parser, "table", "json")


def _list(_options: Namespace, output: Output) -> int:
    now = timezone.now()
    with reading():
        found = list_queues(now)
    if output.format == "json":
        for each in found:
            output.json(_data(each))
        return Exit.OK
    output.table(
        ["QUEUE", "STATE", "DUE", "OLDEST", "IN HAND", "IN/MIN", "OUT/MIN", "WORKERS"],
        (
            (
                each.name,
                Cell("paused", "paused") if each.is_paused else "",
                each.due,
                "" if each.oldest_due_at is None else span((now - each.oldest_due_at).total_seconds()),
                each.in_hand,
                each.came,
                each.went,
                each.workers,
            )
            for each in found
        ),
    )
    for each in found:
        if each.hold is not None:
            who = f" by {each.hold.held_by}" if each.hold.held_by else ""
            why = f": {each.hold.reason}" if each.hold.reason else ""
            output.say(f"{each.name}: paused {relative(each.hold.held_at, now)}{who}{why}")
    return Exit.OK


def _data(queue: QueueSummary) -> dict[str, Any]:
    hold = queue.hold
    return {
        "name": queue.name,
        "is_paused": queue.is_paused,
        "paused_at": None if hold is None else hold.held_at.isoformat(),
        "paused_by": "" if hold is None else hold.held_by,
        "reason": "" if hold is None else hold.reason,
        "due": queue.due.number,
        "is_capped": queue.due.is_capped,
        "oldest_due_at": None if queue.oldest_due_at is None else queue.oldest_due_at.isoformat(),
        "in_hand": queue.in_hand.number,
        "in_per_minute": round(queue.came.per_minute, 3),
        "out_per_minute": round(queue.went.per_minute, 3),
        "workers": [each.name for each in queue.serving],
    }


QUEUES = Subcommand(
    name="queues",
    help="List the queues: what is due in each, since when, who serves it, and whether it is paused.",
    configure=_configure_list,
    run=_list,
)
