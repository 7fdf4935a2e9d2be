"""How far a run is, for a project's own pages: a signed address that shows it and nothing else, for a time.

Who has the address sees the run's status and whether it has ended: no name, no payload, no error. The page that gives
it away (`{% durable_progress run %}`) decides for whom. The token has the run's id, the moment of its end, and the
language of that page: the script sends no cookie, by which the project may know it. It is signed with the project's
SECRET_KEY, and nothing is stored.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from durable import operations
from durable.inspection.humanize import visible
from durable.inspection.shown import shown_status
from durable.inspection.wording import state_in_words

#: The name of the address.
URL_NAME: Final = "durable-progress"
HOW_TO_INCLUDE: Final = 'add path("durable/", include("durable.hooks.urls")) to the urlpatterns of the ROOT_URLCONF'
_SALT: Final = "durable.progress"
_RELOAD: Final = 5  # seconds, of the page without JavaScript


def address_of(run_id: str, until: datetime) -> str:
    """Return the address that shows how far the run is, up to this moment. Raises NoReverseMatch without the URLs."""
    said = [run_id, int(until.timestamp()), get_language()]
    return reverse(URL_NAME, args=[signing.dumps(said, salt=_SALT, compress=True)])


def is_included() -> bool:
    """Return whether the project has included the addresses."""
    try:
        reverse(URL_NAME, args=["token"])
    except NoReverseMatch:
        return False
    return True


def bar_of(run_id: str) -> dict[str, Any] | None:
    """Return what a bar shows of a run, as JSON data; None without the run. One query, two for a run that has ended."""
    info = operations.infos([run_id]).get(run_id)
    if info is None:
        return None
    status = None if info.status is None else shown_status(info.workflow, info.status)
    return {
        "text": "" if status is None else visible(status.text),
        "numbers": "" if status is None else status.numbers,
        "done": None if status is None else status.done,
        "of": None if status is None else status.of,
        "part": None if status is None else status.part,
        "eta": None if status is None or status.eta is None else status.eta.isoformat(),
        "at": None if status is None else status.at.isoformat(),
        "state": info.state,
        "state_in_words": state_in_words(info.state),
        "has_ended": info.has_ended,
    }


@login_not_required
@require_safe
def progress(request: HttpRequest, token: str) -> HttpResponse:
    """Show how far the run of the token is: JSON if the request accepts it, else a page that keeps itself up to date.

    404 for a token that is not signed here, and for a run that is gone; 410 for one whose time is over.
    """
    try:
        run_id, until, *language = signing.loads(token, salt=_SALT)  # addresses had no language at first
    except (signing.BadSignature, ValueError) as error:
        raise Http404(_("There is nothing at this address.")) from error
    with override(*language) if language else nullcontext():
        return _shown(request, run_id, datetime.fromtimestamp(until, UTC))


def _shown(request: HttpRequest, run_id: str, until: datetime) -> HttpResponse:
    if timezone.now() >= until:
        expired = {"title": _("This address has expired.")}
        return _private(render(request, "durable/hooks/answer.html", expired, status=410))
    bar = bar_of(run_id)
    if bar is None:
        raise Http404(_("There is nothing at this address."))
    if "application/json" in request.headers.get("Accept", ""):
        return _private(JsonResponse(bar))
    context = {"bar": bar, "url": request.path, "reload": _RELOAD, "nonce": getattr(request, "csp_nonce", "")}
    return _private(render(request, "durable/progress.html", context))


def _private(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    response["Vary"] = "Accept"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex"
    return response
