"""Rules of schedules: what is due when, in UTC, and in words.

- `rules` reads and writes rules, computes their moments, and has a schedule's options and name.
- `missed` decides which of the moments that are due are ticks and which were missed.
- `words` says a rule in words.

Pure functions of their arguments: nothing here reads a clock, a setting or a row.
"""

from durable.schedules.rules import (
    CATCH_UPS,
    OVERLAPS,
    CatchUp,
    Cron,
    Every,
    Overlap,
    Rule,
    RuleLike,
    Rules,
    check_name,
    cron,
    every,
    read_rules,
    run_id_of,
)

__all__ = [
    "CATCH_UPS",
    "OVERLAPS",
    "CatchUp",
    "Cron",
    "Every",
    "Overlap",
    "Rule",
    "RuleLike",
    "Rules",
    "check_name",
    "cron",
    "every",
    "read_rules",
    "run_id_of",
]
