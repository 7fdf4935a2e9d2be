"""Requests that a browser makes for a page of another site.

A browser adds some credentials by itself: HTTP Basic authentication, client certificates, a proxy's single sign-on. A
page of any site may make the browser send a form, also an empty one, or a request without a body. A browser sends
`application/json` for another site only if the project allows that (CORS), so such requests must have this type; all
other requests need it only if they have a body.
"""

from __future__ import annotations

from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from durable.api.parsing import JSON, media_type_of


def check_origin(request: Request) -> None:
    """Raise UnsupportedMediaType if a request comes from a page of another site and is not declared as JSON."""
    if _is_from_elsewhere(request) and media_type_of(request) != JSON:
        raise UnsupportedMediaType(
            media_type_of(request),
            "A page of another site has made this request; such a request needs Content-Type: application/json, also "
            "without a body.",
        )


def _is_from_elsewhere(request: Request) -> bool:
    """Return whether a browser's headers say so.

    Programs send neither header; every browser sends `Origin` with a POST to another site.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    scheme = "https" if request.is_secure() else "http"
    return bool(origin != f"{scheme}://{request.get_host()}")
