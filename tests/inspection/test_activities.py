"""What runs now, as each surface tells it: the step, its age, what is usual, and which steps hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durable import Context, workflow
from durable.admin import pages
from durable.inspection.activities import activities_of, activities_of_runs, hung_steps, list_activities
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.progress import progress_of
from durable.inspection.tree import TreeNode, history_tree
from durable.metrics.rows import RowsCollector
from durable.models import Activity, Entry, EntryMetadata, Run
from tests.faults.passing import pass_once
from tests.inspection.conftest import findings
from tests.support.commands import printed
from tests.support.worker import a_worker

pytestmark = pytest.mark.django_db

WORKER = "host:1:abc"
NOW = [timezone.now()]
LONG_NAME = "n" * 1_000


@workflow(name="tests.running.order")
def order(ctx: Context) -> None:
    ctx.step("charge", lambda: None)


@pytest.fixture(autouse=True)
def _now() -> None:
    NOW[0] = timezone.now()


def held(run_id: str, **columns: Any) -> Run:
    """A run in the hands of a worker."""
    now = NOW[0]
    usual = {"workflow": "tests.running.order", "queue": "default", "state": "running", "input": "[]", "fence": 3}
    usual |= {"created_at": now, "started_at": now, "wake_at": now, "worker": WORKER}
    return Run.objects.create(id=run_id, **{**usual, "lease_expires_at": now + timedelta(hours=1), **columns})


@pytest.fixture
def run() -> Run:
    """A run in the hands of a worker: "order-1"."""
    return held("order-1")


def runs(run: Run, location: str = "charge", seconds: float = 2400, **columns: Any) -> Activity:
    """A step of the run that has run for so long."""
    usual: dict[str, Any] = {"attempt": 1, "kind": "step", "fence": run.fence, "worker": WORKER, "timeout": 3060.0}
    began_at = NOW[0] - timedelta(seconds=seconds)
    return Activity.objects.create(run=run, location=location, began_at=began_at, **{**usual, **columns})


def usually(seconds: float, times: int = 5) -> None:
    """The step "charge" has taken so long in runs before."""
    for _ in range(times):
        run = order.start()
        pass_once(run)
        entries = EntryMetadata.objects.filter(entry__run=run.id)
        entries.update(last_attempt_at=F("completed_at") - timedelta(seconds=seconds))


def headline(run: Run) -> str:
    return explain_fully(Run.objects.get(pk=run.pk), NOW[0]).headline


# -- the sentence


def test_a_running_run_says_which_step_runs_for_how_long_and_what_is_usual(run: Run) -> None:
    usually(2)
    runs(run)
    assert headline(run) == 'Seems hung: running step "charge" for 40 m (timeout 51 m; usually 2 s)'
    explanation = explain_fully(run, timezone.now())
    assert (explanation.location, explanation.needs_attention) == ("charge", True)
    assert explanation.remedies[0] == "abandon"
    assert WORKER in explanation.detail


def test_a_step_of_which_nothing_is_known_has_its_timeout_alone(run: Run) -> None:
    activity = runs(run, timeout=0.0)
    assert headline(run) == 'Running step "charge" for 40 m'
    Activity.objects.filter(pk=activity.pk).update(timeout=3600, attempt=3)
    assert headline(run) == 'Seems hung: running step "charge", attempt 3, for 40 m (timeout 1 h)'


def test_the_oldest_of_several_branches_is_named(run: Run) -> None:
    for name, seconds in (("left", 60), ("right", 2400), ("middle", 5)):
        runs(run, f"all/{name}/charge", seconds, timeout=0.0)
    assert headline(run) == 'Running step "all / right / charge" for 40 m, and 2 more'
    assert [each.location for each in activities_of(run, timezone.now())] == [
        "all/right/charge",
        "all/left/charge",
        "all/middle/charge",
    ]


def test_a_rollback_handler_is_named_as_one() -> None:
    run = held("order-1", state="rolling_back", state_after_rollback="failed")
    runs(run, kind="rollback", timeout=0.0)
    assert headline(run) == 'Compensating: running the rollback handler of "charge" for 40 m'


def test_a_request_tells_which_step_it_waits_for() -> None:
    run = held("order-1", pending_request="cancel")
    runs(run)
    assert headline(run) == 'Asked to cancel: takes effect when step "charge" ends, which has run for 40 m'
    assert "abandon" in explain_fully(run, timezone.now()).remedies


def test_a_clock_that_is_behind_makes_no_age_negative(run: Run) -> None:
    runs(run, seconds=-30, timeout=0.0)
    assert headline(run) == 'Running step "charge" for 0 s'


def test_what_a_dead_worker_has_left_is_not_told(run: Run) -> None:
    runs(run, fence=run.fence - 1)
    now = timezone.now()
    assert activities_of(run, now) == []
    Activity.objects.update(fence=run.fence)
    Run.objects.filter(pk=run.pk).update(lease_expires_at=now - timedelta(seconds=1))
    assert list_activities(now).steps == []
    Run.objects.filter(pk=run.pk).update(state="completed", lease_expires_at=None, wake_at=None, finished_at=now)
    assert "charge" not in headline(run)


def test_time_in_a_running_step_is_not_time_of_waiting(run: Run) -> None:
    before = progress_of(run)
    runs(run, seconds=2400)
    after = progress_of(run)
    assert before.active == 0
    assert after.active >= 2400
    assert before.revision != after.revision


def test_a_run_without_a_worker_costs_no_statement() -> None:
    run = held("order-1", state="sleeping", lease_expires_at=None)
    with CaptureQueriesContext(connection) as queries:
        assert activities_of_runs([run], timezone.now()) == {}
    assert len(queries) == 0


# -- the history


def recorded(run: Run, location: str, status: str, kind: str = "step") -> None:
    """An entry of the run, behind those that it has."""
    ordinal = Entry.objects.filter(run=run).count()
    entry = Entry.objects.create(run=run, location=location, kind=kind, ordinal=ordinal)
    EntryMetadata.objects.create(entry=entry, status=status, attempts=1, created_at=NOW[0])


def tree_of(run: Run, **options: Any) -> dict[str, TreeNode]:
    """The nodes of its history with what runs now, by location in their order."""
    running = activities_of_runs([run], NOW[0])[run.id]
    return {node.location: node for node in history_tree(run, running=running, **options).nodes}


def test_a_step_in_its_first_attempt_is_the_last_of_the_history(run: Run) -> None:
    recorded(run, "validate", "completed")
    runs(run, seconds=2400)
    nodes = tree_of(run)
    assert list(nodes) == ["validate", "charge"]
    charge = nodes["charge"]
    assert (charge.kind, charge.status, charge.entry_id) == ("step", "running", None)
    assert charge.running_since == NOW[0] - timedelta(seconds=2400)
    assert nodes["validate"].running_since is None
    assert list(tree_of(run, only_failed=True)) == ["charge"]
    assert list(tree_of(run, size=1)) == ["charge"]  # it opens where the run is


def test_what_runs_in_branches_and_iterations_stands_inside_of_them(run: Run) -> None:
    recorded(run, "all", "pending", "join")
    recorded(run, "all/left/charge", "completed")
    for location in ("all/right/poll/~3/ask", "all/left/mail"):
        runs(run, location)
    nodes = tree_of(run)
    assert [(each.location, each.kind, each.status) for each in nodes.values()] == [
        ("all", "join", "pending"),
        ("all/left", "branch", "running"),
        ("all/left/charge", "step", "completed"),
        ("all/left/mail", "step", "running"),
        ("all/right", "branch", "running"),
        ("all/right/poll", "block", "running"),
        ("all/right/poll/~3", "iteration", "running"),
        ("all/right/poll/~3/ask", "step", "running"),
    ]


def test_another_attempt_and_a_rollback_handler_are_marked_at_their_step(run: Run) -> None:
    for location, status in (("charge", "failed"), ("reserve", "completed"), ("mail", "completed")):
        recorded(run, location, status)
    runs(run, "charge", attempt=2)
    runs(run, "reserve", kind="rollback")
    runs(run, "mail")  # it has ended since the activities were read
    nodes = tree_of(run)
    assert [(each.status, each.running_since is not None) for each in nodes.values()] == [
        ("running", True),
        ("completed", True),
        ("completed", False),
    ]
    assert list(tree_of(run, only_failed=True)) == ["charge", "reserve"]


def test_every_surface_tells_what_runs_in_the_history(run: Run, get: Callable[..., Any]) -> None:
    runs(run, "all/left/charge", seconds=2400, attempt=1)
    html = get(f"{reverse('admin:durable_run_change', args=['order-1'])}?part=history").content.decode()
    tree = html[html.index('<ol class="durable-tree">') :]
    assert "running since" in tree
    assert "40 m" in tree
    assert f"{reverse('admin:durable_run_step', args=['order-1'])}?at=all%2Fleft%2Fcharge" in tree
    [around] = get("/api/runs/order-1/tree").json()["roots"]
    [branch] = around["children"]
    [step] = branch["children"]
    assert (step["location"], step["status"], around["running_since"]) == ("all/left/charge", "running", None)
    assert datetime.fromisoformat(step["running_since"]) == NOW[0] - timedelta(seconds=2400)
    [line] = [line for line in printed("show", "order-1").splitlines() if line.startswith("all/left/charge")]
    assert line.split()[1:4] == ["step", "running", "1"]
    assert "running for 40 m" in line


# -- the list


def test_the_list_has_the_oldest_first_page_by_page(run: Run) -> None:
    for number in range(5):
        runs(run, f"step {number}", seconds=100 + number)
    now, seen, cursor = timezone.now(), [], None
    while True:
        page = list_activities(now, cursor=cursor, limit=2)
        seen += [each.location for each in page.steps]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"step {number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("text", ["x", "1", "1-", "-1", "9" * 17 + "-1", "1-1-1", "1-\ud800"])
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursorError):
        list_activities(timezone.now(), cursor=text)


def test_a_list_takes_three_statements() -> None:
    for number in range(8):
        runs(held(f"order-{number}"), f"step {number}")
    with CaptureQueriesContext(connection) as queries:
        assert len(list_activities(timezone.now()).steps) == 8
    assert len(queries) == 3


def leaves(run: Run, location: str = "charge", seconds: float = 100, worker: str = WORKER) -> Activity:
    """What a step of the run has left on the event loop of a worker, so long ago."""
    return runs(run, location, seconds, attempt=0, fence=0, timeout=0.0, stack="the task poll", worker=worker)


def test_what_an_async_step_has_left_is_in_the_list_as_long_as_its_worker_lives(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "HARD_TIMEOUT": 120}
    a_worker(WORKER)
    a_worker("dead", last_seen_at=NOW[0] - timedelta(minutes=1))
    run = held("order-1", state="sleeping", lease_expires_at=None, worker="")
    leaves(run)
    leaves(run, "", seconds=10)
    leaves(run, "mail", worker="dead")
    leaves(run, "poll", worker="unknown")
    step, code = list_activities(NOW[0]).steps
    assert step.words == 'the task poll, which step "charge" has left for 1 m 40 s'
    assert step.overrun == (
        "It goes on after it was cancelled, and its run continues without it. "
        "In 20 s its worker's process hands over its other runs and ends."
    )
    assert code.name == "the task poll, which the workflow has left"
    assert (step.is_hung, code.is_hung) == (True, False)
    assert activities_of(run, NOW[0]) == []


def test_every_surface_tells_what_an_async_step_has_left(get: Callable[..., Any]) -> None:
    a_worker(WORKER)
    leaves(held("order-1", state="sleeping", lease_expires_at=None, worker=""))
    assert "charge (has left the task poll)" in printed("running")
    [listed] = get("/api/running").json()["results"]
    assert (listed["left"], listed["attempt"], listed["is_hung"]) == ("the task poll", 0, True)
    html = get(reverse("admin:durable_run_running")).content.decode()
    assert "the task poll, which step &quot;charge&quot; has left" in html
    assert "left behind" in html


# -- hung steps


def test_a_step_hangs_that_runs_for_five_times_its_usual_longest() -> None:
    usually(100)
    runs(held("slow"), seconds=400)
    assert hung_steps(NOW[0]) == []
    runs(held("hung"), seconds=600)
    assert [each.run_id for each in hung_steps(NOW[0])] == ["hung"]


def test_a_step_of_less_than_a_minute_does_not_hang() -> None:
    usually(0.01)
    runs(held("order-1"), seconds=50)
    assert hung_steps(NOW[0]) == []


def test_where_nothing_is_known_half_of_the_timeout_counts() -> None:
    runs(held("one"), seconds=200, timeout=300.0)
    runs(held("two"), seconds=100, timeout=300.0)
    runs(held("three"), seconds=10_000, timeout=0.0)
    assert [each.run_id for each in hung_steps(NOW[0])] == ["one"]


def test_hung_steps_are_a_finding_with_the_step_its_age_and_its_worker() -> None:
    runs(held("order-1"), seconds=2400, timeout=3060.0)
    [finding] = findings("hung_step")
    assert finding.runs == [("order-1", "tests.running.order")]
    assert 'step "charge" for 40 m' in finding.advice
    assert WORKER in finding.advice
    assert finding.command.endswith("durable running")
    assert finding.location == "charge"


def test_what_follows_a_timeout_that_has_passed_is_told(settings: Any) -> None:
    runs(held("order-1"), seconds=100, timeout=90.0)
    runs(held("order-2"), seconds=100, timeout=120.0)
    runs(held("order-3"), seconds=200, timeout=90.0)
    told = {each.run_id: each.overrun for each in list_activities(NOW[0]).steps}
    assert told["order-1"].startswith("Its timeout has passed, and it has not let itself be interrupted. In 50 s its")
    assert told["order-2"] == ""
    assert told["order-3"].endswith("Its worker's process hands over its other runs and ends now.")
    settings.DURABLE = {**settings.DURABLE, "HARD_TIMEOUT": 0}
    assert {each.run_id: each.overrun for each in list_activities(NOW[0]).steps}["order-3"].endswith("interrupted.")


def test_the_metrics_have_the_number_of_hung_steps_and_the_oldest_age() -> None:
    def values() -> dict[str, float]:
        return {each.name: each.value for family in RowsCollector().collect() for each in family.samples}

    assert values()["durable_hung_steps"] == values()["durable_step_age_seconds"] == 0
    runs(held("order-1"), seconds=2400)
    found = values()
    assert found["durable_hung_steps"] == 1
    assert found["durable_step_age_seconds"] >= 2400


# -- the surfaces


def test_the_command_lists_what_runs() -> None:
    runs(held("order-1"), seconds=2400)
    assert ", hung" in printed("running")
    [data] = [json.loads(line) for line in printed("running", "-o", "json").splitlines()]
    assert (data["run"], data["location"], data["is_hung"]) == ("order-1", "charge", True)
    assert printed("running", "-o", "ids").strip() == "order-1"
    for command in (("show", "order-1"), ("why", "order-1"), ("list",)):
        assert 'Seems hung: running step "charge" for 40 m' in printed(*command), command


@pytest.fixture
def get(client: Client) -> Callable[..., Any]:
    """Sends requests as a user who may see runs."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_run", content_type__app_label="durable"))
    client.force_login(user)
    return client.get


