"""The rules. Each judges the facts of one workflow; none knows another, and the engine knows none."""

from __future__ import annotations

from typing import Final

from durable.lint.findings import Report, Rule
from durable.lint.rules.flow import FLOW, STEPS
from durable.lint.rules.names import NAMES
from durable.lint.rules.starts import LIMITS, STARTS
from durable.lint.rules.world import STATE, TIMES, WORLD

__all__ = ["RULES", "Report", "Rule"]

RULES: Final[tuple[Rule, ...]] = tuple(
    sorted((*WORLD, *TIMES, *STATE, *NAMES, *FLOW, *STEPS, *STARTS, *LIMITS), key=lambda rule: rule.id)
)
