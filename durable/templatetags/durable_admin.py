"""Tags for durable's admin pages: times, states and places in words, and the overview's content."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote as url_quote

from django import template
from django.apps import apps
from django.conf import settings
from django.http import HttpRequest
from django.template.loader import get_template, render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext, pgettext
from django.utils.translation import gettext_lazy as _

from durable.admin.moments import moment, viewers_zone
from durable.admin.text import as_key, location_query, with_visible_text
from durable.conf import conf
from durable.core.ids import new_id
from durable.core.records import ENDED, RunState
from durable.core.words import safe
from durable.inspection import humanize
from durable.inspection.held import waits_for_person
from durable.inspection.reading import UnreadableError, from_replica, read_alias, reading, savepoint
from durable.inspection.undone import is_diverging, is_undone, state_word
from durable.inspection.wording import (
    display_location,
    display_place,
    kind_in_words,
    outcome_in_words,
    source_in_words,
    state_in_words,
    told,
    told_of_source,
    told_sentence,
    verb_in_words,
)
from durable.models import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable.inspection.activities import RunningStep


logger = logging.getLogger("durable.admin")

register = template.Library()
register.filter("display_location", display_location)
register.filter("display_place", display_place)
register.filter("location_query", location_query)
register.simple_tag(moment)

_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)


_BARS = {
    "attempt": _("attempt"),
    "given": _("given by hand"),
    "running": _("under way"),
    "failed": _("failed attempt"),
    "backoff": _("backoff"),
    "sleep": _("sleep"),
    "wait": _("waiting for a message, a child or a limit"),
    "folded": _("from the first to the last"),
    "scope": _("all that is inside"),
    "bad": _("something inside failed"),
    "rollback": _("compensated"),
    "rollback-failed": _("compensation failed"),
    "moment": _("recorded"),
}


_EVENTS = {
    "created": _("created"),
    "started": _("started"),
    "began": _("began"),
    "attempt failed": _("attempt failed"),
    "compensated": _("compensated"),
    "compensation failed": _("compensation failed"),
    "message sent": _("message sent"),
}

_DIFFERENCES = {
    "place": _("place"),
    "status": _("status"),
    "attempts": _("attempts"),
    "error": _("error"),
    "output": _("output"),
    "given by hand": _("given by hand"),
}


@register.simple_tag
def browser_words() -> dict[str, str]:
    """The texts that the pages' scripts write, in the language of the page, and the time zone of pages without a
    cookie.
    """
    others = {"copy_of": gettext("Copy %(text)s") % {"text": "%s"}, "zone": timezone.get_default_timezone_name()}
    return {**humanize.browser_words(), **others}


@register.simple_tag
def is_of_a_theme() -> bool:
    """Whether the pages stand in the base template of a theme, and not in Django's own."""
    origin = get_template("admin/base.html").template.origin.name  # type: ignore[attr-defined]  # of Django's backend
    return not origin.startswith(apps.get_app_config("admin").path)


@register.simple_tag
def language_of_texts() -> SafeString:
    """The HTML attributes for durable's own texts on a page: language and direction; "" if they are the page's.

    Without a catalogue for the language of the page, the texts are in another one, mostly English. In a page that is
    written from right to left, their full stops and brackets would stand at the wrong ends.
    """
    language, of_page = pgettext("code of the language of these texts", "en"), get_language() or "en"
    if f"{of_page}-".startswith(f"{language}-"):
        return SafeString()
    direction = "rtl" if language.partition("-")[0] in settings.LANGUAGES_BIDI else "ltr"
    return format_html(' lang="{}" dir="{}"', language, direction)


@register.simple_tag
def form_token() -> str:
    """A token of a form: posted twice, it has one effect."""
    return new_id()


@register.simple_tag
def verb_words(name: str) -> str:
    """The description of a verb, in sentences."""
    from durable.operations.verbs import RUN_VERBS

    return str(RUN_VERBS[name].does)


@register.simple_tag
def chosen_words() -> str:
    """The list's text about chosen runs; "%s" is their number."""
    return gettext("%(number)s chosen") % {"number": "%s"}


@register.simple_tag
def ago(then: datetime | None, now: datetime) -> SafeString | str:
    """A relative time, with the full time for machines and on hovering."""
    if then is None:
        return "—"
    title = f"{timezone.localtime(then):%Y-%m-%d %H:%M:%S %Z}"
    return format_html(
        '<time datetime="{}" title="{}" data-durable-relative="1">{}</time>',
        then.isoformat(),
        title,
        humanize.relative(then, now, 1),
    )


