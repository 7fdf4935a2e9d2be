"""The page of the database beside its mark: whether it went back in time, and which runs do things again."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from durable.admin import access, pages
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.inspection.explanation import explain
from durable.inspection.humanize import span
from durable.inspection.restored import restored_database
from durable.inspection.wording import command
from durable.operations.audit import PERMISSIONS


def show_all(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show the database, whatever its name."""
    return _page(admin, request, None)


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the database of this name. Raises Http404 if this one has another name by now."""
    return _page(admin, request, as_id(key))


def _page(admin: AdminPages, request: HttpRequest, name: str | None) -> HttpResponse:
    now, within = pages.now(), access.within(request)
    found = restored_database(now, within)
    if name is not None and name != found.name:
        raise Http404(_('This database does not have the name "%(name)s".') % {"name": name[:64]})
    may_decide = bool(found.name) and access.may(request, PERMISSIONS["restored"])
    context = {
        "title": _("Database"),
        "now": now,
        "found": found,
        "lost": span(found.lost.total_seconds()),
        "rows": [(run, explain(run, now, within=within)) for run in found.runs] if found.is_behind else [],
        "decide_url": admin.url("database_act", found.name, "restored") if may_decide else "",
        "command": command("restored"),
    }
    return admin.page(request, "database", context)
