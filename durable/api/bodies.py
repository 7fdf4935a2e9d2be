"""Bodies of requests: read also if the client does not declare their length.

Django REST Framework treats a request without Content-Length as one without a body. A client that sends in chunks, or
over HTTP/2, declares no length; its body must not be ignored, because the verb would then run without its conditions.
"""

from __future__ import annotations

import io

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from durable.api.parsing import longest_body
from durable.api.problems import ProblemError


class BodyRequest(Request):
    """A request whose body is read also without a Content-Length."""

    def _load_stream(self) -> None:
        try:
            super()._load_stream()  # type: ignore[misc]  # missing in the stubs
            if self._stream is None:
                body = _unmeasured(self._request)
                self._stream = io.BytesIO(body) if body else None
        except RawPostDataException:  # a middleware has read the body as a form
            raise UnsupportedMediaType(self.content_type) from None


def _unmeasured(request: HttpRequest) -> bytes:
    """Return the body, up to one byte more than may be parsed; b"" if there is none.

    Raises ProblemError, UnreadablePostError.
    """
    most = longest_body() + 1
    if isinstance(request, ASGIRequest):  # the server has read the body
        has_begun: bool = request._read_started  # type: ignore[attr-defined]  # missing in the stubs
        return request.body if has_begun else request.read(most)
    if request.META.get("wsgi.input_terminated"):  # the server marks the end of the body
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
