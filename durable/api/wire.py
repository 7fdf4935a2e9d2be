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

__all__ = ["EVENT_STREAM", "BodyTooLargeError", "EventStreamRenderer", "JSONParser", "JSONRenderer", "Negotiation"]

EVENT_STREAM = "text/event-stream"
_SLACK = 65_536  # bytes of a body beside the value in it


class BodyTooLargeError(APIException):
    """The request's body is longer than anything that could be recorded."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body-too-large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is longer than {limit:,} bytes. Keep the data elsewhere, and send a reference to it: a key, a URL."
        )


class JSONParser(parsers.BaseParser):
    """JSON in UTF-8; up to twice `MAX_PAYLOAD_BYTES`, since the form in which values are recorded may be shorter."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The body's value. Raises BodyTooLargeError, and ParseError for what is no JSON."""
        limit = 2 * conf.MAX_PAYLOAD_BYTES + _SLACK
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise BodyTooLargeError(limit)
        try:
            return json.loads(body.decode("utf-8"), parse_constant=_refused)
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None
        except ValueError as error:
            raise ParseError(f"The body is no JSON: {error}. Send a JSON object in UTF-8.") from None


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
        wanted = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == wanted), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """The renderer and its type."""
        accepted = request.META.get("HTTP_ACCEPT", "").lower()
        for renderer in renderers:
            if renderer.media_type == EVENT_STREAM and EVENT_STREAM in accepted:
                return renderer, renderer.media_type
        return renderers[0], renderers[0].media_type
