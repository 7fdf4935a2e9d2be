"""Bodies of requests: found also where the client does not say how long they are.

Django REST Framework takes a request without Content-Length for one without a body. A client that sends in chunks, or over
HTTP/2, names no length; its body must not be ignored, because what it asks for would then be done without its conditions.
"""

from __future__ import annotations

import io

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from durable.api.parsing import longest_body
from durable.api.problems import ProblemError

__all__ = ["BodyRequest"]


class BodyRequest(Request):
    """A request whose body is read also without a Content-Length."""

    def _load_stream(self) -> None:
        try:
            super()._load_stream()  # type: ignore[misc]  # the stubs do not have it
            if self._stream is None:
                body = _unmeasured(self._request)
                self._stream = io.BytesIO(body) if body else None
        except RawPostDataException:  # a middleware has read it as a form
            raise UnsupportedMediaType(self.content_type) from None


def _unmeasured(request: HttpRequest) -> bytes:
    """The body, up to a byte more than may be parsed; b"" if there is none. Raises ProblemError, UnreadablePostError."""
    most = longest_body() + 1
    if isinstance(request, ASGIRequest):  # the server has read it
        has_begun: bool = request._read_started  # type: ignore[attr-defined]  # as DRF asks it; the stubs do not have it
        return request.body if has_begun else request.read(most)
    if request.META.get("wsgi.input_terminated"):  # the server marks its end
        try:
            body: bytes = request.META["wsgi.input"].read(most)
        except OSError as error:
            raise UnreadablePostError(*error.args) from error
        return body
    if request.headers.get("Transfer-Encoding"):
        detail = (
            "This server reads no body whose length is not said before: send it with Content-Length, not in chunks."
        )
        raise ProblemError("length-required", 411, detail)
    return b""
