"""Tags over REST: a start gives them, a run shows them, a list and a bulk have the runs with them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from durable.models import Run
from tests.api import workflows
from tests.api.conftest import Api, problem

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
    assert ids(tagged.get("/runs?tag=tenant:acme")) == ["run-1", "run-0"]
    assert ids(tagged.get("/runs?tag=tenant:acme&tag=order:0")) == ["run-0"]
    assert ids(tagged.get("/runs?tag=tenant:acme&state=failed")) == []
    [run] = tagged.get("/runs?tag=order:2").json()["results"]
    assert run["tags"] == {"order": "2", "tenant": "other"}
    assert tagged.get("/runs/run-0").json()["tags"] == {"order": "0", "tenant": "acme"}


@pytest.mark.parametrize(
    "word", ["tenant", "tenant:", ":acme", "a b:c", "a:" + "b" * 201, "tenant:acme&tag=tenant:other"]
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
        assert ids(api.get("/runs?tag=email:a@example.com")) == ["r"]
        assert api.get("/runs/r").json()["tags"] == {"email": None}
