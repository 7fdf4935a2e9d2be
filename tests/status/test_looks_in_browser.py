"""What authors let a run show, in a real browser: hostile texts break no page, and nobody meets a barrier there."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from durable import Context, Markdown, workflow
from durable.hooks.progress import address_of
from tests.faults.passing import pass_once
from tests.support.browsers import CONTRAST, RULES, barriers, complaints_of, show_as

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

LONG: Final = "W" * 80
EVIL: Final = f"<script>alert(1)</script> \u202eevil\u202c \N{FAMILY} {LONG}"
#: Colours do not change the structure of a page.
LOOKS: Final[dict[str, tuple[Any, int, tuple[str, ...]]]] = {
    "light": ("light", 1280, RULES),
    "dark": ("dark", 1280, CONTRAST),
    "telephone": ("dark", 390, RULES),
}
given: list[str] = []


@workflow(name="tests.looks.shown")
def shown(ctx: Context) -> Any:
    ctx.status(EVIL, done=1, of=3)
    ctx.publish(f"name {LONG}", 1234.5)
    ctx.publish("text", "line\n" * 200 + EVIL)
    ctx.publish("table", [{EVIL: EVIL, **{f"column {n}": n for n in range(9)}} for _ in range(60)])
    ctx.publish("markdown", Markdown(f"# {EVIL}\n\n> quoted\n\n" + "a paragraph\n\n" * 60))
    ctx.publish("json", {EVIL: [EVIL]})
    for number in range(4):
        ctx.publish(f"more {number}", number)
    paid = ctx.link(EVIL.replace("/", ""), timeout="3 days")
    ctx.step("ask", given.append, paid.url, summary=EVIL)
    return paid.wait("answer")


def test_hostile_texts_break_no_page(page: Page, live_server: LiveServer) -> None:
    given.clear()
    run = shown.using(id="a").start()
    pass_once(run)
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    cookie = {"name": settings.SESSION_COOKIE_NAME, "value": client.cookies[settings.SESSION_COOKIE_NAME].value}
    page.context.add_cookies([{**cookie, "url": live_server.url}])  # type: ignore[typeddict-item]  # a dict like it
    complaints = complaints_of(page)
    of_run = reverse("admin:durable_run_change", args=[run.id])
    inside = [reverse("admin:durable_run_changelist"), of_run, f"{of_run}?part=values", f"{of_run}?part=history"]
    outside = [address_of(run.id, timezone.now() + timedelta(hours=1)), urlsplit(given[0]).path]
    found: list[tuple[str, object]] = []
    for path in [*inside, *outside]:
        page.goto(live_server.url + path)
        assert "<script>alert(1)" in page.locator("main").last.inner_text(), path
        assert "\u202e" not in page.locator("main").last.inner_text(), path
        found += [(path, each) for each in complaints]
        within = "#content" if path in inside else None
        for look, (scheme, width, rules) in LOOKS.items():
            show_as(page, scheme=scheme, size={"width": width, "height": 900})
            seen = barriers(page, rules, within=within)
            found += [(f"{look}: {path}", (each["id"], each["nodes"][0]["html"])) for each in seen]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append((f"{look}: {path}", "wider than the screen"))
        complaints.clear()  # of the styles that axe tries to set
    assert found == []
