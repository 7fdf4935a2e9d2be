"""The metrics endpoint. Closed by default: open to the token in the settings, and to users who may view runs."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_cache_control
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe

from durable.conf import conf
from durable.metrics import is_installed

REFUSAL = (
    'Metrics are for users with the permission durable.view_run, and for "Authorization: Bearer <token>" with the '
    'token of DURABLE["METRICS_TOKEN"].\n'
)


@login_not_required  # a scraper has the token; the view refuses everybody else
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics as text; 401 without the token or the permission."""
    if not _may_read(request):
        refusal = HttpResponse(REFUSAL, status=401, content_type="text/plain; charset=utf-8")
        refusal["WWW-Authenticate"] = 'Bearer realm="durable"'
        return refusal
    if not is_installed():
        raise ImproperlyConfigured('durable.metrics.urls needs prometheus_client: install "durable[metrics]"')
    from durable.metrics.exposition import exposition

    body, content_type = exposition(request.headers.get("Accept", ""))
    response = HttpResponse(body, content_type=content_type)
    patch_cache_control(response, no_store=True)
    return response


def _may_read(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if conf.METRICS_TOKEN and scheme.lower() == "bearer":
        return constant_time_compare(token.strip(), conf.METRICS_TOKEN)
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.has_perm("durable.view_run")
