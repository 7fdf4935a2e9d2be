"""Pages of the tree of a long history: the same entries with the same statuses as in the whole tree, each on one page."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from durable import Context, workflow
from durable.inspection import TreeNode, history_tree, progress_of, tree_window
from durable.models import Run
from tests.admin.conftest import Stage

pytestmark = pytest.mark.django_db


class _SoldOut(Exception):
    pass


def _take(number: int) -> int:
    if number == 3:
        raise _SoldOut("none left")
    return number


def _sku(number: int, scope: Context) -> None:
    scope.step("fetch", _take, -1)
    scope.try_step("take", _take, number, max_retries=0)
    scope.join("check", {"price": lambda c: c.step("ask", _take, 1), "stock": lambda c: c.step("ask", _take, 2)})


@workflow(name="tests.long_import")
def long_import(ctx: Context) -> None:
    for batch in range(3):
        ctx.join(f"batch {batch}", {f"sku {n}": partial(_sku, n) for n in range(batch * 2, batch * 2 + 2)})
    ctx.sleep("rest", "30 days")


@pytest.fixture
def run(stage: Stage) -> Run:
    return stage.start(long_import, id="run")


def recorded(nodes: list[TreeNode]) -> dict[str, Any]:
    """What is shown of the nodes that have an entry."""
    return {
        node.location: (node.kind, node.status, node.title, node.failed_attempts, node.is_caught)
        for node in nodes
        if node.entry_id is not None
    }


def pages_of(run: Run, size: int = 7, **options: Any) -> list[TreeNode]:
    nodes: list[TreeNode] = []
    start: int | None = 0
    while start is not None:
        page = history_tree(run.id, start=start, size=size, **options)
        assert [node.position for node in page.nodes] == list(range(start, start + len(page.nodes)))
        nodes += page.nodes
        start = page.next_start
    return nodes


def test_pages_have_each_entry_once_as_the_whole_tree_has_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recorded(list(history_tree(run.id).nodes))
    monkeypatch.setattr(tree_window, "LONG", 5)
    nodes = pages_of(run)
    assert len(nodes) == len(whole) == progress_of(run).entries
    assert recorded(nodes) == whole


def test_a_page_stands_in_its_scopes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_window, "LONG", 5)
    page = history_tree(run.id, start=1, size=2)
    [batch] = page.roots
    [sku] = batch.children
    assert (batch.kind, sku.kind, [node.location for node in page.nodes]) == (
        "join",
        "branch",
        ["batch 0/sku 0/fetch", "batch 0/sku 0/take"],
    )


def test_it_opens_where_the_run_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_window, "LONG", 5)
    given = [None, progress_of(run).open_keys]
    for open_keys in given:
        page = history_tree(run.id, size=7, open_keys=open_keys)
        assert "rest" in [node.location for node in page.nodes]
        last = history_tree(run.id, size=7, at_end=True, open_keys=open_keys)
        assert (last.nodes[-1].location, last.end, last.total) == ("rest", page.total, page.total)


def test_only_what_failed_or_is_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recorded(list(history_tree(run.id, only_failed=True).nodes))
    monkeypatch.setattr(tree_window, "LONG", 5)
    found = recorded(pages_of(run, size=1, only_failed=True))
    assert list(found) == ["batch 1/sku 3/take", "rest"]
    assert found == {location: node for location, node in whole.items() if location != "batch 1"}  # stands around


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
def test_a_page_is_the_same_however_much_is_read_at_once(run: Run, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = [entry.pk for entry in run.entries.order_by("ordinal")]
    ordinals = [entry.ordinal for entry in run.entries.order_by("ordinal")]
    for newest in (0, 1, 3, len(whole), 500):
        order = tree_window._Order(run.id, newest)
        assert order.total == len(whole)
        assert [order.position(each) for each in ordinals] == list(range(len(whole)))
        for start in range(len(whole)):
            assert order.keys(start, size) == whole[start : start + size]
