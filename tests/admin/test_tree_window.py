"""Pages of the tree of a long history: the same entries and statuses as in the whole tree, each entry on one page."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, workflow
from durable.inspection import history_counts, tree
from durable.inspection.progress import progress_of
from durable.inspection.tree import TreeNode, history_tree
from durable.models import Run
from tests.admin.conftest import Stage

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_counts, "_results", OrderedDict())


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
        page = history_tree(run, start=start, size=size, **options)
        assert [node.position for node in page.nodes] == list(range(start, start + len(page.nodes)))
        nodes += page.nodes
        start = page.next_start
    return nodes


def test_pages_have_each_entry_once_as_the_whole_tree_has_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recorded(list(history_tree(run).nodes))
    monkeypatch.setattr(tree, "LONG", 5)
    nodes = pages_of(run)
    assert len(nodes) == len(whole) == progress_of(run).entries
    assert recorded(nodes) == whole


def test_a_page_stands_in_its_scopes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LONG", 5)
    page = history_tree(run, start=1, size=2)
    [batch] = page.roots
    [sku] = batch.children
    assert (batch.kind, sku.kind, [node.location for node in page.nodes]) == (
        "join",
        "branch",
        ["batch 0/sku 0/fetch", "batch 0/sku 0/take"],
    )


def test_it_opens_where_the_run_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LONG", 5)
    given = [None, progress_of(run).open_keys]
    for open_keys in given:
        page = history_tree(run, size=7, open_keys=open_keys)
        assert "rest" in [node.location for node in page.nodes]
        last = history_tree(run, size=7, at_end=True, open_keys=open_keys)
        assert (last.nodes[-1].location, last.end, last.total) == ("rest", page.total, page.total)


def test_only_what_failed_or_is_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recorded(list(history_tree(run, only_failed=True).nodes))
    monkeypatch.setattr(tree, "LONG", 5)
    found = recorded(pages_of(run, size=1, only_failed=True))
    assert list(found) == ["batch 1/sku 3/take", "rest"]
    assert found == {location: node for location, node in whole.items() if location != "batch 1"}  # stands around


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("block", [1, 3, 7, 500])
def test_a_page_is_the_same_however_much_is_read_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, block: int, size: int
) -> None:
    monkeypatch.setattr(tree, "_BLOCK", block)
    run.refresh_from_db()
    whole = [entry.pk for entry in run.entries.order_by("ordinal")]
    ordinals = [entry.ordinal for entry in run.entries.order_by("ordinal")]
    for order in (tree._Order(run, None), tree._Order(run, len(whole))):
        assert order.total == len(whole)
        assert [order.position(each) for each in ordinals] == list(range(len(whole)))
        for start in range(len(whole)):
            assert order.keys(start, size) == whole[start : start + size]


def looks(run: Run, **options: Any) -> tuple[list[str], int]:
    """The locations of a page, and how many statements have looked for its entries among all of the history."""
    with CaptureQueriesContext(connection) as queries:
        page = history_tree(run, **options)
    of_entries = [each["sql"] for each in queries.captured_queries if 'FROM "durable_entry"' in each["sql"]]
    return [node.location for node in page.nodes], sum("LIMIT" in sql or "COUNT(" in sql for sql in of_entries)


def test_pages_of_a_long_history_at_rest_are_looked_for_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LONG", 5)
    run.refresh_from_db()
    progress = progress_of(run)
    known = {"size": 7, "entries": progress.entries, "open_keys": progress.open_keys}
    assert looks(run, start=0, **known)[1] == 1
    assert looks(run, start=7, **known)[1] == looks(run, **known)[1] == 0
    failed, number = looks(run, only_failed=True, **known)
    assert (len(failed), number) == (2, 1)
    assert looks(run, only_failed=True, **known) == (failed, 0)
    assert looks(run, size=7)[1] == 2 + 2  # whether it is long, the number of entries, what is open
    assert looks(run, size=7)[1] == 2  # whether it is long
    run.fence += 1
    assert looks(run, start=7, **known)[1] == 1
    run.lease_expires_at = timezone.now()
    assert looks(run, start=7, **known)[1] == looks(run, start=7, **known)[1] == 1


def test_what_is_known_to_be_long_is_not_read_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LONG", 5)
    with CaptureQueriesContext(connection) as queries:
        assert tree.read_rows(run, progress_of(run).entries) is None
        asked = len(queries)
        rows = tree.read_rows(run, 5)
        known = len(queries)
        assert tree.read_rows(run, None) is None
        long = len(queries)
        monkeypatch.setattr(tree, "LONG", len(rows or ()))
        assert tree.read_rows(run, None) == rows
    assert asked == 3  # those of `progress_of`
    assert (known - asked, long - known, len(queries) - long) == (1, 2, 1)
