"""Every address of the admin, walked from the URLconf.

Who may ask it, and that the program that measures pages asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin as django_admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from durable.admin.run_admin import RunAdmin
from durable.models import Cause, OperatorAction, QueueMessage, Run, SavedView
from tests.admin import flows
from tests.admin.addresses import ALL, NOBODY, OF_PEOPLE, Address, make_site
from tests.admin.bigdata import LONG
from tests.admin.conftest import Stage, staged
from tests.admin.pages import text_of
from tests.support.addresses import names_of_admin, path_of
from tests.support.shared_rows import shared_rows
from tests.tools.scale.requests import every_request

pytestmark = pytest.mark.django_db

#: Django's own: what they show of durable needs the permission to view runs (`test_pages`).
EVERY_STAFF_USER = {"admin:index", "admin:app_list", *(f"admin:durable_run_{name}" for name in OF_PEOPLE)}


METHODS = ("get", "post")


@dataclass(frozen=True)
class Site:
    """What all tests ask: the parts of its paths, and a session of a user for each set of permissions that is tried."""

    parts: dict[str, str]
    sessions: Mapping[frozenset[str], str]
    session_of_no_staff: str

    def client_with(self, permissions: frozenset[str]) -> Client:
        """A client of the user with these permissions."""
        return client_of(self.sessions[permissions])


def client_of(session: str) -> Client:
    client = Client()
    client.cookies[settings.SESSION_COOKIE_NAME] = session
    return client


def session_with(permissions: frozenset[str], *, is_staff: bool = True) -> str:
    """The session of a new user."""
    user = User.objects.create_user(f"user {User.objects.count()}", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def everything() -> frozenset[str]:
    found = Permission.objects.filter(content_type__app_label="durable")
    return frozenset(found.values_list("codename", flat=True))


def needed_by(address: Address, method: str) -> frozenset[str]:
    return address.get if method == "get" or address.post is None else address.post


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    """Made once: a user with permissions costs as much as a page."""
    with shared_rows(django_db_blocker):
        with staged() as stage, pytest.MonkeyPatch.context() as patch:
            patch.setitem(flows.SWITCH, "broken", True)
            parts = make_site(stage)
        needed = {needed_by(address, method) for address in ALL.values() for method in METHODS}
        one_less = {everything() - {each} for each in frozenset().union(*needed)}
        yield Site(
            parts=parts,
            sessions={each: session_with(each) for each in {frozenset[str](), *needed, *one_less}},
            session_of_no_staff=session_with(everything(), is_staff=False),
        )


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


@pytest.mark.parametrize(
    "run_id", ["a b/c", "ü🎉", ".", "..", '%2F?#;&=+$,"<>[]', "a'(b)*!~:@|^", "anyrun", "_2E", "\\ \t\x7f"]
)
def test_many_addresses_are_those_that_are_made_one_by_one(run_id: str) -> None:
    pages = RunAdmin(Run, django_admin.site)
    assert pages.url_maker("change")(run_id) == pages.url("change", run_id)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ALL)
def test_an_address_needs_exactly_these_permissions(site: Site, stage: Stage, name: str, method: str) -> None:
    address = ALL[name]
    path = path_of(name, address, site.parts)
    is_page = name.startswith("admin:durable_run_") and name != "admin:durable_run_stream"
    is_of_a_run = is_page and address.keys[:1] in (("run",), ("many",))
    of_none = replace(address, keys=("nobody", *address.keys[1:])) if is_of_a_run else address
    needed = needed_by(address, method)

    def answer(client: Client, at: str = path) -> Any:
        return getattr(client, method)(at, address.data)

    def status(client: Client) -> int:
        return int(answer(client).status_code)

    assert status(Client()) == 302
    assert status(client_of(site.session_of_no_staff)) == 302
    assert needed <= everything()
    for permission in needed:
        client = site.client_with(everything() - {permission})
        for each in {path, path_of(name, of_none, site.parts)}:  # which runs exist is not told
            assert f"durable.{permission}" in text_of(answer(client, each), 403) or not is_page, each
    assert status(site.client_with(frozenset())) == 403
    if (method, name) in NOBODY:
        return
    assert status(site.client_with(needed)) in {200, 302, 422}


@pytest.mark.parametrize(("method", "name"), NOBODY)
def test_nobody_edits_the_audit_log(site: Site, method: str, name: str) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    path = reverse(name, args=[site.parts[each] for each in NOBODY[method, name]])
    assert getattr(client, method)(path).status_code == 403
