"""Every address of the interface, walked from its URLconf: which permissions each method needs, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.urls import URLPattern
from django.utils import timezone

from durable.api.urls import urlpatterns
from durable.models import Limit, OperatorAction, Run, Schedule
from tests.api.addresses import READS, WRITES, Address, make_runs
from tests.api.conftest import Api, MakeApi, problem
from tests.support.addresses import names_of_interface, path_of

pytestmark = pytest.mark.django_db

#: Answers that there is nothing under the address, to everybody who has signed in and may look.
NOTHING = {
    *(("post", "anywhere"), ("get", "anywhere"), ("get", "stack"), ("get", "question")),
    *(("post", f"{verb}-question") for verb in ("answer", "comment", "hand-over", "claim", "release")),
}
#: Reading, by a POST: no denial of it is logged.
PLANS = {"bulk-plan"}
CASES = [("get", name, each) for name, each in READS.items()] + [("post", name, each) for name, each in WRITES.items()]


@pytest.fixture
def site(db: None) -> dict[str, str]:
    OperatorAction.objects.create(
        source="api", action="pause", run_id="many", outcome="done", created_at=timezone.now(), detail="pause 1 run"
    )
    Limit.objects.create(name="carrier", at_once=4, override=2)
    Schedule.objects.create(name="nightly", workflow="tests.api.add", rule="30 2 * * *", origin="admin")
    return make_runs()


def ask(api: Api, site: Mapping[str, str], method: str, name: str, address: Address) -> Any:
    path = path_of(f"durable_api:{name}", address, site).removeprefix("/api")
    return api.get(path) if method == "get" else api.post(path, dict(address.body or {}))


def everything() -> frozenset[str]:
    found = Permission.objects.filter(content_type__app_label="durable")
    return frozenset(found.values_list("codename", flat=True))


@pytest.mark.parametrize(("method", "name", "address"), CASES, ids=[f"{method} {name}" for method, name, _ in CASES])
def test_a_method_needs_exactly_these_permissions(
    make_api: MakeApi, site: dict[str, str], method: str, name: str, address: Address
) -> None:
    before = list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq"))
    problem(ask(Api(None), site, method, name, address), 401, "not-authenticated")
    assert address.needs <= everything()
    for permission in sorted(address.needs):
        client = make_api(*everything() - {permission}, name=f"without {permission}")
        told = problem(ask(client, site, method, name, address), 403, "permission-denied")
        assert f"durable.{permission}" in told["detail"]
    assert list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq")) == before
    logged = set(OperatorAction.objects.filter(actor_label__startswith="without").values_list("outcome", flat=True))
    assert logged == ({"denied"} if method == "post" and address.needs and name not in PLANS else set())
    status = ask(make_api(*address.needs, name="enough"), site, method, name, address).status_code
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
