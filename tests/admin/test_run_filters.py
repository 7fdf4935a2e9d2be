"""The list's filters, orders and searches: what each finds, on which surfaces, and page by page."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from durable import get_run
from durable.core.errors import ErrorInfo
from durable.inspection import run_lanes
from durable.inspection.explanation import explain
from durable.inspection.pagination import InvalidCursorError, RunOrder
from durable.inspection.payloads import SEARCHED
from durable.inspection.runs import RunCriteria, count_runs, list_and_count, list_runs
from durable.inspection.selection import Filtered
from durable.models import Run
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import printed

pytestmark = pytest.mark.django_db


def found(order: RunOrder = RunOrder.NEWEST, limit: int = 50, **wanted: Any) -> list[str]:
    """The ids of all pages."""
    seen: list[str] = []
    cursor = None
    while True:
        page = list_runs(RunCriteria(**wanted), order=order, cursor=cursor, limit=limit)
        seen += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            return seen


def rows(*given: dict[str, Any]) -> None:
    """Rows as workers and other versions of the code leave them."""
    Run.objects.bulk_create(Run(**{"workflow": "w", "queue": "default", "input": "[]", **each}) for each in given)


@pytest.fixture
def odd(stage: Stage) -> Stage:
    """Runs in every state, half of them in trouble."""
    now = stage.now
    long_ago, soon, just_now = now - timedelta(minutes=5), now + timedelta(hours=1), now - timedelta(seconds=5)
    made: list[dict[str, Any]] = [
        {"id": "later", "state": "pending", "wake_at": soon},
        {"id": "unclaimed", "state": "pending", "wake_at": long_ago},
        {"id": "due", "state": "pending", "wake_at": just_now},
        {"id": "asleep", "state": "sleeping", "wake_at": soon},
        {"id": "overslept", "state": "sleeping", "wake_at": long_ago},
        {"id": "waits", "state": "sleeping", "waiting_for": "/approved/"},
        {"id": "misfit", "state": "sleeping", "wake_at": soon, "diverged_at": long_ago},
        {"id": "works", "state": "running", "wake_at": long_ago, "lease_expires_at": soon, "worker": "a:1"},
        {"id": "lost", "state": "running", "wake_at": long_ago, "lease_expires_at": long_ago, "worker": "a:1"},
        {"id": "crashing", "state": "running", "wake_at": now, "lease_expires_at": soon, "crashes": 2, "worker": "b:2"},
        {"id": "undoing", "state": "rolling_back", "wake_at": soon, "worker": ""},
        {"id": "undoes-not", "state": "rolling_back", "wake_at": long_ago},
        {"id": "paused", "state": "paused", "wake_at": long_ago},
        *({"id": state, "state": state, "finished_at": long_ago} for state in ("completed", "cancelled", "failed")),
    ]
    rows(*({"created_at": now - timedelta(seconds=number), **each} for number, each in enumerate(made)))
    return stage


def test_what_needs_attention_is_what_the_list_marks(odd: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = [each.id for each in Run.objects.newest_first() if explain(each, odd.now).needs_attention]
    assert len(marked) == 7
    assert found(needs_attention=True) == marked
    assert found(needs_attention=True, limit=2) == marked
    assert found(needs_attention=True, states=frozenset({"sleeping"})) == ["overslept", "misfit"]
    assert found(needs_attention=True, states=frozenset({"failed"})) == ["failed"]
    assert found(needs_attention=True, states=frozenset({"completed"})) == []
    assert found(needs_attention=True, id_prefix="u") == ["unclaimed", "undoes-not"]
    assert str(count_runs(RunCriteria(needs_attention=True))) == "7"
    # where the small indexes have many runs, the list looks through all
    monkeypatch.setattr(run_lanes, "FEW", 1)
    assert found(needs_attention=True) == marked


def test_diverged_runs_are_found_open_and_ended(odd: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(
        {"id": "stopped", "state": "failed", "finished_at": odd.now, "created_at": odd.now, "diverged_at": odd.now},
    )
    assert found(is_diverged=True) == ["stopped", "misfit"]
    assert found(is_diverged=True, states=frozenset({"sleeping", "paused"})) == ["misfit"]
    monkeypatch.setattr(run_lanes, "FEW", 0)
    assert found(is_diverged=True) == ["stopped", "misfit"]


def test_a_run_that_failed_because_it_diverged_is_found(stage: Stage) -> None:
    stage.start(flows.quick, id="run")
    error = ErrorInfo("HistoryDivergedError", "expected another step", "")
    Run.objects.filter(pk="run").update(state="failed", error=error)
    stage.start(flows.quick, id="other")
    assert found(is_diverged=True) == ["run"]


def test_the_runs_of_a_worker_are_those_that_it_has_and_those_that_failed_on_it(odd: Stage) -> None:
    assert found(worker="a:1") == ["works", "lost"]
    flows.SWITCH["broken"] = True
    odd.start(flows.switched, id="broken")
    assert found(worker="host:4711:abc") == ["broken"]
    assert found(worker="host:4711:abc", states=frozenset({"running"})) == []
    flows.SWITCH["broken"] = False
    get_run("broken").recover()
    assert found(worker="host:4711:abc") == []


def test_few_runs_are_counted_as_they_are_read(odd: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along several indexes too: what no index serves is not looked through twice."""
    monkeypatch.setattr(run_lanes, "WINDOW", 2)
    for wanted in (
        RunCriteria(worker="a:1"),
        RunCriteria(worker="nobody"),
        RunCriteria(states=frozenset({"failed", "cancelled", "running"})),
        RunCriteria(states=frozenset({"failed", "sleeping"}), queue="default"),
        RunCriteria(is_diverged=True),
    ):
        with CaptureQueriesContext(connection) as listed:
            list_runs(wanted)
        with CaptureQueriesContext(connection) as queries:
            page, number = list_and_count(wanted)
        assert len(queries) <= len(listed), wanted
        assert number == count_runs(wanted), wanted
        assert [run.id for run in page.runs] == [run.id for run in list_runs(wanted).runs]
        # a page that does not have all of them does not tell their number
        assert list_and_count(wanted, limit=1)[1] == number, wanted


