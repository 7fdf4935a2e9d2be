"""Idempotent changes: performed once for each `Idempotency-Key`, with the same answer for a repeated request.

The stored answer is the operation's result, refusals included. A refusal before the operation, for a missing permission
or an invalid form, leaves the key free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpResponse
from django.utils.encoding import escape_uri_path
from rest_framework.request import Request

from durable.api.problems import problem_of
from durable.listings.access import owner_of
from durable.listings.problems import CONTENT_TYPE, Problem, ProblemError
from durable.operations.idempotency import MAX_KEY, Answer, once

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"


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
        if problem is None:
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
