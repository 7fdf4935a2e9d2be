"""The form of a new run: its arguments, and the options of its start that REST and the command line have too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable.admin.forms import MAX_BODY, MuteForm, as_token, json_editor, read_arguments
from durable.conf import conf
from durable.core.duration import parse_duration
from durable.core.ids import new_id
from durable.inspection.run_facts import checked_tags, read_tag
from durable.notifier import redis_clients
from durable.operations.start_options import READ, START_OPTIONS

_LONGEST: Final = 100  # characters of a duration or a time
_LENGTHS: Final = ("delay", "work_limit", "debounce", "at_most")


def _duration_field(label: Any, help_text: Any) -> forms.CharField:
    return forms.CharField(required=False, max_length=_LONGEST, label=label, help_text=help_text)


class StartForm(MuteForm):
    """The arguments of a new run as JSON, its id, how it starts, and a token against repeats.

    The token becomes the run's id if none is given.
    """

    arguments = forms.CharField(
        strip=False,
        max_length=MAX_BODY,
        label=_("Arguments (JSON)"),
        help_text=_('Keywords as an object, for example {"order_id": 7}; or a list of positional arguments.'),
        widget=json_editor(8),
    )
    run_id = forms.CharField(
        required=False,
        max_length=200,
        label=_("Id of the run"),
        help_text=_("Empty for a new one. A run that has the id already is found, if its arguments are the same."),
    )
    queue = forms.CharField(
        required=False,
        max_length=200,
        label=_("Queue"),
        help_text=_("Empty: the workflow's own."),
        widget=forms.TextInput(attrs={"list": "known-queues"}),
    )
    delay = _duration_field(_("Delay"), _('Until it begins: "3 hours". Empty: it begins at once.'))
    deadline = _duration_field(
        _("Deadline"),
        _(
            'When it fails if it has not ended: "30 days" from now, or a time such as 2027-05-01 12:30 in this page\'s zone.'
        ),
    )
    work_limit = _duration_field(
        _("Work limit"), _('How long workers may work on it, without its waits: "1 hour". Empty: no limit.')
    )
    key = forms.CharField(
        required=False, max_length=200, label=_("Key"), help_text=_("At most one open run of the workflow has it.")
    )
    if_open = forms.ChoiceField(
        required=False,
        label=_("If a run with the key is open"),
        choices=[
            ("", _("the workflow's own choice")),
            ("return", _("show that run, start none")),
            ("error", _("refuse the start")),
            ("replace", _("cancel that run, and start this one")),
        ],
    )
    debounce = _duration_field(
        _("Debounce"),
        _('The run begins so long after this start, and after each further one with its key: "5 minutes".'),
    )
    at_most = _duration_field(
        _("Debounce at most"), _('Needed with a debounce: so long after the first start at the latest, "1 hour".')
    )
    keep = forms.ChoiceField(
        required=False,
        label=_("Whose arguments a debounced run has"),
        choices=[("", _("those of the last start")), ("first", _("those of the first start"))],
    )
    rate = forms.CharField(
        required=False,
        max_length=401,
        label=_("Limit with a rate"),
        help_text=_('For the choice below: "reports", or "reports/acme". Empty: that of the workflow.'),
    )
    when_full = forms.ChoiceField(
        required=False,
        label=_("If the rate has no room"),
        choices=[("", _("do not ask")), ("drop", _("refuse the start"))],
    )
    priority = forms.CharField(
        required=False,
        max_length=_LONGEST,
        label=_("Priority"),
        help_text=_('A head start among the runs that are due: "10 min", or "-1 hour" to put it back.'),
        widget=forms.TextInput(attrs={"list": "known-priorities"}),
    )
    share = forms.CharField(
        required=False,
        max_length=200,
        label=_("Share"),
        help_text=_("A tenant's, say: runs of different shares of a queue take turns."),
    )
    weight = forms.FloatField(
        required=False,
        label=_("Weight"),
        help_text=_("Of its share: how often such runs have a turn, from 0.001 to 1000. Empty: 1."),
    )
    tags = forms.CharField(
        required=False,
        max_length=4_000,
        label=_("Tags"),
        help_text=_("By which the run is found: name=value, one a line, at most 8."),
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField", "spellcheck": "false"}),
    )
    token = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=new_id)

    field_order = ["arguments", "run_id", "reason"]

    #: The fields that say how the run starts: seldom needed. The id stands above, and the token settles a conflict.
    options = tuple(name for name in START_OPTIONS if name not in ("id", "on_conflict"))

    @property
    def shown_options(self) -> list[forms.BoundField]:
        """The fields that say how the run starts."""
        return [self[name] for name in self.options]

    @property
    def has_options(self) -> bool:
        """Whether one of these fields was filled in."""
        return any(self[name].value() for name in self.options)

    @property
    def start_options(self) -> dict[str, Any]:
        """The options that were given, as `Workflow.using` takes them."""
        return {name: self.cleaned_data[name] for name in self.options if self.cleaned_data[name] not in ("", None, {})}

    def clean_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and the keywords. Raises ValidationError."""
        return read_arguments(self.cleaned_data["arguments"])

    def clean_token(self) -> str:
        """Return the token, which becomes the id of the new run."""
        return as_token(str(self.cleaned_data["token"]))

    def clean_queue(self) -> str:
        """Return the queue. Raises ValidationError for one that the project does not have."""
        queue = str(self.cleaned_data["queue"])
        names = redis_clients.queue_names()
        if queue and conf.REDIS and queue not in names:
            raise forms.ValidationError(
                _("No worker can serve this queue: the project's queues are %(queues)s."),
                params={"queues": ", ".join(sorted(names))},
            )
        return queue

    def clean_deadline(self) -> timedelta | datetime | None:
        """Return the deadline, a length of time or a moment. Raises ValidationError."""
        text = str(self.cleaned_data["deadline"]).strip()
        try:
            moment = parse_datetime(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        if moment is None:
            return self._duration("deadline")
        return timezone.make_aware(moment) if timezone.is_naive(moment) else moment

    def clean_tags(self) -> dict[str, str]:
        """Return the tags. Raises ValidationError."""
        lines = [each.strip() for each in str(self.cleaned_data["tags"]).splitlines()]
        try:
            return dict(checked_tags(read_tag(each) for each in lines if each))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        """Read what is a length or has rules of its own; refuse a choice about a key without a key, and its like."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        self._read(_LENGTHS, self._duration)
        self._read(("key", "rate", "priority", "share", "weight"), lambda name: READ[name](given[name]))
        if given.get("if_open") and not given.get("key") and "key" not in self.errors:
            self.add_error("key", gettext("Give the key that the choice below is about."))
        if given.get("debounce") is not None and not given.get("key") and "key" not in self.errors:
            self.add_error("key", gettext("Give the key that the debounce is about."))
        if given.get("debounce") is not None and given.get("at_most") is None and "at_most" not in self.errors:
            self.add_error("at_most", gettext("Say when the run begins at the latest."))
        for name in ("at_most", "keep"):
            if given.get("debounce") is None and given.get(name) and "debounce" not in self.errors:
                self.add_error("debounce", gettext("Give the debounce that the choices below are about."))
                break
        if given.get("weight") is not None and not given.get("share") and "share" not in self.errors:
            self.add_error("share", gettext("Give the share that the weight is about."))
        if given.get("rate") and not given.get("when_full"):
            self.add_error("when_full", gettext("Say what the start does if this rate has no room."))
        return given

    def _read(self, names: Iterable[str], read: Callable[[str], Any]) -> None:
        """Replace what was given for these by what `read` makes of it; mark what it refuses."""
        for name in names:
            if name in self.cleaned_data and self.cleaned_data[name] not in ("", None):
                try:
                    self.cleaned_data[name] = read(name)
                except (forms.ValidationError, ValueError, OverflowError) as error:
                    self.add_error(name, error if isinstance(error, forms.ValidationError) else str(error))
            elif name in _LENGTHS:
                self.cleaned_data[name] = None

    def _duration(self, name: str) -> timedelta | None:
        text = str(self.cleaned_data[name]).strip()
        if not text:
            return None
        try:
            return parse_duration(
                float(text) if text.replace(".", "", 1).isdigit() else text, str(self.fields[name].label)
            )
        except (ValueError, OverflowError) as error:
            raise forms.ValidationError(str(error)) from None