@register.simple_tag
def ticking(text: str, then: datetime | None, now: datetime) -> SafeString | str:
    """A sentence; if it contains the time since `then`, the browser keeps that up to date."""
    told = "" if then is None else humanize.relative(then, now)
    before, found, after = text.partition(told) if then is not None and now - then >= _SECOND else (text, "", "")
    if then is None or not found:
        return text
    return format_html(
        '{}<time datetime="{}"><span data-durable-relative="2">{}</span></time>{}',
        before,
        then.isoformat(),
        told,
        after,
    )


@register.simple_tag
def headline(text: str, run: Run, running: Sequence[RunningStep], now: datetime) -> SafeString | str:
    """The headline of a run; the browser keeps the time in it up to date."""
    text = sentence(text)
    moments = [(each.began_at, "elapsed", humanize.span(each.seconds)) for each in running]
    moments += [
        (each, "relative", humanize.relative(each, now)) for each in (run.finished_at, run.wake_at) if each is not None
    ]
    for then, kind, words in moments:
        if abs(now - then) >= _SECOND and text.count(words) == 1:  # else it cannot be distinguished from a name
            before, _words, after = text.partition(words)
            inner = format_html('<span data-durable-{}="2">{}</span>', kind, words)
            return format_html('{}<time datetime="{}">{}</time>{}', before, then.isoformat(), inner, after)
    return text


@register.simple_tag
def sign_of_life(then: datetime | None, now: datetime) -> SafeString | str:
    """When a worker was last heard of; less than a minute ago is now, so that a heartbeat alone is not a change."""
    if then is not None and now - then < _MINUTE:
        return gettext("now")
    return ago(then, now)


@register.simple_tag
def next_try(run: Run, then: datetime | None, now: datetime) -> SafeString | str:
    """The time of a step's next attempt; "" in a run that does not continue by itself."""
    if then is None or run.state in ENDED:
        return ""
    if run.state == RunState.PAUSED:
        return gettext(", tried again once the run is resumed")
    if then > now:
        return format_html(gettext(", next try {when}"), when=ago(then, now))
    return gettext(", its next try is due")


@register.filter
def sentence(text: str) -> str:
    """The text with a full stop, unless it ends with an ellipsis of a cut."""
    return text if text.endswith(("…", ".")) else f"{text}."


@register.filter
def span(value: float | timedelta | None) -> str:
    """Seconds in words."""
    if value is None:
        return "—"
    return humanize.span(value.total_seconds() if isinstance(value, timedelta) else value)


@register.simple_tag
def between(begin: datetime | None, end: datetime | None) -> str:
    """The time between two moments in words."""
    return "—" if begin is None or end is None else humanize.span((end - begin).total_seconds())


@register.simple_tag
def state(word: str) -> SafeString:
    """A state or a status: the word, beside which the stylesheet draws a shape."""
    return _with_shape(word, state_in_words(word))


@register.simple_tag
def run_state(run: Run) -> SafeString:
    """A run's state: that of a run whose steps were undone, or that waits for other code or a person, says so."""
    name = run.state
    if is_undone(run):
        name = "undone"
    elif is_diverging(run):
        name = "diverging"
    elif waits_for_person(run):
        name = "held"
    return _with_shape(name, state_word(run))


@register.simple_tag
def cut(name: str) -> SafeString | str:
    """An id or a name in two parts: if it is too long, the first part is shortened, so that its end stays visible."""
    if len(name) <= _UNCUT:
        return name
    return format_html('<bdi class="durable-cut"><span>{}</span><span>{}</span></bdi>', name[:-_END], name[-_END:])


def _with_shape(name: str, word: str) -> SafeString:
    return format_html('<span class="durable-state durable-{}">{}</span>', name, word)


@register.simple_tag
def exact_time(then: datetime) -> SafeString:
    """A time on the clock to the millisecond, with the full time for machines and on hovering."""
    local = timezone.localtime(then)
    clock = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03}"
    return format_html('<time datetime="{}" title="{}">{}</time>', then.isoformat(), f"{local:%H:%M:%S.%f %Z}", clock)


@register.simple_tag
def since(begin: datetime | None, then: datetime | None) -> str:
    """The time since the beginning, or before it: "+1.2 s", "-6 m"; "" if one of them is not known."""
    return "" if begin is None or then is None else humanize.signed_span(then - begin)


