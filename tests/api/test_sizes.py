"""No page takes more memory than its limit and one row, whatever the rows weigh; the next page has what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from durable import Context, get_run, workflow
from durable.inspection import counting
from durable.models import Attempt, Entry, Run
from durable.models.rows import weight
from tests.api.conftest import Api, MakeApi, pages
from tests.api.streaming import Reader
from tests.api.workflows import fail, loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

KILO = 1_000


@workflow(name="tests.api.heavy")
def heavy(ctx: Context) -> None:
    for number in range(9):
        ctx.step(f"step {number}", str, "x" * KILO)
    ctx.queue.next_batch("q", count=3)
    ctx.sleep("rest", 60)


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page holds two steps with their arguments and outputs, or a message."""
    monkeypatch.setattr(counting.fitting, "__defaults__", (5 * KILO,))
    monkeypatch.setattr("durable.api.stream.MAX_BYTES", 5 * KILO)
    monkeypatch.setattr("durable.api.changes.CHUNK_BYTES", 5 * KILO)


@pytest.fixture
def run() -> str:
    heavy.using(id="a").start()
    for number in range(3):
        get_run("a").send("q", f"{number}" + "y" * 2 * KILO)
    pass_once(get_run("a"))
    return "a"


def results(api: Api, path: str) -> list[list[dict[str, Any]]]:
    """The results of each page of a list."""
    return [page["results"] for page in pages(api, path)]


def test_a_page_of_entries(api: Api, run: str) -> None:
    found = results(api, "/runs/a/entries?payloads=true&limit=200")
    assert [len(page) for page in found] == [2, 2, 2, 2, 1, 1, 1]  # the wait for messages weighs more than a page
    locations = [each["location"] for page in found for each in page]
    assert locations == [*(f"step {number}" for number in range(9)), "q", "rest"]


def test_a_page_of_entries_without_payloads(api: Api, run: str) -> None:
    found = results(api, "/runs/a/entries?limit=200")
    assert [len(page) for page in found] == [9, 1, 1]  # outputs are not read; what the wait received is


def test_the_limit_in_numbers_holds_too(api: Api, run: str) -> None:
    found = results(api, "/runs/a/entries?limit=4")
    assert [len(page) for page in found] == [4, 4, 1, 1, 1]


def test_a_page_of_messages(api: Api, run: str, make_api: MakeApi) -> None:
    assert [len(page) for page in results(api, "/runs/a/messages?limit=200")] == [2, 1]
    assert [len(page) for page in results(make_api("view_run"), "/runs/a/messages?limit=200")] == [3]


def test_the_failed_attempts_of_an_entry(api: Api) -> None:
    pass_once(fail.using(id="a").start())
    attempt = Attempt.objects.get()
    for number in range(30):
        attempt.pk, attempt.number = None, number + 2
        attempt.save(force_insert=True)
    shown = api.get("/runs/a/entries/break").json()["failed_attempts"]
    assert 1 <= len(shown) < 31
    assert [each["number"] for each in shown] == list(range(1, len(shown) + 1))
    assert len(json.dumps(shown)) < 10 * KILO


def test_the_events_of_a_history(api: Api, run: str) -> None:
    """In one answer as many as fit, and the others in the next ones."""
    text = "z" * 2 * KILO
    Entry.objects.filter(location__startswith="step").update(data={"note": text})
    first = api.get("/runs/a/events").json()
    assert [each["event"] for each in first["events"]].count("entry") == 4  # two chunks, which are more than the limit
    reader = Reader(api, "a")
    asked = 0
    while reader.read():
        asked += 1
    assert asked > 3
    assert set(reader.entries) == {*(f"step {number}" for number in range(9)), "q", "rest"}


def test_sizes_are_those_of_the_stored_text(api: Api) -> None:
    pass_once(loop.using(id="é").start(1))
    Run.objects.update(summary="é" * 10)
    [(key, size)] = Run.objects.values_list("pk", weight("id", "summary", "request_reason"))
    assert (key, size) == ("é", 2 + 20)
