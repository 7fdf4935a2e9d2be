"""The declaration of operators' verbs, and the verbs on runs, each declared once.

A verb declares its subject, the operation that it calls, its options and its texts; `durable.operations.catalogue`
declares the verbs that do not act on runs. Admin pages, REST endpoints, subcommands and bulks are built from them; only
the surfaces know forms, serializers and parsers. Replays from a location with their plan, restarts with changes, and
messages are written by hand. The permission of a verb is in `durable.operations.audit.ACTIONS`, by its action.
`possible_verbs` says which verbs fit a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext_lazy as _

from durable.core.errors import RunNotFoundError
from durable.core.location import MAX_LOCATION
from durable.core.records import ENDED, WITH_WORKER, Request, RunState
from durable.core.registry import INTERNAL, is_stopped
from durable.core.summary import is_held
from durable.core.transitions import ALLOWED
from durable.models import Run
from durable.notifier.redis_clients import queue_names
from durable.operations.audit import PERMISSIONS, needed_by
from durable.operations.bulk_decisions import go_on, stop_here
from durable.operations.common import check_served
from durable.operations.lifecycle import abandon, cancel, move, pause, recover, resume, take_stack, wake
from durable.operations.options import Choice, Flag, Json, Option, Text
from durable.operations.replay import replay_failed
from durable.operations.settle import NOTHING, check_answer, settle, settle_held
from durable.operations.start import restart

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The kind of thing that verbs act on, found by its name. `path` is the REST address of the collection.

    `unknown` are the errors of a verb for an unknown name.
    """

    name: str
    path: str
    metavar: str = "NAME"
    unknown: type[Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb. `call(name, **options)` performs it; `action` is its name in the audit log.

    `word` is the end of its addresses, `command` the subcommand; both are the action's name unless given. Its page
    shows `title`, `does` and `done`. `over_rest` describes its endpoint; `{needs}` stands for the permissions. The
    command line shows `help` and `said`; `said` may name the options, and `result` for the value of `call`. Without
    `done` and `said`, the surface has a text of its own. `check(**options)` raises ValueError for options that do not
    go together; a page then marks the first one. A grave verb deletes its subject: `loses` says what is lost, and
    `asks` is the question of the command line.
    """

    action: str
    on: Subject
    word: str = ""
    command: str = ""
    call: Callable[..., Any]
    title: StrPromise
    does: StrPromise
    help: str
    over_rest: str = ""
    done: StrPromise | str = ""
    said: str = ""
    options: tuple[Option, ...] = ()
    check: Callable[..., object] | None = None
    is_grave: bool = False
    loses: str = ""
    asks: str = ""

    def __post_init__(self) -> None:
        name = self.action.replace("_", "-")
        object.__setattr__(self, "word", self.word or name)
        object.__setattr__(self, "command", self.command or name)

    @property
    def asked(self) -> list[Option]:
        """The options in the order of forms: required ones first."""
        return sorted(self.options, key=lambda each: not each.is_required)

    @property
    def needs(self) -> str:
        """The permissions, as named in the description of the endpoint."""
        return f"Needs {' and '.join(f'`durable.{each}`' for each in needed_by(self.action))}."


RUN: Final = Subject(name="run", path="runs", metavar="ID", unknown=RunNotFoundError)

LOCATION: Final = Text(
    name="location",
    longest=MAX_LOCATION,
    does="Of the step; empty for all that run.",
    on_shell="the attempt at this location only (default: all that run)",
    default="",
)


STEP: Final = Text(
    name="location",
    longest=MAX_LOCATION,
    shortest=1,
    label=_("Step"),
    does="Of the step that waits for a person.",
    on_shell="the step, as durable show names it",
)
PLACE: Final = Text(
    name="place",
    longest=MAX_LOCATION,
    does="The steps at this place of a cause only. Empty: those of the cause in the filter, or all that wait.",
    on_shell="the steps at this place of a cause only (default: those of --cause or --place, or all that wait)",
    default="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerb(Verb):
    """A verb on a run. `past` follows the number of runs on the command line; "" without a subcommand. `told` is what a
    chart of the run says of it, `of_workflow` what a page says that offers it for all open runs of a workflow.
    `is_followed`: a bulk counts the runs that fail again after it.

    With `makes_run`, `call` takes the new run's id as `as_id`, so that a page posted twice has one effect, and returns
    the new run. `call_of_many` and `options_of_many` stand in a bulk for `call` and `options`, if they differ there.
    """

    on: Subject = RUN
    past: str = ""
    told: StrPromise | None = None
    of_workflow: StrPromise | None = None
    is_followed: bool = True
    alias: str = ""
    makes_run: bool = False
    call_of_many: Callable[..., Any] | None = None
    options_of_many: tuple[Option, ...] | None = None
    confirm_title: StrPromise | None = None
    confirm_many_title: StrPromise | None = None

    @property
    def confirm(self) -> StrPromise:
        """The text of the button that applies the verb to one run.

        Unlike the title, it must not be the word for going back, such as Cancel.
        """
        return self.confirm_title or self.title

    @property
    def confirm_many(self) -> StrPromise:
        """The text of the button that applies the verb to many runs."""
        return self.confirm_many_title or self.title

    @property
    def flags(self) -> list[Flag]:
        return [each for each in self.options if isinstance(each, Flag)]

    @property
    def takes_answer(self) -> bool:
        """Whether a page asks for one of three answers, in place of the options."""
        return STEP in self.options

    @property
    def takes_location(self) -> bool:
        """Whether the verb may act on a single step of the run."""
        return LOCATION in self.options

    @property
    def fields(self) -> list[Option]:
        """The other options that a page asks for."""
        return [each for each in self.options if not isinstance(each, Flag) and each is not LOCATION]

    @property
    def of_many(self) -> tuple[Option, ...]:
        return self.options if self.options_of_many is None else self.options_of_many

    @property
    def placeholders(self) -> dict[str, str]:
        """The placeholders of options in a command: of the required ones, and of a value of JSON."""
        wanted = [each for each in self.options if each is not STEP and (each.is_required or isinstance(each, Json))]
        return {each.name: each.metavar or each.name.upper() for each in wanted}

    @property
    def arguments(self) -> list[str]:
        """The placeholders behind the run's id in a command."""
        return ["LOCATION"] if STEP in self.options else []

    def ticked(self, given: Mapping[str, Any]) -> dict[str, bool]:
        """Return the flags that are ticked in a submitted form, as arguments of `call`."""
        return {each.name: True for each in self.flags if given.get(each.name)}

    @property
    def permission(self) -> str:
        """The permission of the app durable that the verb needs."""
        return PERMISSIONS[self.action]


#: One of these is said: the answer of the person who knows.
_ANSWERS: Final = (
    Json(
        name="done",
        label=_("Result (JSON)"),
        help=_('What the step has returned or would have. For example {"id": 7}, "r-1" or null. Empty is null.'),
        does="It was done: its result, as the step would have returned it.",
        on_shell="it was done: its result, as the step would have returned it",
        metavar="JSON",
        default=NOTHING,
    ),
    Flag(
        name="not_done",
        label=_("It was not done: try it again"),
        does="It was not done: it is tried again.",
    ),
    Flag(name="fail", label=_("Fail the step"), does="The step fails."),
)


def _one_answer(*, location: str = "", place: str = "", **answers: Any) -> None:  # noqa: ARG001  # where, not what
    check_answer(**answers)


#: In the order in which the command line has them.
_ALL: Final = (
    RunVerb(
        action="recover",
        alias="retry",
        call=recover,
        title=_("Recover"),
        does=_(
            "What failed, or waits for a person, is tried again with all its attempts, and the run goes on from there. "
            "What had succeeded is not done again; what was compensated is."
        ),
        done=_("It goes on: what failed or waited for a person is tried again."),
        over_rest=(
            "Continue a failed run: what made it fail is tried again. {needs}\n\n"
            "Of an open run, the steps that wait for a person are tried again; `verify` is asked first about those of\n"
            "which nobody knows whether they were done."
        ),
        help=(
            "Continue failed runs: what made them fail is tried again; of open runs, what waits for a person. `retry` is an "
            "alias."
        ),
        past="recovered",
        told=_("recovered by %(who)s"),
    ),
    RunVerb(
        action="settle",
        call=settle,
        call_of_many=settle_held,
        is_grave=True,
        title=_("Settle"),
        confirm_title=_("Settle the step"),
        confirm_many_title=_("Settle the steps"),
        does=_(
            "A step of the run waits for a person. If it was done, give its result, and the run goes on with that. If it "
            "was not, it is tried again. Or the step fails. An answer cannot be taken back."
        ),
        done=_("The step is settled, and the run goes on."),
        over_rest=(
            "Settle a step that waits for a person: it was done, it was not, or it fails. {needs}\n\n"
            "Give one of `done`, `not_done` and `fail`. 409 if the step does not wait for a person."
        ),
        help="Settle steps that wait for a person: they were done, they were not, or they fail.",
        past="settled",
        told=_("settled by %(who)s"),
        options=(STEP, *_ANSWERS),
        options_of_many=(PLACE, *_ANSWERS),
        check=_one_answer,
    ),
    RunVerb(
        action="cancel",
        call=cancel,
        is_grave=True,
        title=_("Cancel"),
        confirm_title=_("Cancel the run"),
        confirm_many_title=_("Cancel the runs"),
        does=_("The run ends for good: at once if it waits, at its next operation if a worker has it."),
        done=_("It is cancelled, or will be at its next operation."),
        over_rest="End the run for good: a parked run at once, a running one at its next operation.\n\n{needs}",
        help="End runs for good: parked ones at once, running ones at their next operation.",
        past="cancelled, or asked to",
        told=_("cancelled by %(who)s"),
        options=(
            Flag(
                name="rollback",
                label=_("Compensate first"),
                help=_(
                    "The rollback handlers of its completed steps run, the newest first, before it ends. Children that "
                    "were started with rollback=True are compensated at their places; other completed children stay."
                ),
                does="Compensate first.",
                on_shell=(
                    "undo what was done: compensate before it ends, and children that were started with rollback=True "
                    "with it"
                ),
            ),
            Flag(
                name="interrupt",
                label=_("Interrupt the running step"),
                help=_(
                    "The attempts of steps that run now are abandoned, as at their timeouts. Otherwise the run ends when "
                    "they have ended."
                ),
                does="Abandon the attempts of steps that run.",
                on_shell="abandon the attempts of steps that run, instead of waiting for them",
            ),
        ),
    ),
    RunVerb(
        action="abandon",
        call=abandon,
        is_grave=True,
        title=_("Abandon the attempt"),
        does=_(
            "The worker interrupts the step as its timeout would. The attempt has failed then, and the step's own policy "
            "decides whether and when it is tried again. What the step has done elsewhere is not undone. A call that cannot be "
            "interrupted goes on: after ten seconds the run is taken from the worker, and the next attempt may run beside it."
        ),
        done=_("The worker was asked to end the attempt: look again in a few seconds."),
        over_rest=(
            "Abandon the attempts of steps that run: the worker interrupts them as their timeouts would.\n\n"
            "They have failed then, and the steps' own policies decide about the next attempts. {needs}"
        ),
        help="Abandon the attempts of steps that run now: their workers interrupt them as their timeouts would.",
        past="asked to be abandoned",
        options=(LOCATION,),
    ),
    RunVerb(
        action="take_stack",
        word="stack",
        command="stack",
        call=take_stack,
        title=_("Ask for the stack"),
        does=_(
            "The worker answers with the stack of the step: the files, lines and functions in which it is at that moment. "
            "The run goes on as it was."
        ),
        done=_("The worker was asked: it answers within a few seconds."),
        help="Ask the workers of runs for the stacks of their steps.",
        options=(LOCATION,),
    ),
    RunVerb(
        action="wake",
        call=wake,
        title=_("Wake now"),
        does=_(
            "The run gets a pass now, and steps that wait for their next try are tried at once. Sleeps and deadlines "
            "keep their time, unless you end the sleeps."
        ),
        done=_("It gets a pass now."),
        over_rest=(
            "Make the run due now and try steps in backoff at once; with `end_sleeps`, end its sleeps too.\n\n{needs}"
        ),
        help="Give runs a pass now, and try steps in backoff at once.",
        past="woken",
        told=_("woken by %(who)s"),
        options=(
            Flag(
                name="end_sleeps",
                label=_("End its sleeps too"),
                help=_("Sleeps that are under way count as slept; the code goes on as if they had passed."),
                does="End its sleeps, and not only its backoffs.",
                on_shell="end its sleeps too",
            ),
        ),
    ),
    RunVerb(
        action="move",
        call=move,
        title=_("Move to a queue"),
        confirm_title=_("Move the run"),
        confirm_many_title=_("Move the runs"),
        does=_(
            "The workers of the other queue take the run from now on. A worker that has it finishes its pass first. "
            "Children stay in their queues, and new ones come to those of their workflows."
        ),
        done=_("It is in the other queue."),
        over_rest=(
            "Put the run into another queue, whose workers take it from now on. {needs}\n\n"
            "A worker that has the run finishes its pass first. Children stay in their queues. 409 if the run has ended\n"
            "or is in that queue."
        ),
        help="Put runs into another queue, whose workers take them from now on. Children stay in their queues.",
        past="moved",
        told=_("moved to another queue by %(who)s"),
        is_followed=False,
        options=(
            Choice(
                name="queue",
                label=_("To the queue"),
                among=queue_names,
                check=check_served,
                does="The queue, one of the project's RQ_QUEUES.",
                on_shell="the queue that gets them, one of RQ_QUEUES",
            ),
        ),
    ),
    RunVerb(
        action="pause",
        call=pause,
        title=_("Pause"),
        does=_(
            "The run stops until it is resumed: at once if it waits, at its next operation if a worker has it. "
            "Deadlines go on running."
        ),
        done=_("It is paused, or will be at its next operation."),
        over_rest=(
            "Pause the run until it is resumed: a parked run at once, a running one at its next operation.\n\n{needs}"
        ),
        help="Stop runs until they are resumed.",
        past="paused, or asked to",
        told=_("paused by %(who)s"),
        is_followed=False,
        of_workflow=_("Pause the open runs of %(workflow)s"),
    ),
    RunVerb(
        action="resume",
        call=resume,
        title=_("Resume"),
        does=_("The run goes on where it was paused."),
        done=_("It goes on."),
        over_rest="Continue a paused run. {needs}",
        help="Let paused runs go on.",
        past="resumed",
        told=_("resumed by %(who)s"),
    ),
    RunVerb(
        action="restart",
        call=restart,
        makes_run=True,
        title=_("Start again"),
        does=_(
            "A new run of the same workflow begins with the same input, from the very start. This run stays as it is."
        ),
        done=_("A new run with the same input has begun; this is it."),
        help="Start new runs of the same workflows with the same input; prints their ids.",
        past="restarted",
    ),
    RunVerb(
        action="replay",
        command="replay-failed",
        call=replay_failed,
        makes_run=True,
        title=_("Replay"),
        does=_(
            "A new run begins with the records of the failed one up to where it failed, and goes on from there. The "
            "failed run stays as it is."
        ),
        done=_("A new run goes on from where this one failed; this is it."),
        help="Replay failed runs from where they failed, as new runs; prints their ids.",
        past="replayed",
        told=_("replayed by %(who)s"),
    ),
    RunVerb(
        action="go_on",
        call=go_on,
        title=_("Go on with the rest"),
        does=_("The bulk applies its verb to the rest of its runs, and does not wait for them."),
        done=_("It goes on with the rest."),
        over_rest=(
            "Continue a bulk that its canary has stopped with the rest of the runs, or with another canary.\n\n"
            "Needs `durable.operate_run`, and the permission of the bulk's verb."
        ),
        help="Continue bulks that their canary has stopped, with the rest of their runs.",
        past="continued",
        options=(
            Flag(
                name="canary",
                label=_("Try the next ones first"),
                help=_("As many as before are tried alone. The bulk stops again if they fail too."),
                does="Try the next runs alone first, as many as before.",
                on_shell="try the next runs alone first, as many as before; stop if they fail",
            ),
        ),
    ),
    RunVerb(
        action="stop_here",
        call=stop_here,
        title=_("Stop here"),
        does=_("The bulk ends. What it did stays done, and the rest of its runs are left alone."),
        done=_("It has stopped; the rest of its runs are left alone."),
        over_rest="End a bulk that its canary has stopped: the rest of the runs are left alone. {needs}",
        help="End bulks that their canary has stopped; the rest of their runs are left alone.",
        past="ended",
    ),
)
RUN_VERBS: Final = {each.action: each for each in _ALL}
#: The verbs that can be applied to many runs at once, as pages offer them.
BULK_ACTIONS: Final = ("recover", "settle", "replay", "wake", "pause", "resume", "cancel", "move")
#: The verbs that stop a run for a time, and with those that stop it for good.
HALTS: Final = ("pause",)
STOPS: Final = (*HALTS, "cancel")
#: The decisions about a bulk that its canary has stopped.
DECISIONS: Final = ("go_on", "stop_here")


def possible_verbs(run: Run) -> tuple[str, ...]:
    """Return the verbs that fit the run's current state, the likeliest first.

    For display, not for decisions: the verb itself decides again, under the run's lock.
    """
    is_asked_to_pause = run.pending_request == Request.PAUSE
    is_asked_to_cancel = run.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK)
    is_internal = run.workflow.startswith(INTERNAL)
    is_stopped_bulk = is_stopped(run.workflow, run.state, run.waiting_for)
    is_compensating = bool(run.state_after_rollback) or run.state == RunState.ROLLING_BACK
    has_held = run.state not in ENDED and is_held(run.summary)
    allowed = {verb: run.state in states for verb, states in ALLOWED.items()}
    possible = {
        **dict.fromkeys(DECISIONS, is_stopped_bulk),
        "settle": has_held,
        "recover": allowed["recover"] or has_held,
        "resume": allowed["resume"] or is_asked_to_pause,
        "wake": allowed["wake"],
        "send": run.state not in ENDED and not is_internal,
        "pause": allowed["pause"] and not is_asked_to_pause,
        "cancel": allowed["cancel"] and not is_compensating and not is_asked_to_cancel,
        "abandon": run.state in WITH_WORKER
        and run.lease_expires_at is not None,  # the activities say whether a step runs
        "replay": run.started_at is not None
        and not is_internal,  # the plan says whether a replay from a certain step is possible
        "restart": not is_internal,
        "move": allowed["move"] and any(each != run.queue for each in queue_names()),
    }
    return tuple(verb for verb, is_possible in possible.items() if is_possible)
