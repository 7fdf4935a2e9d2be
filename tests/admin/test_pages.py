"""The pages: who sees what, what they say, and that hostile text stays text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
import redis
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, Settings

from durable import get_run, runtime
from durable.checks.configuration import check_redaction
from durable.models import Entry, Run
from durable.notifier import notify
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import rows_of, text_of, url

pytestmark = pytest.mark.django_db


LogIn = Callable[..., Client]
HOSTILE = '<script>alert("x")</script>&amp;\'"{{ run }}'


def address(name: str) -> str:
    if name == "changelist":
        return url(name)
    if name == "act":
        return url(name, "run", "cancel")
    return url(name, "run") + ("?at=charge" if name in {"step", "replay"} else "")


@pytest.fixture
def failed(stage: Stage) -> Run:
    flows.SWITCH["broken"] = True
    return stage.start(flows.switched, HOSTILE, id="run")


def test_a_page_that_takes_seconds_finds_the_time_in_its_sentence(stage: Stage, failed: Run, operator: Client) -> None:
    stage.advance(minutes=5)

    def later() -> datetime:
        stage.advance(seconds=1)
        return stage.now

    slow = replace(runtime.current(), now=later)
    runtime.activate(slow)
    page = operator.get(url("change", "run")).content.decode()
    runtime.deactivate(slow)
    [headline] = re.findall("<h1.*?</h1>", page)
    assert 'data-durable-relative="2">5 m 1 s ago</span>' in headline


def test_the_app_is_not_even_named_to_others(failed: Run, log_in: LogIn) -> None:
    assert "durable" not in text_of(log_in().get(reverse("admin:index"))).lower()
    assert log_in(name="eve").get("/admin/durable/").status_code == 404


def test_without_the_permission_there_are_no_payloads(stage: Stage, log_in: LogIn) -> None:
    stage.start(flows.saga, "4242-secret", id="run")
    client = log_in("view_run", "view_payload", name="privileged")
    for name in ("change", "step", "export"):
        assert "4242-secret" in text_of(client.get(address(name)))
    log_in("view_run")
    for name in ("change", "live", "step", "export"):
        body = text_of(client.get(address(name)))
        assert "4242-secret" not in body
        assert "Traceback (most recent call last)" not in body
        assert "charge_card" not in body
    exported = json.loads(client.get(address("export")).content)
    assert "input" not in exported["run"]
    assert all("arguments" not in entry for entry in exported["entries"])


def test_a_failed_step_is_offered_for_a_replay_and_what_is_not_there_is_said(failed: Run, operator: Client) -> None:
    assert "It may have been pruned" in text_of(operator.get(url("change", "nobody")), 404)
    assert "has no entry" in text_of(operator.get(url("step", "run"), {"at": "nowhere"}), 404)
    assert "There is no verb" in text_of(operator.get(url("act", "run", "explode")), 404)
    assert f'href="{url("replay", "run")}?at=charge"' in text_of(operator.get(url("change", "run")))


@pytest.mark.parametrize(
    ("hook", "is_wrong"), [("", False), ("tests.admin.redaction.hide", False), ("os.nothing", True)]
)
def test_a_redaction_hook_that_is_not_there_is_an_error(settings: Settings, hook: str, is_wrong: bool) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": hook}
    assert [message.id for message in check_redaction()] == (["durable.E010"] if is_wrong else [])


def test_hostile_text_is_shown_as_text(failed: Run, operator: Client) -> None:
    get_run("run").recover()
    get_run("run").send(f"q{HOSTILE}", {HOSTILE: HOSTILE})
    get_run("run").cancel(reason=HOSTILE)
    for name in ("changelist", "change", "live", "step", "export", "send", "replay", "act"):
        page = operator.get(address(name))
        assert "Content-Security-Policy" in page
        if name == "export":  # a file of JSON
            continue
        body = text_of(page)
        assert "<script>alert" not in body
        assert "&lt;script&gt;" in body or name in {"changelist", "send", "replay", "act"}


@pytest.mark.parametrize("run_id", ["run", "ä b?c=d&e#f_g%h'\"<i>", "overview"])
def test_an_address_without_a_page_leads_to_the_run(operator: Client, log_in: LogIn, run_id: str) -> None:
    page = url("change", run_id)
    found = operator.get(page.removesuffix("change/"))
    if run_id == "overview":
        assert found.status_code == 200  # the overview itself
        return
    assert (found.status_code, found.headers["Location"]) == (302, page)
    assert log_in(name="eve").get(page.removesuffix("change/")).status_code == 403


def test_an_id_of_odd_characters_has_pages(stage: Stage, operator: Client) -> None:
    odd = "ä b?c=d&e#f_g%h'\"<i>"
    stage.start(flows.quick, id=odd)
    assert "&lt;i&gt;" in text_of(operator.get(url("change", odd)))
    assert quote(odd) in text_of(operator.get(url("changelist"))) or "_3F" in text_of(operator.get(url("changelist")))
    export = operator.get(url("export", odd))
    assert json.loads(export.content)["run"]["id"] == odd


@pytest.mark.slow
def test_text_that_cannot_be_written_is_shown_by_its_number(stage: Stage, operator: Client) -> None:
    stage.start(flows.odd, id="odd")
    of_run = [url(name, "odd") for name in ("change", "live", "send")]
    for address in (url("changelist"), *of_run, url("act", "odd", "wake")):
        text_of(operator.get(address))
    for node in operator.get(url("change", "odd"), {"part": "history"}).context["tree"].nodes:
        assert "ud8" in text_of(operator.get(f"{url('step', 'odd')}", {"at": node.location}))
        assert operator.get(f"{url('replay', 'odd')}", {"at": node.location}).status_code == 200
    get_run("odd").send("\ud800\x00", "\ud800")
    assert stage.settle("odd").state == "failed"
    for address in (url("changelist"), url("change", "odd"), url("export", "odd"), url("overview")):
        assert "ud800" in text_of(operator.get(address))
    assert operator.get("/admin/durable/").status_code == 200
    nonsense = {"q": "\x00", "workflow": "\x00\ud800", "after": "\x00", "start": "-1", "created_from": "soon"}
    for name, value in nonsense.items():
        assert operator.get(url("changelist"), {name: value.encode("utf-8", "surrogatepass")}).status_code == 200
    assert operator.get(f"{url('step', 'odd')}", {"at": b"\x00\xff"}).status_code == 404
    assert operator.get(url("change", "no\x00body")).status_code == 404


def test_the_list_finds_by_id_by_its_beginning_and_by_error(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="order-1")
    stage.start(flows.quick, id="order-22")
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="other")

    def found(**query: str) -> list[str]:
        return rows_of(operator.get(url("changelist"), query))

    assert found(q="order-22") == ["order-22"]
    assert found(q="order-") == ["order-1", "order-22"]
    assert found(q="stepEXHAUSTED") == ["other"]
    assert found(q="site-packages") == []  # not in tracebacks
    assert found(state="failed") == ["other"]
    assert found(workflow="tests.quick") == ["order-22", "order-1"]
    assert found(queue="nowhere") == []
    assert found(since="hour", state="completed") == ["order-22", "order-1"]


def test_a_forged_cursor_and_a_wrong_filter_are_said(operator: Client) -> None:
    assert "is not a cursor of this list" in text_of(operator.get(url("changelist"), {"after": "nonsense"}))
    beyond = base64.urlsafe_b64encode(b'["9999-12-31T23:59:59-23:59", "x"]').decode()
    assert "is not a cursor of this list" in text_of(operator.get(url("changelist"), {"after": beyond}))
    assert "Select a valid choice" in text_of(operator.get(url("changelist"), {"state": "broken"}))


def test_the_run_page_tells_what_it_waits_for(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="waits")
    body = text_of(operator.get(url("change", "waits")))
    assert "Waiting for a message in approved or rejected until " in body
    assert "nothing received" in body
    assert "python manage.py durable cancel waits" in body
    assert "python manage.py durable send waits approved -<" in body


def test_the_timeline_is_a_table_that_tells_what_happened_in_its_order(stage: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.stubborn, id="run")
    table = text_of(operator.get(url("change", "run"))).partition('id="timeline-table"')[2].partition("</table>")[0]
    [before, charge] = table.split('<tr role="row" id=')[1:]
    assert f'href="{url("step", "run")}?at=before"' in before
    assert charge.index("failed attempt") < charge.index("backoff")


def test_a_folded_row_of_the_timeline_has_an_address_that_opens_it(stage: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.album, id="run")
    folded = text_of(operator.get(url("change", "run")))
    assert "\N{MULTIPLICATION SIGN} 30" in folded
    assert "image 28</a>" not in folded
    assert 'href="?open=images%2Fimage+%23"' in folded
    opened = text_of(operator.get(url("change", "run"), {"open": "images/image #"}))
    assert opened.index("image 28</a>") < opened.index("image 0</a>")  # the failed one first
    assert "after=" in opened  # the next page of them
    assert 'href="?time=real"' in folded
    assert 'href="?open=images%2Fimage+%23&amp;time=real"' in opened


def test_a_complete_page_gets_no_patch(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="waits")
    page = operator.get(url("live", "waits"))
    again = operator.get(url("live", "waits"), headers={"If-None-Match": page["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    get_run("waits").send("approved")
    moved = operator.get(url("live", "waits"), headers={"If-None-Match": page["ETag"]})
    assert moved.status_code == 200


def test_times_on_a_page_are_patched_each_minute(stage: Stage, operator: Client) -> None:
    stage.start(flows.approve, id="waits")
    stage.now = stage.now.replace(second=59, microsecond=999_000)
    for address in (url("live", "waits"), url("changelist") + "?live=1", url("overview")):
        page = operator.get(address)
        known = {"If-None-Match": page["ETag"]}
        assert operator.get(address, headers=known).status_code == 304
        stage.advance(milliseconds=1)
        assert operator.get(address, headers=known).status_code == 200
        stage.advance(milliseconds=-1)


def test_the_tree_shows_branches_winners_and_what_was_pruned(stage: Stage, operator: Client) -> None:
    stage.start(flows.branches, id="branches")
    body = text_of(operator.get(url("change", "branches"), {"part": "history"}))
    for word in ("ship", "label", "mail", "fastest", "winner", "lost; its records are pruned", "careful"):
        assert word in body
    stage.start(flows.broken_branch, id="broken")
    assert "1 of 2 branches failed" in text_of(operator.get(url("change", "broken"), {"part": "history"}))
    stage.start(flows.looping, 12, id="loops")
    body = text_of(operator.get(url("change", "loops"), {"part": "history"}))
    assert "12 iterations; the records of iterations 0 to " in body


def test_redaction_holds_on_every_page(failed: Run, operator: Client, settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
    for name in ("changelist", "change", "live", "step", "export"):
        body = text_of(operator.get(address(name)))
        assert "alert(" not in body, name
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.broken"}
    body = text_of(operator.get(address("change")))
    assert "alert(" not in body
    assert "the redaction hook failed" in body


def test_a_search_does_not_tell_what_is_redacted(failed: Run, operator: Client, settings: Settings) -> None:
    found = f'href="{url("change", "run")}"'
    for text in ("no answer for", "stepexhausted"):
        assert found in text_of(operator.get(url("changelist"), {"q": text}))
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
    assert found not in text_of(operator.get(url("changelist"), {"q": "no answer for"}))
    assert found in text_of(operator.get(url("changelist"), {"q": "StepExhausted"}))  # its type is not redacted


def test_pages_cost_a_constant_number_of_queries(
    stage: Stage, operator: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    def costs(page: str) -> int:
        with django_assert_max_num_queries(30) as counted:
            assert operator.get(page).status_code == 200
        return len(counted)

    stage.start(flows.many, 3, id="small")
    list_before, page_before = costs(url("changelist")), costs(url("change", "small"))
    for number in range(30):
        stage.start(flows.quick, id=f"run-{number}")
    stage.start(flows.many, 150, id="big")
    assert costs(url("changelist")) == list_before
    assert costs(url("change", "big")) == page_before


def test_a_run_whose_records_are_pruned_says_so_of_its_time(stage: Stage, operator: Client) -> None:
    stage.start(flows.looping, 3, id="loop")
    assert "in steps" in text_of(operator.get(url("change", "loop")))
    assert "at least" not in text_of(operator.get(url("change", "loop")))
    Entry.objects.filter(run="loop", location__contains="/~0/").delete()
    shown = text_of(operator.get(url("change", "loop")))
    assert "in steps; the records of others are pruned" in shown
    assert "at least" in shown


def test_a_grave_verb_is_never_the_first_of_a_run(stage: Stage, operator: Client) -> None:
    stage.start(flows.billing, 2, id="billing-1")  # it waits for children, and nothing needs to be done
    page = operator.get(url("change", "billing-1"))
    assert "durable-grave" in text_of(page)
    assert [button.name for button in page.context["buttons"] if button.is_first and button.is_grave] == []


def test_a_sentence_that_is_cut_has_no_full_stop(stage: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.approve, id="run-1")
    stage.start(flows.switched, "x " * 400, id="run-2")
    uncut, cut = (re.findall("<h1.*</h1>", text_of(operator.get(url("change", run))))[-1] for run in ("run-1", "run-2"))
    assert re.search(r"[^.]\.</h1>", uncut)
    assert cut.endswith("…</h1>")


# -- durable's jobs show in django-rq's own admin pages like any other job


def test_the_bell_of_a_queue_is_a_job_that_the_pages_show(client: Client, redis_connection: redis.Redis) -> None:
    client.force_login(User.objects.create_superuser("operator"))
    notify.notify("default")
    overview = client.get(reverse("admin:django_rq_home"), follow=True)
    assert overview.status_code == 200
    assert "default" in overview.content.decode()
    jobs = client.get(reverse("admin:django_rq_jobs", args=[0]))
    assert jobs.status_code == 200
    assert "durable.jobs.work" in jobs.content.decode()
