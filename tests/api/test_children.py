"""Children over REST: lists of roots, the children of a run, and what a user who may see some runs only learns of them."""

from __future__ import annotations

import pytest
from django.utils import timezone

from durable.models import Child, Run
from tests.api.conftest import Api

pytestmark = pytest.mark.django_db

STATES = ["completed", "failed", "failed", "sleeping"]


@pytest.fixture
def family(db: None) -> list[str]:
    """A parent, and the ids of its four children."""
    Run.objects.create(
        id="ada-1", workflow="parent", queue="q", input="{}", state="sleeping", created_at=timezone.now()
    )
    ids = []
    for number, state in enumerate(STATES):
        now = timezone.now()
        ended = now if state in ("completed", "failed") else None
        run = Run.objects.create(
            id=f"ada-1:bill {number}",
            workflow="child",
            queue="q",
            input="{}",
            state=state,
            created_at=now,
            finished_at=ended,
            parent_id="ada-1",
        )
        group = "bills" if number else None
        Child.objects.create(
            run=run, parent_id="ada-1", location="bills", when_parent_ends="cancel", position=number, group=group
        )
        ids.append(run.id)
    return ids


def listed(api: Api, query: str = "") -> set[str]:
    return {run["id"] for run in api.get(f"/runs{query}").json()["results"]}


def test_lists_have_roots_and_children_when_they_are_asked_for(api: Api, family: list[str]) -> None:
    assert listed(api) == {"ada-1"}
    assert listed(api, "?state=failed") == set()
    assert listed(api, "?children=true") == {"ada-1", *family}
    assert listed(api, "?state=failed&children=true") == set(family[1:3])
    assert listed(api, "?id_prefix=ada-1:bill") == set(family)
    assert listed(api, "?attention=true") == set(family[1:3])
