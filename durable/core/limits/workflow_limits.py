"""The limits of a workflow: which slots its runs hold, and for which keys.

Code writes a `Limit`. Plain data: `durable.core.limits.slots` takes the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from durable.core.ids import check_key, check_limit
from durable.core.limits.rates import Rate, RateWant, rate_of
from durable.core.limits.slot_records import SlotKind, SlotWant
from durable.core.numbers import check_whole
from durable.core.signatures import advised

MOST_AT_ONCE: Final = 999_999
_HOLDS: Final = (SlotKind.RUNNING.value, SlotKind.OPEN.value)


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """A limit of a workflow: at most `at_once` of its runs go on at a time, in all or for each key.

    `@workflow(limit=Limit("crm", at_once=1, key=lambda tenant: tenant, hold="open"))`. Workflows and steps that name
    the same limit share it. `key` is called with the arguments of the run, without the context, and returns text; it
    must return the same for the same arguments. With `hold="running"` a run holds its slot while a worker executes it,
    with `hold="open"` from its first pass to its end. With `rate`, such as "500/min" or "1/30 s", so many of its passes
    begin in each period, `burst` of them (1) at once after a pause; it then has slots only with `at_once` too. Without
    both, the limit is one that the setting LIMITS defines.
    """

    name: str
    at_once: int | None
    rate: Rate | None
    key: Callable[..., str] | None
    hold: SlotKind

    @advised("Limit(name, at_once=, rate=, burst=, key=, hold=)", {"limit": "at_once", "max": "at_once"})
    def __init__(
        self,
        name: str,
        *,
        at_once: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        key: Callable[..., str] | None = None,
        hold: Literal["running", "open"] = "running",
    ) -> None:
        check_limit(name)
        if hold not in _HOLDS:
            raise ValueError(f"a limit is held while the run is {' or '.join(map(repr, _HOLDS))}, not {hold!r}")
        if key is not None and not callable(key):
            raise TypeError(f"key= of a limit is a function of the run's arguments that returns text, not {key!r}")
        object.__setattr__(self, "name", name)
        if at_once is not None:
            check_whole("at_once", at_once, 0, MOST_AT_ONCE)
        object.__setattr__(self, "at_once", at_once)
        object.__setattr__(self, "rate", rate_of(rate, burst))
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "hold", SlotKind(hold))

    def want(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SlotWant:
        """Return the slot that a run with these arguments wants. Raises what `key` raises, TypeError and ValueError."""
        return SlotWant(self.name, self.key_of(args, kwargs), self.hold, self.at_once)

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a run with these arguments, "" without `key`. Raises as `want` does."""
        if self.key is None:
            return ""
        key = self.key(*args, **kwargs)
        if not isinstance(key, str):
            raise TypeError(f'the key of the limit "{self.name}" is text, not {key!r}: write key=lambda ...: str(...)')
        return check_key(key)


class WorkflowLimits:
    """The limits of one workflow, which its runs hold together or not at all."""

    def __init__(self, limits: Limit | Sequence[Limit]) -> None:
        given = (limits,) if isinstance(limits, Limit) else tuple(limits)
        for each in given:
            if not isinstance(each, Limit):
                raise TypeError(f'a workflow\'s limit is a Limit, such as Limit("crm", at_once=1), not {each!r}')
        names = [each.name for each in given]
        if len(set(names)) < len(names):
            raise ValueError(f"a workflow names each of its limits once, not {', '.join(names)}")
        if sum(each.rate is not None for each in given) > 1:
            raise ValueError("a workflow has one limit with a rate: a pass begins at one moment")
        self.limits = given

    def wants(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[SlotWant]:
        """Return the slots that a run with these arguments wants. Raises as `Limit.want` does."""
        return [each.want(args, kwargs) for each in self.limits if each.at_once is not None or each.rate is None]

    def rates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[RateWant]:
        """Return the units that a pass of a run with these arguments wants. Raises as `Limit.want` does."""
        return [
            RateWant(each.name, each.key_of(args, kwargs), 1, each.rate)
            for each in self.limits
            if each.rate is not None
        ]
