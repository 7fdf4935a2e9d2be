"""A strict Content-Security-Policy for every page.

It allows scripts, styles and images from this site alone, and none of them inline. Owns the header and nothing else. A
response that has one keeps it.
"""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

__all__ = ["POLICY", "ContentSecurityPolicy"]

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


class ContentSecurityPolicy:
    """Middleware that sets the policy."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response
