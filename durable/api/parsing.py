"""Parsing of requests and rendering of answers: JSON within limits, whatever the host has set for other interfaces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework import parsers, renderers, status
from rest_framework.exceptions import APIException, ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from durable.conf import conf

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
_SLACK = 65_536  # bytes of a body beside its value
_DEEPEST = 300  # nested containers: more than a codec accepts, and far below the limit of Python's stack


def longest_body() -> int:
    """Return the limit of a body in bytes: twice `MAX_PAYLOAD_BYTES`, since the recorded form may be shorter."""
    return 2 * conf.MAX_PAYLOAD_BYTES + _SLACK


class BodyTooLargeError(APIException):
    """The request's body is longer than any value that could be recorded."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body-too-large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is longer than {limit:,} bytes. Keep the data elsewhere, and send a reference to it: a key, a URL."
        )


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
            value = json.loads(body.decode("utf-8"), parse_constant=_refused)
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


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


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
        """Return the first parser for the body's type."""
        wanted = media_type_of(request)
        return next((parser for parser in parsers if parser.media_type == wanted), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """Return the renderer and its type."""
        accepted = request.META.get("HTTP_ACCEPT", "").lower()
        for renderer in renderers:
            if renderer.media_type == EVENT_STREAM and EVENT_STREAM in accepted:
                return renderer, renderer.media_type
        return renderers[0], renderers[0].media_type
