"""A run's family on its page: the chain of its parents, its children as a bar and numbers, the first failed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from durable.admin.attention import children_url
from durable.admin.base import AdminPages
from durable.core.records import RunState
from durable.inspection.family import FamilyCounts, GroupCounts, is_child, list_children, list_parents, recovered_later
from durable.inspection.humanize import thousands
from durable.models import Run
from durable.models.run import RunQuerySet

WIDTH: Final = 1_000  # of the drawing's viewBox
_NAMED: Final = 3  # failed children
_MOST_GROUPS: Final = 8
_FAILED: Final = RunState.FAILED.value
#: From the left to the right: what has ended well, what is under way, what has not.
_ORDER: Final = ("completed", "running", "rolling_back", "pending", "sleeping", "paused", "cancelled", "failed")
_FILLS: Final = {
    "completed": "good",
    "running": "run",
    "rolling_back": "undo",
    "pending": "wait",
    "sleeping": "wait",
    "paused": "idle",
    "cancelled": "idle",
    "failed": "bad",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The children in one state: a part of the bar, and the address of their list.

    `x` and `width` are of the viewBox.
    """

    state: str
    number: str
    url: str
    fill: str
    x: str
    width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group of children, "" for those that belong to none."""

    name: str
    total: str
    url: str
    shares: Sequence[Share]


def family_of(admin: AdminPages, run: Run, children: FamilyCounts, within: RunQuerySet | None = None) -> dict[str, Any]:
    """Return what the page shows of the run's family; a few statements more if it has failed children or parents.

    `within` limits it to the runs that a user may see. Then it offers no recovery of a family, which acts on all of it.
    """
    failed = list_children(run.id, states=[_FAILED], limit=_NAMED, within=within).rows if children.failed else []
    groups = [each for each in children.groups if each.name] and children.groups
    parents = list_parents(run, within)
    return {
        "parents": [(each, admin.url("change", each.id)) for each in parents],
        "recover_parent_url": children_url(parents[-1].id, admin.admin_site.name)
        if within is None and _failed_both(run, parents)
        else "",
        "children": children if children else None,
        "child_shares": _shares(GroupCounts(name="", states=children.states)),
        "child_groups": [
            GroupView(
                name=each.name,
                total=thousands(each.total),
                url=_url("", each.name),
                shares=_shares(each),
            )
            for each in groups[:_MOST_GROUPS]
        ],
        "more_groups": max(0, len(groups) - _MOST_GROUPS),
        "failed_children": [(each.run, admin.url("change", each.run.id)) for each in failed],
        "failed_children_url": _url(_FAILED, ""),
        "more_failed": max(0, children.failed.number - len(failed)),
        "recovered_later": recovered_later(run, within) if children else None,
        "recover_children_url": children_url(run.id, admin.admin_site.name) if within is None else "",
    }


def _failed_both(run: Run, parents: Sequence[Run]) -> bool:
    """Return whether the run is a failed child of a failed parent.

    That parent stays failed if the child is recovered alone.
    """
    return run.state == _FAILED and bool(parents) and parents[-1].state == _FAILED and is_child(run.id)


def _shares(counts: GroupCounts) -> list[Share]:
    shares: list[Share] = []
    x = 0.0
    for state in _ORDER:
        number = counts.states.get(state, 0)
        if not number:
            continue
        width = number / counts.total * WIDTH
        shares.append(
            Share(
                state=state,
                number=thousands(number),
                url=_url(state, counts.name),
                fill=_FILLS[state],
                x=f"{x:.1f}",
                width=f"{max(width, 4.0):.1f}",
            )
        )
        x += width
    return shares


def _url(state: str, group: str) -> str:
    chosen = {name: value for name, value in (("state", state), ("group", group)) if value}
    return f"?{urlencode({'part': 'children', **chosen})}"
