"""How requests are read and answers written: JSON within limits, whatever the host has set for other interfaces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework import parsers, renderers, status
from rest_framework.exceptions import APIException, ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from durable.conf import conf

__all__ = [
    "EVENT_STREAM",
    "JSON",
    "BodyTooLargeError",
    "EventStreamRenderer",
    "JSONParser",
    "JSONRenderer",
    "Negotiation",
    "longest_body",
    "media_type_of",
]

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
_SLACK = 65_536  # bytes of a body beside the value in it
_DEEPEST = 300  # containers within containers: more than a codec takes, and far from the end of Python's stack


def longest_body() -> int:
    """The limit of a body in bytes: twice `MAX_PAYLOAD_BYTES`, since the form in which values are recorded may be shorter."""
    return 2 * conf.MAX_PAYLOAD_BYTES + _SLACK


class BodyTooLargeError(APIException):
    """The request's body is longer than anything that could be recorded."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body-too-large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is longer than {limit:,} bytes. Keep the data elsewhere, and send a reference to it: a key, a URL."
        )


class JSONParser(parsers.BaseParser):
    """JSON in UTF-8, up to `longest_body()` bytes."""

    media_type = JSON

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The body's value. Raises BodyTooLargeError, and ParseError for what is no JSON."""
        limit = longest_body()
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise BodyTooLargeError(limit)
        try:
            value = json.loads(body.decode("utf-8"), parse_constant=_refused)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            raise ParseError(f"The body is no JSON: {error}. Send a JSON object in UTF-8.") from None
        if _is_too_deep(value):
            raise _too_deep()
        return value


def _too_deep() -> ParseError:
    return ParseError(f"The body is nested too deeply: at most {_DEEPEST} levels are read.")


def _is_too_deep(value: Any) -> bool:
    """Looked at level by level, so that the answer does not depend on how much of Python's stack is left."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def media_type_of(request: Request) -> str:
    """The type of the request's body in lower case, without parameters; "" if it names none."""
    return (request.content_type or "").partition(";")[0].strip().lower()


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


class JSONRenderer(renderers.JSONRenderer):
    """Compact JSON in ASCII: any text may be answered, lone surrogates included."""

    ensure_ascii = True
    compact = True
    strict = True
    charset = None


class EventStreamRenderer(JSONRenderer):
    """Stands for server-sent events where the answer is chosen; events are written elsewhere, problems as JSON."""

    media_type = EVENT_STREAM
    format = "event-stream"


class Negotiation(BaseContentNegotiation):
    """JSON, whatever is accepted; events where a view has them and they are asked for by name."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """The first parser for the body's type."""
        wanted = media_type_of(request)
        return next((parser for parser in parsers if parser.media_type == wanted), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """The renderer and its type."""
        accepted = request.META.get("HTTP_ACCEPT", "").lower()
        for renderer in renderers:
            if renderer.media_type == EVENT_STREAM and EVENT_STREAM in accepted:
                return renderer, renderer.media_type
        return renderers[0], renderers[0].media_type
