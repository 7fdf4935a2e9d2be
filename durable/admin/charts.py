"""Charts as numbers for SVG: positions and sizes in the units of a viewBox.

Templates draw; this module only measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from durable.inspection import TreeNode
from durable.inspection.wording import display_location

__all__ = ["SparkColumn", "shallow", "spark"]

_DEEPEST = 12  # nesting levels of scopes that are drawn
_SPARK_HEIGHT = 24


def shallow(nodes: Sequence[TreeNode], deepest: int = _DEEPEST) -> list[TreeNode]:
    """Return the nodes; those below a depth side by side with their paths, because code may nest deeper than a page."""
    if deepest:
        return [replace(node, children=shallow(node.children, deepest - 1)) for node in nodes]
    return [
        replace(inner, title=display_location(inner.location), children=[]) for node in nodes for inner in node.walk()
    ]


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
