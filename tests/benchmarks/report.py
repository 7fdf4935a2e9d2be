"""The goals, and the report: ratios beside their goals, the raw figures, the machine; as tables and as JSON.

A ratio is taken within each round, and its median over the rounds counts. The size of a figure with --short differs,
its goal does not.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from django.db import connection
from rich.console import Console
from rich.table import Table

from tests.benchmarks.rounds import Figures, Series


def show(figures: Figures, console: Console) -> None:
    """Print the tables."""
    console.print(machine(), soft_wrap=True)
    console.print(_goals(figures))
    console.print(_raw(figures))
    for name, note in figures.notes.items():
        console.print(f"{name}: {note}", soft_wrap=True, markup=False)


def write(figures: Figures, path: Path) -> None:
    """Write all of it as JSON, each round's figures included."""
    found: dict[str, Any] = {
        "machine": machine(),
        "goals": [
            {
                "figure": each.goal.figure,
                "against": each.goal.against,
                each.goal.kind.replace(" ", "_"): each.goal.bound,
                "unit": each.goal.unit,
                "found": each.found,
                "reached": None if each.found is None else each.is_reached,
            }
            for each in verdicts(figures)
        ],
        "figures": {
            name: {"median": each.median, "unit": each.unit, "rounds": each.values, "bare": each.bare}
            for name, each in figures.series.items()
        },
        "notes": figures.notes,
    }
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def machine() -> str:
    """What it ran on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), current_setting('fsync')")
        [(version, fsync)] = cursor.fetchall()
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return f"{_processor()}, {cores}, {platform.system()}, Python {platform.python_version()}, PostgreSQL {version}, fsync {fsync}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _goals(figures: Figures) -> Table:
    table = Table(title="Goals", title_justify="left")
    for heading in ("figure", "against"):
        table.add_column(heading)
    for heading in ("found", "goal", ""):
        table.add_column(heading, justify="right")
    for each in verdicts(figures):
        goal = f"{each.goal.kind} {each.goal.bound:g} {each.goal.unit}"
        found = "not measured" if each.found is None else _number(each.found)
        table.add_row(each.goal.figure, each.goal.against or "itself", found, goal, _word(each))
    return table


def _word(verdict: Verdict) -> str:
    if verdict.found is None:
        return ""
    return "[green]reached[/]" if verdict.is_reached else "[red]below[/]"


def _raw(figures: Figures) -> Table:
    table = Table(title="Figures", title_justify="left")
    table.add_column("figure")
    for heading in ("median", "of bare", "lowest", "highest", "rounds"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for name, each in figures.series.items():
        bounds = _number(min(each.values)), _number(max(each.values))
        table.add_row(name, _number(each.median), _of_bare(each), *bounds, str(len(each.values)), each.unit)
    return table


def _of_bare(series: Series) -> str:
    if not series.bare:
        return ""
    ratios = sorted(value / bare for value, bare in zip(series.values, series.bare, strict=True))
    return f"{ratios[len(ratios) // 2]:.2f}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


#: The bare insert rate, taken right before and after the figure.
BARE = "bare inserts"


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure`, divided by `against` if there is one, is to be at least or at most `bound`."""

    figure: str
    against: str
    kind: Literal["at least", "at most"]
    bound: float
    unit: str = "times"


