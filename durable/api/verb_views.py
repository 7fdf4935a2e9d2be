"""The endpoints of the verbs of `durable.operations.catalogue` and `run_verbs`.

Each checks the permission, calls its verb once, and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from django.urls import URLPattern, path
from rest_framework.request import Request

from durable.api.actions import ActionForm, ActionView, StepForm
from durable.api.base import View
from durable.api.fields import Form, VerbForm, form_of, serializer_of
from durable.api.idempotent import Done, answered
from durable.api.schedules import BackfillForm, EditScheduleForm, ScheduleBase, ScheduleForm, found_schedule, missing
from durable.api.schema import described
from durable.inspection.humanize import sentence
from durable.listings.access import actor_of, admit, seen_of
from durable.listings.answers import Answer, answer_of
from durable.listings.problems import ProblemError
from durable.listings.runs import RunReference
from durable.listings.shapes import data_of
from durable.operations import catalogue
from durable.operations.audit import acting_as
from durable.operations.catalogue import SCHEDULE
from durable.operations.schedules import verbs as schedules
from durable.operations.verbs import RUN_VERBS, RunVerb, Subject, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """Special parts of a verb: its form, and how the operation is called with the form's values."""

    form: type[Form]
    call: Callable[..., Any]


#: The names and descriptions of the forms in the document. A verb without options has the form of its subject.
_FORMS: Final = {
    "wake": ("WakeForm", "The options of wake."),
    "cancel": ("CancelForm", "The options of cancel."),
    "settle": ("SettleForm", "The step, and one answer."),
    "move": ("MoveForm", "The queue that gets the run."),
    "go_on": ("GoOnForm", "The options of going on with a bulk."),
    "run_schedule": ("RunScheduleForm", "A tick for the present time."),
    "override_schedule": ("OverrideForm", "The operator's rule."),
    "set_limit": ("SetLimitForm", "The number of slots, and the reason."),
    "take_back_limit": ("TakeBackLimitForm", "The reason."),
    "set_rate": ("SetRateForm", "The rate, and the reason."),
    "take_back_rate": ("TakeBackRateForm", "The reason."),
    "close_limit": ("CloseLimitForm", "Until when, the key, and the reason."),
    "open_limit": ("OpenLimitForm", "The key, and the reason."),
    "restored": ("RestoredForm", "What becomes of the open runs, and the reason."),
}


def _backfilled(name: str, *, since: datetime, until: datetime, dry_run: bool) -> Any:
    planned = schedules.plan_backfill(name, since, until)
    ticks = [] if dry_run else schedules.backfill(name, since, until)
    return SimpleNamespace(moments=planned.moments, existing=planned.existing, ticks=ticks)


def _edited(name: str, **given: Any) -> None:
    schedules.edit(name, no_window="window" in given and given["window"] is None, **given)


def _deleted(name: str) -> Any:
    found = found_schedule(name)
    schedules.delete(name)
    return found


_SPECIAL: Final[Mapping[str, Special]] = {
    "backfill_schedule": Special(form=BackfillForm, call=_backfilled),
    "edit_schedule": Special(form=EditScheduleForm, call=_edited),
    "delete_schedule": Special(form=ScheduleForm, call=_deleted),
}


#: The names of operations in the document that are not those of the actions.
_OPERATIONS: Final = {
    "hold_starts": "hold_workflow",
    "release_starts": "release_workflow",
    "abandon": "abandon_attempt",
    "restored": "decide_about_restored_database",
    "settle": "settle_step",
    "go_on": "go_on_with_bulk",
    "stop_here": "stop_bulk_here",
}


class HoldForm(VerbForm):
    """The reason."""


class VerbView(View):
    """A verb."""

    about = "surroundings"
    verb: ClassVar[Verb]
    takes: ClassVar[type[Form]]
    answer: ClassVar[Answer]
    call: ClassVar[Callable[..., Any]]

    def perform(self, request: Request, name: str) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        admit(request, self.verb.action, "")
        given = self.form(self.takes, request)
        reason, seen = given.pop("reason"), given.pop("revision", None)

        def done() -> Done:
            try:
                result = self.call(name, **given)
            except self.verb.on.unknown as error:
                raise self.missing(name, error) from None
            except (TypeError, ValueError) as error:
                raise ProblemError("arguments-refused", 422, sentence(error)) from None
            caller = seen_of(request)
            if (shown := self.answer.shown(caller, name, result)) is None:
                raise self.missing(name, self.verb.on.unknown(name))
            return Done(data=data_of(self.answer.shape, shown, caller))

        with acting_as(actor_of(request), reason=reason, expected=seen):
            return answered(request, done)

    def missing(self, name: str, error: Exception) -> ProblemError:
        """Return the answer for an unknown name."""
        return ProblemError("not-found", 404, sentence(error))


class ScheduleVerbView(VerbView, ScheduleBase):
    """A verb on a schedule."""

    about = "schedules"

    def missing(self, name: str, error: Exception) -> ProblemError:
        return missing(name)


def endpoints(*subjects: Subject) -> Iterator[URLPattern]:
    """Yield the addresses of the verbs on these subjects."""
    for verb in catalogue.VERBS:
        if verb.on in subjects:
            yield path(f"{verb.on.path}/<path:name>/{verb.word}", _view_of(verb).as_view(), name=verb.command)


def run_endpoints() -> Iterator[URLPattern]:
    """Yield the addresses of the verbs on runs, except those written by hand."""
    for verb in RUN_VERBS.values():
        if verb.over_rest:
            yield path(f"{verb.on.path}/<str:run_id>/{verb.word}", _view_of_run(verb).as_view(), name=verb.word)


def _view_of_run(verb: RunVerb) -> type[ActionView]:
    takes: type[Form] = StepForm if verb.takes_location else ActionForm
    if verb.action in _FORMS:
        takes = form_of(*_FORMS[verb.action], ActionForm, *verb.options, check=verb.check)

    def post(self: ActionView, request: Request, run_id: str) -> HttpResponse:
        return self.perform(request, run_id)

    post.__doc__ = verb.over_rest.format(needs=verb.needs)
    operation = _OPERATIONS.get(verb.action, f"{verb.action}_run")
    described_post = described(operation_id=operation, request=takes, responses=serializer_of(RunReference))(post)
    return type("RunVerbView", (ActionView,), {"action": verb.action, "takes": takes, "post": described_post})


def _view_of(verb: Verb) -> type[VerbView]:
    is_schedule = verb.on is SCHEDULE
    base, form = (ScheduleVerbView, ScheduleForm) if is_schedule else (VerbView, HoldForm)
    special, answer = _SPECIAL.get(verb.action), answer_of(verb)
    takes: type[Form] = form if special is None else special.form
    if verb.action in _FORMS:
        takes = form_of(*_FORMS[verb.action], ScheduleForm if is_schedule else VerbForm, *verb.options)

    def post(self: VerbView, request: Request, name: str) -> HttpResponse:
        return self.perform(request, name)

    post.__doc__ = verb.over_rest.format(needs=verb.needs)
    operation = _OPERATIONS.get(verb.action, verb.action)
    described_post = described(operation_id=operation, request=takes, responses=serializer_of(answer.shape))(post)
    call = staticmethod(verb.call if special is None else special.call)
    members = {"verb": verb, "takes": takes, "answer": answer, "call": call, "post": described_post}
    return type("VerbView", (base,), members)
