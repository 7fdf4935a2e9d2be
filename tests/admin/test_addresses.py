"""Every address of the admin, walked from the URLconf.

Who may ask it, and that the program that measures pages asks it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from durable.admin.run_admin import RunAdmin
from durable.models import Cause, OperatorAction, QueueMessage, Run, SavedView
from tests.admin.addresses import ALL, NOBODY, OF_PEOPLE, make_site
from tests.admin.bigdata import LONG
from tests.admin.conftest import Stage
from tests.admin.pages import text_of
from tests.support.addresses import names_of_admin, path_of
from tests.tools.scale.requests import every_request

pytestmark = pytest.mark.django_db

#: Django's own: what they show of durable needs the permission to view runs (`test_pages`).
EVERY_STAFF_USER = {"admin:index", "admin:app_list", *(f"admin:durable_run_{name}" for name in OF_PEOPLE)}


@pytest.fixture
def site(stage: Stage) -> dict[str, str]:
    return make_site(stage)


def client_with(permissions: frozenset[str], *, is_staff: bool = True) -> Client:
    user = User.objects.create_user(f"user {User.objects.count()}", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    "run_id", ["a b/c", "ü🎉", ".", "..", '%2F?#;&=+$,"<>[]', "a'(b)*!~:@|^", "anyrun", "_2E", "\\ \t\x7f"]
)
def test_many_addresses_are_those_that_are_made_one_by_one(run_id: str) -> None:
    pages = RunAdmin(Run, django_admin.site)
    assert pages.url_maker("change")(run_id) == pages.url("change", run_id)


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("name", ALL)
def test_an_address_needs_exactly_these_permissions(site: dict[str, str], name: str, method: str) -> None:
    address = ALL[name]
    path = path_of(name, address, site)
    is_page = name.startswith("admin:durable_run_") and name != "admin:durable_run_stream"
    is_of_a_run = is_page and address.keys[:1] in (("run",), ("many",))
    of_none = replace(address, keys=("nobody", *address.keys[1:])) if is_of_a_run else address
    needed = address.get if method == "get" or address.post is None else address.post
    everything = frozenset(
        Permission.objects.filter(content_type__app_label="durable").values_list("codename", flat=True)
    )

    def answer(client: Client, at: str = path) -> Any:
        return getattr(client, method)(at, address.data)

    def status(client: Client) -> int:
        return int(answer(client).status_code)

    assert status(Client()) == 302
    assert status(client_with(everything, is_staff=False)) == 302
    assert needed <= everything
    for permission in needed:
        client = client_with(everything - {permission})
        for each in {path, path_of(name, of_none, site)}:  # which runs exist is not told
            assert f"durable.{permission}" in text_of(answer(client, each), 403) or not is_page, each
    assert status(client_with(frozenset())) == 403
    if (method, name) in NOBODY:
        return
    assert status(client_with(needed)) in {200, 302, 422}


@pytest.mark.parametrize(("method", "name"), NOBODY)
def test_nobody_edits_the_audit_log(site: dict[str, str], method: str, name: str) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    path = reverse(name, args=[site[each] for each in NOBODY[method, name]])
    assert getattr(client, method)(path).status_code == 403


def test_every_address_is_in_a_table() -> None:
    assert names_of_admin() == ALL.keys() | {name for _, name in NOBODY} | EVERY_STAFF_USER


def test_the_program_that_measures_pages_asks_every_address() -> None:
    now = timezone.now()
    Cause.objects.create(fingerprint="cause-0", place="charge", error_type="Error", first_seen_at=now)
    OperatorAction.objects.create(source="admin", action="cancel", outcome="done", created_at=now)
    SavedView.objects.create(name="mine", owner_key="1", created_at=now)
    for run_id in ("r", LONG):
        Run.objects.create(id=run_id, workflow="w", queue="q", input="[]", state="running", created_at=now)
    QueueMessage.objects.create(id="m", run_id=LONG, queue="q", body="1", sent_at=now, order=1)
    asked = {each.address for each in every_request()}  # raises LookupError for an address that it lacks
    assert len(asked) > 200
