"""Charts as numbers for SVG: positions and sizes in the units of a viewBox.

Templates draw; this module only measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from durable.core.location import display_location
from durable.inspection import Throughput, TreeNode
from durable.inspection.throughput import Bar

__all__ = [
    "Chart",
    "Column",
    "SparkColumn",
    "chart",
    "shallow",
    "spark",
]

_DEEPEST = 12  # nesting levels of scopes that are drawn
_CHART_HEIGHT = 60
_CHART_WIDTH = 300
_SPARK_HEIGHT = 24


def shallow(nodes: Sequence[TreeNode], deepest: int = _DEEPEST) -> list[TreeNode]:
    """Return the nodes; those below a depth side by side with their paths, because code may nest deeper than a page."""
    if deepest:
        return [replace(node, children=shallow(node.children, deepest - 1)) for node in nodes]
    return [
        replace(inner, title=display_location(inner.location), children=[]) for node in nodes for inner in node.walk()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A bar of a chart; `bar` is the data behind it."""

    x: str
    y: str
    width: str
    height: str
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The numbers of ended runs as `columns`, and their durations as `slow` columns behind `median` ones."""

    title: str
    throughput: Throughput
    columns: Sequence[Column]
    slow: Sequence[Column]
    median: Sequence[Column]
    width: int = _CHART_WIDTH
    height: int = _CHART_HEIGHT


def chart(title: str, throughput: Throughput) -> Chart:
    """Return the chart of a span of time."""
    return Chart(
        title=title,
        throughput=throughput,
        columns=_columns(throughput, lambda bar: bar.count.number, throughput.most),
        slow=_columns(throughput, lambda bar: bar.slow or 0.0, throughput.slowest),
        median=_columns(throughput, lambda bar: bar.median or 0.0, throughput.slowest),
    )


def _columns(throughput: Throughput, value_of: Callable[[Bar], float], most: float) -> list[Column]:
    """Return a column for each bar with a value; `most` is the height of the chart."""
    step = _CHART_WIDTH / max(1, len(throughput.bars))
    columns = []
    for number, bar in enumerate(throughput.bars):
        if not bar.count:
            continue
        height = max(1.0, value_of(bar) / most * _CHART_HEIGHT) if most else 1.0
        columns.append(
            Column(
                x=f"{number * step + 0.5:.1f}",
                y=f"{_CHART_HEIGHT - height:.1f}",
                width=f"{step - 1:.1f}",
                height=f"{height:.1f}",
                bar=bar,
            )
        )
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkColumn:
    """A bar of a spark line."""

    x: str
    y: str
    height: str


def spark(counts: Sequence[int]) -> list[SparkColumn]:
    """Return a bar for each count above 0, two units wide and up to `_SPARK_HEIGHT` high."""
    most = max(counts, default=0)
    columns = []
    for number, count in enumerate(counts):
        if count:
            height = max(2.0, count / most * _SPARK_HEIGHT)
            columns.append(SparkColumn(x=f"{2 * number}", y=f"{_SPARK_HEIGHT - height:.1f}", height=f"{height:.1f}"))
    return columns
