"""Limits: set how many slots one allows while runs hold some and wait for others, and take that back."""

from __future__ import annotations

from durable import runtime
from durable.core.errors import UnknownLimitError
from durable.core.workflow_limits import check_at_once
from durable.operations.audited import audited

__all__ = ["set_limit", "take_back_limit"]


def set_limit(name: str, at_once: int) -> None:
    """Let the limit allow `at_once` slots of each of its keys, whatever code and settings say, deploys included.

    A higher number lets runs that wait go on within about a second. With a lower one, runs that hold a slot keep it. Raises
    OperationDeniedError, UnknownLimitError, and ValueError for another number than 0 to 999,999.
    """
    _set("set_limit", name, check_at_once(at_once))


def take_back_limit(name: str) -> None:
    """Let the limit allow the number again that code or settings gave it. Raises as `set_limit` does."""
    _set("take_back_limit", name, None)


def _set(action: str, name: str, override: int | None) -> None:
    at = runtime.current()
    with audited(at, action, "") as by, at.store.transaction():
        before = at.store.set_limit(name, override)
        if before is None:
            raise UnknownLimitError(name)
        detail = f'limit "{name}": {before} at once before'
        at.store.log([by.done(before="", after="" if override is None else str(override), detail=detail)])
