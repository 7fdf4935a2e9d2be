"""Pages and exports hold a bounded part of a run, however much it has recorded."""

import json
import tracemalloc
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from pytest_django import Settings

from durable.admin.text import CHUNK
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.export import MOST_BYTES, written
from durable.inspection.payloads import PAGE_BYTES, read_within
from durable.inspection.tree import history_tree
from durable.models import Entry, QueueMessage, Run
from durable.models.rows import BATCH_BYTES, in_batches
from tests.admin import flows
from tests.admin.conftest import OPERATOR, MakeUser, Stage

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
