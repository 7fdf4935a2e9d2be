"""The rules. Each judges the facts of one workflow; none knows another, and the engine knows none."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from durable.lint.facts import MADE, Report, Rule
from durable.lint.rules import flow, names, starts, world

__all__ = ["RULES", "Report", "Rule", "flow", "names", "starts", "world"]

RULES: Final[tuple[Rule, ...]] = tuple(sorted(MADE, key=attrgetter("id")))
