"""Pages and exports of a long history: windows of its tree, and no more than a bounded part of it at once."""

from __future__ import annotations

import json
import tracemalloc
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from durable import Context, workflow
from durable.admin.text import CHUNK
from durable.inspection import history_counts, tree
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.export import MOST_BYTES, written
from durable.inspection.payloads import PAGE_BYTES, read_within
from durable.inspection.progress import progress_of
from durable.inspection.tree import TreeNode, history_tree
from durable.models import Entry, QueueMessage, Run
from durable.models.rows import BATCH_BYTES, in_batches
from tests.admin import flows
from tests.admin.conftest import OPERATOR, MakeUser, Stage

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


# -- pages and exports hold a bounded part of a run, however much it has recorded


LARGE = 1_000_000
NUMBER = 24


def in_json(size: int = LARGE) -> str:
    """Codec text of this many characters."""
    return json.dumps("x" * (size - 2))


@pytest.fixture
def large(stage: Stage) -> Run:
    """A run of many entries and messages with a megabyte in each column of a value."""
    run = stage.start(flows.quick, id="large")
    template = Entry.objects.select_related("metadata").get(run=run)
    metadata = template.metadata
    for number in range(NUMBER):
        template.pk, template.location, template.ordinal = None, f"step {number}", 100 + number
        template.output, template.arguments = in_json(), in_json()
        data: Any = {"iteration": 0, "state": in_json()} if number % 2 else {"branches": {"b": branch()}}
        template.data = data
        template.kind = "loop" if number % 2 else "join"
        template.save(force_insert=True)
        metadata.pk = template.pk
        metadata.save(force_insert=True)
        QueueMessage.objects.create(
            id=f"m{number}", run=run, queue="q", body=in_json(), sent_at=stage.now, order=number + 1
        )
    return run


def branch() -> dict[str, Any]:
    return {"status": "completed", "output": in_json()}


def peak_of(do: Any) -> tuple[Any, int]:
    """What it returns, and the most bytes that Python held meanwhile."""
    tracemalloc.start()
    try:
        returned = do()
        return returned, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestPages:
    def test_a_run(self, large: Run, operator: Client) -> None:
        address = "/admin/durable/run/large/change/?part=messages"
        operator.get(address)  # what is kept once is not of this page
        page, peak = peak_of(lambda: operator.get(address))
        assert peak < NUMBER * LARGE
        text = page.content.decode()
        assert (
            text.count("(1,000,000 bytes: too large for this page, the export has it)") >= NUMBER - PAGE_BYTES // LARGE
        )
        assert "996,000 characters more" in text  # of those that are read
        assert len(text) < 2 * LARGE

    def test_a_tree_has_no_values(self, large: Run) -> None:
        page, peak = peak_of(lambda: history_tree(Run.objects.get(pk="large")))
        assert len(page.nodes) > NUMBER
        assert peak < 4 * BATCH_BYTES < 2 * NUMBER * LARGE
        assert {node.note for node in page.nodes if node.kind == "loop"} == {"1 iteration"}

    def test_an_entry_that_is_larger_than_a_page(self, large: Run, operator: Client) -> None:
        branches = {f"b{number}": branch() for number in range(PAGE_BYTES // LARGE + 1)}
        Entry.objects.filter(location="step 0").update(kind="join", data={"branches": branches})
        address = "/admin/durable/run/large/step/?at=step 0"
        text = operator.get(address).content.decode()
        assert "too large for this page, the export has it" in text
        assert '<th scope="row">b0</th>' in text  # what the engine itself wrote is shown
        detail = read_entry_detail(large, "step 0", with_payloads=False)
        assert detail is not None
        assert "xxx" not in repr((detail.entry.data, detail.fields, detail.facts, detail.branches))

    def test_what_fits_is_read_first_in_order(self, large: Run) -> None:
        found = QueueMessage.objects.filter(run=large).order_by("order")
        read = read_within(found, "body", most=2 * LARGE + 10)
        assert {key for key, value in read.items() if isinstance(value, list)} == {"m0", "m1"}
        assert len(read) == NUMBER


@pytest.mark.slow
class TestExports:
    def test_it_is_sent_as_it_is_written(self, large: Run, operator: Client) -> None:
        def sizes() -> list[int]:
            response: Any = operator.get("/admin/durable/run/large/export/")
            assert response.streaming
            assert "no-store" in response["Cache-Control"]
            return [len(chunk) for chunk in response.streaming_content]

        whole, peak = peak_of(sizes)
        assert sum(whole) > 3 * NUMBER * LARGE
        assert max(whole) < CHUNK + 3 * LARGE
        QueueMessage.objects.filter(run=large).delete()
        Entry.objects.filter(run=large, ordinal__gte=100 + NUMBER // 6).delete()
        part, less = peak_of(sizes)
        assert sum(whole) > 5 * sum(part)
        assert peak < 2 * less

    def test_it_is_the_same_whole(self, large: Run, operator: Client) -> None:
        response: Any = operator.get("/admin/durable/run/large/export/")
        export = json.loads(b"".join(response.streaming_content))
        assert (export["is_complete"], len(export["messages"])) == (True, NUMBER)
        assert [each["location"] for each in export["entries"]][-1] == f"step {NUMBER - 1}"
        assert export["messages"][3]["body"] == "x" * (LARGE - 2)

    def test_it_ends_where_it_would_be_too_long(self, large: Run) -> None:
        text = "".join(written(large, with_payloads=True, most_bytes=5 * LARGE))
        export = json.loads(text)
        assert not export["is_complete"]
        assert 0 < len(export["entries"]) < NUMBER
        assert len(text) < 6 * LARGE < MOST_BYTES

    @pytest.mark.django_db(transaction=True)
    def test_under_asgi_too(self, settings: Settings, stage: Stage, make_user: MakeUser) -> None:
        run = stage.start(flows.quick, "x" * 900_000, id="wide")
        user = make_user(*OPERATOR, name="asgi")

        async def get() -> bytes:
            client = AsyncClient()
            await client.aforce_login(user)
            response: Any = await client.get("/admin/durable/run/wide/export/")
            assert response.is_async
            return b"".join([chunk async for chunk in response])

        assert json.loads(async_to_sync(get)())["run"]["id"] == run.id


def test_batches() -> None:
    weighed = [("a", 3), ("b", 3), ("c", 9), ("d", 1), ("e", 1)]
    assert list(in_batches(weighed, 6)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(in_batches([])) == []
    assert [len(each) for each in in_batches(zip(range(2_500), [0] * 2_500, strict=True))] == [1_000, 1_000, 500]
