"""Helpers of all pages: the run of a URL, and cheap answers if nothing has changed."""

from __future__ import annotations

from datetime import datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.crypto import salted_hmac
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from durable import runtime
from durable.admin import sight
from durable.admin.url_keys import as_id
from durable.inspection.family import has_children
from durable.models import Run


def now() -> datetime:
    """Return the time by the clock of the active runtime."""
    return runtime.current().now()


def find(request: HttpRequest, key: str) -> Run:
    """Return the run of a URL, without its input and output.

    Raises Http404, also if the request may not see the run.
    """
    run_id = as_id(key)
    run = sight.find_run(request, run_id)
    if run is None:
        raise Http404(
            _('There is no run "%(run)s". It may have been pruned: runs that ended are kept for a while only.')
            % {"run": run_id}
        )
    return run


def with_children(are_there: bool | None = None) -> dict[str, str]:
    """Return what a link to the list adds where the number beside it counts children too; {} while there are none.

    `are_there` says whether there are, if the page knows it; else one statement asks.
    """
    return {"children": "true"} if (has_children() if are_there is None else are_there) else {}


def with_everyone(are_there: bool | None = None) -> dict[str, str]:
    """Return what a link to the list adds where the number beside it counts children and runs of durable's own too.

    `are_there` and the statements are those of `with_children`.
    """
    return {**with_children(are_there), "alerts": "true"}


def etag_of(now: datetime, *parts: object) -> str:
    """Return an ETag of a page's content, its language, and the minute of `now`, to which its times are relative."""
    minute = int(now.timestamp() // 60)
    text = "\0".join(map(str, [*parts, get_language(), minute]))
    # Keyed: the parts contain text that the redaction hook may hide, and a plain hash would let a reader guess that
    # text.
    digest = salted_hmac("durable.admin.etag", text.encode(errors="surrogatepass"), algorithm="sha256")
    return f'"{digest.hexdigest()[:24]}"'


def is_known(request: HttpRequest, etag: str) -> bool:
    """Return whether the browser already has the content of this ETag."""
    return request.headers.get("If-None-Match") == etag


def unchanged(etag: str) -> HttpResponse:
    """Return a 304 response."""
    return tagged(HttpResponse(status=304), etag)


def tagged(response: HttpResponse, etag: str) -> HttpResponse:
    """Add the ETag to the response, and forbid caches on the way to store it."""
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    return response
