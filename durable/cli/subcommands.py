"""All subcommands, in the order in which the help lists them."""

from __future__ import annotations

from durable.cli import verb_command
from durable.cli.code_checks import LINT, REPLAY_CHECK
from durable.cli.export import EXPORT, IMPORT
from durable.cli.list_command import LISTS, NOTE
from durable.cli.maintenance import DOCTOR, FORGET, PARTITION, PRUNE
from durable.cli.messages import ASK, DELETE_MESSAGE, MOVE_MESSAGE, PUBLISH, RESULT, SEND, START
from durable.cli.questions import QUESTION, QUESTION_VERBS
from durable.cli.replay import REPLAY
from durable.cli.restored import RESTORED_COMMAND
from durable.cli.run_verb_command import BULK, VERBS
from durable.cli.schedules import CREATE, SCHEDULES
from durable.cli.show import COMPARE, SHOW, WHY
from durable.cli.skills import SKILLS_COMMAND
from durable.cli.subcommand import Subcommand
from durable.cli.watching import LOGS, STACK, STREAM
from durable.operations.catalogue import LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW

SUBCOMMANDS: tuple[Subcommand, ...] = (
    *(LISTS["list"], LISTS["children"], LISTS["causes"], LISTS["running"], STACK, STREAM, SHOW, WHY, LOGS, RESULT),
    LISTS["values"],
    *(START, SEND, PUBLISH, ASK, DELETE_MESSAGE, MOVE_MESSAGE),
    *(LISTS["questions"], QUESTION, *QUESTION_VERBS),
    *VERBS,
    NOTE,
    BULK,
    COMPARE,
    *(REPLAY, REPLAY_CHECK, EXPORT, IMPORT, PRUNE, FORGET, PARTITION, RESTORED_COMMAND, DOCTOR, LINT, SKILLS_COMMAND),
    *(LISTS["events"], LISTS["event-waits"]),
    *(LISTS["workers"], LISTS["queues"]),
    *verb_command.subcommands(QUEUE, WORKFLOW),
    LISTS["limits"],
    *verb_command.subcommands(LIMIT),
    LISTS["rates"],
    *verb_command.subcommands(RATE),
    SCHEDULES,
    CREATE,
    *verb_command.subcommands(SCHEDULE),
)
