"""The addresses of the REST interface as tests ask them: the parts of their paths, and the permissions they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from durable import get_run
from durable.models import Cause, LogLine, QueueMessage, RateLimit
from tests.api.workflows import add, loop
from tests.faults.passing import pass_once
from tests.support.subjects import a_restored_database

VIEW = frozenset({"view_run"})
PAYLOADS = VIEW | {"view_payload"}
ACTIONS = (
    *("wake", "move", "pause", "resume", "cancel", "abandon", "stack", "recover", "restart", "replay", "give-output"),
    *("settle", "go-on", "stop-here"),
)


@dataclass(frozen=True)
class Address:
    """A method of an address: the parts of its path, its query or its body, and the permissions that it needs."""

    keys: tuple[str, ...] = ()
    needs: frozenset[str] = VIEW
    query: str = ""
    body: Mapping[str, Any] | None = None


def _verb(permission: str, *keys: str, **body: Any) -> Address:
    return Address(keys, frozenset(permission.split(" and ")), body=body)


RUN, FLOW, QUEUE, NIGHTLY = ("a",), ("tests.api.add",), ("default",), ("nightly",)
QUESTION = ("0" * 16,)  # there is none: who may answer is decided by the question (`tests/people/test_surfaces.py`)
STEP, FAR = "?location=rest", "2100-01-01T00:00:00Z"

READS: Mapping[str, Address] = {
    "root": Address(),
    "docs": Address(),
    "schema": Address(),
    "runs": Address(),
    "run": Address(RUN),
    "result": Address(RUN, PAYLOADS),
    "entries": Address(RUN),
    "entry": Address(("a", "rest")),
    "events": Address(("s",)),
    "chunks": Address(("a", "rest"), PAYLOADS),
    "logs": Address(RUN, PAYLOADS),
    "values": Address(RUN, PAYLOADS),
    "timeline": Address(RUN),
    "tree": Address(RUN),
    "running-of-run": Address(RUN),
    "children": Address(RUN),
    "messages": Address(RUN),
    "message": Address(("a", "{message}")),
    "stack": Address(RUN, PAYLOADS, STEP),
    "replay-plan": Address(RUN, VIEW | {"replay_run"}, STEP),
    "comparison": Address(RUN, query="?other=s"),
    "publish": Address(),
    "event-waits": Address(),
    "bulk": Address(("many",)),
    "causes": Address(),
    "running": Address(),
    "counts": Address(),
    "workflows": Address(),
    "workflow": Address(FLOW),
    "workflow-stats": Address(FLOW),
    "queues": Address(),
    "limits": Address(),
    "limit": Address(("carrier",)),
    "rates": Address(),
    "rate": Address(("calls",)),
    "schedules": Address(),
    "schedule": Address(NIGHTLY),
    "database": Address(),
    "workers": Address(),
    "operator-actions": Address(),
    "questions": Address((), frozenset()),
    "question": Address(QUESTION, frozenset()),
    "anywhere": Address(("nowhere",)),
}
WRITES: Mapping[str, Address] = {
    "runs": _verb("start_run", workflow="tests.api.add", args=[1]),
    "messages": _verb("operate_run", *RUN, queue="q"),
    "ask": Address(RUN, frozenset({"operate_run", "view_payload"}), body={"queue": "q"}),
    "delete-message": _verb("operate_run", "a", "{message}"),
    "move-message": _verb("operate_run", "a", "{message}", to="s"),
    "note": _verb("operate_run", "0" * 16, note="the bank knows"),
    **{each: _verb("operate_run", *RUN) for each in ACTIONS},
    "abandon": _verb("operate_run", *RUN, location="rest"),
    "stack": _verb("view_payload", *RUN, location="rest"),
    "restart": _verb("start_run", *RUN),
    "move": _verb("operate_run", *RUN, queue="high"),
    "settle": _verb("settle_step", *RUN, location="rest", fail=True),
    "replay": _verb("replay_run", *RUN, location="rest"),
    "give-output": Address(
        RUN, frozenset({"replay_run", "give_output"}), body={"location": "rest", "output": 1, "reason": "known"}
    ),
    "bulk-plan": Address((), VIEW | {"operate_run"}, body={"verb": "pause", "ids": ["a"]}),
    "bulks": _verb("operate_run", verb="pause", ids=["a"]),
    "restored": _verb("change_databasemark", "main", how="go_on"),
    "publish": _verb("operate_run", event="order.paid", key="7", body={"id": 7}),
    "answer-question": Address(QUESTION, frozenset(), body={"data": True}),
    "comment-question": Address(QUESTION, frozenset(), body={"comment": "who?"}),
    "hand-over-question": Address(QUESTION, frozenset(), body={"to": "ada"}),
    "claim-question": Address(QUESTION, frozenset(), body={}),
    "release-question": Address(QUESTION, frozenset(), body={}),
    "hold": _verb("hold_workflow", *FLOW),
    "release": _verb("hold_workflow", *FLOW),
    "pause-queue": _verb("pause_queue", *QUEUE),
    "resume-queue": _verb("pause_queue", *QUEUE),
    "set-limit": _verb("change_limit", "carrier", at_once=2),
    "take-back-limit": _verb("change_limit", "carrier"),
    "set-rate": _verb("change_limit", "calls", rate="2/s"),
    "take-back-rate": _verb("change_limit", "calls"),
    "close-limit": _verb("change_limit", "calls", until=FAR),
    "open-limit": _verb("change_limit", "calls"),
    "schedules": _verb(
        "add_schedule and start_run", name="weekly", workflow="tests.api.add", rule="30 2 * * 1", args=[1, 2]
    ),
    "pause-schedule": _verb("operate_schedule", *NIGHTLY),
    "resume-schedule": _verb("operate_schedule", *NIGHTLY),
    "run-schedule": _verb("operate_schedule", *NIGHTLY),
    "backfill": _verb("operate_schedule", *NIGHTLY, since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z"),
    "edit-schedule": _verb("change_schedule and start_run", *NIGHTLY, rule="30 3 * * *"),
    "override-schedule": _verb("change_schedule", *NIGHTLY, rule="30 3 * * *"),
    "take-back-override": _verb("change_schedule", *NIGHTLY),
    "delete-schedule": _verb("delete_schedule", *NIGHTLY),
    "anywhere": Address(("nowhere",), frozenset()),
}


def make_runs() -> dict[str, str]:
    """A run that sleeps with a message, one that is completed, and a rate; what stands for the braces of the paths."""
    pass_once(loop.using(id="a").start(1))
    pass_once(add.using(id="s").start(1, 2))
    get_run("a").send("q", 1)
    LogLine.objects.create(run_id="a", at=timezone.now(), level=20, logger="shop", location="", text="begins")
    a_restored_database()
    RateLimit.objects.create(name="calls", rate="1/s", spacing=1_000_000_000)
    Cause.objects.create(fingerprint="0" * 16, place="rest", error_type="ValueError", first_seen_at=timezone.now())
    return {"{message}": str(QueueMessage.objects.get(run_id="a").pk)}
