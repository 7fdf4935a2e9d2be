"""The filters in the address of the list of runs: parsed, checked, and shown as chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.admin import access
from durable.admin.forms import faults
from durable.admin.moments import is_of_viewer
from durable.core.clock import to_utc
from durable.core.location import MAX_NAME
from durable.core.records import RunState
from durable.inspection.reading import read_alias
from durable.inspection.run_facts import split_tags
from durable.inspection.runs import RunCriteria
from durable.inspection.wording import cause_in_words, state_in_words
from durable.listings.runs import RUN_FILTERS, criteria_of
from durable.models import Cause
from durable.models.subjects import read_subject

SINCE: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}

_APART: Final = frozenset({"q", "state"})  # fields that the page shows separately
#: Parameters of the list's address that are not filters.
_NO_FILTERS: Final = frozenset({"after", "live", "sort", "columns"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One condition of the filter, and the address of the list without it."""

    title: str
    query: str


_MOMENTS: Final = ("created_from", "created_until", "finished_from", "finished_until")


class _MomentInput(forms.DateTimeInput):
    """The browser's own input for a moment, in the time zone of the pages."""

    input_type = "datetime-local"

    def format_value(self, value: Any) -> str | None:
        """Return the moment in the input's format; None for an invalid text."""
        moment = parse_datetime(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            return None
        return (_local(moment) if timezone.is_aware(moment) else moment).isoformat(timespec="seconds")[:19]


class _MomentField(forms.DateTimeField):
    widget = _MomentInput(attrs={"step": 1})

    def clean(self, value: Any) -> datetime | None:
        found = super().clean(value)
        with faults():
            return None if found is None else to_utc(found)


class _Flag(forms.BooleanField):
    """`1` or `true` in an address."""

    widget = forms.CheckboxInput(attrs={"value": "true"})


def _states() -> list[tuple[str, str]]:
    return [(each.value, state_in_words(each)) for each in RunState]


def _name(label: Any, most: int = 200, known: str = "") -> forms.CharField:
    """Return a field for a name. `known` is the kind of names to suggest."""
    suggested = {"list": f"known-{known}", "data-durable-names": known, "autocomplete": "off"} if known else {}
    widget = forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false", **suggested})
    return forms.CharField(required=False, max_length=most, label=label, widget=widget)


class FilterForm(forms.Form):
    """The filters of the list. Unknown names are refused: ignoring one would list other runs."""

    q = forms.CharField(required=False, max_length=500, label=gettext_lazy("Search"))
    state = forms.MultipleChoiceField(
        required=False,
        label=gettext_lazy("State"),
        choices=_states,
        widget=forms.CheckboxSelectMultiple,
    )
    workflow = _name(gettext_lazy("Workflow"), known="workflow")
    queue = _name(gettext_lazy("Queue"), known="queue")
    worker = _name(gettext_lazy("Worker"), 300, known="worker")
    about = _name(gettext_lazy("About (app.model:key)"), 456)
    waiting_queue = _name(gettext_lazy("Waits for a message in"), MAX_NAME)
    place = _name(gettext_lazy("Failed at"), 1024)
    cause = _name(gettext_lazy("Cause"), 16)
    since = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Created"),
        choices=[
            ("", gettext_lazy("at any time")),
            ("hour", gettext_lazy("in the past hour")),
            ("day", gettext_lazy("in the past 24 hours")),
            ("week", gettext_lazy("in the past 7 days")),
        ],
    )
    created_from = _MomentField(required=False, label=gettext_lazy("Created from"))
    created_until = _MomentField(required=False, label=gettext_lazy("Created until"))
    finished_from = _MomentField(required=False, label=gettext_lazy("Ended from"))
    finished_until = _MomentField(required=False, label=gettext_lazy("Ended until"))
    attention = _Flag(required=False, label=gettext_lazy("needs attention"))
    held = _Flag(required=False, label=gettext_lazy("waits for a person"))
    undone = _Flag(required=False, label=gettext_lazy("undone"))
    stuck = _Flag(required=False, label=gettext_lazy("compensation stuck"))
    diverged = _Flag(required=False, label=gettext_lazy("code does not fit"))
    children = _Flag(required=False, label=gettext_lazy("with children"))
    alerts = _Flag(required=False, label=gettext_lazy("with alerts, bulks and quiet workflows"))

    def __init__(self, given: QueryDict) -> None:
        super().__init__(given, label_suffix="")
        self._given = given
        if access.is_limited():  # an address of suggestions is refused then
            for field in self.fields.values():
                for name in ("list", "data-durable-names"):
                    field.widget.attrs.pop(name, None)

    def clean(self) -> dict[str, Any]:
        """Refuse names that are not filters."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        for name in sorted(self._given.keys() - self.fields.keys() - _NO_FILTERS):
            self.add_error(None, _("There is no filter “%(name)s”; take it out of the address.") % {"name": name[:40]})
        return given

    def clean_q(self) -> str:
        """Refuse a search that begins like a tag but is not one."""
        text = str(self.cleaned_data["q"])
        with faults():
            split_tags(text)
        return text

    def clean_about(self) -> str:
        """Refuse a text that names no model or no key of it."""
        text = str(self.cleaned_data["about"])
        with faults():
            return str(read_subject(text)) if text else ""

    def wanted(self) -> RunCriteria:
        """Return the filter without the search; invalid fields are ignored."""
        given = self.cleaned_data
        asked = {each.name: given.get(each.name) for each in RUN_FILTERS}
        if (since := SINCE.get(given.get("since", ""))) is not None:
            asked["created_from"] = max(filter(None, (asked["created_from"], timezone.now() - since)))
        wanted = criteria_of(asked, only_roots=not given.get("children"), hides_alerts=not given.get("alerts"))
        return replace(wanted, only_roots=wanted.hides_children, hides_alerts=wanted.leaves_alerts_out)

    @property
    def flags(self) -> list[forms.BoundField]:
        """The conditions that are ticked."""
        return [self[name] for name, field in self.fields.items() if isinstance(field, _Flag)]

    @property
    def inputs(self) -> list[forms.BoundField]:
        """The conditions with a value, except the search and the states."""
        return [
            self[name] for name, field in self.fields.items() if not isinstance(field, _Flag) and name not in _APART
        ]

    @property
    def search(self) -> str:
        """The text of the search box."""
        return str(self.cleaned_data.get("q", ""))

    @property
    def is_filtered(self) -> bool:
        """Whether the address has a condition."""
        return any(self._given.getlist(name) not in ([], [""]) for name in self.fields)

    @property
    def chips(self) -> list[Chip]:
        """Every valid condition, in the order of the fields."""
        return [chip for name in self.fields if name not in self.errors for chip in self._chips(name)]

    def _chips(self, name: str) -> Iterator[Chip]:
        label, value = self.fields[name].label, self.cleaned_data.get(name)
        if not value:
            return
        if isinstance(value, list):
            for each in value:
                others = [one for one in value if one != each]
                yield Chip(title=f"{label}: {state_in_words(each)}", query=query_of(self._given, **{name: others}))
            return
        title = str(label) if value is True else f"{label}: {self._told(name, value)}"
        yield Chip(title=title, query=query_of(self._given, **{name: ""}))

    def _told(self, name: str, value: Any) -> str:
        if isinstance(value, datetime):
            return f"{_local(value):%Y-%m-%d %H:%M:%S %Z}"
        if name == "since":
            return str(dict(self.fields["since"].choices)[value])  # type: ignore[attr-defined]  # a ChoiceField
        if name == "cause" and not access.is_limited():
            found = Cause.objects.using(read_alias()).filter(fingerprint=value).first()
            return str(value) if found is None else cause_in_words(found.place, found.error_type)
        return str(value)


def _local(moment: datetime) -> datetime:
    """Return the moment in the time zone of the pages; unchanged at the ends of time."""
    try:
        return timezone.localtime(moment)
    except OverflowError:
        return moment


def with_offsets(given: QueryDict) -> str | None:
    """Return the address' query with an offset from UTC in each moment, None if none is missing.

    The browser's input has none. In the zone of one viewer it would mean another moment for others, who are sent the
    address or open a saved view of it.
    """
    if not is_of_viewer():
        return None
    query, changed = given.copy(), False
    for name in _MOMENTS:
        try:
            moment = parse_datetime(given.get(name, ""))
            if moment is not None and timezone.is_naive(moment):
                query[name], changed = timezone.make_aware(moment).isoformat(), True
        except (ValueError, OverflowError):  # the form says what is wrong
            continue
    return f"?{query.urlencode()}" if changed else None


def query_of(given: QueryDict, **changes: Any) -> str:
    """Return the address' query with some parameters set (or removed if empty), by default for the first page."""
    query = given.copy()
    for name, value in {"live": "", "after": "", **changes}.items():
        query.pop(name, None)
        if isinstance(value, list):
            query.setlist(name, value)
        elif value:
            query[name] = value
    return f"?{query.urlencode()}"
