"""Runs of every kind with what operators did to them, and the address of every page of the admin that shows them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.urls import reverse
from django.utils import timezone

from durable import get_run, operations
from durable.admin.run_parts import PART_NAMES
from durable.inspection.schedules import list_schedules
from durable.models import (
    Activity,
    Attempt,
    Cause,
    Child,
    Entry,
    Limit,
    LogLine,
    OperatorAction,
    QueueMessage,
    RateKey,
    RateLimit,
    Reservation,
    Run,
    SavedView,
    Schedule,
    Slot,
    WorkerProcess,
)
from durable.operations import bulk, holds
from durable.operations.audit import Actor, acting_as
from durable.operations.catalogue import SCHEDULE, VERBS
from durable.operations.schedules.verbs import pause, run_now
from durable.people import questions_of
from durable.schedules import CATCH_UPS, OVERLAPS
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import log_url, url
from tests.support.subjects import a_restored_database
from tests.support.worker import a_worker

if TYPE_CHECKING:
    from django.contrib.auth.models import User

#: Names and words of other origin: the product's, of formats, of time zones and units; and parts of addresses.
NAMES = frozenset(
    {"Durable", "UTC", "MB", "kB", "JSON", "RQ", "QUEUES", "LOGGING", "durable", "DEBUG", "INFO", "WARNING"}
    | {"ERROR", "CRITICAL"}
)
#: What the tests' own workflows are called, say and return.
OF_THE_WORKFLOWS = frozenset(
    {"admin", "flows", "py", "refund", "high", "main", "none", "null", "args", "kwargs", "true", "charged"}
    | {"went", "slow", "won", "round", "news", "approved", "nonsense", "rejected"}
)
REASON = "rejected by the shopkeeper"
OF_DJANGO = 'alt="Search"'  # not marked in Django's own template
#: Addresses that answer with no page, or only to a POST.
WITHOUT_A_PAGE = frozenset(
    {"names", "raw", "export", "lead", "save_view", "delete_view", "save_cause", "autocomplete", "live", "stream"}
    | {"bulk_live"}
)


def fill(stage: Stage, user: User) -> None:
    """Runs in every state, with what operators did to them, workers, holds, causes, logs and a bulk."""
    with acting_as(Actor("admin", user=user), reason="zq"):
        for workflow, name in (
            (flows.quick, "run-1"),
            (flows.saga, "run-2"),
            (flows.undoing, "run-3"),
            (flows.undoing_that_fails, "run-4"),
            (flows.polls, "run-5"),
            (flows.approve, "run-6"),
            (flows.nap, "run-7"),
            (flows.broken_branch, "run-8"),
            (flows.parcels, "run-9"),
            (flows.album, "run-10"),
            (flows.caught_join, "run-11"),
            (flows.branches, "run-12"),
            (flows.forgetful, "run-13"),
            (flows.undone_in_a_loop, "run-14"),
            (flows.undoing_then_mistaken, "run-15"),
        ):
            stage.start(workflow, id=name)
        stage.start(flows.looping, 5, id="run-16")
        flows.SWITCH["broken"] = True
        stage.start(flows.stubborn, id="run-17")
        stage.start(flows.switched, id="run-18")
        stage.start(flows.switched, id="run-19")
        stage.start(flows.mistaken, {}, id="run-20")
        flows.SWITCH["broken"] = False
        get_run("run-6").send("other", {"zq": 1})
        get_run("run-7").pause()
        stage.start(flows.nap, id="run-21")
        get_run("run-21").cancel(reason="zq")
        stage.start(flows.quick, id="run-22", settle=False)
        stage.start(flows.saga_that_sleeps, id="run-23")
        operations.replay("run-18", "charge", as_id="run-24")
        bulk.apply("recover", ["run-19", "run-1"], as_id="b0000000-0000-4000-8000-000000000000")
        stage.start(flows.approve, id="run-26", settle=False)
        claimed = stage.claim("run-26")
        stage.start(flows.asking, id="run-28")
        holds.pause_queue("default")
        holds.hold_starts("tests.quick")
        stage.start(flows.quick, id="run-25", settle=False)
    a_worker()
    a_restored_database()
    a_worker("zq:1:abc", host="zq", pid=1, last_seen_at=stage.now - timedelta(minutes=10))
    a_worker("zq:2:abc", host="zq", pid=2, state="stopping")
    Activity.objects.create(
        run_id="run-26",
        location="prepare",
        attempt=2,
        kind="step",
        fence=claimed.fence,
        worker="host:4711:abc",
        began_at=stage.now - timedelta(minutes=40),
        timeout=60.0,
    )
    Limit.objects.create(name="zq", at_once=1, override=2)
    RateLimit.objects.create(
        name="zq",
        rate="1/s",
        spacing=1_000_000_000,
        override_rate="2/s",
        override_spacing=500_000_000,
        override_burst=1,
    )
    later = stage.now + timedelta(days=1)
    RateKey.objects.create(
        limit="zq", key="zq", closed_until=later, closed_by="zq", closed_why="zq", refused=1, refused_at=stage.now
    )
    Reservation.objects.create(run_id="run-1", location="prepare", limit="zq", key="zq", units=1, at=later)
    for number, run in enumerate(("run-26", "run-1", "run-6")):
        Slot.objects.create(
            run_id=run,
            location="prepare" if number == 1 else "",
            limit="zq",
            key="zq",
            kind="open",
            is_held=number < 2,
            place=max(0, number - 1),
            since=stage.now - timedelta(minutes=number),
        )
    for name, rule in (("zq", "30 2 * * *"), ("run-27", "every 6 hours")):
        Schedule.objects.create(name=name, workflow="tests.quick", rule=rule)
    with acting_as(Actor("admin", user=user), reason="zq"):
        run_now("zq", force=True)
        pause("run-27")
    SavedView.objects.create(
        name="zq", query="state=failed", owner_key="other", owner_label="zq", is_shared=True, created_at=stage.now
    )


RUNS = [f"run-{number}" for number in range(1, 27)]


def addresses() -> dict[str, list[str]]:
    """The addresses of the pages, by the name of their pattern."""
    cause = Cause.objects.order_by("pk").first()
    action = OperatorAction.objects.order_by("pk").first()
    assert cause is not None
    assert action is not None
    bulk_id = OperatorAction.objects.exclude(bulk_id="").values_list("bulk_id", flat=True).first()
    failed = set(Run.objects.filter(state="failed").values_list("pk", flat=True))
    filters = (
        *("", "?state=failed&state=paused&attention=true", "?workflow=none&sort=wake_at&columns=parent&columns=worker"),
        *("?since=day&created_from=2026-01-01T00:00&nonsense=1", "?sort=nonsense", "?q=zq", "?after=nonsense"),
        *("?columns=wakes&columns=finished&columns=queue&state=sleeping", "?cause=" + cause.fingerprint),
    )
    verbs = (
        *("recover", "resume", "wake", "move", "pause", "cancel", "abandon", "take_stack", "restart", "replay"),
        "nonsense",
    )
    return {
        "changelist": [url("changelist") + each for each in filters],
        "overview": [url("overview")],
        "causes": [url("causes")],
        "cause": [url("cause", each.fingerprint) for each in Cause.objects.all()] + [url("cause", "none")],
        "running": [url("running"), url("running") + "?after=nonsense"],
        "events": [url("events"), url("events") + "?event=nobody&events=nonsense"],
        "queues": [url("queues")],
        "queue": [url("queue", each) for each in ("default", "high", "none")],
        "workers": [url("workers")],
        "worker": [url("worker", each) for each in ("host:4711:abc", "zq:1:abc", "zq:2:abc", "none")],
        "workflows": [url("workflows"), url("workflows") + "?after=zz"],
        "workflow": [url("workflow", each) for each in ("tests.switched", "tests.quick", "none")],
        "bulk_result": [url("bulk_result", str(bulk_id)), url("bulk_result", "none")],
        "compare": [url("compare", "run-24"), url("compare", "run-18") + "?with=run-2", url("compare", "run-1")],
        "change": [
            *(url("change", each) for each in [*RUNS, "none"]),
            *(f"{url('change', run)}?part={part}" for run, part in _parts()),
        ],
        "step": [f"{url('step', run)}?at={as_parameter(at)}" for run, at in _of_each_shape()] + [url("step", "run-1")],
        "running_step": [url("running_step", "run-26") + "?at=prepare"],
        "payload": [
            url("payload", "run-6") + f"?of={each}"
            for each in ("input", "output", "none", "input&find=1", "input&find=zq")
        ],
        "bulk": [
            url("bulk") + "?verb=recover&all=on&filter=%3Fstate%3Dfailed",
            url("bulk") + "?verb=cancel&all=on&filter=%3Fstate%3Dpaused",
            url("bulk") + "?verb=pause&id=run-22&id=run-1&first=5",
        ],
        "queue_hold": [url("queue_hold", "default", each) for each in ("pause", "resume", "none")],
        "workflow_hold": [url("workflow_hold", "tests.quick", each) for each in ("hold", "release")],
        "workflow_start": [url("workflow_start", "tests.quick"), url("workflow_start", "none")],
        "limits": [url("limits")],
        "limit": [url("limit", each) for each in ("zq", "none")],
        "limit_act": [
            url("limit_act", "zq", each)
            for each in ("set", "take-back", "set-rate", "take-back-rate", "close", "open", "none")
        ],
        "databases": [url("databases")],
        "database": [url("database", each) for each in ("main", "none")],
        "database_act": [url("database_act", "main", each) for each in ("restored", "none")],
        "schedules": [url("schedules"), url("schedules") + "?after=zz"],
        "schedule": [url("schedule", each) for each in ("zq", "run-27", "none")],
        "schedule_create": [url("schedule_create")],
        "schedule_act": [url("schedule_act", "zq", each.word) for each in VERBS if each.on == SCHEDULE],
        "send": [url("send", "run-6")],
        "message_act": [url("message_act", "run-6", "none", each) for each in ("delete", "move", "none")],
        "replay": [
            f"{url('replay', run)}?at={as_parameter(at)}"
            for run, at in _of_each_shape(in_each_run=True)
            if run in failed
        ],
        "give_output": [url("give_output", "run-19") + "?at=charge"],
        "settle": [url("settle", "run-19") + "?at=charge", url("settle", "run-1")],
        "edit_input": [url("edit_input", "run-1"), url("edit_input", "run-20")],
        "act": [url("act", run, verb) for run in ("run-1", "run-19", "run-7") for verb in verbs],
        "inbox": [url("inbox")],
        "question": [url("question", each.id) for each in questions_of("run-28")] + [url("question", "0" * 16)],
        "index": [reverse("admin:index")],
        "app_list": [reverse("admin:app_list", args=["durable"])],
        "log": [
            log_url(),
            log_url("change", action.pk),
            log_url("history", action.pk),
        ],
    }


def _of_each_shape(*, in_each_run: bool = False) -> list[tuple[str, str]]:
    """The first entry of each shape, by its run and location: of a kind and a status, with the same things to tell."""
    found: dict[object, tuple[str, str]] = {}
    for entry in Entry.objects.select_related("run", "metadata").order_by("pk"):
        told = entry.metadata
        fields = frozenset(
            (name, value if value is None or isinstance(value, bool) else type(value))
            for name, value in entry.data.items()
        )
        happened = (told.attempts, told.error, told.next_attempt_at, told.rollback_completed_at, told.rollback_error)
        shape = (entry.kind, told.status, fields, *(bool(each) for each in happened), entry.location.count("/") > 0)
        found.setdefault((entry.run_id if in_each_run else entry.run.state, shape), (entry.run_id, entry.location))
    return list(found.values())


def _parts() -> list[tuple[str, str]]:
    """The runs with their parts beside the timeline, which is shown without a name; an empty part with one run."""
    of_actions = OperatorAction.objects.exclude(run_id="").values_list("run_id", flat=True)
    related = Run.objects.exclude(parent=None, replay_of=None).values_list("pk", "parent", "replay_of")
    handlers = Entry.objects.filter(metadata__rollback_error__isnull=False).values_list("run", flat=True)
    filled: dict[str, set[Any]] = {
        "attempts": {*Attempt.objects.values_list("run", flat=True), *handlers},
        "messages": set(QueueMessage.objects.values_list("run", flat=True)),
        "logs": set(LogLine.objects.values_list("run", flat=True)),
        "children": set(Child.objects.values_list("parent", flat=True)),
        "values": set(Entry.objects.filter(kind="publish").values_list("run", flat=True)),
        "related": {each for run in related for each in run},
        "audit": set(of_actions),
    }
    found = []
    for part in PART_NAMES:
        if part != "timeline":
            empty = [run for run in RUNS if run not in filled.get(part, set(RUNS))]
            found += [(run, part) for run in RUNS if run not in empty[1:]]
    return found


def as_parameter(location: str) -> str:
    return quote(location, safe="")


def words_of_data() -> set[str]:
    """The words of what others have named or written."""
    found = {
        *NAMES,
        *OF_THE_WORKFLOWS,
        *OVERLAPS,
        *CATCH_UPS,
        "Europe",
        "Berlin",
        *str(OperatorAction.objects.order_by("pk").first()).split(),
    }
    for each in list_schedules(timezone.now())[0]:  # a rule is told by a library
        found.update(re.findall("[A-Za-z]{2,}", f"{each.words} {each.schedule.rule}"))
        found.update(re.findall("[A-Za-z]{2,}", " ".join(tick.why for tick in each.ticks)))
    columns: dict[Any, tuple[str, ...]] = {
        Run: ("id", "workflow", "queue", "worker", "request_reason"),
        Entry: ("location",),
        QueueMessage: ("queue",),
        Attempt: ("location", "worker"),
        OperatorAction: ("actor_label", "reason", "detail"),
        WorkerProcess: ("name", "host", "build"),
        Cause: ("place", "error_type", "pattern"),
    }
    for model, names in columns.items():
        for row in model.objects.values_list(*names):
            found.update(word for value in row for word in re.findall("[A-Za-z]{2,}", str(value)))
    for model, name in ((Run, "error"), (Attempt, "error")):
        for error in model.objects.values_list(name, flat=True):
            found.update(re.findall("[A-Za-z]{2,}", str(error)))
    return found
