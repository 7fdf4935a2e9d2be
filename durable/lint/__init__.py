"""The linter: reads workflows as text and reports where they break a rule of writing workflows.

`lint(paths)` returns findings. `docs/design/lint.md` says how it reads; `docs/rules.md` has each rule with programs.
Imports none of the engine: not `durable.core`, not Django.
"""

from __future__ import annotations

from durable.lint.engine import ALLOW, UNREADABLE, lint
from durable.lint.facts import LEVELS, Finding, Level
from durable.lint.rules import RULES, Rule

__all__ = ["ALLOW", "LEVELS", "RULES", "UNREADABLE", "Finding", "Level", "Rule", "lint"]
