"""Reading requests and rendering answers: JSON within limits, whatever the host has set for other views; the problems
of REST framework's errors, and of Django's about requests; changes that are performed once for each `Idempotency-Key`.

The problems of durable's errors are in `durable.listings.problems`. An error that is in neither is a defect and stays
an exception, for Django to report.

The answer stored for a key is the operation's result, refusals included. A refusal before the operation, for a missing
permission or an invalid form, leaves the key free. So does trouble of the server, which a repeated request may not
meet again: a statement that took too long, for example.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from django.core.exceptions import RequestDataTooBig
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, RawPostDataException, UnreadablePostError
from django.utils.encoding import escape_uri_path
from rest_framework import exceptions, parsers, renderers, status
from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from durable.codec.given_json import read_given
from durable.conf import conf
from durable.listings import problems
from durable.listings.access import owner_of
from durable.listings.problems import CONTENT_TYPE, Problem, ProblemError, problem_with, said_by, told
from durable.operations.idempotency import MAX_KEY, Answer, once

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


# -- problems


class BodyTooLargeError(exceptions.APIException):
    """The request's body is longer than any value that could be recorded."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body-too-large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is longer than {limit:,} bytes. Keep the data elsewhere, and send a reference to it: a key, a URL."
        )


def problem_of(error: Exception, challenge: str | None = None) -> Problem | None:
    """Return the problem for an error; None for a defect. `challenge` is the WWW-Authenticate header, or None."""
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return _unauthenticated(error, challenge)
    if (found := problems.problem_of(error)) is not None:
        return found
    return next((make(error) for kind, make in _PROBLEMS if isinstance(error, kind)), None)


def _throttled(error: exceptions.Throttled) -> Problem:
    wait: float | None = getattr(error, "wait", None)  # seconds
    headers = {} if wait is None else {"Retry-After": f"{math.ceil(wait)}"}
    return Problem(code="throttled", status=429, detail=said_by(error), headers=headers)


def _unauthenticated(error: exceptions.APIException, challenge: str | None) -> Problem:
    return Problem(
        code="not-authenticated",
        status=401 if challenge else 403,
        detail=said_by(error),
        headers={"WWW-Authenticate": challenge} if challenge else {},
    )


def _of_the_hosts(error: exceptions.APIException) -> Problem:
    return Problem(code="refused", status=error.status_code, detail=said_by(error))


def _invalid(error: exceptions.ValidationError) -> Problem:
    errors = told(_faults(error.get_full_details()))
    shown = "; ".join(f"{each['at'] or 'the request'}: {each['detail']}" for each in errors[:5])
    return Problem(code="invalid-request", status=400, detail=shown, members={"errors": errors})


def _faults(details: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield each fault: its location, such as `args/0`, its description, and its code."""
    if isinstance(details, dict) and isinstance(details.get("message"), str) and "code" in details:
        yield "/".join(at), str(details["message"]), str(details["code"])
        return
    children: Iterable[tuple[str, Any]] = (
        details.items() if isinstance(details, dict) else [("", each) for each in details]
    )
    for name, child in children:
        yield from _faults(child, at if name in ("", "non_field_errors") else (*at, str(name)))


_PROBLEMS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], Problem]], ...]] = (
    (BodyTooLargeError, problem_with("body-too-large", 413)),
    (RequestDataTooBig, problem_with("body-too-large", 413)),
    (exceptions.ValidationError, _invalid),
    (exceptions.ParseError, problem_with("malformed-body", 400)),
    (exceptions.PermissionDenied, problem_with("permission-denied", 403)),
    ((Http404, exceptions.NotFound), problem_with("not-found", 404)),
    (exceptions.MethodNotAllowed, problem_with("method-not-allowed", 405)),
    (exceptions.UnsupportedMediaType, problem_with("unsupported-media-type", 415)),
    (exceptions.Throttled, _throttled),
    (UnreadablePostError, problem_with("malformed-body", 400)),
    (exceptions.APIException, _of_the_hosts),  # last: other errors that the host's authentication may raise
)


# -- changes by an idempotency key

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
_TROUBLE: Final = 500  # and above: not an answer of the operation, which is rolled back


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a change. `data` is JSON-native and holds no payload: it may be stored for a day."""

    data: dict[str, Any]
    status: int = 200
    location: str = ""


def answered(request: Request, perform: Callable[[], Done]) -> HttpResponse:
    """Answer a request that changes something: the answer of `perform`, or the stored answer of its key."""
    key = _key(request)
    if key is None:
        return _response(_answer(request, perform), is_replayed=False)
    answer, is_replayed = once(
        owner=owner_of(request),
        key=key,
        fingerprint=_fingerprint(request),
        perform=lambda: _answer(request, perform),
    )
    return _response(answer, is_replayed=is_replayed)


def as_json(data: Any) -> str:
    """Return compact JSON in ASCII."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _key(request: Request) -> str | None:
    key: str | None = request.headers.get(HEADER)
    if key is None:
        return None
    if not (1 <= len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise ProblemError(
            "invalid-request",
            400,
            f"{HEADER} is made of 1 to {MAX_KEY} printable ASCII characters; a random UUID for each request, say.",
            errors=[{"at": HEADER, "detail": "This cannot be a key.", "code": "invalid"}],
        )
    return key


def _fingerprint(request: Request) -> str:
    """Return a hash of the method, path and body that does not depend on the formatting of the JSON."""
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode()).hexdigest()


def _answer(request: Request, perform: Callable[[], Done]) -> Answer:
    try:
        done = perform()
    except Exception as error:
        problem = problem_of(error)
        if problem is None or problem.status >= _TROUBLE:
            raise
        return _refusal(request, problem)
    headers = {"Location": done.location} if done.location else {}
    return Answer(status=done.status, body=as_json(done.data), headers={"Content-Type": "application/json", **headers})


def _refusal(request: Request, problem: Problem) -> Answer:
    body = as_json(problem.document(escape_uri_path(request.path)))
    return Answer(status=problem.status, body=body, headers={"Content-Type": CONTENT_TYPE, **problem.headers})


def _response(answer: Answer, *, is_replayed: bool) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))
    if is_replayed:
        response[REPLAYED] = "true"
    return response
