"""All subcommands, in the order in which the help lists them."""

from __future__ import annotations

from durable.cli import (
    code_checks,
    export,
    maintenance,
    messages,
    schedules,
    show,
    verb_command,
    watching,
)
from durable.cli.list_command import LISTS, note_command
from durable.cli.subcommand import Subcommand
from durable.operations.catalogue import LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW

SUBCOMMANDS: tuple[Subcommand, ...] = (
    *(LISTS["list"], LISTS["children"], LISTS["causes"], LISTS["running"]),
    *(watching.stack_command, watching.stream_command, show.show_command, show.why_command, watching.logs_command),
    *(messages.result_command, LISTS["values"], messages.start_command, messages.send_command),
    *(messages.publish_command, messages.ask_command, messages.delete_message_command, messages.move_message_command),
    *(LISTS["questions"], messages.question_command, *messages.QUESTION_VERBS),
    *(*verb_command.VERBS, note_command, verb_command.bulk_command, show.compare_command),
    *(show.replay_command, code_checks.replay_check_command, export.export_command, export.import_command),
    *(maintenance.prune_command, maintenance.forget_command, maintenance.partition_command),
    *(maintenance.restored_command, maintenance.doctor_command, code_checks.lint_command, code_checks.skills_command),
    *(LISTS["events"], LISTS["event-waits"], LISTS["workers"], LISTS["queues"]),
    *verb_command.subcommands(QUEUE, WORKFLOW),
    *(LISTS["limits"], *verb_command.subcommands(LIMIT)),
    *(LISTS["rates"], *verb_command.subcommands(RATE)),
    *(schedules.schedules_command, schedules.create_command, *verb_command.subcommands(SCHEDULE)),
)
