"""Among many runs, nothing that reads a history, a list or the audit log reads the tables: each follows an index."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from durable.api.changes import Follower
from durable.core import clock
from durable.core.rewind.rewinding import Region
from durable.core.summary import Summary, SummaryKind
from durable.inspection import causes, history_counts, places, run_lanes, timeline_reads, tree, workflows
from durable.inspection.activities import ENTRIES as ENTRIES_OF_A_RUN
from durable.inspection.activities import usual_durations, workflow_durations
from durable.inspection.causes import held_by_cause, list_causes
from durable.inspection.comparison import compare_runs
from durable.inspection.events import list_events
from durable.inspection.held import held_runs
from durable.inspection.pagination import cursor_of
from durable.inspection.progress import progress_of
from durable.inspection.run_lanes import WINDOW
from durable.inspection.workflows import KINDS, NEWEST, find_names, last_hour_and_day
from durable.models import Cause, Entry, EntryMetadata, Failure, OperatorAction, RollupProgress, Run
from durable.models.run import RunQuerySet
from durable.operations.prune import preview_pruning, prune
from durable.replay_check.reading import open_runs, sampled_runs
from durable.retention import Policy, Pruned, Pruner
from durable.rollups import roll_up
from durable.store.tables.surveys import RowSurveyor
from tests.admin.bigdata import BIG, GROWING, LONG, a_family, filled
from tests.support.commands import printed
from tests.support.plans import read, scans, sifted, sorts
from tests.support.rollups import settle
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.django_db]

RUNS = 40_000
#: Few enough that an index scan which meets another page with each entry is still cheaper than the whole table.
ENTRIES = 500
SHORT = "run-00000200"
MIDDLE = f"run-{RUNS // 2:08}"
LISTS = [
    "/runs",
    "/runs?state=failed",
    "/runs?state=failed&state=sleeping",
    "/runs?workflow=big.workflow_3&state=failed",
    "/runs?queue=nobody",
    "/runs?error=no answer for 39",
    "/runs?waiting_queue=nobody",
    "/runs?cause=cause-1",
    "/runs?cause=cause-1&workflow=big.workflow_3",
    "/runs?place=charge",
    "/causes",
    "/running",
    "/runs?attention=true",
    "/runs?held=true",
    "/runs?held=true&workflow=big.workflow_3",
    "/runs?diverged=true",
    "/runs?stuck=true",
    "/runs?undone=true",
    "/runs?worker=nobody",
    "/runs?worker=nobody&workflow=big.workflow_3",
    "/runs?sort=created_at",
    "/runs?sort=created_at&state=failed&workflow=big.workflow_3",
    "/runs?sort=wake_at",
    "/runs?sort=wake_at&workflow=nobody",
    "/runs?sort=-finished_at&workflow=big.workflow_3",
    "/runs?sort=finished_at&workflow=big.workflow_3&state=failed",
    "/runs?id_prefix=run-0001",
    "/runs?id_prefix=run-&queue=nobody",
    "/counts",
    "/queues",
    "/workers",
    "/operator-actions",
    f"/operator-actions?run={LONG}",
    f"/operator-actions?run={SHORT}",
    f"/runs/{LONG}/messages",
]


@pytest.fixture(scope="module", autouse=True)
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    if connection.vendor != "postgresql":
        pytest.skip("the rows are made by PostgreSQL")
    with django_db_blocker.unblock(), filled(runs=RUNS, entries=ENTRIES):
        yield


@pytest.fixture
def get(client: Client) -> Callable[[str], Any]:
    """Sends requests as a user with all permissions."""
    client.force_login(User.objects.create_superuser("ada"))

    def get(address: str) -> Any:
        response = client.get(f"/api{address}")
        assert response.status_code == 200, response.content
        return response.json()

    return get


def paged(get: Callable[[str], Any], address: str) -> None:
    """The first page and the one behind it."""
    if cursor := get(address).get("next_cursor"):
        assert get(f"{address}{'&' if '?' in address else '?'}cursor={cursor}")["results"] is not None


def the_long_one() -> Run:
    return Run.objects.defer("input", "output").get(pk=LONG)


def read_all(follower: Follower) -> list[str]:
    """The places of all events that the follower has."""
    news = follower.look()
    places = [each.location for each in news.entries]
    while news.has_more:
        news = follower.look()
        places += [each.location for each in news.entries]
    return places


def test_lists_of_the_interface_sift_no_more_than_a_window(get: Callable[[str], Any]) -> None:
    for address in LISTS:
        with CaptureQueriesContext(connection) as queries:
            paged(get, address)
        assert scans(queries, GROWING) + sorts(queries, GROWING) == [], address
        assert sifted(queries, GROWING) <= WINDOW, address


def plans_of(queries: CaptureQueriesContext) -> list[str]:
    """The plans of the statements that read failures, as text."""
    found = []
    with connection.cursor() as cursor:
        for each in [each["sql"] for each in queries.captured_queries if "durable_failure" in each["sql"]]:
            if each.startswith("SELECT"):
                cursor.execute(f"EXPLAIN {each}")
                found += [row[0] for row in cursor.fetchall()]
    return found


def runs_of_a_workflow(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """What a user sees for whom no index is of use."""
    return runs.filter(workflow__in=["big.workflow_2", "big.parent"])


LIMITED = [
    *(address for address in LISTS if LONG not in address and SHORT not in address and address != "/workers"),
    "/runs?children=true",
    f"/runs/{BIG}",
    f"/runs/{BIG}/children",
    f"/runs/{BIG}/children?state=failed",
]


@override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_a_workflow"})
def test_what_a_user_sees_who_may_see_some_runs_is_looked_up(get: Callable[[str], Any]) -> None:
    """Lists, causes, counts, queues, the audit log and the children of a run: none reads a table, or sifts for ever.

    Of the failures the database may read all: here they are few pages.
    """
    tables = {*GROWING, "durable_child"} - {"durable_failure"}
    with a_family(2_000):
        for address in LIMITED:
            with CaptureQueriesContext(connection) as queries:
                get(address)
            assert scans(queries, tables) == [], address
            assert sifted(queries, tables) <= WINDOW, address


def runs_of_a_queue(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """What a user sees whose runs no index has."""
    return runs.filter(queue="nobody")


@override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_a_queue"})
def test_a_list_for_which_no_index_has_the_users_runs_looks_through_a_window_of_all(get: Callable[[str], Any]) -> None:
    """The other lists have few runs of their own to look through, or an index that the condition is combined with."""
    for address in ("/counts", *(each for each in LISTS if each.startswith("/runs?") and "id_prefix" not in each)):
        with CaptureQueriesContext(connection) as queries:
            page = get(address)
        assert scans(queries, {*GROWING} - {"durable_failure"}) == [], address  # of failures there are few pages
        # a window ends between two seconds, and that of a state may be read along the index of all: a twentieth more
        assert sifted(queries, GROWING) <= WINDOW * 21 // 20, address
    assert page["results"] == []
    assert get("/runs")["looked_through"] == WINDOW
    assert get("/counts")["states"]["completed"] == {"number": 0, "is_capped": True}
    assert get("/counts")["states"]["failed"] == {"number": 0, "is_capped": False}


@override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_a_workflow"})
def test_of_many_runs_of_a_user_and_many_failures_no_more_than_a_window_is_looked_through(
    get: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,700 runs are the user's, and 400 have failed: more than a window of either, as among a million."""
    window = 100
    for module, name in ((run_lanes, "WINDOW"), (causes, "CAP"), (workflows, "STATE_CAP")):
        monkeypatch.setattr(module, name, window)
    for address in (
        *("/runs?state=failed", "/runs?state=failed&children=true", "/runs?state=failed&state=cancelled"),
        *("/runs?state=failed&queue=nobody", "/runs?cause=cause-1", "/runs?place=charge", "/causes", "/counts"),
    ):
        with CaptureQueriesContext(connection) as queries:
            get(address)
        # whether the user's runs are few is asked without an order
        ordered: Any = SimpleNamespace(
            captured_queries=[each for each in queries.captured_queries if "ORDER BY" in each["sql"]]
        )
        assert sifted(ordered, {*GROWING, "durable_child"}) <= window * 21 // 20, address


