"""The page of the list: its chips, its number, its columns and orders, the names that it suggests, and saved views."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durable.inspection import workflows
from durable.inspection.workflows import find_names
from durable.models import OperatorAction, Run, SavedView, WorkerProcess
from durable.operations import saved_views
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import listed, read, statements, text_of, url

pytestmark = pytest.mark.django_db


LONG = "order-of-the-northern-warehouse-"


LogIn = Callable[..., Client]


def page(client: Client, query: str = "", status: int = 200) -> str:
    return unescape(text_of(client.get(url("changelist") + query), status))


def chips_of(client: Client, query: str) -> dict[str, dict[str, list[str]]]:
    """The title of each chip, and the parameters of the list without it."""
    form = client.get(url("changelist") + query).context["form"]
    return {chip.title: parse_qs(chip.query.removeprefix("?")) for chip in form.chips}


def rows(*given: dict[str, Any]) -> None:
    Run.objects.bulk_create(Run(**{"workflow": "w", "queue": "q", "input": "[]", **each}) for each in given)


class TestChips:
    def test_each_condition_has_a_chip_that_leads_to_the_list_without_it(self, stage: Stage, operator: Client) -> None:
        query = "?state=failed&state=paused&workflow=w&undone=1&since=day&created_from=2026-01-01T00:00&q=bank&sort=created_at"
        chips = chips_of(operator, query)
        assert list(chips) == [
            "Search: bank",
            "State: failed",
            "State: paused",
            "Workflow: w",
            "Created: in the past 24 hours",
            "Created from: 2026-01-01 00:00:00 UTC",
            "undone",
        ]
        every = parse_qs(query.removeprefix("?"))
        assert chips["State: failed"] == {**every, "state": ["paused"]}
        assert chips["undone"] == {name: values for name, values in every.items() if name != "undone"}
        assert "Clear" in page(operator, query)

    def test_two_conditions_on_one_time_both_hold(self, stage: Stage, operator: Client) -> None:
        recent = timezone.now() - timedelta(hours=2)
        rows({"id": "old", "created_at": recent - timedelta(hours=1)}, {"id": "new", "created_at": recent})
        later, earlier = quote(recent.isoformat()), quote((recent - timedelta(days=9)).isoformat())
        assert listed(operator, f"?since=day&created_from={later}") == ["new"]
        assert listed(operator, f"?since=day&created_from={earlier}") == ["new", "old"]

    def test_the_chip_of_a_cause_says_which_it_is(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["broken"] = True
        run = stage.start(flows.switched, id="run")
        fingerprint = run.failure.cause.fingerprint
        assert list(chips_of(operator, f"?cause={fingerprint}")) == ["Cause: charge · GatewayTimeout"]
        assert list(chips_of(operator, "?cause=gone")) == ["Cause: gone"]

    def test_a_list_without_a_filter_has_none(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        for query in ("", "?sort=created_at&columns=state", "?after="):
            assert chips_of(operator, query) == {}
            assert "Clear" not in page(operator, query)

    def test_a_name_that_is_no_filter_is_told(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        assert "There is no filter “stat”" in page(operator, "?stat=failed")


class TestTheNumberFound:
    def test_it_is_the_heading(self, stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            stage.start(flows.quick, id=f"run-{number}")
        stage.start(flows.approve, id="waits")
        assert "<h1>4 runs</h1>" in page(operator)
        assert "<h1>1 run</h1>" in page(operator, "?state=sleeping")
        assert "all 3 that the filter finds" in page(operator, "?workflow=tests.quick")
        monkeypatch.setattr("durable.inspection.runs.FOUND", 2)
        assert "<h1>2+ runs</h1>" in page(operator)

    def test_a_search_that_a_redaction_hook_decides_has_no_number(
        self, stage: Stage, operator: Client, settings: Any
    ) -> None:
        flows.SWITCH["broken"] = True
        stage.start(flows.switched, id="run")
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
        body = page(operator, "?q=stepexhausted")
        assert "<h1>Runs</h1>" in body
        assert "all that the filter finds" in body


class TestColumnsAndOrders:
    def test_the_address_chooses_the_columns(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")

        def heads(query: str) -> list[str]:
            found = operator.get(url("changelist") + query)
            return [each.column.name for each in found.context["heads"]]

        assert heads("") == ["state", "workflow", "what", "failed", "created", "took"]
        assert heads("?columns=queue&columns=state&columns=nothing") == ["state", "queue"]
        assert heads("?columns=state&sort=-finished_at") == ["state", "finished"]

    def test_failed_attempts_are_counted_only_for_their_column(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        for query, expected in (("", 1), ("?columns=state", 0)):
            made = statements(operator, url("changelist") + query)
            assert sum("durable_attempt" in each for each in made) == expected

    def test_heads_lead_to_the_orders_that_an_index_has(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="first")
        stage.advance(seconds=1)
        stage.start(flows.quick, id="second")
        assert listed(operator, "?sort=created_at") == ["first", "second"]
        body = page(operator, "?sort=created_at&state=completed")
        assert 'aria-sort="ascending"' in body
        assert '<a href="?state=completed&sort=-created_at">Created' in body
        assert len(re.findall(r"<th [^>]*><a ", body.partition("<tbody>")[0])) == 1
        assert "oldest first" in body

    def test_an_order_without_an_index_is_refused(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        body = page(operator, "?sort=worker")
        assert "The list cannot be sorted by “worker”" in body
        assert "-finished_at" in body
        assert listed(operator, "?sort=worker") == []


class TestNames:
    @pytest.fixture
    def old(self, stage: Stage) -> None:
        """Runs of code and queues that are gone."""
        rows(
            {"id": "1", "workflow": "acme.gone", "queue": "fax", "created_at": stage.now, "wake_at": stage.now},
            {"id": "2", "workflow": "acme.older", "queue": "telex", "created_at": stage.now, "state": "paused"},
        )

    def test_names_that_only_rows_know_are_found(self, old: None, operator: Client) -> None:
        def found(kind: str, **query: str) -> Any:
            return operator.get(url("names", kind), query).json()["names"]

        assert found("workflow", q="ACME") == ["acme.gone", "acme.older"]
        assert found("workflow", q="gone") == ["acme.gone"]
        assert found("workflow", q="acme", after="acme.gone") == ["acme.older"]
        assert "tests.quick" in found("workflow", q="quick")  # the code's own, without a run
        assert found("queue", q="e") == ["default", "telex"]
        assert found("queue", q="fax") == ["fax"]

    def test_names_of_workers_are_found(self, stage: Stage, operator: Client) -> None:
        for name in ("web-1:812:aa", "web-2:790:bb"):
            times = {"started_at": stage.now, "last_seen_at": stage.now}
            WorkerProcess.objects.create(name=name, host="web", pid=1, slots=1, **times)
        assert operator.get(url("names", "worker"), {"q": "790"}).json() == {"names": ["web-2:790:bb"], "next": None}

    def test_pages_of_names_lose_none(self, old: None, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = find_names("workflow")
        monkeypatch.setattr(workflows, "MOST", 3)
        monkeypatch.setattr(workflows, "LOOKS", 1)
        seen: list[str] = []
        after = ""
        while True:
            part = find_names("workflow", after=after)
            seen += part.names
            if part.next is None:
                break
            after = part.next
        assert seen[: len(whole.names)] == whole.names
        assert {"acme.gone", "acme.older"} < set(seen)
        assert len(seen) == len(set(seen))

    def test_there_are_no_others(self, operator: Client) -> None:
        assert "There are no names of “input”" in unescape(text_of(operator.get(url("names", "input")), 404))

    @pytest.mark.parametrize("text", ["\x00", "\ud800", "%", "x" * 9_999])
    def test_hostile_texts_find_nothing(self, old: None, operator: Client, text: str) -> None:
        for name in ("q", "after"):
            assert operator.get(url("names", "queue"), {name: text.encode(errors="surrogatepass")}).status_code == 200


def test_djangos_own_completion_of_runs_is_off(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="run")
    query = {"app_label": "durable", "model_name": "run", "field_name": "parent", "term": "run"}
    with CaptureQueriesContext(connection) as queries:
        answer = operator.get(reverse("admin:autocomplete"), query)
    assert answer.status_code in {403, 404}
    assert not any("durable_run" in each["sql"] for each in queries.captured_queries)


def test_a_long_id_is_cut_before_its_end(stage: Stage, operator: Client) -> None:
    for each in (f"{LONG}0000000001", "short"):
        stage.start(flows.quick, id=each)
    page = text_of(operator.get(url("changelist")))
    assert f'<bdi class="durable-cut"><span>{LONG}</span><span>0000000001</span></bdi>' in page
    assert ">short</a>" in page


def test_the_value_of_a_tag_is_found_by_itself(stage: Stage, operator: Client) -> None:
    flows.quick.using(id="r1", tags={"customer": "ada@example.com", "order": 4711}).start()
    flows.quick.using(id="r2", tags={"customer": "eve@example.com"}).start()
    for text in ("ada@example.com", "4711"):
        page = operator.get(url("changelist"), {"q": text})
        assert [row.run.id for row in page.context["rows"]] == ["r1"]
    page = operator.get(url("changelist"), {"q": "bob@example.com"})
    assert [row.run.id for row in page.context["rows"]] == []
    assert "A run is found by a tag with tag:name=value. Tags here: customer, order." in text_of(page)
    assert "Tags here" not in text_of(operator.get(url("changelist"), {"state": "failed"}))


# -- saved views of the list: each user's own, shared ones, and who may do what


def save(client: Client, name: str = "mine", query: str = "?state=failed", **given: str) -> str:
    """Save a view, and the page to which that leads."""
    posted = {"name": name, "query": query, **given}
    return unescape(text_of(client.post(url("save_view"), posted, follow=True)))


def delete(client: Client, view: SavedView) -> int:
    return client.post(url("delete_view", view.pk)).status_code


def seen_by(client: Client) -> list[str]:
    return [each.view.name for each in client.get(url("changelist")).context["views"]]


def test_a_view_is_the_address_of_a_list_under_a_name(stage: Stage, log_in: LogIn) -> None:
    stage.start(flows.quick, id="run")
    client = log_in("view_run")
    assert "The view “done today” is saved." in save(client, "done today", "?state=completed&since=day&sort=created_at")
    [view] = client.get(url("changelist")).context["views"]
    page = client.get(view.url)
    assert [row.run.id for row in page.context["rows"]] == ["run"]
    assert [each.is_current for each in page.context["views"]] == [True]
    save(client, "done today", "?state=failed&after=x&live=1")  # replaces it, from its first page
    assert SavedView.objects.get().query == "state=failed"


def test_others_see_shared_views_alone(log_in: LogIn) -> None:
    ada = log_in("view_run", "share_savedview", name="ada")
    save(ada, "mine")
    save(ada, "ours", shared="on")
    bob = log_in("view_run", name="bob")
    save(bob, "bobs")
    assert seen_by(bob) == ["bobs", "ours"]
    assert "shared by ada" in read(bob, url("changelist"))


def test_sharing_needs_its_permission_and_is_logged(log_in: LogIn) -> None:
    bob = log_in("view_run", "operate_run", name="bob")
    answer = bob.post(url("save_view"), {"name": "ours", "query": "", "shared": "on"})
    assert answer.status_code == 403
    assert "durable.share_savedview" in answer.content.decode()
    assert not SavedView.objects.exists()
    assert "for all users" not in text_of(bob.get(url("changelist")))
    ada = log_in("view_run", "share_savedview", name="ada")
    save(ada, "ours", shared="on")
    log = OperatorAction.objects.order_by("id").values_list("action", "outcome", "actor_label", "detail")
    assert [(action, outcome, who) for action, outcome, who, _ in log] == [
        ("share", "denied", "bob"),
        ("share", "done", "ada"),
    ]


def test_a_view_is_deleted_by_its_owner_or_if_shared_by_who_may_share(log_in: LogIn) -> None:
    ada = log_in("view_run", "share_savedview", name="ada")
    save(ada, "mine")
    save(ada, "ours", shared="on")
    mine, ours = SavedView.objects.order_by("name")
    bob = log_in("view_run", name="bob")
    assert (delete(bob, mine), delete(bob, ours)) == (404, 403)
    assert SavedView.objects.count() == 2
    eve = log_in("view_run", "share_savedview", name="eve")
    assert (delete(eve, mine), delete(eve, ours)) == (404, 302)
    assert OperatorAction.objects.filter(action="share", outcome="done", detail__contains="deleted view ours").exists()


@pytest.mark.parametrize("query", ["?state=broken", "?nonsense=1", "?created_from=soon", f"?q={'x' * 600}"])
def test_a_filter_with_a_mistake_is_not_saved(log_in: LogIn, query: str) -> None:
    assert "Nothing was saved" in save(log_in("view_run"), query=query)
    assert not SavedView.objects.exists()


@pytest.mark.parametrize("name", ["", " ", "x" * 81, "\x00"])
def test_a_view_needs_a_name(log_in: LogIn, name: str) -> None:
    assert "Nothing was saved" in save(log_in("view_run"), name=name)


def test_a_user_has_so_many_views(log_in: LogIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST", 1)
    client = log_in("view_run")
    save(client, "one")
    assert "you have 1 views already" in save(client, "two")
    assert "is saved" in save(client, "one", "?state=paused")


def test_to_save_and_to_delete_is_a_post(log_in: LogIn) -> None:
    ada = log_in("view_run", name="ada")
    assert ada.get(url("save_view")).status_code == 302
    save(ada)
    address = url("delete_view", SavedView.objects.get().pk)
    assert ada.get(address).status_code == 302
    assert SavedView.objects.count() == 1


def test_names_of_others_are_text(log_in: LogIn) -> None:
    client = log_in("view_run")
    save(client, "<script>alert(1)</script>")
    assert "<script>alert" not in text_of(client.get(url("changelist")))