@register.filter
def thousands(number: int) -> str:
    """A number with the separators of the language."""
    return humanize.thousands(number)


register.filter("kind_in_words", kind_in_words)
register.filter("outcome_in_words", outcome_in_words)
register.filter("source_in_words", source_in_words)
register.filter("state_in_words", state_in_words)
register.filter("printable", safe)
register.filter("verb_in_words", verb_in_words)
register.filter("told", told_sentence)


_UNCUT = 22  # characters of a name that a cell shows whole
_END = 10  # characters at the end of a longer one: that of a number, a date or a random id
_WORKERS = {"busy": _("busy"), "idle": _("idle"), "dead": _("dead"), "unknown": _("unknown")}


@register.simple_tag
def worker_state(name: str) -> str:
    """The state of a worker; a state that only RQ knows is shown unchanged."""
    return str(_WORKERS.get(name, name))


@register.filter
def event_in_words(what: str) -> str:
    """An event of a run in words: its own, the state in which it ended, or an operator's verb."""
    found = _EVENTS.get(what)
    if found is not None:
        return str(found)
    return state_in_words(what) if what in set(RunState) else verb_in_words(what)


@register.filter
def difference_in_words(name: str) -> str:
    """The differences between two runs at a place, in words."""
    found = _DIFFERENCES.get(name)
    return name if found is None else str(found)


@register.simple_tag
def fall_kind(kind: str) -> str:
    """The meaning of a bar in a timeline."""
    return str(_BARS.get(kind, kind))


@register.filter
def key(run_id: str) -> str:
    """A run's id as a part of an address."""
    return as_key(run_id)


@register.filter
def parameter(text: str) -> str:
    """Any text as the value of an address' parameter."""
    return url_quote(humanize.printable(text), safe="")


@register.filter
def visible_text(content: str) -> SafeString:
    """A part of a page that Django renders, treated like durable's own pages."""
    return mark_safe(with_visible_text(humanize.printable(content)))  # noqa: S308  # rendered, so it was escaped


#: The pages that every page links to: the names of their addresses, and their titles.
_PLACES: Final = (
    ("app_list", _("Overview")),
    ("durable_run_inbox", _("Waiting for you")),
    ("durable_run_changelist", _("Runs")),
    ("durable_run_causes", _("Causes")),
    ("durable_run_running", _("Running now")),
    ("durable_run_workflows", _("Workflows")),
    ("durable_run_schedules", _("Schedules")),
    ("durable_run_limits", _("Limits")),
    ("durable_run_events", _("Events")),
    ("durable_run_queues", _("Queues")),
    ("durable_run_workers", _("Workers")),
    ("durable_operatoraction_changelist", _("Audit log")),
)


