"""No page grows with the tables: the same number of statements, each along an index, however many runs there are."""

import re
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker
from time_machine import TimeMachineFixture

from durable.admin import audit_log, steps_page
from durable.inspection import comparison, history_counts, run_lanes, tree
from durable.inspection.bulks import failed_again
from durable.inspection.children import CAP, count_children
from durable.inspection.run_lanes import WINDOW
from durable.inspection.runs import PAGE, RunCriteria, list_runs
from durable.inspection.selection import EXAMINED
from durable.models import Cause, Failure, OperatorAction, Run
from durable.operations.prune import prune
from durable.retention import Policy
from durable.store import store_for
from durable.worker.executor import note
from tests.admin.bigdata import BIG, GROWING, LONG, a_family, filled
from tests.admin.pages import log_url, url
from tests.support.plans import blocks, most_read, read, scans, sifted, sorts
from tests.support.worker import a_worker

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db]

RUNS = 40_000
ENTRIES = 1_000
LISTS = [
    "",
    "?state=failed",
    "?state=failed&state=sleeping&state=cancelled",
    "?workflow=big.workflow_3",
    "?workflow=big.workflow_3&state=failed",
    "?q=run-0001",
    "?q=no answer for 39",
    "?queue=nobody",
    "?waiting_queue=approved",
    "?attention=1",
    "?held=1",
    "?worker=nobody",
    "?sort=wake_at&columns=state&columns=wakes",
    "?since=day&state=completed",
    "?children=1",
    "?state=failed&children=1",
]


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    if connection.vendor != "postgresql":
        pytest.skip("the rows are made by PostgreSQL")
    with django_db_blocker.unblock(), filled(runs=RUNS, entries=ENTRIES):
        yield


def test_lists_follow_an_index_and_cost_a_constant_number_of_statements(crowd: None, operator: Client) -> None:
    some = Run.objects.filter(state="sleeping").order_by("pk")[:3]
    for run in some:
        shared = {"run_created_at": run.created_at, "failed_at": run.created_at, "workflow": run.workflow}
        Failure.objects.create(run=run, cause=Cause.objects.all()[0], queue=run.queue, is_held=True, **shared)
    for query in LISTS:
        with CaptureQueriesContext(connection) as queries:
            response = operator.get(url("changelist") + query)
        assert response.status_code == 200
        assert scans(queries, GROWING) + sorts(queries, GROWING) == [], query
        assert len(queries) <= 16, query
        assert response.context["rows"] or "nobody" in query, query


def test_workflows_queues_and_workers_do_too(crowd: None, operator: Client) -> None:
    a_worker()
    for address in (
        *(url("workflows"), url("workflow", "big.workflow_3"), url("queues"), url("queue", "default")),
        *(url("workers"), url("worker", "host:4711:abc"), url("events"), f"{url('events')}?event=paid&key=7"),
    ):
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(address).status_code == 200
        assert scans(queries, GROWING) + sorts(queries, GROWING) == [], address
        assert len(queries) <= 30, address


def test_the_overview_and_a_long_history_do_too(crowd: None, operator: Client) -> None:
    parts = ("history", "payloads", "attempts", "messages", "logs", "related", "audit")
    for address in (
        *("/admin/", "/admin/durable/", url("overview"), url("causes")),
        *(url("change", LONG), url("live", LONG)),
        *(f"{url('change', LONG)}?part={part}" for part in parts),
    ):
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(address).status_code == 200
        # the server estimates the 1,000 entries of the long history, and is some of them off
        assert scans(queries, GROWING) + sorts(queries, GROWING, most=1_200) == [], address
        assert len(queries) <= 32, address


@pytest.mark.parametrize(
    ("number", "beside"),
    [(500, ("step 499", "step 501")), (1, ("", "step 2")), (ENTRIES - 1, (f"step {ENTRIES - 2}", "nap"))],
)
def test_what_began_before_and_after_an_entry_is_found_by_one_look(
    crowd: None, operator: Client, number: int, beside: tuple[str, str]
) -> None:
    with CaptureQueriesContext(connection) as queries:
        page = operator.get(url("step", LONG), {"at": f"step {number}"})
    assert (page.context["previous"], page.context["next"]) == beside
    assert read(queries, "durable_entry") <= ENTRIES + 10
    assert scans(queries, GROWING) == []


