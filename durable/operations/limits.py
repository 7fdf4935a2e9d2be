"""The verbs on limits: override a limit's number of slots, and revert that.

Code and settings define the number; operators may override it. The code's number is written after `migrate` and at the
first use of a limit, so that in a rolling deploy an old worker does not revert the new code's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig
from django.db import connections

from durable import runtime
from durable.conf import conf
from durable.core import registry
from durable.core.errors import StaleLimitError, UnknownLimitError
from durable.core.limits.rates import Rate, rate_of
from durable.core.limits.workflow_limits import MOST_AT_ONCE, Limit
from durable.core.numbers import check_whole
from durable.models import RateLimit
from durable.operations.audit import audited


def set_limit(name: str, at_once: int) -> None:
    """Override the limit's number of slots for each key. The override survives deploys.

    With a higher number, waiting runs continue within about a second. With a lower one, runs that hold a slot keep it.
    Raises OperationDeniedError, UnknownLimitError, StaleLimitError, and ValueError for another number than 0 to
    999,999.
    """
    _set("set_limit", name, check_whole("at_once", at_once, 0, MOST_AT_ONCE))


def take_back_limit(name: str) -> None:
    """Revert the override: the number in code or settings is in force again. Raises as `set_limit` does."""
    _set("take_back_limit", name, None)


def _discovered() -> Iterator[Limit]:
    """Yield the limits that this process's workflows name."""
    for definition in registry.all():
        if definition.limits is not None and registry.is_discovered(definition.name):
            yield from definition.limits.limits


def declared() -> dict[str, int]:
    """Return the numbers of slots that the settings and this process's workflows define, by limit."""
    found = {each.name: each.at_once for each in _discovered() if each.at_once is not None}
    return found | {name: given["at_once"] for name, given in conf.LIMITS.items() if "at_once" in given}


def declared_rates() -> dict[str, Rate]:
    """Return the rates that the settings and this process's workflows define, by limit."""
    found = {each.name: each.rate for each in _discovered() if each.rate is not None}
    given = {name: rate_of(each.get("rate"), each.get("burst")) for name, each in conf.LIMITS.items()}
    return found | {name: rate for name, rate in given.items() if rate is not None}


def synchronise() -> list[str]:
    """Write the code's numbers and rates; return the names of limits that are new or changed."""
    at = runtime.current()
    with at.store.transaction():
        changed = {name for name, at_once in sorted(declared().items()) if at.store.declare_limit(name, at_once)}
        changed |= {name for name, rate in sorted(declared_rates().items()) if at.store.declare_rate(name, rate)}
        return sorted(changed)


def synchronise_after_migrate(sender: AppConfig, using: str, **_: Any) -> None:  # noqa: ARG001
    """Do the same as a receiver of `post_migrate`."""
    if using == conf.DATABASE and RateLimit._meta.db_table in connections[using].introspection.table_names():
        synchronise()


def revision_of(at_once: int) -> str:
    """Return an opaque text for the number that an operator saw, for `acting_as(expected=)`."""
    return f"at once {at_once}"


def _set(action: str, name: str, override: int | None) -> None:
    at = runtime.current()
    with audited(at, action, "", subject=("limit", name)) as by, at.store.transaction():
        before = at.store.set_limit(name, override)
        if before is None:
            raise UnknownLimitError(name)
        if by.saw_other(revision_of(before)):
            raise StaleLimitError(name)
        detail = f'limit "{name}": {before} at once before'
        at.store.log([by.done(before="", after="" if override is None else str(override), detail=detail)])
