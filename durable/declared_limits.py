"""Declarations of limits in code and settings, for the first use of a limit.

Later the limit's row decides, which operators may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from durable.conf import conf
from durable.core import registry
from durable.core.errors import UnknownLimitError
from durable.core.limits.rates import RateWant, rate_of
from durable.core.limits.slot_records import SlotWant
from durable.core.limits.workflow_limits import Limit, WorkflowLimits


def defined(want: SlotWant) -> SlotWant:
    """Return the wanted slot with the number of slots that the setting LIMITS, or else a workflow, defines."""
    if want.at_once is not None:
        return want
    at_once = conf.LIMITS.get(want.limit, {}).get("at_once")
    if at_once is None:
        at_once = next((each.at_once for each in _of_workflows(want.limit) if each.at_once is not None), None)
    return replace(want, at_once=at_once)


def with_rate(want: RateWant) -> RateWant:
    """Return the wanted units with the rate that the setting LIMITS, or else a workflow, defines."""
    if want.rate is not None:
        return want
    given = conf.LIMITS.get(want.limit, {})
    rate = rate_of(given.get("rate"), given.get("burst"))
    if rate is None:
        rate = next((each.rate for each in _of_workflows(want.limit) if each.rate is not None), None)
    return replace(want, rate=rate)


def with_known(error: UnknownLimitError) -> UnknownLimitError:
    """Return the error with the names of the limits that settings and workflows define for what was wanted."""
    is_given = [each for each, given in conf.LIMITS.items() if ("rate" if error.is_rate else "at_once") in given]
    limits = [each for found in registry.all() if found.limits is not None for each in found.limits.limits]
    is_named = [each.name for each in limits if (each.rate if error.is_rate else each.at_once) is not None]
    return UnknownLimitError(error.name, is_rate=error.is_rate, known=sorted({*is_given, *is_named}))


def undefined(limits: WorkflowLimits | None) -> list[str]:
    """Return the limits of a workflow that have no rate and no defined number of slots."""
    if limits is None:
        return []
    own = [each for each in limits.limits if each.at_once is None and each.rate is None]
    return [each.name for each in own if defined(SlotWant(each.name)).at_once is None]


def check_defined(limits: WorkflowLimits | None) -> None:
    """Raise UnknownLimitError if a limit of a workflow is not defined: its runs could never begin."""
    if names := undefined(limits):
        raise UnknownLimitError(names[0])


def _of_workflows(name: str) -> Iterator[Limit]:
    for definition in registry.all():
        if definition.limits is not None:
            yield from (each for each in definition.limits.limits if each.name == name)
