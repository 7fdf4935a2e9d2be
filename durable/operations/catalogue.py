"""The verbs on queues, workflows, limits, rates, schedules and the database, each declared once.

`durable.admin.verb_page`, `durable.api.verb_views` and `durable.cli.verb_command` build the page, the endpoint and the
subcommand of each verb.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.utils.translation import gettext_lazy as _

from durable.core.errors import ScheduleNotFoundError, UnknownLimitError
from durable.core.limits.rates import MOST_UNITS, Rate
from durable.operations import holds, limits, rates, restored
from durable.operations.options import Flag, Number, OneOf, Text, Until
from durable.operations.schedules import verbs as schedules
from durable.operations.verbs import Subject, Verb
from durable.schedules import read_rules
from durable.schedules.rules import check_zone

QUEUE: Final = Subject(name="queue", path="queues", metavar="QUEUE", unknown=ValueError)
WORKFLOW: Final = Subject(name="workflow", path="workflows", metavar="WORKFLOW", unknown=ValueError)
LIMIT: Final = Subject(name="limit", path="limits", unknown=UnknownLimitError)
RATE: Final = Subject(name="rate", path="limits", unknown=UnknownLimitError)
SCHEDULE: Final = Subject(name="schedule", path="schedules", unknown=ScheduleNotFoundError)
DATABASE: Final = Subject(name="database", path="database", unknown=ValueError)

RULE: Final = Text(
    name="rule",
    longest=1_000,
    check=read_rules,
    label=_("Rule"),
    help=_('Five cron fields ("30 2 * * *") or an interval ("every 6 hours"). Several: with semicolons.'),
    does='"30 2 * * *", "every 6 hours"; several with semicolons.',
    on_shell='"30 2 * * *" or "every 6 hours"; several with semicolons',
)
ZONE: Final = Text(
    name="zone",
    longest=100,
    check=check_zone,
    label=_("Zone"),
    help=_('Of local times: "Europe/Berlin", "UTC".'),
    does='Of local times: "Europe/Berlin".',
    on_shell="another zone than the code's",
    default=None,
)


def _close(name: str, *, until: datetime, key: str) -> datetime:
    rates.close_limit(name, until, key=key)
    return until


def _key(on_shell: str) -> Text:
    return Text(
        name="key",
        label=_("Key"),
        help=_("Empty: all keys."),
        does="This key alone. Empty: all keys.",
        on_shell=on_shell,
        default="",
    )


VERBS: Final = (
    Verb(
        action="pause_queue",
        on=QUEUE,
        word="pause",
        call=holds.pause_queue,
        title=_("Pause the queue"),
        does=_("No worker takes its runs until it is resumed. Passes that are under way go on to their next park."),
        done=_("The queue is paused."),
        over_rest=(
            "Let no worker take runs of this queue until it is resumed. {needs}\n\n"
            "Passes that are under way go on to their next park. 409 if the queue is paused already."
        ),
        help="Let no worker take runs of a queue until it is resumed.",
        said='The queue "{name}" is paused. Passes under way go on to their next park.',
    ),
    Verb(
        action="resume_queue",
        on=QUEUE,
        word="resume",
        call=holds.resume_queue,
        title=_("Resume the queue"),
        does=_("Workers take its runs again, at once."),
        done=_("The queue is resumed."),
        over_rest="Let workers take runs of this queue again, at once. {needs}\n\n409 if the queue is not paused.",
        help="Let workers take runs of a paused queue again, at once.",
        said='The queue "{name}" is resumed.',
    ),
    Verb(
        action="hold_starts",
        on=WORKFLOW,
        word="hold",
        command="hold",
        call=holds.hold_starts,
        title=_("Hold new starts"),
        does=_("New runs are accepted and wait, paused, until the workflow is released. Runs that exist go on."),
        done=_("New starts are held."),
        over_rest=(
            "Let new runs of this workflow wait, paused, until it is released. {needs}\n\n"
            "Starts are accepted, and runs that exist go on. 409 if the workflow is held already."
        ),
        help="Let new runs of a workflow wait, paused, until it is released.",
        said='New starts of the workflow "{name}" are held. Runs that exist go on.',
    ),
    Verb(
        action="release_starts",
        on=WORKFLOW,
        word="release",
        command="release",
        call=holds.release_starts,
        title=_("Release new starts"),
        does=_("New runs start again. Those that the hold has paused are resumed, and no others."),
        done=_("New starts are released."),
        over_rest=(
            "Resume the runs that the hold has paused, and let new ones start. {needs}\n\n"
            "409 if the workflow is not held."
        ),
        help="Resume the runs that a hold has paused, and let new ones start.",
        said='New starts of the workflow "{name}" are released; {result} resumed.',
    ),
    Verb(
        action="set_limit",
        on=LIMIT,
        word="set",
        call=limits.set_limit,
        title=_("Set the number"),
        does=_(
            "Runs that wait go on within about a second if there are more slots. With fewer, runs that hold a slot keep it. The "
            "number survives deploys."
        ),
        done=_("The number is set."),
        over_rest=(
            "Let a limit allow so many slots of each key, whatever the code says. {needs}\n\n"
            "With a higher number, runs that wait go on within about a second. With a lower one, runs that hold a slot keep\n"
            "it."
        ),
        help="Let a limit allow another number of slots, while runs hold some and wait for others.",
        said='The limit "{name}" allows {at_once} at once, deploys included.',
        options=(
            Number(
                name="at_once",
                label=_("Slots at once, of each key"),
                does="How many slots of each key may be held at once.",
                least=0,
                most=999_999,
            ),
        ),
    ),
    Verb(
        action="take_back_limit",
        on=LIMIT,
        word="take-back",
        call=limits.take_back_limit,
        title=_("Take the number back"),
        does=_("The limit allows what the code says again."),
        done=_("The limit allows what the code says."),
        over_rest="Let a limit allow the number again that the code says. {needs}",
        help="Let a limit allow the number of slots again that the code gives it.",
        said='The limit "{name}" allows what the code says again.',
    ),
    Verb(
        action="set_rate",
        on=RATE,
        call=rates.set_rate,
        title=_("Set the rate"),
        does=_("Attempts that wait are given new moments, in their order. The rate survives deploys."),
        done=_("The rate is set."),
        over_rest=(
            "Let a limit have this rate, whatever the code says. {needs}\n\n"
            "The attempts that wait are given new moments, in their order."
        ),
        help="Let a limit have another rate, while attempts wait for their moments.",
        said='The limit "{name}" has the rate {rate}, deploys included.',
        options=(
            Text(
                name="rate",
                label=_("Units in each period"),
                help=_('Such as "500/min" or "1/30 s".'),
                does='How many units may begin in each period, such as "500/min" or "1/30 s".',
                on_shell='how many units may begin in each period, such as "500/min"',
            ),
            Number(
                name="burst",
                label=_("Units at once after a pause"),
                does="How many units may begin at once after a pause.",
                default=1,
                least=1,
                most=MOST_UNITS,
            ),
        ),
        check=Rate.of,
    ),
    Verb(
        action="take_back_rate",
        on=RATE,
        call=rates.take_back_rate,
        title=_("Take the rate back"),
        does=_("The limit has the rate again that the code says."),
        done=_("The limit has the rate that the code says."),
        over_rest="Let a limit have the rate again that the code says. {needs}",
        help="Let a limit have the rate again that the code gives it.",
        said='The limit "{name}" has the rate again that the code says.',
    ),
    Verb(
        action="close_limit",
        on=RATE,
        word="close",
        call=_close,
        title=_("Close"),
        does=_("Nothing begins before the limit is open again. Attempts that have begun go on."),
        done=_("The limit is closed."),
        over_rest=(
            "Let nothing of a limit's rate begin before a moment. {needs}\n\n"
            "Attempts that have begun go on. A closing replaces the one before."
        ),
        help="Let nothing of a limit's rate begin for a time.",
        said='The limit "{name}" is closed until {result}.',
        options=(
            _key("close this key alone"),
            Until(
                name="until",
                label=_("For how long"),
                help=_('Such as "10 minutes".'),
                does="Nothing begins before this moment.",
                on_shell='for how long, such as "10 minutes"',
            ),
        ),
    ),
    Verb(
        action="open_limit",
        on=RATE,
        word="open",
        call=rates.open_limit,
        title=_("Open"),
        does=_("Attempts that wait begin at the rate of the limit."),
        done=_("The limit is open."),
        over_rest="End the closing of a limit: attempts that wait begin at its rate. {needs}",
        help="Open a limit that is closed: attempts that wait begin at its rate.",
        said='The limit "{name}" is open.',
        options=(_key("open this key, which was closed alone"),),
    ),
    Verb(
        action="edit_schedule",
        on=SCHEDULE,
        word="edit",
        call=schedules.edit,
        title=_("Edit"),
        does=_("Its next moment follows from the new rule."),
        done=_("The schedule is changed."),
        over_rest="Change a schedule that operators own; what is left out stays.\n\n{needs}",
        help="Change a schedule that operators own; what is not given stays.",
        said='The schedule "{name}" is changed; its next moment is {result.next_at}.',
    ),
    Verb(
        action="pause_schedule",
        on=SCHEDULE,
        word="pause",
        call=schedules.pause,
        title=_("Pause"),
        does=_("It starts nothing until it is resumed. Its runs go on. The moments of the pause are not made up for."),
        done=_("The schedule is paused."),
        over_rest="Let the schedule start nothing until it is resumed. {needs}",
        help="Let a schedule start nothing until it is resumed.",
        said='The schedule "{name}" is paused. Its runs go on.',
    ),
    Verb(
        action="resume_schedule",
        on=SCHEDULE,
        word="resume",
        call=schedules.resume,
        title=_("Resume"),
        does=_("It ticks again, from its next moment on."),
        done=_("The schedule is resumed."),
        over_rest="Let the schedule tick again, from its next moment on. {needs}",
        help="Let a paused schedule tick again, from its next moment on.",
        said='The schedule "{name}" is resumed; its next moment is {result.next_at}.',
    ),
    Verb(
        action="run_schedule",
        on=SCHEDULE,
        word="run",
        call=schedules.run_now,
        title=_("Run now"),
        does=_("A tick for the present time. Its next moment stays as it is."),
        over_rest=(
            "Tick the schedule now, by its `overlap` unless `force` is given. {needs}\n\n"
            "The outcome says whether a run was started."
        ),
        help="Tick a schedule now; prints the id of the run.",
        options=(
            Flag(
                name="force",
                label=_("Start it even if the run of an earlier tick has not ended, whatever “overlap” says"),
                does="Start it whatever `overlap` says.",
                on_shell="whatever overlap says: start it beside a run that runs",
            ),
        ),
    ),
    Verb(
        action="backfill_schedule",
        on=SCHEDULE,
        word="backfill",
        command="backfill",
        call=schedules.backfill,
        title=_("Backfill"),
        does=_("Start the run of each moment of a period in the past that has none. They begin at once."),
        over_rest="Start the runs of a period's moments that have none, at most 200. {needs}",
        help="Start the runs of a period in the past that have none.",
    ),
    Verb(
        action="override_schedule",
        on=SCHEDULE,
        word="override",
        call=schedules.override,
        title=_("Override the rule"),
        does=_("This rule is in force instead of the code's, after deploys too, until it is taken back."),
        done=_("The rule is overridden until it is taken back."),
        over_rest="Put a rule in force instead of the code's, until it is taken back. {needs}",
        help="Put a rule in force instead of the code's.",
        said='The rule of "{name}" is {result.rules.text} until it is taken back; next: {result.next_at}.',
        options=(RULE, ZONE),
    ),
    Verb(
        action="take_back_override",
        on=SCHEDULE,
        word="take-back",
        call=schedules.take_back,
        title=_("Take the override back"),
        does=_("The code's rule is in force again."),
        done=_("The code's rule is in force again."),
        over_rest="Put the code's rule in force again. {needs}",
        help="Put the code's rule in force again.",
        said='The rule of "{name}" is the code\'s again: {result.rule}; next: {result.next_at}.',
    ),
    Verb(
        action="delete_schedule",
        on=SCHEDULE,
        word="delete",
        call=schedules.delete,
        title=_("Delete"),
        does=_("The schedule and its ticks are deleted for good. Its runs stay."),
        done=_("The schedule is deleted. Its runs stay."),
        over_rest=(
            "Delete a schedule that operators own, and its ticks; return it as it was. {needs}\n\nIts runs stay."
        ),
        help="Delete a schedule that operators own. Its runs stay.",
        said='The schedule "{name}" is deleted. Its runs stay.',
        is_grave=True,
        loses="the schedule and its ticks are deleted for good",
        asks="Delete the schedule {name} and its ticks?",
    ),
    Verb(
        action="restored",
        on=DATABASE,
        call=restored.decide,
        title=_("Decide about the restored database"),
        does=_(
            "Workers claim runs again. What open runs did outside of the database in the lost time, they do again, unless they "
            "are paused first: then look at each, and resume or cancel it. Or each asks about its next steps before it does "
            "them: their verify, or a person."
        ),
        done=_("It is decided. Workers go on by themselves within seconds, or once that is done with all open runs."),
        over_rest=(
            "Let workers claim runs again in a database that went back in time. {needs}\n\n"
            "With `hold` all open runs are paused first. With `unknown` they go on, and the outcome of their next steps that\n"
            "are not atomic counts as unknown: `verify` is asked, or a person. Many runs are paused or marked by the sweep,\n"
            "and workers wait for that. 409 if\n"
            "there is nothing to decide, if another database with this name is in use, or if the mark cannot be read."
        ),
        help="Show whether the database went back in time, with the runs that do things again, and decide about them.",
        options=(
            OneOf(
                name="how",
                label=_("What becomes of its open runs"),
                does="What becomes of the open runs.",
                words={
                    "hold": _("They are paused first"),
                    "unknown": _("They go on, and ask about their next steps first"),
                    "go_on": _("They go on"),
                },
            ),
            Flag(
                name="as_copy",
                label=_("This database is a copy of another one that goes on: give it a name of its own"),
                does="This database is a copy of another one that goes on: it gets a name of its own.",
            ),
        ),
    ),
)
BY_ACTION: Final = {each.action: each for each in VERBS}
