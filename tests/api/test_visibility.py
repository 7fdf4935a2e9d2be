"""A user sees the runs that `API_RUNS` allows; no answer shows anything of the others."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.test import override_settings
from django.utils import timezone

from durable import get_run
from durable.core.control_flow import Park
from durable.core.limits.slot_records import Admission
from durable.core.summary import in_line, waiting
from durable.inspection import actions, causes, pagination, run_lanes
from durable.inspection.pagination import has_own_index
from durable.models import Cause, Child, Failure, Limit, OperatorAction, QueueMessage, Run, Slot
from durable.operations import bulk, holds
from durable.operations.audit import Actor, acting_as
from tests.api.conftest import ALL, Api, MakeApi, pages, problem
from tests.api.workflows import loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        yield


@pytest.fixture
def ada(make_api: MakeApi) -> Api:
    """A user with all permissions, beside a run of another user."""
    pass_once(loop.using(id="ada-1").start(1))
    pass_once(loop.using(id="bob-1").start(1))
    get_run("bob-1").send("q", "secret")
    return make_api(*ALL, name="ada")


READS = [
    "",
    "/entries",
    "/entries/rest",
    "/timeline",
    "/children",
    "/tree",
    "/events",
    "/messages",
    "/result",
    "/replay-plan?location=rest",
]
VERBS: list[tuple[str, dict[str, Any]]] = [
    *[(verb, {}) for verb in ("wake", "pause", "resume", "cancel", "recover", "restart")],
    ("move", {"queue": "high"}),
    ("replay", {"location": "step 0"}),
    ("messages", {"queue": "q"}),
    ("ask", {"queue": "q"}),
]


@pytest.mark.parametrize("path", READS)
def test_anothers_run_is_not_there_to_read(ada: Api, path: str) -> None:
    other = problem(ada.get(f"/runs/bob-1{path}"), 404, "run-not-found")
    missing = problem(ada.get(f"/runs/bob-2{path}"), 404, "run-not-found")
    assert other["detail"].replace("bob-1", "bob-2") == missing["detail"]
    assert ada.get(f"/runs/ada-1{path}").status_code == 200


def ids_that_tell_nothing_of_others(found: Sequence[dict[str, Any]]) -> list[str]:
    """The ids of the runs on these pages, whose cursors have the id of no other run."""
    for text in filter(None, (page["next_cursor"] for page in found)):
        assert b"other" not in base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return [each["id"] for page in found for each in page["results"]]


def runs_of_the_high_queue(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """What no index has."""
    return runs.filter(queue="high")


@pytest.mark.parametrize("sort", ["-created_at", "created_at", "wake_at", "-finished_at", "finished_at"])
@pytest.mark.parametrize("filter", ["", "&state=pending&state=completed", "&workflow=w"])
def test_pages_through_the_runs_of_everybody_lose_none_and_tell_none(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, sort: str, filter: str
) -> None:
    """Five runs a second, one of which is the user's, or none."""
    monkeypatch.setattr(run_lanes, "WINDOW", 3)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(30):
        at = begin + timedelta(seconds=number // 5, milliseconds=100 * (number % 5))
        Run.objects.create(
            id=f"{'mine' if number in (2, 14, 15, 27) else 'other'}-{number}",
            workflow="w",
            input="[]",
            queue="high" if number in (2, 14, 15, 27) else "default",
            created_at=at,
            **(
                {"state": "completed", "finished_at": at} if "finished" in sort else {"state": "pending", "wake_at": at}
            ),
        )
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_the_high_queue"}):
        found = list(pages(make_api(*ALL, name="ada"), f"/runs?limit=2&sort={sort}{filter}"))
    mine = ["mine-2", "mine-14", "mine-15", "mine-27"]
    assert ids_that_tell_nothing_of_others(found) == (mine[::-1] if sort.startswith("-") else mine)
    assert sum(page["looked_through"] is not None for page in found) >= 3


def runs_of_one_workflow(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """What an index has."""
    return runs.filter(workflow="mine")


@pytest.mark.parametrize("mine", [(0, 1, 2, 40), (3, 9, 12, 15, 18, 21, 24, 27, 30), range(0, 60, 2)])
@pytest.mark.parametrize(
    "filter", ["state=failed", "state=failed&state=cancelled", "state=failed&children=true", "place=p"]
)
@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
def test_pages_of_a_users_runs_among_those_of_a_state_lose_none_and_tell_none(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, mine: Collection[int], filter: str, sort: str
) -> None:
    """Every third run is failed, and every fourth cancelled; the user's are rare, in between, or half of all."""
    monkeypatch.setattr(run_lanes, "WINDOW", 5)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    cause = Cause.objects.create(fingerprint="f", place="p", error_type="E", first_seen_at=begin)
    wanted = []
    for number in range(60):
        at = begin + timedelta(seconds=number // 5, milliseconds=100 * (number % 5))
        state = "failed" if number % 3 == 0 else "cancelled" if number % 4 == 0 else "completed"
        is_mine = number in mine
        run = Run.objects.create(
            id=f"{'mine' if is_mine else 'other'}-{number:02}",
            workflow="mine" if is_mine else "others",
            input="[]",
            state=state,
            created_at=at,
            finished_at=at,
        )
        if state == "failed":
            Failure.objects.create(run=run, cause=cause, workflow=run.workflow, failed_at=at, run_created_at=at)
        if is_mine and (state == "failed" or (state == "cancelled" and "cancelled" in filter)):
            wanted.append(run.id)
    a_child_of_another(begin - timedelta(days=1))
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_one_workflow"}):
        found = list(pages(make_api(*ALL, name="ada"), f"/runs?limit=2&sort={sort}&{filter}"))
    assert ids_that_tell_nothing_of_others(found) == (wanted[::-1] if sort.startswith("-") else wanted)


def a_child_of_another(at: datetime) -> None:
    """A run that hides: with it, lists have lanes of roots."""
    for run_id in ("other-parent", "other-child"):
        Run.objects.create(id=run_id, workflow="others", input="[]", state="completed", created_at=at, finished_at=at)
    Run.objects.filter(pk="other-child").update(parent_id="other-parent")
    Child.objects.create(
        run_id="other-child", parent_id="other-parent", location="c", position=0, when_parent_ends="cancel"
    )


def test_causes_are_looked_for_in_a_window_that_reaches_far_enough(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "CAP", 5)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    known = {
        name: Cause.objects.create(fingerprint=name, place=name, error_type="E", first_seen_at=begin)
        for name in ("old", "new", "hidden")
    }

    def failed(workflow: str, number: int, cause: str) -> None:
        at = begin + timedelta(seconds=number)
        run = Run.objects.create(
            id=f"{workflow}-{number}", workflow=workflow, input="[]", state="failed", created_at=at, finished_at=at
        )
        Failure.objects.create(run=run, cause=known[cause], workflow=workflow, failed_at=at, run_created_at=at)

    def told() -> list[tuple[str, int, bool]]:
        with override_settings(DURABLE={"API_RUNS": f"{__name__}.runs_of_one_workflow"}):
            results = make_api(*ALL, name=f"ada {Run.objects.count()}").get("/causes").json()["results"]
        return [(each["place"], each["runs"]["number"], each["runs"]["is_capped"]) for each in results]

    failed("mine", 0, "old")
    for number in range(1, 20):
        failed("others", number, "hidden")
    failed("mine", 20, "new")
    assert told() == [("new", 1, False), ("old", 1, False)]  # the user has few runs, which are looked up
    for number in range(21, 25):
        failed("mine", number, "new")
    assert told() == [("new", 5, True)]  # among the five newest of everybody
    for number in range(25, 28):
        failed("others", number, "hidden")
    assert told() == [("new", 2, True)]


@pytest.mark.parametrize(
    ("condition", "is_own"),
    [
        (Q(id__startswith="ada-"), True),
        (Q(workflow__in=["a", "b"], queue="high"), True),
        (Q(id__in=Run.objects.filter(queue="high").values("pk")), True),
        (Q(queue="high"), False),
        (Q(workflow="a") | Q(queue="high"), False),
        (~Q(workflow="a"), False),
        (Q(id__contains="ada"), False),
        (Q(pk__in=[]), True),
    ],
)
def test_a_condition_with_an_index_is_told_from_others(condition: Q, is_own: bool) -> None:
    assert has_own_index(Run.objects.filter(condition)) is is_own
    assert has_own_index(Run.objects.filter(state="failed").filter(condition)) is is_own
    assert has_own_index(Run.objects.none())


@pytest.mark.parametrize(("verb", "body"), VERBS)
@pytest.mark.parametrize("key", [None, "k"])
def test_anothers_run_is_not_there_to_steer(ada: Api, verb: str, body: dict[str, Any], key: str | None) -> None:
    before = list(Run.objects.order_by("id").values_list("id", "state", "change_seq"))
    problem(ada.post(f"/runs/bob-1/{verb}", body, key=key), 404, "run-not-found")
    assert list(Run.objects.order_by("id").values_list("id", "state", "change_seq")) == before
    assert QueueMessage.objects.count() == 1
    logged = OperatorAction.objects.get()
    assert (logged.run_id, logged.outcome) == ("bob-1", "missing")


def test_messages_of_another_are_not_there(ada: Api) -> None:
    message = QueueMessage.objects.get()
    problem(ada.get(f"/runs/bob-1/messages/{message.pk}"), 404, "run-not-found")
    problem(ada.get(f"/runs/ada-1/messages/{message.pk}"), 404, "not-found")


def test_lists_and_counts_leave_others_out(ada: Api) -> None:
    get_run("bob-1").cancel()
    ada.post("/runs/ada-1/pause")
    assert [each["id"] for each in ada.get("/runs").json()["results"]] == ["ada-1"]
    assert [each["id"] for each in ada.get("/runs?id_prefix=bob").json()["results"]] == []
    states = ada.get("/counts").json()["states"]
    assert (states["paused"]["number"], states["cancelled"]["number"]) == (1, 0)
    assert {each["run"] for each in ada.get("/operator-actions").json()["results"]} == {"ada-1"}
    assert ada.get("/operator-actions?run=bob-1").json()["results"] == []


def test_workers_show_no_runs_of_others(ada: Api) -> None:
    Run.objects.update(lease_expires_at=timezone.now() + timedelta(minutes=1), worker="host:1:x", state="running")
    [worker] = ada.get("/workers").json()["results"]
    assert [each["id"] for each in worker["runs"]] == ["ada-1"]


def test_links_do_not_lead_to_others(ada: Api) -> None:
    Run.objects.filter(pk="ada-1").update(parent="bob-1", replay_of="bob-1")
    shown = ada.get("/runs/ada-1").json()
    assert (shown["parent"], shown["replay_of"]) == (None, None)
    assert "bob" not in ada.get("/runs").content.decode()
    assert "bob" not in ada.get("/runs/ada-1/events").content.decode()


class TestMaking:
    START = {"workflow": "tests.api.loop", "args": [1]}

    def test_ones_own(self, ada: Api) -> None:
        assert ada.post("/runs", {**self.START, "id": "ada-2"}).status_code == 201
        assert ada.post("/runs/ada-1/restart", {"id": "ada-3"}).status_code == 201
        assert ada.post("/runs/ada-1/replay", {"location": "step 0", "id": "ada-4"}).status_code == 201

    @pytest.mark.parametrize("args", [[1], [2]])
    def test_an_id_of_anothers_tells_nothing(self, ada: Api, args: list[int]) -> None:
        """Neither that it is there, nor whether the input is the same."""
        taken = problem(ada.post("/runs", {**self.START, "args": args, "id": "bob-1"}), 404, "run-not-found")
        free = problem(ada.post("/runs", {**self.START, "args": args, "id": "bob-2"}), 404, "run-not-found")
        assert taken["detail"].replace("bob-1", "bob-2") == free["detail"]
        assert Run.objects.count() == 2
        logged = set(OperatorAction.objects.values_list("action", "run_id"))
        assert logged == {("start", "bob-1"), ("start", "bob-2")}
        assert not OperatorAction.objects.filter(outcome="done").exists()

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/runs", {"workflow": "tests.api.loop", "args": [1]}),
            ("/runs", {"workflow": "tests.api.loop", "args": [2]}),
            ("/runs", {"workflow": "tests.api.loop", "args": [1, 2, 3]}),
            ("/runs", {"workflow": "tests.api.loop", "args": [1], "on_conflict": "error"}),
            ("/runs/ada-1/restart", {}),
            ("/runs/ada-1/restart", {"revision": "stale"}),
            ("/runs/ada-1/replay", {"location": "step 0"}),
            ("/runs/ada-1/replay", {"location": "nowhere"}),
            ("/runs/ada-1/replay", {"location": "nowhere", "plan_hash": "stale"}),
            ("/runs/ada-1/replay", {"location": "step 0", "plan_hash": "stale"}),
            ("/runs/ada-1/replay", {"location": "step 0", "revision": "stale"}),
        ],
    )
    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_taken_id_is_answered_and_logged_like_a_free_one(
        self, ada: Api, path: str, body: dict[str, Any], key: str | None
    ) -> None:
        answers: list[tuple[int, str]] = []
        logs: list[str] = []
        for run_id in ("bob-1", "bob-2"):
            answer = ada.post(path, {**body, "id": run_id}, key=key and f"{key}{run_id}")
            answers.append((answer.status_code, answer.content.decode().replace(run_id, "bob-?")))
            shown = ada.get("/operator-actions?run=ada-1").json()["results"]
            rows = [
                {k: v for k, v in each.items() if k not in ("id", "created_at")}
                for each in shown[: len(shown) - len(logs)]
            ]
            logs.append(str(rows).replace(run_id, "bob-?"))
        assert answers[0] == answers[1]
        assert logs[0] == logs[1]
        assert sorted(Run.objects.values_list("id", flat=True)) == ["ada-1", "bob-1"]

    def test_nothing_of_others_is_made_or_shown_by_a_restart_or_a_replay(self, ada: Api) -> None:
        loop.using(id="bob-3").start(1)
        Run.objects.filter(pk="bob-3").update(replay_of="ada-1")
        for run_id in ("bob-1", "bob-3", "bob-4"):
            for verb, body in (("restart", {}), ("replay", {"location": "step 0"})):
                problem(ada.post(f"/runs/ada-1/{verb}", {**body, "id": run_id}), 404, "run-not-found")
                problem(ada.post(f"/runs/ada-1/{verb}", body), 404, "run-not-found")
        assert Run.objects.count() == 3


def test_queues_tell_nothing_of_runs_of_others(ada: Api) -> None:
    loop.using(id="bob-9", queue="high").start(1)
    loop.using(id="bob-8").start(1)
    Run.objects.filter(pk="bob-8").update(queue="secret")
    found = {each["name"]: each["has_runs"] for each in ada.get("/queues").json()["results"]}
    assert found["high"] is False
    assert "secret" not in found
    loop.using(id="ada-9", queue="high").start(1)
    found = {each["name"]: each["has_runs"] for each in ada.get("/queues").json()["results"]}
    assert found["high"] is True


def test_a_hook_that_is_gone_shows_nothing(make_api: MakeApi) -> None:
    api = make_api(*ALL)
    with override_settings(DURABLE={"API_RUNS": "tests.api.gone.own_runs"}), pytest.raises(ImportError):
        api.get("/runs")


@override_settings(DURABLE={"API_RUNS": "tests.api.test_visibility.no_runs_by_mistake"})
def test_a_function_without_a_result_is_an_error_and_not_all_runs(make_api: MakeApi) -> None:
    pass_once(loop.using(id="bob-1").start(1))
    api = make_api(*ALL, name="ada")
    for path in ("/runs", "/counts", "/runs/bob-1"):
        with pytest.raises(TypeError, match="API_RUNS"):
            api.get(path)


def no_runs_by_mistake(_request: HttpRequest, _runs: QuerySet[Run]) -> None:
    """A function that forgets its return."""


def test_the_explanation_of_a_line_names_no_hidden_run(ada: Api) -> None:
    now = timezone.now()
    admission = Admission(is_granted=False, limit="gpu", place=7, held=3, at_once=3)
    Run.objects.filter(pk="ada-1").update(
        state="sleeping",
        wake_at=None,
        finished_at=None,
        waiting_for="",
        summary=waiting(Park(None, doing=[in_line(admission)])),
    )
    for place, run_id in enumerate(("bob-1", "ada-1")):
        Slot.objects.create(run_id=run_id, limit="gpu", kind="step", is_held=not place, place=place, since=now)
    [listed], one = ada.get("/runs").json()["results"], ada.get("/runs/ada-1").json()
    for told in (listed["explanation"], one["explanation"]):
        assert told["headline"].startswith("In line for limit gpu for ")
        assert told["detail"] == ""
    with override_settings(DURABLE={}):
        assert "bob-1" in ada.get("/runs/ada-1").json()["explanation"]["detail"]


def test_an_action_tells_no_hidden_run_that_it_has_started(ada: Api) -> None:
    for outcome, detail in (("done", 'from "a", as run bob-1'), ("conflict", 'run "bob-1" exists')):
        OperatorAction.objects.create(
            source="api", action="replay", run_id="ada-1", outcome=outcome, detail=detail, created_at=timezone.now()
        )
    found = ada.get("/operator-actions?run=ada-1").json()["results"]
    assert [each["detail"] for each in found] == ["", 'from "a"']


def test_the_log_of_a_limited_user_looks_through_a_window_for_each_page(
    ada: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "WINDOW_OF_VISIBLE", 4)
    OperatorAction.objects.all().delete()
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    runs = ["ada-1", *["bob-1"] * 6, "ada-1", "ada-1", "bob-1", "ada-1"]  # the oldest first, two at a time
    for number, run in enumerate(runs):
        moment = noon + timedelta(seconds=number // 2)
        OperatorAction.objects.create(
            source="api", action="pause", run_id=run, outcome="done", reason=str(number), created_at=moment
        )
    found = [page["results"] for page in pages(ada, "/operator-actions?limit=2")]
    assert {each["run"] for page in found for each in page} == {"ada-1"}
    assert [[each["reason"] for each in page] for page in found] == [["10", "8"], ["7"], ["0"]]


def by_summary(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.filter(summary="mine")


def by_id(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.filter(id__startswith="mine")


@pytest.mark.parametrize(("rule", "window", "shown"), [(by_id, 2, 1), (by_summary, 2, 0), (by_summary, 10, 1)])
def test_the_slots_of_a_limit_are_looked_through_where_no_index_serves_the_rule(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any], window: int, shown: int
) -> None:
    monkeypatch.setattr(pagination, "_WINDOW", window)
    now = timezone.now()
    Limit.objects.create(name="gpu", at_once=1)
    for number, name in enumerate(("hid-0", "hid-1", "hid-2", "mine")):
        summary = "mine" if name == "mine" else ""
        Run.objects.create(id=name, workflow="w", queue="q", input="[]", summary=summary, created_at=now)
        Slot.objects.create(limit="gpu", key=f"key {number}", run_id=name, is_held=True, since=now)
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.{rule.__name__}"}):
        [limit] = make_api(*ALL, name="eve").get("/limits").json()["results"]
    assert [each["key"] for each in limit["keys"]] == ["key 3"][:shown]


def no_runs(_request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A user without rights: Django knows without a statement that there are none."""
    return runs.none()


@pytest.mark.parametrize(
    "path",
    [
        *("/runs?state=failed", "/counts", "/causes", "/running", "/workflows", f"/workflows/{loop.name}/stats"),
        *("/queues", "/limits", "/rates", "/workers", "/operator-actions"),
    ],
)
def test_a_user_who_sees_no_run_has_empty_answers(ada: Api, path: str) -> None:
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.no_runs"}):
        response = ada.get(path)
    assert response.status_code == 200
    assert "-1" not in response.content.decode()


def by_bob() -> Any:
    """Whatever is done inside, another user has done it."""
    return acting_as(Actor("api", user=User.objects.get_or_create(username="bob", is_superuser=True)[0]), reason="zq")


@pytest.mark.parametrize("more", [{}, {"canary": {"first": 1}}])
def test_the_id_of_a_bulk_of_another_shows_nothing_of_it(ada: Api, more: dict[str, Any]) -> None:
    with by_bob():
        bulk.apply("cancel", ["bob-1"], as_id="theirs")
    before = Run.objects.get(pk="ada-1").state
    taken = ada.post("/bulks", {"verb": "cancel", "ids": ["ada-1"], "id": "theirs", **more})
    assert "bob" not in taken.content.decode()
    assert "zq" not in taken.content.decode()
    problem(taken, 409, "id-taken")
    assert Run.objects.get(pk="ada-1").state == before
    own = ada.post("/bulks", {"verb": "cancel", "ids": ["ada-1"], "id": "ours"}).json()
    again = ada.post("/bulks", {"verb": "cancel", "ids": ["ada-1"], "id": "ours"}).json()
    assert (own["done"], again["actor"]) == (1, "ada")


def test_an_action_names_no_bulk_of_another(ada: Api) -> None:
    with by_bob():
        bulk.apply("cancel", ["ada-1", "bob-1"], as_id="theirs")
    ada.post("/bulks", {"verb": "recover", "ids": ["ada-1"], "id": "ours"})
    found = ada.get("/operator-actions?run=ada-1").json()["results"]
    assert [(each["actor"], each["bulk"]) for each in found] == [("ada", "ours"), ("bob", "")]


def test_the_end_of_a_hold_counts_no_runs_of_others(make_api: MakeApi) -> None:
    api = make_api(*ALL, "hold_workflow", name="ada")
    with by_bob():
        holds.hold_starts(loop.name)
        for number in range(3):
            loop.using(id=f"bob-{number}").start(1)
    assert api.post(f"/workflows/{loop.name}/release", {}).json() == {"name": loop.name, "resumed": None}