def test_the_few_entries_of_a_run_that_has_grown_since_the_last_analyze_are_found_in_one_go() -> None:
    Entry.objects.filter(run=SHORT).delete()
    Entry.objects.filter(run=LONG).update(run=SHORT)
    with CaptureQueriesContext(connection) as queries:
        assert [each.kind for each in Entry.objects.few_of(SHORT, ~Q(status="completed"))] == ["sleep"]
    assert read(queries, "durable_entrymetadata") <= 2 * ENTRIES


@pytest.mark.parametrize("filter", ["", "&state=failed", "&queue=nobody", "&cause=cause-1"])
def test_a_list_by_the_end_reads_no_more_than_a_window(get: Callable[[str], Any], filter: str) -> None:
    """The index has the end alone: runs that ended at one moment are sorted by id, those of a page are few."""
    for sort in ("-finished_at", "finished_at"):
        with CaptureQueriesContext(connection) as queries:
            paged(get, f"/runs?sort={sort}{filter}")
        assert scans(queries, GROWING) == []
        assert read(queries, "durable_run") <= 6 * WINDOW  # on two pages, the ends of windows included


def test_the_last_day_of_causes_is_counted_by_the_database() -> None:
    with CaptureQueriesContext(connection) as queries:
        causes = list_causes(timezone.now())
    assert sum(sum(each.bars) for each in causes) == RUNS // 100
    returned = []
    with connection.cursor() as cursor:
        for each in queries.captured_queries:
            cursor.execute(each["sql"].replace("%", "%%"), [])
            returned.append(len(cursor.fetchall()))
    # a row for each workflow and each half hour of a cause, none for each failure
    assert max(returned) <= len(causes) * (7 + 4)


