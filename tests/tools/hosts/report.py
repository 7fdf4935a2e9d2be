"""The outcomes as a table, and the words of those that broke a promise."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tools.hosts.study import Outcome

_HEAD = ("scenario", "stood still", "a run waited", "runs", "lost", "repeated", "verdict", "")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each outcome: seconds without any call, the most seconds between two calls of a run, numbers."""
    rows = [
        (
            each.scenario.name,
            f"{each.standstill:.1f} s",
            f"{each.wait:.1f} s",
            str(each.runs),
            str(each.lost),
            str(each.repeated),
            "BROKEN" if each.problems else "kept",
            each.noted,
        )
        for each in outcomes
    ]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in (_HEAD, *rows)
    )


def problems(outcomes: Sequence[Outcome]) -> str:
    """Return each promise that was broken, below its scenario; "" if none was."""
    return "\n".join(
        f"{each.scenario.name} ({each.scenario.told}):\n  " + "\n  ".join(each.problems)
        for each in outcomes
        if each.problems
    )
