"""To abandon an attempt, to ask for its stack, and to cancel with an interruption, from every surface."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from durable import get_run, operations
from durable.errors import InvalidTransitionError, RunNotFoundError
from durable.inspection.activities import read_stack
from durable.models import Activity, Entry, EntryMetadata, OperatorAction, Run
from durable.operations.audit import Actor, acting_as, revision

pytestmark = pytest.mark.django_db

LOCATION = "all/left<b>/charge"
STACK = '  File "/srv/shop/bank.py", line 7, in charge\n    answer = session.post(SECRET)\n'


@pytest.fixture
def run() -> Run:
    """A run in the hands of a worker, with two steps that run."""
    now = timezone.now()
    run = Run.objects.create(
        id="order-1",
        workflow="tests.abandoned.order",
        queue="default",
        state="running",
        input="[]",
        fence=3,
        created_at=now,
        wake_at=now,
        worker="host:1:abc",
        lease_expires_at=now + timedelta(hours=1),
    )
    for location in (LOCATION, "all/right/charge"):
        Activity.objects.create(
            run=run, location=location, attempt=1, kind="step", fence=3, began_at=now, timeout=60, worker="host:1:abc"
        )
    return run


def user(*permissions: str, name: str = "ada") -> User:
    found = User.objects.create_user(name, is_staff=True)
    found.user_permissions.add(*Permission.objects.filter(codename__in=permissions, content_type__app_label="durable"))
    return found


def abandoned() -> list[str]:
    return list(Activity.objects.exclude(abandon_asked_at=None).order_by("pk").values_list("location", flat=True))


def asked() -> list[str]:
    return list(Activity.objects.exclude(stack_asked_at=None).order_by("pk").values_list("location", flat=True))


def logged() -> list[tuple[str, str, str]]:
    return list(OperatorAction.objects.order_by("id").values_list("action", "outcome", "detail"))


# -- the verbs


def test_the_attempt_at_a_place_is_abandoned(run: Run) -> None:
    before = revision(run)
    with acting_as(Actor("admin", user=user("operate_run")), reason="the bank hangs"):
        operations.abandon("order-1", location=LOCATION)
    assert abandoned() == [LOCATION]
    assert logged() == [("abandon", "done", LOCATION)]
    assert OperatorAction.objects.get().reason == "the bank hangs"
    assert revision(Run.objects.get(pk="order-1")) == before


def test_without_a_place_all_that_run_are_abandoned(run: Run) -> None:
    async_to_sync(get_run("order-1").aabandon)(LOCATION)
    assert abandoned() == [LOCATION]
    get_run("order-1").abandon()
    assert len(abandoned()) == 2


@pytest.mark.parametrize("verb", [operations.abandon, operations.take_stack])
def test_what_does_not_run_is_refused(run: Run, verb: Callable[..., None]) -> None:
    with pytest.raises(InvalidTransitionError, match="no step of run"):
        verb("order-1", location="unknown")
    Activity.objects.update(fence=2)
    with pytest.raises(InvalidTransitionError, match="no step of run"):
        verb("order-1")
    Activity.objects.update(fence=3)
    Run.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(InvalidTransitionError, match="its worker is gone"):
        verb("order-1")
    Run.objects.update(state="sleeping", lease_expires_at=None)
    with pytest.raises(InvalidTransitionError, match="that is sleeping"):
        verb("order-1")
    with pytest.raises(RunNotFoundError):
        verb("unknown")
    assert abandoned() == asked() == []


def test_a_cancel_interrupts_if_it_is_asked_to(run: Run) -> None:
    get_run("order-1").cancel("enough")
    assert abandoned() == []
    get_run("order-1").cancel("enough", interrupt=True)
    assert len(abandoned()) == 2
    assert Run.objects.get().pending_request == "cancel"
    assert "interrupts" in logged()[-1][2]


def test_a_cancel_of_a_parked_run_has_nothing_to_interrupt(run: Run) -> None:
    Run.objects.update(state="sleeping", lease_expires_at=None)
    get_run("order-1").cancel(interrupt=True)
    assert (Run.objects.get().state, abandoned()) == ("cancelled", [])


# -- the surfaces


def durable(*arguments: str) -> str:
    out = io.StringIO()
    call_command("durable", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_command_line_prints_the_stack(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(run_id: str, *, location: str) -> None:
        rows = Activity.objects.filter(run_id=run_id, location=location)
        rows.update(stack_asked_at=timezone.now(), stack_taken_at=timezone.now(), stack=STACK)

    monkeypatch.setattr(operations, "take_stack", answer)
    said = durable("stack", "order-1", "--location", LOCATION)
    assert "in charge" in said


def test_the_interface_abandons_and_shows_stacks(run: Run, client: Client) -> None:
    client.force_login(user("view_run", "view_payload", "operate_run"))

    def post(path: str, **body: Any) -> Any:
        return client.post(f"/api/runs/order-1/{path}", body, content_type="application/json")

    assert post("abandon", location=LOCATION, reason="hangs").status_code == 200
    assert abandoned() == [LOCATION]
    assert post("abandon", location="unknown").status_code == 409
    assert post("stack", location=LOCATION).status_code == 200
    address = f"/api/runs/order-1/stack?location={LOCATION}"
    assert client.get(address).json()["taken_at"] is None
    Activity.objects.filter(location=LOCATION).update(stack_taken_at=timezone.now(), stack=STACK)
    assert client.get(address).json()["text"] == STACK
    assert client.get("/api/runs/order-1/stack?location=unknown").status_code == 404
    assert post("cancel", interrupt=True).status_code == 200
    assert len(abandoned()) == 2


def step_page() -> str:
    return reverse("admin:durable_run_running_step", args=["order-1"])


def test_the_page_of_a_running_step_leads_to_its_verbs_and_shows_the_stack(run: Run, client: Client) -> None:
    client.force_login(user("view_run", "view_payload", "operate_run"))
    at = {"at": LOCATION}
    html = client.get(step_page(), at).content.decode()
    assert "all/left&lt;b&gt;/charge" in html
    assert "Nobody has asked for it yet" in html
    for verb in ("take_stack", "abandon"):
        address = reverse("admin:durable_run_act", args=["order-1", verb])
        assert f"{address}?at=" in html
        page = client.get(address, at)
        assert "all/left&lt;b&gt;/charge" in page.content.decode()
        form = {"reason": "hangs", "token": page.context["form"]["token"].value(), "expected": page.context["expected"]}
        done = client.post(f"{address}?at={LOCATION}", form)
        assert done.status_code == 302
        assert done["Location"].startswith(step_page())
    assert (asked(), abandoned()) == ([LOCATION], [LOCATION])
    Activity.objects.update(stack_taken_at=timezone.now(), stack=STACK)
    html = client.get(step_page(), at).content.decode()
    assert "session.post(SECRET)" in html
    live = client.get(step_page(), {**at, "live": "1"})
    assert client.get(step_page(), {**at, "live": "1"}, headers={"If-None-Match": live["ETag"]}).status_code == 304


def test_a_stack_is_a_payload(run: Run, client: Client) -> None:
    Activity.objects.update(stack_taken_at=timezone.now(), stack=STACK)
    client.force_login(user("view_run", "operate_run"))
    html = client.get(step_page(), {"at": LOCATION}).content.decode()
    assert "SECRET" not in html
    assert "durable.view_payload" in html
    assert client.get(reverse("admin:durable_run_act", args=["order-1", "take_stack"])).status_code == 403


@override_settings(DURABLE={"REDACT": "tests.admin.redaction.hide"})
def test_a_stack_is_redacted(run: Run) -> None:
    Activity.objects.update(stack_taken_at=timezone.now(), stack=STACK)
    found = read_stack(run, LOCATION, timezone.now())
    assert found is not None
    assert "SECRET" not in found.text


def test_a_step_without_a_record_leads_to_the_page_of_what_runs(run: Run, client: Client) -> None:
    client.force_login(user("view_run"))
    answer = client.get(reverse("admin:durable_run_step", args=["order-1"]), {"at": LOCATION})
    assert answer.status_code == 302
    assert answer["Location"].startswith(step_page())
    ended = client.get(step_page(), {"at": "unknown"})
    assert (ended.status_code, ended["Location"]) == (302, reverse("admin:durable_run_change", args=["order-1"]))
    assert "has ended" in client.get(step_page(), {"at": "unknown", "live": "1"}).content.decode()


def test_a_step_with_a_record_leads_to_its_running_attempt(run: Run, client: Client) -> None:
    entry = Entry.objects.create(run=run, location=LOCATION, kind="step", ordinal=1)
    EntryMetadata.objects.create(entry=entry, status="failed", attempts=1, created_at=timezone.now())
    client.force_login(user("view_run"))
    address = reverse("admin:durable_run_step", args=["order-1"])
    assert f"{step_page()}?at=" in client.get(address, {"at": LOCATION}).content.decode()
    Activity.objects.all().delete()
    assert step_page() not in client.get(address, {"at": LOCATION}).content.decode()


def test_abandon_is_offered_where_a_step_runs(run: Run, client: Client) -> None:
    client.force_login(user("view_run", "operate_run"))
    address = reverse("admin:durable_run_change", args=["order-1"])
    offered = reverse("admin:durable_run_act", args=["order-1", "abandon"])
    assert offered in client.get(address).content.decode()
    Activity.objects.all().delete()
    assert offered not in client.get(address).content.decode()
