"""The verbs as pages offer them: the title, the effect, and the options beside the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext_lazy as _

from durable import operations
from durable.operations.audit import PERMISSIONS
from durable.operations.bulk_decisions import go_on, stop_here
from durable.operations.replay import replay_failed

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A checkbox of a verb's page."""

    name: str
    label: StrPromise
    help: StrPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb on a page.

    `does` describes the effect in a sentence. `perform(run_id, token, **options)` returns the id of the run to show
    next; `token` belongs to the page, so that posting the page twice has one effect. With `takes_location` the page may
    be about one step, whose location is an option of `perform`.
    """

    name: str
    title: StrPromise
    done: StrPromise
    does: StrPromise
    perform: Callable[..., str]
    options: tuple[Option, ...] = ()
    is_grave: bool = False
    takes_location: bool = False
    confirm_title: StrPromise | None = None
    confirm_many_title: StrPromise | None = None

    @property
    def confirm(self) -> StrPromise:
        """The text of the button that applies the verb to one run: unlike the title never the word for going back."""
        return self.confirm_title or self.title

    @property
    def confirm_many(self) -> StrPromise:
        """The same for many runs."""
        return self.confirm_many_title or self.title

    def ticked(self, given: Mapping[str, Any]) -> dict[str, bool]:
        """Return the options whose boxes are ticked in a sent form, as `perform` takes them."""
        return {option.name: True for option in self.options if given.get(option.name)}

    @property
    def permission(self) -> str:
        """The permission, of the app durable, that the verb needs."""
        return PERMISSIONS[self.name]


def _recover(run_id: str, _token: str) -> str:
    operations.recover(run_id)
    return run_id


def _wake(run_id: str, _token: str, **options: Any) -> str:
    operations.wake(run_id, **options)
    return run_id


def _pause(run_id: str, _token: str) -> str:
    operations.pause(run_id)
    return run_id


def _resume(run_id: str, _token: str) -> str:
    operations.resume(run_id)
    return run_id


def _cancel(run_id: str, _token: str, **options: Any) -> str:
    operations.cancel(run_id, **options)
    return run_id


def _abandon(run_id: str, _token: str, **options: Any) -> str:
    operations.abandon(run_id, **options)
    return run_id


def _take_stack(run_id: str, _token: str, **options: Any) -> str:
    operations.take_stack(run_id, **options)
    return run_id


def _restart(run_id: str, token: str) -> str:
    return operations.restart(run_id, as_id=token).id


def _go_on(run_id: str, _token: str, **options: Any) -> str:
    go_on(run_id, **options)
    return run_id


def _stop_here(run_id: str, _token: str) -> str:
    stop_here(run_id)
    return run_id


def _replay(run_id: str, token: str) -> str:
    return replay_failed(run_id, as_id=token).id


VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb(
            name="recover",
            title=_("Recover"),
            done=_("It goes on: what failed is tried again."),
            does=_(
                "What made the run fail is tried again, with all its attempts, and the run goes on from there. What had "
                "succeeded is not done again; what was compensated is."
            ),
            perform=_recover,
        ),
        Verb(
            name="resume",
            title=_("Resume"),
            done=_("It goes on."),
            does=_("The run goes on where it was paused."),
            perform=_resume,
        ),
        Verb(
            name="wake",
            title=_("Wake now"),
            done=_("It gets a pass now."),
            does=_(
                "The run gets a pass now, and steps that wait for their next try are tried at once. Sleeps and deadlines "
                "keep their time, unless you end the sleeps."
            ),
            perform=_wake,
            options=(
                Option(
                    name="end_sleeps",
                    label=_("End its sleeps too"),
                    help=_("Sleeps that are under way count as slept; the code goes on as if they had passed."),
                ),
            ),
        ),
        Verb(
            name="pause",
            title=_("Pause"),
            done=_("It is paused, or will be at its next operation."),
            does=_(
                "The run stops until it is resumed: at once if it waits, at its next operation if a worker has it. "
                "Deadlines go on running."
            ),
            perform=_pause,
        ),
        Verb(
            name="cancel",
            title=_("Cancel"),
            confirm_title=_("Cancel the run"),
            confirm_many_title=_("Cancel the runs"),
            done=_("It is cancelled, or will be at its next operation."),
            does=_("The run ends for good: at once if it waits, at its next operation if a worker has it."),
            perform=_cancel,
            options=(
                Option(
                    name="rollback",
                    label=_("Compensate first"),
                    help=_(
                        "The rollback handlers of its completed steps run, the newest first, before it ends. Children that "
                        "were started with rollback=True are compensated at their places; other completed children stay."
                    ),
                ),
                Option(
                    name="interrupt",
                    label=_("Interrupt the running step"),
                    help=_(
                        "The attempts of steps that run now are abandoned, as at their timeouts. Otherwise the run ends when "
                        "they have ended."
                    ),
                ),
            ),
            is_grave=True,
        ),
        Verb(
            name="abandon",
            title=_("Abandon the attempt"),
            done=_("The worker was asked to end the attempt: look again in a few seconds."),
            does=_(
                "The worker interrupts the step as its timeout would. The attempt has failed then, and the step's own policy "
                "decides whether and when it is tried again. What the step has done elsewhere is not undone. A call that cannot be "
                "interrupted goes on: after ten seconds the run is taken from the worker, and the next attempt may run beside it."
            ),
            perform=_abandon,
            is_grave=True,
            takes_location=True,
        ),
        Verb(
            name="take_stack",
            title=_("Ask for the stack"),
            done=_("The worker was asked: it answers within a few seconds."),
            does=_(
                "The worker answers with the stack of the step: the files, lines and functions in which it is at that moment. "
                "The run goes on as it was."
            ),
            perform=_take_stack,
            takes_location=True,
        ),
        Verb(
            name="restart",
            title=_("Start again"),
            done=_("A new run with the same input has begun; this is it."),
            does=_(
                "A new run of the same workflow begins with the same input, from the very start. This run stays as it is."
            ),
            perform=_restart,
        ),
        Verb(
            name="replay",
            title=_("Replay"),
            done=_("A new run goes on from where this one failed; this is it."),
            does=_(
                "A new run begins with the records of the failed one up to where it failed, and goes on from there. The "
                "failed run stays as it is."
            ),
            perform=_replay,
        ),
        Verb(
            name="go_on",
            title=_("Go on with the rest"),
            done=_("It goes on with the rest."),
            does=_("The bulk applies its verb to the rest of its runs, and does not wait for them."),
            perform=_go_on,
            options=(
                Option(
                    name="canary",
                    label=_("Try the next ones first"),
                    help=_("As many as before are tried alone. The bulk stops again if they fail too."),
                ),
            ),
        ),
        Verb(
            name="stop_here",
            title=_("Stop here"),
            done=_("It has stopped; the rest of its runs are left alone."),
            does=_("The bulk ends. What it did stays done, and the rest of its runs are left alone."),
            perform=_stop_here,
        ),
    )
}

#: The verbs that can be applied to many runs at once.
BULK: Final = ("recover", "replay", "wake", "pause", "resume", "cancel")
