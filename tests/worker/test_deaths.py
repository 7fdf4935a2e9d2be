"""What a run tells of a worker that was killed with it: how, in which step, and who goes on."""

import os
import signal
from html import unescape
from io import StringIO

import pytest
import redis
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from durable.inspection.events import list_events
from durable.inspection.explanation import explain_fully
from durable.models import Activity, OperatorAction, Run
from durable.store import Store
from tests.support.processes import Program, is_completed, start_run
from tests.support.processes import Run as Command
from tests.support.waiting import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def begin(run: Command, **extra: str) -> tuple[Program, int]:
    program = run("durable_worker", **extra)
    (pid,) = program.pids()
    return program, pid


def told(run_id: str) -> dict[str, tuple[str, str]]:
    """What the audit log says of the run, by action: who, and why."""
    found = OperatorAction.objects.filter(run_id=run_id)
    return {each.action: (each.actor_label, each.reason) for each in found}


def test_a_killed_worker_leaves_a_trace_on_its_run_and_on_its_page(
    store: Store, run: Command, redis_connection: redis.Redis, admin_client: Client
) -> None:
    _, pid = begin(run, FLOWS_LEASE="600")  # nobody takes the run over before that is over
    run_id = start_run(store, "flows.long", "a")
    eventually(lambda: Activity.objects.filter(run_id=run_id).exists())
    worker = Run.objects.get(pk=run_id).worker
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "worker_died" in told(run_id))
    who, why = told(run_id)["worker_died"]
    assert who == worker
    assert why.startswith('killed by signal 9 (SIGKILL), in step "last" (attempt 1, since ')
    assert "; its lease ends at " in why

    row = Run.objects.get(pk=run_id)
    assert row.worker == worker
    assert row.lease_expires_at is not None
    assert "killed by signal 9 (SIGKILL)" in explain_fully(row, row.lease_expires_at).detail

    page = admin_client.get(reverse("admin:durable_run_worker", args=[quote(worker)])).content.decode()
    assert "killed by signal 9 (SIGKILL)" in page
    assert run_id in page

    redis_connection.set("go a", "1")
    Run.objects.filter(pk=run_id).update(lease_expires_at=timezone.now())
    eventually(lambda: is_completed(store, run_id))
    who, why = told(run_id)["taken_over"]
    assert who not in ("", worker)
    assert why.startswith(f'after its worker {worker} was lost in step "last" (attempt 1, since ')
    happened = [each.what for each in list_events(Run.objects.get(pk=run_id)).events]
    assert {"worker_died", "taken_over"} <= set(happened)

    page = admin_client.get(reverse("admin:durable_run_change", args=[quote(run_id)])).content.decode()
    shown = StringIO()
    call_command("durable", "show", run_id, stdout=shown)
    for text in (unescape(page), shown.getvalue()):
        assert f'worker {worker} died: killed by signal 9 (SIGKILL), in step "last" (attempt 1, since ' in text
        assert f'taken over by {who}: after its worker {worker} was lost in step "last" (attempt 1, since ' in text


def test_the_worker_that_goes_on_says_so_where_no_parent_has_seen_the_death(
    store: Store, run: Command, redis_connection: redis.Redis
) -> None:
    program, pid = begin(run)
    run_id = start_run(store, "flows.long", "a")
    eventually(lambda: Activity.objects.filter(run_id=run_id).exists())
    worker = Run.objects.get(pk=run_id).worker
    os.kill(program.process.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    program.wait()
    redis_connection.set("go a", "1")
    begin(run)
    eventually(lambda: is_completed(store, run_id))
    assert told(run_id)["taken_over"][1].startswith(f'after its worker {worker} was lost in step "last"')
    assert "worker_died" not in told(run_id)
