"""All subcommands, in the order in which the help lists them."""

from __future__ import annotations

from durable.cli import verb_command
from durable.cli.bulks import BULK
from durable.cli.cause_list import NOTE
from durable.cli.compare import COMPARE
from durable.cli.doctor import DOCTOR
from durable.cli.imports import IMPORT
from durable.cli.lint import LINT
from durable.cli.list_command import LISTS
from durable.cli.maintenance import PRUNE
from durable.cli.messages import ASK, DELETE_MESSAGE, MOVE_MESSAGE, RESULT, SEND, START
from durable.cli.replay import REPLAY
from durable.cli.replay_check import REPLAY_CHECK
from durable.cli.run_log import LOGS
from durable.cli.run_verb_command import VERBS
from durable.cli.schedule_verbs import CREATE
from durable.cli.schedules import SCHEDULES
from durable.cli.show import EXPORT, SHOW, WHY
from durable.cli.stack import STACK
from durable.cli.subcommand import Subcommand
from durable.operations.catalogue import LIMIT, QUEUE, RATE, SCHEDULE, WORKFLOW

SUBCOMMANDS: tuple[Subcommand, ...] = (
    *(LISTS["list"], LISTS["children"], LISTS["causes"], LISTS["running"], STACK, SHOW, WHY, LOGS, RESULT),
    *(START, SEND, ASK, DELETE_MESSAGE, MOVE_MESSAGE),
    *VERBS,
    NOTE,
    BULK,
    COMPARE,
    *(REPLAY, REPLAY_CHECK, EXPORT, IMPORT, PRUNE, DOCTOR, LINT, LISTS["workers"], LISTS["queues"]),
    *verb_command.subcommands(QUEUE, WORKFLOW),
    LISTS["limits"],
    *verb_command.subcommands(LIMIT),
    LISTS["rates"],
    *verb_command.subcommands(RATE),
    SCHEDULES,
    CREATE,
    *verb_command.subcommands(SCHEDULE),
)
