"""Errors as problem documents (RFC 9457, `application/problem+json`).

Owns the mapping from errors to problems: the type, status, title and further members. `type` and `code` are stable;
titles and details are for people. An error that is not listed here is a defect and stays an exception, for Django to
report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions, status

from durable import runtime
from durable.conf import conf
from durable.core.errors import (
    DurableError,
    EntryNotFoundError,
    InvalidTransitionError,
    KeyConflictError,
    MessageConflictError,
    MessageNotAcceptedError,
    MessageNotPendingError,
    MessageRefusedError,
    PayloadError,
    ReplayRefusedError,
    RunConflictError,
    RunNotFoundError,
    StalePlanError,
    StaleRunError,
    StartRefusedError,
)
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.reading import ReplicaLostError, StatementTimeoutError, is_statement_timeout, lost
from durable.operations.idempotency import KeyReusedError

CONTENT_TYPE: Final = "application/problem+json"
MAX_FAULTS: Final = 20  # faults of one request that are reported
_LONGEST_DETAIL: Final = 4_000  # characters: the detail quotes the request, and may be long
_LONGEST_FAULT: Final = 500  # characters of a fault's location and of its description

#: Every code with its title. The type of a problem is `urn:durable:problem:<code>`.
TITLES: Final = {
    "arguments-refused": "The workflow cannot be started with these arguments",
    "body-too-large": "The body is too large",
    "entry-not-found": "There is no such entry",
    "id-taken": "The id is taken",
    "idempotency-key-reused": "The idempotency key belongs to another request",
    "invalid-cursor": "The cursor is not one of this list",
    "invalid-request": "The request is not what the interface takes",
    "key-taken": "An open run has the key",
    "length-required": "The length of the body is not said",
    "invalid-transition": "The run's state does not allow this",
    "message-not-accepted": "The workflow accepts no such message",
    "message-not-pending": "The run has no such message to receive",
    "message-refused": "The run has refused the message",
    "malformed-body": "The body cannot be read",
    "method-not-allowed": "The method is not allowed here",
    "not-authenticated": "No user is signed in",
    "not-found": "There is no such thing",
    "payload-refused": "A value cannot be recorded",
    "permission-denied": "You may not do this",
    "plan-stale": "The history has changed since the replay was planned",
    "refused": "This cannot be done",
    "replay-refused": "The run cannot be replayed from there",
    "run-ended": "The run has ended without an answer",
    "run-moved-on": "The run has changed since you looked at it",
    "run-not-found": "There is no such run",
    "statement-timeout": "The database took too long",
    "replica-lost": "The read replica failed",
    "start-refused": "The rate has no room for the start",
    "throttled": "Too many requests",
    "too-many-streams": "Too many streams are open",
    "unknown-workflow": "There is no such workflow",
    "unsupported-media-type": "The body is not of a type that can be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem document."""

    code: str
    status: int
    detail: str
    members: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def document(self, instance: str) -> dict[str, Any]:
        """Return the document's members; `instance` is the path of the request."""
        return {
            "type": f"urn:durable:problem:{self.code}",
            "title": TITLES[self.code],
            "status": self.status,
            "detail": shortened(self.detail, _LONGEST_DETAIL),
            "instance": instance,
            "code": self.code,
            **{name: _json_member(each) for name, each in self.members.items()},
        }