def test_a_stuck_compensation_is_found(stage: Stage) -> None:
    stage.start(flows.saga, id="undone")
    flows.SWITCH["rollback_broken"] = True
    stage.start(flows.saga, id="stuck")
    assert found(is_stuck=True) == ["stuck"]
    assert found(is_undone=True) == ["undone"]
    assert found(is_undone=True, is_stuck=True) == []
    assert found(is_stuck=True, states=frozenset({"cancelled"})) == []
    assert str(count_runs(RunCriteria(is_stuck=True, states=frozenset({"cancelled"})))) == "0"


@pytest.fixture
def ended(stage: Stage) -> Stage:
    """Runs that ended in another order than they began; two at one moment."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number, (state, minutes) in enumerate([("completed", 9), ("failed", 3), ("completed", 3), ("cancelled", 5)]):
        times = {"created_at": begin + timedelta(seconds=number), "finished_at": begin + timedelta(minutes=minutes)}
        rows({"id": f"run-{number}", "state": state, "workflow": f"w{number % 2}", **times})
    rows({"id": "open", "state": "pending", "wake_at": begin, "created_at": begin})
    return stage


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_each_order_is_paged_without_loss(ended: Stage, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for window in (run_lanes.WINDOW, 2):
        monkeypatch.setattr(run_lanes, "WINDOW", window)
        assert found(RunOrder.NEWEST, limit) == ["run-3", "run-2", "run-1", "run-0", "open"]
        assert found(RunOrder.OLDEST, limit) == ["open", "run-0", "run-1", "run-2", "run-3"]
        assert found(RunOrder.LAST_FINISHED, limit) == ["run-0", "run-3", "run-2", "run-1"]
        assert found(RunOrder.FIRST_FINISHED, limit) == ["run-1", "run-2", "run-3", "run-0"]
        assert found(RunOrder.LAST_FINISHED, limit, workflow="w0") == ["run-0", "run-2"]
        assert found(RunOrder.LAST_FINISHED, limit, workflow="w1", states=frozenset({"failed"})) == ["run-1"]
        assert found(RunOrder.LAST_FINISHED, limit, states=frozenset({"completed"})) == ["run-0", "run-2"]
        assert found(RunOrder.OLDEST, limit, queue="nobody") == []
        assert found(RunOrder.NEXT, limit) == ["open"]


def test_runs_that_go_on_by_themselves_are_listed_by_when(odd: Stage) -> None:
    Run.objects.filter(pk="due").update(queue="high")
    waking = Run.objects.filter(wake_at__isnull=False).exclude(state="paused").order_by("wake_at", "id")
    assert found(RunOrder.NEXT) == [each.id for each in waking]
    assert found(RunOrder.NEXT, 1, queue="high") == ["due"]
    assert found(RunOrder.NEXT, 2, states=frozenset({"sleeping"})) == ["overslept", "asleep", "misfit"]


def test_a_cursor_of_another_order_is_refused(ended: Stage) -> None:
    cursor = list_runs(RunCriteria(), order=RunOrder.LAST_FINISHED, limit=1).next_cursor
    for order in (RunOrder.NEWEST, RunOrder.FIRST_FINISHED, RunOrder.NEXT):
        with pytest.raises(InvalidCursorError):
            list_runs(RunCriteria(), order=order, cursor=cursor)


def test_a_count_says_when_it_is_none_of_all(ended: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(count_runs(RunCriteria())) == "5"
    assert str(count_runs(RunCriteria(workflow="w0"))) == "2"
    assert str(count_runs(RunCriteria(id_prefix="run-"))) == "4"
    monkeypatch.setattr("durable.inspection.runs.FOUND", 3)
    assert str(count_runs(RunCriteria())) == "3+"
    monkeypatch.setattr(run_lanes, "WINDOW", 2)
    assert str(count_runs(RunCriteria(queue="nobody"))) == "0+"


#: The same filter as the interface's query, the command's options and the engine's criteria.
SURFACES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("attention=true", ["--attention"], {"needs_attention": True}),
    ("diverged=true", ["--diverged"], {"is_diverged": True}),
    ("stuck=true", ["--stuck"], {"is_stuck": True}),
    ("undone=true", ["--undone"], {"is_undone": True}),
    ("worker=a:1", ["--worker", "a:1"], {"worker": "a:1"}),
]


@pytest.fixture
def troubled(odd: Stage) -> Stage:
    """As `odd`, with a compensation done and one that has stopped."""
    odd.start(flows.saga, id="undone")
    flows.SWITCH["rollback_broken"] = True
    odd.start(flows.saga, id="stuck")
    return odd


@pytest.mark.parametrize(("query", "options", "wanted"), SURFACES)
def test_a_filter_finds_the_same_everywhere(
    troubled: Stage, operator: Client, query: str, options: Sequence[str], wanted: dict[str, Any]
) -> None:
    expected = found(**wanted)
    assert expected
    answer = operator.get(f"/api/runs?{query}").json()
    assert [each["id"] for each in answer["results"]] == expected
    assert printed("list", *options, "-o", "ids").split() == expected
    assert list(Filtered(RunCriteria(**wanted)).page(None, 50)[0]) == expected
    counted = Filtered(RunCriteria(**wanted)).tally(["failed"], 100)
    assert sum(counted.numbers.values()) == len(expected)


def test_an_order_is_the_same_everywhere(ended: Stage, operator: Client) -> None:
    expected = found(RunOrder.LAST_FINISHED)
    answer = operator.get("/api/runs?sort=-finished_at").json()
    assert [each["id"] for each in answer["results"]] == expected
    assert printed("list", "--sort=-finished_at", "-o", "ids").split() == expected
    refused = operator.get("/api/runs?sort=worker")
    assert (refused.status_code, refused.json()["errors"][0]["at"]) == (400, "sort")


# -- A search by error reads the beginning of each error, however long errors are


RUNS = 20
LONG = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def found_by_error(text: str) -> list[str]:
    return [run.id for run in list_runs(RunCriteria(error_text=text)).runs]


class TestWhatIsFound:
    @pytest.fixture(autouse=True)
    def _failed(self, stage: Stage) -> None:
        for id, error in {
            "plain": ErrorInfo("ValueError", "no answer", "Traceback: in the bank"),
            "long": ErrorInfo("KeyError", f"beginning {'x' * SEARCHED} end", "Traceback"),
            "quoted": ErrorInfo("OSError", 'says "é\\n": 1', "Traceback"),
        }.items():
            stage.start(flows.quick, id=id)
            Run.objects.filter(pk=id).update(error=error)

    def test_types_and_messages_whatever_the_case(self) -> None:
        """And no traceback, no end of a long message, and nothing of how the column is written."""
        for text, ids in {
            "valueerror": ["plain"],
            "NO ANSWER": ["plain"],
            'SAYS "é\\n"': ["quoted"],
            "beginning": ["long"],
            " end": [],
            "in the bank": [],
            "traceback": [],
            '{"type": "': [],
        }.items():
            assert found_by_error(text) == ids, text


@pytest.mark.skipif(connection.vendor != "postgresql", reason="of how PostgreSQL keeps long text")
@pytest.mark.parametrize("hook", ["", "tests.admin.redaction.keep"])
def test_postgresql_fetches_no_more_of_longer_errors(stage: Stage, settings: Settings, hook: str) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": hook}
    fetched = []
    for length in (20_000, 200_000):
        fill(stage, f"of-{length}", length)
        before = chunks_fetched()
        assert list_runs(RunCriteria(error_text="nothing is like this", workflow=f"of-{length}")).runs == []
        fetched.append(chunks_fetched() - before)
    if hook:  # the hook is given whole messages, of few runs: tests.admin.test_redaction
        assert fetched[0] > 0
    else:
        assert fetched[0] == fetched[1] <= RUNS * 12


def fill(stage: Stage, workflow: str, length: int) -> None:
    """Failed runs whose error has a message of so many characters, which do not compress well."""
    chance = random.Random(7)
    template = stage.start(flows.quick, id=workflow)
    for number in range(RUNS):
        template.pk, template.workflow = f"{workflow}-{number}", workflow
        template.error = ErrorInfo("ValueError", "".join(chance.choices(LONG, k=length)), "")
        template.save(force_insert=True)


def chunks_fetched() -> int:
    """How many chunks of long columns this transaction has read of runs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables "
            "WHERE relid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'durable_run'::regclass)"
        )
        [(number,)] = cursor.fetchall()
    return int(number)
