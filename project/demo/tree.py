"""A run's history as a tree of text."""

from rich.markup import escape
from rich.tree import Tree

from durable import Handle
from durable.operations import HistoryEntry

__all__ = ["history_tree"]

_MARKS = {
    "completed": "[green]✓[/]",
    "failed": "[yellow]↻[/]",
    "exhausted": "[red]✗[/]",
    "running": "[yellow]…[/]",
    "pending": "[yellow]…[/]",
}


def history_tree(run: Handle) -> Tree:
    """The run, its scopes and children as branches, its entries as leaves, in the order in which they began."""
    root = Tree(f"[bold]{escape(run.id)}[/] {run.state}")
    branches = {"": root}
    children = {each.id: each for each in run.children()}
    for entry in run.history():
        scope, _, _ = entry.location.rpartition("/")
        branches[entry.location] = _branch(branches, scope).add(_leaf(entry))
        if entry.kind == "child" and (child := children.get(entry.data.get("child", ""))) is not None:
            branches[entry.location].add(history_tree(child))
    return root


def _branch(branches: dict[str, Tree], scope: str) -> Tree:
    """The branch of a scope; one without an entry of its own, such as a join's, grows here."""
    if scope not in branches:
        parent, _, name = scope.rpartition("/")
        branches[scope] = _branch(branches, parent).add(f"[dim]{escape(name)}[/]")
    return branches[scope]


def _leaf(entry: HistoryEntry) -> str:
    name = escape(entry.location.rpartition("/")[2])
    parts = [_MARKS.get(entry.status, " "), f"[bold]{name}[/]", f"[dim]{entry.kind}[/]"]
    if entry.completed_at:
        parts.append(f"[dim]{entry.completed_at:%H:%M:%S}.{entry.completed_at.microsecond // 1000:03}[/]")
    if entry.attempts > 1:
        parts.append(f"[yellow]{entry.attempts} attempts[/]")
    if entry.rollback_completed_at:
        parts.append("[red]undone[/]")
    return " ".join(parts)