def test_the_interface_lists_what_runs(get: Callable[..., Any]) -> None:
    usually(2)
    runs(held("order-1"), LONG_NAME)
    runs(held("order-2"), seconds=70)
    page = get("/api/running?limit=1").json()
    [one] = page["results"]
    assert (one["run"], one["location"], one["kind"], one["p50"]) == ("order-1", LONG_NAME, "step", None)
    [two] = get(f"/api/running?cursor={page['next_cursor']}").json()["results"]
    assert (two["run"], two["p50"], two["is_hung"]) == ("order-2", 2.0, True)
    assert get("/api/running?cursor=x").status_code == 400
    assert [each["run"] for each in get("/api/runs/order-2/running").json()["results"]] == ["order-2"]
    assert get("/api/runs/unknown/running").status_code == 404
    [listed] = get("/api/runs?id_prefix=order-2").json()["results"]
    assert listed["explanation"]["headline"].startswith('Running step "charge" for 1 m')


def test_the_page_lists_what_runs_and_the_overview_leads_to_it(
    get: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = timezone.now()
    monkeypatch.setattr(pages, "now", lambda: moment)  # another minute is another page
    runs(held("order-1"), LONG_NAME)
    runs(held("order<2>"), "a\u202eb", seconds=3, kind="rollback", attempt=2)
    answer = get(reverse("admin:durable_run_running"))
    html = answer.content.decode()
    assert html.index(LONG_NAME) < html.index("order&lt;2&gt;")
    assert "hung" in html
    assert "\u202e" not in html
    live = f"{reverse('admin:durable_run_running')}?live=1"
    fragment = get(live)
    assert fragment.status_code == 200
    assert get(live, headers={"If-None-Match": fragment["ETag"]}).status_code == 304
    assert reverse("admin:durable_run_running") in get("/admin/durable/").content.decode()
    assert get(f"{reverse('admin:durable_run_running')}?after=x").status_code == 200


def test_only_users_who_may_see_runs_see_what_runs(client: Client) -> None:
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    assert client.get(reverse("admin:durable_run_running")).status_code == 403
    assert client.get("/api/running").status_code == 403
    assert client.get("/api/runs/order-1/running").status_code == 403


def test_lists_of_runs_name_the_step(run: Run, get: Callable[..., Any]) -> None:
    runs(run, seconds=2400)
    assert "running step" in get(reverse("admin:durable_run_changelist")).content.decode()
    assert "charge" not in explain(run, timezone.now()).headline


def test_the_page_of_a_run_lists_its_branches_that_run(run: Run, get: Callable[..., Any]) -> None:
    address = reverse("admin:durable_run_change", args=["order-1"])
    runs(run, "all/left/charge")
    step = reverse("admin:durable_run_running_step", args=["order-1"])
    assert f"{step}?at=all%2Fleft%2Fcharge" not in get(address).content.decode()  # the headline names it
    for number in range(12):
        runs(run, f"all/{number}/charge", seconds=10)
    html = get(address).content.decode()
    assert html.count(f"{step}?at=") == 10
    assert "All that runs now" in html
