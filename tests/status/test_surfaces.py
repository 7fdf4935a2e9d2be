"""The status of a run on every surface: pages, REST and its stream, the command line, exports; hidden where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from durable import Context, get_run, workflow
from durable.api.changes import Follower
from durable.inspection.export import exported
from durable.inspection.run_rules import find_among
from durable.models import Run, RunStatus
from tests.faults.passing import pass_once
from tests.support.commands import printed

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script> & \u202eevil'
ETA = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)


@workflow(name="tests.status.said")
def saying(ctx: Context, text: str, done: float | None = None, of: float | None = None) -> None:
    ctx.status(text, done=done, of=of, eta=ETA)
    ctx.queue.next("go on")


@workflow(name="tests.status.quiet")
def quiet(ctx: Context) -> None:
    ctx.queue.next("go on")


@workflow(name="tests.status.parent")
def parent(ctx: Context) -> Any:
    return ctx.map("each", saying, [("first child", 1, 2), ("second child", 2, 2)]).outputs


def said(run_id: str, text: str = "waiting for the courier", done: float | None = 3, of: float | None = 7) -> Run:
    pass_once(saying.using(id=run_id).start(text, done, of))
    return Run.objects.get(pk=run_id)


def hide(_workflow: str, field: str, value: Any) -> Any:
    return "(hidden)" if field in ("status", "summary") else value


class TestPages:
    def test_the_list_has_a_bar_if_a_run_has_a_status(self, admin_page: Callable[..., str]) -> None:
        pass_once(quiet.using(id="plain").start())
        assert "Progress</th>" not in admin_page("changelist")
        assert "Progress</th>" in admin_page("changelist", columns="status")
        said("a")
        shown = admin_page("changelist")
        assert "Progress</th>" in shown
        assert (
            '<progress class="durable-progress" max="1" value="0.4286" aria-label="3 of 7">3 of 7</progress>' in shown
        )
        assert "waiting for the courier" in shown

    def test_an_open_list_learns_of_a_new_status(self, admin_page: Callable[..., str], client: Client) -> None:
        said("a")
        url = reverse("admin:durable_run_changelist")
        first = client.get(url, {"live": "1"})
        again = client.get(url, {"live": "1"}, headers={"if-none-match": first["ETag"]})
        assert again.status_code == 304
        RunStatus.objects.update(number=9, text="on the way")
        changed = client.get(url, {"live": "1"}, headers={"if-none-match": first["ETag"]})
        assert changed.status_code == 200
        assert "on the way" in changed.content.decode()

    def test_the_page_of_a_run_has_it_and_learns_of_a_new_one(
        self, admin_page: Callable[..., str], client: Client
    ) -> None:
        said("a")
        shown = admin_page("change", "a")
        assert 'value="0.4286"' in shown
        assert "expected 6 May 2031 07:08 UTC" in shown
        url = reverse("admin:durable_run_live", args=["a"])
        first = client.get(url)
        assert client.get(url, headers={"if-none-match": first["ETag"]}).status_code == 304
        RunStatus.objects.update(number=9, text="on the way")
        assert "on the way" in client.get(url, headers={"if-none-match": first["ETag"]}).content.decode()

    def test_a_text_is_escaped(self, admin_page: Callable[..., str]) -> None:
        said("a", HOSTILE, None, None)
        for shown in (admin_page("changelist"), admin_page("change", "a")):
            assert "<script>alert" not in shown
            assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp;" in shown

    def test_a_run_without_one_has_no_part_of_it(self, admin_page: Callable[..., str]) -> None:
        pass_once(quiet.using(id="plain").start())
        assert "durable-run-status" not in admin_page("change", "plain")

    def test_children_of_a_map_are_told_apart(self, admin_page: Callable[..., str]) -> None:
        pass_once(parent.using(id="many").start())
        for child in Run.objects.filter(parent="many"):
            pass_once(get_run(child.id))
        shown = admin_page("change", "many", part="children")
        assert "first child" in shown
        assert "second child" in shown
        assert shown.count("<progress") == 2

    def test_pages_in_german_say_it_in_german(self, admin_page: Callable[..., str], client: Client) -> None:
        said("a")
        url = reverse("admin:durable_run_change", args=["a"])
        assert "3 von 7" in client.get(url, headers={"accept-language": "de"}).content.decode()

    def test_the_hook_of_redaction_is_asked(self, admin_page: Callable[..., str], settings: Any) -> None:
        said("a")
        settings.DURABLE = {**settings.DURABLE, "REDACT": f"{__name__}.hide"}
        for shown in (admin_page("changelist"), admin_page("change", "a", part="history")):
            assert "waiting for the courier" not in shown
            assert "(hidden)" in shown


class TestJSON:
    STATUS = {"text": "waiting for the courier", "done": 3, "of": 7, "eta": "2031-05-06T07:08:00Z"}

    def test_rest_has_it_in_the_list_and_of_one_run(self, admin_page: Callable[..., str], client: Client) -> None:
        said("a")
        pass_once(quiet.using(id="plain").start())
        listed = {each["id"]: each["status"] for each in client.get("/api/runs").json()["results"]}
        assert listed["plain"] is None
        assert {**listed["a"], "at": None} == {**self.STATUS, "at": None}
        one = client.get("/api/runs/a").json()
        assert one["status"] == listed["a"]

    def test_the_stream_says_that_it_has_changed(self) -> None:
        said("a")

        def read() -> Run:
            found = find_among(Run.objects.all(), "a")
            assert found is not None
            return found

        follower = Follower(read)
        follower.look()
        assert not follower.look().has_changed
        RunStatus.objects.update(number=9, text="on the way")
        assert follower.look().has_changed
        assert not follower.look().has_changed

    def test_the_command_line_has_it(self) -> None:
        said("a")
        pass_once(quiet.using(id="plain").start())
        listed = printed("list")
        assert "waiting for the courier (3 of 7)" in listed
        shown = printed("show", "a")
        [line] = [each for each in shown.splitlines() if each.startswith("status")]
        assert line.endswith("waiting for the courier (3 of 7)")
        assert not [each for each in printed("show", "plain").splitlines() if each.startswith("status")]
        data = json.loads(printed("show", "a", "-o", "json"))
        assert {**data["status"], "at": None} == {**self.STATUS, "at": None}

    def test_an_export_has_it(self) -> None:
        data = exported(said("a"), with_payloads=False)
        assert {**data["run"]["status"], "at": None} == {
            **self.STATUS,
            "at": None,
            "eta": "2031-05-06T07:08:00+00:00",
        }
