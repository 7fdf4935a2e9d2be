"""Names for the suggestions of the list's filters, as JSON."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _

from durable.admin.base import AdminPages
from durable.inspection.workflows import KINDS, find_names

_MOST_TEXT = 200  # characters


def show(admin: AdminPages, request: HttpRequest, kind: str) -> HttpResponse:  # noqa: ARG001  # as all pages
    """Return names that contain `q`, after the name `after`: `{"names": [...], "next": name or null}`."""
    if kind not in KINDS:
        raise Http404(
            _("There are no names of “%(kind)s”; there are those of %(kinds)s.")
            % {"kind": kind, "kinds": ", ".join(KINDS)}
        )
    text, after = (request.GET.get(name, "")[:_MOST_TEXT] for name in ("q", "after"))
    found = find_names(kind, text, after)
    response = JsonResponse({"names": found.names, "next": found.next})
    response["Cache-Control"] = "private, no-cache"
    return response
