"""Reading requests and rendering answers: JSON within limits, whatever the host has set for other views."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from rest_framework import parsers, renderers
from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from durable.api.problems import BodyTooLargeError
from durable.codec.given_json import read_given
from durable.conf import conf
from durable.listings.problems import ProblemError

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
_SLACK = 65_536  # bytes of a body in addition to its value
_DEEPEST = 300  # nested containers: more than a codec accepts, and far below the limit of Python's stack


def longest_body() -> int:
    """Return the limit of a body in bytes: twice `MAX_PAYLOAD_BYTES`, since the recorded form may be shorter."""
    return 2 * conf.MAX_PAYLOAD_BYTES + _SLACK


class JSONParser(parsers.BaseParser):
    """A parser for JSON in UTF-8, up to `longest_body()` bytes."""

    media_type = JSON

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the body's value. Raises BodyTooLargeError, and ParseError for a text that is not JSON."""
        limit = longest_body()
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise BodyTooLargeError(limit)
        try:
            value = read_given(body.decode("utf-8"))
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {error}. Send a JSON object in UTF-8.") from None
        if _is_too_deep(value):
            raise _too_deep()
        return value


def _too_deep() -> ParseError:
    return ParseError(f"The body is nested too deeply: at most {_DEEPEST} levels are read.")


def _is_too_deep(value: Any) -> bool:
    """Return whether the value is nested too deeply; checked level by level, so the remaining stack does not matter."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def media_type_of(request: Request) -> str:
    """Return the type of the request's body in lower case, without parameters; "" if there is none."""
    return (request.content_type or "").partition(";")[0].strip().lower()


class JSONRenderer(renderers.JSONRenderer):
    """A renderer for compact JSON in ASCII: any text can be rendered, lone surrogates included."""

    ensure_ascii = True
    compact = True
    strict = True
    charset = None


class EventStreamRenderer(JSONRenderer):
    """The renderer that content negotiation selects for server-sent events.

    Events are written elsewhere; problems are rendered as JSON.
    """

    media_type = EVENT_STREAM
    format = "event-stream"


class Negotiation(BaseContentNegotiation):
    """JSON for every Accept header; events if the view has them and the request names their type."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        wanted = media_type_of(request)
        return next((parser for parser in parsers if parser.media_type == wanted), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        accepted = request.META.get("HTTP_ACCEPT", "").lower()
        for renderer in renderers:
            if renderer.media_type == EVENT_STREAM and EVENT_STREAM in accepted:
                return renderer, renderer.media_type
        return renderers[0], renderers[0].media_type


class BodyRequest(Request):
    """A request whose body is read even without a Content-Length.

    REST framework would treat it as empty, but clients that send in chunks or over HTTP/2 declare no length. A verb
    would then run without its conditions.
    """

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


def check_origin(request: Request) -> None:
    """Raise UnsupportedMediaType if a request comes from a page of another site and is not declared as JSON.

    A browser adds some credentials by itself: HTTP Basic authentication, client certificates, a proxy's single sign-on.
    A page of any site may make it send a form, or a request without a body. It sends `application/json` for another
    site only if the project allows that (CORS), so such requests must have this type; others only if they have a body.
    """
    if _is_from_elsewhere(request) and media_type_of(request) != JSON:
        raise UnsupportedMediaType(
            media_type_of(request),
            "A page of another site has made this request; such a request needs Content-Type: application/json, also "
            "without a body.",
        )


def _is_from_elsewhere(request: Request) -> bool:
    """Return whether a browser's headers say that the request comes from another site.

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
