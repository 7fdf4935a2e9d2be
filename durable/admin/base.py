"""The base of the pages of a run: the frame in which they are rendered, and the URLs of the other pages.

Views take `AdminPages`. They do not import `RunAdmin`, which routes requests to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models.options import Options
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse

from durable.admin import access, sight
from durable.admin.url_keys import as_key, url_maker
from durable.admin.visible_text import with_visible_text
from durable.inspection.humanize import printable
from durable.models import Run

_PERMISSIONS = (
    *("view_run", "view_payload", "start_run", "operate_run", "replay_run"),
    *("pause_queue", "hold_workflow", "view_source"),
)


class AdminPages:
    """The half of `RunAdmin` that views use. Django's `ModelAdmin` sets the two attributes."""

    admin_site: AdminSite
    opts: Options[Run]

    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        """Render `durable/admin/<name>.html` inside the admin."""
        around = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "is_limited": sight.is_limited(),
            "may": {name: access.may(request, name) for name in _PERMISSIONS},
        }
        # With this attribute, reverse() finds the URLs of this admin site and of no other instance.
        request.current_app = self.admin_site.name
        text = render_to_string(f"durable/admin/{name}.html", {**around, **context}, request)
        return HttpResponse(with_visible_text(printable(text)), status=status)

    def url(self, name: str, run_id: str | None = None, *args: str) -> str:
        """Return the URL of one of these pages."""
        given = [*([] if run_id is None else [as_key(run_id)]), *args]
        return reverse(f"admin:durable_run_{name}", args=given, current_app=self.admin_site.name)

    def url_maker(self, name: str) -> Callable[[str], str]:
        """Return a function that makes the URL of this page for an id, as `url` does.

        A page with hundreds of links needs one look-up instead of one for each.
        """
        return url_maker(name, self.admin_site.name)
