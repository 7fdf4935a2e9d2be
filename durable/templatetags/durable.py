"""Tags for the pages of a project: `{% load durable %}{% runs_of order %}`, `{% durable_progress run %}`.

`runs_of` shows what the user of the page may see in durable's admin, and nothing to others. `durable_progress` shows a
bar to whoever the page shows it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model
from django.http import HttpRequest
from django.template import Library
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.safestring import SafeString

register = Library()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run about an object: its state, also in words, the sentence of what it does, and its page in the admin.

    `url` is "" for a user who may not enter the admin, and where the project has no admin of runs.
    """

    id: str
    workflow: str
    state: str
    state_in_words: str
    sentence: str
    created_at: datetime
    url: str


class ShownRuns(list[ShownRun]):
    """The runs about an object. As text it is the HTML of `durable/runs_of.html`, which a project may replace."""

    def __html__(self) -> SafeString:
        return render_to_string("durable/runs_of.html", {"runs": self})

    def __str__(self) -> str:
        return str(self.__html__())


@register.simple_tag(takes_context=True)
def runs_of(context: dict[str, Any], instance: Model, most: int = 5) -> ShownRuns:
    """The runs about an instance that the user may see: `{% runs_of order %}`, or `{% runs_of order as runs %}`.

    At most `most`, open ones first, then the newest; one query. The user is that of the context's `request`. It is for
    users with `durable.view_run`, and shows the runs that `DURABLE["ADMIN_RUNS"]` allows; others see an empty list.
    """
    request = context.get("request")
    user = getattr(request, "user", None)
    if request is None or user is None or not user.is_active or not user.has_perm("durable.view_run"):
        return ShownRuns()
    return ShownRuns(_shown(request, instance, most))


def _shown(request: HttpRequest, instance: Model, most: int) -> Sequence[ShownRun]:
    from durable import runtime
    from durable.inspection.explanation import explain
    from durable.inspection.humanize import printable
    from durable.inspection.run_rules import RunRule
    from durable.inspection.undone import state_word
    from durable.models.subjects import subject_of
    from durable.operations.subjects import newest_of

    rule, now, subject = RunRule("ADMIN_RUNS"), runtime.current().now(), subject_of(instance)
    runs = rule.runs(request)
    return [
        ShownRun(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            state_in_words=state_word(run),
            sentence=printable(explain(run, now, within=runs if rule.is_set else None).headline),
            created_at=run.created_at,
            url=_page_of(request, run.id),
        )
        for run in newest_of(runs, subject.model, [subject.key], most)[subject.key]
    ]


def _page_of(request: HttpRequest, run_id: str) -> str:
    if not getattr(request.user, "is_staff", False) or not apps.is_installed("django.contrib.admin"):
        return ""
    from durable.admin.text import as_key  # registers the admin

    try:
        return reverse("admin:durable_run_change", args=[as_key(run_id)])
    except NoReverseMatch:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuestion:
    """A question that waits for the user: its name, what it is about, and its page; "" where there is none."""

    id: str
    name: str
    about: str
    run_id: str
    asked_at: datetime
    url: str


class ShownQuestions(list[ShownQuestion]):
    """The questions that wait for a user. As text: the HTML of `durable/inbox.html`, which a project may replace."""

    def __html__(self) -> SafeString:
        return render_to_string("durable/inbox.html", {"questions": self})

    def __str__(self) -> str:
        return str(self.__html__())


@register.simple_tag(takes_context=True)
def durable_inbox(context: dict[str, Any], most: int = 50) -> ShownQuestions:
    """The questions that wait for the user: `{% durable_inbox %}`, or `{% durable_inbox as questions %}`.

    At most `most`, the oldest first. The user is that of the context's `request`; nobody else's are shown. Each leads
    to its page, which needs the URLs of `durable.hooks.urls`; without them, to that of the admin.
    """
    from durable.operations.people import questions_for

    user = getattr(context.get("request"), "user", None)
    return ShownQuestions(
        ShownQuestion(
            id=each.id,
            name=each.name,
            about=each.about,
            run_id=each.run_id,
            asked_at=each.asked_at,
            url=_page_of_question(each.id),
        )
        for each in questions_for(user, most=most)
    )


def _page_of_question(question_id: str) -> str:
    for name in ("durable-asked", "admin:durable_run_question"):
        try:
            return reverse(name, args=[question_id])
        except NoReverseMatch:
            continue
    return ""


@register.simple_tag(takes_context=True)
def durable_progress(context: dict[str, Any], run: Any, lasts: str = "1 day") -> SafeString | str:
    """A live bar of how far a run is: `{% durable_progress run %}`, with a handle, a run or its id.

    Show it to users who may see the run: its address is signed, needs no login, shows the run's status and nothing
    else, and expires after `lasts`. The bar is kept up to date by a script of durable's; without JavaScript a link
    leads to a page that reloads itself. The URLs of `durable.hooks.urls` have to be included. "" if there is no such
    run. One query. A project may replace the template `durable/_progress.html`.
    """
    from durable.core.duration import parse_duration
    from durable.hooks.progress import HOW_TO_INCLUDE, address_of, bar_of

    run_id = str(getattr(run, "id", run))
    try:
        url = address_of(run_id, timezone.now() + parse_duration(lasts))
    except NoReverseMatch as error:
        raise ImproperlyConfigured(f"{{% durable_progress %}} has no address to ask: {HOW_TO_INCLUDE}") from error
    bar = bar_of(run_id)
    if bar is None:
        return ""
    nonce = context.get("csp_nonce") or getattr(context.get("request"), "csp_nonce", "")
    return render_to_string("durable/_progress.html", {"bar": bar, "url": url, "nonce": nonce})