def test_a_page_deep_in_the_audit_log_begins_where_it_begins(get: Callable[[str], Any]) -> None:
    moment = OperatorAction.objects.get(run_id=MIDDLE).created_at
    middle = OperatorAction.objects.filter(created_at=moment).latest("pk")  # the first of those of one moment
    with CaptureQueriesContext(connection) as queries:
        page = get(f"/operator-actions?cursor={cursor_of(middle.created_at.isoformat(), middle.pk)}")
    assert len(page["results"]) > 1
    assert scans(queries, GROWING) + sorts(queries, GROWING) == []
    assert sifted(queries, GROWING) <= 1


def test_a_long_history_is_looked_up(get: Callable[[str], Any]) -> None:
    for address in (f"/runs/{LONG}", f"/runs/{LONG}/tree", f"/runs/{LONG}/entries/nap"):
        with CaptureQueriesContext(connection) as queries:
            get(address)
        assert scans(queries, GROWING) == [], address


@pytest.mark.parametrize("page", ["", "?start=300", "?only_failed=true"])
def test_a_page_of_a_long_tree_is_looked_up(
    get: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setattr(tree, "LONG", 20)
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    with CaptureQueriesContext(connection) as queries:
        found = get(f"/runs/{LONG}/tree{page}")
    assert found["roots"]
    assert scans(queries, GROWING) == []
    assert sorts(queries, GROWING, most=1_200) == []  # of the history's 500 entries the page's are found
    # without an order, the first row of a history that is a tenth of the table is searched in the whole table
    firsts = [each["sql"] for each in queries if "LIMIT" in each["sql"] and 'FROM "durable_entry"' in each["sql"]]
    assert [sql for sql in firsts if "ORDER BY" not in sql] == []
    assert len(queries) <= 20


@pytest.mark.parametrize("is_held", [False, True])
def test_a_replay_of_a_long_history_is_counted_by_look_ups(
    get: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """Every method that surveys a history, also those that this one does not need."""
    monkeypatch.setattr(import_module("durable.operations.replay"), "_SHORT", -1)
    if is_held:
        soon = timezone.now() + timedelta(hours=1)
        Run.objects.filter(pk=LONG).update(state="running", lease_expires_at=soon, worker="w")
    regions = [Region("step 17"), Region("", 400, "step 17")]
    surveyor = RowSurveyor(connection.alias, LONG)
    with CaptureQueriesContext(connection) as queries:
        plan = get(f"/runs/{LONG}/replay-plan?location=step%20400")
        surveyor.compensated(regions, 10)
        surveyor.own_sends(regions)
        surveyor.returned(regions, ["race"], ["none"], 10)
        surveyor.loops(regions)
        surveyor.child_entries()
        surveyor.first_within("step 17")
    assert plan["counts"]["removed"] + plan["counts"]["kept"] == ENTRIES
    assert len(plan["kept"]) == 50
    assert scans(queries, GROWING) == []
    assert len(queries) <= 25


def test_what_a_replay_deletes_beside_its_place_is_listed_by_one_statement_more() -> None:
    """The first one lies long before the others: where they would lie if they were evenly spread are too few."""
    regions = [Region("step 17"), Region("", 2 * 200)]
    with CaptureQueriesContext(connection) as queries:
        survey = RowSurveyor(connection.alias, LONG).survey(regions, kept=None, most=3)
    assert survey.deleted.number == 1 + ENTRIES - 200
    assert survey.deleted.first == ("step 17", "step 201", "step 202")
    assert survey.steps.first == survey.deleted.first
    assert survey.kept.first == ("step 1", "step 2", "step 3")
    assert len(queries) == 3  # the numbers, the lists, and those that have lacked some
    assert scans(queries, GROWING) == []


def test_the_progress_of_a_long_history_reads_its_entries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    whole = progress_of(the_long_one())
    monkeypatch.setattr(history_counts, "LONG", ENTRIES // 2)
    with CaptureQueriesContext(connection) as queries:
        assert progress_of(the_long_one()) == whole
    assert read(queries, "durable_entry") == ENTRIES + len(whole.open_keys)
    assert scans(queries, GROWING) == []


def test_the_interface_looks_once_for_what_is_open_in_a_long_history(
    get: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    monkeypatch.setattr(history_counts, "LONG", ENTRIES // 2)
    moment = timezone.now()
    monkeypatch.setattr(clock, "now", lambda: moment)  # the minutes that are left are told
    told, rows = [], []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            told.append(get(f"/runs/{LONG}")["explanation"])
        rows.append(read(queries, "durable_entrymetadata"))
    assert told[0] == told[1]
    assert "nap" in told[0]["headline"]
    assert rows[0] > ENTRIES > 10 > rows[1]


def test_of_what_lies_inside_an_opened_place_a_bounded_number_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [f"step {number}" for number in range(101, 301)]
    for most, found in (20, None), (200, members):
        monkeypatch.setattr(timeline_reads, "_MOST_INSIDE", most)
        with CaptureQueriesContext(connection) as queries:
            records = timeline_reads._little_inside(LONG, members)
        assert (None if records is None else sorted(each.location for each in records)) == found
        assert read(queries, "durable_entrymetadata") == min(most + 1, 200)
        assert len(queries) == 1


@pytest.mark.parametrize("opened", ["", "step #", "step 17"])
def test_a_long_timeline_is_counted_by_look_ups(
    get: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    monkeypatch.setattr(places, "EXACT", 20)
    monkeypatch.setattr(places, "_SAMPLE", 30)
    with CaptureQueriesContext(connection) as queries:
        timeline = get(f"/runs/{LONG}/timeline?open={quote(opened)}")
    assert timeline["is_sampled"] is True
    assert (timeline["rows"][0]["place"], timeline["rows"][0]["count"]) == ("step #", ENTRIES - 1)
    assert len(timeline["rows"]) == {"": 2, "step #": 27, "step 17": 3}[opened]
    assert scans(queries, GROWING) == []
    assert len(queries) <= 20


def test_the_places_of_a_long_history_are_counted_without_sorting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the server takes the groups for many, which would not fit into its memory."""
    monkeypatch.setattr(places, "EXACT", 20)
    with CaptureQueriesContext(connection) as queries:
        found = places.read_places(the_long_one())
    assert [(each.location, each.count) for each in found.places] == [("step #", ENTRIES - 1), ("nap", 1)]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL work_mem = '2MB'")
    counting: Any = SimpleNamespace(captured_queries=[each for each in queries if "GROUP BY" in each["sql"]])
    assert len(counting.captured_queries) == 1
    assert sorts(counting, GROWING, most=ENTRIES // 2) == []


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_events_are_looked_up(is_newest_first: bool) -> None:
    run = the_long_one()
    with CaptureQueriesContext(connection) as queries:
        first = list_events(run, is_newest_first=is_newest_first)
        second = list_events(run, after=first.next_key, is_newest_first=is_newest_first)
    assert len(second.events) == 100
    assert scans(queries, GROWING) == []
    assert len(queries) <= 12


@pytest.mark.parametrize("start", [0, 450, ENTRIES])
def test_two_histories_are_compared_by_look_ups(start: int) -> None:
    short, long = (Run.objects.get(pk=each) for each in (SHORT, LONG))
    for left, right in ((short, long), (long, short)):
        with CaptureQueriesContext(connection) as queries:
            found = compare_runs(left, right, with_payloads=True, start=start)
        assert found.rows
        assert scans(queries, GROWING) == []
        assert len(queries) <= 14


def test_a_page_of_entries_reads_its_own_metadata_alone(get: Callable[[str], Any]) -> None:
    first = get(f"/runs/{LONG}/entries?limit=20")
    with CaptureQueriesContext(connection) as queries:
        second = get(f"/runs/{LONG}/entries?limit=20&cursor={first['next_cursor']}")
    assert [each["location"] for each in second["results"]] == [f"step {number}" for number in range(21, 41)]
    assert scans(queries, GROWING) == []
    assert read(queries, "durable_entrymetadata") == 2 * 20  # their sizes first, then what a page may hold


def test_a_stream_looks_up_what_it_tells(get: Callable[[str], Any]) -> None:
    Run.objects.filter(pk=LONG).update(state="running", lease_expires_at=timezone.now() + timedelta(minutes=1))
    follower = Follower(the_long_one)
    with CaptureQueriesContext(connection) as first:
        assert len(read_all(follower)) == ENTRIES
    assert scans(first, GROWING) == []
    EntryMetadata.objects.filter(entry__run=LONG, entry__location="step 7").update(rollback_completed_at=timezone.now())
    with CaptureQueriesContext(connection) as poll:
        assert read_all(follower) == ["step 7"]
    assert scans(poll, GROWING) == []
    Entry.objects.filter(run=LONG, location="step 8").delete()
    with CaptureQueriesContext(connection) as compared:
        assert list(follower.look().removed) == ["step 8"]
    assert scans(compared, GROWING) == []


def test_commands_look_up_a_history() -> None:
    Run.objects.filter(pk=LONG).update(state="completed", wake_at=None, finished_at=timezone.now())
    for arguments in (("show", LONG), ("why", LONG), ("export", LONG), ("show", LONG, "--follow")):
        with CaptureQueriesContext(connection) as queries:
            assert LONG in printed(*arguments)
        assert scans(queries, GROWING) == [], arguments


def test_durations_of_steps_are_looked_up() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert workflow_durations("big.workflow_3")[0].place == "charge"
        [steps] = workflow_durations("big.long")
        assert (steps.place, steps.sampled) == ("step #", ENTRIES_OF_A_RUN - 1)  # the first one is a sleep
        usual = usual_durations([("big.workflow_3", MIDDLE, "charge"), ("big.long", LONG, "step 7")])
    assert len(usual) == 2
    assert scans(queries, GROWING) + sorts(queries, GROWING) == []
    assert sifted(queries, GROWING) <= 1


def test_pruning_reads_what_goes() -> None:
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Run.objects.filter(pk=LONG).update(state="completed", wake_at=None, finished_at=an_hour_ago)
    long = Policy.older_than(60, workflow="big.long")
    others = Policy.older_than(60, workflow="big.workflow_3", states=["completed"])
    with CaptureQueriesContext(connection) as previews:
        assert preview_pruning(long, most=1_000) == Pruned(runs=1)
        assert preview_pruning(others, most=1_000) == Pruned(runs=1_000)
    assert scans(previews, GROWING) == []
    assert sifted(previews, GROWING) <= 1
    with CaptureQueriesContext(connection) as queries:
        pruned = prune(long)
    assert (pruned.runs, pruned.entries, pruned.messages) == (1, ENTRIES, ENTRIES)
    assert scans(queries, GROWING) == []
    with CaptureQueriesContext(connection) as idle:
        assert sum(Pruner(Policy.of(1e9), "default").batches(timezone.now()), Pruned()) == Pruned()
    assert scans(idle, GROWING) + sorts(idle, GROWING) == []
    assert read(idle, "durable_run") <= 200  # a few for each workflow that has runs of an ended state


def test_the_runs_of_a_replay_check_are_looked_up() -> None:
    workflow = "big.workflow_3"
    with CaptureQueriesContext(connection) as queries:
        most, sample = sampled_runs([workflow], 100)
        count, ids = open_runs([])
        assert len(list(ids)) == count
    assert len(sample) == min(100, most) > 0
    assert scans(queries, GROWING) == []


def test_ended_runs_are_counted_along_the_index_of_their_end() -> None:
    now = timezone.now()
    RollupProgress.objects.update_or_create(
        pk=1, defaults={"until": now.replace(second=0, microsecond=0) - timedelta(hours=1)}
    )
    with CaptureQueriesContext(connection) as queries:
        eventually(lambda: roll_up(now))
    assert any("GROUP BY" in each["sql"] for each in queries.captured_queries)
    assert scans(queries, GROWING) == []
    settle(now)
    with CaptureQueriesContext(connection) as queries:
        hour, day = last_hour_and_day(now)
    assert len(queries) == 2
    assert 30_000 < hour.total <= day.total


def test_names_are_looked_up_one_by_one() -> None:
    for kind in KINDS:
        with CaptureQueriesContext(connection) as queries:
            assert find_names(kind, "b" if kind == "workflow" else "").names or kind == "worker"
        assert scans(queries, GROWING) + sorts(queries, GROWING) == [], kind
        assert read(queries, "durable_run") <= NEWEST + 100, kind


# -- at the end, because what is estimated of the table of failures stays behind


@pytest.mark.parametrize("number", [3, 5_000])
def test_held_runs_are_read_along_their_own_index(get: Callable[[str], Any], number: int) -> None:
    an_open_run = Run.objects.filter(state="sleeping").order_by("id")[:1]
    waiting = list(Run.objects.exclude(state__in=["completed", "failed", "cancelled"]).order_by("id")[:number])
    assert an_open_run.exists()
    cause = Cause.objects.order_by("pk")[0]
    for each in waiting:
        each.summary = Summary(SummaryKind.WAITING, doing=[DOING], queues=None, until=None).stored
    Run.objects.bulk_update(waiting, ["summary"], batch_size=1_000)
    Failure.objects.filter(run__in=[each.pk for each in waiting]).delete()
    Failure.objects.bulk_create(
        Failure(
            run=each,
            cause=cause,
            workflow=each.workflow,
            queue=each.queue,
            failed_at=each.created_at,
            run_created_at=each.created_at,
            is_held=True,
        )
        for each in waiting
    )
    with connection.cursor() as cursor:  # runs that have failed once
        cursor.execute(
            "INSERT INTO durable_failure (run_id, cause_id, workflow, queue, worker, failed_at, run_created_at, is_open)"
            " SELECT id, %s, workflow, queue, '', created_at, created_at, false FROM durable_run ON CONFLICT DO NOTHING",
            [cause.pk],
        )
        cursor.execute("ANALYZE durable_failure, durable_run")
    page = min(len(waiting), 50)
    for address in (
        "/runs?held=true",
        "/runs?held=true&state=sleeping",
        "/runs?attention=true",
        "/runs?cause=" + cause.fingerprint,
    ):
        with CaptureQueriesContext(connection) as queries:
            paged(get, address)
        assert scans(queries, GROWING) + sorts(queries, GROWING) == [], address
        assert sifted(queries, GROWING) <= WINDOW, address
    assert len(get("/runs?held=true")["results"]) == page
    with CaptureQueriesContext(connection) as queries:
        get("/runs?held=true")
    assert "durable_failure_held" in " ".join(plans_of(queries))
    for reading in (held_runs, held_by_cause, lambda: list_causes(timezone.now())):
        with CaptureQueriesContext(connection) as queries:
            reading()
        assert scans(queries, GROWING) == []


#: What a held step has in its run's summary.
DOING = {"kind": "exhausted", "location": "charge", "error": "BankError", "attempt": 3}
