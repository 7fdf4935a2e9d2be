"""What runs are about, in the admin: the instances on a run's page, and the runs on the page of an instance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from django.contrib.admin.utils import quote as quoted
from django.core.exceptions import ValidationError
from django.db import DatabaseError, router
from django.db.models import Model
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from durable.admin import access, pages
from durable.admin.moments import viewers_zone
from durable.admin.pages import AdminPages
from durable.admin.run_buttons import buttons_of
from durable.core.records import ENDED, RunState
from durable.inspection.activities import activities_of_runs
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.humanize import printable
from durable.inspection.reading import UnreadableError, reading, savepoint
from durable.inspection.run_facts import About, about_of
from durable.inspection.timeline import build_timeline
from durable.inspection.wording import told
from durable.models import Run
from durable.models.subjects import label_of, model_of, subject_of
from durable.operations.subjects import newest_of

logger = logging.getLogger("durable.admin")

MOST_SHOWN: Final = 20  # instances of one run


def shown_about(admin: AdminPages, request: HttpRequest, run: Run) -> list[dict[str, Any]]:
    """Return what the run is about, at most 20 instances. One statement, and those that look up each instance.

    `url` is the page of the instance in the admin, "" if there is none for the user; `runs_url` lists its runs.
    """
    return [_shown(admin, request, each) for each in about_of([run])[run.id][:MOST_SHOWN]]


def _shown(admin: AdminPages, request: HttpRequest, about: About) -> dict[str, Any]:
    model = model_of(about.model)
    url, is_deleted = "", False
    if model is not None:
        try:
            with savepoint(router.db_for_read(model)):
                found = _found(model, about.key)
                url = "" if found is None else page_of(admin.admin_site, request, found)
                is_deleted = found is None
        except DatabaseError:  # its table is gone or not migrated yet; the run's page is shown without a link to it
            logger.exception("%s cannot be read", about.word)
    return {
        "words": about.words,
        "url": url,
        "runs_url": f"{admin.url('changelist')}?about={quote(about.word, safe='')}",
        "is_deleted": is_deleted,
    }


def _found(model: type[Model], key: str) -> Model | None:
    try:
        return model._base_manager.filter(pk=key).first()
    except (ValidationError, ValueError, TypeError, OverflowError):  # primary keys are of another type since
        return None


def page_of(site: Any, request: HttpRequest, instance: Model) -> str:
    """Return the address of the instance's page in the admin, "" if it has none or the user may not see it there."""
    model = type(instance)
    found = site._registry.get(model)
    if found is None or not found.has_view_permission(request, instance):
        return ""
    if not found.get_queryset(request).filter(pk=instance.pk).exists():
        return ""
    try:
        return reverse(
            f"admin:{model._meta.app_label}_{model._meta.model_name}_change",
            args=[quoted(instance.pk)],
            current_app=site.name,
        )
    except NoReverseMatch:
        return ""


# -- the runs of objects

_IN_FULL: Final = 5  # open and failed runs of which what they wait for is read
_STEPS: Final = 6  # of each of these


def _runs_admin(site: Any) -> AdminPages | None:
    """Return the admin of runs of a site; None if the site has none."""
    found = site._registry.get(Run)
    pages_of: AdminPages | None = getattr(found, "pages", found)
    return pages_of


def open_runs(model_admin: Any, request: HttpRequest, objects: Sequence[Model]) -> list[SafeString | None]:
    """Return the newest open run about each object of a list page, as a cell; None without one. One statement.

    The list is the project's own and must be shown whatever fails in here.
    """
    admin = _runs_admin(model_admin.admin_site)
    if admin is None or not objects:
        return [None] * len(objects)
    keys = [subject_of(each).key for each in objects]
    try:
        with reading(), viewers_zone(request):
            found = newest_of(access.visible_runs(request), label_of(model_admin.model), keys, 1)
            return [_cell(admin, request, found[key]) for key in keys]
    except Exception:
        logger.exception("the runs of a list page cannot be shown")
        return [None] * len(objects)


def _cell(admin: AdminPages, request: HttpRequest, runs: Sequence[Run]) -> SafeString | None:
    if not runs or runs[0].state in ENDED:
        return None
    [run] = runs
    said = explain(run, pages.now(), within=access.within(request)).headline
    return format_html('<a href="{}"><bdi>{}</bdi></a>', admin.url("change", run.id), printable(said))


def section_of(model_admin: Any, request: HttpRequest, instance: Model) -> SafeString | str:
    """Return the runs about an object, for its page in the admin.

    The page is the project's own and must be shown whatever fails in here.
    """
    admin = _runs_admin(model_admin.admin_site)
    if admin is None:
        return ""
    try:
        with reading(), viewers_zone(request):
            context = _section(admin, model_admin, request, instance)
            return render_to_string("durable/admin/_runs_of_object.html", context, request)
    except UnreadableError as error:
        return format_html('<p class="errornote">{}</p>', told(error))
    except Exception:
        logger.exception("the runs of an object cannot be shown")
        return format_html('<p class="errornote">{}</p>', _("The runs cannot be shown; the log says why."))


def _section(admin: AdminPages, model_admin: Any, request: HttpRequest, instance: Model) -> dict[str, Any]:
    subject, now, most = subject_of(instance), pages.now(), model_admin.runs_shown
    found = newest_of(access.visible_runs(request), subject.model, [subject.key], most + 1)[subject.key]
    ids = [run.id for run in found[:most]]
    read = access.visible_runs(request).filter(pk__in=ids).with_side_rows().defer("input", "output").in_bulk(ids)
    rows: list[dict[str, Any]] = []
    for run in (read[each] for each in ids if each in read):
        may_need_a_person = run.state not in ENDED or run.state == RunState.FAILED
        is_in_full = may_need_a_person and len(rows) < _IN_FULL
        about = (
            _in_full(admin, request, run, now)
            if is_in_full
            else {"explanation": explain(run, now, within=access.within(request))}
        )
        rows.append({"run": run, "url": admin.url("change", run.id), **about})
    return {
        "rows": rows,
        "now": now,
        "all_url": f"{admin.url('changelist')}?about={quote(str(subject), safe='')}",
        "has_more": len(found) > most,
    }


def _in_full(admin: AdminPages, request: HttpRequest, run: Run, now: datetime) -> dict[str, Any]:
    """Return what a run waits for, the last rows of its timeline without those inside others, and its buttons."""
    explanation = explain_fully(
        run, now, within=access.within(request), with_payloads=access.may(request, "view_payload")
    )
    running = activities_of_runs([run], now)[run.id]
    return {
        "explanation": explanation,
        "steps": [row for row in build_timeline(run, now).rows if row.depth == 0][-_STEPS:],
        "buttons": buttons_of(admin, request, run, now, explanation, running),
    }
