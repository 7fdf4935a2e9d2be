"""The retention policy: `DURABLE["RETENTION"]`, parsed and checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from durable.core.records import ENDED
from durable.core.renames import names_of_workflow

STATES = tuple(sorted(str(state) for state in ENDED))
KEYS = (*STATES, "audit", "workflows")

Seconds = float | None  # None: kept for ever


class RetentionError(ValueError):
    """`DURABLE["RETENTION"]` is not valid. `hint` describes the valid forms."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The time for which ended runs are kept, in seconds since their end; None for ever.

    `states` has a time for each final state, `workflows` has the exceptions for workflows, and `audit` is the time for
    rows of the audit log.
    """

    states: Mapping[str, Seconds]
    workflows: Mapping[str, Mapping[str, Seconds]]
    audit: Seconds = None

    @classmethod
    def of(cls, given: object) -> Policy:
        """Parse `DURABLE["RETENTION"]`. Raises RetentionError.

        - None: everything is kept.
        - A duration (seconds or timedelta): for runs of every workflow and for the audit log.
        - A dict with durations or None for "completed", "failed", "cancelled" and "audit" (kept unless named), and with
          "workflows": by name a duration, None, or a dict by state, where a missing state has the general time.
        """
        if not isinstance(given, Mapping):
            kept = _seconds(given, "RETENTION")
            return cls(states=dict.fromkeys(STATES, kept), workflows={}, audit=kept)
        _check_keys(given, KEYS, "RETENTION")
        states = {state: _seconds(given.get(state), f"RETENTION, {state}") for state in STATES}
        workflows = given.get("workflows") or {}
        if not isinstance(workflows, Mapping):
            raise RetentionError(
                f"RETENTION, workflows, must be a dict by name, not {workflows!r}",
                'Write "workflows": {"shop.fulfil": {"completed": 86400}}.',
            )
        return cls(
            states=states,
            workflows={str(name): _of_workflow(name, each, states) for name, each in workflows.items()},
            audit=_seconds(given.get("audit"), "RETENTION, audit"),
        )

    @classmethod
    def older_than(cls, seconds: float, *, states: Sequence[str] = (), workflow: str | None = None) -> Policy:
        """Return a policy for runs that ended `seconds` ago.

        It covers the named states and workflow; without either, all runs and the audit log.
        """
        kept: dict[str, Seconds] = dict.fromkeys(STATES, None)
        times = {**kept, **dict.fromkeys(states or STATES, seconds)}
        if workflow is not None:
            return cls(states=kept, workflows={workflow: times})
        return cls(states=times, workflows={}, audit=None if states else seconds)

    def of_run(self, workflow: str, state: str) -> Seconds:
        """Return how long a run of this workflow is kept that ended in this state.

        An exception for any name of a workflow that a migration has renamed is one for all of its names.
        """
        named = (workflow, *reversed(names_of_workflow(workflow)))
        return next((self.workflows[each] for each in named if each in self.workflows), self.states)[state]

    def is_bounded(self, state: str) -> bool:
        """Return whether any run that ended in this state is ever deleted."""
        return any(each[state] is not None for each in (self.states, *self.workflows.values()))

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever deleted."""
        return self.audit is None and not any(map(self.is_bounded, STATES))


def _of_workflow(name: object, given: object, states: Mapping[str, Seconds]) -> Mapping[str, Seconds]:
    where = f'RETENTION, workflow "{name}"'
    if not isinstance(given, Mapping):
        return dict.fromkeys(STATES, _seconds(given, where))
    _check_keys(given, STATES, where)
    return {**states, **{str(state): _seconds(each, f"{where}, {state}") for state, each in given.items()}}


def _check_keys(given: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            advice = f'Did you mean "{nearest[0]}"? ' if nearest else ""
            raise RetentionError(f"{where} has the unknown key {key!r}", f"{advice}It may have {', '.join(known)}.")


def _seconds(given: object, where: str) -> Seconds:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if seconds is None:
        return None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
        return float(seconds)
    raise RetentionError(
        f"{where} must be seconds above 0, a timedelta or None, not {given!r}",
        "Write timedelta(days=30) for a time, None for ever.",
    )
