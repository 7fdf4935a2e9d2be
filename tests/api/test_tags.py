"""Tags over REST: a start gives them, a run shows them, a list and a bulk have the runs with them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.test import override_settings

from durable import Context, runtime, workflow
from durable.models import Run
from tests.api import workflows
from tests.api.conftest import Api, problem
from tests.support.stores import passed

pytestmark = pytest.mark.django_db


@pytest.fixture
def tagged(api: Api) -> Api:
    """A client, and three runs that it has started with tags."""
    for order, tenant in enumerate(("acme", "acme", "other")):
        body = {
            "workflow": workflows.add.name,
            "args": [1],
            "id": f"run-{order}",
            "tags": {"tenant": tenant, "order": order},
        }
        assert api.post("/runs", body).status_code == 201
    return api


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [each["id"] for each in answer.json()["results"]]


def test_a_list_has_the_runs_with_all_tags(tagged: Api) -> None:
    assert ids(tagged.get("/runs?tag=tenant=acme")) == ["run-1", "run-0"]
    assert ids(tagged.get("/runs?tag=tenant=acme&tag=order=0")) == ["run-0"]
    assert ids(tagged.get("/runs?tag=tenant=acme&state=failed")) == []
    [run] = tagged.get("/runs?tag=order=2").json()["results"]
    assert run["tags"] == {"order": "2", "tenant": "other"}
    assert tagged.get("/runs/run-0").json()["tags"] == {"order": "0", "tenant": "acme"}
    assert ids(tagged.get("/runs?tag=tenant:acme&tag=order=0")) == ["run-0"]  # with a colon it is the same


@pytest.mark.parametrize(
    "word", ["tenant", "tenant:", ":acme", "a b:c", "a:" + "b" * 201, "tenant:acme&tag=tenant=other"]
)
def test_what_no_tag_is_is_refused(api: Api, word: str) -> None:
    answer = api.get(f"/runs?tag={word}")
    assert answer.status_code in (400, 422), answer.content
    assert "tag" in answer.json()["detail"] + str(answer.json().get("errors"))


@pytest.mark.parametrize("tags", [{"a b": 1}, {"a": None}, {"a": []}, {"a": "b" * 201}, {f"n{n}": n for n in range(9)}])
def test_a_start_with_what_no_tag_is_is_refused(api: Api, tags: Any) -> None:
    problem(api.post("/runs", {"workflow": workflows.add.name, "args": [1], "tags": tags}), 422, "arguments-refused")
    assert not Run.objects.exists()


def test_a_bulk_acts_on_the_runs_with_the_tags(tagged: Api) -> None:
    given = {"verb": "cancel", "filter": {"tag": ["tenant:acme"]}}
    assert tagged.post("/bulk-plan", given).json()["count"] == 2
    answer = tagged.post("/bulks", {**given, "expected": 2})
    assert answer.status_code in (200, 202), answer.content


def test_a_hashed_tag_is_found_and_not_shown(api: Api) -> None:
    with override_settings(DURABLE={"TAGS": {"email": "hashed"}}):
        api.post("/runs", {"workflow": workflows.add.name, "args": [1], "id": "r", "tags": {"email": "a@example.com"}})
        assert ids(api.get("/runs?tag=email=a@example.com")) == ["r"]
        assert api.get("/runs/r").json()["tags"] == {"email": None}


@pytest.mark.parametrize("value", [" x ", "a:b", "é", "🚚", "%2F&#?+", "\x1b[31m", "\x1a"])
def test_a_value_is_found_as_it_was_given(api: Api, value: str) -> None:
    api.post("/runs", {"workflow": workflows.add.name, "args": [1], "id": "r", "tags": {"odd": value}})
    assert api.get("/runs/r").json()["tags"] == {"odd": value}
    assert ids(api.get(f"/runs?tag=odd:{quote(value)}")) == ["r"]


@pytest.mark.parametrize("value", ["x\ud800", "\x00"])
def test_a_run_with_a_value_that_no_address_has_is_shown(api: Api, value: str) -> None:
    workflows.add.using(id="r", tags={"odd": value}).start(1)
    assert api.get("/runs/r").json()["tags"] == {"odd": value}
    assert ids(api.get("/runs")) == ["r"]


def hide_customers(_workflow: str, field: str, value: Any) -> Any:
    return "***" if field == "tag:customer" else value


@workflow(name="tests.api.tags_itself")
def tags_itself(ctx: Context) -> None:
    ctx.tag(customer="lovelace", tenant="acme", email="ada@example.com")
    ctx.tag(customer="byron")


def test_the_entries_of_a_history_show_tags_as_the_run_does(api: Api) -> None:
    with override_settings(DURABLE={"TAGS": {"email": "hashed"}, "REDACT": f"{__name__}.hide_customers"}):
        run = tags_itself.using(id="r").start()
        passed(runtime.current(), run.id)
        first, second = (each["data"] for each in api.get("/runs/r/entries").json()["results"])
        assert first["tags"] == {"customer": "***", "tenant": "acme", "email": None}
        assert first["before"] == dict.fromkeys(["customer", "tenant", "email"])
        assert second == {"tags": {"customer": "***"}, "before": {"customer": "***"}}
        assert api.get("/runs/r").json()["tags"] == {"customer": "***", "email": None, "tenant": "acme"}


def of_acme(_request: Any, runs: Any) -> Any:
    return runs.tagged(tenant="acme")


def of_acme_or_old(_request: Any, runs: Any) -> Any:
    return runs.tagged(tenant="acme") | runs.filter(id="old")


@pytest.mark.parametrize("rule", ["of_acme", "of_acme_or_old"])
def test_a_rule_of_who_sees_what_may_be_about_tags(tagged: Api, rule: str) -> None:
    with override_settings(DURABLE={"API_RUNS": f"{__name__}.{rule}"}):
        assert ids(tagged.get("/runs")) == ids(tagged.get("/runs?tag=tenant=acme")) == ["run-1", "run-0"]
        assert ids(tagged.get("/runs?tag=tenant=other")) == ids(tagged.get("/runs?tag=order=2")) == []
        assert ids(tagged.get("/runs?tag=order=1&sort=wake_at")) == ["run-1"]
        assert ids(tagged.get("/runs?id_prefix=run-&state=pending")) == ["run-0", "run-1"]
        assert tagged.get("/runs/run-0").status_code == 200
        problem(tagged.get("/runs/run-2"), 404, "run-not-found")
        start = {"workflow": workflows.add.name, "args": [1]}
        assert tagged.post("/runs", {**start, "tags": {"tenant": "acme"}}).status_code == 201
        problem(tagged.post("/runs", {**start, "tags": {"tenant": "other"}}), 404, "run-not-found")
    assert Run.objects.tagged(tenant="other").count() == 1
