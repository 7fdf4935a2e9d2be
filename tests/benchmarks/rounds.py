"""Rounds: every measurement once, one after the other, and again, so that a machine's mood falls on all alike."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from statistics import median

from tests.benchmarks import measures
from tests.benchmarks.measures.one_run import bare_rate
from tests.benchmarks.measuring import MEASURES, Bench, Measure, Skipped
from tests.benchmarks.passing import empty_tables
from tests.benchmarks.peers import absurd, dbos, reference, rq


@dataclass(slots=True)
class Series:
    """A figure over the rounds. `bare` holds the bare insert rate around each, where that was taken."""

    unit: str
    values: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The figure, whatever a single round says."""
        return median(self.values)


@dataclass(slots=True)
class Figures:
    """What all rounds found, and what they skipped or failed at."""

    series: dict[str, Series] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def take(bench: Bench, measures: Sequence[Measure], repeat: int, say: Callable[[str], None]) -> Figures:
    """Take all measurements so many times. One that fails is noted, and the others go on."""
    figures = Figures()
    for number in range(1, repeat + 1):
        for each in measures:
            if each.name in figures.notes:
                continue
            say(f"round {number} of {repeat}: {each.name}")
            try:
                _take_one(bench, each, figures)
            except Skipped as reason:
                figures.notes[each.name] = f"skipped: {reason}"
            except Exception as error:
                figures.notes[each.name] = f"failed: {type(error).__name__}: {error}"
                traceback.print_exception(error, file=sys.stderr)
    return figures


def _take_one(bench: Bench, each: Measure, figures: Figures) -> None:
    if not each.is_peer:
        empty_tables()
    gc.collect()
    bare_seconds = bench.size(5, 1) / 10
    before = bare_rate(bench, bare_seconds) if each.beside_bare else 0.0
    found = list(each.run(bench))
    bare = (before + bare_rate(bench, bare_seconds)) / 2 if each.beside_bare else 0.0
    for name, value, unit in found:
        series = figures.series.setdefault(name, Series(unit))
        series.values.append(value)
        if bare and unit == "/s":
            series.bare.append(bare)


_KNOWN = (measures, absurd, dbos, reference, rq)  # importing them is what makes them known


def chosen(names: Sequence[str] | None) -> list[Measure]:
    """The measurements of these names, in the order of a round; all without names. Exits for a name unknown."""
    if not names:
        return list(MEASURES.values())
    for name in names:
        if name not in {*MEASURES, "ours", "peers"}:
            nearest = get_close_matches(name, MEASURES, n=1)
            advice = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise SystemExit(f"no measurement is called {name!r}; {advice}there are: {', '.join(MEASURES)}")
    return [each for each in MEASURES.values() if {each.name, "peers" if each.is_peer else "ours"} & set(names)]
