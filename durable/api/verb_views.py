"""The endpoints of verbs: on runs (`durable.operations.verbs`), and on queues, workflows, limits, rates and schedules
(`durable.operations.catalogue`).

Each checks the permission, calls its verb once, and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from django.urls import URLPattern, path
from rest_framework.request import Request

from durable.api.base import View, link
from durable.api.fields import Form, VerbForm, form_of, option_field, serializer_of
from durable.api.requests import Done, answered
from durable.api.schedules import BackfillForm, EditScheduleForm, ScheduleBase, ScheduleForm
from durable.api.schema import described
from durable.listings.access import admit
from durable.listings.answers import acting_for, answer_of, perform
from durable.operations import catalogue
from durable.operations.catalogue import SCHEDULE
from durable.operations.schedules import verbs as schedules
from durable.operations.verbs import LOCATION, RUN, RUN_VERBS, RunVerb, Subject, Verb


class ActionForm(VerbForm):
    """The reason, and the expected revision of the run."""


class StepForm(ActionForm):
    """The step that the action is about."""

    location = option_field(LOCATION)


class HoldForm(VerbForm):
    """The reason."""


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


#: The form of a verb that has one of its own, and the function that is called with the form's values.
_SPECIAL: Final[Mapping[str, tuple[type[Form], Callable[..., Any]]]] = {
    "backfill_schedule": (BackfillForm, _backfilled),
    "edit_schedule": (EditScheduleForm, _edited),
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


class VerbView(View):
    about = "surroundings"
    verb: ClassVar[Verb]
    takes: ClassVar[type[Form]]
    call: ClassVar[Callable[..., Any]]

    def perform(self, request: Request, name: str) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        of_run = self.verb.on is RUN
        admit(request, self.verb.action, name if of_run else "")
        given = self.form(self.takes, request)

        def done() -> Done:
            data = perform(request, self.verb, name, given, self.call)
            return Done(data=data, location=link(request, "run", run_id=name) if of_run else "")

        with acting_for(request, self.verb, given):
            return answered(request, done)


class RunVerbView(VerbView):
    about = "actions"


class ScheduleVerbView(VerbView, ScheduleBase):
    about = "schedules"


def endpoints(*subjects: Subject) -> Iterator[URLPattern]:
    """Yield the addresses of the verbs on these subjects."""
    for verb in catalogue.VERBS:
        if verb.on in subjects:
            yield path(f"{verb.on.path}/<path:name>/{verb.word}", _view_of(verb).as_view(), name=verb.command)


def run_endpoints() -> Iterator[URLPattern]:
    """Yield the addresses of the verbs on runs, except those written by hand."""
    for verb in RUN_VERBS.values():
        if verb.over_rest:
            yield path(f"{verb.on.path}/<str:run_id>/{verb.word}", _view_of(verb).as_view(), name=verb.word)


def _bases(verb: Verb) -> tuple[type[VerbView], type[Form], type[Form]]:
    """Return the class of the view, the form of a verb without options, and the form that options are added to."""
    if isinstance(verb, RunVerb):
        return RunVerbView, StepForm if verb.takes_location else ActionForm, ActionForm
    return (ScheduleVerbView, ScheduleForm, ScheduleForm) if verb.on is SCHEDULE else (VerbView, HoldForm, VerbForm)


def _view_of(verb: Verb) -> type[VerbView]:
    view, form, base = _bases(verb)
    takes, call = _SPECIAL.get(verb.action, (form, verb.call))
    if verb.action in _FORMS:
        check = verb.check if verb.on is RUN else None  # other operations refuse such options themselves, with 422
        takes = form_of(*_FORMS[verb.action], base, *verb.options, check=check)

    def post(self: VerbView, request: Request, **found: str) -> HttpResponse:
        return self.perform(request, *found.values())

    post.__doc__ = verb.over_rest.format(needs=verb.needs)
    operation = _OPERATIONS.get(verb.action, f"{verb.action}_run" if verb.on is RUN else verb.action)
    answers = serializer_of(answer_of(verb).shape)
    described_post = described(operation_id=operation, request=takes, responses=answers)(post)
    members = {"verb": verb, "takes": takes, "call": staticmethod(call), "post": described_post}
    return type("VerbView", (view,), members)
