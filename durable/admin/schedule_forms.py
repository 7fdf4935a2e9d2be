"""Forms for schedules: a new one or another one, a run now, a backfill, an override."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from durable.admin.forms import MAX_BODY, ActForm, json_editor, read_arguments
from durable.core.duration import parse_duration
from durable.schedules import CATCH_UPS, OVERLAPS, check_name, read_rules
from durable.schedules.options import MAX_NAME, check_zone


def _checked(check: Callable[[str], Any], text: str) -> str:
    """Return the text if `check` accepts it. Raises ValidationError."""
    try:
        check(text)
    except (TypeError, ValueError) as error:
        raise forms.ValidationError(str(error)) from None
    return text


def _rule_field() -> forms.CharField:
    return forms.CharField(
        max_length=1_000,
        label=_("Rule"),
        help_text=_('Five cron fields ("30 2 * * *") or an interval ("every 6 hours"). Several: with semicolons.'),
    )


def _zone_field(*, required: bool) -> forms.CharField:
    return forms.CharField(
        required=required,
        max_length=100,
        label=_("Zone"),
        help_text=_('Of local times: "Europe/Berlin", "UTC".'),
    )


class _WithRule(forms.Form):
    def clean_rule(self) -> str:
        """Return the rule. Raises ValidationError."""
        return _checked(read_rules, str(self.cleaned_data["rule"]))

    def clean_zone(self) -> str:
        """Return the zone. Raises ValidationError."""
        zone = str(self.cleaned_data["zone"])
        return _checked(check_zone, zone) if zone else ""


class RunNowForm(ActForm):
    """A tick for the present time."""

    force = forms.BooleanField(
        required=False, label=_("Start it even if the run of an earlier tick has not ended, whatever “overlap” says")
    )


class BackfillForm(ActForm):
    """A period; `planned` is the number of runs that the page has shown."""

    since = forms.DateTimeField(
        label=_("From"), help_text=_("2026-05-01 12:30, in the zone of this page"), widget=forms.DateTimeInput()
    )
    until = forms.DateTimeField(label=_("To"), widget=forms.DateTimeInput())
    planned = forms.IntegerField(required=False, widget=forms.HiddenInput)

    field_order = ["since", "until", "reason"]


class OverrideForm(_WithRule, ActForm):
    """The operator's rule."""

    rule = _rule_field()
    zone = _zone_field(required=False)

    field_order = ["rule", "zone", "reason"]


class EditScheduleForm(_WithRule, ActForm):
    """All that a schedule has, except its name and its workflow."""

    rule = _rule_field()
    zone = _zone_field(required=True)
    overlap = forms.ChoiceField(
        choices=[(each, each) for each in OVERLAPS],
        label=_("Overlap"),
        help_text=_("If the run of an earlier tick has not ended."),
    )
    catch_up = forms.ChoiceField(
        choices=[(each, each) for each in CATCH_UPS],
        label=_("Catch up"),
        help_text=_("Which moments without a timer are made up for."),
    )
    window = forms.CharField(
        required=False,
        max_length=100,
        label=_("Window"),
        help_text=_("No moment longer ago than this is made up for: “12 hours”. Empty: any."),
    )
    jitter = forms.CharField(
        required=False,
        max_length=100,
        label=_("Jitter"),
        help_text=_("Each tick is put off by a part of this: “10 minutes”. Empty: none."),
    )
    queue = forms.CharField(required=False, max_length=200, label=_("Queue"), help_text=_("Empty: the workflow's own."))
    arguments = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_BODY,
        label=_("Arguments (JSON)"),
        help_text=_("Keywords as an object, or a list of positional arguments. Empty: those that it has."),
        widget=json_editor(4),
    )

    field_order = ["rule", "zone", "overlap", "catch_up", "window", "jitter", "queue", "arguments", "reason"]

    def clean_window(self) -> timedelta | None:
        """Return the window; None for an empty one. Raises ValidationError."""
        return _duration(str(self.cleaned_data["window"]))

    def clean_jitter(self) -> timedelta:
        """Return the jitter. Raises ValidationError."""
        return _duration(str(self.cleaned_data["jitter"])) or timedelta(0)

    def clean_arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Return the positional arguments and the keywords; None for an empty text. Raises ValidationError."""
        return None if not self.cleaned_data["arguments"].strip() else read_arguments(self.cleaned_data["arguments"])


class CreateScheduleForm(EditScheduleForm):
    """A new schedule."""

    name = forms.CharField(
        max_length=MAX_NAME, label=_("Name"), help_text=_("The ids of its runs begin with it: no “/”.")
    )
    workflow = forms.CharField(
        max_length=200,
        label=_("Workflow"),
        widget=forms.TextInput(attrs={"list": "known-workflow", "autocapitalize": "off", "spellcheck": "false"}),
    )

    field_order = ["name", "workflow", *EditScheduleForm.field_order]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["arguments"].help_text = _("Keywords as an object, or a list of positional arguments. Empty: none.")

    def clean_name(self) -> str:
        """Return the name. Raises ValidationError."""
        return _checked(check_name, str(self.cleaned_data["name"]))


def _duration(text: str) -> timedelta | None:
    if not text.strip():
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise forms.ValidationError(str(error)) from None
