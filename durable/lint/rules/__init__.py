"""The rules. Each judges the facts of one workflow; none knows another, and the engine knows none."""

from __future__ import annotations

from typing import Final

from durable.lint.rules.base import Report, Rule
from durable.lint.rules.flow import FLOW
from durable.lint.rules.limits import LIMITS
from durable.lint.rules.names import NAMES
from durable.lint.rules.starts import STARTS
from durable.lint.rules.state import STATE
from durable.lint.rules.steps import STEPS
from durable.lint.rules.times import TIMES
from durable.lint.rules.world import WORLD

__all__ = ["RULES", "Report", "Rule"]

RULES: Final[tuple[Rule, ...]] = tuple(
    sorted((*WORLD, *TIMES, *STATE, *NAMES, *FLOW, *STEPS, *STARTS, *LIMITS), key=lambda rule: rule.id)
)
