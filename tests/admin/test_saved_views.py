"""Saved views of the list: each user's own, shared ones, and who may do what."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from durable.models import OperatorAction, SavedView
from durable.operations import saved_views
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db

LogIn = Callable[..., Client]


def save(client: Client, name: str = "mine", query: str = "?state=failed", **given: str) -> str:
    """Save a view, and the page to which that leads."""
    posted = {"name": name, "query": query, **given}
    return unescape(text_of(client.post(url("save_view"), posted, follow=True)))


def delete(client: Client, view: SavedView) -> int:
    return client.post(reverse("admin:durable_run_delete_view", args=[view.pk])).status_code


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
    assert "shared by ada" in unescape(text_of(bob.get(url("changelist"))))


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
    address = reverse("admin:durable_run_delete_view", args=[SavedView.objects.get().pk])
    assert ada.get(address).status_code == 302
    assert SavedView.objects.count() == 1


def test_names_of_others_are_text(log_in: LogIn) -> None:
    client = log_in("view_run")
    save(client, "<script>alert(1)</script>")
    assert "<script>alert" not in text_of(client.get(url("changelist")))