@register.simple_tag(takes_context=True)
def durable_places(context: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pages to link to ([] for a user who may not see runs). The current page, or its parent, is marked.

    A page whose address is below another one names its place as `place` in its context.
    """
    from durable.admin import access

    request: HttpRequest = context["request"]
    if not access.may(request, "view_run"):
        return []
    site = getattr(request, "current_app", "admin")
    found = []
    for name, title in _PLACES:
        arguments = ["durable"] if name == "app_list" else []
        with suppress(NoReverseMatch):
            found.append((name, title, reverse(f"admin:{name}", args=arguments, current_app=site)))
    above = [url for _name, _title, url in found if request.path.startswith(url)]
    named = [url for name, _title, url in found if name == context.get("place")]
    current = next(iter(named), max(above, key=len, default=""))
    return [
        {"title": title, "url": url, "is_current": url == current}
        for name, title, url in found
        if not name.startswith("durable_run_") or access.is_offered(name.removeprefix("durable_run_"))
    ]


@register.simple_tag
def is_offered(name: str) -> bool:
    """Whether there is a page at the address of this name.

    Some are missing if the user may see only some runs.
    """
    from durable.admin import access

    return access.is_offered(name)


@register.simple_tag(takes_context=True)
def page_link(context: dict[str, Any], name: str, of: str, shown: str = "") -> SafeString:
    """A link to the page of a queue, a workflow or another thing by its name, or the name if it has no such page."""
    from durable.admin import access

    text = format_html("<bdi>{}</bdi>", shown or of)
    if not access.is_offered(name):
        return text
    site = getattr(context["request"], "current_app", "admin")
    url = reverse(f"admin:durable_run_{name}", args=[as_key(of)], current_app=site)
    return format_html('<a href="{}">{}</a>', url, text)


@register.simple_tag(takes_context=True)
def durable_overview(context: dict[str, Any]) -> SafeString | str:
    """The overview, "" for a user who may not see runs."""
    from durable.admin import access, overview, pages

    request: HttpRequest = context["request"]
    if not access.may(request, "view_run"):
        return ""
    if not access.is_offered("overview"):
        return format_html('<p class="durable-none">{}</p>', access.refusal())
    try:
        with from_replica(), reading(), viewers_zone(request):
            found = overview.context(request, pages.now())
            text = render_to_string("durable/admin/_overview.html", found, request)
    except UnreadableError as error:
        return format_html('<p class="errornote">{}</p>', told(error))
    return visible_text(text)


@register.simple_tag
def durable_source() -> SafeString | str:
    """How old the page is, if a read replica is configured; "" where the page shows what is."""
    text = told_of_source()
    return format_html('<p class="durable-quiet durable-small" id="durable-source">{}</p>', text) if text else ""


_MOST_COUNTED: Final = 99


@register.simple_tag(takes_context=True)
def durable_waiting(context: dict[str, Any]) -> dict[str, Any] | None:
    """How many questions wait for the user, and the address of the inbox; None for none. It is read once a request.

    It stands on the project's own page, which must be shown whatever fails in here.
    """
    request: HttpRequest = context["request"]
    if not hasattr(request, "_durable_waiting"):
        try:
            with savepoint(conf.DATABASE):  # an error must not break the transaction of the request
                _count_waiting(request)
        except Exception:
            logger.exception("the questions that wait for a user cannot be counted")
            request._durable_waiting = 0  # type: ignore[attr-defined]
    number: int = request._durable_waiting  # type: ignore[attr-defined]
    if not number:
        return None
    url = reverse("admin:durable_run_inbox", current_app=getattr(request, "current_app", "admin"))
    return {"number": number, "shown": f"{_MOST_COUNTED}+" if number > _MOST_COUNTED else str(number), "url": url}


def _count_waiting(request: HttpRequest) -> None:
    from durable.operations import people

    request._durable_waiting = len(people.questions_for(request.user, most=_MOST_COUNTED + 1))  # type: ignore[attr-defined]


@register.simple_tag(takes_context=True)
def durable_card(context: dict[str, Any]) -> SafeString | str:
    """The card that links to the overview ("" for a user who may not see runs); a constant number of statements.

    It stands on the project's own page, which must be shown whatever fails in here.
    """
    from durable.admin import access

    request: HttpRequest = context["request"]
    try:
        if not access.may(request, "view_run") or not access.is_offered("overview"):
            return ""
        with from_replica():
            return render_to_string("durable/admin/_index_card.html", {"entry": _entry(request)}, request)
    except Exception:
        logger.exception("durable's part of the admin's index cannot be shown")
        said = gettext("cannot show here what needs a person; the log says why.")
        card = '<div id="durable-card"><p class="durable-entry"{}><strong>Durable</strong> {}</p></div>'
        return format_html(card, language_of_texts(), said)


def _entry(request: HttpRequest) -> dict[str, Any]:
    """Return the link to the overview: how many rows need a person ("" for none), its headline, and its causes.

    `rows` are the newest causes, and `further` the others in one line each.
    """
    from durable.admin import access, overview, pages

    url, now = reverse("admin:app_list", args=["durable"]), pages.now()
    # an error must not break the transaction of the request; with a limit, `reading` begins one
    around = nullcontext() if conf.STATEMENT_TIMEOUT else savepoint(read_alias())
    try:
        with around, reading():
            found = overview.needs_a_person(now, getattr(request, "current_app", "admin"))
            if read_alias() == conf.DATABASE and not hasattr(request, "_durable_waiting"):
                _count_waiting(request)  # in this transaction, for `durable_waiting`
    except UnreadableError as error:
        return {"url": url, "number": "?", "headline": humanize.sentence(error), "now": now}
    rows, further = found.of_index
    return {
        "url": url,
        "number": found.number,
        "headline": found.headline,
        "now": now,
        "rows": rows,
        "further": further,
        "may_operate": access.may(request, "operate_run"),
        "may_see_payloads": access.may(request, "view_payload"),
    }
