"""What the pages share: finding the run of an address, and answers that cost little when nothing has changed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.crypto import salted_hmac

from durable import runtime
from durable.admin.url_keys import as_id
from durable.conf import conf
from durable.models import Run

if TYPE_CHECKING:
    from durable.admin.run_admin import RunAdmin

__all__ = ["etag_of", "find", "is_known", "now", "tagged", "unchanged"]


def now() -> datetime:
    """The clock of the backend in force."""
    return runtime.current().now()


def find(key: str) -> Run:
    """The run of an address, without its input and output. Raises Http404."""
    run_id = as_id(key)
    run = Run.objects.using(conf.DATABASE).filter(pk=run_id).defer("input", "output").first()
    if run is None:
        raise Http404(
            f'There is no run "{run_id}". It may have been pruned: runs that ended are kept for a while only.'
        )
    return run


def etag_of(now: datetime, *parts: object) -> str:
    """An ETag of what a page shows, and of the minute of `now`, from which the page tells times."""
    minute = int(now.timestamp() // 60)
    text = "\0".join(map(str, [*parts, minute]))
    # keyed: the parts hold text that the redaction hook may hide, which a plain hash would let a reader guess
    digest = salted_hmac("durable.admin.etag", text.encode(errors="surrogatepass"), algorithm="sha256")
    return f'"{digest.hexdigest()[:24]}"'


def is_known(request: HttpRequest, etag: str) -> bool:
    """Whether the browser has what the ETag stands for."""
    return request.headers.get("If-None-Match") == etag


def unchanged(etag: str) -> HttpResponse:
    """Nothing new."""
    return tagged(HttpResponse(status=304), etag)


def tagged(response: HttpResponse, etag: str) -> HttpResponse:
    """The response with its ETag; never kept by a cache on the way."""
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    return response


def back_to(admin: RunAdmin, run_id: str) -> str:
    """The run's page."""
    return admin.url("change", run_id)
