"""The endpoints of the verbs on what has a name: each checks the permission, calls its verb once, and answers.

The verbs are those of `durable.operations.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from django.urls import URLPattern, path
from rest_framework import serializers
from rest_framework.request import Request

from durable.api.access import actor_of, admit, is_limited
from durable.api.idempotent import Done, answered
from durable.api.problems import ProblemError
from durable.api.schema import described
from durable.api.serializers.fields import Form, Moment, Text
from durable.api.serializers.holds import HoldSerializer, ReleaseSerializer
from durable.api.serializers.limits import LimitSerializer
from durable.api.serializers.rates import RateSerializer
from durable.api.views.base import View
from durable.api.views.limits import found_limit
from durable.api.views.rates import found_rate
from durable.core.ids import MAX_ID, MAX_REASON
from durable.operations import catalogue
from durable.operations.audit import acting_as
from durable.operations.catalogue import LIMIT, RATE, Number, Option, Subject, Until, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a verb: its shape, and what is shown of the request, the name and what the verb has returned."""

    shape: type[serializers.Serializer[Any]]
    shown: Callable[[Request, str, Any], Any]


def _released(_request: Request, name: str, resumed: int | None) -> dict[str, Any]:
    return {"name": name, "resumed": None if resumed and is_limited() else resumed or 0}


_HELD: Final = Answer(shape=HoldSerializer, shown=lambda _request, _name, hold: hold)
_RELEASED: Final = Answer(shape=ReleaseSerializer, shown=_released)
#: By the action, or by the subject.
_ANSWERS: Final[Mapping[str | Subject, Answer]] = {
    "pause_queue": _HELD,
    "hold_starts": _HELD,
    "resume_queue": _RELEASED,
    "release_starts": _RELEASED,
    LIMIT: Answer(shape=LimitSerializer, shown=lambda request, name, _done: found_limit(request, name)),
    RATE: Answer(shape=RateSerializer, shown=lambda request, name, _done: found_rate(request, name)),
}
#: The names and the descriptions of the forms in the document.
_FORMS: Final = {
    "set_limit": ("SetLimitForm", "The number of slots, and the reason."),
    "take_back_limit": ("TakeBackLimitForm", "The reason."),
    "set_rate": ("SetRateForm", "The rate, and the reason."),
    "take_back_rate": ("TakeBackRateForm", "The reason."),
    "close_limit": ("CloseLimitForm", "Until when, the key, and the reason."),
    "open_limit": ("OpenLimitForm", "The key, and the reason."),
}


class VerbForm(Form):
    """The reason."""

    reason = Text(required=False, default="", allow_blank=True, max_length=MAX_REASON, help_text="For the audit log.")


class HoldForm(VerbForm):
    """The reason."""


class VerbView(View):
    """A verb."""

    about = "surroundings"
    verb: ClassVar[Verb]
    takes: ClassVar[type[Form]]
    answer: ClassVar[Answer]

    def perform(self, request: Request, name: str) -> HttpResponse:
        """Check the permission, validate, act once, answer."""
        admit(request, self.verb.action, "")
        given = self.form(self.takes, request)
        reason = given.pop("reason")

        def done() -> Done:
            try:
                result = self.verb.call(name, **given)
            except self.verb.on.unknown as error:
                raise ProblemError("not-found", 404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
            except (TypeError, ValueError) as error:
                raise ProblemError("arguments-refused", 422, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
            return Done(data=dict(self.answer.shape(self.answer.shown(request, name, result)).data))

        with acting_as(actor_of(request), reason=reason):
            return answered(request, done)


def endpoints(*subjects: Subject) -> Iterator[URLPattern]:
    """Yield the addresses of the verbs on these subjects."""
    for verb in catalogue.VERBS:
        if verb.on in subjects:
            yield path(f"{verb.on.path}/<path:name>/{verb.word}", _view_of(verb).as_view(), name=verb.command)


def _view_of(verb: Verb) -> type[VerbView]:
    takes, answer = _form_of(verb), _ANSWERS.get(verb.action) or _ANSWERS[verb.on]

    def post(self: VerbView, request: Request, name: str) -> HttpResponse:
        return self.perform(request, name)

    post.__doc__ = verb.over_rest.format(needs=verb.needs)
    operation = {"hold_starts": "hold_workflow", "release_starts": "release_workflow"}.get(verb.action, verb.action)
    described_post = described(operation_id=operation, request=takes, responses=answer.shape)(post)
    members = {"verb": verb, "takes": takes, "answer": answer, "post": described_post}
    return type("VerbView", (VerbView,), members)


def _form_of(verb: Verb) -> type[Form]:
    if verb.action not in _FORMS:
        return HoldForm
    name, meaning = _FORMS[verb.action]
    return type(name, (VerbForm,), {"__doc__": meaning, **{each.name: _field(each) for each in verb.options}})


def _field(option: Option) -> serializers.Field[Any, Any, Any, Any]:
    said: dict[str, Any] = {"help_text": option.does}
    if not option.is_required:
        said |= {"required": False, "default": option.default}
    if isinstance(option, Number):
        return serializers.IntegerField(min_value=option.least, max_value=option.most, **said)
    if isinstance(option, Until):
        return Moment(**said)
    return Text(max_length=MAX_ID, **said, **({} if option.is_required else {"allow_blank": True}))
