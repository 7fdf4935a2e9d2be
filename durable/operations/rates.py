"""The verbs on rates of limits: override a rate, close a limit for some time, and open it again."""

from __future__ import annotations

from datetime import datetime

from durable import runtime
from durable.core.duration import check_moment
from durable.core.errors import StaleLimitError, UnknownLimitError
from durable.core.ids import check_key, check_limit
from durable.core.limits.rates import LimitClosing, Rate
from durable.operations.audit import Attribution, audited
from durable.runtime import Runtime


def set_rate(name: str, rate: str, burst: int = 1) -> None:
    """Override the limit's rate, with one such as "500/min". The override survives deploys.

    Waiting attempts get new moments, in their order. Raises OperationDeniedError, UnknownLimitError, StaleLimitError,
    and ValueError for an invalid rate.
    """
    _set("set_rate", name, Rate.of(rate, burst))


def take_back_rate(name: str) -> None:
    """Revert the override: the rate in code or settings is in force again. Raises as `set_rate` does."""
    _set("take_back_rate", name, None)


def close_limit(name: str, until: datetime, *, key: str = "") -> None:
    """Close the limit: no attempt of its rate begins before `until`; with `key`, no attempt of this key.

    Attempts that have begun continue. A closing replaces the earlier one. Raises OperationDeniedError,
    UnknownLimitError, and ValueError for a moment that has passed.
    """
    at = runtime.current()
    check_limit(name)
    check_moment(until, "until")
    if key:
        check_key(key)
    if until <= at.now():
        raise ValueError(f"a limit is closed until a moment in the future, not until {until.isoformat()}")
    with audited(at, "close_limit", "", subject=("limit", name)) as by, at.store.transaction():
        _check_known(at, name)
        actor = "" if by.acting is None else by.acting.actor.name
        closing = LimitClosing(until=until, by=actor, reason="" if by.acting is None else by.acting.reason)
        before = at.store.close_rate(name, key, closing)
        if before is not None and before.until <= at.now():
            before = None
        _check_expected(by, name, closing_revision_of(before))
        detail = f"limit {_label(name, key)}: {closing_revision_of(before)} before"
        at.store.log([by.done(before="", after=until.isoformat(), detail=detail)])


def open_limit(name: str, *, key: str = "") -> None:
    """End the closing of a limit, or of one of its keys: attempts that wait begin at its rate.

    An open limit stays as it is. Raises OperationDeniedError and UnknownLimitError.
    """
    at = runtime.current()
    with audited(at, "open_limit", "", subject=("limit", name)) as by, at.store.transaction():
        _check_known(at, name)
        opened = at.store.open_rate(name, key, at.now())
        was = closing_revision_of(None if opened is None else opened[0])
        _check_expected(by, name, was)
        at.store.log([by.done(before="", after="open", detail=f"limit {_label(name, key)}: {was} before")])
    if opened is not None and opened[1]:
        at.notify(opened[1])


def rate_revision_of(rate: Rate) -> str:
    """Return an opaque text for the rate that an operator saw, for `acting_as(expected=)`."""
    return f"rate {rate}"


def closing_revision_of(closing: LimitClosing | None) -> str:
    """Return a text for the closing (or None) that an operator saw, for `acting_as(expected=)`."""
    return "open" if closing is None else f"closed until {closing.until.isoformat()}"


def _set(action: str, name: str, override: Rate | None) -> None:
    at = runtime.current()
    with audited(at, action, "", subject=("limit", name)) as by, at.store.transaction():
        done = at.store.set_rate(name, override, at.now())
        if done is None:
            raise UnknownLimitError(name, is_rate=True)
        _check_expected(by, name, rate_revision_of(done[0]))
        detail = f'limit "{name}": {done[0]} before'
        at.store.log([by.done(before="", after="" if override is None else str(override), detail=detail)])
    if done[1]:
        at.notify(done[1])


def _check_known(at: Runtime, name: str) -> None:
    if not at.store.has_rate(name):
        raise UnknownLimitError(name, is_rate=True)


def _check_expected(by: Attribution, name: str, revision: str) -> None:
    if by.saw_other(revision):
        raise StaleLimitError(name)


def _label(name: str, key: str) -> str:
    return f'"{name}/{key}"' if key else f'"{name}"'
