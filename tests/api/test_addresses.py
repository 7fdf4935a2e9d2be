"""Every address of the interface, walked from its URLconf: which permissions each method needs, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import URLPattern
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from durable.api.urls import urlpatterns
from durable.models import Limit, OperatorAction, Run, Schedule
from tests.api.addresses import READS, WRITES, Address, make_runs
from tests.api.conftest import Api, problem
from tests.support.addresses import names_of_interface, path_of
from tests.support.shared_rows import shared_rows

pytestmark = pytest.mark.django_db

#: Answers that there is nothing under the address, to everybody who has signed in and may look.
NOTHING = {
    *(("post", "anywhere"), ("get", "anywhere"), ("get", "stack"), ("get", "question")),
    *(("post", f"{verb}-question") for verb in ("answer", "comment", "hand-over", "claim", "release")),
}
#: Reading, by a POST: no denial of it is logged.
PLANS = {"bulk-plan"}
CASES = [("get", name, each) for name, each in READS.items()] + [("post", name, each) for name, each in WRITES.items()]


@dataclass(frozen=True)
class Site:
    """What all tests ask: the parts of its paths, and a user for each set of permissions that is tried."""

    parts: dict[str, str]
    users: Mapping[frozenset[str], User]


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    """Made once: a user with permissions costs as much as an answer."""
    with shared_rows(django_db_blocker):
        OperatorAction.objects.create(
            source="api", action="pause", run_id="many", outcome="done", created_at=timezone.now(), detail="pause 1 run"
        )
        Limit.objects.create(name="carrier", at_once=4, override=2)
        Schedule.objects.create(name="nightly", workflow="tests.api.add", rule="30 2 * * *", origin="admin")
        parts = make_runs()
        needed = {address.needs for _, _, address in CASES}
        users = {each: user_with(each, f"enough {number}") for number, each in enumerate(needed)}
        for each in frozenset().union(*needed):
            users[everything() - {each}] = user_with(everything() - {each}, f"without {each}")
        yield Site(parts=parts, users=users)


def user_with(permissions: frozenset[str], name: str) -> User:
    user = User.objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable", codename__in=permissions))
    return user


def ask(api: Api, site: Mapping[str, str], method: str, name: str, address: Address) -> Any:
    path = path_of(f"durable_api:{name}", address, site).removeprefix("/api")
    return api.get(path) if method == "get" else api.post(path, dict(address.body or {}))


def everything() -> frozenset[str]:
    found = Permission.objects.filter(content_type__app_label="durable")
    return frozenset(found.values_list("codename", flat=True))


@pytest.mark.parametrize(("method", "name", "address"), CASES, ids=[f"{method} {name}" for method, name, _ in CASES])
def test_a_method_needs_exactly_these_permissions(site: Site, method: str, name: str, address: Address) -> None:
    before = list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq"))
    problem(ask(Api(None), site.parts, method, name, address), 401, "not-authenticated")
    assert address.needs <= everything()
    for permission in sorted(address.needs):
        client = Api(site.users[everything() - {permission}])
        told = problem(ask(client, site.parts, method, name, address), 403, "permission-denied")
        assert f"durable.{permission}" in told["detail"]
    assert list(Run.objects.order_by("pk").values_list("pk", "state", "change_seq")) == before
    logged = set(OperatorAction.objects.filter(actor_label__startswith="without").values_list("outcome", flat=True))
    assert logged == ({"denied"} if method == "post" and address.needs and name not in PLANS else set())
    status = ask(Api(site.users[address.needs]), site.parts, method, name, address).status_code
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
