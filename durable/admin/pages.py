"""Shared parts of all pages: the frame, the URLs of other pages, the run of a URL, and cheap answers if nothing has
changed.

Views take `AdminPages`. They do not import `RunAdmin`, which routes requests to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models.options import Options
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.crypto import salted_hmac
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from durable import runtime
from durable.admin import access
from durable.admin.text import as_id, as_key, url_maker, with_visible_text
from durable.inspection.children import has_children
from durable.inspection.humanize import printable
from durable.models import Run

_PERMISSIONS = (
    *("view_run", "view_payload", "start_run", "operate_run", "replay_run"),
    *("pause_queue", "hold_workflow", "view_source", "settle_step"),
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
            "now": now(),
            "is_limited": access.is_limited(),
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
        """Return a function that returns the URL of this page for an id, as `url` does.

        A page with hundreds of links then needs only one look-up.
        """
        return url_maker(name, self.admin_site.name)


def posted(request: HttpRequest) -> QueryDict | None:
    """Return the posted data; None unless the request is a POST."""
    return request.POST if request.method == "POST" else None


_moment: ContextVar[datetime | None] = ContextVar("durable_moment_of_page", default=None)


@contextmanager
def at_one_moment() -> Iterator[None]:
    """Inside, `now` stands still: a page finds the times that its sentences name by the moment of these sentences."""
    token = _moment.set(runtime.current().now())
    try:
        yield
    finally:
        _moment.reset(token)


def now() -> datetime:
    """Return the moment of the page, or the time by the clock of the active runtime outside of `at_one_moment`."""
    return _moment.get() or runtime.current().now()


def find(request: HttpRequest, key: str) -> Run:
    """Return the run of a URL, without its input and output.

    Raises Http404, also if the request may not see the run.
    """
    run_id = as_id(key)
    run = access.find_run(request, run_id)
    if run is None:
        raise Http404(
            _('There is no run "%(run)s". It may have been pruned: runs that ended are kept for a while only.')
            % {"run": run_id}
        )
    return run


def with_children(are_there: bool | None = None) -> dict[str, str]:
    """Return the parameters for a link to a list that includes children, as the number beside it does; {} if there are
    none.

    `are_there` says whether there are any, if the page knows; else one statement finds out.
    """
    return {"children": "true"} if (has_children() if are_there is None else are_there) else {}


def with_everyone(are_there: bool | None = None) -> dict[str, str]:
    """Return the parameters for a link to a list that includes children and durable's own runs, as the number beside it
    does.

    `are_there` and the statements are those of `with_children`.
    """
    return {**with_children(are_there), "alerts": "true"}


def etag_of(now: datetime, *parts: object) -> str:
    """Return an ETag of a page's content, its language, and the minute of `now`, on which relative times depend."""
    minute = int(now.timestamp() // 60)
    text = "\0".join(map(str, [*parts, get_language(), minute]))
    # Keyed: the parts contain text that the redaction hook may hide, and a plain hash would let a reader guess that
    # text.
    digest = salted_hmac("durable.admin.etag", text.encode(errors="surrogatepass"), algorithm="sha256")
    return f'"{digest.hexdigest()[:24]}"'


def is_known(request: HttpRequest, etag: str) -> bool:
    """Return whether the browser already has the content with this ETag."""
    return request.headers.get("If-None-Match") == etag


def unchanged(etag: str) -> HttpResponse:
    """Return a 304 response."""
    return tagged(HttpResponse(status=304), etag)


def tagged(response: HttpResponse, etag: str) -> HttpResponse:
    """Add the ETag to the response, and forbid caches on the way to store it."""
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    return response
