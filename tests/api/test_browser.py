"""A page of another site, in a real browser that has signed in: what it can have the browser send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from durable import get_run
from durable.models import OperatorAction
from tests.api.workflows import loop

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

EVIL = "http://evil.example/"
BASIC = {"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}

#: What a page can do without asking.
ATTACKS = {
    "a form": '<form id=f method=post action="{target}"></form><script>f.submit()</script>',
    "a form of text": '<form id=f method=post enctype="text/plain" action="{target}"></form><script>f.submit()</script>',
}


@pytest.mark.parametrize("attack", ATTACKS)
@override_settings(REST_FRAMEWORK=BASIC)
def test_a_page_of_another_site_changes_nothing(chromium: Browser, live_server: LiveServer, attack: str) -> None:
    User.objects.create_superuser("root", password="a secret")
    loop.using(id="a").start(1)
    target = f"{live_server.url}/api/runs/a/pause"
    answered: list[Any] = []
    context = chromium.new_context(http_credentials={"username": "root", "password": "a secret"})
    context.set_default_timeout(120_000)  # milliseconds
    try:
        page = context.new_page()
        page.on("response", lambda answer: answered.append(answer) if answer.url == target else None)
        assert page.goto(f"{live_server.url}/api/runs").ok  # type: ignore[union-attr]  # it is no fragment's address
        page.route(
            f"{EVIL}**",
            lambda route: route.fulfill(body=ATTACKS[attack].format(target=target), content_type="text/html"),
        )
        with page.expect_response(target, timeout=120_000):
            page.goto(EVIL, wait_until="commit")
    finally:
        context.close()
    assert answered
    assert get_run("a").state == "pending"
    assert not OperatorAction.objects.filter(outcome="done").exists()


@override_settings(REST_FRAMEWORK=BASIC)
def test_a_page_of_the_same_site_may_act(chromium: Browser, live_server: LiveServer) -> None:
    """And its browser adds the credentials, without which the test above would say nothing."""
    User.objects.create_superuser("root", password="a secret")
    loop.using(id="a").start(1)
    context = chromium.new_context(http_credentials={"username": "root", "password": "a secret"})
    context.set_default_timeout(120_000)  # milliseconds
    try:
        page = context.new_page()
        page.goto(f"{live_server.url}/api/runs")
        status = page.evaluate("fetch('/api/runs/a/pause', {method: 'POST'}).then((answer) => answer.status)")
    finally:
        context.close()
    assert status == 200
    assert get_run("a").state == "paused"