class ProblemError(Exception):
    """A problem that a view has found."""

    def __init__(
        self, code: str, status: int, detail: str, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        self.problem = Problem(code=code, status=status, detail=detail, members=members, headers=headers or {})
        super().__init__(detail)


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
    if isinstance(error, ProblemError):
        return error.problem
    if is_statement_timeout(error):
        error = StatementTimeoutError(conf.STATEMENT_TIMEOUT)
    error = lost(error) or error
    for kind, make in _PROBLEMS:
        if isinstance(error, kind):
            return make(error)
    return None


def _as(code: str, status: int, *attributes: str) -> Callable[[Any], Problem]:
    """Return a function that makes a problem with the error's own text, and some of its attributes as members."""

    def make(error: Any) -> Problem:
        members = {name: getattr(error, name) for name in attributes}
        return Problem(code=code, status=status, detail=_sentence(error), members=members)

    return make


def _json_member(member: Any) -> Any:
    return shortened(member, _LONGEST_FAULT) if isinstance(member, str) else member


def shortened(text: str, most: int) -> str:
    """Return the text, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def _sentence(error: Exception) -> str:
    detail = getattr(error, "detail", None)
    text = str(error if detail is None else detail)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


def _transition(error: InvalidTransitionError) -> Problem:
    members = {"state": error.state, "allowed": list(error.allowed), "action": error.action}
    return Problem(code="invalid-transition", status=409, detail=_sentence(error), members=members)


def _moved_on(error: StaleRunError) -> Problem:
    members = {"state": error.state, "action": error.action}
    return Problem(code="run-moved-on", status=409, detail=_sentence(error), members=members)


def _took_too_long(error: StatementTimeoutError) -> Problem:
    return Problem(code="statement-timeout", status=503, detail=_sentence(error), headers={"Retry-After": "60"})


def _replica_lost(error: ReplicaLostError) -> Problem:
    return Problem(code="replica-lost", status=503, detail=_sentence(error), headers={"Retry-After": "1"})


def _not_accepted(error: MessageNotAcceptedError) -> Problem:
    """Return the faults of the message's body, in the form of `invalid-request`, or the fault of its name."""
    faults = [(f"body/{each.at}".rstrip("/"), each.problem, "type") for each in error.faults]
    return Problem(
        code="message-not-accepted",
        status=422,
        detail=_sentence(error),
        members={
            "errors": _told(faults or [("queue", f"{error.workflow} accepts no such message", "undeclared")]),
            "declared": list(error.declared),
            "nearest": list(error.nearest),
        },
    )


def _no_room(error: StartRefusedError) -> Problem:
    wait = max(1, math.ceil((error.retry_at - runtime.current().now()).total_seconds()))
    members = {"limit": error.limit, "key": error.key, "retry_at": error.retry_at.isoformat()}
    return Problem(
        code="start-refused", status=429, detail=_sentence(error), members=members, headers={"Retry-After": f"{wait}"}
    )


def _throttled(error: exceptions.Throttled) -> Problem:
    wait: float | None = getattr(error, "wait", None)  # seconds
    headers = {} if wait is None else {"Retry-After": f"{math.ceil(wait)}"}
    return Problem(code="throttled", status=429, detail=_sentence(error), headers=headers)


def _unauthenticated(error: exceptions.APIException, challenge: str | None) -> Problem:
    return Problem(
        code="not-authenticated",
        status=401 if challenge else 403,
        detail=_sentence(error),
        headers={"WWW-Authenticate": challenge} if challenge else {},
    )


def _of_the_hosts(error: exceptions.APIException) -> Problem:
    return Problem(code="refused", status=error.status_code, detail=_sentence(error))


def _invalid(error: exceptions.ValidationError) -> Problem:
    errors = _told(_faults(error.get_full_details()))
    shown = "; ".join(f"{each['at'] or 'the request'}: {each['detail']}" for each in errors[:5])
    return Problem(code="invalid-request", status=400, detail=shown, members={"errors": errors})


def _told(faults: Iterable[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [
        {"at": shortened(at, _LONGEST_FAULT), "detail": shortened(detail, _LONGEST_FAULT), "code": code}
        for at, detail, code in islice(faults, MAX_FAULTS)
    ]


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
    (
        PermissionDenied,
        _as("permission-denied", status.HTTP_403_FORBIDDEN),
    ),  # first: a denial is a DurableError too
    (StaleRunError, _moved_on),
    (InvalidTransitionError, _transition),
    (RunNotFoundError, _as("run-not-found", status.HTTP_404_NOT_FOUND)),
    (EntryNotFoundError, _as("entry-not-found", status.HTTP_404_NOT_FOUND, "location", "nearest")),
    (KeyConflictError, _as("key-taken", status.HTTP_409_CONFLICT, "key")),
    (RunConflictError, _as("id-taken", status.HTTP_409_CONFLICT)),
    (MessageNotPendingError, _as("message-not-pending", status.HTTP_409_CONFLICT)),
    (MessageConflictError, _as("id-taken", status.HTTP_409_CONFLICT)),
    (MessageNotAcceptedError, _not_accepted),
    (MessageRefusedError, _as("message-refused", status.HTTP_409_CONFLICT, "reason")),
    (StalePlanError, _as("plan-stale", status.HTTP_409_CONFLICT, "location")),
    (ReplayRefusedError, _as("replay-refused", status.HTTP_409_CONFLICT, "location", "refusals")),
    (PayloadError, _as("payload-refused", status.HTTP_422_UNPROCESSABLE_ENTITY, "what", "path")),
    (KeyReusedError, _as("idempotency-key-reused", status.HTTP_422_UNPROCESSABLE_ENTITY)),
    (StartRefusedError, _no_room),
    (DurableError, _as("refused", status.HTTP_409_CONFLICT)),
    (StatementTimeoutError, _took_too_long),
    (ReplicaLostError, _replica_lost),
    (InvalidCursorError, _as("invalid-cursor", status.HTTP_400_BAD_REQUEST)),
    (BodyTooLargeError, _as("body-too-large", status.HTTP_413_REQUEST_ENTITY_TOO_LARGE)),
    (RequestDataTooBig, _as("body-too-large", status.HTTP_413_REQUEST_ENTITY_TOO_LARGE)),
    (exceptions.ValidationError, _invalid),
    (exceptions.ParseError, _as("malformed-body", status.HTTP_400_BAD_REQUEST)),
    (exceptions.PermissionDenied, _as("permission-denied", status.HTTP_403_FORBIDDEN)),
    ((Http404, exceptions.NotFound), _as("not-found", status.HTTP_404_NOT_FOUND)),
    (exceptions.MethodNotAllowed, _as("method-not-allowed", status.HTTP_405_METHOD_NOT_ALLOWED)),
    (exceptions.UnsupportedMediaType, _as("unsupported-media-type", status.HTTP_415_UNSUPPORTED_MEDIA_TYPE)),
    (exceptions.Throttled, _throttled),
    (UnreadablePostError, _as("malformed-body", status.HTTP_400_BAD_REQUEST)),
    (exceptions.APIException, _of_the_hosts),  # last: other errors that the host's authentication may raise
)
