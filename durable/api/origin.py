"""Requests that a browser makes for a page of another site.

A browser adds some credentials by itself: those of HTTP's Basic authentication, client certificates, a proxy's sign-on. A page
of any site may have it send a form, also an empty one, or a request without a body. `application/json` is the type that it
sends for another site only where the project allows that (CORS), so it is demanded of such requests; of all others it is
demanded only where there is a body.
"""

from __future__ import annotations

from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from durable.api.parsing import JSON, media_type_of

__all__ = ["check_origin"]


def check_origin(request: Request) -> None:
    """Raises UnsupportedMediaType for a request that comes from a page of another site and is not declared as JSON."""
    if _is_from_elsewhere(request) and media_type_of(request) != JSON:
        raise UnsupportedMediaType(
            media_type_of(request),
            "A page of another site has made this request; such a request needs Content-Type: application/json, also "
            "without a body.",
        )


def _is_from_elsewhere(request: Request) -> bool:
    """Whether a browser says so. Programs send neither header; every browser says `Origin` with a POST to another site."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    scheme = "https" if request.is_secure() else "http"
    return bool(origin != f"{scheme}://{request.get_host()}")
