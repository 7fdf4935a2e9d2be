"""Limits over REST: what is held, who waits, and the verbs that set a number."""

from __future__ import annotations

import pytest

from durable.models import Limit, Slot
from tests.api.conftest import MakeApi, problem
from tests.api.workflows import add
from tests.store.making import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def carrier() -> None:
    """A limit whose one slot the run "one" holds; "two" waits."""
    Limit.objects.create(name="carrier", at_once=1)
    for number, run_id in enumerate(("one", "two")):
        add.using(id=run_id).start(1)
        Slot.objects.create(
            run_id=run_id,
            location="",
            limit="carrier",
            key="acme/🎉",
            kind="open",
            is_held=not number,
            place=number,
            since=NOW,
        )


KEY = {"key": "acme/🎉", "held": 1, "waiting": 1, "oldest_at": NOW.isoformat().replace("+00:00", "Z")}
LIMIT = {
    "name": "carrier",
    "at_once": 1,
    "code_says": 1,
    "is_overridden": False,
    "keys": [KEY],
    "revision": "at once 1",
}


@pytest.mark.usefixtures("carrier")
def test_limits_are_read(make_api: MakeApi) -> None:
    api = make_api("view_run")
    assert api.get("/limits").json() == {"results": [LIMIT]}
    assert api.get("/limits/carrier").json() == LIMIT
    assert 'no limit "none"' in problem(api.get("/limits/none"), 404, "not-found")["detail"]


@pytest.mark.usefixtures("carrier")
def test_a_number_is_set_and_taken_back(make_api: MakeApi) -> None:
    api = make_api("change_limit", name="ada")
    done = api.post("/limits/carrier/set", {"at_once": 3, "reason": "they bought more"}).json()
    assert done == {**LIMIT, "at_once": 3, "is_overridden": True, "revision": "at once 3"}
    assert api.post("/limits/carrier/take-back").json() == LIMIT
    assert api.post("/limits/carrier/set", {"at_once": -1}).status_code == 400
