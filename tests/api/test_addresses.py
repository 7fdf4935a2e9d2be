"""Every address of the interface, walked from its URLconf: which permissions each method needs, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.urls import URLPattern, reverse
from django.utils import timezone

from durable import get_run
from durable.api.urls import urlpatterns
from durable.models import Limit, LogLine, OperatorAction, QueueMessage, RateLimit, Run, Schedule
from tests.api.conftest import Api, MakeApi, problem
from tests.api.workflows import add, loop
from tests.faults.passing import pass_once
from tests.support.addresses import names_of_interface

pytestmark = pytest.mark.django_db

VIEW = frozenset({"view_run"})
PAYLOADS = VIEW | {"view_payload"}
ACTIONS = (
    *("wake", "pause", "resume", "cancel", "abandon", "stack", "recover", "restart", "replay", "give-output"),
    *("go-on", "stop-here"),
)


@dataclass(frozen=True)
class Address:
    """A method of an address: the parts of its path, its query or its body, and the permissions that it needs."""

    keys: tuple[str, ...] = ()
    needs: frozenset[str] = VIEW
    query: str = ""
    body: Mapping[str, Any] | None = None


def _verb(permission: str, *keys: str, **body: Any) -> Address:
    return Address(keys, frozenset(permission.split(" and ")), body=body)


RUN, FLOW, QUEUE, NIGHTLY = ("a",), ("tests.api.add",), ("default",), ("nightly",)
STEP, FAR = "?location=rest", "2100-01-01T00:00:00Z"

READS: Mapping[str, Address] = {
    "root": Address(),
    "docs": Address(),
    "schema": Address(),
    "runs": Address(),
    "run": Address(RUN),
    "result": Address(RUN, PAYLOADS),
    "entries": Address(RUN),
    "entry": Address(("a", "rest")),
    "events": Address(("s",)),
    "logs": Address(RUN, PAYLOADS),
    "timeline": Address(RUN),
    "tree": Address(RUN),
    "running-of-run": Address(RUN),
    "children": Address(RUN),
    "messages": Address(RUN),
    "message": Address(("a", "{message}")),
    "stack": Address(RUN, PAYLOADS, STEP),
    "replay-plan": Address(RUN, VIEW | {"replay_run"}, STEP),
    "comparison": Address(RUN, query="?other=s"),
    "bulk": Address(("many",)),
    "causes": Address(),
    "running": Address(),
    "counts": Address(),
    "workflows": Address(),
    "workflow": Address(FLOW),
    "workflow-stats": Address(FLOW),
    "queues": Address(),
    "limits": Address(),
    "limit": Address(("carrier",)),
    "rates": Address(),
    "rate": Address(("calls",)),
    "schedules": Address(),
    "schedule": Address(NIGHTLY),
    "workers": Address(),
    "operator-actions": Address(),
    "anywhere": Address(("nowhere",)),
}
WRITES: Mapping[str, Address] = {
    "runs": _verb("start_run", workflow="tests.api.add", args=[1]),
    "messages": _verb("operate_run", *RUN, queue="q"),
    "ask": Address(RUN, frozenset({"operate_run", "view_payload"}), body={"queue": "q"}),
    **{each: _verb("operate_run", *RUN) for each in ACTIONS},
    "abandon": _verb("operate_run", *RUN, location="rest"),
    "stack": _verb("view_payload", *RUN, location="rest"),
    "restart": _verb("start_run", *RUN),
    "replay": _verb("replay_run", *RUN, location="rest"),
    "give-output": Address(
        RUN, frozenset({"replay_run", "give_output"}), body={"location": "rest", "output": 1, "reason": "known"}
    ),
    "bulk-plan": Address((), VIEW | {"operate_run"}, body={"verb": "pause", "ids": ["a"]}),
    "bulks": _verb("operate_run", verb="pause", ids=["a"]),
    "hold": _verb("hold_workflow", *FLOW),
    "release": _verb("hold_workflow", *FLOW),
    "pause-queue": _verb("pause_queue", *QUEUE),
    "resume-queue": _verb("pause_queue", *QUEUE),
    "set-limit": _verb("change_limit", "carrier", at_once=2),
    "take-back-limit": _verb("change_limit", "carrier"),
    "set-rate": _verb("change_limit", "calls", rate="2/s"),
    "take-back-rate": _verb("change_limit", "calls"),
    "close-limit": _verb("change_limit", "calls", until=FAR),
    "open-limit": _verb("change_limit", "calls"),
    "schedules": _verb(
        "add_schedule and start_run", name="weekly", workflow="tests.api.add", rule="30 2 * * 1", args=[1, 2]
    ),
    "pause-schedule": _verb("operate_schedule", *NIGHTLY),
    "resume-schedule": _verb("operate_schedule", *NIGHTLY),
    "run-schedule": _verb("operate_schedule", *NIGHTLY),
    "backfill": _verb("operate_schedule", *NIGHTLY, since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z"),
    "edit-schedule": _verb("change_schedule and start_run", *NIGHTLY, rule="30 3 * * *"),
    "override-schedule": _verb("change_schedule", *NIGHTLY, rule="30 3 * * *"),
    "take-back-override": _verb("change_schedule", *NIGHTLY),
    "delete-schedule": _verb("delete_schedule", *NIGHTLY),
    "anywhere": Address(("nowhere",), frozenset()),
}
#: Answers that there is nothing under the address, to everybody who has signed in and may look.
NOTHING = {("post", "anywhere"), ("get", "anywhere"), ("get", "stack")}
#: Reading, by a POST: no denial of it is logged.
PLANS = {"bulk-plan"}
CASES = [("get", name, each) for name, each in READS.items()] + [("post", name, each) for name, each in WRITES.items()]


@pytest.fixture
def site(db: None) -> None:
    pass_once(loop.using(id="a").start(1))
    pass_once(add.using(id="s").start(1, 2))
    get_run("a").send("q", 1)
    LogLine.objects.create(run_id="a", at=timezone.now(), level=20, logger="shop", location="", text="begins")
    OperatorAction.objects.create(
        source="api", action="pause", run_id="many", outcome="done", created_at=timezone.now(), detail="pause 1 run"
    )
    Limit.objects.create(name="carrier", at_once=4, override=2)
    RateLimit.objects.create(name="calls", rate="1/s", spacing=1_000_000_000)
    Schedule.objects.create(name="nightly", workflow="tests.api.add", rule="30 2 * * *", origin="admin")


def ask(api: Api, method: str, name: str, address: Address) -> Any:
    message = str(QueueMessage.objects.get().pk)
    keys = [message if each == "{message}" else each for each in address.keys]
    path = reverse(f"durable_api:{name}", args=keys).removeprefix("/api") + address.query
    return api.get(path) if method == "get" else api.post(path, dict(address.body or {}))


def everything() -> frozenset[str]:
    found = Permission.objects.filter(content_type__app_label="durable")
    return frozenset(found.values_list("codename", flat=True))


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("method", "name", "address"), CASES, ids=[f"{method} {name}" for method, name, _ in CASES])
def test_a_method_needs_exactly_these_permissions(make_api: MakeApi, method: str, name: str, address: Address) -> None:
    before = list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq"))
    problem(ask(Api(None), method, name, address), 401, "not-authenticated")
    assert address.needs <= everything()
    for permission in sorted(address.needs):
        client = make_api(*everything() - {permission}, name=f"without {permission}")
        told = problem(ask(client, method, name, address), 403, "permission-denied")
        assert f"durable.{permission}" in told["detail"]
    assert list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq")) == before
    logged = set(OperatorAction.objects.filter(actor_label__startswith="without").values_list("outcome", flat=True))
    assert logged == ({"denied"} if method == "post" and address.needs and name not in PLANS else set())
    status = ask(make_api(*address.needs, name="enough"), method, name, address).status_code
    assert status in ({404, 405} if (method, name) in NOTHING else {200, 201, 202, 302, 409, 422})


def test_every_method_of_every_address_is_in_a_table() -> None:
    assert {f"durable_api:{name}" for name in READS.keys() | WRITES.keys()} == names_of_interface()
    methods = {
        (method, str(each.name))
        for each in urlpatterns
        if isinstance(each, URLPattern)
        for method in ("get", "post", "put", "patch", "delete")
        if hasattr(each.callback, "view_class") and hasattr(each.callback.view_class, method)
    }
    assert methods == {(method, name) for method, name, _ in CASES}