def test_what_began_long_before_and_after_an_entry_is_found_too(
    crowd: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_page, "_NEAR", 1)
    page = operator.get(url("step", LONG), {"at": "step 500"})
    assert (page.context["previous"], page.context["next"]) == ("step 499", "step 501")


def test_a_long_history_is_paged_and_its_drawing_capped(crowd: None, operator: Client) -> None:
    page = operator.get(url("change", LONG), {"part": "history", "start": "400"})
    assert (page.context["tree"].start, page.context["tree"].total) == (400, ENTRIES)
    assert "step 401" in page.content.decode()
    assert "step 700" not in page.content.decode()
    assert operator.get(url("change", LONG)).content.decode().count("<rect") <= 400 + 120


def test_the_next_page_of_a_long_history_reads_what_it_shows(
    crowd: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    monkeypatch.setattr(history_counts, "LONG", ENTRIES // 2)
    monkeypatch.setattr(tree, "LONG", ENTRIES // 2)
    rows = []
    for start in ("0", "0", "100", "500"):
        with CaptureQueriesContext(connection) as queries:
            page = operator.get(url("change", LONG), {"part": "history", "start": start})
        assert (page.context["tree"].start, page.context["tree"].total) == (int(start), ENTRIES)
        rows.append(read(queries, "durable_entry"))
    first, *others = rows
    assert first > 2 * ENTRIES  # its progress is counted, and its order is read
    shown = page.context["tree"].size
    assert all(each <= 4 * shown for each in others), rows


#: Pages that show a part of a history in its order, or say what a verb does to it.
OF_A_PART = {
    "replay": ("replay", LONG, {"at": "step 500"}),
    "compare": ("compare", "run-00000200", {"with": LONG, "start": "98"}),  # few enough for an index on PostgreSQL 15
    "step": ("step", LONG, {"at": "step 500"}),
    "send": ("send", LONG, {}),
    "cancel": ("act", LONG, {}),
    "history": ("change", LONG, {"part": "history", "start": "500"}),
}


def written_in_order(run: str) -> None:
    """Give the entries of the run keys in the order in which they began, as if they had been written so."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_entrymetadata DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE durable_entrymetadata AS m SET entry_id = 1000000 + e.ordinal FROM durable_entry AS e "
            "WHERE e.id = m.entry_id AND e.run_id = %s",
            [run],
        )
        cursor.execute("UPDATE durable_entry SET id = 1000000 + ordinal WHERE run_id = %s", [run])
        cursor.execute("ALTER TABLE durable_entrymetadata ENABLE TRIGGER USER")
        cursor.execute("ANALYZE durable_entry, durable_entrymetadata")


@pytest.mark.parametrize(("name", "key", "query"), OF_A_PART.values(), ids=OF_A_PART)
def test_of_a_history_that_was_counted_ahead_a_part_is_read(
    crowd: None,
    operator: Client,
    monkeypatch: pytest.MonkeyPatch,
    time_machine: TimeMachineFixture,
    name: str,
    key: str,
    query: dict[str, str],
) -> None:
    time_machine.move_to(timezone.now(), tick=False)  # pages say how long ago something was
    monkeypatch.setattr(import_module("durable.operations.replay"), "_SHORT", -1)
    monkeypatch.setattr(comparison, "MOST", 100)
    monkeypatch.setattr(history_counts, "LONG", ENTRIES // 2)
    monkeypatch.setattr(tree, "LONG", ENTRIES // 2)
    written_in_order(LONG)

    def shown() -> tuple[str, int, list[str]]:
        monkeypatch.setattr(history_counts, "_results", OrderedDict())
        with CaptureQueriesContext(connection) as queries:
            page = operator.get(url(name, key, *(["cancel"] if name == "act" else [])), query)
        assert page.status_code == 200
        changing = r'(value|nonce)="[^"]*"'
        words = re.sub(changing, "", page.content.decode())
        read_rows = max(read(queries, table) for table in ("durable_entry", "durable_entrymetadata"))
        return words, read_rows, scans(queries, GROWING)

    before, rows, _ = shown()
    assert rows > ENTRIES // 2
    note(LONG)
    history_counts.count_long_histories(timezone.now() + 2 * history_counts.REST)
    after, rows, scanned = shown()
    assert after == before
    assert rows <= ENTRIES // 2
    assert scanned == []


def test_pages_by_key_lose_and_repeat_nothing(crowd: None) -> None:
    wanted = RunCriteria(states=frozenset({"failed", "cancelled"}))
    seen: list[str] = []
    cursor = None
    while True:
        page = list_runs(wanted, cursor=cursor, limit=50)
        seen += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [run.id for run in Run.objects.filter(state__in=wanted.states).newest_first()]


def test_what_no_index_serves_is_looked_for_window_by_window(crowd: None) -> None:
    wanted = RunCriteria(queue="high", created_until=Run.objects.get(pk="run-00030000").created_at)
    seen: list[str] = []
    cursor, windows = None, 0
    while True:
        page = list_runs(wanted, cursor=cursor, limit=2_000)
        seen += [run.id for run in page.runs]
        windows += page.is_window
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 2_999
    assert windows >= 2
    assert WINDOW < 30_000


def test_a_list_from_a_moment_on_stops_where_its_window_ends(crowd: None) -> None:
    """PostgreSQL 18 would go on to that moment, along the index alone, if the window's end were compared as a row."""
    read_for = []
    for begin in (None, Run.objects.order_by("created_at", "id").values_list("created_at", flat=True)[0]):
        for cursor in (None, list_runs(RunCriteria(queue="high", created_from=begin), limit=10).next_cursor):
            with CaptureQueriesContext(connection) as queries:
                page = list_runs(RunCriteria(queue="high", created_from=begin), cursor=cursor, limit=5_000)
            assert page.is_window
            read_for.append(blocks(queries, "durable_run"))
    first, deep, first_from, deep_from = read_for
    assert first_from <= first * 1.05
    assert deep_from <= deep * 1.05


def test_a_list_of_roots_looks_for_parents_of_no_more_runs_than_its_window(crowd: None, operator: Client) -> None:
    with a_family(10_000):
        for query in (
            "",
            "?state=failed",
            "?state=failed&state=completed",
            "?workflow=big.workflow_3",
        ):
            with CaptureQueriesContext(connection) as queries:
                response = operator.get(url("changelist") + query)
            tables = {*GROWING, "durable_child"}
            # a count may sort the window that it examines
            assert scans(queries, tables) + sorts(queries, tables, most=WINDOW) == [], query
            assert sifted(queries, tables) <= WINDOW, query
            assert not any(row.run.id.startswith(BIG) for row in response.context["rows"] if row.run.id != BIG), query
            assert bool(response.context["hidden"]) is ("workflow" not in query), query


def test_many_runs_of_one_instant_are_paged_too(db: None) -> None:
    now = timezone.now()
    Run.objects.bulk_create(
        Run(id=f"same-{n:04}", workflow="w", queue="q", input="[]", created_at=now, state="pending") for n in range(120)
    )
    seen, cursor = [], None
    for _ in range(4):
        page = list_runs(RunCriteria(workflow="w"), cursor=cursor, limit=40)
        seen += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"same-{n:04}" for n in reversed(range(120))]


def test_the_audit_log_is_looked_through_no_further_than_its_window(
    crowd: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_WINDOW", 500)
    log = log_url()
    found = {"": True, f"?q={LONG}": True, "?q=run-0003": True, "?q=run-0001": False, "?outcome=denied": False}
    for query, is_found in found.items():
        with CaptureQueriesContext(connection) as queries:
            response = operator.get(log + query)
        assert bool(response.context["cl"].result_list) is is_found, query
        assert scans(queries, GROWING) == [], query
        assert sifted(queries, GROWING) <= 500, query


@pytest.mark.parametrize("filter", ["?", "?workflow=big.workflow_3", "?state=failed", "?queue=high", "?q=run-0001"])
def test_a_bulk_is_counted_along_indexes(crowd: None, operator: Client, filter: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        page = operator.post(url("bulk"), {"verb": "pause", "all": "on", "filter": filter})
    assert page.status_code == 200
    # a count may sort what it examines, which has a bound
    assert scans(queries, GROWING) + sorts(queries, GROWING, most=EXAMINED) == []
    assert len(queries) <= 40


@pytest.mark.parametrize("verb", ["recover", "cancel"])
def test_the_runs_of_a_bulk_that_failed_again_are_looked_up(crowd: None, verb: str) -> None:
    ids = Run.objects.order_by("-created_at").values_list("pk", flat=True)[:8_000]
    OperatorAction.objects.bulk_create(
        OperatorAction(
            source="admin", action=verb, run_id=each, bulk_id="bulk", outcome="done", created_at=timezone.now()
        )
        for each in ids
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_operatoraction")
    with CaptureQueriesContext(connection) as queries:
        assert failed_again("bulk", verb).order_by().count() == 80
    assert scans(queries, GROWING) == []
    assert read(queries, "durable_run") <= 8_000


def test_a_bulk_counts_failed_roots_by_their_failures(crowd: None, operator: Client) -> None:
    with a_family(60):
        wanted = Run.objects.filter(run_lanes.ROOT, state="failed")
        for filter, failed in (
            ("?state=failed", wanted),
            ("?state=failed&workflow=big.workflow_3", wanted.filter(workflow="big.workflow_3")),
            ("?state=failed&queue=default", wanted.filter(queue="default")),
        ):
            with CaptureQueriesContext(connection) as queries:
                page = operator.post(url("bulk"), {"verb": "recover", "all": "on", "filter": filter})
            assert page.context["eligibility"].count == failed.count() > 10, filter
            assert sum(cause.number for cause in page.context["causes"]) == failed.count()
            assert read(queries, "durable_run") <= 60, filter  # those that the page names


def test_a_family_is_read_along_indexes_and_no_further_than_its_cap(crowd: None, operator: Client) -> None:
    with a_family(12_000):
        for address in (
            *(url("change", BIG), url("live", BIG), f"{url('change', BIG)}?part=children&state=failed"),
            f"{url('change', BIG)}?part=children&state=paused&group=bills",
            *(url("change", f"{BIG}:bill 7"), f"{url('bulk')}?verb=recover&children_of={BIG}"),
        ):
            with CaptureQueriesContext(connection) as queries:
                response = operator.get(address)
            assert response.status_code == 200, address
            # the causes of 10,000 failed children are as well read from the whole of a table with a few hundred
            # failures
            tables = {*GROWING, "durable_child"} - {"durable_failure"}
            # the server expects as many as are looked through
            assert scans(queries, tables) + sorts(queries, tables, most=CAP + 1) == [], address
            assert sifted(queries, tables) <= CAP, address
            read, sql = most_read(queries)
            assert read <= CAP + 1 or "durable_failure" in sql, f"{sql} on {address}"
            assert len(queries) <= 40, address
        counts = count_children(BIG)
        assert (counts.total.is_capped, list(counts.states)) == (True, ["completed", "failed"])


def test_children_of_a_run_are_found_and_pruned_along_indexes(crowd: None, db: None) -> None:
    with a_family(1_000), CaptureQueriesContext(connection) as queries:
        assert len(store_for("default").children_of(BIG, "failed", "bills")) == 500
        prune(Policy.older_than(0, states=[], workflow="big.child"))  # their parent may still read them: they stay
    assert any('"durable_child"."run_id" IN' in each["sql"] for each in queries.captured_queries)
    assert scans(queries, {*GROWING, "durable_child"}) == []


def test_failed_roots_are_found_behind_any_number_of_failed_children(crowd: None, operator: Client) -> None:
    with a_family(12_000):
        assert Run.objects.filter(parent=BIG, state="failed").count() > WINDOW
        for query in ("?state=failed", "?state=failed&state=cancelled", "?state=failed&created_from=2020-01-01T00:00"):
            with CaptureQueriesContext(connection) as queries:
                rows = operator.get(url("changelist") + query).context["rows"]
            assert (len(rows), rows[0].run.id) == (PAGE, BIG), query
            tables = {*GROWING, "durable_child"}
            assert scans(queries, tables) + sorts(queries, tables, most=WINDOW) == [], query
            assert sifted(queries, tables) <= WINDOW, query
