"""Charts as numbers for SVG: positions and sizes in the units of a viewBox.

Templates draw; this module only measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from durable.inspection.tree import TreeNode
from durable.inspection.wording import display_location

_DEEPEST = 12  # nesting levels of scopes that are drawn
_SPARK_HEIGHT = 24
_SPARK_WIDTH = 1.6  # of a column; the next one begins 2 units further


def shallow(nodes: Sequence[TreeNode], deepest: int = _DEEPEST) -> list[TreeNode]:
    """Return the nodes; those below a depth side by side with their paths, because code may nest deeper than a page."""
    if deepest:
        return [replace(node, children=shallow(node.children, deepest - 1)) for node in nodes]
    return [
        replace(inner, title=display_location(inner.location), children=[]) for node in nodes for inner in node.walk()
    ]


def spark(counts: Sequence[int]) -> str:
    """Return the path of a chart that has a column for each count above 0; "" for none.

    A column is `_SPARK_WIDTH` wide and up to `_SPARK_HEIGHT` high. All are one path, and not an element each, because a
    page has dozens of these charts.
    """
    most = max(counts, default=0)
    columns = []
    for number, count in enumerate(counts):
        if count:
            height = max(2.0, count / most * _SPARK_HEIGHT)
            columns.append(
                f"M{2 * number} {_SPARK_HEIGHT - height:.1f}h{_SPARK_WIDTH}V{_SPARK_HEIGHT}h-{_SPARK_WIDTH}z"
            )
    return "".join(columns)
