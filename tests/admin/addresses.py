"""The addresses of the admin as tests ask them: the parts of their paths, and the permissions that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.utils import timezone

from durable.models import Activity, Cause, Limit, OperatorAction, QueueMessage, Run, SavedView, Schedule
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.support.subjects import a_restored_database
from tests.support.worker import a_worker

WORKER = "host:4711:abc"
VIEW = frozenset({"view_run"})


@dataclass(frozen=True)
class Address:
    """An address by its name: the parts of its path, and the permissions that a GET and a POST need."""

    keys: tuple[Any, ...] = ()
    query: str = ""
    get: frozenset[str] = VIEW
    post: frozenset[str] | None = None  # as `get`
    data: Mapping[str, Any] = field(default_factory=dict)


def _also(*permissions: str) -> frozenset[str]:
    return VIEW | set(permissions)


RUN = ("run",)
#: For every user of the admin: what they show is what the user is asked (`tests/people/test_admin.py`).
OF_PEOPLE: Mapping[str, Address] = {"inbox": Address(), "question": Address(("0" * 16,))}
PAGES: Mapping[str, Address] = {
    "changelist": Address(),
    **OF_PEOPLE,
    "names": Address(("workflow",)),
    "overview": Address(),
    "causes": Address(),
    "cause": Address(("{cause}",)),
    "running": Address(),
    "events": Address(),
    "queues": Address(),
    "queue": Address(("default",)),
    "limits": Address(),
    "limit": Address(("carrier",)),
    "schedules": Address(),
    "schedule": Address(("nightly",)),
    "databases": Address(),
    "database": Address(("main",)),
    "workers": Address(),
    "worker": Address((WORKER,)),
    "workflows": Address(),
    "workflow": Address(("tests.switched",)),
    "bulk_result": Address(("many",)),
    "bulk_live": Address(("many",)),
    "compare": Address(RUN, "?with=run"),
    "change": Address(RUN),
    "lead": Address(RUN),
    "live": Address(RUN),
    "stream": Address(RUN, "?at=charge", _also("view_payload")),
    "step": Address(RUN, "?at=charge"),
    "running_step": Address(RUN, "?at=charge"),
    "export": Address(RUN),
    "payload": Address(RUN, "?of=input", _also("view_payload")),
    "raw": Address(RUN, "?of=input", _also("view_payload")),
    "bulk": Address(get=_also("operate_run"), data={"verb": "cancel", "id": ["run"]}),
    "save_view": Address(data={"name": "mine"}),
    "delete_view": Address(("{view}",), post=_also("share_savedview")),  # of somebody else
    "save_cause": Address(("{cause}", "mute"), get=_also("operate_run")),
    "queue_hold": Address(("default", "pause"), get=_also("pause_queue")),
    "workflow_hold": Address(("tests.switched", "hold"), get=_also("hold_workflow")),
    "limit_act": Address(("carrier", "take-back"), get=_also("change_limit")),
    "schedule_create": Address(get=_also("add_schedule", "start_run")),
    "schedule_act": Address(("nightly", "run"), get=_also("operate_schedule")),
    "database_act": Address(("main", "restored"), get=_also("change_databasemark"), data={"how": "go_on"}),
    "workflow_start": Address(("tests.switched",), get=_also("start_run")),
    "send": Address(RUN, get=_also("operate_run")),
    "message_act": Address(("run", "message", "delete"), get=_also("operate_run")),
    "replay": Address(RUN, "?at=charge", _also("replay_run")),
    "give_output": Address(RUN, "?at=charge", _also("replay_run", "give_output")),
    "edit_input": Address(RUN, get=_also("edit_input", "start_run", "view_payload")),
    "settle": Address(RUN, "?at=charge", _also("settle_step")),
    "act": Address(("run", "recover"), get=_also("operate_run")),
}

ALL: Mapping[str, Address] = {
    **{f"admin:durable_run_{name}": each for name, each in PAGES.items() if name not in OF_PEOPLE},
    "admin:durable_operatoraction_changelist": Address(),
    "admin:durable_operatoraction_change": Address(("{action}",)),
    "admin:durable_operatoraction_history": Address(("{action}",)),
}
#: What would edit the log.
NOBODY: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("get", "admin:durable_operatoraction_add"): (),
    ("post", "admin:durable_operatoraction_add"): (),
    ("get", "admin:durable_operatoraction_delete"): ("{action}",),
    ("post", "admin:durable_operatoraction_delete"): ("{action}",),
    ("post", "admin:durable_operatoraction_change"): ("{action}",),
}


def make_site(stage: Stage) -> dict[str, str]:
    """A failed run and its cause, a bulk, a saved view and an action; what stands for the braces of the paths."""
    flows.SWITCH["broken"] = True
    stage.start(flows.switched, id="run")
    a_worker(WORKER)
    a_restored_database()
    now = timezone.now()
    for bulk_id, run_id in (("", "many"), ("many", "run")):
        OperatorAction.objects.create(
            source="admin",
            action="recover",
            run_id=run_id,
            bulk_id=bulk_id,
            outcome="done",
            detail="recover 1 run",
            created_at=now,
        )
    view = SavedView.objects.create(name="failed", owner_key="0", created_at=now, is_shared=True)
    QueueMessage.objects.create(id="message", run_id="run", queue="stray", body="7", sent_at=now, order=1)
    Limit.objects.create(name="carrier", at_once=4, override=2)
    Schedule.objects.create(name="nightly", workflow="tests.switched", rule="30 2 * * *")
    cause, action = Cause.objects.get(), OperatorAction.objects.get(bulk_id="many")
    return {"{cause}": cause.fingerprint, "{view}": str(view.pk), "{action}": str(action.pk)}


def a_hung_step(stage: Stage) -> None:
    """A step of the run "hung" has run for an hour, so that to abandon it is the first of the run's verbs."""
    stage.start(flows.switched, id="hung", settle=False)
    record = stage.claim("hung")
    began = timezone.now() - timedelta(hours=1)
    Run.objects.filter(pk="hung").update(lease_expires_at=timezone.now() + timedelta(hours=1))
    Activity.objects.create(
        run_id="hung",
        location="charge",
        attempt=1,
        kind="step",
        fence=record.fence,
        worker=record.worker,
        began_at=began,
        timeout=9,
    )
