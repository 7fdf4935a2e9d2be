"""Limits: set how many slots one allows while runs hold some and wait for others, and take that back."""

from __future__ import annotations

from durable import runtime
from durable.core.errors import StaleLimitError, UnknownLimitError
from durable.core.workflow_limits import check_at_once
from durable.operations.audited import audited

__all__ = ["revision_of", "set_limit", "take_back_limit"]


def set_limit(name: str, at_once: int) -> None:
    """Let the limit allow `at_once` slots of each of its keys, whatever code and settings say, deploys included.

    A higher number lets runs that wait go on within about a second. With a lower one, runs that hold a slot keep it. Raises
    OperationDeniedError, UnknownLimitError, StaleLimitError, and ValueError for another number than 0 to 999,999.
    """
    _set("set_limit", name, check_at_once(at_once))


def take_back_limit(name: str) -> None:
    """Let the limit allow the number again that code or settings gave it. Raises as `set_limit` does."""
    _set("take_back_limit", name, None)


def revision_of(at_once: int) -> str:
    """Return an opaque text for the number that an operator saw, for `acting_as(expected=)`."""
    return f"at once {at_once}"


def _set(action: str, name: str, override: int | None) -> None:
    at = runtime.current()
    with audited(at, action, "") as by, at.store.transaction():
        before = at.store.set_limit(name, override)
        if before is None:
            raise UnknownLimitError(name)
        expected = by.acting.expected if by.acting is not None else None
        if expected is not None and expected != revision_of(before):
            raise StaleLimitError(name)
        detail = f'limit "{name}": {before} at once before'
        at.store.log([by.done(before="", after="" if override is None else str(override), detail=detail)])
