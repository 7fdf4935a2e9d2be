"""Errors as problem documents (RFC 9457, `application/problem+json`), for every interface of JSON.

Owns the mapping from durable's errors to problems: the type, status, title and further members. `type` and `code` are
stable; titles and details are for people. Knows no framework: an interface adds the errors of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from django.core.exceptions import PermissionDenied

from durable import runtime
from durable.conf import conf
from durable.core.errors import (
    DurableError,
    EntryNotFoundError,
    EventConflictError,
    FormInvalidError,
    InvalidTransitionError,
    KeyConflictError,
    MessageConflictError,
    MessageNotAcceptedError,
    MessageNotPendingError,
    MessageRefusedError,
    NotAllowedError,
    PayloadError,
    QuestionClosedError,
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
    "answer-refused": "The form refuses the answer",
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
    "question-closed": "The question is not open any more",
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


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for an error of durable; None for any other."""
    if isinstance(error, ProblemError):
        return error.problem
    if is_statement_timeout(error):
        error = StatementTimeoutError(conf.STATEMENT_TIMEOUT)
    error = lost(error) or error
    return next((make(error) for kind, make in _PROBLEMS if isinstance(error, kind)), None)


def problem_with(code: str, status: int, *attributes: str) -> Callable[[Any], Problem]:
    """Return a function that makes a problem with the error's own text, and some of its attributes as members."""

    def make(error: Any) -> Problem:
        members = {name: getattr(error, name) for name in attributes}
        return Problem(code=code, status=status, detail=said_by(error), members=members)

    return make


def _json_member(member: Any) -> Any:
    return shortened(member, _LONGEST_FAULT) if isinstance(member, str) else member


def shortened(text: str, most: int) -> str:
    """Return the text, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def said_by(error: Exception) -> str:
    detail = getattr(error, "detail", None)
    text = str(error if detail is None else detail)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


def _transition(error: InvalidTransitionError) -> Problem:
    members = {"state": error.state, "allowed": list(error.allowed), "action": error.action}
    return Problem(code="invalid-transition", status=409, detail=said_by(error), members=members)


def _moved_on(error: StaleRunError) -> Problem:
    members = {"state": error.state, "action": error.action}
    return Problem(code="run-moved-on", status=409, detail=said_by(error), members=members)


def _took_too_long(error: StatementTimeoutError) -> Problem:
    return Problem(code="statement-timeout", status=503, detail=said_by(error), headers={"Retry-After": "60"})


def _replica_lost(error: ReplicaLostError) -> Problem:
    return Problem(code="replica-lost", status=503, detail=said_by(error), headers={"Retry-After": "1"})


def _not_accepted(error: MessageNotAcceptedError) -> Problem:
    """Return the faults of the message's body, in the form of `invalid-request`, or the fault of its name."""
    faults = [(f"body/{each.at}".rstrip("/"), each.problem, "type") for each in error.faults]
    return Problem(
        code="message-not-accepted",
        status=422,
        detail=said_by(error),
        members={
            "errors": told(faults or [("queue", f"{error.workflow} accepts no such message", "undeclared")]),
            "declared": list(error.declared),
            "nearest": list(error.nearest),
        },
    )


def _form_refused(error: FormInvalidError) -> Problem:
    faults = [
        (_ASKED.get(name, f"data/{name}"), text, "invalid") for name, texts in error.errors.items() for text in texts
    ]
    return Problem(code="answer-refused", status=422, detail=said_by(error), members={"errors": told(faults)})


#: Where the errors of a question's form are in the request, if not in a field of its `data`.
_ASKED: Final = {"__all__": "data", "verdict": "data", "comment": "comment", "durable_to": "to"}


def _no_room(error: StartRefusedError) -> Problem:
    wait = max(1, math.ceil((error.retry_at - runtime.current().now()).total_seconds()))
    members = {"limit": error.limit, "key": error.key, "retry_at": error.retry_at.isoformat()}
    return Problem(
        code="start-refused", status=429, detail=said_by(error), members=members, headers={"Retry-After": f"{wait}"}
    )


def told(faults: Iterable[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [
        {"at": shortened(at, _LONGEST_FAULT), "detail": shortened(detail, _LONGEST_FAULT), "code": code}
        for at, detail, code in islice(faults, MAX_FAULTS)
    ]


_PROBLEMS: Final[tuple[tuple[type[Exception], Callable[[Any], Problem]], ...]] = (
    (PermissionDenied, problem_with("permission-denied", 403)),  # first: a denial is a DurableError too
    (StaleRunError, _moved_on),
    (InvalidTransitionError, _transition),
    (RunNotFoundError, problem_with("run-not-found", 404)),
    (EntryNotFoundError, problem_with("entry-not-found", 404, "location", "nearest")),
    (KeyConflictError, problem_with("key-taken", 409, "key")),
    (RunConflictError, problem_with("id-taken", 409)),
    (MessageNotPendingError, problem_with("message-not-pending", 409)),
    (MessageConflictError, problem_with("id-taken", 409)),
    (EventConflictError, problem_with("id-taken", 409)),
    (MessageNotAcceptedError, _not_accepted),
    (MessageRefusedError, problem_with("message-refused", 409, "reason")),
    (StalePlanError, problem_with("plan-stale", 409, "location")),
    (ReplayRefusedError, problem_with("replay-refused", 409, "location", "refusals")),
    (NotAllowedError, problem_with("permission-denied", 403)),
    (FormInvalidError, _form_refused),
    (QuestionClosedError, problem_with("question-closed", 409)),
    (PayloadError, problem_with("payload-refused", 422, "what", "path")),
    (KeyReusedError, problem_with("idempotency-key-reused", 422)),
    (StartRefusedError, _no_room),
    (DurableError, problem_with("refused", 409)),
    (StatementTimeoutError, _took_too_long),
    (ReplicaLostError, _replica_lost),
    (InvalidCursorError, problem_with("invalid-cursor", 400)),
)
