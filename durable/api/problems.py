"""The problems of REST framework's errors, and of Django's about requests; those of durable's are in
`durable.listings.problems`.

An error that is in neither is a defect and stays an exception, for Django to report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from django.core.exceptions import RequestDataTooBig
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions, status

from durable.listings import problems
from durable.listings.problems import Problem, problem_with, said_by, told


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
