"""The report: ratios with their goals, the raw figures, the machine; as tables and as JSON."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from django.db import connection
from rich.console import Console
from rich.table import Table

from tests.benchmarks.goals import Verdict, verdicts
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