GOALS = (
    Goal("steps", BARE, "at least", 0.6),
    Goal("async steps", BARE, "at least", 0.45),
    Goal("CPU of once steps beside each other", "CPU of plain steps beside each other", "at most", 1.7),
    Goal("steps", "dbos steps", "at least", 5),
    Goal("steps", "absurd steps", "at least", 1.9),
    Goal("replay of 10,000", "", "at most", 20, "µs/entry"),
    Goal("memory of 10,000", "", "at most", 5000, "bytes/entry"),
    Goal("one-step runs, 1 worker", BARE, "at least", 0.2),
    Goal("one-step runs, concurrency 4", BARE, "at least", 0.27),
    Goal("one-step runs, 1 worker", "dbos one-step runs", "at least", 4),
    Goal("one-step runs, 1 worker", "absurd one-step runs", "at least", 3),
    Goal("one-step runs, 1 worker", "rq jobs, SimpleWorker", "at least", 2),
    Goal("one-step runs under a snapshot", "one-step runs before a snapshot", "at least", 0.7),
    Goal("start()", BARE, "at least", 0.42),
    Goal("start() with a key", "start() beside them", "at least", 0.8),
    Goal("start_many()", BARE, "at least", 1.5),
    Goal("message, median", "", "at most", 8, "ms"),
    Goal("message, p99", "", "at most", 50, "ms"),
    Goal("message by LISTEN, median", "", "at most", 10, "ms"),
    Goal("start() of 8 clients, NOTIFY", "start() of 8 clients, no notification", "at least", 0.9),
    Goal("message while Redis is away, p99", "", "at most", 1000, "ms"),
    Goal("timer, p99", "", "at most", 50, "ms"),
    Goal("tick, p99", "", "at most", 50, "ms"),
    Goal("loop, last tenth against first", "", "at most", 1.2),
    Goal("loop, most rows", "", "at most", 60, "rows"),
    Goal("children of a map", "one-step runs beside a map", "at least", 0.85),
    Goal("children of a map, 50 at once", "one-step runs beside a map", "at least", 0.75),
    Goal("children of a map, concurrency 4", "one-step runs beside a map, concurrency 4", "at least", 0.85),
    Goal("children of a map, concurrency 4, 50 at once", "one-step runs beside a map, concurrency 4", "at least", 0.75),
    Goal("CPU of children of a map", "CPU of one-step runs beside a map", "at most", 1.4),
    Goal("writes of the parent of a map", "", "at most", 19, "writes"),
    Goal("writes of the parent of a map, 50 at once", "", "at most", 19, "writes"),
    Goal("memory of a map's start", "", "at most", 100, "MB"),
    Goal("memory of a map's end", "", "at most", 100, "MB"),
    Goal("list with a map's children", "", "at most", 100, "ms"),
    Goal("children on the page of a map's parent", "", "at most", 100, "ms"),
    Goal("admissions, one key", "", "at least", 300, "/s"),
    Goal("admissions, one key", "dbos admissions, one queue", "at least", 4),
    Goal("admissions, 1,000 keys", "one-step runs beside limits", "at least", 0.6),
    Goal("steps at once with 4 slots", "", "at most", 4, "steps"),
    Goal("ranked runs, oldest PostgreSQL", "runs without a rank, oldest PostgreSQL", "at least", 0.8),
    Goal("one-step runs of 200 queues", "one-step runs beside many queues", "at least", 0.7),
    Goal(
        "one-step runs of 200 queues without Redis",
        "one-step runs beside many queues without Redis",
        "at least",
        0.7,
    ),
    Goal("growth with 10x steps", "", "at most", 1.2),
    Goal("growth with 10x sleeping runs", "", "at most", 1.2),
    Goal("growth with 10x completed runs", "", "at most", 1.2),
    Goal("growth of a claim with 10x due runs", "", "at most", 1.5),
    Goal("changelist", "", "at most", 100, "ms"),
    Goal("changelist, one state", "", "at most", 100, "ms"),
    Goal("changelist, a search", "", "at most", 100, "ms"),
    Goal("page of a run", "", "at most", 300, "ms"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a goal came to: `found` is None where one of its figures is missing."""

    goal: Goal
    found: float | None

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached; False where nothing is known."""
        if self.found is None:
            return False
        if self.goal.kind == "at least":
            return self.found >= self.goal.bound
        return self.found <= self.goal.bound


def verdicts(figures: Figures) -> list[Verdict]:
    """Each goal with what was found."""
    return [Verdict(goal, _found(goal, figures)) for goal in GOALS]


def _found(goal: Goal, figures: Figures) -> float | None:
    series = figures.series.get(goal.figure)
    if series is None:
        return None
    if not goal.against:
        return series.median
    if goal.against == BARE:
        others = series.bare
    else:
        other = figures.series.get(goal.against)
        others = other.values if other is not None else []
    ratios = [value / beside for value, beside in zip(series.values, others, strict=False)]
    return median(ratios) if ratios else None
